/* balance/plan_place.h - the steps of the planner `place` (see plan_place.c): pack experts into as
 * many groups as there are ranks, then assign groups to ranks. */
#ifndef BALANCE_PLAN_PLACE_H
#define BALANCE_PLAN_PLACE_H

#include "balance/place_dp.h"
#include "balance/row_costs.h"

/* An exact assignment of n groups to n ranks.  The dual variables satisfy price_group[g] +
 * price_rank[r] <= -overlap[g][r], with equality where r is assigned to g. */
typedef struct {
    int32_t n;
    int32_t *overlap;      /* [group][rank] value of the assignment; filled in by the caller */
    int32_t *group_of;     /* [rank] -1: none yet */
    int32_t *price_group;  /* [n] */
    int32_t *price_rank;   /* [n] */
    int32_t *slack, *from; /* [n] scratch of the augmenting path */
    unsigned char *done;   /* [n] */
} ek_place_match;

typedef struct {
    int32_t experts, ranks;
    const int32_t *row_cost; /* limits.row_cost; loads of ranks are then weighted (row_costs.h);
                                NULL: equal; set by the caller */
    int64_t *load;           /* [experts] assignments; filled in by the caller */
    int32_t *order;          /* [experts] heaviest first, equal loads by number */
    int32_t *rank_of;        /* [experts] the result */
    int64_t *sum;            /* [ranks or devices] assignments of the current packing */
    int32_t *held;           /* [ranks or devices] number of experts */
    int32_t *device;         /* [experts] hybrid: virtual device of each expert; exact: the expert
                                itself */
    int32_t rank_of_device[EK_PLACE_ITEMS];
    ek_place_dp dp;
    ek_place_match match;
} ek_place;

/* Reserves memory; NULL while the arena measures. */
ek_place *ek_place_reserve(ek_arena *a, int32_t experts, int32_t ranks);

/* Maximum number of primary copies per rank. */
int32_t ek_place_capacity(const ek_place *m);
/* Lower bound of every packing: the heaviest expert on the fastest rank, or the level of all ranks
 * (ek_row_costs_level). */
int64_t ek_place_bound(const ek_place *m);
/* Fills m->order from m->load. */
void ek_place_sort(ek_place *m);

/* Longest processing time first (LPT): fills m->rank_of; returns the largest weighted load. */
int64_t ek_place_lpt(ek_place *m);
/* The same by exact packing of all experts (at most EK_PLACE_ITEMS), or of `devices` virtual
 * devices; more than ranks.  Returns -1, with rank_of unchanged, if they do not fit or the largest
 * load is not below `below`. */
int64_t ek_place_all(ek_place *m, int64_t below);
int64_t ek_place_hybrid(ek_place *m, int32_t devices, int64_t below);
/* The best of these.  *devices: 0: LPT, else the number of exactly packed items. */
int64_t ek_place_pack(ek_place *m, int32_t *devices);

/* Maximises the sum of overlaps: m->group_of. */
void ek_place_assign(ek_place_match *m);
#endif
