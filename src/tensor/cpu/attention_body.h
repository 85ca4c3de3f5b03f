/* Causal attention in blocks, forward and backward.  A body file: each instance first defines
 * vectors (attention_simd_*.h), the storage type `comp`, and how blocks are packed and multiplied
 * (attention_fma.h, or the bf16 dot products of attention_dot_avx512.c).
 *
 * A task is one (sequence, key head) with all query heads that read it, in order, so that every
 * sum has one order for any number of threads.  Keys and values are packed once per task; each
 * block of BLOCK queries is multiplied with blocks of BLOCK keys, except for key blocks before the
 * documents of all its queries.  With p = exp(scale q k - lse), delta = do . o and ds = p (do v -
 * delta): dq = scale ds k,  dk = scale ds^T q,  dv = p^T do.
 *
 * A packed element is 4 bytes: one float, or PAIR = 2 neighbours in bf16 along the direction that
 * the product sums over.  Products are c [rows][cols] += sum over k of a(row, k) b [k][cols]; a
 * is read element by element at any strides, so scores need no transposition. */
#include "base/progress_hook.h"
#include "tensor/kernels.h"

#include <float.h>
#include <math.h>
#include <omp.h>
#include <string.h>

enum { BLOCK = 64, TILE_ROWS = 6, TILE_ROWS_NARROW = 8 };

/* --- products --------------------------------------------------------------------------------- */

/* The causal shape of a product: key column c is visible to query row r if c <= r + diagonal. */
typedef enum {
    CAUSAL_COLUMNS, /* rows are queries, columns keys */
    CAUSAL_END,     /* rows are queries, the sum runs over keys */
    CAUSAL_BEGIN    /* rows are keys, the sum runs over queries */
} causal;

typedef struct {
    const float *a; /* element (row, k) at row * a_row + k * a_k */
    int64_t a_row, a_k;
    const float *b; /* [k][ldb] */
    int64_t ldb;
    float *c; /* [row][ldc] */
    int64_t ldc;
    int add;           /* accumulate into c; else c is set */
    const float *keep; /* [row] factors of the old c, or NULL; only with add */
    causal shape;
    int64_t diagonal;
} product;

static inline int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* One tile in registers: rows and vecs are constants after inlining. */
static inline __attribute__((always_inline)) void
tile(const product *p, int64_t r, int64_t v, int64_t k0, int64_t k1, const int rows, const int vecs)
{
    const float *a = p->a + r * p->a_row + k0 * p->a_k, *b = p->b + v * VW + k0 * p->ldb;
    float *c = p->c + r * p->ldc + v * VW;
    int64_t a_row = p->a_row, a_k = p->a_k, ldb = p->ldb, ldc = p->ldc;
    vf sum[TILE_ROWS_NARROW][TILE_VECS];

#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 4
        for (int j = 0; j < vecs; j++)
            sum[i][j] = v_zero();
    }
    for (int64_t k = k0; k < k1; k++, a += a_k, b += ldb) {
        vf right[TILE_VECS];

#pragma GCC unroll 4
        for (int j = 0; j < vecs; j++)
            right[j] = v_load(b + j * VW);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            vf left = element_set1(a + i * a_row);

#pragma GCC unroll 4
            for (int j = 0; j < vecs; j++)
                sum[i][j] = multiply_add(sum[i][j], left, right[j]);
        }
    }
    if (p->add) {
        const float *keep = p->keep == NULL ? NULL : p->keep + r;

#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            vf factor = keep == NULL ? v_set1(1.0f) : v_set1(keep[i]);

#pragma GCC unroll 4
            for (int j = 0; j < vecs; j++)
                sum[i][j] = v_fma(v_load(c + i * ldc + j * VW), factor, sum[i][j]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 4
        for (int j = 0; j < vecs; j++)
            v_store(c + i * ldc + j * VW, sum[i][j]);
    }
}

