/* The order of a step's ops: a stage's virtual stages, forward and backward, and the transfers
 * to and from the neighbour stages. */
#include "exec/net.h"
#include "model/offload.h"
#include "model/param_buckets.h"
#include "model/step/pass.h"
#include "moe/replica_prefetch.h"
#include "moe/replica_weights.h"

#include <stdlib.h>

/* A work item (one virtual stage, one micro-batch, one direction) while its ops are appended. */
typedef struct {
    ek_pass *p;
    ek_graph *g;
    int32_t micro;
    int model_chunk, vstage, slot;
    int32_t first, end; /* layers */
    int32_t next;       /* module after this item */
    int last_backward;  /* of this chunk's backward items in the step */
    /* Of the next item, if that is a backward item of this chunk; else -1. */
    int32_t backward_micro;
} work;

static int64_t stream_bytes(const work *w)
{
    const ek_model *m = w->p->model;

    return w->p->forward.micro[w->micro].n * m->spec.hidden * (int64_t)ek_dtype_size(m->k->real);
}

static int is_last_vstage(const work *w)
{
    return w->vstage == ek_model_vstages(w->p->model) - 1;
}

/* --- between stages --------------------------------------------------------------------------- */

enum { TAG_FORWARD = 1, TAG_BACKWARD = 2 };

/* The stage of a virtual stage: its rank in the pipe group. */
static int stage_of(const ek_pass *p, int vstage)
{
    return vstage % p->model->cfg.mesh->pp;
}

/* Starts the message of the op's work, or tests it. */
static ek_status transfer_stream(ek_pass *p, const ek_op *op, void *buf, int tag)
{
    ek_comm *pipe = p->model->cfg.mesh->pipe;
    const ek_net_work *w = &op->work.net;
    int64_t bytes = (int64_t)w->bytes;

    if (!ek_net_started(op) && w->collective == EK_COLLECTIVE_SEND)
        EK_TRY(ek_comm_send(pipe, buf, bytes, w->peer, tag, ek_net_cell(op)));
    else if (!ek_net_started(op))
        EK_TRY(ek_comm_recv(pipe, buf, bytes, w->peer, tag, ek_net_cell(op)));
    return ek_net_test(op);
}

static ek_status op_recv_forward(void *self, const ek_op *op)
{
    ek_pass *p = self;
    int32_t at = 2 * (int32_t)ek_model_vstage_first(p->model, op->part);

    return transfer_stream(p, op, ek_forward_x(&p->forward, at, op->micro), TAG_FORWARD);
}

static ek_status op_send_forward(void *self, const ek_op *op)
{
    ek_pass *p = self;
    int32_t at = 2 * (int32_t)ek_model_vstage_first(p->model, op->part + 1);

    return transfer_stream(p, op, ek_forward_x(&p->forward, at, op->micro), TAG_FORWARD);
}

static ek_status op_recv_backward(void *self, const ek_op *op)
{
    ek_pass *p = self;

    return transfer_stream(p, op, p->dx_in, TAG_BACKWARD);
}

static ek_status op_send_backward(void *self, const ek_op *op)
{
    ek_pass *p = self;

    return transfer_stream(p, op, p->dx_out, TAG_BACKWARD);
}

static void copy_stream(const ek_pass *p, const ek_op *op, void *to, const void *from)
{
    const ek_kernels *k = p->model->k;
    int64_t row = p->model->spec.hidden * (int64_t)ek_dtype_size(k->real);

    k->copy_rows(p->forward.micro[op->micro].n, row, from, row, to, row);
}

static ek_status op_gradient_in(void *self, const ek_op *op)
{
    ek_pass *p = self;

    copy_stream(p, op, p->backward.dx, p->dx_in);
    return EK_OK;
}

static ek_status op_gradient_out(void *self, const ek_op *op)
{
    ek_pass *p = self;

    copy_stream(p, op, p->dx_out, p->backward.dx);
    return EK_OK;
}

/* Appends a copy of the stream or its gradient. */
static int32_t add_copy(const work *w, ek_op_kind kind, ek_op_fn run, int32_t a, int32_t b)
{
    ek_op op = {.kind = kind,
                .run = run,
                .self = w->p,
                .lane = EK_LANE_COMPUTE,
                .layer = -1,
                .micro = w->micro,
                .part = w->vstage,
                .bytes = (double)stream_bytes(w),
                .work = ek_work_of_rows((double)w->p->forward.micro[w->micro].n,
                                        (double)w->p->model->spec.hidden)};

    return ek_graph_add(w->g, &op, (int32_t[]){a, b}, 2);
}

