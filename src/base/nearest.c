#include "base/nearest.h"

#include <string.h>

enum { NAME_CAP = 64 };

size_t ek_edit_distance(const char *a, size_t n, const char *b)
{
    size_t row[NAME_CAP + 1], m = strlen(b) < NAME_CAP ? strlen(b) : NAME_CAP;

    n = n < NAME_CAP ? n : NAME_CAP;
    for (size_t j = 0; j <= m; j++)
        row[j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t diagonal = row[0];

        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);

            diagonal = row[j];
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[m];
}

void ek_spelling_try(ek_spelling *search, const char *known)
{
    size_t d = ek_edit_distance(search->name, search->n, known);

    if (search->best != NULL && d >= search->distance)
        return;
    search->best = known;
    search->distance = d;
}

void ek_spelling_try_rows(ek_spelling *search, const void *rows, size_t n, size_t stride)
{
    const char *row = rows;

    for (size_t i = 0; i < n; i++, row += stride)
        ek_spelling_try(search, *(const char *const *)(const void *)row);
}

const char *ek_spelling_nearest(const char *name, const void *rows, size_t n, size_t stride)
{
    ek_spelling search = {.name = name, .n = strlen(name)};

    ek_spelling_try_rows(&search, rows, n, stride);
    return search.best;
}

int ek_spelling_is_likely(const ek_spelling *search)
{
    size_t longer = search->n;

    if (search->best == NULL)
        return 0;
    if (strlen(search->best) > longer)
        longer = strlen(search->best);
    if (longer > NAME_CAP)
        longer = NAME_CAP;
    return search->distance <= (longer < 3 ? 1 : longer / 3);
}
