/* search/search.h - finds the layout with which a step on a cluster is shortest.
 *
 *  1. Every candidate (search/candidates.h) is measured and bounded (search/evaluate.h).
 *  2. Those that fit are simulated under even loads, the most promising first, in rounds, once
 *     their bounds are refined; what by its bound cannot enter the answer any more is dropped.  So
 *     the answer is that of simulating all of them: the best layouts, and the best one with each
 *     value of pp, tp, ep, zero and recompute.
 *  3. With a trace the best 64, and the best of each value, are simulated with its loads, and the
 *     best 8 of these with other balancing policies; at last the best also with even loads.
 *  4. The best 8 (or `top`, if that is more), the best of each value, and up to 64 of those that no
 *     other beats in both time and memory, are simulated by flows (sim/flow.h), which differ from
 *     replays where links and cores are shared: these are the answer's first, and the pool is of
 *     them.  Not with failures, nor with a trace on more than 256 ranks, for its time.
 *  5. With failures of nodes the best 16 by the time of a step, and the best of each value, are
 *     simulated in runs in which nodes fail, and the answer is of these.
 *
 * Rounds have a fixed size, so what is found, and how many are simulated, does not depend on the
 * number of threads. */
#ifndef SEARCH_SEARCH_H
#define SEARCH_SEARCH_H

#include "search/evaluate.h"
#include "search/found.h"

/* Layouts whose steps differ by less than this share cannot be told apart: errors of simulated
 * steps were 4.4 to 6.4 % in the mean of each of four comparisons with measured ones
 * (docs/simulate.md, "Predicted against measured").  Errors of two layouts of one model have a part
 * in common, so the order of two steps is right more often than this says. */
#define EK_SEARCH_ERROR 0.05

typedef struct {
    const ek_train_config *train; /* --model, --batch and so on; what is searched is ignored */
    const ek_cluster *cluster;
    int ranks;
    int most_ranks;        /* of the searches that this one is compared with, whose steps are then
                              simulated alike; 0: it is not */
    const int *host_of;    /* [ranks]; only layouts that survive the loss of any host
                              (ek_layout_survives), with copies for it; NULL: all, with copies for
                              the loss of any node of the cluster */
    const char *fix;       /* "pp=8,tp=1" (ek_candidates_fix); NULL: nothing */
    double memory;         /* bytes that a rank may need; 0: those of the cluster, if it says */
    int64_t top;           /* how many of the best layouts are wanted, at least 1 */
    const ek_trace *trace; /* NULL: even loads */
    int64_t steps;         /* of the trace, for each layout; 0: 8 */
    ek_objective objective;
    const char *failures;   /* as of ek_simulate_failures; NULL: none, or with
                               EK_OBJECTIVE_GOODPUT those of the cluster */
    const char *on_failure; /* of EK_SEARCH_ON_FAILURE_WORDS; NULL: "best" */
    int everything;         /* 1: simulates all that fit, and lays out all layers (tests) */
} ek_search_config;

typedef struct {
    const ek_search_config *cfg; /* the caller's */
    double memory;               /* limit in bytes; 0: none */
    ek_sim_layout model;         /* what all layouts share: parameters, batch, dtype */
    int64_t n;                   /* candidates */
    ek_search_layout *layouts;   /* [n], pp outermost */
    int64_t count[EK_OUTCOME_SIMULATED + 1];
    int64_t n_no_room_for_copies; /* of those that need too much memory */
    int64_t n_loaded;             /* simulated with the trace's loads */
    double even_s;                /* with a trace: of the best layout under even loads, */
    double off_s;                 /* and with its loads and --balance off; 0: not simulated */
    int64_t n_flow;               /* simulated by flows */
    int64_t n_failures;
    ek_search_failures *failures; /* [n_failures] of the layouts with the shortest steps, and the
                                     best of each corner */
    int64_t shortest;             /* index of the layout with the shortest step */
    int64_t n_best;
    int64_t *best;  /* [n_best] indices, the shortest step first, of those by flows before others */
    int64_t n_near; /* of all that were simulated as the best was, at most EK_SEARCH_ERROR above
                       its value, with it */
    int64_t least_near; /* index of the one with least memory among them */
    int64_t n_pool;
    int64_t *pool; /* [n_pool] indices of layouts simulated by flows, if the best is: no other of
                      these has a shorter step and less memory; the shortest step first */
    int64_t n_pool_for_runs;
    int64_t *pool_for_runs; /* [n_pool_for_runs] the pool, and the best of each corner if its step
                        takes at most 1.5 times the shortest: layouts for a run to choose among as
                        its loads change; the shortest step first */
    int n_corners;
    ek_search_corner *corners; /* [n_corners] by choice and value */
    double took_s;
} ek_search;

/* Whether a layout would fit without copies of all that other ranks keep. */
static inline int ek_search_lacks_room_for_copies(const ek_search *s, const ek_search_layout *l)
{
    return l->outcome == EK_OUTCOME_TOO_MUCH && l->copies > 0 && l->memory - l->copies <= s->memory;
}

static inline ek_search_corners ek_search_corners_of(const ek_search *o)
{
    return (ek_search_corners){o->corners, o->n_corners};
}

/* What the objective makes small: seconds of a step, of a run for each completed step, or of nodes
 * for each (search/figures.c). */
double ek_search_value(const ek_search *s, const ek_search_layout *l);

/* Sets n_near and least_near (likewise); best [n] is by value, what flows simulated first. */
void ek_search_find_near(ek_search *s, int64_t n);

/* Money for a step, with failures if they were simulated; 0: the cluster has no price. */
double ek_search_step_price(const ek_search *s, const ek_search_layout *l);

/* The caller closes *out, also after a failure.  EK_EINVAL: settings, --fix, ranks that the cluster
 * does not have, or training refuses all layouts; EK_ENOMEM: none fits in memory, the message says
 * what the smallest needs; others as of ek_simulate.  Local. */
EK_CHECKED ek_status ek_search_run(const ek_search_config *cfg, ek_search **out);
void ek_search_close(ek_search **s);

#endif
