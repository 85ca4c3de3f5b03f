/* Causal attention in blocks, backward.  A body file, after attention_body.h.
 *
 * With p = exp(scale q k - lse), delta = do . o and ds = p (do v - delta):
 * dq = scale ds k,  dk = scale ds^T q,  dv = p^T do.  Tasks and blocks are those of forward. */

/* c [nk][wide] += s^T b, over nq queries; s: packed elements [nq / PAIR][STEP]. */
static void over_queries(const float *s, const float *b, int64_t nq, int64_t nk, int64_t wide,
                         int64_t diagonal, float *c)
{
    product p = {.a = s, .a_row = 1, .a_k = STEP, .b = b, .ldb = wide, .c = c, .ldc = wide};

    p.add = 1;
    p.shape = CAUSAL_BEGIN;
    p.diagonal = diagonal;
    multiply(&p, nk, wide / VW, divide_up(nq, PAIR));
}

/* The visible columns of PAIR rows: from hidden to end; lse to base 2. */
typedef struct {
    int64_t hidden[PAIR], end[PAIR];
    float lse[PAIR], delta[PAIR];
} row_pair;

/* s -> p and ds -> p (ds - delta) for GROUP columns from c on of the rows of x, the first of which
 * is r; as packed elements.  masked (a constant): zeros where not visible. */
static inline __attribute__((always_inline)) void gradient_group(const scratch *w, int64_t r,
                                                                 int64_t c, const row_pair *x,
                                                                 float base, const int masked)
{
    vf p[PAIR][PAIR], g[PAIR][PAIR], g_keys[PAIR][PAIR]; /* [columns][row]; g_keys [row][columns] */

#pragma GCC unroll 2
    for (int i = 0; i < PAIR; i++) {
        vf shift = v_set1(-x->lse[i]), mean = v_set1(x->delta[i]);

#pragma GCC unroll 2
        for (int j = 0; j < PAIR; j++) {
            int64_t at = (r + i) * STEP + c + j * VW, from = x->hidden[i] - c - j * VW;
            vf one = v_exp2(v_fma(v_load(w->s + at), v_set1(base), shift));
            vf two = v_mul(one, v_sub(v_load(w->ds + at), mean));

            p[j][i] = masked ? v_between(one, from, x->end[i] - c - j * VW) : one;
            g[j][i] = masked ? v_between(two, from, x->end[i] - c - j * VW) : two;
            g_keys[i][j] = g[j][i];
        }
    }
#pragma GCC unroll 2
    for (int j = 0; j < PAIR; j++) {
        pack_row_pair(w->s + r / PAIR * STEP + c + j * VW, p[j]);
        pack_row_pair(w->ds + r / PAIR * STEP + c + j * VW, g[j]);
        if (w->ds_keys != w->ds)
            pack_columns(w->ds_keys + ((r + j) * STEP + c) / PAIR, g_keys[j]);
    }
}

/* Columns before and after those that the rows of x see. */
static void zero_group(const scratch *w, int64_t r, int64_t c)
{
    for (int j = 0; j < PAIR; j++) {
        v_store(w->s + r / PAIR * STEP + c + j * VW, v_zero());
        v_store(w->ds + r / PAIR * STEP + c + j * VW, v_zero());
        v_store(w->ds_keys + ((r + j) * STEP + c) / PAIR, v_zero());
    }
}

/* p and ds of the scores of a step, in place, and w->ds_keys.  lse, delta: of the block's rows, lse
 * to base 2. */
static void gradient_step(const scratch *w, int64_t nq, float base, int64_t diagonal,
                          const float *lse, const int32_t *starts, int64_t k0)
{
    for (int64_t r = 0; r < nq; r += PAIR) {
        int64_t most = 0, least_end = STEP, c = 0;
        row_pair x;

        for (int i = 0; i < PAIR; i++) {
            int64_t n = r + i < nq ? visible_columns(r + i, diagonal) : 0;

            x.end[i] = n;
            x.hidden[i] = n > 0 ? hidden_columns(starts, r + i, k0, n) : 0;
            x.lse[i] = lse[r + i];
            x.delta[i] = w->top[r + i];
            most = n > most ? n : most;
            least_end = x.hidden[i] > 0 ? 0 : least(n, least_end);
        }
        for (; c + GROUP <= least_end; c += GROUP)
            gradient_group(w, r, c, &x, base, 0);
        for (; c < most; c += GROUP)
            gradient_group(w, r, c, &x, base, 1);
        for (; c < end_of_columns(most); c += GROUP)
            zero_group(w, r, c);
    }
}

