/* The end of recovery: makes the new generation valid and removes earlier ones.  And what all parts
 * of recovery ask. */
#include "comm/agree.h"
#include "recover/recover_priv.h"

#include <stdlib.h>

ek_status ek_recover_broadcast(ek_recovery *r, void *buf, size_t bytes, int root)
{
    ek_coll *op = NULL;

    if (r->ranks == 1 || bytes == 0)
        return EK_OK;
    EK_TRY(ek_comm_broadcast(r->world, buf, (int64_t)bytes, root, &op));
    return ek_coll_wait(&op);
}

int ek_recover_host(const ek_recovery *r, int rank)
{
    return r->ranks > 1 ? ek_comm_node(r->world, rank) : 0;
}

int ek_recover_serves_state(const ek_recovery *r, int64_t i)
{
    return r->found[i].served && r->found[i].segment.head != NULL && !r->found[i].prealloc;
}

ek_found_segment *ek_recover_served(const ek_recovery *r, int32_t survivor)
{
    for (int64_t i = 0; i < r->n_found; i++)
        if (r->found[i].survivor == survivor && ek_recover_serves_state(r, i))
            return &r->found[i];
    return NULL;
}

int32_t ek_recover_copies(const ek_recovery *r)
{
    int32_t n = 0;

    for (int32_t i = 0; i < r->n_survivors; i++)
        n += ek_segment_is_copy(r->survivors[i].survivor.rank, r->survivors[i].ranks);
    return n;
}

int64_t ek_recover_bytes(const ek_recovery *r)
{
    int64_t bytes = 0;

    for (int64_t i = 0; i < r->n_found; i++)
        bytes += ek_recover_serves_state(r, i) ? (int64_t)r->found[i].segment.head->bytes : 0;
    return bytes;
}

int64_t ek_recover_prealloc_bytes(const ek_recovery *r)
{
    int64_t bytes = 0;

    for (int64_t i = 0; i < r->n_found; i++)
        if (r->found[i].prealloc && r->found[i].segment.head != NULL)
            bytes += (int64_t)r->found[i].segment.head->bytes;
    return bytes;
}

static void close_found(ek_recovery *r)
{
    for (int64_t i = 0; i < r->n_found; i++) {
        ek_segment_close(&r->found[i].segment);
        free(r->found[i].taken);
    }
    free(r->found);
    r->found = NULL;
    r->n_found = 0;
}

ek_status ek_recover_remove(ek_recovery *r)
{
    ek_status st = EK_OK;

    for (int64_t i = 0; i < r->n_found && st == EK_OK; i++)
        if (r->found[i].served)
            st = ek_segment_remove(&r->found[i].id);
    close_found(r);
    return ek_agree(r->world, "remove the state of an earlier start", st);
}

ek_status ek_recover_commit(ek_recovery *r, ek_rank_state *const *s, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        ek_segment_set_phase(&s[i]->segment, EK_SEGMENT_FILLED);
    EK_TRY(ek_agree(r->world, "fill its state", EK_OK));
    for (int32_t i = 0; i < n; i++)
        ek_segment_set_phase(&s[i]->segment, EK_SEGMENT_READY);
    EK_TRY(ek_agree(r->world, "have its state ready", EK_OK));
    EK_TRY(ek_recover_remove(r));
    for (int32_t i = 0; i < n; i++)
        ek_state_clear_gradients(s[i]);
    return EK_OK;
}

void ek_recover_close(ek_recovery *r)
{
    close_found(r);
    for (int32_t i = 0; i < r->n_tables; i++)
        free(r->tables[i].shards.shard);
    free(r->warm_state);
    free(r->tables);
    free(r->table_survivor);
    free(r->survivors);
    *r = (ek_recovery){0};
}
