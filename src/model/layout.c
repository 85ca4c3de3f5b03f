/* Lists a model's weights: one function per kind of layer, which gives for each weight of this rank
 * its local size and the group that holds the same shard. */
#include "model/layout.h"

#include "model/param_buckets.h"

#include <string.h>

/* State of the walk. */
typedef struct {
    ek_model *m;
    int64_t n;
    int32_t module;         /* of the weights to be added */
    ek_placement placement; /* of the layer before; .experts 0: there is none */
} walk;

static void add_weight(walk *w, ek_weight *x, int64_t out, int64_t in, ek_share share,
                       int32_t expert)
{
    int32_t layer = w->module >= 0 ? w->module : -1;

    x->out = out;
    x->in = in;
    if (w->m->params != NULL)
        w->m->params[w->n] = (ek_param){.w = x,
                                        .layer = layer,
                                        .expert = expert,
                                        .slot = -1,
                                        .share = share,
                                        .decay = in > 0,
                                        .trained = 1,
                                        .module = w->module};
    w->n++;
}

/* Add a vector, a matrix, and an operand of matrix products.  Length 0: not on this rank. */
static void add_vector(walk *w, ek_weight *x, int64_t out, ek_share share)
{
    if (out > 0)
        add_weight(w, x, out, 0, share, -1);
}

static void add_matrix(walk *w, ek_weight *x, int64_t out, int64_t in, ek_share share)
{
    if (out > 0 && in > 0)
        add_weight(w, x, out, in, share, -1);
}

static void add_product(walk *w, ek_weight *x, int64_t out, int64_t in, ek_share share,
                        int32_t expert)
{
    if (out == 0 || in == 0)
        return;
    add_weight(w, x, out, in, share, expert);
    if (w->m->params != NULL)
        w->m->params[w->n - 1].forms = 1;
}

int32_t ek_model_state_slots(const ek_model *m, int32_t slots)
{
    return m->cfg.persistent_slots ? slots - m->cfg.transient_slots : 0;
}

/* The weights of one slot of this rank, if it holds an expert or may hold one later.  While the
 * tables are measured the expert is not known yet, and one is assumed. */
static void walk_slot(walk *w, ek_moe_weights *moe, int32_t slot)
{
    const ek_model_spec *s = &w->m->spec;
    ek_weight measured[2]; /* placeholders while the tables are measured */
    ek_weight *up = &measured[0], *down = &measured[1];
    int32_t expert = 0;

    if (moe->param_of != NULL) {
        expert = moe->placement.expert_of[ek_moe_first_slot(moe, w->m->cfg.mesh) + slot];
        moe->param_of[slot] = -1;
        up = expert >= 0 ? &moe->up[expert] : &moe->empty[2 * slot];
        down = expert >= 0 ? &moe->down[expert] : &moe->empty[2 * slot + 1];
    }
    if (expert < 0 && slot >= ek_model_state_slots(w->m, moe->placement.slots))
        return;
    if (moe->param_of != NULL && moe->ff > 0)
        moe->param_of[slot] = (int32_t)w->n;
    add_product(w, up, 2 * moe->ff, s->hidden, EK_SHARE_EDP, expert);
    add_product(w, down, s->hidden, moe->ff, EK_SHARE_EDP, expert);
    for (int64_t i = w->n - 2; w->m->params != NULL && moe->ff > 0 && i < w->n; i++) {
        w->m->params[i].slot = slot;
        w->m->params[i].idle = expert < 0;
    }
}

static void walk_experts(walk *w, ek_moe_weights *moe)
{
    const ek_model_spec *s = &w->m->spec;
    int64_t d = s->hidden;

    add_matrix(w, &moe->router, s->experts, s->router_dim > 0 ? s->router_dim : d, EK_SHARE_STAGE);
    if (s->router_dim > 0) {
        add_matrix(w, &moe->router_projection, s->router_dim, d, EK_SHARE_STAGE);
        add_vector(w, &moe->router_scale, 1, EK_SHARE_STAGE);
    }
    if (s->gate.kind == EK_GATE_SIGMOID_BIAS) {
        add_vector(w, &moe->bias, s->experts, EK_SHARE_STAGE);
        if (w->m->params != NULL)
            w->m->params[w->n - 1].trained = 0;
    }
    moe->up = ek_arena_alloc(&w->m->tables, s->experts, sizeof(*moe->up));
    moe->down = ek_arena_alloc(&w->m->tables, s->experts, sizeof(*moe->down));
    moe->empty =
        ek_arena_alloc(&w->m->tables, 2 * (int64_t)moe->placement.slots, sizeof(*moe->empty));
    moe->param_of = ek_arena_alloc(&w->m->tables, moe->placement.slots, sizeof(*moe->param_of));
    for (int32_t slot = 0; slot < moe->placement.slots; slot++)
        walk_slot(w, moe, slot);
}