static inline vf dot_row(const comp *x, const comp *y, int64_t n)
{
    vf sum = v_zero();
    int64_t c = 0;

    for (; c + VW <= n; c += VW)
        sum = v_fma(comp_load(x + c), comp_load(y + c), sum);
    if (c < n)
        sum = v_fma(comp_load_n(x + c, n - c), comp_load_n(y + c, n - c), sum);
    return sum;
}

/* to[r] = x[r] . y[r] for n <= BLOCK rows, 0 up to BLOCK. */
static void dot_rows(const comp *x, const comp *y, int64_t ld, int64_t n, int64_t dim, float *to)
{
    for (int64_t r = 0; r < BLOCK; r += 4) {
        vf sum[4];

#pragma GCC unroll 4
        for (int64_t i = 0; i < 4; i++)
            sum[i] = r + i < n ? dot_row(x + (r + i) * ld, y + (r + i) * ld, dim) : v_zero();
        v_sum4(sum, to + r);
    }
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
    int64_t wide = h->wide, first = first_block(h, q0) * BLOCK, lds = STEP / PAIR;
    float lse2[BLOCK] = {0};

    pack_rows(q, h->ldq, nq, h->dim, wide, w->q);
    pack_over_rows(q, h->ldq, nq, h->dim, wide, w->qr);
    pack_rows(d_o, ldo, nq, h->dim, wide, w->d_o);
    pack_over_rows(d_o, ldo, nq, h->dim, wide, w->dor);
    dot_rows(o, d_o, ldo, nq, h->dim, w->top);
    for (int64_t r = 0; r < nq; r++)
        lse2[r] = lse[r] * Log2_e;
    for (int64_t k0 = first; k0 < q0 + nq; k0 += STEP) {
        int64_t nk = least(STEP, q0 + nq - k0), diagonal = q0 - k0, at = k0 * wide / PAIR;

        scores(w->q, w->kt + at, nq, nk, wide, diagonal, w->s);
        scores(w->d_o, w->vt + at, nq, nk, wide, diagonal, w->ds);
        gradient_step(w, nq, h->scale * Log2_e, diagonal, lse2, starts, k0);
        over_keys(w->ds_keys, lds, w->kr + at, nq, nk, wide, diagonal, k0 > first, NULL, w->o);
        over_queries(w->ds, w->qr, nq, nk, wide, diagonal, w->dk + k0 * wide);
        over_queries(w->s, w->dor, nq, nk, wide, diagonal, w->dv + k0 * wide);
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

    memset(w->dk, 0, bytes);
    memset(w->dv, 0, bytes);
    for (int64_t i = kv * per; i < (kv + 1) * per; i++) {
        int64_t at = b * seq * ldo + i * h.dim;

        h = head_of(a, qkv, b, i);
        for (int64_t j = 0; j * BLOCK < seq; j++) {
            int64_t q0 = j * BLOCK, n = least(BLOCK, seq - q0);
            comp *dq = row + q0 * a->ld + i * h.dim;

            if (i == kv * per)
                pack_backward(&h, w, j, seq);
            fetch_place(a, qkv, o, d_o, place_after(a, (place){b, i, j}));
            fetch_rows(dq, a->ld, n, h.dim, 1);
            if (i + 1 == (kv + 1) * per) {
                fetch_rows(dk + q0 * a->ld, a->ld, n, h.dim, 1);
                fetch_rows(dv + q0 * a->ld, a->ld, n, h.dim, 1);
            }
            backward_block(&h, w, q0, n, o + at + q0 * ldo, d_o + at + q0 * ldo, ldo,
                           lse + (b * a->heads + i) * seq + q0, dq);
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
            scratch w = scratch_of_thread(base, blocks, wide);

            backward_task(a, &w, b, kv, qkv, o, lse, d_o, dqkv);
        }
    }
}