/* Computes a tile of `vecs` vectors that divides `left` rows evenly; returns its rows. */
static inline __attribute__((always_inline)) int64_t tile_rows(const product *p, int64_t r,
                                                               int64_t v, int64_t k0, int64_t k1,
                                                               int64_t left, const int vecs)
{
    int most = vecs < TILE_VECS ? TILE_ROWS_NARROW : TILE_ROWS;
    int64_t even = divide_up(left, divide_up(left, most));

    if (vecs < TILE_VECS && even == 8) {
        tile(p, r, v, k0, k1, 8, vecs);
        return 8;
    }
    if (even >= 6) {
        tile(p, r, v, k0, k1, 6, vecs);
        return 6;
    }
    if (even == 5) {
        tile(p, r, v, k0, k1, 5, vecs);
        return 5;
    }
    if (even == 4) {
        tile(p, r, v, k0, k1, 4, vecs);
        return 4;
    }
    if (even >= 2) {
        tile(p, r, v, k0, k1, 2, vecs);
        return 2;
    }
    tile(p, r, v, k0, k1, 1, vecs);
    return 1;
}

static int64_t tile_any(const product *p, int64_t r, int64_t v, int64_t k0, int64_t k1,
                        int64_t left, int64_t vecs)
{
    if (vecs == TILE_VECS)
        return tile_rows(p, r, v, k0, k1, left, TILE_VECS);
    if (TILE_VECS > 3 && vecs == 3)
        return tile_rows(p, r, v, k0, k1, left, 3);
    if (TILE_VECS > 2 && vecs == 2)
        return tile_rows(p, r, v, k0, k1, left, 2);
    return tile_rows(p, r, v, k0, k1, left, 1);
}

/* The visible part of c [rows][vecs * VW], summed over `depth` elements. */
static void multiply(const product *p, int64_t rows, int64_t vecs, int64_t depth)
{
    for (int64_t v = 0, step; v < vecs; v += step) {
        step = divide_up(vecs - v, divide_up(vecs - v, TILE_VECS));
        for (int64_t r = 0; r < rows;) {
            int64_t visible = r + TILE_ROWS_NARROW + p->diagonal; /* columns, to the last row */
            int64_t n = step, k0 = 0, k1 = depth;

            if (visible <= 0) {
                r++;
                continue;
            }
            if (p->shape == CAUSAL_COLUMNS)
                n = least(step, divide_up(visible, VW) - v);
            if (p->shape == CAUSAL_END)
                k1 = least(depth, divide_up(visible, PAIR));
            if (p->shape == CAUSAL_BEGIN && r > p->diagonal)
                k0 = least(depth, (r - p->diagonal) / PAIR);
            r += n > 0 ? tile_any(p, r, v, k0, k1, rows - r, n) : 1;
        }
    }
}

/* --- a head, and the scratch of a thread ------------------------------------------------------ */

/* One query head and the key head that it reads; strides in elements. */
typedef struct {
    const comp *q, *k, *v;
    int64_t ldq, ldkv, dim, wide; /* wide: dim rounded up to whole vectors of elements */
    float scale;
    const int32_t *starts; /* first visible key of each query; NULL: key 0 */
} head;

/* Scratch of a thread.  Packed blocks are BLOCK * wide / PAIR elements.  kt, vt:
 * [wide / PAIR][BLOCK]; kr, vr, qr, dor: [BLOCK / PAIR][wide]; others: [BLOCK][wide / PAIR]. */
typedef struct {
    float *kt, *kr, *vt, *vr; /* of all keys */
    float *q, *qr, *d_o, *dor, *rows;
    float *s, *ds, *narrow;    /* [BLOCK][BLOCK] */
    float *o, *dk, *dv;        /* [.][wide]; dk, dv of all keys.  Backward: dq in o, delta in top */
    float *top, *keep, *total; /* [BLOCK], [BLOCK], [BLOCK][VW] */
} scratch;

static float *scratch_alloc(float *base, size_t *used, int64_t n)
{
    float *p = base != NULL ? base + *used : NULL;

    *used += ((size_t)n + 15) & ~(size_t)15;
    return p;
}

/* Lays out the scratch for `blocks` blocks of keys; returns its size in floats.  base NULL:
 * measures only. */
static size_t scratch_forward(scratch *s, float *base, int64_t blocks, int64_t wide)
{
    int64_t pack = BLOCK * wide / PAIR;
    size_t n = 0;

    s->kt = scratch_alloc(base, &n, blocks * pack);
    s->vr = scratch_alloc(base, &n, blocks * pack);
    s->q = scratch_alloc(base, &n, pack);
    s->rows = scratch_alloc(base, &n, pack);
    s->s = scratch_alloc(base, &n, BLOCK * BLOCK);
    s->narrow = scratch_alloc(base, &n, BLOCK * BLOCK / PAIR);
    s->o = scratch_alloc(base, &n, BLOCK * wide);
    s->top = scratch_alloc(base, &n, BLOCK);
    s->keep = scratch_alloc(base, &n, BLOCK);
    s->total = scratch_alloc(base, &n, BLOCK * VW);
    return n;
}