/* Appends a message to, or from, the stage of another virtual stage. */
static int32_t add_message(const work *w, ek_op_kind kind, ek_collective collective, ek_op_fn run,
                           int peer_vstage, int32_t dep)
{
    ek_work message =
        ek_net_work_of(w->p->model->cfg.mesh, EK_MESH_PIPE, collective, (double)stream_bytes(w), 1);
    ek_op op;

    message.net.peer = stage_of(w->p, peer_vstage);
    op = ek_net_op(kind, run, w->p, message);
    op.micro = w->micro;
    op.part = w->vstage;
    return ek_graph_after(w->g, &op, dep);
}

/* --- work items ------------------------------------------------------------------------------- */

/* Makes the weights of a module ready; those of `next` are gathered while this one computes, so
 * experts that have migrated are in their slots before. */
static int32_t build_use(const work *w, int32_t module, int32_t next, int uses, int32_t dep)
{
    const int32_t modules[] = {module, w->p->model->cfg.zero == 3 ? next : EK_MODULE_NONE};

    for (int i = 0; i < 2; i++)
        if (modules[i] >= 0)
            dep = ek_rebalance_build_layer(&w->p->rebalance, w->g, modules[i], dep);
    return ek_param_buckets_build_use(w->p->model, w->g, module, next, uses, dep);
}

/* Whether gradients of experts are reduced, and leave their buffers, after each micro-batch. */
static int reduces_each_micro(const ek_model *m)
{
    return m->cfg.zero >= 2 && m->cfg.mesh->edp > 1;
}

/* The MoE layer whose replicas may be sent during the forward of layer l: the next routed layer of
 * the virtual stage, if its weights are present. */
static ek_moe *next_moe(const work *w, int32_t l)
{
    ek_pass *p = w->p;
    int32_t next = l + 1;

    while (next < w->end && p->model->spec.dense[next])
        next++;
    return next < w->end && p->model->cfg.zero < 3 ? &p->moe[next] : NULL;
}

/* The MoE layer whose replicas a backward item of these layers needs first, if they can be sent
 * before it; -1: none. */
static int32_t first_prefetched(const work *w)
{
    const ek_pass *p = w->p;

    return p->cfg.recompute != EK_RECOMPUTE_FULL && p->model->cfg.zero < 3
               ? ek_model_last_moe(p->model, w->first, w->end)
               : -1;
}

static void build_forward(const work *w)
{
    ek_pass *p = w->p;
    int32_t *freed = &p->graph.act_slot_freed[w->model_chunk * p->act_slots + w->slot], dep;
    int head = is_last_vstage(w) && !ek_pass_trains(p);

    if (w->vstage == 0) {
        dep = build_use(w, EK_MODULE_EMBED, w->first, EK_USE_FORWARD, *freed);
        dep = ek_embed_build(&p->backward, w->g, w->micro, dep);
    } else {
        dep = add_message(w, EK_OP_RECEIVE, EK_COLLECTIVE_RECEIVE, op_recv_forward, w->vstage - 1,
                          *freed);
    }
    for (int32_t l = w->first; l < w->end; l++) {
        int32_t next = l + 1 < w->end ? l + 1 : head ? EK_MODULE_HEAD : w->next;

        dep = build_use(w, l, next, EK_USE_FORWARD, dep);
        p->moe[l].ids.next_forward = next_moe(w, l);
        p->moe[l].ids.backward_micro = l == first_prefetched(w) ? w->backward_micro : -1;
        dep = ek_layer_build_forward(&p->forward, &p->moe[l], w->g, l, w->micro, EK_RECOMPUTE_OFF,
                                     dep);
    }
    if (head) { /* when training, the head is part of the backward item */
        dep = build_use(w, EK_MODULE_HEAD, w->next, EK_USE_FORWARD, dep);
        dep = ek_head_build(&p->backward, w->g, w->micro, dep);
    }
    *freed = dep;
    if (!is_last_vstage(w))
        *freed =
            add_message(w, EK_OP_SEND, EK_COLLECTIVE_SEND, op_send_forward, w->vstage + 1, dep);
}

