/* Performs the actions of the decision core: reads the host list, runs commands on hosts, starts
 * and signals the workers. */
#include "supervisor/perform.h"

#include "base/file.h"
#include "supervisor/mpiexec.h"
#include "supervisor/report.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double discover_s = 30; /* time limit of --discover */

/* --- answers ---------------------------------------------------------------------------------- */

/* Keeps an answer to an action until all actions of the event are performed. */
static void answer(ek_supervisor *x, const ek_core_event *e)
{
    int most = EK_ANSWERS_MAX - (e->kind == EK_CORE_TASK_ENDED); /* the list always has room */

    if (x->n_answers < most) /* a task without an answer is ended when it is late */
        x->answer[x->n_answers++] = *e;
}

/* Slots that the file of hosts does not say stay those of its first state, so that no host gets
 * more ranks because others were taken off. */
static void fill_slots(ek_supervisor *x)
{
    if (x->config->discover != NULL)
        return;
    if (x->even_slots == 0)
        x->even_slots = ek_host_list_even_slots(&x->listed, x->config->ranks);
    ek_host_list_fill(&x->listed, x->even_slots);
}

/* The list was read, or could not be. */
static void answer_list(ek_supervisor *x, ek_status st)
{
    if (st == EK_OK)
        fill_slots(x);
    if (st < 0 && x->core.state == EK_CORE_LISTING)
        x->list_status = st;
    if (st == EK_OK)
        x->said.list_failed = 0;
    answer(x, &(ek_core_event){.kind = st < 0 ? EK_CORE_LIST_FAILED : EK_CORE_LIST,
                               .list = x->listed.host,
                               .n_list = x->listed.n});
}

/* --- the host list ---------------------------------------------------------------------------- */

static ek_status begin_discover(ek_supervisor *x)
{
    char shell[] = "/bin/sh", c[] = "-c";
    char *argv[] = {shell, c, (char *)(uintptr_t)x->config->discover, NULL};

    return ek_subprocess_begin(&x->discover, argv, 1, discover_s);
}

static ek_status end_discover(ek_supervisor *x, int status)
{
    char *text = status == 0 ? ek_subprocess_output(&x->discover) : NULL;
    ek_status st;

    ek_subprocess_end(&x->discover);
    EK_REQUIRE(status == 0, EK_EFORMAT,
               "--discover: \"%s\" %s%d; it must print hosts, one per line, and exit with status 0",
               x->config->discover,
               status >= EK_SUBPROCESS_KILLED ? "was killed, or took more seconds than "
                                              : "exited with status ",
               status >= EK_SUBPROCESS_KILLED ? (int)discover_s : status);
    EK_REQUIRE(text != NULL, EK_ENOMEM, "no memory for the output of --discover");
    st = ek_host_list_parse("--discover", text, &x->listed);
    free(text);
    return st;
}

void ek_supervisor_poll_discover(ek_supervisor *x)
{
    int status = x->discover.pid > 0 ? ek_subprocess_poll(&x->discover) : EK_SUBPROCESS_RUNNING;

    if (status != EK_SUBPROCESS_RUNNING)
        answer_list(x, end_discover(x, status));
}

static ek_status read_list(ek_supervisor *x)
{
    ek_status st;

    if (x->config->discover == NULL) {
        answer_list(x, ek_host_list_read(x->config->hosts, &x->listed));
        return EK_OK;
    }
    st = begin_discover(x);
    if (st < 0 && x->core.state != EK_CORE_LISTING)
        answer_list(x, st);
    return x->core.state == EK_CORE_LISTING ? st : EK_OK;
}

/* --- commands on hosts ------------------------------------------------------------------------ */

