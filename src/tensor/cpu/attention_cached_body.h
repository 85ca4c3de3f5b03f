/* Attention of new tokens over a cache of keys and values.  A body file, after attention_body.h.
 *
 * A token's output depends on the cache alone, not on which tokens are new with it, if they are few
 * in both cases or many in both.
 * Few tokens (decoding) are bound by reading the cache.  A task has adjacent key heads and all
 * query rows that read them, and reads the cache once, in blocks of KEYS positions without packing:
 * whole cache lines in order, as hardware prefetchers expect.
 * Many tokens (chunked prefill): blocks of queries as in training, packed block by block. */

#include "tensor/ref/ref.h"

enum { CACHED_DIM = 256, KEYS = 64, FEW_ROWS = 64, FEW_ROWS_HEAD = 16, FEW_FLOATS = 8192 };

/* Query rows of some key heads, head by head, with their partial sums. */
typedef struct {
    int64_t rows, dim, wide;     /* rows of one head; wide: dim rounded up to whole vectors */
    int64_t seen[FEW_ROWS_HEAD]; /* number of keys visible to a row of a head */
    float top[FEW_ROWS + VW], keep[FEW_ROWS + VW], total[FEW_ROWS][VW], s[FEW_ROWS][KEYS];
    float q[FEW_FLOATS], o[FEW_FLOATS]; /* [row][wide] */
} few;

/* even (a constant): dim is a multiple of the vector width. */
static inline __attribute__((always_inline)) vf load_columns(const comp *x, int64_t c, int64_t dim,
                                                             const int even)
{
    return even || c + VW <= dim ? comp_load(x + c) : comp_load_n(x + c, dim - c);
}

/* The sum of v, with the bits of v_sum4: a score is the same wherever its key is in a call. */
static inline float v_sum_as4(vf v)
{
    const vf same[4] = {v, v, v, v};
    float sums[4];

    v_sum4(same, sums);
    return sums[0];
}

/* s = q k for rows r .. and keys j .. (numbers of both are constants); k is key j. */
static inline __attribute__((always_inline)) void few_dots(few *f, int64_t r, int64_t j,
                                                           const comp *k, int64_t ld,
                                                           const int rows, const int keys,
                                                           const int even)
{
    vf sum[4][4];

#pragma GCC unroll 4
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 4
        for (int t = 0; t < keys; t++)
            sum[i][t] = v_zero();
    }
    for (int64_t c = 0; c < f->dim; c += VW) {
#pragma GCC unroll 4
        for (int t = 0; t < keys; t++) {
            vf x = load_columns(k + t * ld, c, f->dim, even);

#pragma GCC unroll 4
            for (int i = 0; i < rows; i++)
                sum[i][t] = v_fma(v_load(f->q + (r + i) * f->wide + c), x, sum[i][t]);
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++) {
        if (keys == 4)
            v_sum4(sum[i], &f->s[r + i][j]);
        else
            f->s[r + i][j] = v_sum_as4(sum[i][0]);
    }
}

static inline __attribute__((always_inline)) void
few_scores(few *f, int64_t r, const comp *k, int64_t ld, int64_t n, const int rows, const int even)
{
    int64_t j = 0;

    for (; j + 4 <= n; j += 4)
        few_dots(f, r, j, k + j * ld, ld, rows, 4, even);
    for (; j < n; j++)
        few_dots(f, r, j, k + j * ld, ld, rows, 1, even);
}

/* o += p v for rows r .. and vecs vectors of columns from c on (both constants), n keys. */
static inline __attribute__((always_inline)) void few_values(few *f, int64_t r, int64_t c,
                                                             const comp *v, int64_t ld, int64_t n,
                                                             const int rows, const int vecs,
                                                             const int even)
{
    vf sum[4][TILE_VECS];

#pragma GCC unroll 4
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 4
        for (int j = 0; j < vecs; j++)
            sum[i][j] = v_load(f->o + (r + i) * f->wide + c + j * VW);
    }
    for (int64_t t = 0; t < n; t++, v += ld) {
        vf x[TILE_VECS];

#pragma GCC unroll 4
        for (int j = 0; j < vecs; j++)
            x[j] = load_columns(v, c + j * VW, f->dim, even);
#pragma GCC unroll 4
        for (int i = 0; i < rows; i++) {
            vf p = v_set1(f->s[r + i][t]);

#pragma GCC unroll 4
            for (int j = 0; j < vecs; j++)
                sum[i][j] = v_fma(p, x[j], sum[i][j]);
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 4
        for (int j = 0; j < vecs; j++)
            v_store(f->o + (r + i) * f->wide + c + j * VW, sum[i][j]);
    }
}

