/* data/pattern.h - the regular expressions of pre-tokenizers.
 *
 * Files of Hugging Face tokenizers are written for Oniguruma; they run here on PCRE2 (UTF, UCP,
 * JIT).  Where the two read the same text differently the pattern is rewritten (\s, \S, \w,
 * script names) or refused by name, never silently matched otherwise. */
#ifndef DATA_PATTERN_H
#define DATA_PATTERN_H

#include "evenkeel/err.h"

#include <stddef.h>

typedef struct ek_pattern ek_pattern; /* compiled, read-only, shared by threads */
typedef struct ek_matcher ek_matcher; /* what one thread needs for matching */

/* Compiles; `literal` takes the text as a plain string.  EK_EUNSUPPORTED for constructs outside
 * the shared language, EK_EFORMAT for what no engine would take. */
EK_CHECKED ek_status ek_pattern_create(const char *text, size_t n, int literal, ek_pattern **out);
void ek_pattern_destroy(ek_pattern **p);

EK_CHECKED ek_status ek_matcher_create(ek_matcher **out);
void ek_matcher_destroy(ek_matcher **m);

/* First match at or after `from` in well-formed UTF-8.  *found tells whether there is one.
 * EK_EFORMAT when the pattern backtracks beyond the limits. */
EK_CHECKED ek_status ek_pattern_find(const ek_pattern *p, ek_matcher *m, const unsigned char *text,
                                     size_t n, size_t from, int *found, size_t *start, size_t *end);

#endif
