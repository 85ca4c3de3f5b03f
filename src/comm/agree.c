/* Broadcasts one rank's failure with its message; gathers records. */
#include "comm/agree.h"

#include "comm/coll.h"

#include <stdio.h>
#include <stdlib.h>

/* The failure that is broadcast. */
typedef struct {
    int64_t status;
    char text[512];
} failure;

static ek_status broadcast_failure(ek_comm *world, failure *f, int failed)
{
    ek_coll *op = NULL;

    EK_TRY(ek_comm_broadcast(world, f, sizeof(*f), failed, &op));
    return ek_coll_wait(&op);
}

ek_status ek_agree_failed(ek_comm *world, const char *what, int failed, ek_status mine)
{
    failure f = {.status = mine};
    ek_status st;

    if (ek_comm_rank(world) == failed)
        snprintf(f.text, sizeof(f.text), "%s", ek_err_message());
    st = broadcast_failure(world, &f, failed);
    if (st < 0 && ek_comm_rank(world) == failed) /* a rank that has the message may have ended */
        return EK_FAIL(mine, "%s", f.text);
    EK_TRY(st);
    if (f.status == EK_ECANCELED) /* a requested end is no failure of one rank */
        return EK_FAIL(EK_ECANCELED, "%s", f.text);
    if (ek_comm_rank(world) == failed)
        return mine;
    return EK_FAIL(EK_EPEER, "rank %d (%s) could not %s: %s", failed, ek_comm_host(world, failed),
                   what, f.text);
}

/* Whether there is no other rank to agree with. */
static int is_alone(const ek_comm *world)
{
    return world == NULL || ek_comm_size(world) == 1 || world->world->backend->no_others;
}

ek_status ek_agree(ek_comm *world, const char *what, ek_status mine)
{
    ek_coll *op = NULL;
    int64_t first = 0;
    int size;

    if (is_alone(world))
        return mine;
    size = ek_comm_size(world);
    if (mine < 0) /* so that the lowest rank is the maximum, of those with a failure of their own */
        first = size - ek_comm_rank(world) + (mine != EK_EPEER ? size : 0);
    EK_TRY(ek_comm_all_reduce(world, &first, 1, EK_MAX_I64, &op));
    EK_TRY(ek_coll_wait(&op));
    if (first == 0)
        return EK_OK;
    return ek_agree_failed(world, what, (int)(first > size ? 2 * size - first : size - first),
                           mine);
}

ek_status ek_gather(ek_comm *world, void *all, size_t size)
{
    int ranks = world != NULL ? ek_comm_size(world) : 1;
    int64_t *first;
    ek_coll *op = NULL;
    ek_status st = EK_OK;

    if (is_alone(world))
        return EK_OK;
    first = malloc(((size_t)ranks + 1) * sizeof(*first));
    EK_REQUIRE(first != NULL, EK_ENOMEM, "no memory for %d ranks", ranks);
    for (int i = 0; i <= ranks; i++)
        first[i] = i;
    EK_TRY_OUT(ek_comm_all_gather(world, all, first, size, &op));
    EK_TRY_OUT(ek_coll_wait(&op));
out:
    free(first);
    return st;
}

ek_status ek_maximum(ek_comm *world, double *x)
{
    ek_coll *op = NULL;

    if (is_alone(world))
        return EK_OK;
    EK_TRY(ek_comm_all_reduce(world, x, 1, EK_MAX_F64, &op));
    return ek_coll_wait(&op);
}

ek_status ek_minimum(ek_comm *world, double *x)
{
    double negative = -*x;

    EK_TRY(ek_maximum(world, &negative));
    *x = -negative;
    return EK_OK;
}
