/* base/printable.h - escapes text of unknown origin, so that a terminal shows it literally.
 *
 * Messages, log lines and progress lines contain names from untrusted files: a model type, a
 * tensor, a path, a host.  Such a name may hold escape sequences that move the cursor, set the
 * title of a window or hide what follows.
 *
 * Escaped: control characters (C0, DEL, C1), the characters that reverse the direction of a line
 * or break it (U+202A to U+202E, U+2066 to U+2069, U+2028, U+2029), and bytes that are not valid
 * UTF-8.  Forms: \n, \r, \t, \xHH for a byte, \uHHHH for a character.  All other UTF-8 is kept,
 * also backslashes, so that escaping is idempotent. */
#ifndef BASE_PRINTABLE_H
#define BASE_PRINTABLE_H

#include "evenkeel/err.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

enum { EK_PRINTABLE_GROWTH = 4 }; /* bytes of output per byte of input, at most */

/* Writes the first `bytes` of text, escaped, to `out` with a final NUL; cut at a whole character
 * where it exceeds `cap` bytes (at least 1).  Control characters in `keep` are not escaped.
 * Returns the length of `out`. */
size_t ek_printable_bytes(char *out, size_t cap, const char *text, size_t bytes, const char *keep);

/* The same for a whole text, NULL counting as empty; returns out. */
const char *ek_printable(char *out, size_t cap, const char *text);

/* Writes the first `bytes` of text to f, escaped except for the characters in `keep`.  Errors
 * are left in ferror(f). */
void ek_printable_write(FILE *f, const char *text, size_t bytes, const char *keep);

/* vsnprintf, escaped; cut between characters where it exceeds `cap` bytes. */
void ek_printable_format(char *out, size_t cap, const char *fmt, va_list ap) EK_PRINTF(3, 0);

#endif
