/* balance/planner.h - what decides where experts lie and who serves whose assignments.
 *
 *   plan(counts[source][expert], placement, costs, limits) -> placement', quotas, reasons
 *
 * A planner is one file: pure, deterministic, the same answer on every rank, with quotas in whole
 * assignments, and no allocation once its memory is laid out.  It starts from a valid placement and
 * leaves a valid one; what the model computes does not change with it.  It has two speeds: slow,
 * from history, moves experts for good; fast, after the gate, adds replicas for once.
 *
 * Units        an assignment is one token's row for one expert (top-k expanded).  Times are
 *              seconds.
 * Quotas       quota[slot]: the assignments that a slot serves, of all sources together; the
 *              quotas of an expert's slots add up to its counts.  Which source goes to which slot
 *              follows (ek_plan_split). */
#ifndef BALANCE_PLANNER_H
#define BALANCE_PLANNER_H

#include "placement/survivability.h"

/* What things take, for one layer; the terms that the systems' models have in common. */
typedef struct {
    double compute_s_per_row; /* a rank computes an assignment: forward and backward */
    double comm_s_per_row;    /* a rank's link carries an assignment's rows: all four exchanges */
    double replica_s;         /* a link carries a replica: weights out and gradients back */
    double exposed_s;         /* of that, what travels under no other work; 0: all of it */
    double replica_bytes;     /* the same as bytes */
    double migrate_s_per_expert; /* a link carries the state of an expert that moves for good, one
                                    way */
    double state_bytes;          /* the same as bytes: weights, master, moments */
} ek_plan_costs;

/* What a planner is made for. */
typedef struct {
    int32_t experts, ranks, slots; /* slots a rank */
    const int32_t *node_of;        /* [ranks]; NULL: every rank is a node of its own */
    const int32_t *domain_of;      /* [ranks] what fails as one, such as racks: whole nodes, by any
                                      numbers; NULL: every node does by itself */
    int32_t replicas_min;          /* domains that have to hold each expert, where they suffice:
                                      for planners of which ek_planner_keeps is true */
    const ek_replica_sets *others; /* what of these holds experts of other layers, for the same
                                 planners: domains as ek_plan_number_domains has them, experts
                                 on fewer than replicas_min left out; NULL: nobody says */
    int64_t horizon;               /* micro-batches that a lasting placement is expected to serve,
                                    in which a move has to pay for itself twice over (`auto`);
                                    0: none does */
    int64_t batches; /* micro-batches of a step, at whose end replicas that last add up
                        their gradients; 0 is one */
    ek_plan_costs costs;
} ek_plan_limits;

enum { EK_PLAN_REASON = 192 };

/* One layer's plan. */
typedef struct {
    ek_placement placement;      /* in: as it is; out: as it shall be */
    int64_t *quota;              /* [ranks * slots] */
    double before_s, after_s;    /* predicted by the planner's own model, with the placement as it
                                    was and as it shall be */
    char reason[EK_PLAN_REASON]; /* what it decided, and why, in a line; written when asked for */
    char primary_reason[EK_PLAN_REASON]; /* the same of the lasting placement, where a plan for once
                                    comes after it; the caller copies it */
    int explain;                         /* in: `why` is wanted */
    int64_t of; /* in, slow: micro-batches that the counts are the sum of; 0 is one */
} ek_plan;

/* counts [ranks][experts], by source. */
typedef ek_status (*ek_plan_fn)(void *memory, const ek_plan_limits *l, const int64_t *counts,
                                ek_plan *p);

/* A planner has one speed or both. */
typedef struct {
    const char *name;
    const char *what; /* one line, with its source */
    /* Its memory, NULL while the arena measures. */
    void *(*reserve)(ek_arena *a, const ek_plan_limits *l);
    /* Between steps, from the load of the past: a placement that stays until the next one, for
     * which experts move with their state.  NULL: they stay where they are. */
    ek_plan_fn plan_persistent;
    /* After the gate, from the counts that are to be served: replicas for once, in slots that the
     * lasting placement leaves empty, and quotas.  NULL: nothing but what is there. */
    ek_plan_fn plan_transient;
    /* In training `fast` is asked one micro-batch ahead, so that weights of replicas travel before
     * the gate; the counts to be served then follow its quotas in proportion (ek_plan_serve).  Only
     * without `slow`, for homes have to stay. */
    int uses_previous_counts;
} ek_planner;

extern const ek_planner ek_planner_off, ek_planner_shadow, ek_planner_fastermoe, ek_planner_place,
    ek_planner_prophet, ek_planner_replicate, ek_planner_eplb, ek_planner_exact, ek_planner_auto;
extern const ek_planner ek_planner_auto_persistent; /* see ek_planner_for */

/* All of them, by the names of `evenkeel plan --policy`; NULL-terminated. */
extern const ek_planner *const ek_planners[];
/* NULL: there is none of that name. */
const ek_planner *ek_planner_find(const char *name);
/* Who plans under a policy's name when so many nodes have to hold each expert: with more than one
 * `auto` is `replicate`, as only replicas that last are any protection; all others are themselves.
 */