static size_t scratch_backward(scratch *s, float *base, int64_t blocks, int64_t wide)
{
    int64_t pack = BLOCK * wide / PAIR;
    size_t n = scratch_forward(s, base, blocks, wide);

    s->kr = scratch_alloc(base, &n, blocks * pack);
    s->vt = scratch_alloc(base, &n, blocks * pack);
    s->qr = scratch_alloc(base, &n, pack);
    s->d_o = scratch_alloc(base, &n, pack);
    s->dor = scratch_alloc(base, &n, pack);
    s->ds = scratch_alloc(base, &n, BLOCK * BLOCK);
    s->dk = scratch_alloc(base, &n, blocks * BLOCK * wide);
    s->dv = scratch_alloc(base, &n, blocks * BLOCK * wide);
    return n;
}

static int64_t wide_of(int64_t dim)
{
    return divide_up(dim, VW * PAIR) * VW * PAIR;
}

static float *align_scratch(void *ws)
{
    return (float *)(((uintptr_t)ws + 63) & ~(uintptr_t)63);
}

static size_t attention_workspace(const ek_kernels *k, const ek_attention *a)
{
    int64_t threads = omp_get_max_threads();
    scratch s;

    threads = threads > k->threads ? threads : k->threads;
    return 64 + (size_t)threads * sizeof(float) *
                    scratch_backward(&s, NULL, divide_up(a->seq, BLOCK), wide_of(a->head_dim));
}

static head head_of(const ek_attention *a, const comp *qkv, int64_t b, int64_t h)
{
    const comp *row = qkv + b * a->seq * a->ld;
    int64_t kv = h / (a->heads / a->kv_heads);
    head s = {.ldq = a->ld, .ldkv = a->ld, .dim = a->head_dim, .wide = wide_of(a->head_dim)};

    s.scale = (float)a->scale;
    s.q = row + h * a->head_dim;
    s.k = row + (a->heads + kv) * a->head_dim;
    s.v = s.k + a->kv_heads * a->head_dim;
    s.starts = a->starts != NULL ? a->starts + b * a->seq : NULL;
    return s;
}

/* n <= BLOCK rows to [wide / PAIR][BLOCK], zeros up to whole vectors of rows.
 * rows: scratch [BLOCK][wide / PAIR]. */
static void pack_transposed(const comp *x, int64_t ld, int64_t n, int64_t d, int64_t wide,
                            float *rows, float *to)
{
    int64_t elements = wide / PAIR, padded = divide_up(n, VW) * VW;

    pack_rows(x, ld, n, d, wide, rows);
    memset(rows + n * elements, 0, (size_t)((padded - n) * elements) * sizeof(float));
    for (int64_t r = 0; r < padded; r += VW) {
        for (int64_t c = 0; c < elements; c += VW)
            v_transpose(rows + r * elements + c, elements, to + c * BLOCK + r, BLOCK);
    }
}

/* s [nq][BLOCK] = a [nq][wide / PAIR] b [wide / PAIR][BLOCK], where visible. */
static void scores(const float *a, const float *b, int64_t nq, int64_t nk, int64_t wide,
                   int64_t diagonal, float *s)
{
    product p = {.a = a, .a_row = wide / PAIR, .a_k = 1, .b = b, .ldb = BLOCK, .c = s};

    p.ldc = BLOCK;
    p.shape = CAUSAL_COLUMNS;
    p.diagonal = diagonal;
    multiply(&p, nq, divide_up(nk, VW), wide / PAIR);
}

/* c [nq][wide] = s b, over nk keys; if add, to c, whose rows are scaled by keep (NULL: 1). */
static void over_keys(const float *s, const float *b, int64_t nq, int64_t nk, int64_t wide,
                      int64_t diagonal, int add, const float *keep, float *narrow, float *c)
{
    product p = {.a_row = BLOCK / PAIR, .a_k = 1, .b = b, .ldb = wide, .c = c, .ldc = wide};

    p.a = narrow_over_keys(s, nq, narrow);
    p.add = add;
    p.keep = keep;
    p.shape = CAUSAL_END;
    p.diagonal = diagonal;
    multiply(&p, nq, wide / VW, divide_up(nk, PAIR));
}

