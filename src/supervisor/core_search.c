/* Before a generation: waits, probes hosts, tests their connectivity, assigns ranks. */
#include "base/clock.h"
#include "supervisor/core_priv.h"

/* If too few hosts respond: number of probes, and first wait between them, which doubles. */
enum { ATTEMPTS_MAX = 7 };
static const double first_wait_s = 0.25;
/* Wait after generations without a completed step, which doubles with each. */
static const double backoff_s = 0.05;

/* --- the start -------------------------------------------------------------------------------- */

static ek_status start(ek_core *c, int64_t now)
{
    c->times.probe_s = (double)(now - c->times.chosen_at) / 1e9;
    EK_TRY(ek_core_run_begin(c, now));
    ek_core_act(&c->actions, &(ek_core_action){.kind = EK_CORE_START, .host = -1});
    return EK_OK;
}

static void count_lost_hosts(ek_core *c)
{
    int n = ek_core_hosts_note_lost(&c->hosts);

    c->history.lost_hosts += c->history.generations > 0 ? n : 0;
}

static ek_status assign_ranks(ek_core *c, int64_t now)
{
    int64_t slots = ek_core_hosts_slots(&c->hosts, now);
    int idle = c->idle;

    c->search.skip_probe = 0;
    c->ranks = ek_core_ranks_on(c, slots);
    c->idle = ek_core_idle_on(c, slots);
    count_lost_hosts(c);
    c->n_draining = ek_core_hosts_assign(&c->hosts, c->ranks, now);
    ek_core_set_least_step(c, now);
    if (ek_core_hosts_changed(&c->hosts) || c->idle != idle)
        ek_core_report_on(c, EK_REPORT_HOSTS, -1, 0);
    return start(c, now);
}

/* --- attempts to find hosts ------------------------------------------------------------------- */

/* Whether there were too few hosts for longer than the watchdog's limit. */
static int has_waited_too_long(const ek_core *c, int64_t now)
{
    return c->cfg.watchdog_s > 0 && now > c->search.begin + ek_clock_from_s(c->cfg.watchdog_s) &&
           ek_core_ranks_on(c, ek_core_hosts_slots(&c->hosts, now)) == 0;
}

static ek_status end_attempt(ek_core *c, int64_t now)
{
    if (ek_core_ranks_on(c, ek_core_hosts_slots(&c->hosts, now)) > 0)
        return assign_ranks(c, now);
    count_lost_hosts(c);
    ek_core_hosts_clear_suspicion(&c->hosts);
    c->state = EK_CORE_RETRYING;
    c->search.until = now + ek_clock_from_s(first_wait_s * (double)(1 << c->search.attempt));
    return EK_OK;
}

/* Hosts in use, those that do not leave first; 0 if one does not respond, as that explains the
 * failure. */
static int hosts_to_test(ek_core_hosts *h)
{
    int n = 0;

    for (int leaving = 0; leaving < 2; leaving++) /* of equals the last one is excluded */
        for (int i = 0; i < h->n; i++) {
            if (h->host[i].used == 0 || ek_core_host_is_leaving(&h->host[i]) != leaving)
                continue;
            if (h->host[i].health.answer != 0)
                return 0;
            h->used[n++] = h->host[i].number;
        }
    return n;
}

static ek_status begin_links(ek_core *c, int64_t now)
{
    int n = hosts_to_test(&c->hosts);

    c->search.test_links = 0;
    if (n < 2)
        return end_attempt(c, now);
    c->state = EK_CORE_LINKING;
    return ek_core_links_begin(&c->links, c->hosts.used, n, ek_core_links_limit_s(c->hosts.start_s),
                               now, &c->actions);
}

static int any_cut(const ek_core_links *k)
{
    for (int i = 0; i < k->n; i++)
        if (k->out[i])
            return 1;
    return 0;
}

/* Of two hosts that did not reach each other one may have been lost during the test, and the other
 * may be the one with the state: all are probed once more before one is excluded. */
static ek_status end_links(ek_core *c, int64_t now)
{
    if (!any_cut(&c->links))
        return end_attempt(c, now);
    c->search.cut = 1;
    c->state = EK_CORE_PROBING;
    ek_core_hosts_probe(&c->hosts, now, &c->actions);
    return EK_OK;
}

/* After that probe; excludes none if a host that was tested does not respond, as that explains it.
 */
