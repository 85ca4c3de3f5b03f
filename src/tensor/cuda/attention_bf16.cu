/* Causal attention in bf16 on tensor cores: scores, their softmax and its gradients in float, from
 * and to registers; no scores are kept.
 *
 * A block has ROWS rows of its own of one head (queries, or keys where gradients of keys are
 * summed), 16 to a warp, and meets tiles of the other side's.  With p = exp(scale q k - lse),
 * delta = do . o and ds = p (do . v - delta):
 *   dq = scale sum over keys of ds k,  dk = scale sum over queries of ds q,  dv = sum of p do.
 * p and ds are rounded to bf16 for these sums.  (Dao, "FlashAttention-2", 2023, algorithms 1, 2,
 * but for dq, which has a kernel of its own, so that no sum needs atomics.)
 *
 * A head of up to D numbers takes up D; what is past its end is 0.  Weights of 0 meet what is not
 * seen: a value there that is not a number shows in rows of the same tile. */
#include "tensor/cuda/attention.h"
#include "tensor/cuda/launch.h"
#include "tensor/cuda/tiles.h"

enum {
    ROWS = 64,
    WARPS = ROWS / 16,
    THREADS = WARPS * EK_WARP,
    KEYS = 64,  /* of a tile that queries meet, forward */
    OTHERS = 32 /* rows of a tile, backward */
};

static const float log2_e = 1.44269504088896341f;

typedef attending<float, ek_bf16> forward_bf16;
typedef gradients<float, ek_bf16> backward_bf16;

template <int D> constexpr int line_chunks = D / EK_CHUNK;

/* Begins to copy LINES rows from `first` on; 0 past the last and past the end of a head.  A thread
 * has the same chunk of some lines, which lie in a tile as they do in their lines. */
template <int D, int LINES>
__device__ static void copy_rows(chunk *tile, const rows_of<ek_bf16> &rows, int64_t first,
                                 int64_t dim)
{
    const int apart = THREADS / line_chunks<D>;
    int line = (int)threadIdx.x / line_chunks<D>, c = (int)threadIdx.x % line_chunks<D>;
    int64_t left = rows.n - first - line;
    int place = chunk_place<line_chunks<D>>(line, c);
    int bytes = c * EK_CHUNK < dim ? (int)sizeof(chunk) : 0;
    const ek_bf16 *from = rows.at + (first + line) * rows.ld + c * EK_CHUNK;

#pragma unroll
    for (int e = 0; e < LINES / apart; e++)
        copy_begin(&tile[place + e * THREADS], from + e * apart * rows.ld,
                   e * apart < left ? bytes : 0);
}

/* The warp's 16 rows of a tile of a block's own. */
template <int D> __device__ static void load_own(unsigned own[D / 16][4], const chunk *tile)
{
#pragma unroll
    for (int k = 0; k < D / 16; k++)
        load_by_lines<line_chunks<D>, false>(own[k], tile, warp_of() * 16, k * 16);
}

/* s [16, N] += the products of one row of 16 numbers of `own` with N lines of a tile. */
template <int D, int N>
__device__ static void add_dots(float s[N / 8][4], const unsigned own[4], const chunk *tile, int k)
{
#pragma unroll
    for (int x = 0; x < N / 16; x++) {
        unsigned b[4];

        load_by_halves<line_chunks<D>, false>(b, tile, x * 16, k * 16);
        matrices_multiply(s[2 * x], own, b);
        matrices_multiply(s[2 * x + 1], own, b + 2);
    }
}

/* sum [16, D] += w [16, N] times the N lines of a tile; w is rounded to bf16. */
template <int D, int N>
__device__ static void add_weighted(float sum[D / 8][4], const float w[N / 8][4], const chunk *tile)
{
#pragma unroll
    for (int k = 0; k < N / 16; k++) {
        const float *l = w[2 * k], *r = w[2 * k + 1];
        unsigned a[4] = {two_bf16(l[0], l[1]), two_bf16(l[2], l[3]), two_bf16(r[0], r[1]),
                         two_bf16(r[2], r[3])};

#pragma unroll
        for (int x = 0; x < D / 16; x++) {
            unsigned b[4];

            load_by_lines<line_chunks<D>, true>(b, tile, k * 16, x * 16);
            matrices_multiply(sum[2 * x], a, b);
            matrices_multiply(sum[2 * x + 1], a, b + 2);
        }
    }
}

/* Where number i of matrix x of a lane's sums lies: its row of the warp's 16, its column. */
__device__ static int row_in(int i)
{
    return lane_of() / 4 + i / 2 * 8;
}

