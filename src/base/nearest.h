/* base/nearest.h - the known name that is nearest to a misspelt one. */
#ifndef BASE_NEAREST_H
#define BASE_NEAREST_H

#include <stddef.h>

/* Levenshtein distance of the first n characters of `a` to `b`; of both the first 64 count. */
size_t ek_edit_distance(const char *a, size_t n, const char *b);

/* A search: set name and n, its first n characters; then pass every known name to ek_spelling_try.
 */
typedef struct {
    const char *name;
    size_t n;
    const char *best; /* NULL: no name was tried */
    size_t distance;  /* of the best one, the first of several */
} ek_spelling;

void ek_spelling_try(ek_spelling *search, const char *known);

/* The same for the names of n rows of a table, `stride` bytes apart, which begin with them (const
 * char *). */
void ek_spelling_try_rows(ek_spelling *search, const void *rows, size_t n, size_t stride);

/* Such a name that is nearest to a whole one; NULL: there are no rows. */
const char *ek_spelling_nearest(const char *name, const void *rows, size_t n, size_t stride);

/* Whether the best one is likely to be meant: its distance is at most a third of the longer name,
 * or 1. */
int ek_spelling_is_likely(const ek_spelling *search);

#endif
