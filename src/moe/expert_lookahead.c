/* The next router's choice. */
#include "moe/expert_lookahead.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Of many rows so many are looked at.  What this many of them choose is needed almost certainly. */
enum { ROWS = 64, SEVERAL = 2 };

struct ek_expert_lookahead {
    const ek_kernels *k;
    const ek_model_spec *spec;
    void *y;        /* R [ROWS, hidden], the next router's input */
    void *logits;   /* R [ROWS, experts] */
    void *rstd;     /* R [1] */
    double *score;  /* [experts], of a row */
    int32_t *times; /* [experts], rows that chose each */
};

ek_status ek_expert_lookahead_create(const ek_kernels *k, const ek_model_spec *spec,
                                     ek_expert_lookahead **out)
{
    size_t real = ek_dtype_size(k->real);
    ek_expert_lookahead *a;

    *out = NULL;
    if (k->memory != NULL || spec->router_dim > 0)
        return EK_OK;
    a = calloc(1, sizeof(*a));
    EK_REQUIRE(a != NULL, EK_ENOMEM, "no memory to look ahead");
    *a = (ek_expert_lookahead){.k = k,
                               .spec = spec,
                               .y = calloc(ROWS * (size_t)spec->hidden, real),
                               .logits = calloc(ROWS * (size_t)spec->experts, real),
                               .rstd = calloc(1, real),
                               .score = calloc((size_t)spec->experts, sizeof(double)),
                               .times = calloc((size_t)spec->experts, sizeof(int32_t))};
    *out = a;
    if (a->y != NULL && a->logits != NULL && a->rstd != NULL && a->score != NULL &&
        a->times != NULL)
        return EK_OK;
    ek_expert_lookahead_destroy(out);
    return EK_FAIL(EK_ENOMEM, "no memory to look ahead");
}

void ek_expert_lookahead_destroy(ek_expert_lookahead **pa)
{
    ek_expert_lookahead *a = *pa;

    if (a == NULL)
        return;
    free(a->y);
    free(a->logits);
    free(a->rstd);
    free(a->score);
    free(a->times);
    free(a);
    *pa = NULL;
}

static double real_at(const ek_kernels *k, const void *x, int64_t i)
{
    return k->real == EK_F64 ? ((const double *)x)[i] : (double)((const float *)x)[i];
}

/* What the gate orders experts by, of a row that is looked at. */
static double score_of(const ek_expert_lookahead *a, const ek_moe_weights *w, int64_t row,
                       int64_t e)
{
    double logit = real_at(a->k, a->logits, row * a->spec->experts + e);

    if (a->spec->gate.kind != EK_GATE_SIGMOID_BIAS)
        return logit;
    return 1 / (1 + exp(-logit)) + (w->bias.p != NULL ? real_at(a->k, w->bias.p, e) : 0);
}

/* The experts of a row that is looked at, the first choice first. */
static int32_t choose(const ek_expert_lookahead *a, const ek_moe_weights *w, int64_t row,
                      int32_t *expert)
{
    int32_t n = 0, experts = (int32_t)a->spec->experts;

    for (int32_t e = 0; e < experts; e++)
        a->score[e] = score_of(a, w, row, e);
    for (; n < (int32_t)a->spec->top_k; n++) {
        int32_t best = 0;

        for (int32_t e = 1; e < experts; e++)
            if (a->score[e] > a->score[best])
                best = e;
        a->score[best] = (double)-INFINITY;
        expert[n] = best;
    }
    return n;
}

/* Logits of `looked` of the rows, evenly spread. */
static void route(const ek_expert_lookahead *a, int64_t rows, int64_t looked, const void *x,
                  const ek_expert_layer *next)
{
    int64_t d = a->spec->hidden, bytes = d * (int64_t)ek_dtype_size(a->k->real);
    int64_t experts = a->spec->experts;

    for (int64_t i = 0; i < looked; i++)
        a->k->rmsnorm_forward(1, d, a->spec->rms_eps, (const char *)x + i * rows / looked * bytes,
                              next->norm->p, NULL, (char *)a->y + i * bytes, a->rstd);
    a->k->matmul_real(0, 1, looked, experts, d, a->y, d, next->w->router.p, d, 0, a->logits,
                      experts);
}

int32_t ek_expert_lookahead_guess(ek_expert_lookahead *a, int64_t rows, const void *x,
                                  const ek_expert_layer *next, int32_t *expert)
{
    int64_t looked = rows < ROWS ? rows : ROWS;
    int32_t n = 0, experts = (int32_t)a->spec->experts;

    route(a, rows, looked, x, next);
    if (rows == 1)
        return choose(a, next->w, 0, expert);
    memset(a->times, 0, (size_t)experts * sizeof(*a->times));
    for (int64_t i = 0; i < looked; i++)
        for (int32_t j = choose(a, next->w, i, expert); j > 0; j--)
            a->times[expert[j - 1]]++;
    for (int32_t times = (int32_t)looked; times >= SEVERAL; times--)
        for (int32_t e = 0; e < experts; e++)
            if (a->times[e] == times)
                expert[n++] = e;
    return n;
}
