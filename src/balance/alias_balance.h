/* balance/alias_balance.h - replicas that fill ranks up to a target load: the construction that the
 * planners `exact` and `auto` search with.
 *
 * For a target load, of the ranks above it the one that has the largest expert left gives of that
 * expert to the rank furthest below it, as much as fills that one's gap and the expert has, even
 * where the giver falls below the target itself: it then takes from another in its own spare slot.
 * That is Walker's alias method (A. J. Walker, 1977; M. D. Vose, 1991) on ranks: with one spare
 * slot a rank, any loads balance perfectly as long as no gap needs two experts.
 *
 * A budget bounds what a link carries: replicas that a rank gets, and experts of its own that it
 * hands out, each counted once however many get it (who has it passes it on). */
#ifndef BALANCE_ALIAS_BALANCE_H
#define BALANCE_ALIAS_BALANCE_H

#include "balance/planner.h"

enum { EK_ALIAS_SEARCH = 12 }; /* targets after the first */

/* An expert's assignments that go to a spare slot. */
typedef struct {
    int32_t expert, slot;
    int64_t amount;
} ek_alias_move;

typedef struct {
    int64_t *total;         /* [experts]; filled by the caller */
    int64_t *load, *start;  /* [ranks]; with every expert at home alone */
    int64_t *left;          /* [experts] what home still serves */
    int32_t *spare;         /* [ranks * slots] numbers of empty slots, rank by rank */
    int32_t *n_spare;       /* [ranks] */
    int32_t *primaries;     /* [experts] by home rank */
    int32_t *first_primary; /* [ranks + 1] */
    int32_t *rank_of;       /* [experts] home's */
    int32_t *largest;       /* [ranks] of the experts at home that it may give of, the one with most
                               left; -1: none */
    int64_t *most_left;     /* [ranks] its assignments */
    int32_t *largest_first; /* [ranks] the same two before anything is given */
    int64_t *most_first;
    int64_t *offer, *gap;  /* [ranks] what a rank above the target may give at once; what one below
                              it with an empty slot lacks; otherwise 0 */
    int32_t *room, *gives; /* [ranks] replicas that it may still get, experts that it gives of */
    unsigned char *given;  /* [experts] whether it is given of */
    ek_alias_move *moves;  /* [ranks * slots] of the target at work */
    ek_alias_move *best;   /* [ranks * slots] of the best so far */
    int32_t n_best;
    int64_t least; /* the busiest rank's load with these */
} ek_alias;

void ek_alias_reserve(ek_alias *m, ek_arena *a, const ek_plan_limits *l);

/* Empties all slots of p but homes, and starts from them; m->total is the caller's.  The busiest
 * rank's load. */
int64_t ek_alias_start(ek_alias *m, const ek_plan_limits *l, ek_placement *p);

/* What the busiest rank cannot come below where each gives of one expert at most. */
int64_t ek_alias_bound_of_one(const ek_alias *m, const ek_plan_limits *l);

/* The moves with the smallest target that works, found by bisection from the mean upwards, at most
 * `budget` replicas a link, without those that lower nothing: m->best, m->least.  0: no rank would
 * stay at or below `limit`, which is found out before anything else; INT64_MAX: any will do. */
int ek_alias_search(ek_alias *m, const ek_plan_limits *l, int64_t mean, int32_t budget,
                    int64_t limit);

/* Replicas that the busiest link carries with m->best. */
int32_t ek_alias_busiest_link(ek_alias *m, const ek_plan_limits *l);

/* Puts moves into a plan that has homes alone. */
void ek_alias_apply(const ek_alias_move *moves, int32_t n, ek_plan *p);

#endif
