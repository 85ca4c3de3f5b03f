/* Reference causal attention.  A body file, see body.h.
 *
 * With p = exp(scale q k - lse), delta = do . o and ds = p (do . v - delta):
 *   dq = scale sum over keys of ds k,  dk = scale sum over queries of ds q,  dv = sum of p do.
 * Backward runs twice over the scores, once by query for dq and once by key for dk and dv, so
 * that every gradient is summed by one thread. */

static void NAME(rope)(int64_t n, int64_t seq, int64_t pos0, int64_t heads, int64_t head_dim,
                       const void *cos_sin, int inverse, void *x, int64_t ld)
{
    const R *table = cos_sin;
    int64_t half = head_dim / 2;
    C *rows = x;

#pragma omp parallel for if (n * heads * head_dim > SMALL)
    for (int64_t r = 0; r < n; r++) {
        const R *cosine = table + (pos0 + r % seq) * head_dim, *sine = cosine + half;

        for (int64_t h = 0; h < heads; h++) {
            C *v = rows + r * ld + h * head_dim;

            for (int64_t i = 0; i < half; i++) {
                R a = TO_R(v[i]), b = TO_R(v[i + half]);
                R s = inverse ? -sine[i] : sine[i];

                v[i] = TO_C(a * cosine[i] - b * s);
                v[i + half] = TO_C(b * cosine[i] + a * s);
            }
        }
    }
}

/* One query against n keys: sets o, returns the lse.  s: scratch for n scores. */
static R NAME(attend)(int64_t n, int64_t dim, R scale, const C *q, const C *key, const C *value,
                      int64_t ld, C *o, R *s)
{
    R top = (R)-INFINITY, total = 0;

    for (int64_t j = 0; j < n; j++) {
        s[j] = scale * NAME(dot)(dim, q, key + j * ld);
        top = s[j] > top ? s[j] : top;
    }
    for (int64_t j = 0; j < n; j++) {
        s[j] = R_EXP(s[j] - top);
        total += s[j];
    }
    for (int64_t c0 = 0; c0 < dim; c0 += STRIP) {
        int64_t len = NAME(least)(STRIP, dim - c0);
        R sum[STRIP] = {0};

        for (int64_t j = 0; j < n; j++) {
            for (int64_t c = 0; c < len; c++)
                sum[c] += s[j] * TO_R(value[j * ld + c0 + c]);
        }
        for (int64_t c = 0; c < len; c++)
            o[c0 + c] = TO_C(sum[c] / total);
    }
    return top + R_LOG(total);
}

static void NAME(attention_forward)(const ek_attention *a, const void *qkv, void *o, void *lse,
                                    void *ws)
{
    int64_t dim = a->head_dim, seq = a->seq, heads = a->heads, per = heads / a->kv_heads;
    C *out = o;
    R *l = lse, *scratch = ws;

#pragma omp parallel for collapse(2) if (a->batch * heads * seq * seq * dim > SMALL)
    for (int64_t b = 0; b < a->batch; b++) {
        for (int64_t h = 0; h < heads; h++) {
            const C *q = (const C *)qkv + b * seq * a->ld + h * dim;
            const C *key = (const C *)qkv + b * seq * a->ld + (heads + h / per) * dim;
            const C *value = key + a->kv_heads * dim;

            for (int64_t t = 0; t < seq; t++) {
                int64_t first = a->starts != NULL ? a->starts[b * seq + t] : 0;

                l[(b * heads + h) * seq + t] = NAME(attend)(
                    t + 1 - first, dim, (R)a->scale, q + t * a->ld, key + first * a->ld,
                    value + first * a->ld, a->ld, out + ((b * seq + t) * heads + h) * dim,
                    scratch + omp_get_thread_num() * seq);
                ek_progress();
            }
        }
    }
}

static void NAME(attention_cached)(const ek_attention *a, int64_t m, int64_t pos0, const void *qkv,
                                   const void *k_cache, const void *v_cache, void *o, void *ws)
{
    int64_t dim = a->head_dim, heads = a->heads, per = heads / a->kv_heads;
    C *out = o;
    R *scratch = ws;

#pragma omp parallel for collapse(2) if (m * heads * (pos0 + m) * dim > SMALL)
    for (int64_t t = 0; t < m; t++) {
        for (int64_t h = 0; h < heads; h++)
            (void)NAME(attend)(pos0 + t + 1, dim, (R)a->scale, (const C *)qkv + t * a->ld + h * dim,
                               (const C *)k_cache + h / per * dim,
                               (const C *)v_cache + h / per * dim, a->kv_heads * dim,
                               out + (t * heads + h) * dim,
                               scratch + omp_get_thread_num() * (pos0 + m));
    }
}

/* Inputs of the backward passes over one head: queries q, keys k and values v at row stride ld, do
 * at row stride ldo. */
typedef struct {
    int64_t seq, dim, ld, ldo;
    R scale;
    const C *q, *k, *v, *d_o;
    const R *lse, *delta;
    const int32_t *starts; /* as in ek_attention, of this sequence */
} NAME(head);

#define HEAD NAME(head)

