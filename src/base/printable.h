/* base/printable.h - text of unknown origin in a form that a terminal shows and does not obey.
 *
 * Messages, log lines and progress lines contain names from foreign files: a model type, a tensor,
 * a path, a host.  Such a name may hold escape sequences that move the cursor, set the title of a
 * window or hide what follows.
 *
 * Escaped: control characters (C0, DEL, C1), the characters that reverse the direction of a line
 * or break it (U+202A to U+202E, U+2066 to U+2069, U+2028, U+2029), and bytes that are not valid
 * UTF-8.  Forms: \n, \r, \t, \xHH for a byte, \uHHHH for a character.  All other UTF-8 stays as it
 * is, backslashes too, so that escaping a text twice changes nothing more. */
#ifndef BASE_PRINTABLE_H
#define BASE_PRINTABLE_H

#include "evenkeel/err.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

enum { EK_PRINTABLE_GROWTH = 4 }; /* a byte becomes at most so many */

/* The first `bytes` of text, escaped, in `out`, which ends with NUL; what does not fit `cap` (at
 * least 1) is left out, by whole characters.  Control characters in `keep` stay as they are.
 * Returns the length of `out`. */
size_t ek_printable_bytes(char *out, size_t cap, const char *text, size_t bytes, const char *keep);

/* A whole text, NULL counting as empty; returns out. */
const char *ek_printable(char *out, size_t cap, const char *text);

/* Writes the first `bytes` of text, escaped but for what is in `keep`.  Errors are f's. */
void ek_printable_write(FILE *f, const char *text, size_t bytes, const char *keep);

/* vsnprintf, escaped.  Text cut off at `cap` is cut between characters. */
void ek_printable_format(char *out, size_t cap, const char *fmt, va_list ap) EK_PRINTF(3, 0);

#endif
