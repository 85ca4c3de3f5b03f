/* A generation: what its workers report, when it is ended to change hosts, and when mpiexec is
 * killed. */
#include "base/command.h"
#include "supervisor/core_priv.h"

#include <stdlib.h>

static const int64_t second = 1000000000;
static const int64_t poll_ns = 100000000;
/* How long to wait for the end of a step: a host being reclaimed may be gone soon after. */
static const int64_t leave_ns = 5000000000;
enum { UNREACHED_MAX = 1 };

ek_status ek_core_run_begin(ek_core *c, int64_t now)
{
    int n = c->ranks + c->n_draining;

    free(c->reported.worker);
    c->reported = (ek_core_reported){.worker = calloc((size_t)n, 1), .n = n, .steps = -1};
    EK_REQUIRE(c->reported.worker != NULL, EK_ENOMEM, "no memory for %d workers", n);
    EK_TRY(ek_heartbeats_begin(&c->heartbeats, n));
    c->ending = (ek_core_ending){.code = -1, .more_since = -1};
    c->resumed = c->restart = 0;
    c->search.polled_at = now;
    ek_job_progress_begin(&c->progress, now);
    c->state = EK_CORE_RUNNING;
    return EK_OK;
}

/* --- what workers report ---------------------------------------------------------------------- */

static void note_worker(ek_core *c, int rank, unsigned char how, int64_t now)
{
    ek_core_reported *r = &c->reported;

    if (rank < 0 || rank >= r->n)
        return;
    r->started += r->worker[rank] == 0;
    r->joined += how == EK_WORKER_JOINED && (r->worker[rank] & EK_WORKER_JOINED) == 0;
    r->worker[rank] |= how;
    ek_heartbeats_hear(&c->heartbeats, rank, now);
    if (r->started == r->n && c->progress.phase == EK_PHASE_LAUNCH)
        ek_job_progress_enter(&c->progress, EK_PHASE_CONNECT, now);
    if (r->joined == r->n && c->progress.phase == EK_PHASE_CONNECT)
        ek_job_progress_enter(&c->progress, EK_PHASE_PLAN, now);
}

static void note_failure(ek_core_reported *r, const ek_core_event *e)
{
    if (r->failed++ > 0)
        return;
    r->reporter = e->rank;
    r->status = e->status;
    r->lost = e->lost;
}

static void note_step(ek_core *c, const ek_core_event *e)
{
    ek_core_reported *r = &c->reported;

    r->first_step = r->steps < 0 ? e->step - 1 : r->first_step;
    r->steps = e->step;
    r->is_last = e->step >= e->all;
    ek_job_progress_step(&c->progress, e->now);
}

static void note_phase(ek_core *c, int phase, int64_t now)
{
    if (phase >= 0 && phase < EK_PHASES)
        ek_job_progress_enter(&c->progress, (ek_phase)phase, now);
    ek_job_progress_alive(&c->progress, now);
}

/* Consecutive looks at which a remote launcher of mpiexec had failed while workers were missing: a
 * host that responded to the probe cannot be reached any more, and mpiexec hangs. */
static void note_reach(ek_core *c, int failed)
{
    c->ending.unreached =
        c->reported.joined < c->reported.n && failed > 0 ? c->ending.unreached + 1 : 0;
}

static void note(ek_core *c, const ek_core_event *e)
{
    ek_core_reported *r = &c->reported;

    switch (e->kind) {
    case EK_CORE_WORKER_WATCHED: r->watched++; break;
    case EK_CORE_WORKER_CLOSED:
        r->closed++;
        r->died |= e->rank >= 0;
        break;
    case EK_CORE_WORKER_STARTED: note_worker(c, e->rank, EK_WORKER_STARTED, e->now); break;
    case EK_CORE_WORKER_JOINED: note_worker(c, e->rank, EK_WORKER_JOINED, e->now); break;
    case EK_CORE_WORKER_FAILED: note_failure(r, e); break;
    case EK_CORE_DEATH: r->killed = 1; break;
    case EK_CORE_PHASE: note_phase(c, e->phase, e->now); break;
    case EK_CORE_STEP: note_step(c, e); break;
    case EK_CORE_RECOVERED:
        r->recovered = 1;
        ek_core_hosts_recovered(&c->hosts);
        ek_job_progress_alive(&c->progress, e->now);
        break;
    case EK_CORE_INCOMPLETE:
        r->incomplete = 1;
        r->begins = e->step;
        break;
    case EK_CORE_SIZES: c->hosts.can_prealloc = e->result; break;
    case EK_CORE_LAYOUT:
        c->cfg.sizes = e->sizes;
        c->cfg.unit = ek_mesh_rank_multiple(&e->sizes);
        break;
    case EK_CORE_NOTICE: ek_core_hosts_notice(&c->hosts, e->rank); break;
    case EK_CORE_ALIVE: ek_heartbeats_hear(&c->heartbeats, e->rank, e->now); break;
    case EK_CORE_LEAVING: ek_heartbeats_leave(&c->heartbeats, e->rank); break;
    case EK_CORE_REACHED: note_reach(c, e->result); break;
    case EK_CORE_MPIEXEC_ENDED:
        c->ending.ended = 1;
        c->ending.code = e->result;
        break;
    case EK_CORE_INTERRUPT:
        if (c->interrupts > 1 || r->joined < r->n)
            c->ending.kill_at = e->now; /* not all workers can be signalled yet */
        break;
    default: break;
    }
}

