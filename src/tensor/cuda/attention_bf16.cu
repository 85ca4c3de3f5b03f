/* Causal attention in bf16 on tensor cores: scores, softmax and gradients are in float registers;
 * scores are not stored.
 *
 * A block has ROWS own rows of one head (queries; keys in the gradient of keys), 16 per warp, and
 * iterates over tiles of the other side.  With p = exp(scale q k - lse),
 * delta = do . o and ds = p (do . v - delta):
 *   dq = scale sum over keys of ds k,  dk = scale sum over queries of ds q,  dv = sum of p do.
 * p and ds are rounded to bf16 for these sums.  (Dao, "FlashAttention-2", 2023, algorithms 1 and 2,
 * except that dq has its own kernel, so that no sum needs atomics.)
 *
 * A head of up to D elements is padded to D with zeros.  Masked keys have weight 0 but are still
 * multiplied: a NaN or infinity in a masked value affects rows of the same tile. */
#include "tensor/cuda/attention.h"
#include "tensor/cuda/launch.h"
#include "tensor/cuda/tiles.h"

enum {
    ROWS = 64,
    WARPS = ROWS / 16,
    THREADS = WARPS * EK_WARP,
    KEYS = 64,  /* keys per tile, forward */
    OTHERS = 32 /* rows per tile, backward */
};

static const float log2_e = 1.44269504088896341f, ln_2 = 0.693147180559945309f;

typedef attending<float, ek_bf16> forward_bf16;
typedef gradients<float, ek_bf16> backward_bf16;

template <int D> constexpr int line_chunks = D / EK_CHUNK;

/* The chunks that a thread copies to consecutive tiles: one chunk of some lines of each tile. */
struct row_feed {
    const ek_bf16 *x; /* its chunk in its first line of the next tile */
    int64_t apart;    /* elements between its lines */
    int left;         /* lines left from its first one on; 0 past the end of a head */
    int index;        /* of its first chunk in a tile */
};

template <int D>
__device__ static row_feed row_feed_of(const rows_of<ek_bf16> &rows, int64_t first, int64_t dim)
{
    int line = (int)threadIdx.x / line_chunks<D>, c = (int)threadIdx.x % line_chunks<D>;

    return {rows.at + (first + line) * rows.ld + c * EK_CHUNK, THREADS / line_chunks<D> * rows.ld,
            c * EK_CHUNK < dim ? (int)(rows.n - first) - line : 0,
            chunk_index<line_chunks<D>>(line, c)};
}

/* Starts to copy the next LINES rows; zeros past the last. */
template <int D, int LINES> __device__ static void copy_next(chunk *tile, row_feed *f)
{
    const int apart = THREADS / line_chunks<D>;

    static_assert(apart % 8 == 0, "a thread's lines have the same swizzle");
#pragma unroll
    for (int e = 0; e < LINES / apart; e++) {
        copy_begin(&tile[f->index + e * THREADS], f->x,
                   e * apart < f->left ? (int)sizeof(chunk) : 0);
        f->x += f->apart;
    }
    f->left -= LINES;
}

template <int D, int LINES>
__device__ static void copy_rows(chunk *tile, const rows_of<ek_bf16> &rows, int64_t first,
                                 int64_t dim)
{
    row_feed f = row_feed_of<D>(rows, first, dim);

    copy_next<D, LINES>(tile, &f);
}

/* Loads the warp's 16 own rows from a tile. */
template <int D> __device__ static void load_own(unsigned own[D / 16][4], const chunk *tile)
{
#pragma unroll
    for (int k = 0; k < D / 16; k++)
        load_by_lines<line_chunks<D>, false>(own[k], tile, warp_of() * 16, k * 16);
}

/* s [16, N] += 16 terms, from k * 16 on, of the dot products of own rows with N lines of a tile. */
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

/* Row (of the warp's 16) and column of element i of matrix x of a lane's accumulators. */
__device__ static int row_in(int i)
{
    return lane_of() / 4 + i / 2 * 8;
}

__device__ static int column_in(int x, int i)
{
    return x * 8 + lane_of() % 4 * 2 + i % 2;
}

