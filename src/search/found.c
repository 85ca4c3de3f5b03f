/* The best steps so far, and what can still enter the answer. */
#include "search/found.h"

#include <math.h>
#include <stdlib.h>

const ek_choice ek_search_corner_choices[EK_SEARCH_CORNER_CHOICES] = {
    EK_CHOICE_PP, EK_CHOICE_TP, EK_CHOICE_EP, EK_CHOICE_ZERO, EK_CHOICE_RECOMPUTE};

ek_search_corner *ek_search_corner_of(ek_search_corners c, const ek_search_layout *l, int which)
{
    ek_choice choice = ek_search_corner_choices[which];

    for (int i = 0; i < c.n; i++)
        if (c.list[i].choice == choice && c.list[i].value == l->choice.value[choice])
            return &c.list[i];
    return NULL;
}

ek_status ek_search_found_open(ek_search_found *f, ek_search_corners corners, int64_t n)
{
    *f = (ek_search_found){.corners = corners, .n_best = n};
    f->best = calloc((size_t)n, sizeof(*f->best));
    f->of_corner = calloc((size_t)corners.n, sizeof(*f->of_corner));
    EK_REQUIRE(f->best != NULL && f->of_corner != NULL, EK_ENOMEM, "no memory for a search");
    for (int64_t i = 0; i < n; i++)
        f->best[i] = INFINITY;
    for (int i = 0; i < corners.n; i++)
        f->of_corner[i] = INFINITY;
    return EK_OK;
}

void ek_search_found_close(ek_search_found *f)
{
    free(f->best);
    free(f->of_corner);
}

void ek_search_found_add(ek_search_found *f, const ek_search_layout *l)
{
    double x = l->step_s;

    for (int k = 0; k < EK_SEARCH_CORNER_CHOICES; k++) {
        double *best = &f->of_corner[ek_search_corner_of(f->corners, l, k) - f->corners.list];

        *best = fmin(*best, x);
    }
    for (int64_t i = 0; i < f->n_best && isfinite(x); i++)
        if (x < f->best[i]) {
            double other = f->best[i];

            f->best[i] = x;
            x = other;
        }
}

int ek_search_found_admits(const ek_search_found *f, const ek_search_layout *l)
{
    int can = f->everything || l->bound < f->best[f->n_best - 1];

    for (int k = 0; k < EK_SEARCH_CORNER_CHOICES && !can; k++)
        can = l->bound < f->of_corner[ek_search_corner_of(f->corners, l, k) - f->corners.list];
    return can;
}