/* c [nk][wide] += s^T b, over nq queries. */
static void over_queries(const float *s, const float *b, int64_t nq, int64_t nk, int64_t wide,
                         int64_t diagonal, float *narrow, float *c)
{
    product p = {.a_row = 1, .a_k = BLOCK, .b = b, .ldb = wide, .c = c, .ldc = wide};

    p.a = narrow_over_queries(s, nq, narrow);
    p.add = 1;
    p.shape = CAUSAL_BEGIN;
    p.diagonal = diagonal;
    multiply(&p, nk, wide / VW, divide_up(nq, PAIR));
}

/* Stores n rows of f x [wide] as comp rows of dim. */
static void store_rows(const float *x, int64_t wide, float f, int64_t n, int64_t dim, comp *to,
                       int64_t ld)
{
    vf factor = v_set1(f);

    for (int64_t r = 0; r < n; r++) {
        int64_t c = 0;

        for (; c + VW <= dim; c += VW)
            comp_store(to + r * ld + c, v_mul(factor, v_load(x + r * wide + c)));
        if (c < dim)
            comp_store_n(to + r * ld + c, v_mul(factor, v_load(x + r * wide + c)), dim - c);
    }
}

/* Number of visible columns of row r of a block. */
static inline int64_t visible_columns(int64_t r, int64_t diagonal)
{
    int64_t n = r + diagonal + 1;

    return n < 0 ? 0 : least(n, BLOCK);
}

/* Number of columns of the key block from k0 on, at most n, that are before the document of row r.
 * starts: of row 0; NULL: none. */
static inline int64_t hidden_columns(const int32_t *starts, int64_t r, int64_t k0, int64_t n)
{
    int64_t hidden = starts != NULL ? starts[r] - k0 : 0;

    return hidden < 0 ? 0 : least(hidden, n);
}

/* The first key block visible to the queries from row q0 on: starts never decrease. */
static inline int64_t first_block(const head *h, int64_t q0)
{
    return h->starts != NULL ? h->starts[q0] / BLOCK : 0;
}

static void zero_row(float *row, int64_t from)
{
    if (from < BLOCK)
        memset(row + from, 0, (size_t)(BLOCK - from) * sizeof(float));
}

/* --- forward ---------------------------------------------------------------------------------- */

/* The largest of n visible scores of a row; -inf if none. */
static inline __attribute__((always_inline)) float row_top(const float *s, int64_t n)
{
    int64_t whole = n / VW * VW;
    vf big = v_set1(-INFINITY);

    for (int64_t c = 0; c < whole; c += VW)
        big = v_max(big, v_load(s + c));
    if (whole < n)
        big = v_max(big, v_keep(v_load(s + whole), big, n - whole));
    return v_largest(big);
}

/* n visible scores of a row -> p = exp(scale s - top), zeros to whole vectors; total = keep total
 * + their sums, lane by lane. */
static inline __attribute__((always_inline)) void row_exp(float *s, int64_t n, float scale,
                                                          float top, float keep, float *total)
{
    int64_t whole = n / VW * VW;
    vf sum = v_mul(v_load(total), v_set1(keep)), factor = v_set1(scale), shift = v_set1(-top);

    for (int64_t c = 0; c < whole; c += VW) {
        vf p = v_exp(v_fma(v_load(s + c), factor, shift));

        sum = v_add(sum, p);
        v_store(s + c, p);
    }
    if (whole < n) {
        vf p = v_keep(v_exp(v_fma(v_load(s + whole), factor, shift)), v_zero(), n - whole);

        sum = v_add(sum, p);
        v_store(s + whole, p);
    }
    v_store(total, sum);
}

/* top = max(top, now) for a multiple of VW rows; keep = exp(old top - new top). */
static void raise_tops(int64_t rows, const float *now, float *top, float *keep)
{
    for (int64_t r = 0; r < rows; r += VW) {
        vf old = v_load(top + r), larger = v_max(old, v_load(now + r));

        v_store(keep + r, v_exp(v_sub(old, larger)));
        v_store(top + r, larger);
    }
}

