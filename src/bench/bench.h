/* bench/bench.h - benchmarks of evenkeel, beside what the machine can reach: settings, and how one
 * is run.  Results are printed on stdout, by rank 0. */
#ifndef BENCH_BENCH_H
#define BENCH_BENCH_H

#include "base/options.h"
#include "comm/mesh.h"
#include "exec/exec.h"
#include "model/step/pass.h"

#include <stdio.h>

typedef struct {
    const char *model;  /* whose shapes are measured: preset, config.json, or folder */
    const char *dtype;  /* "bf16" or "fp32"; NULL: bf16 with AVX2 or more, else fp32 */
    const char *device; /* where the model computes: "cpu" or "cuda" */
    int threads;        /* compute threads of this process */
    double seconds;     /* least duration of one measurement of a product or a ceiling */
    int64_t repeats, steps;
    int64_t batch, seq;  /* sequences a step, tokens a sequence */
    int64_t micro_batch; /* sequences at once; 0: the whole batch */
    ek_recompute recompute;
    int64_t prompt, tokens;
    int64_t longest_kib; /* largest message */
    int ranks_a_node;    /* consecutive ranks that are treated as one node; 0: by host names */
    ek_mesh_sizes sizes;
    const char *degrees; /* "1,2,4,8" */
    int smart_group;
    ek_a2a a2a;
    const char *policies; /* "off,exact" */
    const char *replay;   /* a trace; NULL: none */
    int spare_slots;
    int64_t plan_every;      /* steps */
    int64_t past;            /* iterations of the trace */
    const char *timeline;    /* NULL: none */
    const char *machine;     /* machine file to predict op times from; NULL: none */
    const char *cluster;     /* cluster file to predict collectives from; NULL: none */
    const char *out;         /* machine file to write; NULL: none */
    const char *cluster_out; /* cluster file to write; NULL: none */
    const char *file;        /* to read; NULL: one without a name is made, */
    const char *dir;         /* in this folder, */
    int64_t file_mib;        /* of this size */
    double budget;           /* seconds to measure costs in */
    int cached;              /* use cached costs */
    int json;                /* print one JSON object, else tables */
} bench_settings;

/* The options of the command, which fill bench_settings; --threads is the command's to read. */
extern const ek_option_table bench_options;

/* The process that runs a benchmark, and its job. */
typedef struct {
    ek_comm *world; /* NULL: this process alone */
    int rank, ranks;
    FILE *messages;    /* for warnings */
    const char *cache; /* folder of measured costs; NULL: none */
} bench_job;

/* Whether there is a benchmark of this name (NULL: none was given), which runs with so many ranks:
 * EK_EINVAL says what is wrong. */
EK_CHECKED ek_status bench_check(const char *name, int ranks);

/* Runs a benchmark that bench_check() accepts.  Collective.  EK_EINVAL: a setting; else as the
 * parts of evenkeel that it measures. */
EK_CHECKED ek_status bench_run(const char *name, const bench_settings *cfg, const bench_job *job);

#endif
