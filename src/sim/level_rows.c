/* Counts rows by level. */
#include "sim/level_rows.h"

#include <string.h>

static double ratio(double a, double b)
{
    return b > 0 ? a / b : 0;
}

static void count_rank(const ek_cluster *c, int32_t ep, int32_t etp, const int64_t *rows,
                       double each, int32_t rank, ek_level_rows *out)
{
    double peers[EK_CLUSTER_LEVELS] = {0};

    memset(out, 0, sizeof(*out));
    for (int32_t q = 0; q < ep; q++) {
        int l = ek_cluster_level_between(c, (int64_t)rank * etp, (int64_t)q * etp);

        if (q == rank)
            continue;
        peers[l]++;
        out->sent[l] += (double)rows[(int64_t)rank * ep + q];
        out->got[l] += (double)rows[(int64_t)q * ep + rank];
    }
    for (int l = 0; l < c->n_levels; l++) {
        double even = each * peers[l];

        out->sent[l] = ratio(out->sent[l], even);
        out->got[l] = ratio(out->got[l], even);
    }
}

void ek_level_rows_of(const ek_cluster *c, int32_t ep, int32_t etp, const int64_t *rows,
                      double each, ek_level_rows *out, ek_level_rows *back)
{
    for (int32_t r = 0; r < ep; r++) {
        count_rank(c, ep, etp, rows, each, r, &out[r]);
        memcpy(back[r].sent, out[r].got, sizeof(out[r].got));
        memcpy(back[r].got, out[r].sent, sizeof(out[r].sent));
    }
}
