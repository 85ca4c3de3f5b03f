/* evenkeel bench: options and dispatch to the benchmarks. */
#include "cli/bench.h"

#include "base/json.h"
#include "model/hf/source.h"
#include "tensor/cpu/dnnl_shim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const ek_option options[] = {
    {"model", EK_OPTION_TEXT, "small", NULL, "MODEL", NULL, 0,
     "model whose shapes are measured, with random weights: preset (tiny, small, base), Hugging "
     "Face config.json, or a folder with one"},
    {"dtype", EK_OPTION_CHOICE, NULL, "bf16 with AVX2 or more, else fp32", NULL, "bf16|fp32", 0,
     "type of matrix products"},
    {"device", EK_OPTION_CHOICE, "cpu", NULL, NULL, "cpu|cuda", 0,
     "kernels, step, generate: compute device; ceilings are measured for the CPU only"},
    {"threads", EK_OPTION_INT, NULL, "the host's cores / its ranks", "threads", "[1,1024]", 0,
     "compute threads per rank"},
    EK_COMMAND_JOB_OPTIONS,
    {"repeats", EK_OPTION_INT, "5", NULL, NULL, "[1,1000]", 0,
     "gemm, generate, a2a: number of measurements per figure"},
    {"seconds", EK_OPTION_REAL, "0.1", NULL, "seconds", "(0,60]", 0,
     "minimum duration of one measurement of a matrix product or a ceiling"},
    {"steps", EK_OPTION_INT, "5", NULL, "steps", "[1,1000]", 0,
     "kernels, step, moe, balance: steps measured, after 2 warm-up steps"},
    {"batch", EK_OPTION_INT, "32", NULL, "sequences", "[1,1000000]", 0,
     "global batch size: sequences per step"},
    {"seq", EK_OPTION_INT, "256", NULL, "tokens", "[1,10000000]", 0, "sequence length"},
    {"micro-batch", EK_OPTION_INT, NULL, "the whole batch", "sequences", "[1,1000000]", 0,
     "micro-batch size"},
    {"recompute", EK_OPTION_CHOICE, "off", NULL, NULL, "off|attention|full", 0,
     "kernels, step: activations to recompute in the backward pass"},
    {"prompt", EK_OPTION_INT, "128", NULL, "tokens", "[1,1000000]", 0,
     "generate: prompt length, not measured"},
    {"tokens", EK_OPTION_INT, "128", NULL, "tokens", "[1,1000000]", 0,
     "generate: tokens generated per measurement"},
    {"longest", EK_OPTION_INT, "16384", NULL, "KiB", "[1,1048576]", 0,
     "a2a: largest message between two ranks; sizes start at 1 KiB and grow by a factor of 4"},
    {"ranks-a-node", EK_OPTION_INT, NULL, "by host names", "ranks", "[1,100000]", 0,
     "a2a, costs: consecutive ranks that are treated as one node"},
    {"tp", EK_OPTION_INT, "1", NULL, "ranks", "[1,1000000]", 0,
     "moe, balance: tensor parallel size"},
    {"ep", EK_OPTION_INT, "1", NULL, "ranks", "[1,1000000]", 0,
     "moe, balance: expert parallel size"},
    {"etp", EK_OPTION_INT, "1", NULL, "ranks", "[1,1000000]", 0,
     "moe, balance: expert tensor parallel size"},
    {"degrees", EK_OPTION_TEXT, "1,2,4,8", NULL, "D,D,...", NULL, 0,
     "moe: pipeline degrees to measure; the first is the baseline"},
    {"smart-groups", EK_OPTION_INT, "0", NULL, "ranks", "[0,1000000]", 0,
     "moe: also measure FasterMoE's schedule with groups of this many ranks; 0: off"},
    {"a2a", EK_OPTION_CHOICE, "linear", NULL, NULL, "linear|pairwise|2dh", 0,
     "moe, balance: all-to-all algorithm"},
    {"policies", EK_OPTION_TEXT, "off,shadow,place,prophet,replicate,exact,auto", NULL, "P,P,...",
     NULL, 0, "balance: policies of `train --balance` to measure, in turn"},
    {"replay-routing", EK_OPTION_TEXT, NULL, NULL, "FILE", NULL, 0,
     "balance: routing trace (.npy); its first iteration is the warm-up, the following ones are "
     "measured"},
    {"spare-slots", EK_OPTION_INT, "1", NULL, "slots", "[0,100000]", 0,
     "balance: replica slots per rank, beyond its share of the experts"},
    {"plan-every", EK_OPTION_INT, "10", NULL, "steps", "[1,1000000]", 0,
     "balance: amortisation horizon of persistent placement changes"},
    {"timeline", EK_OPTION_TEXT, NULL, NULL, "FILE", NULL, 0,
     "moe: write a timeline of one step of the fastest variant on rank 0 (Perfetto, "
     "chrome://tracing)"},
    {"machine", EK_OPTION_TEXT, NULL, NULL, "FILE", NULL, 0,
     "moe: compare measured op times with those predicted from a file of `bench costs --out`"},
    {"out", EK_OPTION_TEXT, NULL, NULL, "FILE", NULL, 0,
     "costs: write the measured costs, for `evenkeel plan --machine FILE`"},
    {"budget", EK_OPTION_REAL, "1.6", NULL, "seconds", "(0,60]", 0,
     "costs, balance: time spent on measuring costs"},
    {"cached", EK_OPTION_FLAG, NULL, NULL, NULL, NULL, 0,
     "costs, balance: use costs measured earlier on this machine for the same ranks, threads and "
     "sizes, if any"},
    {"json", EK_OPTION_FLAG, NULL, NULL, NULL, NULL, 0, "print one JSON object on stdout"},
};