/* Runs this program with these arguments on hosts, one rank on each. */
static ek_status run_on(ek_supervisor *x, int key, const int *hosts, int n, char **argv, int argc)
{
    char *list = NULL;
    size_t bytes;
    FILE *f = open_memstream(&list, &bytes);
    ek_subprocess *run;
    ek_status st = EK_OK;

    EK_REQUIRE(f != NULL, EK_ENOMEM, "no memory for %d hosts", n);
    for (int i = 0; i < n; i++)
        fprintf(f, "%s%s:1", i > 0 ? "," : "", ek_core_hosts_name(&x->core.hosts, hosts[i]));
    EK_REQUIRE(fclose(f) == 0, EK_ENOMEM, "no memory for %d hosts", n);
    EK_TRY_OUT(ek_tasks_add(&x->tasks, key, &run));
    st = ek_subprocess_run(run, x->config, x->mpiexec, n, list, argv, argc, 0);
    if (st < 0)
        ek_tasks_remove(&x->tasks, key);
out:
    free(list);
    return st;
}

static ek_status run_internal(ek_supervisor *x, int key, const int *hosts, int n,
                              const ek_internal_call *call)
{
    ek_internal_args args;

    EK_TRY(ek_internal_write(call, &args));
    return run_on(x, key, hosts, n, args.argv, args.argc);
}

static ek_status run_links(ek_supervisor *x, int key, const int *hosts, int n)
{
    return run_internal(x, key, hosts, n, &(ek_internal_call){.kind = EK_INTERNAL_LINKS});
}

/* A suspect host and those in use. */
static ek_status run_host_links(ek_supervisor *x, const ek_core_action *a)
{
    int *hosts = malloc((size_t)(a->n + 1) * sizeof(*hosts));
    ek_status st;

    EK_REQUIRE(hosts != NULL, EK_ENOMEM, "no memory for %d hosts", a->n + 1);
    hosts[0] = a->host;
    memcpy(hosts + 1, a->hosts, (size_t)a->n * sizeof(*hosts));
    st = run_links(x, a->host, hosts, a->n + 1);
    free(hosts);
    return st;
}

static ek_status run_probe(ek_supervisor *x, int host)
{
    char version[] = "--version", *argv[] = {version};

    return run_on(x, host, &host, 1, argv, 1);
}

static ek_status run_free(ek_supervisor *x, int host)
{
    ek_internal_call call = {
        .kind = EK_INTERNAL_FREE, .run = x->run.run, .supervisor_id = x->run.supervisor_id};

    return run_internal(x, host, &host, 1, &call);
}

/* One rank per slot. */
static ek_status run_prealloc(ek_supervisor *x, int host)
{
    const ek_core_host *h = &x->core.hosts.host[ek_core_hosts_index(&x->core.hosts, host)];
    ek_internal_call call = {.kind = EK_INTERNAL_RESERVE,
                             .run = x->run.run,
                             .supervisor_id = x->run.supervisor_id,
                             .host = host,
                             .ranks = h->host.slots};

    memcpy(call.blocks, x->run.blocks, sizeof(call.blocks));
    EK_TRY(ek_path_absolute(x->config->out, &call.out));
    return run_internal(x, host, &host, 1, &call);
}

/* While workers run, or at the end, a command that cannot be started is like a host that does not
 * respond. */
static ek_status run_task(ek_supervisor *x, const ek_core_action *a)
{
    ek_status st = a->task == EK_TASK_PROBE      ? run_probe(x, a->host)
                   : a->task == EK_TASK_LINKS    ? run_host_links(x, a)
                   : a->task == EK_TASK_PREALLOC ? run_prealloc(x, a->host)
                                                 : run_free(x, a->host);

    if (st == EK_OK || (x->core.state < EK_CORE_RUNNING && a->task != EK_TASK_FREE))
        return st;
    answer(x, &(ek_core_event){
                  .kind = EK_CORE_TASK_ENDED, .host = a->host, .result = EK_RESULT_NOT_STARTED});
    return EK_OK;
}

/* --- the workers ------------------------------------------------------------------------------ */

