/* Causal attention in blocks, forward.  A body file, after the definitions that
 * attention_product_body.h names; attention_backward_body.h and attention_cached_body.h follow it.
 *
 * A task is one (sequence, key head) with all query heads that read it, in order, so that every
 * sum has one order for any number of threads.  Keys and values are packed once per task, in blocks
 * of BLOCK keys; each block of BLOCK queries is multiplied with up to STEP keys at a time, except
 * for key blocks before the documents of all its queries.
 *
 * The softmax is computed to base 2: with base = scale log2(e), p = 2^(base s - top).  A row's top
 * is raised, and its partial sums rescaled, only if a score exceeds it by more than Slack, so that
 * p <= 2^Slack (as in FlashAttention-4). */
#include "tensor/cpu/attention_product_body.h"

enum { GROUP = VW * PAIR }; /* columns of a whole vector of packed elements */

static const float Slack = 8, Ln_2 = 0.69314718f, Log2_e = 1.44269504f;

/* --- a head, and the scratch of a thread ------------------------------------------------------ */

/* One query head and the key head that it reads; strides in elements. */
typedef struct {
    const comp *q, *k, *v;
    int64_t ldq, ldkv, dim, wide; /* wide: dim rounded up to whole vectors of elements */
    float scale;
    const int32_t *starts; /* first visible key of each query; NULL: key 0 */
} head;

/* Scratch of a thread.  Packed blocks are BLOCK * wide / PAIR elements.  kt, vt:
 * [wide / PAIR][BLOCK]; kr, vr, qr, dor: [BLOCK / PAIR][wide]; others: [BLOCK][wide / PAIR].
 * Scores s and ds are floats [BLOCK][STEP], which the softmax replaces by packed elements. */
typedef struct {
    float *kt, *kr, *vt, *vr; /* of all keys */
    float *q, *qr, *d_o, *dor, *rows;
    float *s, *ds, *ds_keys;   /* ds_keys [BLOCK][STEP / PAIR]: ds as the left side over keys */
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
    s->s = scratch_alloc(base, &n, BLOCK * STEP);
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
    s->ds = scratch_alloc(base, &n, BLOCK * STEP);
    s->ds_keys = PAIR == 1 ? s->ds : scratch_alloc(base, &n, BLOCK * STEP / PAIR);
    s->dk = scratch_alloc(base, &n, blocks * BLOCK * wide);
    s->dv = scratch_alloc(base, &n, blocks * BLOCK * wide);
    return n;
}

