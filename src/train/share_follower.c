/* From speeds of expert ranks to shares of a batch. */
#include "train/share_follower.h"

#include "nn/batch_shares.h"

#include <stdlib.h>

enum { EVEN_WEIGHT = EK_BATCH_WEIGHT_MAX / 10 };

ek_status ek_share_follower_init(ek_share_follower *f, const ek_mesh *mesh)
{
    size_t dp = (size_t)mesh->dp;

    *f = (ek_share_follower){.weights = calloc(dp, sizeof(*f->weights)),
                             .sums = calloc(dp + 1, sizeof(*f->sums))};
    EK_REQUIRE(f->weights != NULL && f->sums != NULL, EK_ENOMEM,
               "no memory for the shares of %d ranks", mesh->dp);
    return EK_OK;
}

void ek_share_follower_fini(ek_share_follower *f)
{
    free(f->weights);
    free(f->sums);
    *f = (ek_share_follower){0};
}

/* The cost of a row on the slowest expert rank of a data-parallel rank; 0: not known yet. */
static double worst_cost(const ek_pass *p, const ek_mesh *mesh, int dp_rank)
{
    int32_t each = ek_pass_speed_ranks(p) / mesh->pp;
    double worst = 0;

    for (int stage = 0; stage < mesh->pp; stage++)
        for (int at = dp_rank * mesh->tp; at < (dp_rank + 1) * mesh->tp; at++) {
            double cost = ek_pass_row_cost(p, stage * each + at / mesh->etp);

            worst = cost > worst ? cost : worst;
        }
    return worst;
}

int ek_share_follower_update(ek_share_follower *f, const ek_pass *p, double most)
{
    const ek_mesh *mesh = p->model->cfg.mesh;

    if (f->weights == NULL || ek_pass_speed_ranks(p) == 0)
        return 0;
    for (int r = 0; r < mesh->dp; r++) {
        double cost = worst_cost(p, mesh, r);
        int64_t weight = cost > 0 ? (int64_t)(EVEN_WEIGHT / cost) : EVEN_WEIGHT;

        weight = weight < 1 ? 1 : weight > EK_BATCH_WEIGHT_MAX ? EK_BATCH_WEIGHT_MAX : weight;
        f->weights[r] = weight;
    }
    ek_shares_limit(f->weights, mesh->dp, most);
    ek_shares_sum(f->weights, mesh->dp, f->sums);
    return 1;
}
