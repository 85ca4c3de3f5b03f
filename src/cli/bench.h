/* cli/bench.h - what the benchmarks share: settings, ceilings, samples, output.
 *
 * A benchmark measures its figures and the machine's ceilings in turns, so that both see the same
 * noise:
 *
 *   ceilings; repeat 1; ceilings; repeat 2; ...; ceilings
 *
 * and a ratio is the median figure over the median ceiling.  Everything that is printed as text
 * also stands in the one JSON object of --json. */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H

#include "cli/job.h"
#include "cost/machine.h"
#include "exec/exec.h"
#include "model/pass.h"

#include <jansson.h>

enum { BENCH_REPEATS_MAX = 1000 };

typedef struct {
    int64_t n;
    double v[BENCH_REPEATS_MAX + 8];
} bench_samples;

typedef struct {
    double median, min, max;
} bench_stat;

/* The best of this machine, by repeat. */
typedef struct {
    bench_samples bf16, fp32; /* matrix products of oneDNN, FLOP/s */
    bench_samples copy;       /* bytes read and bytes written, bytes/s */
    bench_samples read;       /* reading alone, bytes/s */
} bench_ceilings;

typedef struct {
    const char *name; /* "gemm" */
    cli_job *job;     /* of several ranks, the first one prints */
    ek_model_spec spec;
    ek_mode mode;
    const char *device; /* where the model computes */
    int on_cpu;         /* whose ceilings are known */
    ek_kernels *k;
    double seconds;
    int64_t repeats, steps;
    int64_t batch, seq, micro_batch;
    ek_recompute recompute;
    int64_t prompt, tokens;
    int64_t longest; /* bytes of a message */
    int ranks_a_node;
    ek_mesh_sizes sizes;
    const char *degrees; /* "1,2,4,8" */
    int smart_group;
    ek_a2a a2a;
    const char *policies; /* "off,exact" */
    const char *replay;   /* a trace; NULL: none */
    int spare_slots;
    int64_t plan_every;
    const char *timeline; /* NULL: none */
    const char *machine;  /* a file to predict by; NULL: none */
    const char *out;      /* a machine file; NULL: none */
    double budget;        /* seconds to measure costs in */
    int cached;           /* costs that are kept will do */
    int text;             /* print tables; else one JSON object */
    bench_ceilings ceilings;
    json_t *json;
    int lost; /* no memory for a part of json */
} bench;

/* The ranks of a benchmark's job. */
typedef struct {
    int ranks, nodes;
    ek_mesh *opened; /* NULL: one rank */
    const ek_mesh *mesh;
} bench_mesh;

/* The benchmarks. */
EK_CHECKED ek_status bench_gemm(bench *b);
EK_CHECKED ek_status bench_kernels(bench *b);
EK_CHECKED ek_status bench_step(bench *b);
EK_CHECKED ek_status bench_generate(bench *b);
EK_CHECKED ek_status bench_moe(bench *b);
EK_CHECKED ek_status bench_costs(bench *b);
EK_CHECKED ek_status bench_balance(bench *b);
EK_CHECKED ek_status bench_a2a(bench *b); /* needs no model and no kernels */

/* By b->sizes. */
EK_CHECKED ek_status bench_open_mesh(const bench *b, bench_mesh *m);
void bench_close_mesh(bench_mesh *m);
/* As in training: whether this host has no core to spare for a thread that polls the network. */
int bench_inline_network(const bench *b);
/* Largest, or sum, over the ranks of the job. */
EK_CHECKED ek_status bench_agree(const bench *b, double *x, int64_t n, ek_reduce how);

/* Warnings of the library go to stderr from now on, on rank 0. */
void bench_show_warnings(const bench *b);

/* Costs of this machine; experts: that a rank holds, 0: an even share.  *cached: NULL, or whether
 * an earlier run measured them. */
EK_CHECKED ek_status bench_measure_costs(const bench *b, int64_t experts, ek_machine *m,
                                         int *cached);
/* As a JSON object. */
json_t *bench_costs_json(const ek_plan_costs *c);

/* Holds the ops of a step of MoE layers on this mesh against what b->machine says of them. */
EK_CHECKED ek_status bench_predicted(bench *b, const ek_mesh *mesh, int nodes,
                                     const ek_event *events, int64_t n);

/* Products of a few rows, against copy bandwidth: a part of bench_gemm. */
EK_CHECKED ek_status bench_gemm_skinny(bench *b);

/* Takes b->ranks_a_node neighbouring ranks each for a node; 0: host names decide. */
EK_CHECKED ek_status bench_set_nodes(const bench *b);

void bench_add(bench_samples *s, double x);
bench_stat bench_stat_of(const bench_samples *s);

/* Measures all ceilings once more, or those of memory alone. */
EK_CHECKED ek_status bench_measure_ceilings(bench *b);
EK_CHECKED ek_status bench_measure_memory(bench *b);
/* Median ceiling of matrix products in this mode: bf16 work may be done by whichever of the two
 * is faster, fp32 work in fp32 alone. */
double bench_matrix_ceiling(const bench *b);
double bench_copy_ceiling(const bench *b);
void bench_print_ceilings(bench *b);

/* n numbers of a type, small and never zero, in a fixed pattern. */
void bench_fill(ek_dtype type, int64_t n, void *x);
/* n token ids of which id i comes about as often as 1 / (i + 1). */
void bench_fill_tokens(int64_t vocab, uint64_t stream, int64_t n, int32_t *ids);

/* printf, when the output is text. */
void bench_say(const bench *b, const char *format, ...) EK_PRINTF(2, 3);
/* Adds a part to the JSON object; takes over value. */
void bench_put(bench *b, const char *key, json_t *value);
/* Adds a row to an array of parts. */
void bench_append(bench *b, json_t *array, json_t *row);
/* {"median", "min", "max", "n"} of the samples times scale. */
json_t *bench_stat_json(const bench_samples *s, double scale);

#endif
