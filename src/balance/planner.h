/* balance/planner.h - the interface of the planners and the arithmetic that they share.
 *
 *   plan(counts[source][expert], placement, costs, limits) -> placement', quotas, reason
 *
 * Each planner is one file.  It is pure and deterministic: every rank computes the same plan from
 * the same counts, so nothing here is collective.  It reserves its memory once and allocates
 * nothing afterwards, starts from a valid placement and returns a valid one.  A plan never changes
 * what the model computes.  plan_persistent runs between steps, on past counts, and moves primary
 * copies with their optimizer state; plan_transient runs after the gate and adds replicas for one
 * micro-batch.
 *
 * Units        An assignment is one token's row for one expert (top-k expanded).  Times are
 *              seconds.
 * Quotas       quota[slot]: the assignments that a slot serves, summed over sources; the quotas of
 *              an expert's slots add up to its counts.  ek_plan_split derives which source sends to
 *              which slot. */
#ifndef BALANCE_PLANNER_H
#define BALANCE_PLANNER_H

#include "placement/survivability.h"

/* Costs of one layer, as the cost models of the published systems use them. */
typedef struct {
    double compute_s_per_row; /* one rank computes one assignment: forward and backward; see
                                 limits.row_cost where ranks differ */
    double comm_s_per_row;    /* one rank's link carries one assignment's rows: all four
                                 all-to-alls */
    double exchange_s;    /* time of these that does not depend on rows, such as latency: no plan
                             changes it */
    double replica_s;     /* one link carries one replica: weights out, gradients back */
    double exposed_s;     /* the part of replica_s that no other work overlaps; 0: all of it */
    double gradient_s;    /* the links of a node's ranks, which all send at the same time, carry the
                             gradients of an expert, one way, to another node; 0: not considered */
    double replica_bytes; /* bytes that replica_s carries */
    double migrate_s_per_expert; /* one link carries the state of a moving expert, one way */
    double state_bytes;          /* bytes of that state */
} ek_plan_costs;

/* Problem size, topology, constraints and costs of a planner. */
typedef struct {
    int32_t experts, ranks, slots; /* slots per rank */
    int32_t layer, layers;         /* which layer of the model is planned, of how many; for custom
                                      planners; layers 0 is 1 */
    int32_t ep_group, ep_groups;   /* likewise the expert-parallel group */
    const int32_t *node_of;        /* [ranks] any numbers; NULL: one rank per node */
    const int32_t *domain_of;      /* [ranks] failure domain, such as a rack: whole nodes, any
                                      numbers; NULL: each node is one */
    const int32_t *row_cost;       /* [ranks] time of an assignment where ranks differ in speed, in
                                      units of row_costs.h; NULL: all are equal */
    int32_t replicas_min;          /* minimum number of domains that hold each expert, where
                                      slots suffice; for planners with
                                      enforces_replicas_min */
    int keep_all_slots;  /* for the same planners: no slot is for transient replicas alone,
                            whatever their number (ek_planner_transient_slots) */
    int prefer_survival; /* for the same planners: the placement that survives most
                            losses together with other layers, whatever its load */
    const ek_replica_sets *others; /* for the same planners: the domain sets that hold the
                                      experts of other layers, numbered as by
                                      ek_plan_number_domains, without experts on fewer than
                                      replicas_min domains; NULL: unknown */
    int64_t horizon;               /* micro-batches that a persistent placement is expected to
                                      serve, within which a move must pay for itself twice over
                                      (`auto`); 0: nothing moves.  The caller makes one so often,
                                      and passes ek_plan_horizon */
    const unsigned char *served;   /* [ranks * slots] for the same planners, in plan_transient:
                                      persistent copies that have served rows in this step already;
                                      NULL: none */
    int64_t batches; /* micro-batches per step; persistent replicas sum their gradients once a
                        step; 0 is 1 */
    ek_plan_costs costs;
} ek_plan_limits;

enum { EK_PLAN_REASON = 192 };

/* One layer's plan. */
typedef struct {
    ek_placement placement;              /* in: current; out: planned */
    int64_t *quota;                      /* [ranks * slots] */
    double before_s, after_s;            /* layer time predicted by the planner's own model, for the
                                            current and the planned placement */
    char reason[EK_PLAN_REASON];         /* one line: decision and reason; written if `explain` */
    char primary_reason[EK_PLAN_REASON]; /* reason of the persistent plan that preceded a
                                            transient one; copied here by the caller */
    int explain;                         /* in: write `reason` */
    int64_t of; /* in, plan_persistent: number of micro-batches in counts; 0 is 1 */
} ek_plan;

/* Fills *p for counts [ranks][experts] by source rank.  memory: what reserve() returned for the
 * same limits.  Returns EK_OK, or why it cannot plan from this placement or these limits; *p is
 * then unspecified. */