/* Sets the scores before a row's document to -inf, which the softmax turns into 0; returns how many
 * of n columns are left. */
static int64_t hide_columns(float *s, const int32_t *starts, int64_t r, int64_t k0, int64_t n)
{
    int64_t hidden = hidden_columns(starts, r, k0, n);

    for (int64_t c = 0; c < hidden; c++)
        s[c] = -INFINITY;
    return n - hidden;
}

/* Softmax of a block of scores, in place; w->keep gets the factors of the partial output o. starts,
 * k0: as in hidden_columns. */
static void softmax_block(const scratch *w, int64_t nq, float scale, int64_t diagonal,
                          const int32_t *starts, int64_t k0)
{
    float now[BLOCK];

    for (int64_t r = 0; r < BLOCK; r++) {
        int64_t n = r < nq ? visible_columns(r, diagonal) : 0;

        if (starts != NULL && n > 0 && hide_columns(w->s + r * BLOCK, starts, r, k0, n) == 0)
            n = 0;
        now[r] = n == BLOCK ? row_top(w->s + r * BLOCK, BLOCK) : row_top(w->s + r * BLOCK, n);
        now[r] = n == 0 ? w->top[r] : now[r] * scale;
    }
    raise_tops(BLOCK, now, w->top, w->keep);
    for (int64_t r = 0; r < nq; r++) {
        float *s = w->s + r * BLOCK, *total = w->total + r * VW;
        int64_t n = visible_columns(r, diagonal);

        if (n == BLOCK)
            row_exp(s, BLOCK, scale, w->top[r], w->keep[r], total);
        else
            row_exp(s, n, scale, w->top[r], w->keep[r], total);
        zero_row(s, divide_up(n, VW) * VW);
    }
}

/* Packs keys and values of block j of `total` into slot `at`. */
static void pack_forward(const head *h, const scratch *w, int64_t j, int64_t total, int64_t at)
{
    int64_t n = least(BLOCK, total - j * BLOCK), pack = BLOCK * h->wide / PAIR;

    pack_transposed(h->k + j * BLOCK * h->ldkv, h->ldkv, n, h->dim, h->wide, w->rows,
                    w->kt + at * pack);
    pack_over_rows(h->v + j * BLOCK * h->ldkv, h->ldkv, n, h->dim, h->wide, w->vr + at * pack);
}

/* nq queries from row q0 on, the first at position pos, against all keys up to their own.
 * packed: all keys are packed in w; else each block is packed before its use.
 * o: row q0 of the output; lse may be NULL. */
static void forward_block(const head *h, const scratch *w, int64_t q0, int64_t nq, int64_t pos,
                          int packed, comp *o, int64_t ldo, float *lse)
{
    int64_t total = pos + nq, pack = BLOCK * h->wide / PAIR, first = first_block(h, q0);
    const int32_t *starts = h->starts != NULL ? h->starts + q0 : NULL;

    pack_rows(h->q + q0 * h->ldq, h->ldq, nq, h->dim, h->wide, w->q);
    memset(w->total, 0, (size_t)(nq * VW) * sizeof(float));
    for (int64_t r = 0; r < BLOCK; r++)
        w->top[r] = -FLT_MAX;
    for (int64_t j = first; j * BLOCK < total; j++) {
        int64_t nk = least(BLOCK, total - j * BLOCK), diagonal = pos - j * BLOCK;
        int64_t at = packed ? j * pack : 0;

        if (!packed)
            pack_forward(h, w, j, total, 0);
        scores(w->q, w->kt + at, nq, nk, h->wide, diagonal, w->s);
        softmax_block(w, nq, h->scale, diagonal, starts, j * BLOCK);
        over_keys(w->s, w->vr + at, nq, nk, h->wide, diagonal, j > first, w->keep, w->narrow, w->o);
        ek_progress();
    }
    for (int64_t r = 0; r < nq; r++) {
        float sum = v_sum(v_load(w->total + r * VW));

        store_rows(w->o + r * h->wide, h->wide, 1 / sum, 1, h->dim, o + r * ldo, ldo);
        if (lse != NULL)
            lse[r] = w->top[r] + logf(sum);
    }
}

