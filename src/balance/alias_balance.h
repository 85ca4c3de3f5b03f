/* balance/alias_balance.h - replicas that fill ranks up to a target load: the construction that the
 * planners `exact` and `auto` search with.
 *
 * Loads are weighted by what assignments cost on a rank (row_costs.h): within a target each rank
 * has a capacity in assignments, the target itself where ranks are equal.
 *
 * For a target load: among the ranks above it, the one with the largest expert left gives part of
 * that expert to the rank that lacks most: as much as closes that gap, at most what the expert has
 * left.  This may take the giving rank below the target; it then receives from another rank in
 * its own spare slot.  This is Walker's alias method (A. J. Walker, 1977; M. D. Vose, 1991) applied
 * to ranks: with one spare slot per rank it balances any loads perfectly unless a gap needs two
 * experts.
 *
 * A budget bounds the replicas on a link: those a rank receives, and those of its experts that it
 * sends, each counted once however many ranks receive it, because receivers forward it.
 *
 * Nodes       where nodes have several ranks, which share their node's link to others, the plan
 *             found is made once more with receivers by these links: on nodes that do not have the
 *             expert yet, if the rows that the copy keeps inside (a slot serves its node's
 *             assignments before those of others) take longer to send than the copy; else on nodes
 *             that have it, as receivers forward it.  With one expert per rank any receiver below
 *             the target will do for the alias method; with several, one that lacks less may leave
 *             a gap that needs two experts.  So that plan is used only if it is as even, with no
 *             more replicas in all and on the busiest rank.  A node here is a run of consecutive
 *             ranks. */
#ifndef BALANCE_ALIAS_BALANCE_H
#define BALANCE_ALIAS_BALANCE_H

#include "balance/maxima.h"
#include "balance/row_costs.h"

enum { EK_ALIAS_SEARCH = 12 }; /* bisection steps */

/* A replica: part of an expert's assignments goes to a spare slot. */
typedef struct {
    int32_t expert, slot;
    int64_t amount;
} ek_alias_move;

typedef struct {
    int64_t *total;         /* [experts] assignments; filled in by the caller */
    int64_t *load, *start;  /* [ranks] current assignments; those with primary copies only */
    int64_t *capacity;      /* [ranks] assignments within the target */
    int64_t *left;          /* [experts] assignments that the primary copy still serves */
    int32_t *spare;         /* [ranks * slots] empty slots, by rank */
    int32_t *n_spare;       /* [ranks] */
    int32_t *primaries;     /* [experts] sorted by primary rank */
    int32_t *first_primary; /* [ranks + 1] */
    int32_t *rank_of;       /* [experts] primary rank */
    int32_t nodes;
    int32_t *node_of;       /* [ranks] from 0 */
    int32_t *node_first;    /* [nodes + 1], at most ranks + 1: first rank */
    ek_maxima node_gap;     /* [nodes] the largest gap of its ranks */
    uint64_t *has_node;     /* [experts][(nodes + 63) / 64] the nodes that have it, as bits */
    int32_t *last_move;     /* [experts] its last move, of those to other nodes than its primary
                               rank's; -1: none */
    int32_t *node_of_move;  /* [ranks * slots] */
    int32_t *move_before;   /* [ranks * slots] the last such move before to yet another node */
    int32_t *largest;       /* [ranks] the primary expert that the rank may give of with most
                               left; -1: none */
    int64_t *most_left;     /* [ranks] assignments of `largest` left */
    int32_t *largest_first; /* [ranks] the same two before any move */
    int64_t *most_first;
    ek_maxima offer, gap;        /* above the target: assignments a rank can give at once; below it
                                          with an empty slot: assignments it lacks; otherwise 0 */
    int32_t *slots_left, *gives; /* [ranks] replicas it may still receive; experts it gives of */
    unsigned char *given;        /* [experts] whether part of it was moved */
    ek_alias_move *moves;        /* [ranks * slots] for the current target */
    ek_alias_move *best;         /* [ranks * slots] the best so far */
    int32_t n_best;
    int64_t least; /* the largest weighted load with `best` */
} ek_alias;

void ek_alias_reserve(ek_alias *m, ek_arena *a, const ek_plan_limits *l);

/* Empties all slots of p except primary slots and starts from that placement.  The caller has
 * filled m->total.  Returns the largest weighted load. */
int64_t ek_alias_start(ek_alias *m, const ek_plan_limits *l, ek_placement *p);

/* A lower bound for the largest weighted load if each rank gives of one expert at most. */
int64_t ek_alias_bound_of_one(const ek_alias *m, const ek_plan_limits *l);

/* Finds the smallest feasible target by bisection from `level` upwards, with at most `budget`
 * replicas per link, drops moves that lower no maximum, and heeds the links of nodes: m->best,
 * m->least.  limit: returns 0 if no plan keeps all ranks at or below it, which is tested first;
 * INT64_MAX: no limit.  Otherwise returns 1. */
int ek_alias_search(ek_alias *m, const ek_plan_limits *l, int64_t level, int32_t budget,
                    int64_t limit);

/* Replicas on the busiest link with m->best. */
int32_t ek_alias_busiest_link(ek_alias *m, const ek_plan_limits *l);

/* Applies moves to a plan that has primary copies only. */
void ek_alias_apply(const ek_alias_move *moves, int32_t n, ek_plan *p);

#endif