/* s[x][i] = value where not seen(x, i). */
template <int N, class Seen>
__device__ static void fill_unless(float (&s)[N][4], float value, Seen seen)
{
#pragma unroll
    for (int x = 0; x < N; x++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[x][i] = seen(x, i) ? s[x][i] : value;
}

/* Reduction over the four lanes that hold the same rows. */
template <class Two> __device__ static float row_fold(float x, Two two)
{
    x = two(x, __shfl_xor_sync(ek_all_lanes, x, 1));
    return two(x, __shfl_xor_sync(ek_all_lanes, x, 2));
}

/* Stores the warp's 16 rows, `first` on, up to row n, scaled by a factor for each half. */
template <int D>
__device__ static void store_rows(ek_bf16 *to, int64_t ld, int64_t first, int64_t n, int64_t dim,
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

/* --- forward ---------------------------------------------------------------------------------- */

/* Online softmax state of a lane's two rows (halves): the largest score, in log2 units, and this
 * lane's partial sum of exponentials. */
struct softmax {
    float top[2], total[2];
};

/* Number of columns of a tile before the documents of a lane's two rows. */
struct hidden {
    int columns[2];
};

/* s[x][i] = value in the hidden columns. */
template <int N> __device__ static void fill_hidden(float (&s)[N][4], float value, const hidden &h)
{
    if (h.columns[0] > 0 || h.columns[1] > 0)
        fill_unless(s, value, [=](int x, int i) { return column_in(x, i) >= h.columns[i / 2]; });
}

/* Replaces scores by softmax weights; shrink: factors of the earlier sums.  Row i of the warp sees
 * columns up to last + i of a tile, except the hidden ones. */
__device__ static void weigh(float (&s)[KEYS / 8][4], softmax *m, float scale, int last,
                             const hidden &front, float shrink[2])
{
    fill_hidden(s, -INFINITY, front);
    if (last < KEYS - 1) /* else nothing is masked */
        fill_unless(s, -INFINITY,
                    [=](int x, int i) { return column_in(x, i) <= last + row_in(i); });
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float best = -INFINITY, total = 0;

#pragma unroll
        for (int x = 0; x < KEYS / 8; x++)
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; i++)
                best = fmaxf(best, s[x][i]);
        best = fmaxf(m->top[half], scale * row_fold(best, larger()));
        shrink[half] = exp2_fast(m->top[half] - best);
        m->top[half] = best;
#pragma unroll
        for (int x = 0; x < KEYS / 8; x++)
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; i++) {
                s[x][i] = exp2_fast(scale * s[x][i] - best);
                total += s[x][i];
            }
        m->total[half] = m->total[half] * shrink[half] + total;
    }
}