static const ek_option_table table = {
    .command = "bench",
    .summary = "Measure evenkeel on this machine, next to what the machine can reach.",
    .options = options,
    .n_options = sizeof(options) / sizeof(options[0]),
    .positional = "gemm|kernels|step|generate|moe|balance|a2a|costs",
    .positional_max = 1};

typedef struct {
    const char *name;
    ek_status (*run)(bench *b);
    int ranks;    /* supports several ranks */
    int no_model; /* needs no model and no kernels */
    int ceilings; /* also print the ceilings of this machine */
    int devices;  /* supports devices other than the CPU */
} benchmark;

static const benchmark benchmarks[] = {
    {"gemm", bench_gemm, .ceilings = 1},
    {"kernels", bench_kernels, .ceilings = 1, .devices = 1},
    {"step", bench_step, .ceilings = 1, .devices = 1},
    {"generate", bench_generate, .ceilings = 1, .devices = 1},
    {"moe", bench_moe, .ranks = 1},
    {"a2a", bench_a2a, .ranks = 1, .no_model = 1},
    {"costs", bench_costs, .ranks = 1},
    {"balance", bench_balance, .ranks = 1},
};

static ek_status choose(const ek_options *o, int ranks, const benchmark **chosen)
{
    int on_cpu = strcmp(ek_options_text(o, "device"), "cpu") == 0;
    const char *name = ek_options_count(o, NULL) > 0 ? ek_options_list(o, NULL, 0) : NULL;

    EK_REQUIRE(name != NULL, EK_EINVAL, "name a benchmark: %s", table.positional);
    for (size_t i = 0; i < sizeof(benchmarks) / sizeof(benchmarks[0]); i++)
        if (strcmp(benchmarks[i].name, name) == 0) {
            *chosen = &benchmarks[i];
            EK_REQUIRE(ranks == 1 || benchmarks[i].ranks, EK_EINVAL,
                       "bench %s measures one process; run it without --ranks and mpiexec", name);
            EK_REQUIRE(on_cpu || benchmarks[i].devices, EK_EINVAL,
                       "bench %s measures the CPU; run it without --device", name);
            return EK_OK;
        }
    return EK_FAIL(EK_EINVAL, "unknown benchmark \"%s\"; known: %s", name, table.positional);
}

