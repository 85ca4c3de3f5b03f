/* Hosts that were late and may hold state of the run: a generation without them may not go back
 * before they had time to respond. */
#include "base/clock.h"
#include "supervisor/core_priv.h"

/* Limits on the time to wait for them, which is what the steps take that would be repeated. */
static const double wait_least_s = 5, wait_most_s = 30;

void ek_core_set_least_step(ek_core *c, int64_t now)
{
    int over = c->hosts.wait_until != 0 && now >= c->hosts.wait_until;

    c->least_step = !over && ek_core_hosts_any_late(&c->hosts) ? c->history.done : 0;
}

int ek_core_lacks_state(const ek_core *c)
{
    const ek_core_reported *r = &c->reported;

    return r->incomplete && r->steps < 0 && r->begins < c->least_step;
}

static double wait_s(const ek_core *c)
{
    double step_s = ek_job_progress_median_s(&c->progress);
    double s = step_s > 0 ? (double)(c->least_step - c->reported.begins) * step_s : wait_most_s;

    s = s > wait_least_s ? s : wait_least_s;
    s = s < wait_most_s ? s : wait_most_s;
    return c->cfg.watchdog_s > 0 && c->cfg.watchdog_s < s ? c->cfg.watchdog_s : s;
}

/* If they are waited for already, as the one that has responded did not have the state, the time
 * goes on.  Draining hosts could not hand over their state yet, which does not count as a try. */
void ek_core_wait_for_late(ek_core *c, int64_t now)
{
    double left_s;

    for (int i = 0; i < c->hosts.n; i++)
        c->hosts.host[i].drain_tries -= c->hosts.host[i].draining;
    if (c->hosts.wait_until == 0)
        c->hosts.wait_until = now + ek_clock_from_s(wait_s(c));
    left_s = (double)(c->hosts.wait_until - now) / 1e9;
    ek_core_report_on(c, EK_REPORT_INCOMPLETE, -1, left_s > 0 ? left_s : 0);
}