static inline __attribute__((always_inline)) void few_values_rows(few *f, int64_t r, const comp *v,
                                                                  int64_t ld, int64_t n,
                                                                  const int rows, const int even)
{
    int64_t c = 0;

    for (; c + TILE_VECS * VW <= f->wide; c += TILE_VECS * VW)
        few_values(f, r, c, v, ld, n, rows, TILE_VECS, even);
    for (; c < f->wide; c += VW)
        few_values(f, r, c, v, ld, n, rows, 1, even);
}

/* p from the scores of rows r0 .. and keys k0 .. k0 + n - 1; rescales the partial sums o. */
static void few_softmax(few *f, int64_t r0, int64_t k0, int64_t n, float base)
{
    float now[FEW_ROWS_HEAD]; /* raise_tops works on whole vectors: other rows are unchanged */

    for (int64_t r = 0; r < FEW_ROWS_HEAD; r++)
        now[r] = -FLT_MAX;
    for (int64_t r = 0; r < f->rows; r++) {
        int64_t seen = least(n, f->seen[r] - k0);

        now[r] = seen > 0 ? base * row_top(f->s[r0 + r], seen) : f->top[r0 + r];
    }
    (void)raise_tops(f->rows, now, f->top + r0, f->keep + r0);
    for (int64_t r = 0; r < f->rows; r++) {
        int64_t seen = least(n, f->seen[r] - k0);
        float *s = f->s[r0 + r], *o = f->o + (r0 + r) * f->wide, keep = f->keep[r0 + r];

        seen = seen > 0 ? seen : 0;
        row_exp(s, seen, base, f->top[r0 + r], keep, f->total[r0 + r], 0);
        for (int64_t c = divide_up(seen, GROUP) * GROUP; c < n; c += VW)
            v_store(s + c, v_zero());
        for (int64_t c = 0; keep != 1 && c < f->wide; c += VW)
            v_store(o + c, v_mul(v_load(o + c), v_set1(keep)));
    }
}

/* Adds keys k0 .. k0 + n - 1, which begin at k and v, to rows r0 .. of one head. */
static inline __attribute__((always_inline)) void few_block(few *f, int64_t r0, int64_t k0,
                                                            int64_t n, float scale, const comp *k,
                                                            const comp *v, int64_t ld,
                                                            const int even)
{
    int64_t end = r0 + f->rows, r = r0;

    for (; r + 4 <= end; r += 4)
        few_scores(f, r, k, ld, n, 4, even);
    for (; r + 2 <= end; r += 2)
        few_scores(f, r, k, ld, n, 2, even);
    for (; r < end; r++)
        few_scores(f, r, k, ld, n, 1, even);
    few_softmax(f, r0, k0, n, scale * Log2_e);
    for (r = r0; r + 4 <= end; r += 4)
        few_values_rows(f, r, v, ld, n, 4, even);
    for (; r + 2 <= end; r += 2)
        few_values_rows(f, r, v, ld, n, 2, even);
    for (; r < end; r++)
        few_values_rows(f, r, v, ld, n, 1, even);
}

/* One call of attention_cached; row i of a key head is query head i % per of token i / per. */
typedef struct {
    const ek_attention *a;
    int64_t m, pos0, per;
    const comp *qkv, *k, *v;
    comp *o;
} cached;

