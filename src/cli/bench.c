/* evenkeel bench: measures evenkeel on this machine (bench/bench.h). */
#include "bench/bench.h"

#include "base/job_options.h"
#include "cli/cli.h"
#include "supervisor/command_job.h"

#include <stddef.h>

#define HAVE_A_MODEL "gemm|kernels|step|generate|moe|balance|costs"
#define HAVE_A_BATCH "gemm|kernels|step|moe|balance|costs"

static const ek_option options[] = {
    {"model", EK_OPTION_TEXT, .fallback = "small", .unit = "MODEL", .field = EK_FIELD_TEXT,
     .offset = offsetof(bench_settings, model), .only = HAVE_A_MODEL,
     .help = "model whose shapes are measured, with random weights: preset (tiny, small, base), "
             "Hugging Face config.json, or a folder with one"},
    {"dtype", EK_OPTION_CHOICE, .shown = "bf16 with AVX2 or more, else fp32",
     .allowed = "bf16|fp32", .field = EK_FIELD_TEXT, .offset = offsetof(bench_settings, dtype),
     .only = HAVE_A_MODEL, .help = "type of matrix products"},
    {"device", EK_OPTION_CHOICE, .fallback = "cpu", .allowed = "cpu|cuda", .field = EK_FIELD_TEXT,
     .offset = offsetof(bench_settings, device), .only = "kernels|step|generate",
     .help = "compute device; ceilings are measured for the CPU only"},
    {"threads", EK_OPTION_INT, .shown = "the host's cores / its ranks", .unit = "threads",
     .allowed = "[1,1024]", .only = HAVE_A_MODEL, .help = "compute threads per rank"},
    EK_JOB_OPTIONS_ONLY("moe|balance|a2a|collectives|costs"),
    {"repeats", EK_OPTION_INT, .fallback = "5", .allowed = "[1,1000]", .field = EK_FIELD_INT64,
     .offset = offsetof(bench_settings, repeats), .only = "gemm|generate|a2a|collectives|disk",
     .help = "number of measurements per figure"},
    {"seconds", EK_OPTION_REAL, .fallback = "0.1", .unit = "seconds", .allowed = "(0,60]",
     .field = EK_FIELD_REAL, .offset = offsetof(bench_settings, seconds),
     .only = "gemm|kernels|step|generate|a2a|collectives|disk",
     .help = "minimum duration of one measurement of a matrix product, a ceiling, an exchange, or "
             "reads"},
    {"steps", EK_OPTION_INT, .fallback = "5", .unit = "steps", .allowed = "[1,1000]",
     .field = EK_FIELD_INT64, .offset = offsetof(bench_settings, steps),
     .only = "kernels|step|moe|balance", .help = "steps measured, after 2 warm-up steps"},
    {"batch", EK_OPTION_INT, .fallback = "32", .unit = "sequences", .allowed = "[1,1000000]",
     .field = EK_FIELD_INT64, .offset = offsetof(bench_settings, batch), .only = HAVE_A_BATCH,
     .help = "global batch size: sequences per step"},
    {"seq", EK_OPTION_INT, .fallback = "256", .unit = "tokens", .allowed = "[1,10000000]",
     .field = EK_FIELD_INT64, .offset = offsetof(bench_settings, seq), .only = HAVE_A_BATCH,
     .help = "sequence length"},
    {"micro-batch", EK_OPTION_INT, .shown = "the whole batch", .unit = "sequences",
     .allowed = "[1,1000000]", .field = EK_FIELD_INT64,
     .offset = offsetof(bench_settings, micro_batch), .only = HAVE_A_BATCH,
     .help = "micro-batch size"},
    {"recompute", EK_OPTION_CHOICE, .fallback = "off", .allowed = "off|attention|full",
     .field = EK_FIELD_INDEX, .offset = offsetof(bench_settings, recompute), .only = "kernels|step",
     .help = "activations to recompute in the backward pass"},
    {"prompt", EK_OPTION_INT, .fallback = "128", .unit = "tokens", .allowed = "[1,1000000]",
     .field = EK_FIELD_INT64, .offset = offsetof(bench_settings, prompt), .only = "generate",
     .help = "prompt length, not measured"},
    {"tokens", EK_OPTION_INT, .fallback = "128", .unit = "tokens", .allowed = "[1,1000000]",
     .field = EK_FIELD_INT64, .offset = offsetof(bench_settings, tokens), .only = "generate",
     .help = "tokens generated per measurement"},
    {"longest", EK_OPTION_INT, .fallback = "16384", .unit = "KiB", .allowed = "[1,1048576]",
     .field = EK_FIELD_INT64, .offset = offsetof(bench_settings, longest_kib),
     .only = "a2a|collectives",
     .help = "largest message between two ranks (a2a) or vector (collectives); sizes start at 1 "
             "KiB and grow by a factor of 4 (a2a), or at 4 KiB by 8"},
    {"ranks-a-node", EK_OPTION_INT, .shown = "by host names", .unit = "ranks",
     .allowed = "[1,100000]", .field = EK_FIELD_INT,
     .offset = offsetof(bench_settings, ranks_a_node), .only = "a2a|collectives|costs",
     .help = "consecutive ranks that are treated as one node"},
    {"tp", EK_OPTION_INT, .fallback = "1", .unit = "ranks", .allowed = "[1,1000000]",
     .field = EK_FIELD_INT, .offset = offsetof(bench_settings, sizes.tp), .only = "moe|balance",
     .help = "tensor parallel size"},
    {"ep", EK_OPTION_INT, .fallback = "1", .unit = "ranks", .allowed = "[1,1000000]",
     .field = EK_FIELD_INT, .offset = offsetof(bench_settings, sizes.ep), .only = "moe|balance",
     .help = "expert parallel size"},
    {"etp", EK_OPTION_INT, .fallback = "1", .unit = "ranks", .allowed = "[1,1000000]",
     .field = EK_FIELD_INT, .offset = offsetof(bench_settings, sizes.etp), .only = "moe|balance",
     .help = "expert tensor parallel size"},
    {"degrees", EK_OPTION_TEXT, .fallback = "1,2,4,8", .unit = "D,D,...", .field = EK_FIELD_TEXT,
     .offset = offsetof(bench_settings, degrees), .only = "moe",
     .help = "pipeline degrees to measure; the first is the baseline"},
    {"smart-groups", EK_OPTION_INT, .fallback = "0", .unit = "ranks", .allowed = "[0,1000000]",
     .field = EK_FIELD_INT, .offset = offsetof(bench_settings, smart_group), .only = "moe",
     .help = "also measure FasterMoE's schedule with groups of this many ranks; 0: off"},
    {"a2a", EK_OPTION_CHOICE, .fallback = "linear", .allowed = "linear|pairwise|2dh",
     .field = EK_FIELD_INDEX, .offset = offsetof(bench_settings, a2a), .only = "moe|balance",
     .help = "all-to-all algorithm"},
    {"policies", EK_OPTION_TEXT, .fallback = "off,shadow,place,prophet,replicate,exact,auto",
     .unit = "P,P,...", .field = EK_FIELD_TEXT, .offset = offsetof(bench_settings, policies),
     .only = "moe|balance",
     .help = "policies of `train --balance` to measure, in turn; moe, which needs "
             "--replay-routing for it, measures those of them that plan by the micro-batch"},
    {"replay-routing", EK_OPTION_TEXT, .unit = "FILE", .field = EK_FIELD_TEXT,
     .offset = offsetof(bench_settings, replay), .only = "moe|balance",
     .help = "routing trace (.npy); balance measures the iterations after --past; moe also "
             "measures with its loads, by --policies"},
    {"past", EK_OPTION_INT, .fallback = "1", .unit = "steps", .allowed = "[1,1000000]",
     .field = EK_FIELD_INT64, .offset = offsetof(bench_settings, past), .only = "balance",
     .help = "persistent placements are those that training would have after this many "
             "steps, with the first iterations of --replay-routing"},
    {"spare-slots", EK_OPTION_INT, .fallback = "1", .unit = "slots", .allowed = "[0,100000]",
     .field = EK_FIELD_INT, .offset = offsetof(bench_settings, spare_slots), .only = "moe|balance",
     .help =
         "replica slots per rank, beyond its share of the experts (moe: with --replay-routing)"},
    {"plan-every", EK_OPTION_INT, .fallback = "10", .unit = "steps", .allowed = "[1,1000000]",
     .field = EK_FIELD_INT64, .offset = offsetof(bench_settings, plan_every), .only = "moe|balance",
     .help = "steps between persistent placements, the least horizon of their moves"},
    {"timeline", EK_OPTION_TEXT, .unit = "FILE", .field = EK_FIELD_TEXT,
     .offset = offsetof(bench_settings, timeline), .only = "moe|balance",
     .help = "write a timeline (Perfetto, chrome://tracing): moe of one step of the fastest "
             "variant on rank 0, balance of all rounds, of rank N to FILE-rankN.json"},
    {"machine", EK_OPTION_TEXT, .unit = "FILE", .field = EK_FIELD_TEXT,
     .offset = offsetof(bench_settings, machine), .only = "step|moe",
     .help = "compare measured op times with those predicted from a file of `bench costs "
             "--out`"},
    {"cluster", EK_OPTION_TEXT, .unit = "FILE", .field = EK_FIELD_TEXT,
     .offset = offsetof(bench_settings, cluster), .only = "collectives",
     .help = "compare with times predicted from a file of `bench costs --cluster-out`"},
    {"out", EK_OPTION_TEXT, .unit = "FILE", .field = EK_FIELD_TEXT,
     .offset = offsetof(bench_settings, out), .only = "costs",
     .help = "write the measured costs, for `evenkeel plan --machine FILE`"},
    {"cluster-out", EK_OPTION_TEXT, .unit = "FILE", .field = EK_FIELD_TEXT,
     .offset = offsetof(bench_settings, cluster_out), .only = "costs",
     .help = "write the cluster that was measured, as a cluster file; two ranks or more"},
    {"file", EK_OPTION_TEXT, .unit = "FILE", .field = EK_FIELD_TEXT,
     .offset = offsetof(bench_settings, file), .only = "disk",
     .help = "file to read; without it one is made, which ends with the command"},
    {"dir", EK_OPTION_TEXT, .fallback = ".", .unit = "DIR", .field = EK_FIELD_TEXT,
     .offset = offsetof(bench_settings, dir), .only = "disk",
     .help = "folder for the file that is made"},
    {"file-size", EK_OPTION_INT, .fallback = "1024", .unit = "MiB", .allowed = "[1,1048576]",
     .field = EK_FIELD_INT64, .offset = offsetof(bench_settings, file_mib), .only = "disk",
     .help = "size of the file that is made"},
    {"budget", EK_OPTION_REAL, .fallback = "1.6", .unit = "seconds", .allowed = "(0,60]",
     .field = EK_FIELD_REAL, .offset = offsetof(bench_settings, budget),
     .only = "moe|balance|costs",
     .help = "time spent on measuring costs (moe: with --replay-routing); `bench costs` spends "
             "twice as much again on every kernel of a step"},
    {"cached", EK_OPTION_FLAG, .field = EK_FIELD_INT, .offset = offsetof(bench_settings, cached),
     .only = "moe|balance|costs",
     .help = "use costs measured earlier on this machine for the same ranks, threads and sizes, if "
             "any (moe: with --replay-routing)"},
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
    .describe = bench_describe,
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
    EK_TRY(bench_check(name, job->size));
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
