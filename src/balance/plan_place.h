/* balance/plan_place.h - the steps of the planner `place` (plan_place.c says what it does): pack
 * experts into as many groups as there are ranks, then say which group is which rank's. */
#ifndef BALANCE_PLAN_PLACE_H
#define BALANCE_PLAN_PLACE_H

#include "balance/place_dp.h"
#include "balance/planner.h"

/* An exact assignment of n groups to n ranks.  Prices (the dual variables) keep price_group[g] +
 * price_rank[r] <= -overlap[g][r], with equality where r is g's. */
typedef struct {
    int32_t n;
    int32_t *overlap;      /* [group][rank]: what the assignment is worth; filled by the caller */
    int32_t *group_of;     /* [rank], -1: none yet */
    int32_t *price_group;  /* [n] */
    int32_t *price_rank;   /* [n] */
    int32_t *slack, *from; /* [n] of the search for an augmenting path */
    unsigned char *done;   /* [n] */
} ek_place_match;

typedef struct {
    int32_t experts, ranks;
    int64_t *load;    /* [experts] assignments; filled by the caller */
    int32_t *order;   /* [experts] heaviest first, smaller numbers first among equals */
    int32_t *rank_of; /* [experts] the result */
    int64_t *sum;     /* [ranks or devices] of a packing at work: assignments */
    int32_t *held;    /* [ranks or devices] and experts */
    int32_t *device;  /* [experts] hybrid: each expert's virtual device, itself if packed exactly */
    int32_t rank_of_device[EK_PLACE_ITEMS];
    ek_place_dp dp;
    ek_place_match match;
} ek_place;

/* NULL while the arena measures. */
ek_place *ek_place_reserve(ek_arena *a, int32_t experts, int32_t ranks);

/* Homes that a rank may hold. */
int32_t ek_place_capacity(const ek_place *m);
/* What no packing stays below: the heaviest expert, the mean over ranks rounded up. */
int64_t ek_place_bound(const ek_place *m);
/* Numbers of loads [n], heaviest first, smaller numbers first among equals. */
void ek_place_order(const int64_t *load, int32_t n, int32_t *order);
/* order from load. */
void ek_place_sort(ek_place *m);

/* LPT: rank_of; returns the largest load of a rank. */
int64_t ek_place_lpt(ek_place *m);
/* The same exactly, for at most EK_PLACE_ITEMS experts, or by so many virtual devices; there have
 * to be more of them than ranks.  -1: they do not fit into ranks, or the largest load is not less
 * than `below`; rank_of is then as it was. */
int64_t ek_place_all(ek_place *m, int64_t below);
int64_t ek_place_hybrid(ek_place *m, int32_t devices, int64_t below);
/* The best of these; devices: 0: LPT, or how many were packed exactly. */
int64_t ek_place_pack(ek_place *m, int32_t *devices);

/* The assignment with the largest sum of overlaps: m->group_of. */
void ek_place_assign(ek_place_match *m);
/* Renames the ranks of rank_of such that the most experts are on the rank of their home; returns
 * how many are not. */
int32_t ek_place_relabel(ek_place *m, const ek_placement *p);

#endif
