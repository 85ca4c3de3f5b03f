/* Counts of assignments, by source and expert. */
#include "train/even_loads.h"

#include "base/ranks.h"
#include "nn/batch_shares.h"

#include <stdlib.h>

/* Iterations: a policy may plan from the one before, and serve copies in another way once they are
 * there than in the step in which it makes them. */
enum { ITERATIONS = 3 };

static ek_status open_counts(const ek_sim_layout *l, uint64_t **counts, ek_trace *out)
{
    size_t n = ITERATIONS * (size_t)l->ep * (size_t)l->spec.experts;

    *out = (ek_trace){0};
    *counts = calloc(n, sizeof(**counts));
    EK_REQUIRE(*counts != NULL, EK_ENOMEM, "no memory for the loads of experts");
    *out = (ek_trace){.own = *counts,
                      .data = (const unsigned char *)*counts,
                      .width = sizeof(**counts),
                      .iterations = ITERATIONS,
                      .layers = 1,
                      .sources = l->ep,
                      .experts = l->spec.experts};
    return EK_OK;
}

ek_status ek_even_loads_open(const ek_sim_layout *l, ek_trace *out)
{
    uint64_t *counts;

    EK_TRY(open_counts(l, &counts, out));
    for (int64_t i = 0; i < ITERATIONS * l->ep * l->spec.experts; i++)
        counts[i] = 1;
    return EK_OK;
}

/* The first token of an expert rank, numbered over all groups, in a micro-batch; of one after the
 * last: all tokens. */
static int64_t first_token(const ek_sim_layout *l, int64_t seqs, int expert_rank)
{
    return ek_shares_first_token(l->shares, l->dp, l->tp, seqs, l->seq, expert_rank * l->etp);
}

ek_status ek_even_loads_of_group(const ek_sim_layout *l, int64_t seqs, int group, ek_trace *out)
{
    int64_t experts = l->spec.experts;
    uint64_t *counts;

    EK_TRY(open_counts(l, &counts, out));
    for (int64_t i = 0; i < ITERATIONS * l->ep * experts; i++) {
        int rank = group * l->ep + (int)(i / experts % l->ep);
        int64_t first = first_token(l, seqs, rank) * l->top_k;
        int64_t end = first_token(l, seqs, rank + 1) * l->top_k;

        counts[i] = (uint64_t)(ek_ranks_below(end, i % experts, experts) -
                               ek_ranks_below(first, i % experts, experts));
    }
    return EK_OK;
}

int64_t ek_even_loads_rest(const ek_sim_layout *l)
{
    return l->batch - (l->micros - 1) * l->micro_batch;
}

int64_t ek_even_loads_tokens(const ek_sim_layout *l, int64_t seqs, int group)
{
    return first_token(l, seqs, (group + 1) * l->ep) - first_token(l, seqs, group * l->ep);
}

int ek_even_loads_differ(const ek_sim_layout *l)
{
    const int64_t seqs[] = {l->micro_batch, ek_even_loads_rest(l)};

    for (int i = 0; i < 2; i++)
        for (int r = 1; r < l->edp * l->ep; r++)
            if (first_token(l, seqs[i], r + 1) - first_token(l, seqs[i], r) !=
                first_token(l, seqs[i], 1))
                return 1;
    return 0;
}
