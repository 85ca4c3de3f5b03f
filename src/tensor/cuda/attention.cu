/* Causal attention without tensor cores: scores are not stored, sums are in the real type.  The
 * oracle for faster kernels, and the fallback where those do not apply (attention_bf16.cu).
 *
 * A block has EK_WARPS own rows (queries; keys in the gradient of keys), one per warp, and iterates
 * over tiles of EK_WARP rows of the other side, one per lane.  Dot products use shared memory,
 * STRIP elements of a head at a time; weighted sums read global memory, coalesced, at most SUMS
 * elements of a head: wider heads take several passes.
 *
 * With p = exp(scale q k - lse), delta = do . o and ds = p (do . v - delta):
 *   dq = scale sum over keys of ds k,  dk = scale sum over queries of ds q,  dv = sum of p do. */
#include "tensor/cuda/attention.h"
#include "tensor/cuda/fill.h"
#include "tensor/cuda/launch.h"

enum { STRIP = 64, SUMS = 256, PARTS = SUMS / EK_WARP };

/* --- rotary embedding ------------------------------------------------------------------------- */

/* A block per row; each thread rotates N pairs of a head at once. */
template <bool ALIGNED, int N, class R, class C>
__global__ void rotate(int64_t seq, int64_t pos0, int heads, int head_dim, const R *table,
                       int inverse, C *x, int64_t ld)
{
    int half = head_dim / 2, groups = (half + N - 1) / N;
    const R *cosines = table + (pos0 + blockIdx.x % seq) * head_dim, *sines = cosines + half;
    C *row = x + blockIdx.x * ld;

    for (int at = (int)threadIdx.x; at < heads * groups; at += EK_BLOCK) {
        int h = at / groups, i = (at - h * groups) * N;
        C *first = row + h * head_dim, *second = first + half;
        vec<C, N> a = load_vec<ALIGNED, N>(first, i, half);
        vec<C, N> b = load_vec<ALIGNED, N>(second, i, half);
        vec<R, N> cosine = load_vec<ALIGNED, N>(cosines, i, half);
        vec<R, N> sine = load_vec<ALIGNED, N>(sines, i, half);

        for (int e = 0; e < N; e++) {
            R u = to_real(a.x[e]), v = to_real(b.x[e]), s = inverse ? -sine.x[e] : sine.x[e];

            store_value(&a.x[e], u * cosine.x[e] - v * s);
            store_value(&b.x[e], v * cosine.x[e] + u * s);
        }
        store_vec<ALIGNED, N>(first, i, half, a);
        store_vec<ALIGNED, N>(second, i, half, b);
    }
}

template <class R, class C>
static void rope(int64_t n, int64_t seq, int64_t pos0, int64_t heads, int64_t head_dim,
                 const void *cos_sin, int inverse, void *x, int64_t ld)
{
    constexpr int N = 16 / sizeof(C);
    bool whole = is_vec_aligned<N>((const C *)x, head_dim / 2, ld) &&
                 is_vec_aligned<N>((const R *)cos_sin, head_dim / 2, head_dim);

    launch("rope", whole ? rotate<true, N, R, C> : rotate<false, N, R, C>, n, EK_BLOCK, seq, pos0,
           (int)heads, (int)head_dim, (const R *)cos_sin, inverse, (C *)x, ld);
}

/* --- shared by the passes --------------------------------------------------------------------- */

/* Strips of a block's own rows and of a tile's. */
template <class R> struct strips {
    R own[EK_WARPS][STRIP];
    R tile[EK_WARP][STRIP + 1];
};

/* rows [count][STRIP + pad] = elements c0 .. of rows from `first` on; 0 past the ends. */
template <class R, class C>
__device__ static void load_strip(R *to, int stride, int count, rows_of<C> rows, int64_t first,
                                  int64_t c0, int64_t dim)
{
    for (int at = (int)threadIdx.x; at < count * STRIP; at += EK_BLOCK) {
        int64_t i = first + at / STRIP, c = c0 + at % STRIP;

        to[at / STRIP * stride + at % STRIP] =
            i < rows.n && c < dim ? to_real(rows.at[i * rows.ld + c]) : 0;
    }
}

