/* evenkeel/elastic.h: the supervisor and its workers in a program of one's own. */
#include "evenkeel/elastic.h"
#include "evenkeel/job.h"
#include "evenkeel/version.h"

#include "base/c_locale.h"
#include "base/command.h"
#include "base/threads.h"
#include "supervisor/command_job.h"
#include "supervisor/internal_command.h"
#include "supervisor/limits.h"
#include "supervisor/supervisor.h"
#include "supervisor/train_reports.h"
#include "supervisor/worker.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct ek_elastic {
    char name[64];
    ek_command_job job;
};

static volatile sig_atomic_t interrupted;

static void interrupt(int sig)
{
    (void)sig;
    interrupted = 1;
}

static int is_interrupted(void)
{
    return interrupted;
}

static const char *name_of(const ek_elastic_config *cfg)
{
    return cfg->name != NULL ? cfg->name : "program";
}

static ek_status check(const ek_elastic_config *cfg)
{
    EK_REQUIRE(cfg->out != NULL && cfg->out[0] != '\0', EK_EINVAL,
               "ek_elastic_config: out names no folder");
    EK_REQUIRE(cfg->ranks >= 0 && cfg->unit >= 0 && cfg->watchdog_s >= 0, EK_EINVAL,
               "ek_elastic_config: ranks %d, unit %d, watchdog_s %g: none may be negative",
               cfg->ranks, cfg->unit, cfg->watchdog_s);
    EK_REQUIRE(cfg->hosts == NULL || cfg->discover == NULL, EK_EINVAL,
               "ek_elastic_config: hosts and discover both name the hosts");
    return cfg->hosts == NULL && cfg->discover == NULL ? ek_limits_check_ranks(cfg->ranks) : EK_OK;
}

static int supervise(const ek_elastic_config *cfg, int argc, char **argv)
{
    ek_supervisor_config config = {.command = name_of(cfg),
                                   .ranks = cfg->ranks,
                                   .hosts = cfg->hosts,
                                   .discover = cfg->discover,
                                   .mpiexec_args = cfg->mpiexec_args,
                                   .out = cfg->out,
                                   .elastic = 1,
                                   .unit = cfg->unit > 0 ? cfg->unit : 1,
                                   .watchdog = cfg->watchdog_s,
                                   .live = isatty(STDERR_FILENO),
                                   .quiet = cfg->quiet,
                                   .argc = argc - 1,
                                   .argv = argv + 1};
    ek_status st = check(cfg);

    if (st < 0)
        return ek_command_fail(name_of(cfg), st);
    signal(SIGPIPE, SIG_IGN); /* a closed pipe does not end the supervisor */
    if (getenv("OMP_WAIT_POLICY") == NULL)
        (void)!setenv("GOMP_SPINCOUNT", "0", 0); /* of workers, which may share cores */
    return ek_supervise(&config);
}

/* Joins the job of the supervisor that has started this process. */
static int join(const ek_elastic_config *cfg, int rank, ek_elastic **out)
{
    ek_elastic *e = calloc(1, sizeof(*e));
    ek_status st;

    ek_worker_catch(interrupt);
    ek_worker_start(rank);
    if (e == NULL)
        return ek_command_fail(name_of(cfg), EK_FAIL(EK_ENOMEM, "no memory for a worker"));
    snprintf(e->name, sizeof(e->name), "%s", name_of(cfg));
    e->job = (ek_command_job){.command = e->name, .rank = rank, .size = 1};
    st = ek_job_join(&e->job.world);
    if (st < 0) {
        int status = ek_command_job_fail(&e->job, st);

        free(e);
        return status;
    }
    e->job.rank = ek_job_rank(e->job.world);
    e->job.size = ek_job_size(e->job.world);
    ek_worker_joined(e->job.rank, ek_job_host(e->job.world, e->job.rank));
    *out = e;
    return -1;
}

int ek_elastic_enter(const ek_elastic_config *cfg, int argc, char **argv, ek_elastic **out)
{
    ek_worker_environment s = ek_worker_environment_read();
    int status;
    EK_C_LOCALE;

    if (cfg == NULL || argv == NULL || out == NULL)
        return ek_command_fail("program", EK_FAIL(EK_EINVAL, "%s must not be NULL",
                                                  cfg == NULL    ? "cfg"
                                                  : argv == NULL ? "argv"
                                                                 : "out"));
    *out = NULL;
    if (cfg->size != sizeof(*cfg)) /* before any other member is read */
        return ek_command_fail(
            "program",
            EK_FAIL(EK_EINVAL, "ek_elastic_config: size is %zu, not %zu", cfg->size, sizeof(*cfg)));
    if (ek_internal_command(argc, argv, &status))
        return status;
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        puts(ek_version());
        return EK_EXIT_DONE;
    }
    if (!s.inside)
        return supervise(cfg, argc, argv);
    if (s.launched.ranks == 0 || !s.launched.elastic)
        return ek_command_fail(name_of(cfg),
                               EK_FAIL(EK_EINVAL, "this program starts its workers itself, and "
                                                  "restarts them after a loss: run it without "
                                                  "mpiexec or srun"));
    return join(cfg, s.rank, out);
}

ek_status ek_elastic_train(ek_elastic *e, const ek_train_config *cfg, const ek_train_hooks *hooks,
                           ek_train_summary *summary)
{
    ek_train_config own;
    ek_train_reports reports;
    int *racks = NULL;
    ek_status st;
    EK_C_LOCALE;

    EK_REQUIRE(e != NULL, EK_EINVAL, "e must not be NULL");
    EK_REQUIRE(cfg != NULL, EK_EINVAL, "cfg must not be NULL");
    EK_REQUIRE(summary != NULL, EK_EINVAL, "summary must not be NULL");
    EK_REQUIRE(cfg->size == sizeof(own), EK_EINVAL, "ek_train_config: size is %zu, not %zu",
               cfg->size, sizeof(own));
    EK_REQUIRE(cfg->layout_pool == NULL, EK_EINVAL,
               "layout_pool does not work with ek_elastic_train(): its number of ranks is chosen "
               "for one layout");
    own = *cfg;
    ek_train_reports_init(&reports, hooks, is_interrupted);
    own.world = e->job.world;
    own.elastic = 1;
    own.supervised = ek_train_reports_supervised(&reports);
    if (own.threads == 0) {
        own.threads = ek_cores_usable();
        EK_TRY(ek_job_cores(e->job.world, &own.threads));
    }
    if (own.rack_of == NULL)
        EK_TRY(ek_worker_racks(e->job.size, &racks));
    own.rack_of = racks != NULL ? racks : own.rack_of;
    uselocale(host_locale); /* in which ek_train calls the hooks */
    st = ek_train(&own, &reports.hooks, summary);
    free(racks);
    return st;
}

int ek_elastic_rank(const ek_elastic *e)
{
    return e != NULL ? e->job.rank : -1;
}

int ek_elastic_is_draining(const ek_elastic *e)
{
    return e != NULL && ek_worker_n_draining() > 0;
}

int ek_elastic_leave(ek_elastic **e, ek_status st)
{
    int status = EK_EXIT_DONE;
    EK_C_LOCALE;

    if (e == NULL || *e == NULL)
        return st < 0 ? ek_command_status(st) : EK_EXIT_DONE;
    if (st < 0)
        status = ek_command_job_fail(&(*e)->job, st);
    else
        ek_command_job_leave(&(*e)->job);
    free(*e);
    *e = NULL;
    return status;
}