/* The op that provides the gradient of the virtual stage's output: the loss, or the next stage. */
static int32_t build_output_gradient(const work *w)
{
    ek_pass *p = w->p;
    int32_t freed = p->graph.act_slot_freed[w->model_chunk * p->act_slots + w->slot], dep;

    if (is_last_vstage(w)) {
        dep = build_use(w, EK_MODULE_HEAD, w->end - 1, EK_USE_FORWARD | EK_USE_BACKWARD, freed);
        dep = ek_head_build(&p->backward, w->g, w->micro, dep);
        ek_param_buckets_build_reduce(p->model, w->g, EK_MODULE_HEAD, w->micro, w->last_backward,
                                      -1, dep);
        return dep;
    }
    dep = add_message(w, EK_OP_RECEIVE_GRADIENT, EK_COLLECTIVE_RECEIVE, op_recv_backward,
                      w->vstage + 1, p->graph.dx_in_read);
    p->graph.dx_in_read = add_copy(w, EK_OP_GRADIENT_IN, op_gradient_in, dep, freed);
    return p->graph.dx_in_read;
}

/* The first layer of a backward item has no layer before it to overlap its replicas' transfer with.
 * Unless they were sent under the forward item before, it overlaps with the head, or with receiving
 * the gradient. */
static void prefetch_first(const work *w, int32_t before)
{
    ek_pass *p = w->p;
    int32_t l = first_prefetched(w);

    if (l >= 0 && p->moe[l].ids.backward_fetch < 0)
        ek_moe_build_backward_prefetch(&p->moe[l], w->g, w->micro, before);
}

static void build_backward(const work *w)
{
    ek_pass *p = w->p;
    ek_model *m = p->model;
    int32_t before = ek_graph_last_of(w->g, EK_LANE_COMPUTE), dep;
    int uses = EK_USE_BACKWARD | (p->cfg.recompute != EK_RECOMPUTE_OFF ? EK_USE_FORWARD : 0);

    dep = build_output_gradient(w);
    prefetch_first(w, before); /* network ops start in order: receive the gradient first */
    for (int32_t l = w->end - 1; l >= w->first; l--) {
        int32_t next = l > w->first ? l - 1 : w->vstage == 0 ? EK_MODULE_EMBED : w->next;

        dep = build_use(w, l, next, uses, dep);
        dep = ek_layer_build_backward(&p->backward, w->g, l, w->micro, dep);
        if (w->last_backward || reduces_each_micro(m))
            ek_moe_build_share(&p->moe[l], w->g, w->micro, reduces_each_micro(m));
        ek_param_buckets_build_reduce(m, w->g, l, w->micro, w->last_backward, p->moe[l].ids.reduce,
                                      dep);
    }
    if (w->vstage == 0) {
        dep = build_use(w, EK_MODULE_EMBED, w->next, EK_USE_BACKWARD, dep);
        dep = ek_embed_build_backward(&p->backward, w->g, w->micro, dep);
        ek_param_buckets_build_reduce(m, w->g, EK_MODULE_EMBED, w->micro, w->last_backward, -1,
                                      dep);
    } else {
        dep = add_copy(w, EK_OP_GRADIENT_OUT, op_gradient_out, dep, p->graph.dx_out_sent);
        p->graph.dx_out_sent = add_message(w, EK_OP_SEND_GRADIENT, EK_COLLECTIVE_SEND,
                                           op_send_backward, w->vstage - 1, dep);
    }
    p->graph.act_slot_freed[w->model_chunk * p->act_slots + w->slot] = dep;
}

/* The lowest free activation slot of a chunk. */
static int take_act_slot(ek_pass *p, int model_chunk)
{
    int slot = 0;

    while (slot < p->act_slots - 1 && p->graph.act_slot_taken[model_chunk * p->act_slots + slot])
        slot++;
    p->graph.act_slot_taken[model_chunk * p->act_slots + slot] = 1;
    return slot;
}

static int vstage_of_item(const ek_pass *p, const ek_pipe_item *item)
{
    return item->model_chunk * p->model->cfg.mesh->pp + p->model->cfg.mesh->pp_rank;
}

/* The module whose ops come first in an item. */
static int32_t first_module(const ek_pass *p, const ek_pipe_item *item)
{
    int vstage = vstage_of_item(p, item);

    if (item->backward && vstage == ek_model_vstages(p->model) - 1)
        return EK_MODULE_HEAD;
    if (item->backward)
        return (int32_t)ek_model_vstage_first(p->model, vstage + 1) - 1;
    return vstage == 0 ? EK_MODULE_EMBED : (int32_t)ek_model_vstage_first(p->model, vstage);
}

