/* data/pattern.h - the regular expressions of pre-tokenizers.
 *
 * Hugging Face tokenizer files are written for Oniguruma; they run here on PCRE2 (UTF, UCP, JIT).
 * If the two interpret a construct differently, the pattern is rewritten (\s, \S, \w, script
 * names) or refused by name. */
#ifndef DATA_PATTERN_H
#define DATA_PATTERN_H

#include "evenkeel/err.h"

#include <stddef.h>

typedef struct ek_pattern ek_pattern; /* compiled, read-only, shared by threads */
typedef struct ek_matcher ek_matcher; /* scratch of one thread */

/* Compiles a pattern; literal: a plain string.  EK_EUNSUPPORTED: constructs that are not supported;
 * EK_EFORMAT: an invalid pattern.  ek_pattern_destroy frees *out. */
EK_CHECKED ek_status ek_pattern_create(const char *text, size_t n, int literal, ek_pattern **out);
void ek_pattern_destroy(ek_pattern **p);

/* Scratch for any pattern; ek_matcher_destroy frees *out.  EK_ENOMEM. */
EK_CHECKED ek_status ek_matcher_create(ek_matcher **out);
void ek_matcher_destroy(ek_matcher **m);

/* First match at or after `from` in well-formed UTF-8; *found: there is one.  EK_EFORMAT: the
 * pattern exceeds the backtracking limits. */
EK_CHECKED ek_status ek_pattern_find(const ek_pattern *p, ek_matcher *m, const unsigned char *text,
                                     size_t n, size_t from, int *found, size_t *start, size_t *end);

#endif
