/* base/nearest.h - the known name that is nearest to a misspelt one. */
#ifndef BASE_NEAREST_H
#define BASE_NEAREST_H

#include <stddef.h>

/* Levenshtein distance of the first n characters of `a` to `b`; of both the first 64 count. */
size_t ek_edit_distance(const char *a, size_t n, const char *b);

#endif
