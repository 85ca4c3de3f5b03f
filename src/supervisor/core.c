/* The states of the supervisor's decision core, and what holds in all of them: the host list, tasks
 * on hosts, interrupts between generations, the exit. */
#include "base/clock.h"
#include "supervisor/core_priv.h"

#include <stdlib.h>

/* Time for hosts to free preallocated memory, at the end and after an interrupt. */
static const double free_s = 5, free_soon_s = 0.5;

void ek_core_report_on(ek_core *c, ek_core_report report, int host, double seconds)
{
    ek_core_act(&c->actions,
                &(ek_core_action){
                    .kind = EK_CORE_REPORT, .report = report, .host = host, .seconds = seconds});
}

static int64_t wanted_on(const ek_core *c, int64_t slots)
{
    return c->cfg.ranks > 0 && c->cfg.ranks < slots ? c->cfg.ranks : slots;
}

int ek_core_ranks_on(const ek_core *c, int64_t slots)
{
    int n = ek_mesh_elastic_ranks(&c->cfg.sizes, (int)wanted_on(c, slots));

    return n - n % c->cfg.unit;
}

int ek_core_idle_on(const ek_core *c, int64_t slots)
{
    return (int)wanted_on(c, slots) - ek_core_ranks_on(c, slots);
}

int ek_core_has_state(const ek_core *c)
{
    return c->reported.recovered || c->history.written > 0;
}

/* --- the exit --------------------------------------------------------------------------------- */

static void free_hosts(ek_core *c, int64_t now)
{
    c->state = EK_CORE_FREEING;
    c->search.until = now + ek_clock_from_s(c->interrupts > 0 ? free_soon_s : free_s);
    ek_core_links_cancel(&c->links, &c->actions);
    ek_core_hosts_free_all(&c->hosts, now, &c->actions);
}

void ek_core_exit_for(ek_core *c, ek_core_exit why, int64_t now)
{
    ek_core_act(&c->actions, &(ek_core_action){.kind = EK_CORE_EXIT, .host = -1, .exit = why});
    free_hosts(c, now);
}

static void poll_freeing(ek_core *c, int64_t now)
{
    if (now >= c->search.until)
        for (int i = 0; i < c->hosts.n; i++)
            if (c->hosts.host[i].health.task != EK_TASK_NONE) {
                c->hosts.host[i].health.task = EK_TASK_NONE;
                ek_core_act(&c->actions, &(ek_core_action){.kind = EK_CORE_CANCEL_TASK,
                                                           .host = c->hosts.host[i].number});
            }
    if (ek_core_hosts_all_free(&c->hosts))
        c->state = EK_CORE_DONE;
}

/* --- the host list ---------------------------------------------------------------------------- */

void ek_core_read_list(ek_core *c, int64_t now)
{
    c->search.read_at = now + ek_clock_from_s(c->cfg.list_s);
    if (c->search.reading)
        return;
    c->search.reading = 1;
    ek_core_act(&c->actions, &(ek_core_action){.kind = EK_CORE_READ_LIST, .host = -1});
}

/* The first list: rejects ranks that could not be met even if all listed hosts responded. */
static void begin_with_list(ek_core *c, int64_t now)
{
    int64_t slots = ek_core_hosts_listed_slots(&c->hosts);

    if (c->cfg.ranks > slots)
        ek_core_exit_for(c, EK_CORE_EXIT_SLOTS, now);
    else if (c->cfg.ranks % c->cfg.unit != 0)
        ek_core_exit_for(c, EK_CORE_EXIT_UNIT, now);
    else {
        if (c->history.done > 0)
            ek_core_hosts_assume_state(&c->hosts);
        ek_core_search_begin(c, now);
    }
}

