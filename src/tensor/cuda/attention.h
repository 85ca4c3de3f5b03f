/* tensor/cuda/attention.h - what kernels of attention work on. */
#ifndef TENSOR_CUDA_ATTENTION_H
#define TENSOR_CUDA_ATTENTION_H

#include "tensor/cuda/device.h"

/* Rows of one head, `n` of them; row i begins at at + i * ld. */
template <class C> struct rows_of {
    const C *at;
    int64_t ld, n;
};

/* A top below every score: what is not seen has a score of -inf, and the difference of both is no
 * NaN. */
static const float ek_below_scores = -3e38f;

/* All heads of some sequences.  Query i of a sequence is at position pos0 + i and sees the keys up
 * to its own, from starts[i] on; head h of sequence b begins at q + b * q_seq + h * dim, and so on.
 */
template <class R, class C> struct attending {
    int64_t sequences, queries, pos0, heads, per, dim; /* per: query heads of a key head */
    R scale;
    const C *q, *k, *v;
    int64_t q_seq, q_ld, k_seq, k_ld;
    C *o;                  /* rows [heads * dim] of all sequences' queries */
    R *lse;                /* [sequence][head][query], or none */
    const int32_t *starts; /* [sequence][query], never decreasing in one; none: 0 */

    /* The first key that a query of a sequence sees; of queries past the end: 0. */
    __device__ int64_t start_of(int64_t b, int64_t t) const
    {
        return starts != nullptr && t < queries ? starts[b * queries + t] : 0;
    }
};

template <class R, class C> struct gradients {
    int64_t batch, seq, heads, kv_heads, dim, ld;
    R scale;
    const C *qkv, *o, *d_o;
    const R *lse;
    R *delta; /* [batch, heads, seq] */
    C *dqkv;
    const int32_t *starts; /* [batch, seq], or none */
};

/* The four sides of one query head of one sequence. */
template <class R, class C> struct sides {
    rows_of<C> q, k, v, d_o;
    const R *lse, *delta;
    const int32_t *starts; /* [seq], or none */

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

/* On tensor cores (attention_bf16.cu); 0: these it cannot.  Gradients: after delta was found. */
int ek_cuda_attend_bf16(const char *name, const attending<float, ek_bf16> &a);
int ek_cuda_gradients_bf16(const gradients<float, ek_bf16> &g);

#endif
