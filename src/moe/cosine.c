/* The cosine router for float and double. */
#include "moe/cosine.h"

#include <math.h>
#include <string.h>

static const double theta_max = 4.6051701859880913680; /* log 100 */
static const double length_min = 1e-12;

void ek_cosine_reserve(ek_cosine_scratch *c, ek_arena *a, const ek_kernels *k,
                       const ek_model_spec *spec, int64_t tokens, int training)
{
    int64_t p = spec->router_dim, experts = spec->experts;
    size_t real = ek_dtype_size(k->real);

    if (p == 0)
        return;
    c->u = ek_arena_alloc(a, tokens * p, real);
    c->u_length = ek_arena_alloc(a, tokens, real);
    c->m = ek_arena_alloc(a, experts * p, real);
    c->m_length = ek_arena_alloc(a, experts, real);
    if (!training)
        return;
    c->du = ek_arena_alloc(a, tokens * p, real);
    c->dm = ek_arena_alloc(a, experts * p, real);
    c->dot = ek_arena_alloc(a, tokens > experts ? tokens : experts, real);
}

#define R       float
#define NAME(x) x##_f32
#include "moe/cosine_body.h"
#undef R
#undef NAME

#define R       double
#define NAME(x) x##_f64
#include "moe/cosine_body.h"
#undef R
#undef NAME

void ek_cosine_forward(const ek_moe *m, int64_t n, const void *y, void *logits)
{
    if (m->k->real == EK_F64)
        cosine_forward_f64(m, n, y, logits);
    else
        cosine_forward_f32(m, n, y, logits);
}

void ek_cosine_backward(const ek_moe *m, int64_t n, const void *y)
{
    if (m->k->real == EK_F64)
        cosine_backward_f64(m, n, y);
    else
        cosine_backward_f32(m, n, y);
}
