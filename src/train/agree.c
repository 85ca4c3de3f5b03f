/* One rank's failure becomes everybody's, with its text. */
#include "train/agree.h"

#include <stdio.h>

/* What the rank that failed tells the others. */
typedef struct {
    int64_t status;
    char text[512];
} failure;

ek_status ek_agree_failed(ek_comm *world, const char *what, int failed, ek_status mine)
{
    failure f = {.status = mine};
    ek_coll *op = NULL;

    if (ek_comm_rank(world) == failed)
        snprintf(f.text, sizeof(f.text), "%s", ek_err_message());
    EK_TRY(ek_comm_broadcast(world, &f, sizeof(f), failed, &op));
    EK_TRY(ek_coll_wait(&op));
    if (f.status == EK_ECANCELED) /* an end that was asked for is no failure of one rank */
        return EK_FAIL(EK_ECANCELED, "%s", f.text);
    if (mine < 0)
        return mine;
    return EK_FAIL(EK_EPEER, "rank %d (%s) could not %s: %s", failed, ek_comm_host(world, failed),
                   what, f.text);
}

ek_status ek_agree(ek_comm *world, const char *what, ek_status mine)
{
    ek_coll *op = NULL;
    int64_t first;
    int size;

    if (world == NULL || ek_comm_size(world) == 1)
        return mine;
    size = ek_comm_size(world);
    first = mine < 0 ? size - ek_comm_rank(world) : 0; /* so that the lowest rank is the maximum */
    EK_TRY(ek_comm_all_reduce(world, &first, 1, EK_MAX_I64, &op));
    EK_TRY(ek_coll_wait(&op));
    return first == 0 ? EK_OK : ek_agree_failed(world, what, size - (int)first, mine);
}
