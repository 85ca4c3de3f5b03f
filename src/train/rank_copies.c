/* Messages from owners to partners, one for each parameter bucket, and the journals of copies. */
#include "train/rank_copies.h"

#include "exec/net.h"

typedef enum { MASTERS, FIRST_MOMENTS, SECOND_MOMENTS, GRADIENTS } state_array;

static int64_t bytes_of(const ek_model *m, const ek_param_bucket *u)
{
    return u->kept * (int64_t)ek_dtype_size(m->k->real);
}

static void *array_of(const ek_param_bucket *u, state_array a)
{
    return a == GRADIENTS ? u->g_kept : a == MASTERS ? u->p_kept : a == FIRST_MOMENTS ? u->m : u->v;
}

int32_t ek_rank_copies_messages(const ek_rank_copies *c)
{
    int32_t n = c->partner >= 0 ? c->model->buckets->n : 0;

    for (int32_t i = 0; i < c->n; i++)
        n += c->copy[i].model->buckets->n;
    return n;
}

double ek_rank_copy_numbers(const ek_rank_copy *c)
{
    double n = 0;

    for (int32_t i = 0; i < c->model->buckets->n; i++)
        n += (double)c->model->buckets->bucket[i].kept;
    return n;
}

/* Starts the messages of a model's buckets to or from a rank. */
static ek_status start_messages(ek_rank_copies *c, const ek_model *m, int peer, int sends,
                                state_array a)
{
    ek_comm *world = c->model->cfg.mesh->world;

    for (int32_t i = 0; i < m->buckets->n; i++) {
        const ek_param_bucket *u = &m->buckets->bucket[i];
        ek_coll **op = &c->flight[c->in_flight];
        int tag = i % EK_COMM_TAGS; /* messages with one tag keep their order */

        if (u->kept == 0)
            continue;
        *op = NULL;
        EK_TRY(sends ? ek_comm_send(world, array_of(u, a), bytes_of(m, u), peer, tag, op)
                     : ek_comm_recv(world, array_of(u, a), bytes_of(m, u), peer, tag, op));
        c->in_flight++;
    }
    return EK_OK;
}

static ek_status start_all(ek_rank_copies *c, state_array a)
{
    c->in_flight = 0;
    for (int32_t i = 0; i < c->n; i++)
        EK_TRY(start_messages(c, c->copy[i].model, c->copy[i].owner, 0, a));
    return c->partner >= 0 ? start_messages(c, c->model, c->partner, 1, a) : EK_OK;
}

ek_status ek_rank_copies_fill(ek_rank_copies *c)
{
    for (int a = MASTERS; a <= SECOND_MOMENTS; a++) {
        EK_TRY(start_all(c, (state_array)a));
        for (int32_t i = 0; i < c->in_flight; i++)
            if (c->flight[i] != NULL)
                EK_TRY(ek_coll_wait(&c->flight[i]));
    }
    return EK_OK;
}

/* --- ops -------------------------------------------------------------------------------------- */

static ek_status op_send(void *self, const ek_op *op)
{
    ek_rank_copies *c = self;

    if (*op->state == NULL) {
        EK_TRY(start_all(c, GRADIENTS));
        *op->state = c;
    }
    return ek_net_test_all(c->flight, c->in_flight);
}

static void describe(void *self, const ek_op *op, char *text, size_t cap)
{
    const ek_rank_copies *c = self;

    if (*op->state != NULL)
        ek_net_describe_all(c->flight, c->in_flight, text, cap);
}

static double bytes_to_send(const ek_rank_copies *c)
{
    double bytes = 0;

    for (int32_t i = 0; c->partner >= 0 && i < c->model->buckets->n; i++)
        bytes += (double)bytes_of(c->model, &c->model->buckets->bucket[i]);
    return bytes;
}

int32_t ek_rank_copies_build_send(ek_rank_copies *c, ek_graph *g, int32_t dep)
{
    const ek_mesh *mesh = c->model->cfg.mesh;
    ek_work work = ek_net_work_of(mesh, EK_MESH_WORLD, EK_COLLECTIVE_PARTNERS, bytes_to_send(c), 1);
    ek_op op;

    if (c->partner >= 0)
        work.net.after = (c->partner - mesh->rank + mesh->size) % mesh->size;
    op = ek_net_op(EK_OP_COPY_GRADIENTS, op_send, c, work);
    op.describe = describe;
    return ek_graph_after(g, &op, dep);
}

/* --- journals --------------------------------------------------------------------------------- */

void ek_rank_copies_reduced(const ek_rank_copies *c, int64_t step)
{
    for (int32_t i = 0; i < c->n; i++)
        ek_journal_reduced(c->copy[i].journal, step);
}

void ek_rank_copies_record(const ek_rank_copies *c, int64_t step, const void *record, size_t bytes)
{
    for (int32_t i = 0; i < c->n; i++)
        ek_journal_record(c->copy[i].journal, step, record, bytes);
}

void ek_rank_copies_update(const ek_rank_copies *c, int32_t i, const ek_journal_rule *rule)
{
    const ek_rank_copy *x = &c->copy[i];

    ek_journal_update(x->journal, rule, 0, x->extents_of[x->model->buckets->n]);
}

void ek_rank_copies_add_feedback(const ek_rank_copies *c, const ek_journal_rule *rule)
{
    for (int32_t i = 0; i < c->n; i++) {
        const ek_rank_copy *x = &c->copy[i];
        const int64_t *end = x->extents_of + x->model->buckets->n;

        ek_journal_update(x->journal, rule, end[0], end[1]);
    }
}