typedef ek_status (*ek_plan_fn)(void *memory, const ek_plan_limits *l, const int64_t *counts,
                                ek_plan *p);

typedef struct ek_custom_planner ek_custom_planner; /* balance/custom_planner.h */

/* A planner.  At least one of plan_persistent and plan_transient is set. */
typedef struct {
    const char *name;
    const char *what; /* one-line description with its source, printed by `plan` */
    /* Reserves its memory in the arena; NULL while the arena measures.  Called by
     * ek_planner_reserve; not set in custom planners. */
    void *(*reserve)(ek_arena *a, const ek_plan_limits *l);
    /* Between steps, from past counts: a placement that stays until the next such plan; experts
     * move with their optimizer state.  NULL: primary copies never move. */
    ek_plan_fn plan_persistent;
    /* After the gate, from the counts to be dispatched: transient replicas in slots that the
     * persistent placement leaves empty, and quotas.  NULL: the placement is used as it is. */
    ek_plan_fn plan_transient;
    /* In training, plan_transient runs on the counts of the previous micro-batch, so that replica
     * weights are sent before the gate; the actual counts are then split in proportion to its
     * quotas (ek_plan_serve).  Only without plan_persistent: primary copies must not move. */
    int uses_previous_counts;
    /* In training, plan_transient runs both on these counts and on the actual ones, and replicas
     * travel before the gate where that has been predicted to take less. */
    int may_use_previous_counts;
    int enforces_replicas_min;       /* plan_persistent heeds limits.replicas_min; with
                                        plan_transient see ek_planner_transient_slots */
    const ek_custom_planner *custom; /* registered by a user of the library; NULL: built in */
} ek_planner;

extern const ek_planner ek_planner_off, ek_planner_shadow, ek_planner_fastermoe, ek_planner_place,
    ek_planner_prophet, ek_planner_replicate, ek_planner_eplb, ek_planner_exact, ek_planner_auto;
extern const ek_planner ek_planner_auto_replicas; /* see ek_planner_for */

/* The built-in planners, by the names of `evenkeel plan --policy`; NULL-terminated. */
extern const ek_planner *const ek_planners[];
/* By name, built-in or registered (evenkeel/planner.h); NULL: unknown. */
const ek_planner *ek_planner_find(const char *name);
/* Reserves a planner's memory in the arena; NULL while the arena measures. */
void *ek_planner_reserve(const ek_planner *p, ek_arena *a, const ek_plan_limits *l);
/* The planner to use for a policy if each expert must be on replicas_min domains: with 2 or more,
 * `auto` becomes ek_planner_auto_replicas, which has persistent replicas as well, because only they
 * survive a failure.  All others: the policy itself. */
const ek_planner *ek_planner_for(const ek_planner *policy, int32_t replicas_min);
/* Whether the planner's persistent placements may put experts with state into spare slots: it has
 * no transient plans, or persistent replicas beside them. */
int ek_planner_fills_slots(const ek_planner *p);
/* For planners with persistent and transient replicas: how many of a rank's slots, its last ones,
 * are for transient replicas; 1 if the others suffice for replicas_min copies of each expert, else
 * 0, and with keep_all_slots: domains of different sizes may need more than this counts.  The other
 * slots are for experts with state.  0 for all other planners, whose transient replicas may be in
 * any empty slot.  Depends on these sizes and settings of the limits only. */
int32_t ek_planner_transient_slots(const ek_planner *p, const ek_plan_limits *l);

/* How many failure domains, of `domains` that the ranks are on, each expert can be on, at most
 * l->replicas_min: fewer where domains or slots do not suffice.  Counts experts, ranks and slots
 * alone. */
int32_t ek_planner_copies(const ek_plan_limits *l, int32_t domains);
/* Logs a warning where a planner does not heed replicas_min above 1, or cannot keep it.  option: by
 * which the planner is chosen; domain: "node", "rack". */
void ek_planner_warn_of_copies(const ek_planner *p, const ek_plan_limits *l, int32_t domains,
                               const char *option, const char *domain);

/* Reserves the arrays of a plan in an arena (which may be measuring). */
void ek_plan_reserve(ek_plan *p, ek_arena *a, const ek_plan_limits *l);

/* Past counts for a planner that has both plan_persistent and plan_transient: an exponentially
 * fading sum over horizon to 2 horizon micro-batches, once there are that many; and for how long
 * loads have been constant.
 *
 * Constant     Micro-batches are taken in windows of horizon.  The first window's loads are the
 *              forecast; a micro-batch is as forecast if at most 1 / EK_PLAN_DRIFT of its
 *              assignments are for other experts.  A window in which more than
 *              1 / EK_PLAN_EXCEPTIONS of the micro-batches are not ends the constant period, and
 *              its loads are the new forecast.  So loads that drift slowly end it, too, and
 *              sampling noise of few assignments counts as drift. */