/* next: the item after; NULL: none. */
static void build_item(ek_pass *p, ek_graph *g, const ek_pipe_item *item, const ek_pipe_item *next)
{
    int vstage = vstage_of_item(p, item);
    int32_t *slot = &p->forward.act_slot_of[item->model_chunk * p->cfg.micros + item->micro];
    work w = {.p = p,
              .g = g,
              .micro = item->micro,
              .model_chunk = item->model_chunk,
              .vstage = vstage,
              .first = (int32_t)ek_model_vstage_first(p->model, vstage),
              .end = (int32_t)ek_model_vstage_first(p->model, vstage + 1),
              .next = next != NULL ? first_module(p, next) : EK_MODULE_NONE,
              .backward_micro =
                  next != NULL && next->backward && next->model_chunk == item->model_chunk
                      ? next->micro
                      : -1,
              .last_backward = item->micro == (int32_t)p->forward.n_micro - 1};

    if (!ek_pass_trains(p))
        *slot = item->micro % p->pipe_group;
    else if (!item->backward)
        *slot = take_act_slot(p, item->model_chunk);
    w.slot = *slot;
    if (item->backward)
        build_backward(&w);
    else
        build_forward(&w);
    if (item->backward)
        p->graph.act_slot_taken[item->model_chunk * p->act_slots + w.slot] = 0;
}

/* The stage's work items in order; returns their number.  In a forward-only step a slot must not be
 * reused before the next stage can have read it: this stage waits for that, and the next one may be
 * waiting for a later item of this stage.  So micro-batches are processed in groups that have a
 * slot each. */
static int64_t order_items(ek_pass *p)
{
    const ek_model_config *c = &p->model->cfg;
    int64_t n = 0;

    if (ek_pass_trains(p))
        return ek_pipe_order(c->mesh->pp, c->model_chunks, p->forward.n_micro, c->mesh->pp_rank, 1,
                             p->graph.order);
    for (int64_t first = 0; first < p->forward.n_micro; first += p->pipe_group) {
        int64_t left = p->forward.n_micro - first,
                micros = left < p->pipe_group ? left : p->pipe_group, begin = n;

        n += ek_pipe_order(c->mesh->pp, c->model_chunks, micros, c->mesh->pp_rank, 0,
                           p->graph.order + n);
        for (int64_t i = begin; i < n; i++)
            p->graph.order[i].micro += (int32_t)first;
    }
    return n;
}

static ek_status op_sum(void *self, const ek_op *op)
{
    (void)op;
    ek_pass_sum(self);
    return EK_OK;
}

/* Sums the number of targets that count over data parallel ranks: each rank's loss and gradient is
 * divided by it. */
static ek_status op_count_targets(void *self, const ek_op *op)
{
    ek_pass *p = self;

    if (!ek_net_started(op))
        EK_TRY(ek_comm_all_reduce(p->model->cfg.mesh->dp_group, &p->backward.loss.tokens, 1,
                                  EK_SUM_F64, ek_net_cell(op)));
    return ek_net_test(op);
}

static int32_t build_count(ek_pass *p, ek_graph *g)
{
    size_t bytes = sizeof(p->backward.loss.tokens);
    ek_op op = ek_net_op(EK_OP_COUNT_TARGETS, op_count_targets, p,
                         ek_net_work_of(p->model->cfg.mesh, EK_MESH_DP, EK_COLLECTIVE_ALL_REDUCE,
                                        (double)bytes, bytes));

    return p->backward.loss.masked && p->model->cfg.mesh->dp > 1 ? ek_graph_after(g, &op, -1) : -1;
}

/* The order of a step's items on this stage, for ek_offload_plan_layer. */
typedef struct {
    ek_model *model;
    const ek_pass_config *cfg;
    const ek_moe *moe;         /* [layers]; NULL: chunks as configured */
    const ek_pipe_item *order; /* [n] */
    int64_t n;
} item_plan;

/* Chunks of a layer's rows. */
static int32_t chunks_of(const item_plan *p, int32_t layer)
{
    const ek_moe_config *c = &p->cfg->moe;

    if (p->moe != NULL)
        return p->moe[layer].x.chunks;
    return ek_dispatch_chunks_most(p->model->cfg.mesh, c->degree, c->smart_group);
}