/* Key heads kv0 .. kv1 - 1, rows row0 .. of each. */
static void few_task(const cached *x, int64_t kv0, int64_t kv1, int64_t row0)
{
    int64_t dim = x->a->head_dim, ld = x->a->kv_heads * dim, last;
    _Alignas(64) few f;

    f.rows = least(FEW_ROWS_HEAD, x->m * x->per - row0);
    f.dim = dim;
    f.wide = divide_up(dim, VW) * VW;
    memset(f.top, 0, sizeof(f.top));
    for (int64_t i = 0; i < f.rows * (kv1 - kv0); i++) {
        int64_t r = i % f.rows, token = (row0 + r) / x->per;
        int64_t h = (kv0 + i / f.rows) * x->per + (row0 + r) % x->per;
        const comp *q = x->qkv + token * x->a->ld + h * dim;

        f.seen[r] = x->pos0 + token + 1;
        f.top[i] = -FLT_MAX;
        v_store(f.total[i], v_zero());
        for (int64_t c = 0; c < f.wide; c += VW) {
            v_store(f.q + i * f.wide + c, load_columns(q, c, dim, 0));
            v_store(f.o + i * f.wide + c, v_zero());
        }
    }
    last = x->pos0 + (row0 + f.rows - 1) / x->per + 1;
    for (int64_t k0 = 0; k0 < last; k0 += KEYS) {
        for (int64_t kv = kv0; kv < kv1; kv++) {
            const comp *k = x->k + k0 * ld + kv * dim, *v = x->v + k0 * ld + kv * dim;
            int64_t r = (kv - kv0) * f.rows, n = least(KEYS, last - k0);

            if (f.wide == dim)
                few_block(&f, r, k0, n, (float)x->a->scale, k, v, ld, 1);
            else
                few_block(&f, r, k0, n, (float)x->a->scale, k, v, ld, 0);
        }
    }
    for (int64_t i = 0; i < f.rows * (kv1 - kv0); i++) {
        int64_t row = row0 + i % f.rows, h = (kv0 + i / f.rows) * x->per + row % x->per;

        store_rows(f.o + i * f.wide, f.wide, 1 / v_sum(v_load(f.total[i])), 1, dim,
                   x->o + (row / x->per * x->a->heads + h) * dim, dim);
    }
}

/* As many key heads per task as fit, with at least one task for every thread. */
static void attend_few(const cached *x)
{
    int64_t rows = x->m * x->per, heads = x->a->kv_heads, wide = divide_up(x->a->head_dim, VW) * VW;
    int64_t fitting_heads = least(FEW_ROWS, FEW_FLOATS / wide) / least(rows, FEW_ROWS_HEAD);
    int64_t step = least(fitting_heads, divide_up(heads, omp_get_max_threads()));

#pragma omp parallel for schedule(dynamic) collapse(2)
    for (int64_t kv = 0; kv < heads; kv += step) {
        for (int64_t r = 0; r < rows; r += FEW_ROWS_HEAD)
            few_task(x, kv, least(kv + step, heads), r);
    }
}

/* Tokens t0 .. of query head i.  base: scratch of scratch_forward for a step. */
static void attend_many_task(const cached *x, int64_t i, int64_t t0, float *base)
{
    int64_t dim = x->a->head_dim, kv = i / x->per;
    head h = {.ldq = x->a->ld, .ldkv = x->a->kv_heads * dim, .dim = dim, .wide = wide_of(dim)};
    scratch w;

    h.q = x->qkv + i * dim;
    h.k = x->k + kv * dim;
    h.v = x->v + kv * dim;
    h.scale = (float)x->a->scale;
    (void)scratch_forward(&w, base, STEP / BLOCK, h.wide);
    forward_block(&h, &w, t0, least(BLOCK, x->m - t0), x->pos0 + t0, 0,
                  x->o + (t0 * x->a->heads + i) * dim, x->a->heads * dim, NULL);
}

static void attention_cached(const ek_attention *a, int64_t m, int64_t pos0, const void *qkv,
                             const void *k_cache, const void *v_cache, void *o, void *ws)
{
    cached x = {.a = a, .m = m, .pos0 = pos0, .per = a->heads / a->kv_heads};
    float *base = align_scratch(ws);
    size_t floats;
    scratch w;

    if (a->head_dim > CACHED_DIM) {
        ek_kernels ref = {0};

        ek_kernels_ref(&ref, sizeof(comp) == sizeof(float) ? EK_MODE_FP32 : EK_MODE_BF16);
        ref.attention_cached(a, m, pos0, qkv, k_cache, v_cache, o, ws);
        return;
    }
    x.qkv = qkv;
    x.k = k_cache;
    x.v = v_cache;
    x.o = o;
    if (m * x.per <= 2 * FEW_ROWS_HEAD) {
        attend_few(&x);
        return;
    }
    floats = scratch_forward(&w, NULL, STEP / BLOCK, wide_of(a->head_dim));
#pragma omp parallel for schedule(dynamic) collapse(2)
    for (int64_t i = 0; i < a->heads; i++) {
        for (int64_t t = 0; t < m; t += BLOCK)
            attend_many_task(&x, i, t, base + (size_t)omp_get_thread_num() * floats);
    }
}

static void attention_fill(ek_kernels *k)
{
    k->attention_forward = attention_forward;
    k->attention_backward = attention_backward;
    k->attention_workspace = attention_workspace;
    k->attention_cached = attention_cached;
}
