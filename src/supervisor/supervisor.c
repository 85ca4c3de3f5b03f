/* The supervisor's event loop: turns what happens (messages of workers, the end of processes,
 * signals, time) into events of the decision core, and performs its actions. */
#include "supervisor/supervisor.h"

#include "evenkeel/job.h"

#include "base/clock.h"
#include "base/command.h"
#include "base/file.h"
#include "base/random.h"
#include "supervisor/cleanup.h"
#include "supervisor/limits.h"
#include "supervisor/mpiexec.h"
#include "supervisor/perform.h"
#include "supervisor/run_steps.h"
#include "supervisor/state.h"
#include "supervisor/wait_report.h"
#include "train/output/layout_in_use.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

/* Waits for events: while workers run; while commands run before them; otherwise. */
enum { RUNNING_MS = 50, SEARCHING_MS = 2, WAITING_MS = 50 };

static const int64_t second = 1000000000;
static const int64_t reached_ns = 100000000;
/* Interval of reading the host file, and of running --discover. */
static const double list_s = 1, discover_every_s = 5;

/* --- events ----------------------------------------------------------------------------------- */

static ek_status perform_all(ek_supervisor *x)
{
    for (size_t i = 0; i < x->core.actions.n; i++)
        EK_TRY(ek_supervisor_perform(x, &x->core.actions.action[i]));
    return EK_OK;
}

static ek_status take(ek_supervisor *x, ek_core_event *e)
{
    e->now = ek_clock_ns();
    EK_TRY(ek_core_take(&x->core, e));
    if (x->core.times.seen_at != x->said.seen_at) {
        x->said.seen_at = x->core.times.seen_at;
        x->said.seen_epoch = x->said.seen_at != 0 ? ek_clock_epoch_s() : x->said.seen_epoch;
    }
    return perform_all(x);
}

/* Takes an answer; the list that belongs to it is free for the next one meanwhile. */
static ek_status take_answer(ek_supervisor *x, ek_core_event *e)
{
    ek_host_list list = {0};
    ek_status st;

    if (e->kind == EK_CORE_LIST) {
        list = x->listed;
        x->listed = (ek_host_list){0};
    }
    st = take(x, e);
    ek_host_list_free(&list);
    return st;
}

/* Takes the event, and the answers to actions that have one at once.  A failure was reported; the
 * core is then told to end. */
static void feed(ek_supervisor *x, ek_core_event e)
{
    ek_status st = take(x, &e);

    for (int i = 0; i < x->n_answers && st == EK_OK; i++) {
        ek_core_event next = x->answer[i];

        st = take_answer(x, &next);
    }
    x->n_answers = 0;
    if (st == EK_OK || x->core.state >= EK_CORE_FREEING)
        return;
    x->status = ek_command_fail(x->config->command, st);
    ek_generation_signal(&x->generation, SIGKILL); /* closed in run_events(): a line of its output
                                                      may be the cause */
    e = (ek_core_event){.kind = EK_CORE_ABANDON};
    if (take(x, &e) < 0)
        x->core.state = EK_CORE_DONE;
}

static void feed_kind(ek_supervisor *x, ek_core_event_kind kind)
{
    feed(x, (ek_core_event){.kind = kind});
}

static void take_recovered(ek_supervisor *x, const ek_worker_message *m)
{
    x->run.taken = m->recovered.taken;
    x->run.copied = m->recovered.copied;
    x->run.received = m->recovered.received;
    x->run.prealloc = m->recovered.prealloc;
    feed_kind(x, EK_CORE_RECOVERED);
}

/* The number of ranks is that of the layout in use, which workers may have changed. */
static void take_layout(ek_supervisor *x)
{
    ek_pool_layout l;
    const int64_t *v = l.choice.value;
    int found;

    if (!x->config->layout_changes || !x->config->elastic ||
        ek_layout_in_use_read(x->config->out, &l, &found) < 0 || !found)
        return; /* what is wrong with the file its workers say */
    feed(x, (ek_core_event){.kind = EK_CORE_LAYOUT,
                            .sizes = {(int)v[EK_CHOICE_PP], (int)v[EK_CHOICE_TP],
                                      (int)v[EK_CHOICE_EP], (int)v[EK_CHOICE_ETP]}});
}

static void take_memory(ek_supervisor *x, const ek_worker_message *m)
{
    int is_known = strcmp(m->memory.blocks, EK_MESSAGE_NO_BLOCKS) != 0;

    x->run.run = m->memory.run;
    snprintf(x->run.blocks, sizeof(x->run.blocks), "%s", is_known ? m->memory.blocks : "");
    feed(x, (ek_core_event){.kind = EK_CORE_SIZES, .result = is_known});
    take_layout(x);
}

