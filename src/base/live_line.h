/* base/live_line.h - a progress line that is redrawn in place on standard error.
 *
 * The line takes one row: it is cut to the current width of the terminal.  Other output is preceded
 * by what ek_live_line_end() returns, so that it starts on a new row.
 *
 * A launched worker sends the uncut line after a carriage return to the supervisor, which draws it
 * on its own terminal. */
#ifndef BASE_LIVE_LINE_H
#define BASE_LIVE_LINE_H

#include "evenkeel/err.h"

#include <stddef.h>
#include <stdio.h>

/* Fits a text of `n` bytes, with fields separated by two spaces, into `columns` columns: while it
 * is too wide, drops the last field but one as long as there are more than three, then the last; a
 * single field is cut.  Wide characters count two columns, combining ones none.  Returns the bytes
 * written to `out` (cap bytes, NUL-terminated). */
size_t ek_live_line_fit(const char *text, size_t n, size_t columns, char *out, size_t cap);

/* Draws the line on f, cut to the terminal's width if f is a terminal. */
void ek_live_line_draw(FILE *f, const char *text, size_t n);

/* Draws the line on ek_command_err(). */
void ek_live_line_show(const char *fmt, ...) EK_PRINTF(1, 2);

/* Text to print before any other output: "\n" if a line is drawn, which it terminates, else "". */
const char *ek_live_line_end(void);

#endif
