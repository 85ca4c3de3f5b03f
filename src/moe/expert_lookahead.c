/* The next router's choice. */
#include "moe/expert_lookahead.h"

#include <math.h>
#include <stdlib.h>

struct ek_expert_lookahead {
    const ek_kernels *k;
    const ek_model_spec *spec;
    void *y;       /* R [hidden], the next router's input */
    void *logits;  /* R [experts] */
    void *rstd;    /* R [1] */
    double *score; /* [experts] */
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
                               .y = calloc((size_t)spec->hidden, real),
                               .logits = calloc((size_t)spec->experts, real),
                               .rstd = calloc(1, real),
                               .score = calloc((size_t)spec->experts, sizeof(double))};
    *out = a;
    if (a->y != NULL && a->logits != NULL && a->rstd != NULL && a->score != NULL)
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
    free(a);
    *pa = NULL;
}

static double real_at(const ek_kernels *k, const void *x, int64_t i)
{
    return k->real == EK_F64 ? ((const double *)x)[i] : (double)((const float *)x)[i];
}

/* What the gate orders experts by. */
static double score_of(const ek_expert_lookahead *a, const ek_moe_weights *w, int64_t e)
{
    double logit = real_at(a->k, a->logits, e);

    if (a->spec->gate.kind != EK_GATE_SIGMOID_BIAS)
        return logit;
    return 1 / (1 + exp(-logit)) + (w->bias.p != NULL ? real_at(a->k, w->bias.p, e) : 0);
}

int32_t ek_expert_lookahead_guess(ek_expert_lookahead *a, const void *x,
                                  const ek_expert_layer *next, int32_t *expert)
{
    int64_t d = a->spec->hidden, experts = a->spec->experts;
    int32_t n = 0;

    a->k->rmsnorm_forward(1, d, a->spec->rms_eps, x, next->norm->p, NULL, a->y, a->rstd);
    a->k->matmul_real(0, 1, 1, experts, d, a->y, d, next->w->router.p, d, 0, a->logits, experts);
    for (int64_t e = 0; e < experts; e++)
        a->score[e] = score_of(a, next->w, e);
    for (; n < (int32_t)a->spec->top_k; n++) {
        int32_t best = 0;

        for (int32_t e = 1; e < (int32_t)experts; e++)
            if (a->score[e] > a->score[best])
                best = e;
        a->score[best] = (double)-INFINITY;
        expert[n] = best;
    }
    return n;
}
