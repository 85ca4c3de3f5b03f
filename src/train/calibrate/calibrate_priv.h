/* train/calibrate/calibrate_priv.h - declarations shared by the files of calibration.
 *
 *   calibrate.c  order of measurements, agreement of ranks, cache
 *   compute.c    what planners need: products of experts, and copies
 *   kernels.c    every kernel: at which shapes and sizes, and the results
 *   kernel_rows.c  the calls of kernels that are not products
 *   passes.c     in which order and how often they are timed, and what of it counts
 *   links.c      messages
 *   progress.c   what messages take from products
 *   burst.c      what links let pass at once after a pause
 *   cores.c      what ranks that wait leave of shared cores to the others
 *   sizes.c      choice of message sizes and repetitions
 *   training.c   what training does between messages, in wall time */
#ifndef TRAIN_CALIBRATE_CALIBRATE_PRIV_H
#define TRAIN_CALIBRATE_CALIBRATE_PRIV_H

#include "base/arena.h"
#include "base/clock.h"
#include "train/calibrate/calibrate.h"

typedef struct {
    const ek_calibrate_config *cfg;
    ek_comm *world; /* not used with one rank */
    int rank, ranks;
    int nodes, a_node; /* ranks of the fullest node */
    int64_t experts;   /* of a rank */
    ek_machine *m;
    double
        busy_share; /* of the time in which a rank runs while all compute; of ek_calibrate_cores */
} ek_calibration;

static inline int ek_calibrate_node(const ek_calibration *c, int rank)
{
    return c->ranks > 1 ? ek_comm_node(c->world, rank) : 0;
}

/* Seconds since ek_clock_ns() was `start`. */
static inline double ek_calibrate_since(int64_t start)
{
    return (double)(ek_clock_ns() - start) * 1e-9;
}

/* x, but not more than `most`, and at least 1. */
static inline int64_t ek_calibrate_at_most(int64_t x, int64_t most)
{
    return x < 1 || most < 1 ? 1 : x < most ? x : most;
}

/* The two shortest repetitions so far of one measurement, and the sum of all. */
typedef struct {
    double best, next, sum;
    int n;
} ek_repeats;

static inline void ek_repeats_add(ek_repeats *r, double seconds)
{
    seconds = seconds > 1e-9 ? seconds : 1e-9;
    if (r->n == 0 || seconds < r->best) {
        r->next = r->best;
        r->best = seconds;
    } else if (r->n == 1 || seconds < r->next) {
        r->next = seconds;
    }
    r->sum += seconds;
    r->n++;
}

static inline int ek_repeats_agree(const ek_repeats *r)
{
    return r->n >= 3 && r->next <= 1.03 * r->best;
}

/* Of all calls so far: seconds that the calling thread ran, and that passed. */
typedef struct {
    double ran_s, passed_s;
} ek_cpu_share;

/* A clock for calls: `passed` of any number of threads, `ran` of the calling one. */
typedef struct {
    int64_t passed_ns, ran_ns;
} ek_stopwatch;

ek_stopwatch ek_stopwatch_start(void);
/* Seconds since the start, of the processor if this rank has one thread; adds to the share. */
double ek_stopwatch_stop(const ek_stopwatch *w, int threads, ek_cpu_share *share);
/* Share of CPU time in wall time; rounded to 1 near 1. */
double ek_cpu_share_of(const ek_cpu_share *share);

/* x [n] := the maximum over ranks.  Collective. */
EK_CHECKED ek_status ek_calibrate_largest(const ek_calibration *c, double *x, int64_t n);

/* Makes n calls with `bytes` bytes: *seconds of one call, and *spent since a fixed instant; both
 * the same on all ranks. */
typedef ek_status ek_time_calls(void *context, int64_t bytes, int n, double *seconds,
                                double *spent);

/* Times as many of the ascending sizes [*n], from the first on, as `share` seconds allow, at least
 * one; sets *n to their number.  took [*n]: seconds of one call.  from: *spent at the beginning.
 * On a disturbed machine it may take a few times as long. */
EK_CHECKED ek_status ek_calibrate_sizes(ek_time_calls *time_calls, void *context, double from,
                                        double share, const int64_t *sizes, double *took, int *n);

/* Fill the compute and the link tables of c->m in about budget_s seconds.  Collective. */
EK_CHECKED ek_status ek_calibrate_compute(ek_calibration *c, double budget_s);
EK_CHECKED ek_status ek_calibrate_links(ek_calibration *c, double budget_s);
/* Fills c->m->kernels and op_s in about budget_s seconds, after the compute tables, which tell how
 * long calls will take.  Collective. */
EK_CHECKED ek_status ek_calibrate_kernels(ek_calibration *c, double budget_s);
/* Fills c->m->polling and seconds_a_byte_beside of the links, after the link tables; nothing where
 * a rank has a core for the network.  Collective. */
EK_CHECKED ek_status ek_calibrate_progress(ek_calibration *c);
/* Fills c->m->link[EK_LINK_NET].burst, after the link tables.  Collective. */
EK_CHECKED ek_status ek_calibrate_burst(ek_calibration *c);
/* Sets c->busy_share, and fills rank_alone and node_alone of c->m; nothing where ranks do not share
 * cores, or have several threads or an accelerator.  Collective. */
EK_CHECKED ek_status ek_calibrate_cores(ek_calibration *c);
/* Whether a machine's kernels were measured, as far as there was time, with weights of this model.
 */
int ek_calibrate_has_kernels(const ek_calibration *c, const ek_machine *m);

