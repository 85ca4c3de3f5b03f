/* Sums over recorded ops.  Compute events and network events are each sorted by end time, so one
 * pass from the last to the first computes the overlap. */
#include "exec/exec.h"

static int64_t max_ns(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t min_ns(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int is_network(const ek_event *e)
{
    return e->lane == EK_LANE_NODE || e->lane == EK_LANE_NET;
}

/* Time of compute ops within [from, to).  *at: events behind it start at or after all later `to`;
 * it only decreases. */
static int64_t compute_ns_within(const ek_event *e, int64_t *at, int64_t from, int64_t to)
{
    int64_t sum = 0;

    while (*at >= 0 && e[*at].lane != EK_LANE_COMPUTE)
        --*at;
    for (int64_t i = *at; i >= 0 && (e[i].lane != EK_LANE_COMPUTE || e[i].end_ns > from); i--) {
        if (e[i].lane != EK_LANE_COMPUTE)
            continue;
        sum += max_ns(0, min_ns(to, e[i].end_ns) - max_ns(from, e[i].start_ns));
        if (e[i].start_ns >= from)
            *at = i - 1;
    }
    return sum;
}

void ek_exec_sum(const ek_event *e, int64_t n, ek_exec_times *out)
{
    int64_t first = n > 0 ? e[0].start_ns : 0, last = n > 0 ? e[0].end_ns : 0, compute = 0, net = 0;
    int64_t covered = INT64_MAX, both = 0, at = n - 1; /* covered: net counts from here on */

    for (int64_t i = n - 1; i >= 0; i--) {
        first = min_ns(first, e[i].start_ns);
        last = max_ns(last, e[i].end_ns);
        if (e[i].lane == EK_LANE_COMPUTE)
            compute += e[i].end_ns - e[i].start_ns;
        if (is_network(&e[i]) && e[i].start_ns < covered) {
            int64_t to = min_ns(e[i].end_ns, covered);

            net += to - e[i].start_ns;
            both += compute_ns_within(e, &at, e[i].start_ns, to);
            covered = e[i].start_ns;
        }
    }
    *out = (ek_exec_times){(double)(last - first) / 1e9, (double)compute / 1e9, (double)net / 1e9,
                           (double)(net - both) / 1e9};
}
