/* cli/live_line.h - one line of a terminal that is drawn again and again, on standard error.
 *
 * The line never takes more than one row: it is cut to the width that the terminal has at that
 * moment.  Other output begins with what cli_live_end() returns, so that it has rows of its own.
 *
 * Under a launcher the line goes to the launcher whole, behind a carriage return, and the launcher
 * draws it on its own terminal. */
#ifndef CLI_LIVE_LINE_H
#define CLI_LIVE_LINE_H

#include "evenkeel/err.h"

#include <stddef.h>
#include <stdio.h>

/* Text of `n` bytes, whose fields are separated by two spaces, in at most `columns` columns: while
 * it is too wide and has more than three fields, the last but one is left out, then the last; a
 * single field is cut.  Wide characters count two columns, combining ones none.  Returns the bytes
 * in `out` (cap bytes, with NUL). */
size_t cli_live_fit(const char *text, size_t n, size_t columns, char *out, size_t cap);

/* Draws the line on f, cut to the width of the terminal that f is, if it is one. */
void cli_live_draw(FILE *f, const char *text, size_t n);

/* Draws the line on cli_err(). */
void cli_live_show(const char *fmt, ...) EK_PRINTF(1, 2);

/* What has to be printed before anything else: "\n" where a line stands drawn, else "".  The line
 * counts as ended then. */
const char *cli_live_end(void);

#endif
