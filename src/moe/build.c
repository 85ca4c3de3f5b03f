/* Appending the ops of a MoE layer: their common fields, and sizes for their costs. */
#include "moe/build.h"

#include "exec/net.h"
#include "nn/batch_shares.h"

static ek_op op_of(const ek_moe_builder *b, ek_op_kind kind, ek_op_fn run, int32_t part,
                   ek_work work, double bytes)
{
    return (ek_op){.kind = kind,
                   .run = run,
                   .self = b->m,
                   .lane = EK_LANE_COMPUTE,
                   .layer = b->m->w->layer,
                   .micro = b->micro,
                   .part = part,
                   .recompute = b->recompute,
                   .flops = ek_work_flops(&work),
                   .bytes = bytes,
                   .work = work};
}

int32_t ek_moe_add(const ek_moe_builder *b, ek_op_kind kind, ek_op_fn run, int32_t part,
                   ek_work work, double bytes, int32_t dep)
{
    ek_op op = op_of(b, kind, run, part, work, bytes);

    return ek_graph_after(b->g, &op, dep);
}

int32_t ek_moe_add_kernels(const ek_moe_builder *b, ek_op_kind kind, ek_op_fn run, int32_t part,
                           ek_work work, double bytes, int32_t dep)
{
    ek_op op = op_of(b, kind, run, part, work, bytes);

    op.async = b->m->x.ranks == 1; /* with more ranks, the host accesses the data too */
    return ek_graph_after(b->g, &op, dep);
}

int32_t ek_moe_add_net(const ek_moe_builder *b, ek_op_kind kind, ek_op_fn run, int32_t part,
                       ek_work work, int32_t dep, int32_t dep2)
{
    ek_op op = ek_net_op(kind, run, b->m, work);
    const int32_t deps[] = {dep, dep2};

    op.layer = b->m->w->layer;
    op.micro = b->micro;
    op.part = part;
    op.recompute = b->recompute;
    return ek_graph_add(b->g, &op, deps, 2);
}

int64_t ek_moe_group_tokens(const ek_moe *m, int32_t micro)
{
    const ek_mesh *mesh = m->mesh;
    const ek_micro *mb = &m->step->micro[micro];
    int ranks = mesh->ep * mesh->etp, first = mesh->edp_rank * ranks;
    int64_t seqs = mb->seq > 0 ? mb->total / mb->seq : 0;

    if (seqs * mb->seq != mb->total) /* of the library's layers: no sequences are known */
        return mb->total / mesh->edp;
    return ek_shares_first_token(mb->shares, mesh->dp, mesh->tp, seqs, mb->seq, first + ranks) -
           ek_shares_first_token(mb->shares, mesh->dp, mesh->tp, seqs, mb->seq, first);
}

ek_moe_builder ek_moe_builder_of(ek_moe *m, ek_graph *g, int32_t micro, int64_t tokens,
                                 int recompute)
{
    const ek_model_spec *s = m->spec;
    double per_token =
        s->gate.kind == EK_GATE_EXPERT_CHOICE ? (double)s->top_k : (double)m->step->top_k;
    double served = ek_moe_is_distributed(m)
                        ? (double)ek_moe_group_tokens(m, micro) / (m->mesh->ep * m->x.members)
                        : (double)tokens;
    ek_moe_cost c = {.n = (double)tokens,
                     .sent = (double)tokens * per_token * m->x.copies,
                     .rows = served * per_token,
                     .d = (double)s->hidden,
                     .f = (double)ek_slice_first(m, m->x.members),
                     .experts = (double)s->experts,
                     .here = (double)s->experts / m->mesh->ep,
                     .comp = (double)ek_dtype_size(m->k->comp),
                     .real = (double)ek_dtype_size(m->k->real)};

    return (ek_moe_builder){m, g, micro, recompute, c};
}

static ek_status op_wait(void *self, const ek_op *op)
{
    (void)self;
    (void)op;
    return EK_OK;
}

int32_t ek_moe_add_wait(const ek_moe_builder *b, int32_t awaited, int32_t dep)
{
    ek_op op = op_of(b, EK_OP_WAIT_REPLICAS, op_wait, -1, (ek_work){0}, 0);

    op.stall_ns = &b->m->stats.stall_ns;
    return ek_graph_add(b->g, &op, (int32_t[]){dep, awaited}, 2);
}
