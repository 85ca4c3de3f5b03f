/* Counts rows by level, and what links carry of them.
 *
 * Those that a rank meets at a level are the ranks below its switch there without those below the
 * one before.
 *
 * Complexity   O(ep * ep) */
#include "sim/level_rows.h"

#include <math.h>
#include <string.h>

/* Peers of a rank: `shards` of each expert rank. */
static ek_ranks peers_of(const ek_level_group *g)
{
    return (ek_ranks){0, g->etp / g->shards, g->ep * g->shards};
}

/* The peers below the switch of an expert rank's first rank. */
static ek_rank_range peers_below(const ek_level_group *g, int level, int32_t rank)
{
    return ek_rank_range_below(g->cluster, peers_of(g), level, (int64_t)rank * g->etp);
}

/* Rows at[0], at[stride], ... of each expert rank, for each of its peers [first, end). */
static int64_t sum_rows(const ek_level_group *g, const int64_t *at, int64_t stride, int32_t first,
                        int32_t end)
{
    int64_t sum = 0;

    for (int32_t i = first; i < end;) {
        int32_t q = i / g->shards, next = (q + 1) * g->shards;

        next = next < end ? next : end;
        sum += at[q * stride] * (next - i);
        i = next;
    }
    return sum;
}

/* Of an even spread. */
static void count_even(const ek_level_group *g, int32_t rank, ek_level_rows *out)
{
    int32_t self = rank * g->shards;
    ek_rank_range within = {self, self + 1};

    memset(out, 0, sizeof(*out));
    for (int l = 0; l < g->cluster->n_levels; l++) {
        ek_rank_range s = peers_below(g, l, rank);

        out->sent[l] = out->got[l] =
            g->each * (double)(within.first - s.first + s.end - within.end);
        within = s;
    }
}

/* rows NULL: an even spread. */
static void count_rank(const ek_level_group *g, const int64_t *rows, int32_t rank,
                       ek_level_rows *out)
{
    int32_t self = rank * g->shards;
    const int64_t *to, *from;
    ek_rank_range within = {self, self + 1};

    if (rows == NULL) {
        count_even(g, rank, out);
        return;
    }
    to = rows + (int64_t)rank * g->ep;
    from = rows + rank;
    memset(out, 0, sizeof(*out));
    for (int l = 0; l < g->cluster->n_levels; l++) {
        ek_rank_range s = peers_below(g, l, rank);

        out->sent[l] = (double)(sum_rows(g, to, 1, s.first, within.first) +
                                sum_rows(g, to, 1, within.end, s.end));
        out->got[l] = (double)(sum_rows(g, from, g->ep, s.first, within.first) +
                               sum_rows(g, from, g->ep, within.end, s.end));
        within = s;
    }
}

static double ratio(double a, double b)
{
    return b > 0 ? a / b : 0;
}

void ek_level_rows_of(const ek_level_group *g, const int64_t *rows, ek_level_rows *out,
                      ek_level_rows *back)
{
    for (int32_t r = 0; r < g->ep; r++) {
        ek_level_rows even;

        count_rank(g, rows, r, &out[r]);
        count_rank(g, NULL, r, &even);
        for (int l = 0; l < g->cluster->n_levels; l++) {
            out[r].sent[l] = ratio(out[r].sent[l], even.sent[l]);
            out[r].got[l] = ratio(out[r].got[l], even.got[l]);
        }
        memcpy(back[r].sent, out[r].got, sizeof(out[r].got));
        memcpy(back[r].got, out[r].sent, sizeof(out[r].sent));
    }
}

/* --- links ------------------------------------------------------------------------------------ */

/* Of each rank what its links carry. */
static void count_carried(const ek_level_group *g, const int64_t *rows, ek_level_rows *carried)
{
    for (int32_t r = 0; r < g->ep; r++) {
        ek_level_rows passed;

        count_rank(g, rows, r, &passed);
        ek_level_carried(g->cluster, passed.sent, carried[r].sent);
        ek_level_carried(g->cluster, passed.got, carried[r].got);
    }
}

/* Rows that the link of a level carries in its busier direction, over the ranks [first, end) of the
 * world that share it. */
static double carried_by(const ek_level_group *g, const ek_level_rows *carried, int level,
                         int64_t first, int64_t end)
{
    double sent = 0, got = 0;

    for (int64_t r = first; r < end; r++) {
        sent += carried[r / g->etp].sent[level];
        got += carried[r / g->etp].got[level];
    }
    return fmax(sent, got) / (double)(end - first);
}

/* Raises the seconds of the ranks of the group that share links of a level. */
static void add_level(const ek_level_group *g, const ek_level_rows *carried, int level,
                      double *seconds)
{
    const ek_cluster_level *of = &g->cluster->level[level];
    int64_t shared = ek_level_sharers(of), ranks = (int64_t)g->ep * g->etp;

    for (int64_t first = 0; first < ranks; first += shared) {
        int64_t end = first + shared < ranks ? first + shared : ranks;
        double takes = carried_by(g, carried, level, first, end) / of->bytes_s;

        for (int64_t r = first; r < end; r++)
            seconds[r / g->etp] = fmax(seconds[r / g->etp], takes);
    }
}

static void time_links(const ek_level_group *g, const int64_t *rows, ek_level_rows *carried,
                       double *seconds)
{
    memset(seconds, 0, (size_t)g->ep * sizeof(*seconds));
    count_carried(g, rows, carried);
    for (int l = 0; l < g->cluster->n_levels; l++)
        add_level(g, carried, l, seconds);
}

void ek_level_wires_of(const ek_level_group *g, const int64_t *rows, ek_level_rows *scratch,
                       double *wires)
{
    double slowest = 0;

    time_links(g, NULL, scratch, wires);
    for (int32_t r = 0; r < g->ep; r++)
        slowest = fmax(slowest, wires[r]);
    time_links(g, rows, scratch, wires);
    for (int32_t r = 0; r < g->ep; r++)
        wires[r] = ratio(wires[r], slowest);
}
