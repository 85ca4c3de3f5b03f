/* Reference kernels of the router: top-k, gate weights and their gradient.  A body file, see
 * body.h. */

/* The k largest of p [e], largest first, ties to the lower id.  NaNs come last; the ids are always
 * k different ones. */
static void NAME(top)(int64_t e, int64_t k, const R *p, int32_t *ids)
{
    for (int64_t j = 0; j < k; j++) {
        int32_t best = -1;

        for (int32_t c = 0; c < (int32_t)e; c++) {
            int taken = 0;

            for (int64_t i = 0; i < j; i++)
                taken |= ids[i] == c;
            if (!taken && (best < 0 || p[c] > p[best]))
                best = c;
        }
        ids[j] = best;
    }
}

static void NAME(softmax_topk)(int64_t n, int64_t e, int64_t k, const void *logits, void *probs,
                               int32_t *ids, void *lse)
{
    const R *from = logits;
    R *to = probs, *l = lse;

#pragma omp parallel for if (n * e > SMALL)
    for (int64_t i = 0; i < n; i++) {
        const R *x = from + i * e;
        R *p = to + i * e;
        R top = x[0], total = 0;

        for (int64_t c = 1; c < e; c++)
            top = x[c] > top ? x[c] : top;
        for (int64_t c = 0; c < e; c++) {
            p[c] = R_EXP(x[c] - top);
            total += p[c];
        }
        for (int64_t c = 0; c < e; c++)
            p[c] /= total;
        if (l != NULL)
            l[i] = top + R_LOG(total);
        NAME(top)(e, k, p, ids + i * k);
    }
}

/* The expert of an assignment, dropped or not; -1: none. */
static inline int32_t NAME(chosen)(int32_t id)
{
    return id >= -1 ? id : -2 - id;
}

static void NAME(weigh)(const ek_weighing *by, int64_t n, const void *probs, const int32_t *ids,
                        void *weights)
{
    int64_t k = by->k;

#pragma omp parallel for if (n * k > SMALL)
    for (int64_t t = 0; t < n; t++) {
        const R *p = (const R *)probs + t * by->experts;
        R *w = (R *)weights + t * k, sum = 0;

        for (int64_t j = 0; j < k; j++) {
            int32_t e = ids[t * k + j];

            w[j] = e >= 0 ? p[e] : (R)0;
            sum += w[j];
        }
        if (!by->normalise || sum <= 0)
            sum = 1;
        for (int64_t j = 0; j < k; j++) /* a division, so that k = 1 gives exactly 1 */
            w[j] = (R)by->scale * w[j] / sum;
    }
}

/* Adds a token's gradient of its chosen probabilities to dp [experts]. */
static void NAME(weigh_back)(const ek_weighing *by, const R *p, const int32_t *ids, const R *w,
                             const R *dw, R *dp)
{
    R sum = 0, inner = 0;

    for (int64_t j = 0; j < by->k; j++) {
        if (ids[j] == -1)
            continue;
        sum += p[NAME(chosen)(ids[j])];
        inner += dw[j] * w[j];
    }
    for (int64_t j = 0; j < by->k; j++) {
        if (ids[j] == -1)
            continue;
        dp[NAME(chosen)(ids[j])] +=
            by->normalise && sum > 0 ? ((R)by->scale * dw[j] - inner) / sum : (R)by->scale * dw[j];
    }
}

static void NAME(weigh_backward)(const ek_weighing *by, int64_t n, const void *probs,
                                 const void *lse, const int32_t *ids, const void *weights,
                                 const void *dweights, const double *balance, double z,
                                 void *dlogits)
{
    int64_t experts = by->experts, k = by->k;

#pragma omp parallel for if (n * experts > SMALL)
    for (int64_t t = 0; t < n; t++) {
        const R *p = (const R *)probs + t * experts;
        R *dl = (R *)dlogits + t * experts, inner = 0;

        for (int64_t e = 0; e < experts; e++)
            dl[e] = (R)balance[e];
        NAME(weigh_back)
        (by, p, ids + t * k, (const R *)weights + t * k, (const R *)dweights + t * k, dl);
        for (int64_t e = 0; e < experts; e++)
            inner += dl[e] * p[e];
        for (int64_t e = 0; e < experts; e++)
            if (by->sigmoid)
                dl[e] *= p[e] * ((R)1 - p[e]);
            else
                dl[e] = p[e] * (dl[e] - inner + (R)z * ((const R *)lse)[t]);
    }
}

static void NAME(sum_columns)(int64_t n, int64_t d, const void *x, double *sums)
{
    const R *from = x;

    for (int64_t c = 0; c < d; c++)
        sums[c] = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t c = 0; c < d; c++)
            sums[c] += (double)from[i * d + c];
}