__device__ static int column_in(int x, int i)
{
    return x * 8 + lane_of() % 4 * 2 + i % 2;
}

/* Over the four lanes that share rows. */
template <class Two> __device__ static float row_fold(float x, Two two)
{
    x = two(x, __shfl_xor_sync(ek_all_lanes, x, 1));
    return two(x, __shfl_xor_sync(ek_all_lanes, x, 2));
}

/* Rows of the warp's 16 from `first` on, of n, times a factor for each half. */
template <int D>
__device__ static void put_rows(ek_bf16 *to, int64_t ld, int64_t first, int64_t n, int64_t dim,
                                const float sum[D / 8][4], const float factor[2])
{
#pragma unroll
    for (int x = 0; x < D / 8; x++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int64_t row = first + row_in(2 * half), column = column_in(x, 0);

            if (row < n && column < dim)
                *(unsigned *)(to + row * ld + column) =
                    two_bf16(factor[half] * sum[x][2 * half], factor[half] * sum[x][2 * half + 1]);
        }
}

/* --- forward --------------------------------------------------------------------------------- */

/* The softmax so far of the warp's rows, by halves: the largest score, in units of log 2, and this
 * lane's part of the sum of exponentials. */
struct softmax {
    float top[2], total[2];
};

/* Scores become weights; shrink: by how much what was summed before shrinks.  Row i of the warp
 * sees columns up to last + i of a tile. */
__device__ static void weigh(float s[KEYS / 8][4], softmax *m, float scale, int64_t last,
                             float shrink[2])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float best = m->top[half], total = 0;

#pragma unroll
        for (int x = 0; x < KEYS / 8; x++)
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; i++) {
                s[x][i] = column_in(x, i) <= last + row_in(i) ? scale * s[x][i] : -INFINITY;
                best = s[x][i] > best ? s[x][i] : best;
            }
        best = row_fold(best, larger());
        shrink[half] = exp2f(m->top[half] - best);
        m->top[half] = best;
#pragma unroll
        for (int x = 0; x < KEYS / 8; x++)
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; i++) {
                s[x][i] = exp2f(s[x][i] - best);
                total += s[x][i];
            }
        m->total[half] = m->total[half] * shrink[half] + total;
    }
}

