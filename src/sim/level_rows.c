/* Counts rows by level. */
#include "sim/level_rows.h"

#include <string.h>

static double ratio(double a, double b)
{
    return b > 0 ? a / b : 0;
}

static void count_rank(const ek_level_group *g, const int64_t *rows, int32_t rank,
                       ek_level_rows *out)
{
    double peers[EK_CLUSTER_LEVELS] = {0};

    memset(out, 0, sizeof(*out));
    for (int32_t i = 0; i < g->ep * g->shards; i++) {
        int32_t q = i / g->shards;
        int64_t self = (int64_t)rank * g->etp, peer = (int64_t)q * g->etp + i % g->shards;
        int l = ek_cluster_level_between(g->cluster, self, peer);

        if (peer == self)
            continue;
        peers[l]++;
        out->sent[l] += (double)rows[(int64_t)rank * g->ep + q];
        out->got[l] += (double)rows[(int64_t)q * g->ep + rank];
    }
    for (int l = 0; l < g->cluster->n_levels; l++) {
        double even = g->each * peers[l];

        out->sent[l] = ratio(out->sent[l], even);
        out->got[l] = ratio(out->got[l], even);
    }
}

void ek_level_rows_of(const ek_level_group *g, const int64_t *rows, ek_level_rows *out,
                      ek_level_rows *back)
{
    for (int32_t r = 0; r < g->ep; r++) {
        count_rank(g, rows, r, &out[r]);
        memcpy(back[r].sent, out[r].got, sizeof(out[r].got));
        memcpy(back[r].got, out[r].sent, sizeof(out[r].sent));
    }
}