/* The hosts of the ranks, in their order; empty: this host. */
static ek_status hosts_of_ranks(const ek_supervisor *x, ek_host_list *out)
{
    const ek_core_hosts *h = &x->core.hosts;

    if (x->listed.n > 0 && !x->core.cfg.listed) /* fixed: without --elastic */
        return ek_host_list_copy(&x->listed, out);
    *out = (ek_host_list){.host = calloc((size_t)h->n + 1, sizeof(*out->host))};
    EK_REQUIRE(out->host != NULL, EK_ENOMEM, "no memory for %d hosts", h->n);
    for (int draining = 0; draining < 2; draining++)
        for (int i = 0; i < h->n; i++) {
            const ek_core_host *y = &h->host[i];

            if (y->draining != draining || (y->used == 0 && !draining))
                continue;
            out->host[out->n] = y->host;
            out->host[out->n++].slots = draining ? 1 : y->used;
        }
    return EK_OK;
}

/* Seconds since the first step of as many hosts as are in use; at least 1. */
static int64_t host_seconds(const ek_core *c)
{
    double s = (double)(c->seen - c->history.began_at) / 1e9 * ek_core_hosts_in_use(&c->hosts);

    return c->history.began_at > 0 && s > 1 ? (int64_t)s : 1;
}

static ek_status start(ek_supervisor *x)
{
    ek_launched launched = {.ranks = x->core.ranks + x->core.n_draining,
                            .live = x->config->live,
                            .elastic = x->config->elastic,
                            .supervisor_id = x->run.supervisor_id,
                            .n_draining = x->core.n_draining,
                            .least_step = x->core.least_step,
                            .lost_hosts = x->core.history.lost_hosts,
                            .host_s = host_seconds(&x->core)};
    ek_host_list hosts = {0};
    ek_mpiexec_args args = {0};
    ek_rack_slots *racks = NULL;
    char *list = NULL;
    ek_status st = EK_OK;

    x->run.taken = x->run.copied = x->run.received = x->run.prealloc = 0;
    EK_TRY_OUT(hosts_of_ranks(x, &hosts));
    if (hosts.n > 0)
        EK_TRY_OUT(ek_host_list_text(&hosts, &list));
    EK_TRY_OUT(ek_host_list_racks(&hosts, &racks));
    EK_TRY_OUT(ek_racks_set(racks, racks != NULL ? hosts.n : 0));
    EK_TRY_OUT(ek_mpiexec_args_init(x->config, x->mpiexec, launched.ranks, list, &args));
    EK_TRY_OUT(ek_generation_start(&x->generation, x->config->command, &launched, args.argv,
                                   &x->mask, &hosts, x->on_message));
out:
    ek_mpiexec_args_fini(&args);
    ek_host_list_free(&hosts);
    free(list);
    free(racks);
    return st;
}

ek_status ek_supervisor_perform(ek_supervisor *x, const ek_core_action *a)
{
    switch (a->kind) {
    case EK_CORE_READ_LIST: return read_list(x);
    case EK_CORE_RUN_TASK: return run_task(x, a);
    case EK_CORE_CANCEL_TASK: ek_tasks_remove(&x->tasks, a->host); break;
    case EK_CORE_RUN_LINK_JOB: return run_links(x, EK_LINK_JOB_KEY(a->job), a->hosts, a->n);
    case EK_CORE_CANCEL_LINK_JOB: ek_tasks_remove(&x->tasks, EK_LINK_JOB_KEY(a->job)); break;
    case EK_CORE_START: return start(x);
    case EK_CORE_KILL:
        x->generation.job.death_unseen = 1;
        ek_generation_signal(&x->generation, SIGKILL);
        break;
    case EK_CORE_FORWARD_INTERRUPT: ek_generation_signal(&x->generation, SIGUSR1); break;
    case EK_CORE_REPORT: ek_report(x, a); break;
    case EK_CORE_EXIT: x->status = ek_report_exit(x, a->exit); break;
    }
    return EK_OK;
}
