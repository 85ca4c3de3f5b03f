/* evenkeel train: from options (train/settings/options.h) to a run; signals. */
#include "evenkeel/train.h"

#include "base/json.h"
#include "cli/cli.h"
#include "cli/dry_run.h"
#include "cli/layout.h"
#include "cli/train_display.h"
#include "search/for_run.h"
#include "supervisor/command_job.h"
#include "supervisor/train_reports.h"
#include "supervisor/worker.h"
#include "train/dry_run.h"
#include "train/settings/options.h"

#include <jansson.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static volatile sig_atomic_t interrupted;

static void on_signal(int sig)
{
    (void)sig;
    interrupted = 1;
}

static int is_interrupted(void)
{
    return interrupted != 0;
}

static int stop_wanted(void *context)
{
    (void)context;
    return is_interrupted();
}

/* Settings of the command itself, which ek_train does not know, as JSON for run.json; to be freed
 * by the caller. */
static char *own_settings(const ek_options *o)
{
    static const char *const names[] = {"ranks",   "hosts",  "discover", "mpiexec-args",
                                        "threads", "layout", "elastic"};
    json_t *all = ek_options_dump(o), *own = json_object(), *escaped;
    char *text;
    ek_path whole;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (ek_options_given(o, names[i]) &&
            !(strcmp(names[i], "elastic") == 0 && ek_worker_elastic_by_default()))
            json_object_set(own, names[i], json_object_get(all, names[i]));
    if (ek_options_text(o, "hosts") != NULL &&
        ek_path_absolute(ek_options_text(o, "hosts"), &whole) == EK_OK)
        json_object_set_new(own, "hosts", json_string_nocheck(whole.s));
    escaped = ek_json_escaped(own);
    text = json_dumps(escaped, 0);
    json_decref(escaped);
    json_decref(own);
    json_decref(all);
    return text;
}

static int run_train(const ek_options *o, ek_command_job *job, int argc, char **argv)
{
    ek_path cache;
    ek_train_config cfg = EK_TRAIN_CONFIG_INIT;
    ek_train_summary summary = {0};
    cli_train_display d = cli_train_display_open(o, job);
    ek_train_hooks hooks = cli_train_display_hooks(&d);
    ek_train_reports reports;
    char *own = own_settings(o), *pool = NULL;
    int *racks = NULL, *hosts = NULL, ranks = 1, dry = ek_options_flag(o, "dry-run");
    ek_status st = ek_options_store(o, &cfg);

    if (ek_options_given(o, "layout") && strcmp(ek_options_text(o, "layout"), "pool") != 0)
        cfg.layout_pool = NULL; /* auto, or given beside a pool that it was chosen from */
    hooks.stop = stop_wanted;
    ek_train_reports_init(&reports, &hooks, NULL);
    cfg.command = (const char *const *)argv;
    cfg.n_command = argc - ek_worker_elastic_by_default(); /* added by the supervisor */
    if (ek_worker_elastic_by_default())
        cfg.elastic = EK_ELASTIC_BY_DEFAULT;
    cfg.caller_settings = own;
    cfg.cache = cli_cache_folder(&cache);
    cfg.world = job->world;
    cfg.supervised = ek_train_reports_supervised(&reports);
    d.quiet |= reports.supervised.n_draining > 0;
    d.out = cfg.out;
    if (st == EK_OK && dry)
        st = cli_dry_run_ranks(o, job, &cfg, &ranks, &hosts, &racks);
    if (dry) {
        cfg.dry_run = ek_options_text(o, "hosts") || ek_options_text(o, "discover") ? 2 : 1;
    } else if (st == EK_OK) {
        st = ek_command_job_threads(job, o, &cfg.threads);
    }
    if (st == EK_OK && !dry)
        st = ek_worker_racks(job->size, &racks);
    cfg.rack_of = racks;
    if (st == EK_OK && strcmp(ek_options_text(o, "layout"), "auto") == 0) {
        if (job->rank == 0)
            st = ek_search_for_run(&cfg, dry ? ranks : job->size, NULL, &pool);
        cfg.layout_pool = job->rank == 0 ? pool : "{}"; /* rank 0 reads it */
    }
    if (st == EK_OK)
        st = dry ? ek_train_dry_run(&cfg, &hooks, ranks, hosts, &summary)
                 : ek_train(&cfg, &reports.hooks, &summary);
    free(racks);
    free(hosts);
    free(pool);
    cli_train_display_end_line();
    if (st == EK_OK &&
        reports.supervised.n_draining == 0) /* draining: the run continues elsewhere */
        cli_train_display_summary(&d, &summary, &cfg);
    free(own);
    cli_train_display_close(&d);
    if (st < 0)
        return ek_command_job_fail(job, st);
    ek_command_job_leave(job);
    return EK_EXIT_DONE;
}

int cli_train(int argc, char **argv)
{
    ek_options *o = NULL;
    ek_command_job job;
    cli_layout laid_out = {.argc = argc, .argv = argv, .stop = is_interrupted};
    int status;

    ek_worker_catch(on_signal);
    status = cli_layout_choose(&laid_out);
    if (status < 0)
        status = ek_command_job_enter(&ek_train_options, laid_out.argc, laid_out.argv,
                                      laid_out.layout.n_layout_words, &o, &job);
    if (status < 0) {
        status = run_train(o, &job, laid_out.argc, laid_out.argv);
        ek_options_destroy(o);
    }
    free(laid_out.own);
    return status;
}