/* The dot product of the warp's own row with the lane's of a tile. */
template <class R, class C>
__device__ static R dots(strips<R> *s, rows_of<C> own, int64_t own0, rows_of<C> tile, int64_t tile0,
                         int64_t dim)
{
    R sum = 0;

    for (int64_t c0 = 0; c0 < dim; c0 += STRIP) {
        __syncthreads();
        load_strip(&s->own[0][0], STRIP, EK_WARPS, own, own0, c0, dim);
        load_strip(&s->tile[0][0], STRIP + 1, EK_WARP, tile, tile0, c0, dim);
        __syncthreads();
        for (int c = 0; c < STRIP; c++)
            sum += s->own[warp_of()][c] * s->tile[lane_of()][c];
    }
    return sum;
}

/* acc += weighted sum over the lanes' rows of a tile; a lane has every EK_WARP'th of elements c0 to
 * c0 + SUMS. */
template <class R, class C>
__device__ static void add_weighted(R acc[PARTS], R weight, rows_of<C> tile, int64_t tile0,
                                    int64_t c0, int64_t dim)
{
    for (int j = 0; j < EK_WARP; j++) {
        R w = __shfl_sync(ek_all_lanes, weight, j);
        const C *row = tile.at + (tile0 + j) * tile.ld + c0;

        if (w == 0 || tile0 + j >= tile.n) /* masked, or past the end */
            continue;
        for (int i = 0; i < PARTS; i++)
            if (c0 + i * EK_WARP + lane_of() < dim)
                acc[i] += w * to_real(row[i * EK_WARP + lane_of()]);
    }
}

template <class R, class C>
__device__ static void put_row(C *to, const R acc[PARTS], R factor, int64_t c0, int64_t dim)
{
    for (int i = 0; i < PARTS; i++)
        if (c0 + i * EK_WARP + lane_of() < dim)
            store_value(&to[c0 + i * EK_WARP + lane_of()], factor * acc[i]);
}

static int64_t blocks_of_rows(int64_t n)
{
    return (n + EK_WARPS - 1) / EK_WARPS;
}

/* --- forward ---------------------------------------------------------------------------------- */

template <class R, class C>
__device__ static void attend_strip(strips<R> *scratch, const attending<R, C> &a, int64_t c0)
{
    int64_t blocks = (a.queries + EK_WARPS - 1) / EK_WARPS, which = blockIdx.x / blocks;
    int64_t b = which / a.heads, h = which % a.heads;
    int64_t first = blockIdx.x % blocks * EK_WARPS, t = first + warp_of();
    int64_t end = (first + EK_WARPS < a.queries ? first + EK_WARPS : a.queries) + a.pos0;
    rows_of<C> q = {a.q + b * a.q_seq + h * a.dim, a.q_ld, a.queries};
    rows_of<C> k = {a.k + b * a.k_seq + h / a.per * a.dim, a.k_ld, end};
    rows_of<C> v = {a.v + b * a.k_seq + h / a.per * a.dim, a.k_ld, end};
    int64_t start = a.start_of(b, t), start0 = a.start_of(b, first);
    R top = (R)ek_below_scores, total = 0, acc[PARTS] = {};

    for (int64_t j0 = start0 / EK_WARP * EK_WARP; j0 < end; j0 += EK_WARP) {
        R s = a.scale * dots(scratch, q, first, k, j0, a.dim), best, shrink;

        if (j0 + lane_of() > a.pos0 + t || j0 + lane_of() >= end || j0 + lane_of() < start)
            s = (R)-INFINITY;
        best = warp_max(s);
        best = best > top ? best : top;
        shrink = real_exp(top - best);
        s = real_exp(s - best);
        total = total * shrink + warp_sum(s);
        for (int i = 0; i < PARTS; i++)
            acc[i] *= shrink;
        add_weighted(acc, s, v, j0, c0, a.dim);
        top = best;
    }
    if (t >= a.queries)
        return;
    put_row(a.o + ((b * a.queries + t) * a.heads + h) * a.dim, acc, 1 / total, c0, a.dim);
    if (a.lse != nullptr && lane_of() == 0)
        a.lse[(b * a.heads + h) * a.queries + t] = top + real_log(total);
}

template <class R, class C> __global__ void attend(attending<R, C> a)
{
    __shared__ strips<R> scratch;

    for (int64_t c0 = 0; c0 < a.dim; c0 += SUMS)
        attend_strip(&scratch, a, c0);
}

