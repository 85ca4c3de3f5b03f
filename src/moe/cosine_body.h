/* The cosine router for one element type; the including file defines R and NAME(). */

/* Divides the rows of x [n, p] by their norms, which go to length [n]. */
static void NAME(normalise_rows)(int64_t n, int64_t p, R *x, R *length)
{
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i++) {
        double sum = 0, factor;

        for (int64_t j = 0; j < p; j++)
            sum += (double)x[i * p + j] * (double)x[i * p + j];
        sum = sqrt(sum);
        factor = sum > length_min ? 1 / sum : 0;
        length[i] = (R)sum;
        for (int64_t j = 0; j < p; j++)
            x[i * p + j] = (R)((double)x[i * p + j] * factor);
    }
}

/* Backward of normalise_rows, with its output u: replaces d [n, p], the gradient of u, by that of
 * the rows before.  dot [n]: d . u. */
static void NAME(normalise_rows_backward)(int64_t n, int64_t p, const R *u, const R *length, R *d,
                                          R *dot)
{
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i++) {
        double sum = 0, factor = (double)length[i] > length_min ? 1 / (double)length[i] : 0;

        for (int64_t j = 0; j < p; j++)
            sum += (double)d[i * p + j] * (double)u[i * p + j];
        dot[i] = (R)sum;
        for (int64_t j = 0; j < p; j++)
            d[i * p + j] = (R)(((double)d[i * p + j] - sum * (double)u[i * p + j]) * factor);
    }
}

static void NAME(multiply_all)(int64_t n, double factor, R *x)
{
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i++)
        x[i] *= (R)factor;
}

static double NAME(logit_scale)(const ek_moe *m)
{
    double theta = (double)*(const R *)m->w->router_scale.p;

    return exp(theta < theta_max ? theta : theta_max);
}

/* Sets c->u and c->m, the normalised rows of tokens and experts. */
static void NAME(normalise_inputs)(const ek_moe *m, int64_t n, const void *y)
{
    const ek_cosine_scratch *c = &m->scratch->cosine;
    int64_t d = m->spec->hidden, p = m->spec->router_dim, experts = m->spec->experts;

    m->k->matmul_real(0, 1, n, p, d, y, d, m->w->router_projection.p, d, 0, c->u, p);
    memcpy(c->m, m->w->router.p, (size_t)(experts * p) * sizeof(R));
    NAME(normalise_rows)(n, p, c->u, c->u_length);
    NAME(normalise_rows)(experts, p, c->m, c->m_length);
}

static void NAME(cosine_forward)(const ek_moe *m, int64_t n, const void *y, R *logits)
{
    const ek_cosine_scratch *c = &m->scratch->cosine;
    int64_t p = m->spec->router_dim, experts = m->spec->experts;

    NAME(normalise_inputs)(m, n, y);
    m->k->matmul_real(0, 1, n, experts, p, c->u, p, c->m, p, 0, logits, experts);
    NAME(multiply_all)(n * experts, NAME(logit_scale)(m), logits);
}

static void NAME(cosine_backward)(const ek_moe *m, int64_t n, const void *y)
{
    const ek_moe_scratch *s = m->scratch;
    const ek_cosine_scratch *c = &s->cosine;
    int64_t d = m->spec->hidden, p = m->spec->router_dim, experts = m->spec->experts;
    R *dm = c->dm, *dmatrix = m->w->router.g;
    double theta = (double)*(const R *)m->w->router_scale.p, sum = 0;

    NAME(normalise_inputs)(m, n, y);
    NAME(multiply_all)(n * experts, NAME(logit_scale)(m), s->dlogits);
    m->k->matmul_real(0, 0, n, p, experts, s->dlogits, experts, c->m, p, 0, c->du, p);
    m->k->matmul_real(1, 0, experts, p, n, s->dlogits, experts, c->u, p, 0, dm, p);
    NAME(normalise_rows_backward)(n, p, c->u, c->u_length, c->du, c->dot);
    for (int64_t i = 0; i < n && theta <= theta_max; i++)
        sum += (double)((const R *)c->dot)[i];
    *(R *)m->w->router_scale.g += (R)sum;
    NAME(normalise_rows_backward)(experts, p, c->m, c->m_length, dm, c->dot);
    for (int64_t i = 0; i < experts * p; i++)
        dmatrix[i] += dm[i];
    m->k->matmul_real(1, 0, p, d, n, c->du, p, y, d, 1, m->w->router_projection.g, d);
    m->k->matmul_real(0, 0, n, d, p, c->du, p, m->w->router_projection.p, d, 1, s->dy, d);
}