/* Plans a layer's products, chunk by chunk; weight gradients with all rows. */
static ek_status plan_products(const item_plan *p, int32_t layer, ek_wave_use use)
{
    if (use == EK_WAVE_WEIGHT_GRADIENT)
        return ek_offload_plan_layer(p->model, layer, -1, use);
    for (int32_t c = 0; c < chunks_of(p, layer); c++)
        EK_TRY(ek_offload_plan_layer(p->model, layer, c, use));
    return EK_OK;
}

/* Plans the uses of offloaded experts by the items, in the order of their ops. */
static ek_status plan_items(void *context)
{
    const item_plan *p = context;
    ek_model *m = p->model;

    for (int64_t i = 0; i < p->n; i++) {
        const ek_pipe_item *item = &p->order[i];
        int vstage = item->model_chunk * m->cfg.mesh->pp + m->cfg.mesh->pp_rank;
        int32_t first = (int32_t)ek_model_vstage_first(m, vstage);
        int32_t end = (int32_t)ek_model_vstage_first(m, vstage + 1);

        for (int32_t l = first; l < end && !item->backward; l++)
            EK_TRY(plan_products(p, l, EK_WAVE_FORWARD));
        for (int32_t l = end - 1; l >= first && item->backward; l--) {
            if (p->cfg->recompute == EK_RECOMPUTE_FULL)
                EK_TRY(plan_products(p, l, EK_WAVE_FORWARD));
            EK_TRY(plan_products(p, l, EK_WAVE_BACKWARD));
            EK_TRY(plan_products(p, l, EK_WAVE_WEIGHT_GRADIENT));
        }
    }
    return EK_OK;
}

static ek_status plan_offload(ek_pass *p, ek_graph *g, int64_t n)
{
    item_plan plan = {p->model, &p->cfg, p->moe, p->graph.order, n};

    ek_offload_begin_plan(p->model);
    EK_TRY(plan_items(&plan));
    ek_offload_end_plan(p->model, g);
    return EK_OK;
}

ek_status ek_pass_count_disk(ek_model *m, const ek_pass_config *cfg, ek_offload_traffic *out)
{
    int64_t micros = cfg->micros > 0 ? cfg->micros : 1;
    int chunks = m->cfg.model_chunks;
    ek_pipe_item *order = malloc((size_t)(2 * chunks * micros) * sizeof(*order));
    item_plan plan = {m, cfg, NULL, order, 0};
    ek_status st;

    EK_REQUIRE(order != NULL, EK_ENOMEM, "no memory for %lld micro-batches", (long long)micros);
    plan.n = ek_pipe_order(m->cfg.mesh->pp, chunks, micros, m->cfg.mesh->pp_rank, 1, order);
    st = ek_offload_count(m, plan_items, &plan, out);
    free(order);
    return st;
}

ek_status ek_pass_build(ek_pass *p, ek_graph *g)
{
    const ek_model_config *c = &p->model->cfg;
    ek_op sum = {.kind = EK_OP_LOSSES,
                 .run = op_sum,
                 .self = p,
                 .lane = EK_LANE_COMPUTE,
                 .layer = -1,
                 .micro = -1,
                 .part = -1,
                 .bytes = (double)p->stats.n_sums * sizeof(*p->stats.sums),
                 .work = ek_work_of_rows((double)p->stats.n_sums, 1)};
    int64_t n = order_items(p);

    p->graph.dx_in_read = p->graph.dx_out_sent = -1;
    for (int i = 0; i < c->model_chunks * p->act_slots; i++) {
        p->graph.act_slot_freed[i] = -1;
        p->graph.act_slot_taken[i] = 0;
    }
    p->backward.loss.counted = build_count(p, g);
    ek_param_buckets_begin_step(p->model);
    EK_TRY(plan_offload(p, g, n));
    ek_rebalance_build_start(&p->rebalance, g);
    for (int64_t i = 0; i < n; i++)
        build_item(p, g, &p->graph.order[i], i + 1 < n ? &p->graph.order[i + 1] : NULL);
    if (ek_pass_trains(p) || !p->cfg.training)
        ek_graph_after(g, &sum, p->backward.loss.counted);
    return ek_graph_check(g);
}