static void attention_forward(const ek_attention *a, const void *qkv, void *o, void *lse, void *ws)
{
    int64_t per = a->heads / a->kv_heads, ldo = a->heads * a->head_dim;
    int64_t blocks = divide_up(a->seq, BLOCK);
    float *base = align_scratch(ws);

#pragma omp parallel for schedule(dynamic) collapse(2)
    for (int64_t b = 0; b < a->batch; b++) {
        for (int64_t kv = 0; kv < a->kv_heads; kv++) {
            head h = head_of(a, qkv, b, kv * per);
            scratch w;
            size_t floats = scratch_backward(&w, NULL, blocks, h.wide);

            (void)scratch_forward(&w, base + (size_t)omp_get_thread_num() * floats, blocks, h.wide);
            for (int64_t j = 0; j < blocks; j++)
                pack_forward(&h, &w, j, a->seq, j);
            for (int64_t i = kv * per; i < (kv + 1) * per; i++) {
                h = head_of(a, qkv, b, i);
                for (int64_t q0 = 0; q0 < a->seq; q0 += BLOCK)
                    forward_block(&h, &w, q0, least(BLOCK, a->seq - q0), q0, 1,
                                  (comp *)o + (b * a->seq + q0) * ldo + i * a->head_dim, ldo,
                                  (float *)lse + (b * a->heads + i) * a->seq + q0);
            }
        }
    }
}

/* --- backward --------------------------------------------------------------------------------- */

/* s -> p and ds -> p (ds - delta) for n visible columns of a row, zeros beyond. */
static inline __attribute__((always_inline)) void gradient_row(float *s, float *ds, int64_t n,
                                                               float scale, float lse, float delta)
{
    int64_t whole = n / VW * VW;
    vf factor = v_set1(scale), shift = v_set1(-lse), mean = v_set1(delta);

    for (int64_t c = 0; c < whole; c += VW) {
        vf p = v_exp(v_fma(v_load(s + c), factor, shift));

        v_store(s + c, p);
        v_store(ds + c, v_mul(p, v_sub(v_load(ds + c), mean)));
    }
    if (whole < n) {
        vf p = v_exp(v_fma(v_load(s + whole), factor, shift));
        vf g = v_mul(p, v_sub(v_load(ds + whole), mean));

        v_store(s + whole, v_keep(p, v_zero(), n - whole));
        v_store(ds + whole, v_keep(g, v_zero(), n - whole));
        whole += VW;
    }
    zero_row(s, whole);
    zero_row(ds, whole);
}

static void gradient_block(const scratch *w, int64_t nq, float scale, int64_t diagonal,
                           const float *lse, const int32_t *starts, int64_t k0)
{
    for (int64_t r = 0; r < nq; r++) {
        float *s = w->s + r * BLOCK, *ds = w->ds + r * BLOCK;
        int64_t n = visible_columns(r, diagonal), hidden = hidden_columns(starts, r, k0, n);

        if (n == BLOCK)
            gradient_row(s, ds, BLOCK, scale, lse[r], w->top[r]);
        else
            gradient_row(s, ds, n, scale, lse[r], w->top[r]);
        if (hidden > 0) {
            memset(s, 0, (size_t)hidden * sizeof(float));
            memset(ds, 0, (size_t)hidden * sizeof(float));
        }
    }
}

static float dot_rows(const comp *x, const comp *y, int64_t n)
{
    vf sum = v_zero();
    int64_t c = 0;

    for (; c + VW <= n; c += VW)
        sum = v_fma(comp_load(x + c), comp_load(y + c), sum);
    if (c < n)
        sum = v_fma(comp_load_n(x + c, n - c), comp_load_n(y + c, n - c), sum);
    return v_sum(sum);
}

static void pack_backward(const head *h, const scratch *w, int64_t j, int64_t total)
{
    int64_t n = least(BLOCK, total - j * BLOCK), at = j * (BLOCK * h->wide / PAIR);
    const comp *k = h->k + j * BLOCK * h->ldkv, *v = h->v + j * BLOCK * h->ldkv;

    pack_transposed(k, h->ldkv, n, h->dim, h->wide, w->rows, w->kt + at);
    pack_transposed(v, h->ldkv, n, h->dim, h->wide, w->rows, w->vt + at);
    pack_over_rows(k, h->ldkv, n, h->dim, h->wide, w->kr + at);
}