const ek_planner *ek_planner_for(const ek_planner *policy, int32_t replicas_min);
/* Whether it puts experts in limits.replicas_min failure domains. */
int ek_planner_keeps(const ek_planner *p);

/* The arrays of a plan. */
void ek_plan_reserve(ek_plan *p, ek_arena *a, const ek_plan_limits *l);

/* What a slow planner that also has a fast side plans from: the counts so far, older ones fading:
 * of l->lasts to twice as many micro-batches, as soon as there are that many. */
typedef struct {
    int64_t *counts; /* [ranks][experts], sums */
    int64_t of;      /* micro-batches that they are the sum of */
    int64_t due;     /* micro-batches since the last time that it was due */
} ek_plan_history;

void ek_plan_history_reserve(ek_plan_history *h, ek_arena *a, const ek_plan_limits *l);
/* Adds a micro-batch; at most 2^62 assignments are remembered, so that no sum overflows. */
void ek_plan_remember(ek_plan_history *h, const ek_plan_limits *l, const int64_t *counts);
/* Whether a lasting placement is to be asked for: once every l->lasts micro-batches. */
int ek_plan_due(ek_plan_history *h, const ek_plan_limits *l);

/* --- arithmetic that planners and dispatchers share --------------------------------------------
 */

static inline int32_t ek_plan_node(const ek_plan_limits *l, int32_t rank)
{
    return l->node_of != NULL ? l->node_of[rank] : rank;
}

static inline int32_t ek_plan_domain(const ek_plan_limits *l, int32_t rank)
{
    return l->domain_of != NULL ? l->domain_of[rank] : ek_plan_node(l, rank);
}

/* Numbers nodes, or failure domains, from 0, by their first ranks: of_rank [ranks], or NULL.
 * Returns how many there are.  O(ranks^2). */
int32_t ek_plan_number_nodes(const ek_plan_limits *l, int32_t *of_rank);
int32_t ek_plan_number_domains(const ek_plan_limits *l, int32_t *of_rank);

/* Assignments of each expert, over sources: total [experts]. */
void ek_plan_totals(const ek_plan_limits *l, const int64_t *counts, int64_t *total);

/* Quotas with every home serving all of its expert. */
void ek_plan_primaries_only(const ek_plan_limits *l, const int64_t *total, ek_plan *p);

/* Rank's slot that holds an expert; -1. */
int32_t ek_plan_slot(const ek_placement *p, int32_t rank, int32_t expert);
/* An empty slot of a rank; -1. */
int32_t ek_plan_free_slot(const ek_placement *p, int32_t rank);

/* Whether a slot holds a copy that had to come from another rank: neither home nor a second slot of
 * a rank that has the expert already. */
int ek_plan_is_replica(const ek_placement *p, int32_t slot);

/* Assignments that each rank serves: load [ranks]; returns the largest. */
int64_t ek_plan_loads(const ek_plan_limits *l, const ek_plan *p, int64_t *load);

/* Quotas for counts that the plan was not made from: an expert's are shared out over its slots in
 * the proportion of the plan's, largest remainders first, lower slots first. */
void ek_plan_serve(const ek_plan_limits *l, const int64_t *total, const ek_plan *planned,
                   int64_t *quota);

/* Which slot serves which source's assignments of an expert: slots are the numbers of its slots,
 * ascending, n of them (returned; at most ranks * slots), rows [ranks][n].  What a source's own
 * rank serves comes first, then what its node does, then the rest, sources and slots in order
 * (north-west corner; Lazarus' dispatcher in integers, which asks for no second exchange).  Every
 * row adds up to the source's count, every column to the quota.  memory: [ranks + ranks * slots].
 */
int32_t ek_plan_split(const ek_plan_limits *l, const int64_t *counts, const ek_placement *p,
                      const int64_t *quota, int32_t expert, int64_t *memory, int32_t *slots,
                      int64_t *rows);

/* What a layer takes with a plan, by a model that no planner searches with. */
typedef struct {
    double products_s; /* the busiest rank's */
    double rows_s;     /* the busiest link's */
    double replicas_s; /* the busiest link's, where those who have a replica pass it on */
} ek_plan_terms;

/* memory [4 ranks + (ranks + 1) ranks slots], slots [ranks slots]. */
ek_plan_terms ek_plan_terms_of(const ek_plan_limits *l, const int64_t *counts, const ek_plan *p,
                               int64_t *memory, int32_t *slots);

/* Their sum: one after the other. */
double ek_plan_time(const ek_plan_limits *l, const int64_t *counts, const ek_plan *p,
                    int64_t *memory, int32_t *slots);

/* Validity: ek_placement_check, quotas that are not negative, lie where the expert does and add up
 * to the counts. */
EK_CHECKED ek_status ek_plan_check(const ek_plan_limits *l, const int64_t *counts,
                                   const ek_plan *p);

#endif