/* This thread's scratch, which forward and backward lay out alike. */
static scratch scratch_of_thread(float *base, int64_t blocks, int64_t wide)
{
    scratch s;
    size_t floats = scratch_backward(&s, NULL, blocks, wide);

    (void)scratch_backward(&s, base + (size_t)omp_get_thread_num() * floats, blocks, wide);
    return s;
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

/* s [nq][STEP] = a [nq][wide / PAIR] b for nk keys, where visible; b: packed blocks of keys. */
static void scores(const float *a, const float *b, int64_t nq, int64_t nk, int64_t wide,
                   int64_t diagonal, float *s)
{
    product p = {.a = a, .a_row = wide / PAIR, .a_k = 1, .ldb = BLOCK, .ldc = STEP};

    p.shape = CAUSAL_COLUMNS;
    for (int64_t k = 0; k < nk; k += BLOCK) {
        p.b = b + k * wide / PAIR;
        p.c = s + k;
        p.diagonal = diagonal - k;
        multiply(&p, nq, divide_up(least(BLOCK, nk - k), VW), wide / PAIR);
    }
}

/* c [nq][wide] = s b, over nk keys; if add, to c, whose rows are scaled by keep (NULL: 1).
 * s: packed elements [nq][lds]. */
static void over_keys(const float *s, int64_t lds, const float *b, int64_t nq, int64_t nk,
                      int64_t wide, int64_t diagonal, int add, const float *keep, float *c)
{
    product p = {.a = s, .a_row = lds, .a_k = 1, .b = b, .ldb = wide, .c = c, .ldc = wide};

    p.add = add;
    p.keep = keep;
    p.shape = CAUSAL_END;
    p.diagonal = diagonal;
    multiply(&p, nq, wide / VW, divide_up(nk, PAIR));
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

/* Number of visible columns of row r of a step. */
static inline int64_t visible_columns(int64_t r, int64_t diagonal)
{
    int64_t n = r + diagonal + 1;

    return n < 0 ? 0 : least(n, STEP);
}

/* Number of columns of the step from key k0 on, at most n, that are before the document of row r.
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

/* Fetches n rows to the L2 cache while other work goes on; to_write (a constant): to be stored. */
static inline __attribute__((always_inline)) void fetch_rows(const comp *x, int64_t ld, int64_t n,
                                                             int64_t dim, const int to_write)
{
    enum { LINE = 64 / sizeof(comp) };

    for (int64_t r = 0; r < n; r++) {
        for (int64_t c = 0; c < dim; c += LINE)
            __builtin_prefetch(x + r * ld + c, to_write, 2);
    }
}

/* The end of the columns that products read of a row with n visible ones, in whole groups: a tile
 * reads the columns of its last row. */
static inline int64_t end_of_columns(int64_t n)
{
    return least(STEP, divide_up(n + TILE_ROWS_NARROW + PAIR, GROUP) * GROUP);
}

/* to[i] = the sum of the VW floats from x + i VW on, for four i. */
static inline void sum_rows(const float *x, float *to)
{
    const vf rows[4] = {v_load(x), v_load(x + VW), v_load(x + 2 * VW), v_load(x + 3 * VW)};

    v_sum4(rows, to);
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

/* n visible scores of a row -> p = 2^(base s - top), zeros to whole groups; total = keep total +
 * their sums, lane by lane.  packed (a constant): p as packed elements at the row's start. */
static inline __attribute__((always_inline)) void
row_exp(float *s, int64_t n, float base, float top, float keep, float *total, const int packed)
{
    vf sum = v_mul(v_load(total), v_set1(keep)), factor = v_set1(base), shift = v_set1(-top);

    for (int64_t c = 0; c < n; c += GROUP) {
        vf p[PAIR];

#pragma GCC unroll 2
        for (int j = 0; j < PAIR; j++) {
            p[j] = v_exp2(v_fma(v_load(s + c + j * VW), factor, shift));
            if (c + GROUP > n)
                p[j] = v_between(p[j], 0, n - c - j * VW);
            sum = v_add(sum, p[j]);
        }
        if (packed) {
            pack_columns(s + c / PAIR, p);
            continue;
        }
#pragma GCC unroll 2
        for (int j = 0; j < PAIR; j++)
            v_store(s + c + j * VW, p[j]);
    }
    v_store(total, sum);
}

/* Raises the tops of a multiple of VW rows that `now` exceeds by more than Slack; keep =
 * 2^(old top - new top).  True if any was raised. */
static int raise_tops(int64_t rows, const float *now, float *top, float *keep)
{
    int raised = 0;

    for (int64_t r = 0; r < rows; r += VW) {
        vf old = v_load(top + r), larger = v_raise(old, v_load(now + r), v_set1(Slack));

        v_store(keep + r, v_exp2(v_sub(old, larger)));
        v_store(top + r, larger);
        raised |= v_differ(old, larger);
    }
    return raised;
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

/* Softmax of the scores of a step, in place; w->keep gets the factors of the partial output o. True
 * if any is not 1.  starts, k0: as in hidden_columns. */
static int softmax_step(const scratch *w, int64_t nq, float base, int64_t diagonal,
                        const int32_t *starts, int64_t k0)
{
    float now[BLOCK];
    int raised;

    for (int64_t r = 0; r < BLOCK; r++) {
        int64_t n = r < nq ? visible_columns(r, diagonal) : 0;

        if (starts != NULL && n > 0 && hide_columns(w->s + r * STEP, starts, r, k0, n) == 0)
            n = 0;
        now[r] = n == STEP ? row_top(w->s + r * STEP, STEP) : row_top(w->s + r * STEP, n);
        now[r] = n == 0 ? w->top[r] : now[r] * base;
    }
    raised = raise_tops(BLOCK, now, w->top, w->keep);
    for (int64_t r = 0; r < nq; r++) {
        float *s = w->s + r * STEP, *total = w->total + r * VW;
        int64_t n = visible_columns(r, diagonal), whole = divide_up(n, GROUP) * GROUP;

        if (n == STEP) {
            row_exp(s, STEP, base, w->top[r], w->keep[r], total, 1);
            continue;
        }
        row_exp(s, n, base, w->top[r], w->keep[r], total, 1);
        for (int64_t c = whole; c < end_of_columns(n); c += GROUP)
            v_store(s + c / PAIR, v_zero());
    }
    return raised;
}

/* Packs keys and values of block j of `total` into slot `at`. */
static void pack_forward(const head *h, const scratch *w, int64_t j, int64_t total, int64_t at)
{
    int64_t n = least(BLOCK, total - j * BLOCK), pack = BLOCK * h->wide / PAIR;

    pack_transposed(h->k + j * BLOCK * h->ldkv, h->ldkv, n, h->dim, h->wide, w->rows,
                    w->kt + at * pack);
    pack_over_rows(h->v + j * BLOCK * h->ldkv, h->ldkv, n, h->dim, h->wide, w->vr + at * pack);
}

/* log2(x) within 2e-7 of the larger of it and 1, for normal x > 0; NaN for NaN.  log m = 2 atanh t
 * with t = (m - 1) / (m + 1), |t| <= 1/5. */
static inline vf v_log2(vf x)
{
    vf exponent, m = v_split(x, &exponent), one = v_set1(1.0f);
    vf t = v_div(v_sub(m, one), v_add(m, one)), square = v_mul(t, t), p = v_set1(1.0f / 9);

    for (int i = 7; i > 0; i -= 2)
        p = v_fma(p, square, v_set1(1.0f / (float)i));
    return v_add(v_fma(v_mul(p, t), v_set1(2 * Log2_e), exponent), v_sub(x, x));
}

/* Stores the outputs of nq rows, and their lse unless it is NULL. */
static void finish_block(const head *h, const scratch *w, int64_t nq, comp *o, int64_t ldo,
                         float *lse)
{
    float inverse[BLOCK];

    for (int64_t r = 0; r < nq; r += VW) {
        float sums[VW];
        vf sum;

        for (int64_t i = 0; i < VW; i += 4)
            sum_rows(w->total + (r + i) * VW, sums + i);
        sum = v_load(sums);
        v_store(inverse + r, v_div(v_set1(1.0f), sum));
        sum = v_mul(v_add(v_load(w->top + r), v_log2(sum)), v_set1(Ln_2));
        if (lse != NULL)
            v_store_n(lse + r, sum, least(VW, nq - r));
    }
    for (int64_t r = 0; r < nq; r++)
        store_rows(w->o + r * h->wide, h->wide, inverse[r], 1, h->dim, o + r * ldo, ldo);
}

/* nq queries from row q0 on, the first at position pos, against all keys up to their own.
 * packed: all keys are packed in w; else those of each step are packed before their use.
 * o: row q0 of the output; lse may be NULL. */
static void forward_block(const head *h, const scratch *w, int64_t q0, int64_t nq, int64_t pos,
                          int packed, comp *o, int64_t ldo, float *lse)
{
    int64_t total = pos + nq, wide = h->wide, first = first_block(h, q0) * BLOCK;
    const int32_t *starts = h->starts != NULL ? h->starts + q0 : NULL;

    pack_rows(h->q + q0 * h->ldq, h->ldq, nq, h->dim, wide, w->q);
    memset(w->total, 0, (size_t)(BLOCK * VW) * sizeof(float));
    for (int64_t r = 0; r < BLOCK; r++)
        w->top[r] = -FLT_MAX;
    for (int64_t k0 = first; k0 < total; k0 += STEP) {
        int64_t nk = least(STEP, total - k0), diagonal = pos - k0;
        int64_t at = packed ? k0 * wide / PAIR : 0;
        int raised;

        for (int64_t k = 0; !packed && k < nk; k += BLOCK)
            pack_forward(h, w, (k0 + k) / BLOCK, total, k / BLOCK);
        scores(w->q, w->kt + at, nq, nk, wide, diagonal, w->s);
        raised = softmax_step(w, nq, h->scale * Log2_e, diagonal, starts, k0);
        over_keys(w->s, STEP, w->vr + at, nq, nk, wide, diagonal, k0 > first,
                  raised ? w->keep : NULL, w->o);
    }
    finish_block(h, w, nq, o, ldo, lse);
}

/* A block of queries of a head. */
typedef struct {
    int64_t b, head, block;
} place;

/* What this thread will work on after p, if all tasks take equally long; b is at least batch if
 * that is nothing. */
static place place_after(const ek_attention *a, place p)
{
    int64_t per = a->heads / a->kv_heads, task = p.b * a->kv_heads + p.head / per;

    if (++p.block * BLOCK < a->seq)
        return p;
    p.block = 0;
    if (++p.head % per != 0)
        return p;
    task += omp_get_num_threads();
    return (place){task / a->kv_heads, task % a->kv_heads * per, 0};
}

/* Fetches the queries at p, the keys if they are packed there, and o and d_o unless they are NULL.
 */
static void fetch_place(const ek_attention *a, const comp *qkv, const comp *o, const comp *d_o,
                        place p)
{
    int64_t q0 = p.block * BLOCK, n = least(BLOCK, a->seq - q0), ldo = a->heads * a->head_dim;
    int64_t at = (p.b * a->seq + q0) * ldo + p.head * a->head_dim;
    head h;

    if (p.b >= a->batch)
        return;
    h = head_of(a, qkv, p.b, p.head);
    fetch_rows(h.q + q0 * h.ldq, h.ldq, n, h.dim, 0);
    if (p.head % (a->heads / a->kv_heads) == 0) {
        fetch_rows(h.k + q0 * h.ldkv, h.ldkv, n, h.dim, 0);
        fetch_rows(h.v + q0 * h.ldkv, h.ldkv, n, h.dim, 0);
    }
    if (o != NULL) {
        fetch_rows(o + at, ldo, n, h.dim, 0);
        fetch_rows(d_o + at, ldo, n, h.dim, 0);
    }
}

/* The forward pass of one (sequence, key head). */
static void forward_task(const ek_attention *a, const scratch *w, int64_t b, int64_t kv,
                         const comp *qkv, comp *o, float *lse)
{
    int64_t per = a->heads / a->kv_heads, ldo = a->heads * a->head_dim, seq = a->seq;

    for (int64_t i = kv * per; i < (kv + 1) * per; i++) {
        head h = head_of(a, qkv, b, i);

        for (int64_t j = 0; j * BLOCK < seq; j++) {
            int64_t q0 = j * BLOCK, n = least(BLOCK, seq - q0);
            comp *to = o + (b * seq + q0) * ldo + i * h.dim;

            if (i == kv * per)
                pack_forward(&h, w, j, seq, j);
            fetch_place(a, qkv, NULL, NULL, place_after(a, (place){b, i, j}));
            fetch_rows(to, ldo, n, h.dim, 1);
            forward_block(&h, w, q0, n, q0, 1, to, ldo, lse + (b * a->heads + i) * seq + q0);
        }
    }
}

static void attention_forward(const ek_attention *a, const void *qkv, void *o, void *lse, void *ws)
{
    int64_t blocks = divide_up(a->seq, BLOCK), wide = wide_of(a->head_dim);
    float *base = align_scratch(ws);

#pragma omp parallel for schedule(dynamic) collapse(2)
    for (int64_t b = 0; b < a->batch; b++) {
        for (int64_t kv = 0; kv < a->kv_heads; kv++) {
            scratch w = scratch_of_thread(base, blocks, wide);

            forward_task(a, &w, b, kv, qkv, o, lse);
        }
    }
}
