/* evenkeel bench: measures evenkeel on this machine (bench/bench.h). */
#include "bench/bench.h"

#include "base/job_options.h"
#include "cli/cli.h"
#include "supervisor/command_job.h"

#include <stddef.h>

static const ek_option options[] = {
    {"model", EK_OPTION_TEXT, .fallback = "small", .unit = "MODEL", .field = EK_FIELD_TEXT,
     .offset = offsetof(bench_settings, model),
     .help = "model whose shapes are measured, with random weights: preset (tiny, small, base), "
             "Hugging Face config.json, or a folder with one"},
    {"dtype", EK_OPTION_CHOICE, .shown = "bf16 with AVX2 or more, else fp32",
     .allowed = "bf16|fp32", .field = EK_FIELD_TEXT, .offset = offsetof(bench_settings, dtype),
     .help = "type of matrix products"},
    {"device", EK_OPTION_CHOICE, .fallback = "cpu", .allowed = "cpu|cuda", .field = EK_FIELD_TEXT,
     .offset = offsetof(bench_settings, device),
     .help = "kernels, step, generate: compute device; ceilings are measured for the CPU only"},
    {"threads", EK_OPTION_INT, .shown = "the host's cores / its ranks", .unit = "threads",
     .allowed = "[1,1024]", .help = "compute threads per rank"},
    EK_JOB_OPTIONS,
    {"repeats", EK_OPTION_INT, .fallback = "5", .allowed = "[1,1000]", .field = EK_FIELD_INT64,
     .offset = offsetof(bench_settings, repeats),
     .help = "gemm, generate, a2a, collectives, disk: number of measurements per figure"},
    {"seconds", EK_OPTION_REAL, .fallback = "0.1", .unit = "seconds", .allowed = "(0,60]",
     .field = EK_FIELD_REAL, .offset = offsetof(bench_settings, seconds),
     .help = "minimum duration of one measurement of a matrix product, a ceiling, or reads"},
    {"steps", EK_OPTION_INT, .fallback = "5", .unit = "steps", .allowed = "[1,1000]",
     .field = EK_FIELD_INT64, .offset = offsetof(bench_settings, steps),
     .help = "kernels, step, moe, balance: steps measured, after 2 warm-up steps"},
    {"batch", EK_OPTION_INT, .fallback = "32", .unit = "sequences", .allowed = "[1,1000000]",
     .field = EK_FIELD_INT64, .offset = offsetof(bench_settings, batch),
     .help = "global batch size: sequences per step"},
    {"seq", EK_OPTION_INT, .fallback = "256", .unit = "tokens", .allowed = "[1,10000000]",
     .field = EK_FIELD_INT64, .offset = offsetof(bench_settings, seq), .help = "sequence length"},
    {"micro-batch", EK_OPTION_INT, .shown = "the whole batch", .unit = "sequences",
     .allowed = "[1,1000000]", .field = EK_FIELD_INT64,
     .offset = offsetof(bench_settings, micro_batch), .help = "micro-batch size"},
    {"recompute", EK_OPTION_CHOICE, .fallback = "off", .allowed = "off|attention|full",
     .field = EK_FIELD_INDEX, .offset = offsetof(bench_settings, recompute),
     .help = "kernels, step: activations to recompute in the backward pass"},
    {"prompt", EK_OPTION_INT, .fallback = "128", .unit = "tokens", .allowed = "[1,1000000]",
     .field = EK_FIELD_INT64, .offset = offsetof(bench_settings, prompt),
     .help = "generate: prompt length, not measured"},
    {"tokens", EK_OPTION_INT, .fallback = "128", .unit = "tokens", .allowed = "[1,1000000]",
     .field = EK_FIELD_INT64, .offset = offsetof(bench_settings, tokens),
     .help = "generate: tokens generated per measurement"},
    {"longest", EK_OPTION_INT, .fallback = "16384", .unit = "KiB", .allowed = "[1,1048576]",
     .field = EK_FIELD_INT64, .offset = offsetof(bench_settings, longest_kib),
     .help =
         "a2a, collectives: largest message between two ranks, or vector; sizes start at 1 KiB and "
         "grow by a factor of 4, or from 4 KiB by 8"},
    {"ranks-a-node", EK_OPTION_INT, .shown = "by host names", .unit = "ranks",
     .allowed = "[1,100000]", .field = EK_FIELD_INT,
     .offset = offsetof(bench_settings, ranks_a_node),
     .help = "a2a, collectives, costs: consecutive ranks that are treated as one node"},
    {"tp", EK_OPTION_INT, .fallback = "1", .unit = "ranks", .allowed = "[1,1000000]",
     .field = EK_FIELD_INT, .offset = offsetof(bench_settings, sizes.tp),
     .help = "moe, balance: tensor parallel size"},
    {"ep", EK_OPTION_INT, .fallback = "1", .unit = "ranks", .allowed = "[1,1000000]",
     .field = EK_FIELD_INT, .offset = offsetof(bench_settings, sizes.ep),
     .help = "moe, balance: expert parallel size"},
    {"etp", EK_OPTION_INT, .fallback = "1", .unit = "ranks", .allowed = "[1,1000000]",
     .field = EK_FIELD_INT, .offset = offsetof(bench_settings, sizes.etp),
     .help = "moe, balance: expert tensor parallel size"},
    {"degrees", EK_OPTION_TEXT, .fallback = "1,2,4,8", .unit = "D,D,...", .field = EK_FIELD_TEXT,
     .offset = offsetof(bench_settings, degrees),
     .help = "moe: pipeline degrees to measure; the first is the baseline"},
    {"smart-groups", EK_OPTION_INT, .fallback = "0", .unit = "ranks", .allowed = "[0,1000000]",
     .field = EK_FIELD_INT, .offset = offsetof(bench_settings, smart_group),
     .help = "moe: also measure FasterMoE's schedule with groups of this many ranks; 0: off"},
    {"a2a", EK_OPTION_CHOICE, .fallback = "linear", .allowed = "linear|pairwise|2dh",
     .field = EK_FIELD_INDEX, .offset = offsetof(bench_settings, a2a),
     .help = "moe, balance: all-to-all algorithm"},
    {"policies", EK_OPTION_TEXT, .fallback = "off,shadow,place,prophet,replicate,exact,auto",
     .unit = "P,P,...", .field = EK_FIELD_TEXT, .offset = offsetof(bench_settings, policies),
     .help = "balance: policies of `train --balance` to measure, in turn; moe, with "
             "--replay-routing: those of them that plan by the micro-batch"},
    {"replay-routing", EK_OPTION_TEXT, .unit = "FILE", .field = EK_FIELD_TEXT,
     .offset = offsetof(bench_settings, replay),
     .help = "balance, moe: routing trace (.npy); balance: the iterations after --past are "
             "measured; moe: also measure with its loads, by --policies"},
    {"past", EK_OPTION_INT, .fallback = "1", .unit = "steps", .allowed = "[1,1000000]",
     .field = EK_FIELD_INT64, .offset = offsetof(bench_settings, past),
     .help = "balance: persistent placements are those that training would have after this many "
             "steps, with the first iterations of --replay-routing"},
    {"spare-slots", EK_OPTION_INT, .fallback = "1", .unit = "slots", .allowed = "[0,100000]",
     .field = EK_FIELD_INT, .offset = offsetof(bench_settings, spare_slots),
     .help = "balance, moe with --replay-routing: replica slots per rank, beyond its share of the "
             "experts"},
    {"plan-every", EK_OPTION_INT, .fallback = "10", .unit = "steps", .allowed = "[1,1000000]",
     .field = EK_FIELD_INT64, .offset = offsetof(bench_settings, plan_every),
     .help = "balance, moe: steps between persistent placements, the least horizon of their moves"},
    {"timeline", EK_OPTION_TEXT, .unit = "FILE", .field = EK_FIELD_TEXT,
     .offset = offsetof(bench_settings, timeline),
     .help = "write a timeline (Perfetto, chrome://tracing). moe: one step of the fastest variant "
             "on rank 0; balance: all rounds, of rank N of FILE.json in FILE-rankN.json"},
    {"machine", EK_OPTION_TEXT, .unit = "FILE", .field = EK_FIELD_TEXT,
     .offset = offsetof(bench_settings, machine),
     .help =
         "step, moe: compare measured op times with those predicted from a file of `bench costs "
         "--out`"},
    {"cluster", EK_OPTION_TEXT, .unit = "FILE", .field = EK_FIELD_TEXT,
     .offset = offsetof(bench_settings, cluster),
     .help =
         "collectives: compare with times predicted from a file of `bench costs --cluster-out`"},
    {"out", EK_OPTION_TEXT, .unit = "FILE", .field = EK_FIELD_TEXT,
     .offset = offsetof(bench_settings, out),
     .help = "costs: write the measured costs, for `evenkeel plan --machine FILE`"},
    {"cluster-out", EK_OPTION_TEXT, .unit = "FILE", .field = EK_FIELD_TEXT,
     .offset = offsetof(bench_settings, cluster_out),
     .help = "costs: write the cluster that was measured, as a cluster file; two ranks or more"},
    {"file", EK_OPTION_TEXT, .unit = "FILE", .field = EK_FIELD_TEXT,
     .offset = offsetof(bench_settings, file),
     .help = "disk: file to read; without it one is made, which ends with the command"},
    {"dir", EK_OPTION_TEXT, .fallback = ".", .unit = "DIR", .field = EK_FIELD_TEXT,
     .offset = offsetof(bench_settings, dir), .help = "disk: folder for the file that is made"},
    {"file-size", EK_OPTION_INT, .fallback = "1024", .unit = "MiB", .allowed = "[1,1048576]",
     .field = EK_FIELD_INT64, .offset = offsetof(bench_settings, file_mib),
     .help = "disk: size of the file that is made"},
    {"budget", EK_OPTION_REAL, .fallback = "1.6", .unit = "seconds", .allowed = "(0,60]",
     .field = EK_FIELD_REAL, .offset = offsetof(bench_settings, budget),
     .help =
         "costs, balance, moe with --replay-routing: time spent on measuring costs; costs spends "
         "twice as much again on every kernel of a step"},
    {"cached", EK_OPTION_FLAG, .field = EK_FIELD_INT, .offset = offsetof(bench_settings, cached),
     .help = "costs, balance, moe with --replay-routing: use costs measured earlier on this "
             "machine for the same ranks, threads and sizes, if any"},
    {"json", EK_OPTION_FLAG, .field = EK_FIELD_INT, .offset = offsetof(bench_settings, json),
     .help = "print one JSON object on stdout"},
};

static const ek_option_table table = {
    .command = "bench",
    .summary = "Measure evenkeel on this machine, next to what the machine can reach.",
    .options = options,
    .n_options = sizeof(options) / sizeof(options[0]),
    .positional = bench_names,
    .positional_max = 1,
    .write_more = bench_list};

static ek_status run_benchmark(const ek_options *o, const ek_command_job *job)
{
    const char *name = ek_options_count(o, NULL) > 0 ? ek_options_list(o, NULL, 0) : NULL;
    bench_settings cfg = {.sizes = {.pp = 1}};
    ek_path cache;
    bench_job at = {.world = job->world,
                    .rank = job->rank,
                    .ranks = job->size,
                    .messages = ek_command_err(),
                    .cache = cli_cache_folder(&cache)};

    EK_TRY(ek_options_store(o, &cfg));
    EK_TRY(bench_check(name, &cfg, job->size));
    EK_TRY(ek_command_job_threads(job, o, &cfg.threads));
    return bench_run(name, &cfg, &at);
}

int cli_bench(int argc, char **argv)
{
    ek_options *o = NULL;
    ek_command_job job;
    int status = ek_command_job_enter(&table, argc, argv, 0, &o, &job);
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
