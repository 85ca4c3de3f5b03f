/* Every ZeRO stage trains as one rank does: after some steps the masters and moments that ranks
 * save are together those of one rank, and every number is saved by one rank. */
#include "model/hf/weights.h"
#include "tensor/select/select.h"
#include "train_ranks.h"

/* --- comparing -------------------------------------------------------------------------------- */

/* Masters and moments of the whole model, tensor after tensor, and how many ranks save each number.
 */
typedef struct {
    double *x[3];
    int *owners;
    int64_t n;
} whole;

static double real_at(const ek_kernels *k, const void *p, int64_t i)
{
    return k->real == EK_F64 ? ((const double *)p)[i] : (double)((const float *)p)[i];
}

static void add_tensor(const rank *r, const ek_hf_tensor *t, int64_t first, whole *w)
{
    int64_t width = t->dims > 1 ? t->shape[1] : 1;
    ek_span a;

    if (!ek_model_span(r->m, t, &a))
        return;
    for (int64_t row = 0; row < a.rows; row++)
        for (int64_t c = 0; c < a.cols; c++) {
            int64_t i = first + (a.row + row) * width + a.col + c;
            int64_t at = a.first + row * a.ld + c, kept = at - a.w->kept_first;
            const void *from[] = {a.w->p_kept, a.w->m, a.w->v};

            if (at < a.w->own_first || at >= a.w->own_first + a.w->own)
                continue;
            CHECK(kept >= 0 && kept < a.w->kept);
            for (int k = 0; k < 3; k++)
                w->x[k][i] = real_at(r->k, from[k], kept);
            w->owners[i]++;
        }
}

static void assemble(const rank *ranks, int n, whole *w)
{
    const ek_model_spec *s = &ranks[0].j->spec;

    w->n = ek_hf_elements(&ranks[0].m->spec);
    for (int k = 0; k < 3; k++)
        w->x[k] = calloc((size_t)w->n, sizeof(double));
    w->owners = calloc((size_t)w->n, sizeof(int));
    for (int r = 0; r < n; r++) {
        int64_t first = 0;

        for (int64_t i = 0; i < ek_hf_count(s); i++) {
            ek_hf_tensor t;

            ek_hf_tensor_at(s, i, &t);
            add_tensor(&ranks[r], &t, first, w);
            first += t.shape[0] * (t.dims > 1 ? t.shape[1] : 1);
        }
        CHECK(first == w->n);
    }
}

static void free_whole(whole *w)
{
    for (int k = 0; k < 3; k++)
        free(w->x[k]);
    free(w->owners);
}

/* Largest difference beside the largest number. */
static double difference(const double *a, const double *b, int64_t n)
{
    double most = 0, scale = 0;

    for (int64_t i = 0; i < n; i++) {
        most = fmax(most, isfinite(a[i]) ? fabs(a[i] - b[i]) : (double)INFINITY);
        scale = fmax(scale, fabs(b[i]));
    }
    return most / scale;
}

/* Compares a job's result with that of one rank. */
static void compare(const rank *ranks, const job *j, const rank *one, const whole *want)
{
    static const char *const names[] = {"masters", "m", "v"};
    whole got;
    int bad = 0;

    if (!ready(ranks, j->ranks))
        return;
    assemble(ranks, j->ranks, &got);
    for (int64_t i = 0; i < got.n; i++)
        bad += got.owners[i] != 1;
    CHECK_INT(bad, 0);
    for (int k = 0; k < 3; k++) {
        double d = difference(got.x[k], want->x[k], got.n);

        if (!(d <= 1e-12))
            EK_T_FAIL("%d ranks (pp %d tp %d etp %d), zero %d: %s differ by %.3g", j->ranks,
                      j->sizes.pp, j->sizes.tp, j->sizes.etp, j->zero, names[k], d);
    }
    for (int r = 0; r < j->ranks; r++)
        for (int s = 0; s < STEPS; s++) {
            CHECK(fabs(ranks[r].norm[s] / one->norm[s] - 1) < 1e-12);
            CHECK(ranks[r].norm[s] == ranks[0].norm[s] && ranks[r].loss[s] == ranks[0].loss[s]);
            if (j->like == NULL)
                CHECK(fabs(ranks[r].loss[s] / one->loss[s] - 1) < 1e-12);
        }
    free_whole(&got);
}

/* --- cases ------------------------------------------------------------------------------------ */

static ek_model_spec shared_spec(void)
{
    ek_model_spec s = odd_spec();

    s.arch = EK_ARCH_QWEN2_MOE;
    s.qkv_bias = 1;
    s.qk_norm = EK_QK_NORM_HEAD;
    s.shared_ff = 5;
    s.shared_gated = 1;
    s.dense_ff = 9;
    s.dense[0] = 1;
    s.tie_embeddings = 1;
    return s;
}

static ek_model_spec dense_spec(void)
{
    ek_model_spec s = odd_spec();

    s.dense_ff = 11;
    memset(s.dense, 1, (size_t)s.layers - 1);
    s.experts = s.top_k = 1;
    return s;
}

/* Every ZeRO level on 2 to 4 data parallel ranks, against one. */
static void check_levels(job j)
{
    rank one[1], ranks[RANKS_MAX];
    whole want;
    job alone = j;

    alone.ranks = 1;
    run(&alone, one);
    if (!ready(one, 1))
        return;
    assemble(one, 1, &want);
    for (j.ranks = 1; j.ranks <= 4; j.ranks++)
        for (j.zero = 0; j.zero <= 3; j.zero++) {
            run(&j, ranks);
            compare(ranks, &j, one, &want);
            close_ranks(ranks, j.ranks);
        }
    free_whole(&want);
    close_ranks(one, 1);
}

