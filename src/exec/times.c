/* Sums over recorded ops.  Compute events and those of the asynchronous lanes are each sorted by
 * end time, so one pass from the last to the first computes the overlap. */
#include "exec/exec.h"

static int64_t max_ns(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t min_ns(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static const unsigned network = 1u << EK_LANE_SUMS | 1u << EK_LANE_NET, disk = 1u << EK_LANE_DISK;

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

/* Seconds in which an op of these lanes was in flight, and of these, in which no compute op ran. */
static void sum_in_flight(const ek_event *e, int64_t n, unsigned lanes, double *all_s,
                          double *exposed_s)
{
    int64_t all = 0, both = 0, at = n - 1, covered = INT64_MAX; /* counted from `covered` on */

    for (int64_t i = n - 1; i >= 0; i--)
        if ((lanes >> e[i].lane & 1u) && e[i].start_ns < covered) {
            int64_t to = min_ns(e[i].end_ns, covered);

            all += to - e[i].start_ns;
            both += compute_ns_within(e, &at, e[i].start_ns, to);
            covered = e[i].start_ns;
        }
    *all_s = (double)all / 1e9;
    *exposed_s = (double)(all - both) / 1e9;
}

void ek_exec_sum(const ek_event *e, int64_t n, ek_exec_times *out)
{
    int64_t first = n > 0 ? e[0].start_ns : 0, last = n > 0 ? e[0].end_ns : 0, compute = 0;

    for (int64_t i = 0; i < n; i++) {
        first = min_ns(first, e[i].start_ns);
        last = max_ns(last, e[i].end_ns);
        if (e[i].lane == EK_LANE_COMPUTE)
            compute += e[i].end_ns - e[i].start_ns;
    }
    out->wall_s = (double)(last - first) / 1e9;
    out->compute_s = (double)compute / 1e9;
    sum_in_flight(e, n, network, &out->net_s, &out->exposed_s);
    sum_in_flight(e, n, disk, &out->disk_s, &out->disk_exposed_s);
}