/* Arguments that do not depend on the layout of keys and values. */
template <class R, class C>
static attending<R, C> attending_of(const ek_attention *a, const void *q, void *o)
{
    attending<R, C> x = {};

    x.heads = a->heads;
    x.per = a->heads / a->kv_heads;
    x.dim = a->head_dim;
    x.scale = (R)a->scale;
    x.sequences = 1;
    x.q = (const C *)q;
    x.q_ld = a->ld;
    x.o = (C *)o;
    return x;
}

template <class R, class C> static int attend_fast(const char *, const attending<R, C> &)
{
    return 0;
}

static int attend_fast(const char *name, const attending<float, ek_bf16> &x)
{
    return ek_cuda_attend_bf16(name, x);
}

template <class R, class C> static void attend_all(const char *name, const attending<R, C> &x)
{
    if (!attend_fast(name, x))
        launch(name, attend<R, C>, x.sequences * x.heads * blocks_of_rows(x.queries), EK_BLOCK, x);
}

template <class R, class C>
static void attention_forward(const ek_attention *a, const void *qkv, void *o, void *lse, void *ws)
{
    attending<R, C> x = attending_of<R, C>(a, qkv, o);

    (void)ws;
    x.sequences = a->batch;
    x.queries = a->seq;
    x.k = x.q + a->heads * a->head_dim;
    x.v = x.k + a->kv_heads * a->head_dim;
    x.k_ld = a->ld;
    x.q_seq = x.k_seq = a->seq * a->ld;
    x.lse = (R *)lse;
    x.starts = a->starts;
    attend_all("attention_forward", x);
}

template <class R, class C>
static void attention_cached(const ek_attention *a, int64_t m, int64_t pos0, const void *qkv,
                             const void *k_cache, const void *v_cache, void *o, void *ws)
{
    attending<R, C> x = attending_of<R, C>(a, qkv, o);

    (void)ws;
    x.queries = m;
    x.pos0 = pos0;
    x.k = (const C *)k_cache;
    x.v = (const C *)v_cache;
    x.k_ld = a->kv_heads * a->head_dim;
    attend_all("attention_cached", x);
}

/* --- backward --------------------------------------------------------------------------------- */

template <class R, class C> __global__ void find_delta(gradients<R, C> g)
{
    int64_t at = (int64_t)blockIdx.x * EK_WARPS + warp_of(), row = at / g.heads, h = at % g.heads;
    R sum = 0;

    if (row >= g.batch * g.seq)
        return;
    for (int64_t c = lane_of(); c < g.dim; c += EK_WARP)
        sum += to_real(g.o[at * g.dim + c]) * to_real(g.d_o[at * g.dim + c]);
    sum = warp_sum(sum);
    if (lane_of() == 0)
        g.delta[(row / g.seq * g.heads + h) * g.seq + row % g.seq] = sum;
}

/* Whether the query sees the key, and both exist. */
template <class R, class C> __device__ static bool sees(const sides<R, C> &s, int64_t t, int64_t j)
{
    return t < s.q.n && j <= t && j >= s.start_of(t);
}

/* p of a query and a key from their score, and ds; 0 where masked, for any value there. */
template <class R, class C>
__device__ static R probability(const sides<R, C> &s, int64_t t, int64_t j, R score)
{
    return sees(s, t, j) ? real_exp(score - s.lse[t]) : 0;
}

template <class R, class C>
__device__ static R score_gradient(const sides<R, C> &s, int64_t t, int64_t j, R p, R dp)
{
    return sees(s, t, j) ? p * (dp - s.delta[t]) : 0;
}

template <class R, class C>
__device__ static void query_strip(strips<R> *scratch, const gradients<R, C> &g, int64_t c0)
{
    int64_t blocks = (g.seq + EK_WARPS - 1) / EK_WARPS, which = blockIdx.x / blocks;
    int64_t b = which / g.heads, h = which % g.heads;
    int64_t first = blockIdx.x % blocks * EK_WARPS, t = first + warp_of();
    sides<R, C> s = sides_of(g, b, h);
    int64_t j0 = s.start_of(first) / EK_WARP * EK_WARP;
    R acc[PARTS] = {};

    for (; j0 < first + EK_WARPS && j0 < g.seq; j0 += EK_WARP) {
        int64_t j = j0 + lane_of();
        R p = probability(s, t, j, g.scale * dots(scratch, s.q, first, s.k, j0, g.dim));
        R dp = dots(scratch, s.d_o, first, s.v, j0, g.dim);

        add_weighted(acc, score_gradient(s, t, j, p, dp), s.k, j0, c0, g.dim);
    }
    if (t < g.seq)
        put_row(g.dqkv + (b * g.seq + t) * g.ld + h * g.dim, acc, g.scale, c0, g.dim);
}

