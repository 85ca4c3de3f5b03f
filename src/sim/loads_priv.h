/* sim/loads_priv.h - what loads of experts keep of a trace.
 *
 *   loads_plans.c   plans the trace, and writes what its samples mean for each rank
 *   loads.c         opening, and questions */
#ifndef SIM_LOADS_PRIV_H
#define SIM_LOADS_PRIV_H

#include "balance/replay.h"
#include "sim/expert_times.h"
#include "sim/loads.h"

#include <pthread.h>

/* Transient replicas: those that serve; with forecasts, those that are sent before the gate, and
 * those that are added after it. */
enum {
    LOAD_SERVED,
    LOAD_TRAFFIC,
    LOAD_REPLICAS,
    LOAD_EARLY,
    LOAD_LATE,
    LOAD_TO_SUM,
    LOAD_OF_SUM,
    LOAD_KINDS
};
/* Rows to experts and back; weights of transient replicas, and gradients back; weights of those
 * sent before the gate, and after it. */
enum {
    LOAD_ROWS,
    LOAD_ROWS_BACK,
    LOAD_WEIGHTS,
    LOAD_GRADIENTS,
    LOAD_EARLY_WEIGHTS,
    LOAD_LATE_WEIGHTS,
    LOAD_EXCHANGES
};
/* Times of ek_sim_loads_replayed: of exchanges, the same there and back, and of expert products. */
enum {
    LOAD_ROWS_WIRE,
    LOAD_WEIGHTS_WIRE,
    LOAD_EARLY_WIRE,
    LOAD_LATE_WIRE,
    LOAD_SERVED_ALONE,
    LOAD_REPLAYED
};
enum { LOAD_COPY_LISTS = 4 }; /* of ek_copy_results.messages */

/* What ek_sim_loads_products writes: simulations on several threads may share the loads. */
typedef struct {
    pthread_mutex_t lock;
    ek_expert_times *times; /* of products by rows */
    double *core_seconds;   /* [2][core_ranks] scratch: of work, and until it is done */
} ek_loads_times;

struct ek_sim_loads {
    ek_sim_loads_config cfg;
    ek_trace limited; /* the trace with what capacity leaves; empty: nothing is dropped or padded */
    ek_machine machine; /* the cluster's, with its links */
    ek_plan_limits limits;
    int32_t *node_of;    /* [ep] */
    int64_t steps, step; /* samples; the chosen one */
    int64_t plans_each;  /* 2: with forecasts the first of several micro-batches has its own plan */
    int64_t n_plans;     /* [steps][plans_each], of each layer */
    double *factors;     /* [n_plans][trace layers][LOAD_KINDS][ep] */
    float *slot_rows;    /* [n_plans][trace layers][ep][slots] over even rows of a rank */
    ek_loads_times *products;        /* of ek_sim_loads_products */
    ek_copy_sums *copies;            /* [n_plans][trace layers] */
    ek_level_rows *exchanged;        /* [n_plans][trace layers][LOAD_EXCHANGES][ep] */
    double *replayed;                /* [n_plans][trace layers][LOAD_REPLAYED][ep] */
    ek_level_rows *level_scratch;    /* [ep] */
    int64_t *passed;                 /* [ep][ep] scratch: from rank to rank */
    double *by_rank;                 /* [n_plans][trace layers][2][ep][ep] rows there and back */
    int32_t *lists;                  /* [n_plans][trace layers][2][experts][ep] of sums, and back */
    int32_t core_ranks;              /* ranks of the groups that share cores with one; 0: none do */
    double *rows_sent;               /* [n_plans][trace layers] ek_sim_loads_rows_sent */
    ek_copy_messages *copy_messages; /* [n_plans][trace layers][LOAD_COPY_LISTS][ep] of copies, if
                                        by_level; else of one of them, and nobody's */
    int32_t *copies_passed;          /* [ep][ep] scratch of ek_copy_sums_of */
    int32_t *layer_of;               /* [model layers] of the trace; -1: a dense layer */
    ek_sim_balance balance;
    int forecasts;                /* replicas are sent before the gate, and added after it */
    ek_replay_replicas *replicas; /* [steps][trace layers] */
    int32_t *late;                /* [ep * slots] scratch: replicas that are added */
    int64_t planned;              /* plans of samples */
    int64_t lag;
    int64_t begin;   /* first iteration that may be a sample */
    int64_t *memory; /* scratch of ek_plan_rows_of */
    int32_t *slots;
    int32_t *order; /* [2 * ep] scratch: ek_passing_order */
};

/* Plans the trace, and sets all that depends on plans.  EK_ENOMEM; a failure of the planner. */
EK_CHECKED ek_status ek_loads_plan_trace(ek_sim_loads *l);

/* Slots of a rank for persistent copies; the others are for transient ones. */
int32_t ek_loads_states(const ek_sim_loads *l);

/* When the ranks [ep] of a group have done what takes them of_rank[ep], all begun together.
 * Groups that share cores with the first do the same as it.  core_ranks is not 0. */
EK_CHECKED ek_status ek_loads_share_cores(const ek_sim_loads *l, const double *of_rank,
                                          double *done);

static inline double ek_loads_ratio(double a, double b)
{
    return b > 0 ? a / b : 0;
}

static inline double *ek_loads_factors_at(const ek_sim_loads *l, int64_t plan, int64_t layer,
                                          int kind)
{
    return l->factors + ((plan * l->cfg.trace->layers + layer) * LOAD_KINDS + kind) * l->cfg.ep;
}

static inline ek_level_rows *ek_loads_exchanged_at(const ek_sim_loads *l, int64_t plan,
                                                   int64_t layer, int which)
{
    return l->exchanged +
           ((plan * l->cfg.trace->layers + layer) * LOAD_EXCHANGES + which) * l->cfg.ep;
}

static inline double *ek_loads_replayed_at(const ek_sim_loads *l, int64_t plan, int64_t layer,
                                           int which)
{
    return l->replayed +
           ((plan * l->cfg.trace->layers + layer) * LOAD_REPLAYED + which) * l->cfg.ep;
}

static inline double *ek_loads_passed_at(const ek_sim_loads *l, int64_t plan, int64_t layer,
                                         int back)
{
    int64_t n = (int64_t)l->cfg.ep * l->cfg.ep;

    return l->by_rank + ((plan * l->cfg.trace->layers + layer) * 2 + back) * n;
}

static inline float *ek_loads_slot_rows_at(const ek_sim_loads *l, int64_t plan, int64_t layer)
{
    int64_t n = (int64_t)l->cfg.ep * l->limits.slots;

    return l->slot_rows + (plan * l->cfg.trace->layers + layer) * n;
}

static inline int32_t *ek_loads_lists_at(const ek_sim_loads *l, int64_t plan, int64_t layer,
                                         int back)
{
    int64_t n = (int64_t)l->limits.experts * l->cfg.ep;

    return l->lists + ((plan * l->cfg.trace->layers + layer) * 2 + back) * n;
}

#endif
