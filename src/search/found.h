/* search/found.h - the best steps that a search has simulated so far, of all layouts and of those
 * with each value of some options (corners): whether another layout can still be one of them. */
#ifndef SEARCH_FOUND_H
#define SEARCH_FOUND_H

#include "search/evaluate.h"

/* The best layout with one value of a choice. */
typedef struct {
    ek_choice choice;
    int64_t value;
    int64_t best;  /* index of the layout; -1: none fits */
    int64_t least; /* of the one that needs least memory; -1: training refuses all */
} ek_search_corner;

enum { EK_SEARCH_CORNER_CHOICES = 5 };

/* The options that have corners. */
extern const ek_choice ek_search_corner_choices[EK_SEARCH_CORNER_CHOICES];

typedef struct {
    ek_search_corner *list; /* [n] */
    int n;
} ek_search_corners;

/* That of a layout's value of the `which`th of these; NULL: it is not listed (yet). */
ek_search_corner *ek_search_corner_of(ek_search_corners c, const ek_search_layout *l, int which);

typedef struct {
    ek_search_corners corners; /* the caller's, all of them */
    int everything;            /* 1: all layouts may be */
    double *best;              /* [n_best] the shortest steps, ascending */
    int64_t n_best;
    double *of_corner; /* [n_corners] */
} ek_search_found;

/* For the n shortest steps.  The caller closes f, also after a failure.  EK_ENOMEM. */
EK_CHECKED ek_status ek_search_found_open(ek_search_found *f, ek_search_corners corners, int64_t n);
void ek_search_found_close(ek_search_found *f);

void ek_search_found_add(ek_search_found *f, const ek_search_layout *simulated);

/* Whether by its bound a layout may be one of the best. */
int ek_search_found_admits(const ek_search_found *f, const ek_search_layout *l);

#endif
