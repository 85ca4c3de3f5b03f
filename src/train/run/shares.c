/* The shares of data-parallel ranks: even, a list, or measured. */
#include "train/run/shares.h"

#include "nn/batch_shares.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A weight of 1 in the list; so weights from 1 / 1000 to 1000 have three digits or more. */
enum { ONE = EK_BATCH_WEIGHT_MAX / 1000 };

/* "2,1.5,1": a weight of each data-parallel rank. */
static ek_status parse_list(const char *text, int ranks, int64_t *weights)
{
    const char *at = text;

    for (int i = 0; i < ranks; i++) {
        char *end = NULL;
        double x = *at >= '0' && *at <= '9' ? strtod(at, &end) : -1;

        EK_REQUIRE(end != NULL && x * ONE >= 1 && x * ONE <= EK_BATCH_WEIGHT_MAX &&
                       *end == (i + 1 < ranks ? ',' : '\0'),
                   EK_EINVAL,
                   "--batch-shares %s is neither even, nor measured, nor a list of numbers from "
                   "0.001 to 1000, one for each of the %d data-parallel rank%s (ranks / (--pp * "
                   "--tp)), separated by commas",
                   text, ranks, ranks > 1 ? "s" : "");
        weights[i] = (int64_t)llround(x * ONE);
        at = end + 1;
    }
    return EK_OK;
}

static ek_status read_list(ek_run *r, int dp)
{
    int64_t *weights = calloc((size_t)dp, sizeof(*weights));
    ek_status st = EK_OK;

    free(r->options.shares);
    r->options.shares = calloc((size_t)dp + 1, sizeof(*r->options.shares));
    EK_REQUIRE_OUT(weights != NULL && r->options.shares != NULL, EK_ENOMEM,
                   "no memory for the shares of %d ranks", dp);
    EK_TRY_OUT(parse_list(r->cfg->batch_shares, dp, weights));
    ek_shares_sum(weights, dp, r->options.shares);
out:
    free(weights);
    return st;
}

ek_status ek_run_read_shares(ek_run *r)
{
    const ek_train_config *c = r->cfg;
    const ek_mesh_sizes *s = &r->options.sizes;
    int dp = r->ranks / ((s->pp > 1 ? s->pp : 1) * (s->tp > 1 ? s->tp : 1));

    r->training.shares = NULL;
    r->training.follow_shares = 0;
    if (strcmp(c->batch_shares, "even") == 0)
        return EK_OK;
    if (strcmp(c->batch_shares, "measured") == 0) {
        EK_REQUIRE(
            r->training.moe.follow_speeds && c->ep > 1, EK_EINVAL,
            "--batch-shares measured follows the times of expert products on different "
            "ranks: give --ep of at least 2 and --rank-speeds measured, or a list of shares");
        r->training.follow_shares = s->ep > 1; /* with --elastic one rank may be left */
        return EK_OK;
    }
    EK_TRY(read_list(r, dp));
    EK_REQUIRE(!c->elastic, EK_EINVAL,
               "--batch-shares %s is a list for %d data-parallel ranks, whose number changes with "
               "--elastic: give --batch-shares measured, or even",
               c->batch_shares, dp);
    r->training.shares = r->options.shares;
    return EK_OK;
}