static void routed_model(void)
{
    check_levels((job){.spec = odd_spec(), .mode = EK_MODE_FP64});
}

static void dense_model(void)
{
    check_levels((job){.spec = dense_spec(), .mode = EK_MODE_FP64});
}

static void tied_shared_biased_model(void)
{
    check_levels((job){.spec = shared_spec(), .mode = EK_MODE_FP64});
}

/* Buckets of one weight each: more ranks than rows. */
static void small_buckets(void)
{
    check_levels((job){.spec = shared_spec(), .mode = EK_MODE_FP64, .bucket_bytes = 1});
}

static void a_network_worker(void)
{
    check_levels((job){.spec = odd_spec(), .mode = EK_MODE_FP64, .worker = 1});
}

/* Any layout, from synthetic gradients: first and last pipeline stages, ranges of rows and columns.
 */
static void check_layout(job j)
{
    rank one[1], ranks[RANKS_MAX];
    job alone = j;
    whole want;

    j.mode = alone.mode = EK_MODE_FP64;
    alone.ranks = 1;
    alone.sizes = (ek_mesh_sizes){0};
    j.like = alone.like = &j;
    run(&alone, one);
    if (!ready(one, 1))
        return;
    assemble(one, 1, &want);
    for (j.zero = 0; j.zero <= 3; j.zero++) {
        run(&j, ranks);
        compare(ranks, &j, one, &want);
        close_ranks(ranks, j.ranks);
    }
    free_whole(&want);
    close_ranks(one, 1);
}

static void pipelines(void)
{
    check_layout((job){.spec = odd_spec(), .ranks = 2, .sizes = {.pp = 2}});
    check_layout((job){.spec = shared_spec(), .ranks = 3, .sizes = {.pp = 3}});
    check_layout((job){.spec = shared_spec(), .ranks = 4, .sizes = {.pp = 2}});
    check_layout((job){.spec = shared_spec(), .ranks = 6, .sizes = {.pp = 2}});
    check_layout((job){.spec = odd_spec(), .ranks = 4, .model_chunks = 2, .sizes = {.pp = 2}});
}

static void tensor_parallel(void)
{
    check_layout((job){.spec = shared_spec(), .ranks = 2, .sizes = {.tp = 2}});
    check_layout((job){.spec = odd_spec(), .ranks = 4, .sizes = {.tp = 2}});
    check_layout((job){.spec = odd_spec(), .ranks = 4, .sizes = {.etp = 2}});
    check_layout((job){.spec = odd_spec(), .ranks = 4, .sizes = {.ep = 2}});
    check_layout((job){.spec = odd_spec(), .ranks = 4, .sizes = {.ep = 4}});
    check_layout((job){.spec = shared_spec(), .ranks = 8, .sizes = {.pp = 2, .ep = 2, .etp = 2}});
    check_layout((job){.spec = shared_spec(), .ranks = 8, .sizes = {.pp = 2, .tp = 2, .etp = 4}});
}

/* Masters and moments of two jobs agree bit by bit. */
static void check_same(const job *a, const job *b)
{
    rank ra[RANKS_MAX], rb[RANKS_MAX];
    whole wa, wb;

    run(a, ra);
    run(b, rb);
    if (!ready(ra, a->ranks) || !ready(rb, b->ranks))
        return;
    assemble(ra, a->ranks, &wa);
    assemble(rb, b->ranks, &wb);
    for (int k = 0; k < 3; k++)
        if (memcmp(wa.x[k], wb.x[k], (size_t)wa.n * sizeof(double)) != 0)
            EK_T_FAIL("zero %d and %d on %d ranks differ by %.3g", a->zero, b->zero, a->ranks,
                      difference(wa.x[k], wb.x[k], wa.n));
    free_whole(&wa);
    free_whole(&wb);
    close_ranks(ra, a->ranks);
    close_ranks(rb, b->ranks);
}

/* Where kernels read packed forms, the levels compute the same bits: with one micro-batch the sums
 * are the same. */
static void packed_forms(void)
{
    const ek_isa isas[] = {EK_ISA_REF, ek_cpu_isa()};
    const ek_mode modes[] = {EK_MODE_BF16, EK_MODE_FP32};

    for (int i = 0; i < 8; i++) {
        job whole_ = {.spec = i & 1 ? odd_spec() : shared_spec(),
                      .mode = modes[i / 4],
                      .isa = isas[i / 2 % 2],
                      .ranks = 3,
                      .micros = 1};
        job cut = whole_;

        cut.worker = i / 4;
        for (cut.zero = 1; cut.zero <= 3; cut.zero++)
            check_same(&whole_, &cut);
    }
}

/* A gradient that is not finite on one rank stops all, at the same step. */
static void a_bad_gradient_stops_all(void)
{
    for (int zero = 0; zero <= 3; zero++) {
        job j = {.spec = odd_spec(),
                 .mode = EK_MODE_FP64,
                 .ranks = 3,
                 .zero = zero,
                 .poison = (double)INFINITY};
        rank ranks[RANKS_MAX];

        j.like = &j;
        start(&j, ranks);
        for (int i = 0; i < j.ranks; i++) {
            CHECK_INT(ranks[i].failed, EK_ENONFINITE);
            CHECK_INT(ranks[i].step, 0);
        }
        close_ranks(ranks, j.ranks);
    }
}

static const ek_case cases[] = {
    EK_CASE(routed_model),    EK_CASE(dense_model),      EK_CASE(tied_shared_biased_model),
    EK_CASE(small_buckets),   EK_CASE(a_network_worker), EK_CASE(pipelines),
    EK_CASE(tensor_parallel), EK_CASE(packed_forms),     EK_CASE(a_bad_gradient_stops_all),
};

EK_TEST_MAIN(cases)