template <int D>
__global__ void __launch_bounds__(THREADS, D <= 64 ? 3 : 2) attend_bf16(forward_bf16 a)
{
    __shared__ chunk kt[KEYS * line_chunks<D>], vt[KEYS * line_chunks<D>];
    int64_t blocks = (a.queries + ROWS - 1) / ROWS, which = blockIdx.x / blocks;
    int64_t b = which / a.heads, h = which % a.heads;
    int64_t first = (blocks - 1 - blockIdx.x % blocks) * ROWS; /* blocks with the most keys first */
    int64_t own = first + warp_of() * 16;
    int64_t end = (first + ROWS < a.queries ? first + ROWS : a.queries) + a.pos0;
    rows_of<ek_bf16> q = {a.q + b * a.q_seq + h * a.dim, a.q_ld, a.queries};
    rows_of<ek_bf16> k = {a.k + b * a.k_seq + h / a.per * a.dim, a.k_ld, end};
    rows_of<ek_bf16> v = {a.v + b * a.k_seq + h / a.per * a.dim, a.k_ld, end};
    const int starts[2] = {(int)a.start_of(b, own + row_in(0)),
                           (int)a.start_of(b, own + row_in(2))};
    int j0 = (int)a.start_of(b, first) / KEYS * KEYS;
    row_feed next_k = row_feed_of<D>(k, j0, a.dim), next_v = row_feed_of<D>(v, j0, a.dim);
    softmax m = {{ek_below_scores, ek_below_scores}, {0, 0}};
    float sum[D / 8][4] = {}, total[2], factor[2];
    unsigned mine[D / 16][4];

    copy_rows<D, ROWS>(kt, q, first, a.dim);
    copy_group();
    copy_wait<0>();
    __syncthreads();
    load_own<D>(mine, kt);
    __syncthreads();
    copy_next<D, KEYS>(kt, &next_k);
    copy_group();
#pragma unroll 1
    for (; j0 < (int)end; j0 += KEYS) {
        float s[KEYS / 8][4] = {}, shrink[2];
        int last = (int)(a.pos0 + own) - j0;

        copy_wait<0>();
        __syncthreads(); /* kt is loaded, vt is free */
        copy_next<D, KEYS>(vt, &next_v);
        copy_group();
#pragma unroll
        for (int c = 0; c < D / 16; c++)
            add_dots<D, KEYS>(s, mine[c], kt, c);
        __syncthreads(); /* kt is free */
        if (j0 + KEYS < (int)end)
            copy_next<D, KEYS>(kt, &next_k);
        copy_group();
        weigh(s, &m, a.scale * log2_e, last, {{starts[0] - j0, starts[1] - j0}}, shrink);
#pragma unroll
        for (int x = 0; x < D / 8; x++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                sum[x][i] *= shrink[i / 2];
        copy_wait<1>();
        __syncthreads(); /* vt is loaded */
        add_weighted<D, KEYS>(sum, s, vt);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int64_t t = own + row_in(2 * half);

        total[half] = row_fold(m.total[half], adds());
        factor[half] = 1 / total[half];
        if (a.lse != nullptr && t < a.queries && lane_of() % 4 == 0)
            a.lse[(b * a.heads + h) * a.queries + t] = m.top[half] * ln_2 + logf(total[half]);
    }
    store_rows<D>(a.o + (b * a.queries * a.heads + h) * a.dim, a.heads * a.dim, own, a.queries,
                  a.dim, sum, factor);
}

/* --- backward --------------------------------------------------------------------------------- */

/* lse (in log2 units) and delta of a query; past the last query values that make p 0. */
struct of_query {
    float lse, delta;
};

__device__ static of_query of_query_at(const sides<float, ek_bf16> &side, int64_t t)
{
    return t < side.q.n ? of_query{side.lse[t] * log2_e, side.delta[t]} : of_query{INFINITY, 0};
}

/* Replaces scores by p and do . v by ds; of(x, i): the query of element i of matrix x. */
template <class Of>
__device__ static void differentiate(float (&s)[OTHERS / 8][4], float (&ds)[OTHERS / 8][4],
                                     float scale, Of of)
{
#pragma unroll
    for (int x = 0; x < OTHERS / 8; x++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            s[x][i] = exp2_fast(scale * s[x][i] - of(x, i).lse);
            ds[x][i] = s[x][i] * (ds[x][i] - of(x, i).delta);
        }
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
    const int starts[2] = {(int)side.start_of(own + row_in(0)),
                           (int)side.start_of(own + row_in(2))};
    const int from = (int)side.start_of(first) / OTHERS * OTHERS;
    row_feed next_k = row_feed_of<D>(side.k, from, g.dim),
             next_v = row_feed_of<D>(side.v, from, g.dim);

    static_assert(2 * OTHERS >= ROWS, "own rows fit into both tiles");
    copy_rows<D, ROWS>(kt, side.q, first, g.dim);
    copy_rows<D, ROWS>(vt, side.d_o, first, g.dim);
    copy_group();
    copy_wait<0>();
    __syncthreads();
    load_own<D>(q, kt);
    load_own<D>(d_o, vt);
    __syncthreads();
    copy_next<D, OTHERS>(kt, &next_k);
    copy_next<D, OTHERS>(vt, &next_v);
    copy_group();
#pragma unroll 1
    for (int j0 = from; j0 < (int)end; j0 += OTHERS) {
        int now = (j0 - from) / OTHERS % 2 * TILE, next = TILE - now, last = (int)own - j0;
        float s[OTHERS / 8][4] = {}, ds[OTHERS / 8][4] = {};

        if (j0 + OTHERS < (int)end) {
            copy_next<D, OTHERS>(kt + next, &next_k);
            copy_next<D, OTHERS>(vt + next, &next_v);
        }
        copy_group();
        copy_wait<1>();
        __syncthreads(); /* tiles `now` are loaded */
#pragma unroll
        for (int c = 0; c < D / 16; c++) {
            add_dots<D, OTHERS>(s, q[c], kt + now, c);
            add_dots<D, OTHERS>(ds, d_o[c], vt + now, c);
        }
        differentiate(s, ds, g.scale * log2_e, [&](int, int i) { return of[i / 2]; });
        if (last < OTHERS - 1) /* else nothing is masked */
            fill_unless(ds, 0, [=](int x, int i) { return column_in(x, i) <= last + row_in(i); });
        fill_hidden(ds, 0, {{starts[0] - j0, starts[1] - j0}});
        add_weighted<D, OTHERS>(dq, ds, kt + now);
        __syncthreads(); /* tiles `now` are free */
    }
    store_rows<D>(g.dqkv + b * g.seq * g.ld + h * g.dim, g.ld, own, g.seq, g.dim, dq, factor);
}

/* Own rows are keys; queries are the columns of all products. */
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

    { /* part of the first group of copies */
        sides<float, ek_bf16> side = sides_of(g, b, kv * per);

        copy_rows<D, ROWS>(kt, side.k, first, g.dim);
        copy_rows<D, ROWS>(vt, side.v, first, g.dim);
    }
    for (int64_t h = kv * per; h < (kv + 1) * per; h++) {
        sides<float, ek_bf16> side = sides_of(g, b, h);
        row_feed next_q = row_feed_of<D>(side.q, first, g.dim),
                 next_d = row_feed_of<D>(side.d_o, first, g.dim);

        /* until the queries' documents begin after all keys of the block */
#pragma unroll 1
        for (int t0 = (int)first; t0 < (int)g.seq && side.start_of(t0) < first + ROWS;
             t0 += OTHERS) {
            float s[OTHERS / 8][4] = {}, ds[OTHERS / 8][4] = {};
            int before = (int)own - t0; /* row i is visible to columns from before + i on */
            of_query mine, of[OTHERS / 8][2];

            __syncthreads(); /* qt and dt are free */
            copy_next<D, OTHERS>(qt, &next_q);
            copy_next<D, OTHERS>(dt, &next_d);
            copy_group();
            mine = of_query_at(side, t0 + lane_of());
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
                for (int i = 0; i < 2; i++) {
                    of[x][i].lse = __shfl_sync(ek_all_lanes, mine.lse, column_in(x, i));
                    of[x][i].delta = __shfl_sync(ek_all_lanes, mine.delta, column_in(x, i));
                }
            differentiate(s, ds, g.scale * log2_e, [&](int x, int i) { return of[x][i % 2]; });
            if (before > -15) { /* else nothing is masked */
                auto seen = [=](int x, int i) { return before + row_in(i) <= column_in(x, i); };

                fill_unless(s, 0, seen);
                fill_unless(ds, 0, seen);
            }
            if (side.starts != nullptr) {
                int start = (int)side.start_of(t0 + lane_of()), starts[OTHERS / 8][2];

#pragma unroll
                for (int x = 0; x < OTHERS / 8; x++)
#pragma unroll
                    for (int i = 0; i < 2; i++)
                        starts[x][i] = __shfl_sync(ek_all_lanes, start, column_in(x, i));
                auto seen = [&](int x, int i) { return starts[x][i % 2] <= own + row_in(i); };

                fill_unless(s, 0, seen);
                fill_unless(ds, 0, seen);
            }
            add_weighted<D, OTHERS>(dv, s, dt);
            add_weighted<D, OTHERS>(dk, ds, qt);
        }
    }
    store_rows<D>(to, g.ld, own, g.seq, g.dim, dk, factor);
    store_rows<D>(to + g.kv_heads * g.dim, g.ld, own, g.seq, g.dim, dv, one);
}

