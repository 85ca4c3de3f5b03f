/* bench/bench_priv.h - shared by the benchmarks: their state, ceilings, samples, output.
 *
 * A benchmark alternates between its measurements and the machine's ceilings, so that both see the
 * same noise:
 *
 *   ceilings; repeat 1; ceilings; repeat 2; ...; ceilings
 *
 * A ratio is the median measurement over the median ceiling.  Everything printed as text is also in
 * the JSON object of --json. */
#ifndef BENCH_BENCH_PRIV_H
#define BENCH_BENCH_PRIV_H

#include "bench/bench.h"
#include "cost/compare.h"
#include "cost/cost.h"
#include "cost/machine.h"

#include <jansson.h>

enum { BENCH_REPEATS_MAX = 1000, BENCH_POLICIES_MAX = 16 };

typedef struct {
    int64_t n;
    double v[BENCH_REPEATS_MAX + 8];
} bench_samples;

typedef struct {
    double median, min, max;
} bench_stat;

/* Ceilings of this machine, one sample per repeat. */
typedef struct {
    bench_samples bf16, fp32; /* matrix products of oneDNN, FLOP/s */
    bench_samples copy;       /* bytes read plus bytes written, bytes/s */
    bench_samples read;       /* read only, bytes/s */
} bench_ceilings;

typedef struct {
    const char *name;          /* "gemm" */
    const bench_job *job;      /* rank 0 prints */
    const bench_settings *cfg; /* micro_batch is never 0 here */
    ek_model_spec spec;
    ek_mode mode;
    int on_cpu; /* the device is the CPU, whose ceilings are measured */
    ek_kernels *k;
    bench_ceilings ceilings;
    int text; /* print tables; else one JSON object */
    json_t *json;
    int lost;       /* json is incomplete: out of memory */
    ek_status late; /* of files after the measurement, returned when its results are printed */
} bench;

/* Process groups of a benchmark's job. */
typedef struct {
    int ranks, nodes;
    ek_mesh *opened; /* NULL: one rank */
    const ek_mesh *mesh;
} bench_mesh;

/* Balance policies. */
typedef struct {
    int n;
    const ek_planner *of[BENCH_POLICIES_MAX];
} bench_policies;

/* The names of all benchmarks, "gemm|kernels|...". */
extern const char bench_names[];

/* Writes a line for each benchmark: its name, and what it measures. */
void bench_list(FILE *f);
/* What a benchmark of `bench_names` measures. */
const char *bench_describe(const char *name);

/* The benchmarks. */
EK_CHECKED ek_status bench_gemm(bench *b);
EK_CHECKED ek_status bench_kernels(bench *b);
EK_CHECKED ek_status bench_step(bench *b);
EK_CHECKED ek_status bench_generate(bench *b);
EK_CHECKED ek_status bench_moe(bench *b);
EK_CHECKED ek_status bench_costs(bench *b);
EK_CHECKED ek_status bench_balance(bench *b);
/* These need no model and no kernels. */
EK_CHECKED ek_status bench_a2a(bench *b);
EK_CHECKED ek_status bench_collectives(bench *b);
EK_CHECKED ek_status bench_disk(bench *b);

/* Opens a mesh of b->cfg->sizes.  Collective. */
EK_CHECKED ek_status bench_open_mesh(const bench *b, bench_mesh *m);
void bench_close_mesh(bench_mesh *m);
/* As in training: whether ranks poll the network inline, as this host has no spare core for a
 * polling thread. */
int bench_inline_async(const bench *b);
/* Maximum or sum over the ranks of the job; x [n].  Collective. */
EK_CHECKED ek_status bench_agree(const bench *b, double *x, int64_t n, ek_reduce how);

/* Mean seconds of a call on the slowest rank, over as many calls as --seconds allows.  Collective
 * over a job of several ranks. */
EK_CHECKED ek_status bench_time_calls(const bench *b, ek_status (*call)(const void *context),
                                      const void *context, double *seconds);

/* Prints warnings of the library, on rank 0. */
void bench_show_warnings(const bench *b);

/* Measures the costs of this machine; experts: per rank, 0: an even share; kernels_s: seconds for
 * every kernel as well, 0: what planners need.  *cached (or NULL): taken from an earlier
 * measurement.  Collective. */
EK_CHECKED ek_status bench_measure_costs(const bench *b, int64_t experts, double kernels_s,
                                         ek_machine *m, int *cached);
/* As measured, for the planners of such a mesh.  Collective. */
EK_CHECKED ek_status bench_layer_costs(const bench *b, const ek_mesh *mesh, ek_plan_costs *out);
/* As a JSON object. */
json_t *bench_costs_json(const ek_plan_costs *c);

/* Parses --policies, "off,exact". */
EK_CHECKED ek_status bench_read_policies(const bench *b, bench_policies *out);
/* Opens the trace of --replay-routing, which must have as many experts as the model. */
EK_CHECKED ek_status bench_open_trace(const bench *b, ek_trace *out);
/* Fails if a planner was disabled after a failure, as its result would be meaningless. */
EK_CHECKED ek_status bench_check_planner(const ek_pass *p, const char *name);

/* Compares the ops of a step of MoE layers, whose rows are exchanged between ranks on so many
 * nodes, with the predictions of b->cfg->machine. */
EK_CHECKED ek_status bench_predicted(bench *b, int nodes, const ek_event *events, int64_t n);
/* Prints predicted and measured times by op, and a warning about those that differ. */
void bench_put_compared(bench *b, const ek_compare *c);

/* Products of few rows, relative to copy bandwidth; part of bench_gemm. */
EK_CHECKED ek_status bench_gemm_skinny(bench *b);

/* Treats b->cfg->ranks_a_node consecutive ranks as a node; 0: by host names. */
EK_CHECKED ek_status bench_set_nodes(const bench *b);

void bench_add(bench_samples *s, double x);
bench_stat bench_stat_of(const bench_samples *s);

enum { BENCH_RANGE = 96 };

/* "3.10 us (2.98 us .. 12.5 us)": median, least and largest with three significant digits, each
 * `width` characters wide, or as long as it is; returns text [BENCH_RANGE]. */
const char *bench_range(char *text, bench_stat s, const char *unit, int width);
/* "15.8 k tokens/s (14.9 k .. 16.2 k)". */
const char *bench_tokens(char *text, bench_stat per_s);

/* Adds one sample of all ceilings, or of the memory ceilings only. */
EK_CHECKED ek_status bench_measure_ceilings(bench *b);
EK_CHECKED ek_status bench_measure_memory(bench *b);
/* Median ceiling of matrix products in this mode: for bf16 the faster of bf16 and fp32 products. */
double bench_matrix_ceiling(const bench *b);
double bench_copy_ceiling(const bench *b);
void bench_print_ceilings(bench *b);

/* Fills x [n] with a fixed pattern of small nonzero numbers. */
void bench_fill(ek_dtype type, int64_t n, void *x);
/* Fills ids [n] with token ids; the frequency of id i is proportional to about 1 / (i + 1). */
void bench_fill_tokens(int64_t vocab, uint64_t stream, int64_t n, int32_t *ids);

/* printf if the output is text. */
void bench_say(const bench *b, const char *format, ...) EK_PRINTF(2, 3);
/* Adds a member to the JSON object; takes ownership of value. */
void bench_put(bench *b, const char *key, json_t *value);
/* Appends a row to an array; takes ownership of row. */
void bench_append(bench *b, json_t *array, json_t *row);
/* {"median", "min", "max", "n"} of the samples times scale. */
json_t *bench_stat_json(const bench_samples *s, double scale);

#endif