static void take_message(void *context, const ek_worker_message *m)
{
    ek_supervisor *x = context;

    switch (m->kind) {
    case EK_MESSAGE_START:
        feed(x, (ek_core_event){.kind = EK_CORE_WORKER_STARTED, .rank = m->worker.rank});
        break;
    case EK_MESSAGE_JOINED:
        feed(x, (ek_core_event){.kind = EK_CORE_WORKER_JOINED, .rank = m->worker.rank});
        break;
    case EK_MESSAGE_FAILED:
        feed(x, (ek_core_event){.kind = EK_CORE_WORKER_FAILED,
                                .rank = m->failed.rank,
                                .status = m->failed.status,
                                .lost = m->failed.lost});
        break;
    case EK_MESSAGE_PHASE:
        feed(x, (ek_core_event){.kind = EK_CORE_PHASE, .phase = ek_phase_of(m->phase.name)});
        break;
    case EK_MESSAGE_STEP:
        feed(x, (ek_core_event){.kind = EK_CORE_STEP, .step = m->step.done, .all = m->step.total});
        break;
    case EK_MESSAGE_RECOVERED: take_recovered(x, m); break;
    case EK_MESSAGE_LACKING:
        feed(x, (ek_core_event){.kind = EK_CORE_INCOMPLETE, .step = m->lacking.step});
        break;
    case EK_MESSAGE_NO_ROOM:
        if (x->config->no_room != NULL)
            *x->config->no_room = 1;
        break;
    case EK_MESSAGE_MEMORY: take_memory(x, m); break;
    case EK_MESSAGE_NOTICE:
        feed(x, (ek_core_event){.kind = EK_CORE_NOTICE, .rank = m->notice.rank});
        break;
    case EK_MESSAGE_ALIVE:
        feed(x, (ek_core_event){.kind = EK_CORE_ALIVE, .rank = m->notice.rank});
        break;
    case EK_MESSAGE_LEAVING:
        feed(x, (ek_core_event){.kind = EK_CORE_LEAVING, .rank = m->notice.rank});
        break;
    case EK_MESSAGES: break;
    }
}

/* --- what has happened ------------------------------------------------------------------------ */

static void take_mpiexec_end(ek_supervisor *x)
{
    ek_generation *g = &x->generation;
    int status = g->wait_status;

    g->drain_until = ek_clock_ns() + (x->core.interrupts > 0 ? second / 4 : 2 * second);
    feed(x, (ek_core_event){.kind = EK_CORE_MPIEXEC_ENDED,
                            .result = WIFEXITED(status) ? WEXITSTATUS(status) : -1});
}

