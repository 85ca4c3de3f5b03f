/* Copies on a second host of what one rank has alone, ranges of sharded buckets and columns of the
 * embedding: partners, memory, and what is sent to keep both alike. */
#include "exec/net.h"
#include "model/param_buckets.h"
#include "placement/partners.h"

#include <stdlib.h>

/* Masters, gradients and both moments. */
enum { ARRAYS = 4 };

static int64_t real_size(const ek_model *m)
{
    return (int64_t)ek_dtype_size(m->k->real);
}

/* Elements that a rank of the group of copies has of a bucket. */
static int64_t length_of(const ek_model *m, const ek_param_bucket *u, int rank)
{
    if (u->sharded)
        return u->first[rank + 1] - u->first[rank];
    return m->embed.out * ek_range_length(m->spec.hidden, m->cfg.mesh->dp, rank);
}

/* The same of the ranks before `end` of which this rank has copies. */
static int64_t copied_before(const ek_model *m, const ek_param_bucket *u, int end)
{
    int64_t n = 0;

    for (int q = 0; q < end; q++)
        n += u->copies.partner[q] == u->copies.rank ? length_of(m, u, q) : 0;
    return n;
}

/* --- partners --------------------------------------------------------------------------------- */

/* Chooses the partners in a group; scratch [3 * size]. */
static void choose_partners(const ek_model *m, const ek_bucket_copies *c, int32_t *partner,
                            int *scratch)
{
    ek_ranks ranks = ek_mesh_ranks(m->cfg.mesh, c->mesh_group);
    int *host = scratch, *rack = scratch + c->size;

    for (int i = 0; i < c->size; i++) {
        host[i] = ek_comm_node(c->group, i);
        rack[i] = m->cfg.rack_of != NULL ? m->cfg.rack_of[ek_ranks_at(ranks, i)] : 0;
    }
    ek_partners_choose(c->size, host, rack, NULL, partner, rack + c->size);
}

/* The group in which a bucket has copies; size 0: none are needed. */
static ek_bucket_copies group_of_copies(const ek_model *m, const ek_param_bucket *u)
{
    const ek_mesh *mesh = m->cfg.mesh;

    if (u->sharded)
        return (ek_bucket_copies){
            .group = u->group, .mesh_group = u->mesh_group, .size = u->size, .rank = u->rank};
    if (u->share == EK_SHARE_NONE && m->cfg.embed_columns && m->spec.hidden >= mesh->dp)
        return (ek_bucket_copies){.group = mesh->dp_group,
                                  .mesh_group = EK_MESH_DP,
                                  .size = mesh->dp,
                                  .rank = mesh->dp_rank};
    return (ek_bucket_copies){0};
}

ek_status ek_param_buckets_choose_partners(ek_model *m)
{
    ek_param_buckets *us = m->buckets;
    size_t most = (size_t)m->cfg.mesh->stage_size;
    int chosen[EK_SHARE_NONE] = {0}, *scratch = NULL;
    ek_status st = EK_OK;

    if (!m->cfg.partner_copies || (m->cfg.zero == 0 && !m->cfg.embed_columns))
        return EK_OK;
    scratch = calloc(3 * most, sizeof(*scratch));
    us->partners = calloc(EK_SHARE_NONE * most, sizeof(*us->partners));
    us->copy_bytes = calloc(most * most, sizeof(*us->copy_bytes));
    EK_REQUIRE_OUT(scratch != NULL && us->partners != NULL && us->copy_bytes != NULL, EK_ENOMEM,
                   "no memory for the partners of %zu ranks", most);
    for (int32_t i = 0; i < us->n; i++) {
        ek_param_bucket *u = &us->bucket[i];
        ek_bucket_copies c = group_of_copies(m, u);
        int share = u->sharded ? (int)u->share : EK_SHARE_DP;
        int32_t *partner = us->partners + share * (int64_t)most;

        if (c.size == 0)
            continue;
        if (!chosen[share])
            choose_partners(m, &c, partner, scratch);
        chosen[share] = 1;
        if (partner[c.rank] < 0) /* all are on one host */
            continue;
        c.partner = partner;
        u->copies = c;
        u->copies.n = copied_before(m, u, c.size);
    }
out:
    free(scratch);
    return st;
}

/* --- memory ----------------------------------------------------------------------------------- */

void ek_param_bucket_reserve_copies(const ek_model *m, ek_param_bucket *u, ek_arena *a)
{
    ek_bucket_copies *c = &u->copies;
    void **arrays[] = {&c->p, &c->g, &c->m, &c->v};

    for (int i = 0; i < ARRAYS && c->n > 0; i++)
        *arrays[i] = ek_arena_alloc(a, c->n, (size_t)real_size(m));
}

