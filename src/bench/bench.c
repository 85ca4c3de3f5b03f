/* The list of benchmarks; opens what one measures, runs it, and prints the JSON object. */
#include "base/json.h"
#include "base/nearest.h"
#include "bench/bench_priv.h"
#include "model/hf/source.h"
#include "tensor/cpu/dnnl_shim.h"
#include "tensor/select/select.h"
#include "train/batch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *name;
    const char *what; /* it measures */
    ek_status (*run)(bench *b);
    int ranks;    /* supports several ranks */
    int no_model; /* needs no model and no kernels */
    int ceilings; /* also print the ceilings of this machine */
} benchmark;

static const benchmark benchmarks[] = {
    {"gemm", "matrix products of the model's shapes", bench_gemm, .ceilings = 1},
    {"kernels", "training steps of one process, op by op", bench_kernels, .ceilings = 1},
    {"step", "training steps of one process", bench_step, .ceilings = 1},
    {"generate", "inference: prompts and decoding", bench_generate, .ceilings = 1},
    {"moe", "MoE layers over ranks, by pipeline degree", bench_moe, .ranks = 1},
    {"balance", "policies in training, side by side, with the loads of a routing trace",
     bench_balance, .ranks = 1},
    {"a2a", "all-to-alls over ranks, by algorithm and message size", bench_a2a, .ranks = 1,
     .no_model = 1},
    {"collectives", "every collective over ranks, by size", bench_collectives, .ranks = 1,
     .no_model = 1},
    {"costs", "costs of the machine, for planners, simulate and search", bench_costs, .ranks = 1},
    {"disk", "reads of a file, by size", bench_disk, .no_model = 1},
};

const char bench_names[] = "gemm|kernels|step|generate|moe|balance|a2a|collectives|costs|disk";

void bench_list(FILE *f)
{
    fputs("benchmarks (`evenkeel bench NAME --help` lists the options of one):\n", f);
    for (size_t i = 0; i < sizeof(benchmarks) / sizeof(benchmarks[0]); i++)
        fprintf(f, "  %-11s %s\n", benchmarks[i].name, benchmarks[i].what);
}

static const benchmark *find_benchmark(const char *name)
{
    for (size_t i = 0; i < sizeof(benchmarks) / sizeof(benchmarks[0]); i++)
        if (strcmp(benchmarks[i].name, name) == 0)
            return &benchmarks[i];
    return NULL;
}

const char *bench_describe(const char *name)
{
    return find_benchmark(name)->what;
}

ek_status bench_check(const char *name, int ranks)
{
    const benchmark *chosen;

    EK_REQUIRE(name != NULL, EK_EINVAL, "name a benchmark: %s", bench_names);
    chosen = find_benchmark(name);
    EK_REQUIRE(chosen != NULL, EK_EINVAL, "unknown benchmark \"%s\"; the nearest is %s; known: %s",
               name,
               ek_spelling_nearest(name, benchmarks, sizeof(benchmarks) / sizeof(benchmarks[0]),
                                   sizeof(benchmarks[0])),
               bench_names);
    EK_REQUIRE(ranks == 1 || chosen->ranks, EK_EINVAL,
               "bench %s measures one process; run it without mpiexec", name);
    return EK_OK;
}

static ek_status open_model(bench *b)
{
    ek_model_source source;

    EK_TRY(ek_model_source_open(b->cfg->model, &source));
    EK_TRY(ek_model_check(&source.spec));
    b->spec = source.spec;
    EK_TRY(ek_mode_parse(b->cfg->dtype, b->cfg->device, &b->mode));
    return ek_kernels_open(b->cfg->device, 0, b->mode, ek_cpu_isa(), b->cfg->threads, &b->k);
}

static void say_what(bench *b)
{
    char library[64] = "CUDA";

    if (b->on_cpu)
        ek_dnnl_version(library, sizeof(library));
    bench_say(b, "%s of %s, kernels %s, %d threads, %s\n\n", b->name, b->cfg->model, b->k->name,
              b->k->threads, library);
    bench_put(b, "model", ek_json_text_of(b->cfg->model));
    bench_put(b, "dtype", json_string(b->mode == EK_MODE_BF16 ? "bf16" : "fp32"));
    bench_put(b, "device", json_string(b->cfg->device));
    bench_put(b, "kernels", json_string(b->k->name));
    bench_put(b, "threads", json_integer(b->k->threads));
    bench_put(b, "library", json_string(library));
}

static ek_status print_json(const bench *b)
{
    char *text = b->lost ? NULL : json_dumps(b->json, JSON_INDENT(1) | JSON_REAL_PRECISION(6));

    EK_REQUIRE(text != NULL, EK_ENOMEM, "no memory for the results");
    puts(text);
    free(text);
    return EK_OK;
}

/* The status of files written after the measurement.  A rank that fails ends the others, so all
 * wait until rank 0 has printed. */
static ek_status end_after_results(const bench *b)
{
    fflush(stdout);
    if (b->cfg->timeline != NULL && b->job->world != NULL)
        EK_TRY(ek_comm_barrier(b->job->world));
    return b->late;
}

ek_status bench_run(const char *name, const bench_settings *cfg, const bench_job *job)
{
    const benchmark *chosen = find_benchmark(name);
    bench_settings whole = *cfg;
    bench *b = calloc(1, sizeof(*b));
    ek_status st = EK_OK;

    EK_REQUIRE(b != NULL, EK_ENOMEM, "no memory for a benchmark");
    EK_TRY_OUT(ek_batch_check(cfg->batch, cfg->micro_batch));
    if (whole.micro_batch == 0)
        whole.micro_batch = whole.batch;
    b->name = name;
    b->job = job;
    b->cfg = &whole;
    b->on_cpu = strcmp(cfg->device, "cpu") == 0;
    b->text = !cfg->json && job->rank == 0;
    b->json = json_object();
    EK_REQUIRE_OUT(b->json != NULL, EK_ENOMEM, "no memory for the results");
    bench_put(b, "bench", json_string(name));
    if (!chosen->no_model) {
        EK_TRY_OUT(open_model(b));
        say_what(b);
    }
    EK_TRY_OUT(chosen->run(b));
    if (chosen->ceilings && b->on_cpu)
        bench_print_ceilings(b);
    if (!b->text && job->rank == 0)
        EK_TRY_OUT(print_json(b));
    EK_TRY_OUT(end_after_results(b));
out:
    ek_kernels_destroy(&b->k);
    json_decref(b->json);
    free(b);
    return st;
}