template <int D> __global__ void __launch_bounds__(THREADS) attend_bf16(forward_bf16 a)
{
    __shared__ chunk kt[KEYS * line_chunks<D>], vt[KEYS * line_chunks<D>];
    int64_t blocks = (a.queries + ROWS - 1) / ROWS, which = blockIdx.x / blocks;
    int64_t b = which / a.heads, h = which % a.heads;
    int64_t first = (blocks - 1 - blockIdx.x % blocks) * ROWS; /* those with most keys first */
    int64_t own = first + warp_of() * 16;
    int64_t end = (first + ROWS < a.queries ? first + ROWS : a.queries) + a.pos0;
    rows_of<ek_bf16> q = {a.q + b * a.q_seq + h * a.dim, a.q_ld, a.queries};
    rows_of<ek_bf16> k = {a.k + b * a.k_seq + h / a.per * a.dim, a.k_ld, end};
    rows_of<ek_bf16> v = {a.v + b * a.k_seq + h / a.per * a.dim, a.k_ld, end};
    softmax m = {{-INFINITY, -INFINITY}, {0, 0}};
    float sum[D / 8][4] = {}, total[2], factor[2];
    unsigned mine[D / 16][4];

    copy_rows<D, ROWS>(kt, q, first, a.dim);
    copy_group();
    copy_wait<0>();
    __syncthreads();
    load_own<D>(mine, kt);
    __syncthreads();
    copy_rows<D, KEYS>(kt, k, 0, a.dim);
    copy_group();
    for (int64_t j0 = 0; j0 < end; j0 += KEYS) {
        float s[KEYS / 8][4] = {}, shrink[2];

        copy_wait<0>();
        __syncthreads(); /* keys are there, values no longer wanted */
        copy_rows<D, KEYS>(vt, v, j0, a.dim);
        copy_group();
#pragma unroll
        for (int c = 0; c < D / 16; c++)
            add_dots<D, KEYS>(s, mine[c], kt, c);
        __syncthreads(); /* keys are no longer wanted */
        if (j0 + KEYS < end)
            copy_rows<D, KEYS>(kt, k, j0 + KEYS, a.dim);
        copy_group();
        weigh(s, &m, a.scale * log2_e, a.pos0 + own - j0, shrink);
#pragma unroll
        for (int x = 0; x < D / 8; x++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                sum[x][i] *= shrink[i / 2];
        copy_wait<1>();
        __syncthreads(); /* values are there */
        add_weighted<D, KEYS>(sum, s, vt);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int64_t t = own + row_in(2 * half);

        total[half] = row_fold(m.total[half], adds());
        factor[half] = 1 / total[half];
        if (a.lse != nullptr && t < a.queries && lane_of() % 4 == 0)
            a.lse[(b * a.heads + h) * a.queries + t] = m.top[half] / log2_e + logf(total[half]);
    }
    put_rows<D>(a.o + (b * a.queries * a.heads + h) * a.dim, a.heads * a.dim, own, a.queries, a.dim,
                sum, factor);
}

/* --- backward -------------------------------------------------------------------------------- */

/* What the gradients know of a query: lse in units of log 2; 0 past the last. */
struct of_query {
    float lse, delta;
};

__device__ static of_query of_query_at(const sides<float, ek_bf16> &side, int64_t t)
{
    return t < side.q.n ? of_query{side.lse[t] * log2_e, side.delta[t]} : of_query{0, 0};
}

/* A score becomes p, and do . v becomes ds. */
__device__ static void differentiate(float *s, float *dp, of_query of, int seen, float scale)
{
    float p = seen ? exp2f(scale * *s - of.lse) : 0;

    *dp = seen ? p * (*dp - of.delta) : 0;
    *s = p;
}

template <int D> __global__ void __launch_bounds__(THREADS) query_gradients_bf16(backward_bf16 g)
{
    enum { TILE = OTHERS * line_chunks<D> };
    __shared__ chunk kt[2 * TILE], vt[2 * TILE];
    int64_t blocks = (g.seq + ROWS - 1) / ROWS, which = blockIdx.x / blocks;
    int64_t b = which / g.heads, h = which % g.heads;
    int64_t first = (blocks - 1 - blockIdx.x % blocks) * ROWS, own = first + warp_of() * 16;
    int64_t end = first + ROWS < g.seq ? first + ROWS : g.seq;
    sides<float, ek_bf16> side = sides_of(g, b, h);
    unsigned q[D / 16][4], d_o[D / 16][4];
    float dq[D / 8][4] = {};
    const float factor[2] = {g.scale, g.scale};
    const of_query of[2] = {of_query_at(side, own + row_in(0)), of_query_at(side, own + row_in(2))};

    static_assert(2 * OTHERS >= ROWS, "own rows are loaded by way of both tiles");
    copy_rows<D, ROWS>(kt, side.q, first, g.dim);
    copy_rows<D, ROWS>(vt, side.d_o, first, g.dim);
    copy_group();
    copy_wait<0>();
    __syncthreads();
    load_own<D>(q, kt);
    load_own<D>(d_o, vt);
    __syncthreads();
    copy_rows<D, OTHERS>(kt, side.k, 0, g.dim);
    copy_rows<D, OTHERS>(vt, side.v, 0, g.dim);
    copy_group();
    for (int64_t j0 = 0; j0 < end; j0 += OTHERS) {
        int now = (int)(j0 / OTHERS % 2) * TILE, next = TILE - now;
        float s[OTHERS / 8][4] = {}, ds[OTHERS / 8][4] = {};

        if (j0 + OTHERS < end) {
            copy_rows<D, OTHERS>(kt + next, side.k, j0 + OTHERS, g.dim);
            copy_rows<D, OTHERS>(vt + next, side.v, j0 + OTHERS, g.dim);
        }
        copy_group();
        copy_wait<1>();
        __syncthreads(); /* this turn's are there */
#pragma unroll
        for (int c = 0; c < D / 16; c++) {
            add_dots<D, OTHERS>(s, q[c], kt + now, c);
            add_dots<D, OTHERS>(ds, d_o[c], vt + now, c);
        }
#pragma unroll
        for (int x = 0; x < OTHERS / 8; x++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                differentiate(&s[x][i], &ds[x][i], of[i / 2],
                              column_in(x, i) <= (int)(own - j0) + row_in(i), g.scale * log2_e);
        add_weighted<D, OTHERS>(dq, ds, kt + now);
        __syncthreads(); /* and no longer wanted */
    }
    put_rows<D>(g.dqkv + b * g.seq * g.ld + h * g.dim, g.ld, own, g.seq, g.dim, dq, factor);
}

/* Own rows are keys, and queries the columns of all products. */
template <int D> __global__ void __launch_bounds__(THREADS) key_gradients_bf16(backward_bf16 g)
{
    __shared__ chunk kt[ROWS * line_chunks<D>], vt[ROWS * line_chunks<D>];
    __shared__ chunk qt[OTHERS * line_chunks<D>], dt[OTHERS * line_chunks<D>];
    int64_t blocks = (g.seq + ROWS - 1) / ROWS, which = blockIdx.x / blocks;
    int64_t b = which / g.kv_heads, kv = which % g.kv_heads, per = g.heads / g.kv_heads;
    int64_t first = blockIdx.x % blocks * ROWS, own = first + warp_of() * 16;
    float dk[D / 8][4] = {}, dv[D / 8][4] = {};
    const float factor[2] = {g.scale, g.scale}, one[2] = {1, 1};
    ek_bf16 *to = g.dqkv + b * g.seq * g.ld + (g.heads + kv) * g.dim;

    for (int64_t h = kv * per; h < (kv + 1) * per; h++) {
        sides<float, ek_bf16> side = sides_of(g, b, h);

        for (int64_t t0 = first; t0 < g.seq; t0 += OTHERS) {
            float s[OTHERS / 8][4] = {}, ds[OTHERS / 8][4] = {};

            __syncthreads(); /* queries of the turn before are no longer wanted */
            if (h == kv * per && t0 == first) {
                copy_rows<D, ROWS>(kt, side.k, first, g.dim);
                copy_rows<D, ROWS>(vt, side.v, first, g.dim);
            }
            copy_rows<D, OTHERS>(qt, side.q, t0, g.dim);
            copy_rows<D, OTHERS>(dt, side.d_o, t0, g.dim);
            copy_group();
            copy_wait<0>();
            __syncthreads();
#pragma unroll 2
            for (int c = 0; c < D / 16; c++) {
                unsigned k[4], v[4];

                load_by_lines<line_chunks<D>, false>(k, kt, warp_of() * 16, c * 16);
                load_by_lines<line_chunks<D>, false>(v, vt, warp_of() * 16, c * 16);
                add_dots<D, OTHERS>(s, k, qt, c);
                add_dots<D, OTHERS>(ds, v, dt, c);
            }
#pragma unroll
            for (int x = 0; x < OTHERS / 8; x++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    int64_t t = t0 + column_in(x, i);

                    differentiate(&s[x][i], &ds[x][i], of_query_at(side, t),
                                  t < g.seq && own + row_in(i) <= t, g.scale * log2_e);
                }
            add_weighted<D, OTHERS>(dv, s, dt);
            add_weighted<D, OTHERS>(dk, ds, qt);
        }
    }
    put_rows<D>(to, g.ld, own, g.seq, g.dim, dk, factor);
    put_rows<D>(to + g.kv_heads * g.dim, g.ld, own, g.seq, g.dim, dv, one);
}

/* --- which ----------------------------------------------------------------------------------- */

static int64_t blocks_of_rows(int64_t n)
{
    return (n + ROWS - 1) / ROWS;
}

static int fits(int64_t dim)
{
    return dim % EK_CHUNK == 0 && dim <= 128;
}

int ek_cuda_attend_bf16(const char *name, const forward_bf16 &a)
{
    int64_t blocks = a.sequences * a.heads * blocks_of_rows(a.queries);

    if (!fits(a.dim) || a.queries < 16 || !has_chunks(a.q, a.q_ld) || !has_chunks(a.k, a.k_ld) ||
        !has_chunks(a.v, a.k_ld) || !has_chunks(a.o, a.heads * a.dim))
        return 0;
    if (a.dim <= 64)
        launch(name, attend_bf16<64>, blocks, THREADS, a);
    else
        launch(name, attend_bf16<128>, blocks, THREADS, a);
    return 1;
}

int ek_cuda_gradients_bf16(const backward_bf16 &g)
{
    int64_t rows = blocks_of_rows(g.seq);
    auto of_queries = g.dim <= 64 ? query_gradients_bf16<64> : query_gradients_bf16<128>;
    auto of_keys = g.dim <= 64 ? key_gradients_bf16<64> : key_gradients_bf16<128>;

    if (!fits(g.dim) || !has_chunks(g.qkv, g.ld) || !has_chunks(g.dqkv, g.ld) ||
        !has_chunks(g.d_o, g.heads * g.dim))
        return 0;
    launch("attention_backward dq", of_queries, g.batch * g.heads * rows, THREADS, g);
    launch("attention_backward dk, dv", of_keys, g.batch * g.kv_heads * rows, THREADS, g);
    return 1;
}