/* --- the first step --------------------------------------------------------------------------- */

static void add_resumption(ek_core_history *h, const ek_core_resumption *r, int64_t now)
{
    if (h->began_at == 0)
        h->began_at = now;
    h->resumed += r->total_s > 0;
    h->resumed_s += r->total_s;
    h->repeated += r->repeated;
}

static void note_first_step(ek_core *c, int64_t now)
{
    ek_core_reported *r = &c->reported;
    ek_core_times *t = &c->times;

    c->resumed = 1;
    ek_core_hosts_step_done(&c->hosts);
    c->resumption = (ek_core_resumption){
        .times = *t,
        .total_s = t->seen_at > 0 ? (double)(now - t->seen_at) / 1e9 : 0,
        .repeated = c->history.done > r->first_step ? c->history.done - r->first_step : 0,
        .incomplete = r->incomplete || c->drain_incomplete,
        .from_memory = r->recovered && !c->drain_incomplete};
    add_resumption(&c->history, &c->resumption, now);
    ek_core_report_on(c, EK_REPORT_FIRST_STEP, -1, 0);
    t->seen_at = 0;
    t->drain_s = 0;
    c->drain_incomplete = 0;
}

/* --- changes of hosts ------------------------------------------------------------------------- */

static void end_for(ek_core *c, ek_core_reason why, int64_t now)
{
    c->ending.reason = why;
    c->ending.kill_at = now;
}

/* Whether to start again with more hosts: their memory is preallocated, no further host is about to
 * respond, and a step has ended since. */
static int may_regroup(ek_core *c, int64_t now)
{
    int64_t wanted = c->cfg.ranks > 0 ? c->cfg.ranks : INT64_MAX;

    if (ek_core_ranks_on(c, ek_core_hosts_slots(&c->hosts, now)) <= c->ranks ||
        ek_core_hosts_prealloc(&c->hosts, wanted, now, &c->actions)) {
        c->ending.more_since = -1;
        return 0;
    }
    if (c->ending.more_since < 0 || ek_core_hosts_is_probe_pending(&c->hosts, now))
        c->ending.more_since = c->reported.steps;
    return c->reported.steps > c->ending.more_since;
}

/* Whether to drain a leaving host now: the others suffice to continue, and a step has ended since
 * its notice or takes too long. */
static int may_hand_over(ek_core *c, int64_t now)
{
    ek_core_ending *g = &c->ending;

    if (!ek_core_hosts_has_leaving(&c->hosts) ||
        ek_core_ranks_on(c, ek_core_hosts_slots(&c->hosts, now)) == 0) {
        g->leave_at = 0;
        return 0;
    }
    if (g->leave_at == 0) {
        g->leave_at = now;
        g->leave_since = c->reported.steps;
    }
    return c->reported.steps > g->leave_since ||
           (c->progress.phase == EK_PHASE_STEP && now - g->leave_at > leave_ns);
}

static void poll_hosts(ek_core *c, int64_t now)
{
    if (now - c->search.polled_at >= poll_ns) {
        c->search.polled_at = now;
        if (c->n_draining == 0 && now >= c->search.read_at)
            ek_core_read_list(c, now);
        if (c->n_draining == 0)
            ek_core_hosts_poll(&c->hosts, now, &c->actions);
    }
    if (c->ending.unreached > UNREACHED_MAX) {
        end_for(c, EK_REASON_UNREACHABLE, now);
        return;
    }
    if (c->n_draining > 0 || c->reported.is_last)
        return;
    if (may_hand_over(c, now)) {
        ek_core_hosts_ignore_notices(&c->hosts);
        end_for(c, EK_REASON_HAND_OVER, now);
    } else if (c->ending.leave_at == 0 && c->reported.steps > 0 && may_regroup(c, now)) {
        end_for(c, EK_REASON_REGROUP, now);
    }
}