/* An unreadable list does not end a run that has begun. */
static ek_status take_list(ek_core *c, const ek_core_event *e)
{
    if (!c->search.reading || c->state >= EK_CORE_FREEING)
        return EK_OK;
    c->search.reading = 0;
    if (e->kind == EK_CORE_LIST_FAILED) {
        if (c->state == EK_CORE_LISTING)
            ek_core_exit_for(c, EK_CORE_EXIT_LIST, e->now);
        else
            ek_core_report_on(c, EK_REPORT_LIST_FAILED, -1, 0);
        return EK_OK;
    }
    EK_TRY(ek_core_hosts_set_list(&c->hosts, e->list, e->n_list, e->now, &c->actions));
    if (c->state == EK_CORE_LISTING)
        begin_with_list(c, e->now);
    else if (c->state == EK_CORE_PROBING)
        ek_core_hosts_probe_new(&c->hosts, e->now, &c->actions);
    return EK_OK;
}

/* --- events ----------------------------------------------------------------------------------- */

/* If the supervisor was stalled, so were the commands on hosts and the workers of this machine. */
static void forgive_stall(ek_core *c, int64_t now)
{
    int64_t gap = now - c->seen;

    if (gap > EK_STALL_NS) {
        ek_core_hosts_forgive(&c->hosts, gap);
        c->links.begin += gap;
    }
    if (c->state == EK_CORE_RUNNING)
        ek_job_progress_look(&c->progress, now);
    c->seen = now;
}

static void interrupt(ek_core *c, int64_t now)
{
    c->interrupts++;
    if (c->state < EK_CORE_RUNNING)
        ek_core_exit_for(c, EK_CORE_EXIT_INTERRUPTED, now);
    else if (c->state == EK_CORE_FREEING)
        c->search.until = now;
}

static ek_status take_in_state(ek_core *c, const ek_core_event *e)
{
    switch (c->state) {
    case EK_CORE_BACKOFF:
    case EK_CORE_PROBING:
    case EK_CORE_LINKING:
    case EK_CORE_RETRYING: return ek_core_search_take(c, e);
    case EK_CORE_RUNNING: ek_core_run_take(c, e); break;
    case EK_CORE_FREEING: poll_freeing(c, e->now); break;
    case EK_CORE_LISTING:
    case EK_CORE_DONE:
    case EK_CORE_STATES: break;
    }
    return EK_OK;
}

ek_status ek_core_begin(ek_core *c, const ek_core_config *cfg, int64_t now)
{
    *c = (ek_core){.cfg = *cfg, .seen = now, .progress = {.watchdog_s = cfg->watchdog_s}};
    c->history.done = cfg->steps;
    c->reported.steps = -1;
    c->search.begin = now;
    if (cfg->listed)
        ek_core_read_list(c, now); /* state: LISTING */
    else
        ek_core_search_begin(c, now);
    EK_REQUIRE(!c->actions.failed, EK_ENOMEM, "no memory for the supervisor's actions");
    return EK_OK;
}

void ek_core_fini(ek_core *c)
{
    ek_core_hosts_fini(&c->hosts);
    ek_core_links_fini(&c->links);
    ek_heartbeats_fini(&c->heartbeats);
    free(c->reported.worker);
    free(c->actions.action);
    *c = (ek_core){.state = EK_CORE_DONE};
}

ek_status ek_core_take(ek_core *c, const ek_core_event *e)
{
    c->actions.n = 0;
    c->actions.failed = 0;
    if (c->state == EK_CORE_DONE)
        return EK_OK;
    forgive_stall(c, e->now);
    if (e->kind == EK_CORE_TASK_ENDED)
        ek_core_hosts_task_ended(&c->hosts, e->host, e->result, e->took_s, e->now);
    else if (e->kind == EK_CORE_LINK_JOB_ENDED)
        ek_core_links_job_ended(&c->links, e->job, e->result);
    else if (e->kind == EK_CORE_LIST || e->kind == EK_CORE_LIST_FAILED)
        EK_TRY(take_list(c, e));
    else if (e->kind == EK_CORE_INTERRUPT)
        interrupt(c, e->now);
    else if (e->kind == EK_CORE_ABANDON && c->state < EK_CORE_FREEING)
        free_hosts(c, e->now);
    ek_core_hosts_end_late(&c->hosts, e->now, &c->actions);
    EK_TRY(take_in_state(c, e));
    EK_REQUIRE(!c->actions.failed, EK_ENOMEM, "no memory for the supervisor's actions");
    return EK_OK;
}