template <class R, class C> __global__ void query_gradients(gradients<R, C> g)
{
    __shared__ strips<R> scratch;

    for (int64_t c0 = 0; c0 < g.dim; c0 += SUMS)
        query_strip(&scratch, g, c0);
}

template <class R, class C>
__device__ static void key_strip(strips<R> *scratch, const gradients<R, C> &g, int64_t c0)
{
    int64_t blocks = (g.seq + EK_WARPS - 1) / EK_WARPS, which = blockIdx.x / blocks;
    int64_t b = which / g.kv_heads, kv = which % g.kv_heads, per = g.heads / g.kv_heads;
    int64_t first = blockIdx.x % blocks * EK_WARPS, j = first + warp_of();
    R dk[PARTS] = {}, dv[PARTS] = {};
    C *to = g.dqkv + (b * g.seq + j) * g.ld + (g.heads + kv) * g.dim;

    for (int64_t h = kv * per; h < (kv + 1) * per; h++) {
        sides<R, C> s = sides_of(g, b, h);

        /* until the queries' documents begin after all keys of the block */
        for (int64_t t0 = first; t0 < g.seq && s.start_of(t0) < first + EK_WARPS; t0 += EK_WARP) {
            int64_t t = t0 + lane_of();
            R p = probability(s, t, j, g.scale * dots(scratch, s.k, first, s.q, t0, g.dim));
            R dp = dots(scratch, s.v, first, s.d_o, t0, g.dim);

            add_weighted(dk, score_gradient(s, t, j, p, dp), s.q, t0, c0, g.dim);
            add_weighted(dv, p, s.d_o, t0, c0, g.dim);
        }
    }
    if (j >= g.seq)
        return;
    put_row(to, dk, g.scale, c0, g.dim);
    put_row(to + g.kv_heads * g.dim, dv, (R)1, c0, g.dim);
}

template <class R, class C> __global__ void key_gradients(gradients<R, C> g)
{
    __shared__ strips<R> scratch;

    for (int64_t c0 = 0; c0 < g.dim; c0 += SUMS)
        key_strip(&scratch, g, c0);
}

template <class R, class C> static int gradients_fast(const gradients<R, C> &)
{
    return 0;
}

static int gradients_fast(const gradients<float, ek_bf16> &g)
{
    return ek_cuda_gradients_bf16(g);
}

/* ws: R delta [batch, heads, seq]. */
template <class R, class C>
static void attention_backward(const ek_attention *a, const void *qkv, const void *o,
                               const void *lse, const void *d_o, void *dqkv, void *ws)
{
    gradients<R, C> g = {a->batch,       a->seq,      a->heads,       a->kv_heads,  a->head_dim,
                         a->ld,          (R)a->scale, (const C *)qkv, (const C *)o, (const C *)d_o,
                         (const R *)lse, (R *)ws,     (C *)dqkv,      a->starts};
    int64_t rows = blocks_of_rows(a->seq);

    launch("attention_backward delta", find_delta<R, C>,
           blocks_of_rows(a->batch * a->seq * a->heads), EK_BLOCK, g);
    if (gradients_fast(g))
        return;
    launch("attention_backward dq", query_gradients<R, C>, a->batch * a->heads * rows, EK_BLOCK, g);
    launch("attention_backward dk, dv", key_gradients<R, C>, a->batch * a->kv_heads * rows,
           EK_BLOCK, g);
}

template <class R> static size_t attention_workspace(const ek_kernels *k, const ek_attention *a)
{
    (void)k;
    return (size_t)(a->batch * a->heads * a->seq) * sizeof(R);
}

template <class R, class C> static void fill(ek_kernels *k)
{
    k->rope = rope<R, C>;
    k->attention_forward = attention_forward<R, C>;
    k->attention_backward = attention_backward<R, C>;
    k->attention_workspace = attention_workspace<R>;
    k->attention_cached = attention_cached<R, C>;
}

EK_CUDA_FILL(ek_cuda_fill_attention, fill)