/* --- timers ----------------------------------------------------------------------------------- */

static void note_end_seen(ek_core *c, int64_t now)
{
    ek_core_times *t = &c->times;

    if (t->end_seen != 0)
        return;
    t->end_seen = now;
    t->seen_at = t->seen_at != 0 ? t->seen_at : now; /* pending from an earlier generation */
}

/* Whether a worker does not run any more.  A start after others that completed no step, as one was
 * silent, has more time. */
static int is_any_silent(ek_core *c)
{
    double timeout_s = ek_heartbeats_timeout_s(&c->heartbeats, 1 << c->history.failed);

    c->ending.silent = ek_heartbeats_silent(&c->heartbeats, timeout_s);
    c->ending.silent_s = timeout_s;
    return c->ending.silent >= 0;
}

static void watch_elastic(ek_core *c, int64_t now)
{
    const ek_core_reported *r = &c->reported;
    const ek_core_ending *g = &c->ending;

    if (!c->resumed && r->steps > 0)
        note_first_step(c, now);
    if (!g->ended && r->failed == 0 && r->closed == 0 && g->kill_at == 0) {
        if (ek_job_progress_hangs(&c->progress, now))
            end_for(c, EK_REASON_HUNG, now);
        else if (is_any_silent(c))
            end_for(c, EK_REASON_SILENT, now);
        else if (c->cfg.listed && g->reason == EK_REASON_NONE && c->interrupts == 0)
            poll_hosts(c, now);
        if (g->kill_at == 0)
            return;
    }
    note_end_seen(c, now);
}

/* Forwards an interrupt.  With --elastic, workers that have not reached the first step may be
 * waiting for others, so they get a short grace period; the state they start from stays in shared
 * memory or in a checkpoint, for the same command. */
static void forward_interrupt(ek_core *c, int64_t now)
{
    ek_core_ending *g = &c->ending;

    if (!g->forwarded && g->kill_at == 0) {
        ek_core_act(&c->actions, &(ek_core_action){.kind = EK_CORE_FORWARD_INTERRUPT, .host = -1});
        g->forwarded = 1;
        g->short_grace = c->cfg.elastic && c->progress.phase < EK_PHASE_STEP;
        g->kill_at = g->short_grace ? now + 3 * second / 4 : 0;
    } else if (g->short_grace && c->interrupts == 1 && c->progress.phase >= EK_PHASE_STEP) {
        g->short_grace = 0;
        g->kill_at = 0;
    }
}

/* When mpiexec is killed although it still runs: a worker has failed or ended, which mpiexec may
 * not notice.  Workers that end regularly get a minute: on a busy machine the last ones and mpiexec
 * itself need seconds.  0: never. */
static int64_t kill_time(const ek_core *c, int64_t now)
{
    const ek_core_reported *r = &c->reported;
    int failed = r->failed > 0 && r->status != EK_EXIT_INTERRUPTED;
    int lost = failed || r->died;

    if (!failed && r->closed == 0 && !(c->cfg.elastic && r->failed > 0))
        return 0;
    return now + (!lost ? 60 * second : c->cfg.elastic ? second / 4 : 5 * second);
}

static void run_timers(ek_core *c, int64_t now)
{
    const ek_core_reported *r = &c->reported;
    ek_core_ending *g = &c->ending;
    int64_t kill_at;

    if (c->interrupts > 0 && r->joined == r->n && !g->ended)
        forward_interrupt(c, now);
    if (c->cfg.elastic)
        watch_elastic(c, now);
    else if (g->kill_at == 0 && r->joined < r->n && ek_job_progress_hangs(&c->progress, now))
        end_for(c, EK_REASON_HUNG, now);
    kill_at = kill_time(c, now);
    if (kill_at != 0 && (g->kill_at == 0 || kill_at < g->kill_at)) /* a loss shortens the time */
        g->kill_at = kill_at;
    if (g->kill_at == 0 || now < g->kill_at || g->ended || g->kill_sent)
        return;
    g->kill_sent = 1;
    ek_core_act(&c->actions, &(ek_core_action){.kind = EK_CORE_KILL, .host = -1});
}

void ek_core_run_take(ek_core *c, const ek_core_event *e)
{
    note(c, e);
    run_timers(c, e->now);
    if (e->kind != EK_CORE_OUTPUT_ENDED || !c->ending.ended)
        return;
    ek_core_end(c, e->step, e->now);
    if (c->restart && c->interrupts == 0)
        ek_core_search_begin(c, e->now);
    else
        ek_core_exit_for(c, c->restart ? EK_CORE_EXIT_INTERRUPTED : EK_CORE_EXIT_JOB, e->now);
}
