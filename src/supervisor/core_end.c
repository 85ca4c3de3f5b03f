/* The end of a generation: whether another one follows, and the status of the job. */
#include "base/command.h"
#include "supervisor/core_priv.h"

/* Counts a worker as started once it connects, even if it is killed before its message arrives
 * through mpiexec, or once mpiexec reports its death by a signal. */
static int any_worker_started(const ek_core_reported *r)
{
    return r->killed || r->started > 0 || r->watched > 0 || r->closed > 0;
}

/* Whether to restart: only if workers have ever started, and not after too many losses in a row
 * without a completed step, or, where the run went back each time, without a new one. */
static int may_restart(ek_core *c)
{
    ek_core_history *t = &c->history;
    /* Not all steps that were written were reported, and repeated ones have earlier numbers. */
    int completed = t->written > t->steps || c->reported.steps >= 0;

    t->failed = completed ? 0 : t->failed + 1;
    t->behind = t->written > t->furthest ? 0 : t->behind + 1;
    t->furthest = t->written > t->furthest ? t->written : t->furthest;
    t->steps = t->written; /* decreases after a restart from a checkpoint */
    return c->cfg.elastic && t->any_started && c->interrupts == 0 &&
           t->failed <= EK_CORE_FAILED_MAX && t->behind <= EK_CORE_BEHIND_MAX;
}

/* Whether the first reported failure may concern that rank's host only, while it holds no state of
 * the run yet. */
static int is_of_one_host(const ek_core *c)
{
    return c->cfg.elastic && c->cfg.listed && c->n_draining == 0 && c->interrupts == 0 &&
           !c->reported.lost && c->reported.reporter > 0 && c->progress.phase <= EK_PHASE_PLAN;
}

/* A worker has reported a failure: restarts without its host, or if it only lost another rank. */
static void end_after_failure(ek_core *c, int64_t now)
{
    int host = -1;
    double s = 0;

    if (is_of_one_host(c))
        host = ek_core_hosts_exclude(&c->hosts, c->reported.reporter, now, &s);
    c->restart = host >= 0 || (c->reported.lost && may_restart(c));
    c->status = c->reported.status;
    ek_core_report_on(c, EK_REPORT_FAILURE, host, s);
}

/* The hosts that responded do not hold the whole state: waits for others. */
static void end_incomplete(ek_core *c, int64_t now)
{
    c->restart = 1;
    c->status = c->interrupts > 0 ? EK_EXIT_INTERRUPTED : EK_EXIT_FAILED;
    ek_core_wait_for_late(c, now);
}

/* The interrupted step has not changed any state. */
static void end_to_change_hosts(ek_core *c)
{
    c->restart = 1;
    c->search.skip_probe = c->ending.reason == EK_REASON_REGROUP;
    if (c->search.skip_probe)
        c->history.failed = 0; /* a step was completed */
    ek_core_report_on(c, EK_REPORT_END, -1, 0);
}

static void end_well(ek_core *c)
{
    if (c->n_draining > 0) {
        ek_core_hosts_drained(&c->hosts);
        c->drain_incomplete |= c->reported.incomplete;
        c->restart = 1;
    }
    c->status = EK_EXIT_DONE;
    ek_core_report_on(c, EK_REPORT_END, -1, 0);
}

/* Lost without a report of a worker. */
static void end_after_loss(ek_core *c)
{
    c->restart = may_restart(c);
    c->status = c->interrupts > 0 ? EK_EXIT_INTERRUPTED : EK_EXIT_FAILED;
    ek_core_report_on(c, EK_REPORT_LOSS, -1, 0);
}

/* Completed steps decrease if the run went back to an earlier state. */
static void count_steps(ek_core *c, int64_t written)
{
    int64_t said = c->resumed ? c->reported.steps : c->history.done;

    c->history.written = written;
    c->history.done = written > said ? written : said;
}

void ek_core_end(ek_core *c, int64_t written, int64_t now)
{
    ek_core_reported *r = &c->reported;
    ek_core_reason why = c->ending.reason;
    int drained = c->n_draining > 0 && c->ending.code == 0;

    c->history.generations++;
    c->history.any_started |= any_worker_started(r);
    count_steps(c, written);
    if (why != EK_REASON_HAND_OVER && !drained) {
        ek_core_hosts_forget_notices(&c->hosts); /* Open MPI sends SIGTERM when a rank dies */
        c->search.unproven = r->steps < 0 && (r->failed == 0 || r->lost) && !ek_core_lacks_state(c);
    }
    if (ek_core_lacks_state(c))
        end_incomplete(c, now);
    else if (r->failed > 0)
        end_after_failure(c, now);
    else if (c->ending.code == 0)
        end_well(c);
    else if ((why == EK_REASON_REGROUP || why == EK_REASON_HAND_OVER) && c->interrupts == 0)
        end_to_change_hosts(c);
    else
        end_after_loss(c);
}