static void walk_layer(walk *w, ek_layer *y, int32_t l)
{
    const ek_model_spec *s = &w->m->spec;
    const ek_local_sizes *c = &w->m->local;
    int64_t d = s->hidden, hd = s->head_dim;
    int64_t q = c->heads * hd, width = q + 2 * c->kv_heads * hd;
    int by_head = s->qk_norm == EK_QK_NORM_HEAD;
    ek_moe_weights *moe = &y->experts;

    w->module = l;
    add_vector(w, &y->norm1, d, EK_SHARE_STAGE);
    add_product(w, &y->qkv, width, d, EK_SHARE_DP, -1);
    if (s->qkv_bias)
        add_vector(w, &y->qkv_bias, width, EK_SHARE_DP);
    if (s->qk_norm != EK_QK_NORM_NONE) {
        add_vector(w, &y->q_norm, by_head ? hd : q, by_head ? EK_SHARE_STAGE : EK_SHARE_DP);
        add_vector(w, &y->k_norm, by_head ? hd : c->kv_heads * hd,
                   by_head ? EK_SHARE_STAGE : EK_SHARE_DP);
    }
    add_product(w, &y->out, d, q, EK_SHARE_DP, -1);
    add_vector(w, &y->norm2, d, EK_SHARE_STAGE);
    ek_moe_reserve_weights(moe, &w->m->tables, s, w->m->cfg.mesh, w->m->cfg.spare_slots, l,
                           w->m->cfg.never_touched && w->placement.experts > 0 ? &w->placement
                                                                               : NULL);
    w->placement = moe->placement;
    if (moe->routed)
        walk_experts(w, moe);
    if (moe->mlp.present) {
        add_product(w, &moe->mlp.up, 2 * moe->mlp.f, d, EK_SHARE_DP, -1);
        add_product(w, &moe->mlp.down, d, moe->mlp.f, EK_SHARE_DP, -1);
    }
    if (moe->mlp.gated)
        add_matrix(w, &moe->mlp.gate, 1, d, EK_SHARE_STAGE);
}

/* The embedding; if tied, it is an operand of products, too. */
static void walk_embed(walk *w)
{
    ek_model *m = w->m;

    w->module = EK_MODULE_EMBED;
    if (m->spec.tie_embeddings && ek_model_has_head(m))
        add_product(w, &m->embed, m->local.vocab, m->spec.hidden, EK_SHARE_DP, -1);
    else
        add_matrix(w, &m->embed, m->local.vocab, m->local.embed_cols,
                   m->cfg.embed_columns ? EK_SHARE_NONE : EK_SHARE_DP);
}

static void walk_head(walk *w)
{
    ek_model *m = w->m;
    int64_t before;

    w->module = EK_MODULE_HEAD;
    add_vector(w, &m->final_norm, m->spec.hidden, EK_SHARE_STAGE);
    if (m->spec.tie_embeddings && ek_model_has_embed(m))
        return; /* the embedding itself */
    before = w->n;
    add_product(w, &m->head, m->local.vocab, m->spec.hidden, EK_SHARE_DP, -1);
    if (m->params != NULL && w->n > before)
        m->params[before].copy = m->spec.tie_embeddings;
}

int64_t ek_model_list_params(ek_model *m)
{
    walk w = {.m = m, .module = EK_MODULE_NONE};

    m->layers = ek_arena_alloc(&m->tables, m->spec.layers, sizeof(*m->layers));
    m->params = ek_arena_alloc(&m->tables, m->n_params, sizeof(*m->params));
    if (ek_model_has_embed(m))
        walk_embed(&w);
    for (int32_t l = 0; l < (int32_t)m->spec.layers; l++) {
        ek_layer measured;

        memset(&measured, 0, sizeof(measured));
        if (ek_model_has_layer(m, l))
            walk_layer(&w, m->layers != NULL ? &m->layers[l] : &measured, l);
    }
    if (ek_model_has_head(m))
        walk_head(&w);
    return w.n;
}

ek_local_sizes ek_model_local_sizes(const ek_model_spec *s, const ek_model_config *cfg)
{
    const ek_mesh *mesh = cfg->mesh;
    int tp = mesh->tp, at = mesh->tp_rank;
    int dp = cfg->embed_columns ? mesh->dp : 1, dp_rank = cfg->embed_columns ? mesh->dp_rank : 0;
    int64_t kv_heads = ek_range_length(s->kv_heads, tp, at);

    return (ek_local_sizes){.heads = kv_heads * (s->heads / s->kv_heads),
                            .kv_first = ek_range_first(s->kv_heads, tp, at),
                            .kv_heads = kv_heads,
                            .vocab_first = ek_range_first(s->vocab, tp, at),
                            .vocab = ek_range_length(s->vocab, tp, at),
                            .embed_first = ek_range_first(s->hidden, dp, dp_rank),
                            .embed_cols = ek_range_length(s->hidden, dp, dp_rank),
                            .ff_first = ek_range_first(s->ff, mesh->etp, mesh->etp_rank),
                            .ff = ek_range_length(s->ff, mesh->etp, mesh->etp_rank),
                            .shared_first = ek_range_first(s->shared_ff, tp, at),
                            .shared_ff = ek_range_length(s->shared_ff, tp, at),
                            .dense_first = ek_range_first(s->dense_ff, tp, at),
                            .dense_ff = ek_range_length(s->dense_ff, tp, at)};
}