/* Queries q0 .. q0 + nq - 1: sets their dq, adds to dk and dv.  o, d_o, lse, dq: of row q0. */
static void backward_block(const head *h, const scratch *w, int64_t q0, int64_t nq, const comp *o,
                           const comp *d_o, int64_t ldo, const float *lse, comp *dq)
{
    const comp *q = h->q + q0 * h->ldq;
    const int32_t *starts = h->starts != NULL ? h->starts + q0 : NULL;
    int64_t wide = h->wide, first = first_block(h, q0) * BLOCK;

    pack_rows(q, h->ldq, nq, h->dim, wide, w->q);
    pack_over_rows(q, h->ldq, nq, h->dim, wide, w->qr);
    pack_rows(d_o, ldo, nq, h->dim, wide, w->d_o);
    pack_over_rows(d_o, ldo, nq, h->dim, wide, w->dor);
    for (int64_t r = 0; r < nq; r++)
        w->top[r] = dot_rows(o + r * ldo, d_o + r * ldo, h->dim);
    for (int64_t k0 = first; k0 < q0 + nq; k0 += BLOCK) {
        int64_t nk = least(BLOCK, q0 + nq - k0), diagonal = q0 - k0, at = k0 * wide / PAIR;

        scores(w->q, w->kt + at, nq, nk, wide, diagonal, w->s);
        scores(w->d_o, w->vt + at, nq, nk, wide, diagonal, w->ds);
        gradient_block(w, nq, h->scale, diagonal, lse, starts, k0);
        over_keys(w->ds, w->kr + at, nq, nk, wide, diagonal, k0 > first, NULL, w->narrow, w->o);
        over_queries(w->ds, w->qr, nq, nk, wide, diagonal, w->narrow, w->dk + k0 * wide);
        over_queries(w->s, w->dor, nq, nk, wide, diagonal, w->narrow, w->dv + k0 * wide);
        ek_progress();
    }
    store_rows(w->o, wide, h->scale, nq, h->dim, dq, h->ldq);
}

/* The backward pass of one (sequence, key head). */
static void backward_task(const ek_attention *a, const scratch *w, int64_t b, int64_t kv,
                          const comp *qkv, const comp *o, const float *lse, const comp *d_o,
                          comp *dqkv)
{
    int64_t per = a->heads / a->kv_heads, ldo = a->heads * a->head_dim, seq = a->seq;
    head h = head_of(a, qkv, b, kv * per);
    comp *row = dqkv + b * seq * a->ld;
    comp *dk = row + (a->heads + kv) * h.dim, *dv = dk + a->kv_heads * h.dim;
    size_t bytes = (size_t)(seq * h.wide) * sizeof(float);

    for (int64_t j = 0; j * BLOCK < seq; j++)
        pack_backward(&h, w, j, seq);
    memset(w->dk, 0, bytes);
    memset(w->dv, 0, bytes);
    for (int64_t i = kv * per; i < (kv + 1) * per; i++) {
        h = head_of(a, qkv, b, i);
        for (int64_t q0 = 0; q0 < seq; q0 += BLOCK) {
            int64_t at = (b * seq + q0) * ldo + i * h.dim;

            backward_block(&h, w, q0, least(BLOCK, seq - q0), o + at, d_o + at, ldo,
                           lse + (b * a->heads + i) * seq + q0, row + q0 * a->ld + i * h.dim);
        }
    }
    store_rows(w->dk, h.wide, h.scale, seq, h.dim, dk, a->ld);
    store_rows(w->dv, h.wide, 1, seq, h.dim, dv, a->ld);
}

static void attention_backward(const ek_attention *a, const void *qkv, const void *o,
                               const void *lse, const void *d_o, void *dqkv, void *ws)
{
    int64_t blocks = divide_up(a->seq, BLOCK), wide = wide_of(a->head_dim);
    float *base = align_scratch(ws);

#pragma omp parallel for schedule(dynamic) collapse(2)
    for (int64_t b = 0; b < a->batch; b++) {
        for (int64_t kv = 0; kv < a->kv_heads; kv++) {
            scratch w;
            size_t floats = scratch_backward(&w, NULL, blocks, wide);

            (void)scratch_backward(&w, base + (size_t)omp_get_thread_num() * floats, blocks, wide);
            backward_task(a, &w, b, kv, qkv, o, lse, d_o, dqkv);
        }
    }
}