typedef struct {
    int64_t *counts;            /* [ranks][experts] sums */
    int64_t of;                 /* micro-batches in counts */
    int64_t due;                /* micro-batches since ek_plan_due last returned 1 */
    int64_t *forecast, *window; /* [experts] loads of the window that began the constant period, and
                                   of the present window */
    int64_t *load;              /* [experts] scratch */
    int64_t in_window, exceptions; /* micro-batches of the present window, and those not as forecast
                                    */
    int64_t constant; /* micro-batches of the constant period, whole windows; 0: no window yet */
} ek_plan_history;

enum { EK_PLAN_DRIFT = 16, EK_PLAN_EXCEPTIONS = 8 };

void ek_plan_history_reserve(ek_plan_history *h, ek_arena *a, const ek_plan_limits *l);
/* Adds one micro-batch.  The sum of all counts stays at or below 2^62, 2^48 where ranks differ, so
 * no sum overflows. */
void ek_plan_remember(ek_plan_history *h, const ek_plan_limits *l, const int64_t *counts);
/* Whether plan_persistent is due: once every l->horizon micro-batches.  Resets `due`. */
int ek_plan_due(ek_plan_history *h, const ek_plan_limits *l);
/* The horizon for a plan_persistent from these counts: as many micro-batches as loads have been
 * constant, at least l->horizon; 0 if that is 0.  With no other knowledge, what has lasted for n
 * micro-batches is as likely as not to last for n more; a move pays once, so until loads change it
 * may take all of these to pay. */
int64_t ek_plan_horizon(const ek_plan_history *h, const ek_plan_limits *l);

/* --- arithmetic shared by planners and dispatchers -------------------------------------------- */

static inline int32_t ek_plan_node(const ek_plan_limits *l, int32_t rank)
{
    return l->node_of != NULL ? l->node_of[rank] : rank;
}

static inline int32_t ek_plan_domain(const ek_plan_limits *l, int32_t rank)
{
    return l->domain_of != NULL ? l->domain_of[rank] : ek_plan_node(l, rank);
}

/* Numbers nodes, or failure domains, from 0 in order of their first rank: of_rank [ranks], or NULL.
 * Returns their number.  O(ranks^2). */
int32_t ek_plan_number_nodes(const ek_plan_limits *l, int32_t *of_rank);
int32_t ek_plan_number_domains(const ek_plan_limits *l, int32_t *of_rank);

/* Sums counts over experts: sent [ranks], by source. */
void ek_plan_sources(const ek_plan_limits *l, const int64_t *counts, int64_t *sent);
/* Sums counts over sources: total [experts]. */
void ek_plan_totals(const ek_plan_limits *l, const int64_t *counts, int64_t *total);

/* Sets quotas so that each primary copy serves all of its expert. */
void ek_plan_primaries_only(const ek_plan_limits *l, const int64_t *total, ek_plan *p);

/* The first slot of a rank that holds an expert; -1: none. */
int32_t ek_plan_slot(const ek_placement *p, int32_t rank, int32_t expert);
/* The first empty slot of a rank; -1: none. */
int32_t ek_plan_free_slot(const ek_placement *p, int32_t rank);

/* Whether a slot holds a copy received from another rank: neither the primary copy nor a further
 * slot of a rank that already holds the expert. */
int ek_plan_is_replica(const ek_placement *p, int32_t slot);

/* Sums quotas by rank: load [ranks].  Returns the largest. */
int64_t ek_plan_loads(const ek_plan_limits *l, const ek_plan *p, int64_t *load);

/* Quotas for counts other than the plan's: apportions each expert's total to its slots in
 * proportion to the plan's quotas; largest remainders first, ties to the lower slot.  quota [ranks
 * * slots]. */
void ek_plan_serve(const ek_plan_limits *l, const int64_t *total, const ek_plan *planned,
                   int64_t *quota);

/* Splits one expert's assignments over its slots, by source.  Writes the slot numbers, ascending,
 * to slots [ranks * slots], rows [ranks][n], and returns their number n.  A slot serves its own
 * rank's assignments first, then its node's, then the others', sources and slots in order (north-
 * west corner rule; Lazarus' dispatcher in integers; needs no second exchange of counts).  Each row
 * adds up to the source's count, each column to the quota.  memory: [ranks + ranks * slots]. */
int32_t ek_plan_split(const ek_plan_limits *l, const int64_t *counts, const ek_placement *p,
                      const int64_t *quota, int32_t expert, int64_t *memory, int32_t *slots,
                      int64_t *rows);

/* Checks a plan: ek_placement_check, and quotas that are not negative, lie only in slots that hold
 * the expert and add up to the counts.  EK_EINVAL names the first violation. */
EK_CHECKED ek_status ek_plan_check(const ek_plan_limits *l, const int64_t *counts,
                                   const ek_plan *p);

#endif
