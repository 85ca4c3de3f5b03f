/* The cosine router: logits against values computed by hand and against its formula, gradients
 * against central differences. */
#include "base/random.h"
#include "ek_test.h"
#include "moe/cosine.h"
#include "tensor/select/select.h"

enum { N = 7, D = 5, P = 3, E = 4, ARENA = 1 << 20 };

typedef struct {
    ek_arena arena;
    ek_kernels *k;
    ek_model_spec spec;
    ek_moe_weights w;
    ek_moe_scratch scratch;
    ek_moe m;
    void *y, *logits;
} fixture;

static void *take(fixture *f, int64_t n)
{
    return ek_arena_alloc(&f->arena, n, ek_dtype_size(f->k->real));
}

static void take_weight(fixture *f, ek_weight *w, int64_t out, int64_t in)
{
    *w = (ek_weight){.out = out, .in = in};
    w->p = take(f, ek_weight_elements(w));
    w->g = take(f, ek_weight_elements(w));
}

static void setup(fixture *f, ek_mode mode, ek_isa isa, int64_t d, int64_t p, int64_t experts)
{
    memset(f, 0, sizeof(*f));
    CHECK(ek_arena_init(&f->arena, ARENA, "a router") == EK_OK);
    CHECK(ek_kernels_create(mode, isa, 2, &f->k) == EK_OK);
    f->spec.hidden = d;
    f->spec.router_dim = p;
    f->spec.experts = experts;
    f->m = (ek_moe){.k = f->k, .spec = &f->spec, .w = &f->w, .scratch = &f->scratch};
    take_weight(f, &f->w.router, experts, p);
    take_weight(f, &f->w.router_projection, p, d);
    take_weight(f, &f->w.router_scale, 1, 0);
    f->scratch.dlogits = take(f, N * experts);
    f->scratch.dy = take(f, N * d);
    f->y = take(f, N * d);
    f->logits = take(f, N * experts);
    ek_cosine_reserve(&f->scratch.cosine, &f->arena, f->k, &f->spec, N, 1);
    CHECK(ek_arena_check(&f->arena, "a router") == EK_OK);
}

static void teardown(fixture *f)
{
    ek_kernels_destroy(&f->k);
    ek_arena_fini(&f->arena);
}

static double get(const fixture *f, const void *p, int64_t i)
{
    return f->k->real == EK_F64 ? ((const double *)p)[i] : (double)((const float *)p)[i];
}

static void set(const fixture *f, void *p, int64_t i, double x)
{
    if (f->k->real == EK_F64)
        ((double *)p)[i] = x;
    else
        ((float *)p)[i] = (float)x;
}

static void fill(const fixture *f, void *p, int64_t n, uint64_t stream)
{
    for (int64_t i = 0; i < n; i++)
        set(f, p, i, ek_random_normal(3, stream, (uint64_t)i));
}

static void fill_all(const fixture *f)
{
    fill(f, f->y, N * D, 1);
    fill(f, f->w.router.p, E * P, 2);
    fill(f, f->w.router_projection.p, P * D, 3);
    set(f, f->w.router_scale.p, 0, 0.4);
}

static void check_close(double got, double want, double tolerance, const char *what)
{
    if (!(fabs(got - want) <= tolerance * (1 + fabs(want))))
        EK_T_FAIL("%s is %.17g, expected %.17g", what, got, want);
}

/* Two tokens in the plane, three experts: cosines 1, 0, -1 / sqrt(2), and 0.6, 0.8, -7 / sqrt(50);
 * norms do not matter.  A token of zeros has logits 0. */
static void logits_by_hand(void)
{
    const double y[] = {5, 0, 0.3, 0.4, 0, 0}, m[] = {1, 0, 0, 2, -3, -3}, w[] = {1, 0, 0, 1};
    const double want[] = {1, 0, -sqrt(0.5), 0.6, 0.8, -7 / sqrt(50), 0, 0, 0};
    const struct {
        double theta, scale;
    } table[] = {{EK_COSINE_THETA, 2}, {0, 1}, {log(100), 100}, {10, 100}, {-1, exp(-1)}};
    const double tolerances[] = {1e-14, 1e-6};

    for (int mode = 0; mode < 2; mode++)
        for (int t = 0; t < 5; t++) {
            fixture f;

            setup(&f, mode == 0 ? EK_MODE_FP64 : EK_MODE_FP32, ek_cpu_isa(), 2, 2, 3);
            for (int i = 0; i < 6; i++) {
                set(&f, f.y, i, y[i]);
                set(&f, f.w.router.p, i, m[i]);
            }
            for (int i = 0; i < 4; i++)
                set(&f, f.w.router_projection.p, i, w[i]);
            set(&f, f.w.router_scale.p, 0, table[t].theta);
            ek_cosine_forward(&f.m, 3, f.y, f.logits);
            for (int i = 0; i < 9; i++)
                check_close(get(&f, f.logits, i), table[t].scale * want[i],
                            tolerances[mode] * table[t].scale, "a logit");
            for (int i = 0; i < 6; i++) /* master weights are not changed */
                CHECK(get(&f, f.w.router.p, i) == m[i]);
            teardown(&f);
        }
}

