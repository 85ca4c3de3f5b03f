/* tensor/cuda/attention.h - what kernels of attention work on. */
#ifndef TENSOR_CUDA_ATTENTION_H
#define TENSOR_CUDA_ATTENTION_H

#include "tensor/cuda/device.h"

/* Rows of one head, `n` of them; row i begins at at + i * ld. */
template <class C> struct rows_of {
    const C *at;
    int64_t ld, n;
};

/* All heads of some sequences.  Query i of a sequence is at position pos0 + i and sees the keys up
 * to its own; head h of sequence b begins at q + b * q_seq + h * dim, and so on. */
template <class R, class C> struct attending {
    int64_t sequences, queries, pos0, heads, per, dim; /* per: query heads of a key head */
    R scale;
    const C *q, *k, *v;
    int64_t q_seq, q_ld, k_seq, k_ld;
    C *o;   /* rows [heads * dim] of all sequences' queries */
    R *lse; /* [sequence][head][query], or none */
};

template <class R, class C> struct gradients {
    int64_t batch, seq, heads, kv_heads, dim, ld;
    R scale;
    const C *qkv, *o, *d_o;
    const R *lse;
    R *delta; /* [batch, heads, seq] */
    C *dqkv;
};

/* The four sides of one query head of one sequence. */
template <class R, class C> struct sides {
    rows_of<C> q, k, v, d_o;
    const R *lse, *delta;
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
            g.delta + (b * g.heads + h) * g.seq};
}

/* On tensor cores (attention_bf16.cu); 0: these it cannot.  Gradients: after delta was found. */
int ek_cuda_attend_bf16(const char *name, const attending<float, ek_bf16> &a);
int ek_cuda_gradients_bf16(const gradients<float, ek_bf16> &g);

#endif
