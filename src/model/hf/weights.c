/* Maps Hugging Face tensors to ranges of this rank's weights. */
#include "model/hf/weights.h"

/* Rows [row, row + rows) of a tensor are the rows of w from `at` on. */
static int rows_of(ek_span *out, ek_weight *w, int64_t row, int64_t rows, int64_t at)
{
    int64_t width = w->in > 0 ? w->in : 1;

    *out = (ek_span){w, at * width, width, row, rows, 0, width};
    return rows > 0 && w->out > 0;
}

/* Columns of a tensor: all of w. */
static int columns_of(ek_span *out, ek_weight *w, int64_t col)
{
    *out = (ek_span){w, 0, w->in, 0, w->out, col, w->in};
    return w->out > 0 && w->in > 0;
}

static int whole_of(ek_span *out, ek_weight *w)
{
    return rows_of(out, w, 0, w->out, 0);
}

static int attention_span(ek_model *m, ek_layer *y, ek_role role, ek_span *out)
{
    const ek_local_sizes *c = &m->local;
    int64_t hd = m->spec.head_dim, q = c->heads * hd, kv = c->kv_heads * hd;
    int64_t kv_first = c->kv_first * hd, q_first = kv_first * (m->spec.heads / m->spec.kv_heads);
    int by_head = m->spec.qk_norm == EK_QK_NORM_HEAD;

    switch (role) {
    case EK_ROLE_Q: return rows_of(out, &y->qkv, q_first, q, 0);
    case EK_ROLE_K: return rows_of(out, &y->qkv, kv_first, kv, q);
    case EK_ROLE_V: return rows_of(out, &y->qkv, kv_first, kv, q + kv);
    case EK_ROLE_Q_BIAS: return rows_of(out, &y->qkv_bias, q_first, q, 0);
    case EK_ROLE_K_BIAS: return rows_of(out, &y->qkv_bias, kv_first, kv, q);
    case EK_ROLE_V_BIAS: return rows_of(out, &y->qkv_bias, kv_first, kv, q + kv);
    case EK_ROLE_O: return columns_of(out, &y->out, q_first);
    case EK_ROLE_Q_NORM:
        return by_head ? whole_of(out, &y->q_norm) : rows_of(out, &y->q_norm, q_first, q, 0);
    case EK_ROLE_K_NORM:
        return by_head ? whole_of(out, &y->k_norm) : rows_of(out, &y->k_norm, kv_first, kv, 0);
    default: return 0;
    }
}

static int expert_span(ek_model *m, ek_moe_weights *moe, const ek_hf_tensor *t, ek_span *out)
{
    const ek_local_sizes *c = &m->local;
    int64_t shared = moe->routed ? c->shared_first : c->dense_first;

    switch (t->role) {
    case EK_ROLE_DENSE_GATE:
    case EK_ROLE_SHARED_GATE: return rows_of(out, &moe->mlp.up, shared, moe->mlp.f, 0);
    case EK_ROLE_DENSE_UP:
    case EK_ROLE_SHARED_UP: return rows_of(out, &moe->mlp.up, shared, moe->mlp.f, moe->mlp.f);
    case EK_ROLE_DENSE_DOWN:
    case EK_ROLE_SHARED_DOWN: return columns_of(out, &moe->mlp.down, shared);
    case EK_ROLE_EXPERT_GATE: return rows_of(out, &moe->up[t->expert], c->ff_first, moe->ff, 0);
    case EK_ROLE_EXPERT_UP: return rows_of(out, &moe->up[t->expert], c->ff_first, moe->ff, moe->ff);
    case EK_ROLE_EXPERT_DOWN: return columns_of(out, &moe->down[t->expert], c->ff_first);
    case EK_ROLE_ROUTER: return whole_of(out, &moe->router);
    case EK_ROLE_ROUTER_PROJECTION: return whole_of(out, &moe->router_projection);
    case EK_ROLE_ROUTER_SCALE: return whole_of(out, &moe->router_scale);
    case EK_ROLE_ROUTER_BIAS: return whole_of(out, &moe->bias);
    case EK_ROLE_SHARED_ROUTER: return whole_of(out, &moe->mlp.gate);
    default: return 0;
    }
}

/* The embedding: rows sharded over tp, columns optionally over dp. */
static int embed_of(ek_model *m, ek_span *out)
{
    const ek_local_sizes *c = &m->local;

    *out = (ek_span){&m->embed,    0, m->embed.in, c->vocab_first, c->vocab, c->embed_first,
                     c->embed_cols};
    return m->embed.out > 0 && m->embed.in > 0;
}

/* Whether this rank has the embedding only as its head. */
static int tied_copy(const ek_model *m)
{
    return m->spec.tie_embeddings && !ek_model_has_embed(m) && ek_model_has_head(m);
}

int ek_model_span(ek_model *m, const ek_hf_tensor *t, ek_span *out)
{
    ek_layer *y = t->layer >= 0 ? &m->layers[t->layer] : NULL;

    if (t->layer >= 0 && !ek_model_has_layer(m, t->layer))
        return 0;
    switch (t->role) {
    case EK_ROLE_EMBED:
        return tied_copy(m) ? rows_of(out, &m->head, m->local.vocab_first, m->local.vocab, 0)
                            : embed_of(m, out);
    case EK_ROLE_HEAD: return rows_of(out, &m->head, m->local.vocab_first, m->local.vocab, 0);
    case EK_ROLE_FINAL_NORM: return whole_of(out, &m->final_norm);
    case EK_ROLE_NORM1: return whole_of(out, &y->norm1);
    case EK_ROLE_NORM2: return whole_of(out, &y->norm2);
    case EK_ROLE_Q_NORM:
    case EK_ROLE_K_NORM:
    case EK_ROLE_Q:
    case EK_ROLE_K:
    case EK_ROLE_V:
    case EK_ROLE_Q_BIAS:
    case EK_ROLE_K_BIAS:
    case EK_ROLE_V_BIAS:
    case EK_ROLE_O: return attention_span(m, y, t->role, out);
    default: return expert_span(m, &y->experts, t, out);
    }
}

int ek_span_part(const ek_span *s, int64_t first, int64_t n, ek_tensor_slice *slice, int64_t *from)
{
    int64_t begin = first > s->first ? first : s->first, end = s->first + s->rows * s->ld;

    end = end < first + n ? end : first + n;
    if (begin >= end)
        return 0;
    *slice = (ek_tensor_slice){s->row + (begin - s->first) / s->ld, (end - begin) / s->ld, s->col,
                               s->cols};
    *from = begin;
    return 1;
}
