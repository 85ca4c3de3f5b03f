/* moe_layer_fixture.h - what tests of evenkeel/moe_layer.h share: a small layer, its tokens, and
 * the job of a test that mpiexec has started. */
#ifndef MOE_LAYER_FIXTURE_H
#define MOE_LAYER_FIXTURE_H

#include "ek_test.h"

#include <evenkeel/job.h>
#include <evenkeel/moe_layer.h>

enum { HIDDEN = 6, FF = 5, EXPERTS = 5, TOP_K = 2, SHARED = 4, TOKENS_MAX = 64 };

static ek_comm *world; /* NULL: one process, rank 0 of 1 */
static int rank, ranks = 1;

#define MUST(call)                                                                                 \
    do {                                                                                           \
        if ((call) != EK_OK) {                                                                     \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, ek_err_text());                     \
            ek_job_abort(world, 1); /* the others wait for this one */                             \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define REFUSED(call, status, word)                                                                \
    do {                                                                                           \
        CHECK_INT((call), (status));                                                               \
        if (strstr(ek_err_message(), (word)) == NULL)                                              \
            EK_T_FAIL("%s says \"%s\", without \"%s\"", #call, ek_err_message(), (word));          \
    } while (0)

static inline ek_moe_layer_config small_config(void)
{
    ek_moe_layer_config c = EK_MOE_LAYER_CONFIG_INIT;

    c.hidden = HIDDEN;
    c.ff = FF;
    c.experts = EXPERTS;
    c.top_k = TOP_K;
    c.shared_ff = SHARED;
    c.shared_gated = 1;
    c.tokens = TOKENS_MAX;
    c.dtype = "fp64";
    c.threads = 1;
    c.aux_coef = 0.3;
    c.z_coef = 0.2;
    c.seed = 7;
    c.init_std = 0.6;
    return c;
}

static inline ek_moe_layer *create(const ek_moe_layer_config *c)
{
    ek_moe_layer *l;

    MUST(ek_moe_layer_create(c, &l));
    return l;
}

static inline ek_moe_layer_weight param(ek_moe_layer *l, const char *name, int64_t expert)
{
    ek_moe_layer_weight w;

    MUST(ek_moe_layer_param(l, name, expert, &w));
    return w;
}

/* A number that depends on i alone, from -1 to 1. */
static inline double number(int64_t i)
{
    return sin(12.9898 * (double)i + 1) * cos(0.37 * (double)(i % 1009));
}

static inline void fill(double *to, int64_t first, int64_t n, int64_t stream)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = number(100003 * stream + first + i);
}

/* --- tokens of ranks -------------------------------------------------------------------------- */

/* Tokens of a rank; the last of several has none. */
static inline int64_t tokens_of(int r)
{
    return r > 1 && r == ranks - 1 ? 0 : 9 + 2 * r;
}

static inline int64_t first_token(int r)
{
    return r == 0 ? 0 : first_token(r - 1) + tokens_of(r - 1);
}

/* Tokens that choose expert 0, once prefer_expert_0() has made its logits large. */
static inline void fill_tokens(double *x, int64_t first, int64_t n, int64_t stream)
{
    fill(x, first * HIDDEN, n * HIDDEN, stream);
    for (int64_t t = 0; t < n; t++)
        x[t * HIDDEN] = 1 + fabs(x[t * HIDDEN]);
}

static inline void prefer_expert_0(ek_moe_layer *l)
{
    ((double *)param(l, "router", 0).value)[0] = 6;
    MUST(ek_moe_layer_pack(l));
}

static inline void check_numbers(const char *what, const double *got, const double *want, int64_t n)
{
    double worst = 0;

    for (int64_t i = 0; i < n; i++)
        worst = isfinite(got[i]) ? fmax(worst, fabs(got[i] - want[i])) : (double)INFINITY;
    if (!(worst <= 1e-9))
        EK_T_FAIL("rank %d of %d: %s is %.3g away from one process", rank, ranks, what, worst);
}

/* The rank that has an expert, in block order. */
static inline int rank_of(int expert)
{
    int whole = EXPERTS / ranks, more = EXPERTS % ranks;

    return expert < more * (whole + 1) ? expert / (whole + 1) : (expert - more) / whole;
}

/* The test's main: under mpiexec the ranks are those of the job. */
static inline int run_cases(int argc, char **argv, const ek_case *cases, size_t n)
{
    int status;

    if (getenv("PMI_RANK") != NULL || getenv("OMPI_COMM_WORLD_RANK") != NULL) {
        MUST(ek_job_join(&world));
        rank = ek_job_rank(world);
        ranks = ek_job_size(world);
    }
    status = ek_test_main(argc, argv, cases, n);
    ek_job_leave(&world);
    return status;
}

#endif
