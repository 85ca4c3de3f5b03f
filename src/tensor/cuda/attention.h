/* tensor/cuda/attention.h - arguments of the attention kernels. */
#ifndef TENSOR_CUDA_ATTENTION_H
#define TENSOR_CUDA_ATTENTION_H

#include "tensor/cuda/device.h"

/* Rows of one head, `n` of them; row i begins at at + i * ld. */
template <class C> struct rows_of {
    const C *at;
    int64_t ld, n;
};

/* Initial row maximum, below every score but finite: masked scores are -inf, and -inf minus -inf
 * would be NaN. */
static const float ek_below_scores = -3e38f;

/* Forward, all heads of some sequences.  Query i of a sequence has position pos0 + i and sees keys
 * starts[i] to pos0 + i; head h of sequence b begins at q + b * q_seq + h * dim, and so on. */
template <class R, class C> struct attending {
    int64_t sequences, queries, pos0, heads, per, dim; /* per: query heads per key head */
    R scale;
    const C *q, *k, *v;
    int64_t q_seq, q_ld, k_seq, k_ld;
    C *o;                  /* [sequence][query][heads * dim] */
    R *lse;                /* [sequence][head][query]; or NULL */
    const int32_t *starts; /* [sequence][query], never decreasing within one; NULL: 0 */

    /* First visible key of query t of sequence b; 0 past the last query. */
    __device__ int64_t start_of(int64_t b, int64_t t) const
    {
        return starts != nullptr && t < queries ? starts[b * queries + t] : 0;
    }
};

/* Backward. */
template <class R, class C> struct gradients {
    int64_t batch, seq, heads, kv_heads, dim, ld;
    R scale;
    const C *qkv, *o, *d_o;
    const R *lse;
    R *delta; /* [batch, heads, seq] */
    C *dqkv;
    const int32_t *starts; /* [batch, seq]; or NULL */
};

/* Inputs of the backward pass of one query head of one sequence. */
template <class R, class C> struct sides {
    rows_of<C> q, k, v, d_o;
    const R *lse, *delta;
    const int32_t *starts; /* [seq]; or NULL */

    __device__ int64_t start_of(int64_t t) const
    {
        return starts != nullptr && t < q.n ? starts[t] : 0;
    }
};

template <class R, class C>
__device__ sides<R, C> sides_of(const gradients<R, C> &g, int64_t b, int64_t h)
{
    int64_t kv = h / (g.heads / g.kv_heads), width = g.heads * g.dim;
    const C *row = g.qkv + b * g.seq * g.ld;

    return {{row + h * g.dim, g.ld, g.seq},
            {row + (g.heads + kv) * g.dim, g.ld, g.seq},
            {row + (g.heads + g.kv_heads + kv) * g.dim, g.ld, g.seq},
            {g.d_o + b * g.seq * width + h * g.dim, width, g.seq},
            g.lse + (b * g.heads + h) * g.seq,
            g.delta + (b * g.heads + h) * g.seq,
            g.starts != nullptr ? g.starts + b * g.seq : nullptr};
}

/* Launch on tensor cores (attention_bf16.cu); 0: not supported for these.  Gradients: after delta
 * is computed. */
int ek_cuda_attend_bf16(const char *name, const attending<float, ek_bf16> &a);
int ek_cuda_gradients_bf16(const gradients<float, ek_bf16> &g);

#endif