static void exclude_cut_hosts(ek_core *c)
{
    c->search.cut = 0;
    for (int i = 0; i < c->links.n; i++) {
        int host = ek_core_hosts_index(&c->hosts, c->links.host[i]);

        if (host < 0 || c->hosts.host[host].health.answer != 0)
            return;
    }
    for (int i = 0; i < c->links.n; i++)
        if (c->links.out[i]) {
            ek_core_report_on(c, EK_REPORT_CUT, c->links.host[i], 0);
            c->hosts.host[ek_core_hosts_index(&c->hosts, c->links.host[i])].suspect = 1;
        }
}

/* New hosts are suspect after a generation that completed no step, unless a host that it had does
 * not respond now, as that explains it. */
static void judge_new_hosts(ek_core *c, int64_t now)
{
    int lost = 0;

    for (int i = 0; i < c->hosts.n; i++)
        lost |= c->hosts.host[i].used > 0 && c->hosts.host[i].health.answer != 0;
    if (c->search.unproven && !lost)
        ek_core_hosts_suspect_new(&c->hosts, now, &c->actions);
    c->search.unproven = 0;
}

static ek_status end_probe(ek_core *c, int64_t now)
{
    judge_new_hosts(c, now);
    if (c->search.cut) {
        exclude_cut_hosts(c);
        return end_attempt(c, now);
    }
    return c->search.test_links ? begin_links(c, now) : end_attempt(c, now);
}

static ek_status begin_attempt(ek_core *c, int64_t now)
{
    if (c->search.attempt == 0 && c->search.skip_probe)
        return end_probe(c, now);
    c->state = EK_CORE_PROBING;
    ek_core_read_list(c, now);
    ek_core_hosts_probe(&c->hosts, now, &c->actions);
    return EK_OK;
}

static ek_status begin_attempts(ek_core *c, int64_t now)
{
    const double *longest = c->progress.longest_s;

    if (!c->cfg.elastic || !c->cfg.listed) {
        c->ranks = c->cfg.ranks > 0 ? c->cfg.ranks : 1;
        return start(c, now);
    }
    c->hosts.start_s = longest[EK_PHASE_LAUNCH] + longest[EK_PHASE_CONNECT];
    c->search.attempt = 0;
    return begin_attempt(c, now);
}

static ek_status next_attempt(ek_core *c, int64_t now)
{
    c->search.attempt++;
    c->search.test_links = 0; /* only in the first one */
    if (c->search.attempt < ATTEMPTS_MAX && !has_waited_too_long(c, now))
        return begin_attempt(c, now);
    ek_core_exit_for(c, EK_CORE_EXIT_NO_HOSTS, now);
    return EK_OK;
}

/* --- states ----------------------------------------------------------------------------------- */

/* Notes the time until the last generation had ended, or its whole duration if it drained hosts. */
static void note_end(ek_core *c, int64_t now)
{
    ek_core_times *t = &c->times;

    if (c->n_draining > 0)
        t->drain_s += (double)(now - t->chosen_at) / 1e9;
    else
        t->ending_s = t->end_seen > 0 ? (double)(now - t->end_seen) / 1e9 : 0;
    t->chosen_at = now;
    t->end_seen = 0;
}

void ek_core_search_begin(ek_core *c, int64_t now)
{
    int failed = c->cfg.elastic ? c->history.failed : 0;

    note_end(c, now);
    c->search.begin = now;
    c->search.cut = 0;
    c->search.test_links = c->ending.reason == EK_REASON_HUNG || failed > 1;
    c->state = EK_CORE_BACKOFF;
    c->search.until = failed > 0 ? now + ek_clock_from_s(backoff_s * (double)(1 << failed)) : now;
}

ek_status ek_core_search_take(ek_core *c, const ek_core_event *e)
{
    int64_t now = e->now;

    switch (c->state) {
    case EK_CORE_BACKOFF: return now >= c->search.until ? begin_attempts(c, now) : EK_OK;
    case EK_CORE_RETRYING: return now >= c->search.until ? next_attempt(c, now) : EK_OK;
    case EK_CORE_PROBING:
        if (ek_core_hosts_probed(&c->hosts, c->search.reading, now, &c->actions) ||
            has_waited_too_long(c, now))
            return end_probe(c, now);
        return EK_OK;
    case EK_CORE_LINKING:
        if (ek_core_links_poll(&c->links, now, &c->actions))
            return end_links(c, now);
        if (has_waited_too_long(c, now)) {
            ek_core_links_cancel(&c->links, &c->actions);
            return end_attempt(c, now);
        }
        return EK_OK;
    default: return EK_OK;
    }
}