/* --- products of experts (compute.c) ---------------------------------------------------------- */

/* Experts with operands of their products, which every expert shares but for its weights. */
typedef struct {
    const ek_kernels *k;
    int64_t d, f, experts;
    int64_t rows; /* rows allocated, of all experts together */
    ek_arena arena;
    ek_group *up, *down;
    void *x, *out; /* every input and every result, [rows, 2 f or d] */
    void *master;
    void *packed[2][2]; /* [up, down][form] */
    void *dw[2];
    void *ws;
} ek_expert_bench;

/* Rows, as many as wanted but for a bound on number and bytes; after k, d and f. */
int64_t ek_expert_bench_rows(const ek_expert_bench *b, int64_t wanted);
/* Lays it out in an arena that only measures; after k, d, f, experts and rows. */
void ek_expert_bench_measure(ek_expert_bench *b);
/* The same with memory and weights; the caller ends the arena, after a failure, too. */
EK_CHECKED ek_status ek_expert_bench_open(ek_expert_bench *b);
/* Before calls: the experts' rows each, and their weights and gradients. */
void ek_expert_bench_set_groups(const ek_expert_bench *b, ek_cost_product p, int64_t rows,
                                int64_t experts);
/* Up and down of n experts in one direction. */
EK_CHECKED ek_status ek_expert_bench_call(const ek_expert_bench *b, ek_cost_product p, int64_t n);

/* --- rates of training (training.c) ----------------------------------------------------------- */

/* What is measured: part of what a layer has, where that would take too long or too much memory. */
typedef struct {
    ek_expert_bench experts; /* one, with as many rows as can be had */
    ek_attention attention;
    int64_t state; /* numbers of each of p, g, m, v */
} ek_training_sizes;

/* Of the config's rows and sequences. */
void ek_calibrate_training_sizes(const ek_calibration *c, ek_training_sizes *out);
/* Bytes of memory that measuring them takes. */
size_t ek_calibrate_training_bytes(const ek_training_sizes *s);
/* FLOPs of causal attention, forward and backward. */
double ek_calibrate_attention_flops(const ek_attention *a);
/* Seconds of a token of the run in a layer, from those of a pass over what was measured. */
double ek_calibrate_attention_of_token(const ek_calibration *c, const ek_attention *a,
                                       double seconds);
/* Measures c->m->training for the rows and sequences of the config.  Collective. */
EK_CHECKED ek_status ek_calibrate_training(ek_calibration *c);

/* --- passes over kernels (passes.c) ----------------------------------------------------------- */

enum { EK_TIMES_MOST = 8 };

/* Repetitions of one measurement, at moments that lie apart. */
typedef struct {
    double seconds[EK_TIMES_MOST]; /* ascending */
    int n;
} ek_times;

/* Adds one; of more than EK_TIMES_MOST the shortest are kept. */
void ek_times_add(ek_times *t, double seconds);
/* The mean of those that took at most a quarter longer than the shortest. */
double ek_times_mean(const ek_times *t);

typedef struct {
    int turn; /* 0 first */
    ek_times times;
} ek_timed;

typedef struct {
    ek_timed *of;
    int n, turns;
    int once; /* 1: each is timed once */
    void *self;
    /* Adds a repetition to of[i]. */
    ek_status (*time)(void *self, int i);
    /* Whether this part of the budget leaves time for one. */
    int (*has_time)(void *self, int i, double part);
} ek_passes;

/* Times all of them in turn as often as there is time for; without any, times.n is 0. */
EK_CHECKED ek_status ek_calibrate_passes(const ek_passes *p);

/* --- kernels of rows -------------------------------------------------------------------------- */

enum { EK_PROBE_BUFFERS = 4, EK_PROBE_ROWS = 16384 /* the most, of kernels that are not flat */ };

/* Operands that measured kernels share.  What the op before wrote is at the start of a buffer,
 * where a cache has it if it fits; what was stored long ago, or is written for later, is at a place
 * of a buffer that moves on with every call. */
typedef struct {
    const ek_kernels *k;
    const ek_model_spec *spec;
    void *buffer[EK_PROBE_BUFFERS]; /* consecutive */
    void *cold[EK_PROBE_BUFFERS];
    int64_t buffer_bytes, at;
    int32_t *index, *ids; /* [EK_PROBE_ROWS * top_k] */
    void *column[3];      /* R, of as many rows, or of a row's width */
    void *ws;
} ek_probe_operands;

/* Bytes that an op of this kernel says it moves for a row. */
double ek_probe_row_bytes(const ek_probe_operands *o, ek_cost_kernel kernel);
/* Bytes of a buffer that n rows need, at most. */
int64_t ek_probe_rows_need(const ek_probe_operands *o, ek_cost_kernel kernel, int64_t n);
/* Whether its rows may be any number, such as all numbers of a weight. */
int ek_probe_is_flat(ek_cost_kernel kernel);
/* Sets the indices of calls; outside what is timed. */
void ek_probe_set_index(const ek_probe_operands *o, ek_cost_kernel kernel, int64_t n);
/* Workspace in bytes of all of them. */
size_t ek_probe_rows_workspace(const ek_kernels *k, const ek_model_spec *spec);
/* Moves the cold places on by `need` bytes, which an operand has. */
void ek_probe_move_on(ek_probe_operands *o, int64_t need);
/* Calls it for n rows, as training does. */
EK_CHECKED ek_status ek_probe_call_rows(ek_probe_operands *o, ek_cost_kernel kernel, int64_t n);

#endif