static HEAD NAME(head_of)(const ek_attention *a, const C *qkv, const C *d_o, const R *lse,
                          const R *delta, int64_t b, int64_t h)
{
    int64_t dim = a->head_dim, heads = a->heads, kv = h / (heads / a->kv_heads);
    const C *row = qkv + b * a->seq * a->ld;
    HEAD s = {.seq = a->seq, .dim = dim, .ld = a->ld, .ldo = heads * dim};

    s.scale = (R)a->scale;
    s.q = row + h * dim;
    s.k = row + (heads + kv) * dim;
    s.v = row + (heads + a->kv_heads + kv) * dim;
    s.d_o = d_o + b * a->seq * s.ldo + h * dim;
    s.lse = lse + (b * heads + h) * a->seq;
    s.delta = delta + (b * heads + h) * a->seq;
    s.starts = a->starts != NULL ? a->starts + b * a->seq : NULL;
    return s;
}

/* p and ds of query t and key j. */
static inline R NAME(score_gradient)(const HEAD *s, int64_t t, int64_t j, R *p)
{
    *p = R_EXP(s->scale * NAME(dot)(s->dim, s->q + t * s->ld, s->k + j * s->ld) - s->lse[t]);
    return *p * (NAME(dot)(s->dim, s->d_o + t * s->ldo, s->v + j * s->ld) - s->delta[t]);
}

/* sum += f x */
static inline void NAME(add_row)(int64_t n, R f, const C *x, R *sum)
{
    for (int64_t c = 0; c < n; c++)
        sum[c] += f * TO_R(x[c]);
}

static inline void NAME(store_row)(int64_t n, R f, const R *sum, C *to)
{
    for (int64_t c = 0; c < n; c++)
        to[c] = TO_C(f * sum[c]);
}

static void NAME(query_gradient)(const HEAD *s, int64_t t, C *dq, R *sum)
{
    R p;

    memset(sum, 0, (size_t)s->dim * sizeof(R));
    for (int64_t j = s->starts != NULL ? s->starts[t] : 0; j <= t; j++)
        NAME(add_row)(s->dim, NAME(score_gradient)(s, t, j, &p), s->k + j * s->ld, sum);
    NAME(store_row)(s->dim, s->scale, sum, dq);
}

/* Adds the gradients of key and value j from the queries of one head. */
static void NAME(key_gradient)(const HEAD *s, int64_t j, R *dk, R *dv)
{
    for (int64_t t = j; t < s->seq && (s->starts == NULL || s->starts[t] <= j); t++) {
        R p, ds = NAME(score_gradient)(s, t, j, &p);

        NAME(add_row)(s->dim, ds, s->q + t * s->ld, dk);
        NAME(add_row)(s->dim, p, s->d_o + t * s->ldo, dv);
    }
}

/* ws: R delta [batch, heads, seq], then R [threads, 2, head_dim]. */
static void NAME(attention_backward)(const ek_attention *a, const void *qkv, const void *o,
                                     const void *lse, const void *d_o, void *dqkv, void *ws)
{
    int64_t dim = a->head_dim, seq = a->seq, heads = a->heads, per = heads / a->kv_heads;
    int64_t rows = a->batch * seq, work = rows * heads * seq * dim;
    R *delta = ws, *scratch = delta + rows * heads;
    C *grad = dqkv;

#pragma omp parallel for collapse(2) if (work > SMALL)
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t h = 0; h < heads; h++) {
            int64_t at = (r * heads + h) * dim;

            delta[(r / seq * heads + h) * seq + r % seq] =
                NAME(dot)(dim, (const C *)o + at, (const C *)d_o + at);
        }
    }
#pragma omp parallel for collapse(2) if (work > SMALL)
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t h = 0; h < heads; h++) {
            HEAD s = NAME(head_of)(a, qkv, d_o, lse, delta, r / seq, h);

            NAME(query_gradient)
            (&s, r % seq, grad + r * a->ld + h * dim, scratch + omp_get_thread_num() * 2 * dim);
            ek_progress();
        }
    }
#pragma omp parallel for collapse(2) if (work > SMALL)
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t kv = 0; kv < a->kv_heads; kv++) {
            R *dk = scratch + omp_get_thread_num() * 2 * dim, *dv = dk + dim;
            C *to = grad + r * a->ld + (heads + kv) * dim;

            memset(dk, 0, (size_t)(2 * dim) * sizeof(R));
            for (int64_t h = kv * per; h < (kv + 1) * per; h++) {
                HEAD s = NAME(head_of)(a, qkv, d_o, lse, delta, r / seq, h);

                NAME(key_gradient)(&s, r % seq, dk, dv);
                ek_progress();
            }
            NAME(store_row)(dim, (R)a->scale, dk, to);
            NAME(store_row)(dim, 1, dv, to + a->kv_heads * dim);
        }
    }
}

/* Forward needs R [threads, seq]; backward: see attention_backward. */
static size_t NAME(attention_workspace)(const ek_kernels *k, const ek_attention *a)
{
    int64_t threads = omp_get_max_threads();
    int64_t n = a->batch * a->heads * a->seq;

    threads = threads > k->threads ? threads : k->threads;
    return (size_t)(n + threads * (a->seq + 2 * a->head_dim)) * sizeof(R);
}
