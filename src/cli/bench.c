/* evenkeel bench: measures evenkeel on this machine (bench/bench.h). */
#include "bench/bench.h"

#include "cli/cli.h"
#include "supervisor/command_job.h"

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
    int status = ek_command_job_enter(&bench_options, argc, argv, 0, &o, &job);
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