static void take_signals(ek_supervisor *x)
{
    struct signalfd_siginfo info;

    while (read(x->signals, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        if (info.ssi_signo != SIGCHLD)
            feed_kind(x, EK_CORE_INTERRUPT);
        else if (ek_generation_has_ended(&x->generation))
            take_mpiexec_end(x);
    }
}

static void take_connections(ek_supervisor *x)
{
    ek_worker_watch *w = &x->generation.watch;
    int watched = w->watched, ended = w->ended, first = w->first;

    ek_worker_watch_poll(w);
    for (; watched < w->watched; watched++)
        feed_kind(x, EK_CORE_WORKER_WATCHED);
    for (; ended < w->ended; ended++)
        feed(x, (ek_core_event){.kind = EK_CORE_WORKER_CLOSED, .rank = first < 0 ? w->first : -1});
}

_Static_assert((int)EK_RESULT_KILLED == (int)EK_SUBPROCESS_KILLED &&
                   (int)EK_RESULT_STUCK == (int)EK_SUBPROCESS_STUCK,
               "results of tasks are those of their subprocesses");

static void take_ended_tasks(ek_supervisor *x)
{
    ek_core_event e = {0};
    int key;

    while (ek_tasks_next_ended(&x->tasks, &key, &e.result, &e.took_s)) {
        e.kind = key >= 0 ? EK_CORE_TASK_ENDED : EK_CORE_LINK_JOB_ENDED;
        e.host = key;
        e.job = EK_LINK_JOB_KEY(key); /* its own inverse */
        feed(x, e);
    }
    ek_supervisor_poll_discover(x);
    if (x->n_answers > 0)
        feed_kind(x, EK_CORE_TIME);
}

/* Whether mpiexec still reaches all hosts, while workers are missing. */
static void look_at_mpiexec(ek_supervisor *x, int64_t now)
{
    if (!x->core.cfg.listed || now - x->reached_at < reached_ns || x->generation.ended)
        return;
    x->reached_at = now;
    feed(x, (ek_core_event){.kind = EK_CORE_REACHED,
                            .result = x->core.reported.joined < x->core.reported.n &&
                                      ek_mpiexec_has_failed_launcher(x->generation.child) > 0});
}

/* The end of a generation, once mpiexec and its output have ended. */
static void take_end(ek_supervisor *x)
{
    const ek_supervisor_config *l = x->config;

    ek_generation_flush(&x->generation);
    if (x->generation.job.death.signal > 0)
        feed_kind(x, EK_CORE_DEATH);
    take_layout(x);
    feed(x,
         (ek_core_event){.kind = EK_CORE_OUTPUT_ENDED, .step = ek_run_steps(l->out, x->begin - 1)});
    ek_generation_close(&x->generation);
}

/* Lines of mpiexec that nothing has explained for a while are shown. */
static void release_held_output(ek_supervisor *x, int64_t now)
{
    ek_job_output *t = &x->generation.output;

    if (t->held_since != 0 && now - t->held_since > 3 * second && !x->generation.ended &&
        x->generation.job.reported == 0 && x->core.interrupts == 0 &&
        x->generation.watch.ended == 0)
        ek_job_output_release(t);
}

/* --- the loop --------------------------------------------------------------------------------- */

/* Whether anything may be due while workers run, so that time must be looked at. */
static int is_timed(const ek_supervisor *x)
{
    const ek_core_reported *r = &x->core.reported;

    return x->generation.ended || x->core.interrupts > 0 || r->failed > 0 ||
           x->generation.output.held_since != 0 || r->closed > 0 || x->core.cfg.elastic ||
           r->joined < r->n;
}

static int wait_ms(const ek_supervisor *x)
{
    if (x->core.state == EK_CORE_RUNNING)
        return is_timed(x) ? RUNNING_MS : -1;
    if (x->n_answers > 0 || (x->core.state == EK_CORE_FREEING && x->tasks.n == 0) ||
        (x->core.state == EK_CORE_BACKOFF && x->core.search.until <= ek_clock_ns()))
        return 0;
    return x->tasks.n > 0 || x->discover.pid > 0 ? SEARCHING_MS : WAITING_MS;
}

static void wait_for_events(ek_supervisor *x)
{
    ek_generation *g = &x->generation;
    struct pollfd p[4] = {{g->stream[0].fd, POLLIN, 0},
                          {g->stream[1].fd, POLLIN, 0},
                          {x->signals, POLLIN, 0},
                          {g->watch.fd, POLLIN, 0}};

    if (poll(p, 4, wait_ms(x)) <= 0)
        return;
    if (p[3].revents != 0) /* first: mpiexec is about to kill the other workers */
        take_connections(x);
    for (int i = 0; i < 2; i++)
        if (p[i].revents != 0 && g->stream[i].fd >= 0)
            ek_generation_read(g, i);
    if (p[2].revents != 0)
        take_signals(x);
}

static void run_events(ek_supervisor *x)
{
    while (x->core.state != EK_CORE_DONE) {
        int64_t now;

        wait_for_events(x);
        if (x->core.state >= EK_CORE_FREEING)
            ek_generation_close(&x->generation);
        take_ended_tasks(x);
        now = ek_clock_ns();
        if (x->core.state == EK_CORE_RUNNING)
            look_at_mpiexec(x, now);
        feed_kind(x, EK_CORE_TIME);
        if (x->core.state != EK_CORE_RUNNING ||
            (x->core.ending.kill_at == 0 && !x->generation.ended))
            ek_wait_report(x, now);
        release_held_output(x, now);
        if (x->core.state == EK_CORE_RUNNING && ek_generation_is_over(&x->generation, now))
            take_end(x);
    }
}

/* --- opening and closing ---------------------------------------------------------------------- */

static ek_status catch_signals(ek_supervisor *x)
{
    static const int caught[] = {SIGINT, SIGTERM, SIGHUP, SIGCHLD};
    sigset_t set;

    sigemptyset(&set);
    for (size_t i = 0; i < sizeof(caught) / sizeof(caught[0]); i++)
        if (caught[i] != SIGHUP ||
            !ek_command_ignores_hangup()) /* signalfd also receives ignored signals */
            sigaddset(&set, caught[i]);
    sigprocmask(SIG_BLOCK, &set, &x->mask);
    x->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    EK_REQUIRE(x->signals >= 0, EK_EIO, "cannot wait for signals: %s", strerror(errno));
    x->begin = time(NULL);
    return EK_OK;
}

/* --out is locked by the supervisor, not by a rank: a rank that hangs or is cut off would keep
 * later ones from taking the lock. */
static ek_status open_run(ek_supervisor *x)
{
    ek_supervised_run *r = &x->run;

    r->supervisor_id =
        ek_random_bits((uint64_t)ek_clock_ns(), (uint64_t)time(NULL), (uint64_t)getpid());
    r->made_out = ek_file_kind_of(x->config->out) == EK_FILE_NONE;
    EK_TRY(ek_folder_make(NULL, x->config->out));
    return ek_folder_lock(x->config->out, &r->lock);
}

/* Without --elastic: reads the host file, if any, and determines the number of ranks. */
static ek_status fix_ranks(ek_supervisor *x, int *ranks)
{
    const ek_supervisor_config *l = x->config;
    const ek_host_list *h = &x->listed;

    if (l->hosts != NULL)
        EK_TRY(ek_host_list_read_for(l->hosts, l->ranks, &x->listed));
    EK_REQUIRE(h->n == 0 || l->ranks <= (int64_t)h->n * EK_HOST_RANKS_MAX, EK_EINVAL,
               "--ranks %d is more than %d processes on each of %d hosts", l->ranks,
               EK_HOST_RANKS_MAX, h->n);
    *ranks = l->ranks > 0 ? l->ranks : h->n > 0 ? (int)ek_host_list_slots(h) : 1;
    return EK_OK;
}

static ek_status open_supervisor(ek_supervisor *x)
{
    const ek_supervisor_config *l = x->config;
    ek_core_config core = {.ranks = l->ranks,
                           .unit = l->unit,
                           .sizes = l->sizes,
                           .elastic = l->elastic,
                           .listed = l->elastic && (l->hosts != NULL || l->discover != NULL),
                           .list_s = l->discover != NULL ? discover_every_s : list_s,
                           .watchdog_s = l->watchdog};

    x->mpiexec = getenv("EK_MPIEXEC");
    if (x->mpiexec == NULL)
        x->mpiexec = ek_job_launcher();
    EK_REQUIRE(x->mpiexec[0] != '\0', EK_EINVAL,
               "--ranks, --hosts and --elastic need MPI, which this evenkeel was built without "
               "(EK_MPI=ON)");
    ek_cleanup_open();
    EK_TRY(ek_generation_init(&x->generation));
    EK_TRY(catch_signals(x));
    if (l->elastic) {
        EK_TRY(open_run(x));
        core.steps = ek_run_steps(l->out, 0);
    } else {
        EK_TRY(fix_ranks(x, &core.ranks));
        core.unit = 1;
        core.sizes = (ek_mesh_sizes){0};
    }
    EK_TRY(ek_core_begin(&x->core, &core, ek_clock_ns()));
    return perform_all(x);
}

/* Removes --out again if this supervisor created it and it is empty. */
static void close_run(ek_supervisor *x)
{
    if (x->run.lock < 0)
        return;
    if (x->status != EK_EXIT_DONE && x->run.made_out)
        (void)!rmdir(x->config->out);
    close(x->run.lock);
}

static void close_supervisor(ek_supervisor *x)
{
    ek_tasks_fini(&x->tasks);
    ek_subprocess_end(&x->discover);
    ek_generation_fini(&x->generation);
    close_run(x);
    ek_core_fini(&x->core);
    ek_host_list_free(&x->listed);
    if (x->signals >= 0) {
        close(x->signals);
        sigprocmask(SIG_SETMASK, &x->mask, NULL);
    }
    ek_cleanup_close();
}

int ek_supervise(const ek_supervisor_config *config)
{
    ek_supervisor x = {
        .config = config,
        .core = {.state = EK_CORE_DONE},
        .generation = {.watch = {.fd = -1, .door = -1}, .stream = {{.fd = -1}, {.fd = -1}}},
        .on_message = {take_message, &x},
        .discover = {.out = -1},
        .run = {.lock = -1},
        .said = {.wait_of = -1},
        .signals = -1,
        .status = EK_EXIT_FAILED};
    ek_status st = open_supervisor(&x);

    if (st < 0)
        x.status = ek_command_fail(config->command, st);
    else
        run_events(&x);
    close_supervisor(&x);
    return x.status;
}