/* The formula as plain loops. */
static double logit_of(const fixture *f, int64_t t, int64_t e)
{
    double dot = 0, zz = 0, mm = 0;

    for (int64_t j = 0; j < P; j++) {
        double z = 0, m = get(f, f->w.router.p, e * P + j);

        for (int64_t i = 0; i < D; i++)
            z += get(f, f->w.router_projection.p, j * D + i) * get(f, f->y, t * D + i);
        dot += z * m;
        zz += z * z;
        mm += m * m;
    }
    return exp(fmin(get(f, f->w.router_scale.p, 0), log(100))) * dot / sqrt(zz * mm);
}

static void logits_are_the_formula(void)
{
    const ek_mode modes[] = {EK_MODE_FP64, EK_MODE_FP32, EK_MODE_FP32};
    fixture f;

    for (int i = 0; i < 3; i++) {
        setup(&f, modes[i], i == 2 ? ek_cpu_isa() : EK_ISA_REF, D, P, E);
        fill_all(&f);
        ek_cosine_forward(&f.m, N, f.y, f.logits);
        for (int64_t j = 0; j < N * E; j++)
            check_close(get(&f, f.logits, j), logit_of(&f, j / E, j % E), i == 0 ? 1e-14 : 2e-6,
                        "a logit");
        teardown(&f);
    }
}

/* The loss: an arbitrary function of the logits. */
static double loss_of(const fixture *f)
{
    double sum = 0;

    for (int64_t i = 0; i < N * E; i++)
        sum += ek_random_normal(8, 0, (uint64_t)i) * logit_of(f, i / E, i % E);
    return sum;
}

static void check_gradient(fixture *f, void *at, int64_t n, const void *got, double base,
                           const char *what)
{
    const double h = 1e-6;

    for (int64_t i = 0; i < n; i++) {
        double keep = get(f, at, i), up, down;

        set(f, at, i, keep + h);
        up = loss_of(f);
        set(f, at, i, keep - h);
        down = loss_of(f);
        set(f, at, i, keep);
        check_close(get(f, got, i), base + (up - down) / (2 * h), 1e-7, what);
    }
}

static void gradients_of(double theta)
{
    fixture f;

    setup(&f, EK_MODE_FP64, EK_ISA_REF, D, P, E);
    fill_all(&f);
    set(&f, f.w.router_scale.p, 0, theta);
    for (int64_t i = 0; i < N * E; i++)
        set(&f, f.scratch.dlogits, i, ek_random_normal(8, 0, (uint64_t)i));
    for (int64_t i = 0; i < N * D; i++) /* gradients are added to existing values */
        set(&f, f.scratch.dy, i, 0.5);
    for (int64_t i = 0; i < E * P; i++)
        set(&f, f.w.router.g, i, -0.25);
    for (int64_t i = 0; i < P * D; i++)
        set(&f, f.w.router_projection.g, i, 0.125);
    set(&f, f.w.router_scale.g, 0, 2);
    ek_cosine_backward(&f.m, N, f.y);
    check_gradient(&f, f.y, N * D, f.scratch.dy, 0.5, "dy");
    check_gradient(&f, f.w.router.p, E * P, f.w.router.g, -0.25, "dM");
    check_gradient(&f, f.w.router_projection.p, P * D, f.w.router_projection.g, 0.125, "dW");
    check_gradient(&f, f.w.router_scale.p, 1, f.w.router_scale.g, 2, "dtheta");
    teardown(&f);
}

static void gradients_are_differences(void)
{
    gradients_of(0.4);
    gradients_of(-1.5);
}

/* Beyond its bound the scale is constant, and has no gradient; all others do. */
static void the_scale_is_bounded(void)
{
    gradients_of(4.7);
}

/* Rows of zeros, of tokens or experts, get no gradient, and all values stay finite. */
static void rows_of_zeros_get_no_gradient(void)
{
    fixture f;

    setup(&f, EK_MODE_FP32, EK_ISA_REF, D, P, E);
    fill_all(&f);
    for (int64_t i = 0; i < D; i++)
        set(&f, f.y, D + i, 0);
    for (int64_t i = 0; i < P; i++)
        set(&f, f.w.router.p, P + i, 0);
    fill(&f, f.scratch.dlogits, N * E, 9);
    ek_cosine_forward(&f.m, N, f.y, f.logits);
    ek_cosine_backward(&f.m, N, f.y);
    for (int64_t i = 0; i < N * E; i++)
        CHECK((get(&f, f.logits, i) == 0) == (i / E == 1 || i % E == 1));
    for (int64_t i = 0; i < N * D; i++)
        CHECK((get(&f, f.scratch.dy, i) == 0) == (i / D == 1));
    for (int64_t i = 0; i < E * P; i++)
        CHECK((get(&f, f.w.router.g, i) == 0) == (i / P == 1));
    CHECK(isfinite(get(&f, f.w.router_scale.g, 0)));
    teardown(&f);
}

static void no_tokens(void)
{
    fixture f;

    setup(&f, EK_MODE_FP32, ek_cpu_isa(), D, P, E);
    fill_all(&f);
    ek_cosine_forward(&f.m, 0, f.y, f.logits);
    ek_cosine_backward(&f.m, 0, f.y);
    for (int64_t i = 0; i < E * P; i++)
        CHECK(get(&f, f.w.router.g, i) == 0);
    teardown(&f);
}

static const ek_case cases[] = {
    EK_CASE(logits_by_hand),
    EK_CASE(logits_are_the_formula),
    EK_CASE(gradients_are_differences),
    EK_CASE(the_scale_is_bounded),
    EK_CASE(rows_of_zeros_get_no_gradient),
    EK_CASE(no_tokens),
};
EK_TEST_MAIN(cases)