double ek_param_buckets_copy_bytes(const ek_model *m)
{
    double n = 0;

    for (int32_t i = 0; i < m->buckets->n; i++)
        n += (double)m->buckets->bucket[i].copies.n;
    return n * ARRAYS * (double)real_size(m);
}

static void *element_at(const ek_model *m, void *base, int64_t elements)
{
    return base != NULL ? (char *)base + elements * real_size(m) : NULL;
}

int ek_param_copy_of(const ek_model *m, const ek_param_bucket *u, const ek_param *p, int owner,
                     ek_param_copy *out)
{
    const ek_bucket_copies *c = &u->copies;
    int64_t at;

    if (c->partner == NULL || c->partner[owner] != c->rank)
        return 0;
    at = copied_before(m, u, owner);
    *out = (ek_param_copy){0};
    if (u->sharded) {
        out->n = ek_param_owned_by(u, p, owner, &out->first);
        at += p->offset + out->first - u->first[owner];
    } else {
        out->n = length_of(m, u, owner);
        out->col = ek_range_first(m->spec.hidden, c->size, owner);
        out->cols = ek_range_length(m->spec.hidden, c->size, owner);
    }
    out->p = element_at(m, c->p, at);
    out->g = element_at(m, c->g, at);
    out->m = element_at(m, c->m, at);
    out->v = element_at(m, c->v, at);
    return out->n > 0;
}

/* --- messages --------------------------------------------------------------------------------- */

/* Starts to send an array of what this rank has to its partner, and to receive those of its copies,
 * by owner.  Collective over u->copies.group. */
static ek_status send_to_partners(const ek_model *m, const ek_param_bucket *u, const void *kept,
                                  void *copies, ek_coll **op)
{
    const ek_bucket_copies *c = &u->copies;
    int64_t *bytes = m->buckets->copy_bytes;
    ek_status st;

    for (int q = 0; q < c->size; q++)
        bytes[q * c->size + c->partner[q]] = length_of(m, u, q) * real_size(m);
    st = ek_comm_all_to_all(c->group, EK_A2A_LINEAR, bytes, 1, kept, copies, op);
    for (int q = 0; q < c->size; q++)
        bytes[q * c->size + c->partner[q]] = 0;
    return st;
}

ek_status ek_param_buckets_fill_copies(const ek_model *m)
{
    for (int32_t i = 0; i < m->buckets->n; i++) {
        const ek_param_bucket *u = &m->buckets->bucket[i];
        const void *kept[] = {u->p_kept, u->m, u->v};
        void *copies[] = {u->copies.p, u->copies.m, u->copies.v};

        for (int j = 0; j < 3 && u->copies.partner != NULL; j++) {
            ek_coll *op = NULL;

            EK_TRY(send_to_partners(m, u, kept[j], copies[j], &op));
            EK_TRY(ek_coll_wait(&op));
        }
    }
    return EK_OK;
}

static ek_status op_copy_gradients(void *self, const ek_op *op)
{
    const ek_model *m = self;
    const ek_param_bucket *u = &m->buckets->bucket[op->part];

    if (!ek_net_started(op))
        EK_TRY(send_to_partners(m, u, u->g_kept, u->copies.g, ek_net_cell(op)));
    return ek_net_test(op);
}

static ek_status op_nothing(void *self, const ek_op *op)
{
    (void)self;
    (void)op;
    return EK_OK;
}

int32_t ek_param_buckets_build_copies(ek_model *m, ek_graph *g, int32_t dep)
{
    ek_param_buckets *us = m->buckets;
    ek_op wait = {.kind = EK_OP_WAIT_GRADIENTS,
                  .run = op_nothing,
                  .self = m,
                  .lane = EK_LANE_COMPUTE,
                  .layer = -1,
                  .micro = -1,
                  .part = -1};
    int32_t n = 0;

    for (int32_t i = 0; i < us->n; i++) {
        const ek_param_bucket *u = &us->bucket[i];
        ek_work work;
        ek_op op;

        if (u->copies.partner == NULL)
            continue;
        work = ek_net_work_of(m->cfg.mesh, u->copies.mesh_group, EK_COLLECTIVE_PARTNERS,
                              (double)(length_of(m, u, u->copies.rank) * real_size(m)), 1);
        work.net.after =
            (u->copies.partner[u->copies.rank] - u->copies.rank + u->copies.size) % u->copies.size;
        op = ek_net_op(EK_OP_COPY_GRADIENTS, op_copy_gradients, m, work);
        op.layer = u->module >= 0 ? u->module : -1;
        op.part = i;
        us->deps[n++] = ek_graph_after(g, &op, dep);
    }
    return n > 0 ? ek_graph_add(g, &wait, us->deps, n) : dep;
}