static ek_status open_bench(const ek_options *o, const char *name, bench *b)
{
    b->name = name;
    b->seconds = ek_options_real(o, "seconds");
    b->repeats = ek_options_int(o, "repeats");
    b->steps = ek_options_int(o, "steps");
    b->batch = ek_options_int(o, "batch");
    b->seq = ek_options_int(o, "seq");
    b->micro_batch = ek_options_int(o, "micro-batch");
    if (b->micro_batch == 0 || b->micro_batch > b->batch)
        b->micro_batch = b->batch;
    b->recompute = (ek_recompute)ek_options_choice(o, "recompute");
    b->prompt = ek_options_int(o, "prompt");
    b->tokens = ek_options_int(o, "tokens");
    b->longest = 1024 * ek_options_int(o, "longest");
    b->ranks_a_node = (int)ek_options_int(o, "ranks-a-node");
    b->sizes = (ek_mesh_sizes){1, (int)ek_options_int(o, "tp"), (int)ek_options_int(o, "ep"),
                               (int)ek_options_int(o, "etp")};
    b->degrees = ek_options_text(o, "degrees");
    b->smart_group = (int)ek_options_int(o, "smart-groups");
    b->a2a = (ek_a2a)ek_options_choice(o, "a2a");
    b->policies = ek_options_text(o, "policies");
    b->replay = ek_options_text(o, "replay-routing");
    b->spare_slots = (int)ek_options_int(o, "spare-slots");
    b->plan_every = ek_options_int(o, "plan-every");
    b->timeline = ek_options_text(o, "timeline");
    b->machine = ek_options_text(o, "machine");
    b->out = ek_options_text(o, "out");
    b->budget = ek_options_real(o, "budget");
    b->cached = ek_options_flag(o, "cached");
    b->text = !ek_options_flag(o, "json") && b->job->rank == 0;
    b->json = json_object();
    EK_REQUIRE(b->json != NULL, EK_ENOMEM, "no memory for the results");
    bench_put(b, "bench", json_string(name));
    return EK_OK;
}

static ek_status open_model(const ek_options *o, bench *b)
{
    ek_model_source source;
    int threads;

    EK_TRY(ek_model_source_open(ek_options_text(o, "model"), &source));
    EK_TRY(ek_model_check(&source.spec));
    b->spec = source.spec;
    b->device = ek_options_text(o, "device");
    b->on_cpu = strcmp(b->device, "cpu") == 0;
    EK_TRY(ek_mode_parse(ek_options_text(o, "dtype"), b->device, &b->mode));
    EK_TRY(ek_command_job_threads(b->job, o, &threads));
    return ek_kernels_open(b->device, 0, b->mode, ek_cpu_isa(), threads, &b->k);
}

static void say_what(bench *b, const char *model)
{
    char library[64] = "CUDA";

    if (b->on_cpu)
        ek_dnnl_version(library, sizeof(library));
    bench_say(b, "%s of %s, kernels %s, %d threads, %s\n\n", b->name, model, b->k->name,
              b->k->threads, library);
    bench_put(b, "model", ek_json_text_of(model));
    bench_put(b, "dtype", json_string(b->mode == EK_MODE_BF16 ? "bf16" : "fp32"));
    bench_put(b, "device", json_string(b->device));
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

static ek_status run(const ek_options *o, ek_command_job *job)
{
    const benchmark *chosen = NULL;
    bench *b = NULL;
    ek_status st = EK_OK;

    EK_TRY(choose(o, job->size, &chosen));
    b = calloc(1, sizeof(*b));
    EK_REQUIRE(b != NULL, EK_ENOMEM, "no memory for a benchmark");
    b->job = job;
    EK_TRY_OUT(open_bench(o, chosen->name, b));
    if (!chosen->no_model) {
        EK_TRY_OUT(open_model(o, b));
        say_what(b, ek_options_text(o, "model"));
    }
    EK_TRY_OUT(chosen->run(b));
    if (chosen->ceilings && b->on_cpu)
        bench_print_ceilings(b);
    if (!b->text && job->rank == 0)
        EK_TRY_OUT(print_json(b));
out:
    ek_kernels_destroy(&b->k);
    json_decref(b->json);
    free(b);
    return st;
}

int cli_bench(int argc, char **argv)
{
    ek_options *o = NULL;
    ek_command_job job;
    int status = ek_command_job_enter(&table, argc, argv, &o, &job);
    ek_status st;

    if (status >= 0)
        return status;
    st = run(o, &job);
    ek_options_destroy(o);
    if (st < 0)
        return ek_status_class(st) == EK_CLASS_USAGE ? ek_command_job_fail_arguments(&job, st)
                                                     : ek_command_job_fail(&job, st);
    ek_command_job_leave(&job);
    return EK_EXIT_DONE;
}
