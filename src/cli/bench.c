/* evenkeel bench: measures evenkeel on this machine (bench/bench.h). */
#include "bench/bench.h"

#include "cli/cli.h"
#include "supervisor/command_job.h"

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
    .positional = bench_names,
    .positional_max = 1};

static bench_settings settings_of(const ek_options *o)
{
    return (bench_settings){
        .model = ek_options_text(o, "model"),
        .dtype = ek_options_text(o, "dtype"),
        .device = ek_options_text(o, "device"),
        .seconds = ek_options_real(o, "seconds"),
        .repeats = ek_options_int(o, "repeats"),
        .steps = ek_options_int(o, "steps"),
        .batch = ek_options_int(o, "batch"),
        .seq = ek_options_int(o, "seq"),
        .micro_batch = ek_options_int(o, "micro-batch"),
        .recompute = (ek_recompute)ek_options_choice(o, "recompute"),
        .prompt = ek_options_int(o, "prompt"),
        .tokens = ek_options_int(o, "tokens"),
        .longest_kib = ek_options_int(o, "longest"),
        .ranks_a_node = (int)ek_options_int(o, "ranks-a-node"),
        .sizes = {1, (int)ek_options_int(o, "tp"), (int)ek_options_int(o, "ep"),
                  (int)ek_options_int(o, "etp")},
        .degrees = ek_options_text(o, "degrees"),
        .smart_group = (int)ek_options_int(o, "smart-groups"),
        .a2a = (ek_a2a)ek_options_choice(o, "a2a"),
        .policies = ek_options_text(o, "policies"),
        .replay = ek_options_text(o, "replay-routing"),
        .spare_slots = (int)ek_options_int(o, "spare-slots"),
        .plan_every = ek_options_int(o, "plan-every"),
        .timeline = ek_options_text(o, "timeline"),
        .machine = ek_options_text(o, "machine"),
        .out = ek_options_text(o, "out"),
        .budget = ek_options_real(o, "budget"),
        .cached = ek_options_flag(o, "cached"),
        .json = ek_options_flag(o, "json"),
    };
}

static ek_status run_benchmark(const ek_options *o, const ek_command_job *job)
{
    const char *name = ek_options_count(o, NULL) > 0 ? ek_options_list(o, NULL, 0) : NULL;
    bench_settings cfg = settings_of(o);
    ek_path cache;
    bench_job at = {.world = job->world,
                    .rank = job->rank,
                    .ranks = job->size,
                    .messages = ek_command_err(),
                    .cache = cli_cache_folder(&cache)};

    EK_TRY(bench_check(name, &cfg, job->size));
    EK_TRY(ek_command_job_threads(job, o, &cfg.threads));
    return bench_run(name, &cfg, &at);
}

int cli_bench(int argc, char **argv)
{
    ek_options *o = NULL;
    ek_command_job job;
    int status = ek_command_job_enter(&table, argc, argv, &o, &job);
    ek_status st;

    if (status >= 0)
        return status;
    st = run_benchmark(o, &job);
    ek_options_destroy(o);
    if (st < 0)
        return ek_status_class(st) == EK_CLASS_USAGE ? ek_command_job_fail_arguments(&job, st)
                                                     : ek_command_job_fail(&job, st);
    ek_command_job_leave(&job);
    return EK_EXIT_DONE;
}