/* --- launch ----------------------------------------------------------------------------------- */

static int64_t blocks_of_rows(int64_t n)
{
    return (n + ROWS - 1) / ROWS;
}

static int fits(int64_t dim, int64_t positions)
{
    return dim % EK_CHUNK == 0 && dim <= 128 && positions <= INT32_MAX - 2 * ROWS;
}

int ek_cuda_attend_bf16(const char *name, const forward_bf16 &a)
{
    int64_t blocks = a.sequences * a.heads * blocks_of_rows(a.queries);

    if (!fits(a.dim, a.pos0 + a.queries) || !(a.scale > 0) || a.queries < 16 ||
        !has_chunks(a.q, a.q_ld) || !has_chunks(a.k, a.k_ld) || !has_chunks(a.v, a.k_ld) ||
        !has_chunks(a.o, a.heads * a.dim))
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

    if (!fits(g.dim, g.seq) || !has_chunks(g.qkv, g.ld) || !has_chunks(g.dqkv, g.ld) ||
        !has_chunks(g.d_o, g.heads * g.dim))
        return 0;
    launch("attention_backward dq", of_queries, g.batch * g.heads * rows, THREADS, g);
    launch("attention_backward dk, dv", of_keys, g.batch * g.kv_heads * rows, THREADS, g);
    return 1;
}
