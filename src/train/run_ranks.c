/* What the ranks of a run tell each other outside the steps. */
#include "train/agree.h"
#include "train/run_impl.h"

#include <stdlib.h>

ek_status ek_run_gather(ek_run *r, void *all, size_t size)
{
    int64_t *first;
    ek_coll *op = NULL;
    ek_status st = EK_OK;

    if (r->ranks == 1)
        return EK_OK;
    first = malloc(((size_t)r->ranks + 1) * sizeof(*first));
    EK_REQUIRE(first != NULL, EK_ENOMEM, "no memory for %d ranks", r->ranks);
    for (int i = 0; i <= r->ranks; i++)
        first[i] = i;
    EK_TRY_OUT(ek_comm_all_gather(r->world, all, first, size, &op));
    EK_TRY_OUT(ek_coll_wait(&op));
out:
    free(first);
    return st;
}

ek_status ek_run_leaders_first(ek_run *r, const char *what, ek_status (*work)(ek_run *r))
{
    int leader = 0;

    if (r->ranks == 1)
        return work(r);
    while (ek_comm_node(r->world, leader) != ek_comm_node(r->world, r->rank))
        leader++;
    EK_TRY(ek_agree(r->world, what, r->rank == leader ? work(r) : EK_OK));
    return ek_agree(r->world, what, r->rank != leader ? work(r) : EK_OK);
}

ek_status ek_run_sum_on_host(ek_run *r, double *x)
{
    double *all = calloc((size_t)r->ranks, sizeof(*all));
    ek_status st = EK_OK;

    EK_REQUIRE(all != NULL, EK_ENOMEM, "no memory for %d ranks", r->ranks);
    all[r->rank] = *x;
    EK_TRY_OUT(ek_run_gather(r, all, sizeof(*all)));
    for (int i = 0; i < r->ranks; i++)
        if (i != r->rank && ek_comm_node(r->world, i) == ek_comm_node(r->world, r->rank))
            *x += all[i];
out:
    free(all);
    return st;
}
