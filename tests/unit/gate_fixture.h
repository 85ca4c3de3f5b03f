/* gate_fixture.h - runs a gate over given logits, in double, in float, and on the fast kernels. */
#ifndef GATE_FIXTURE_H
#define GATE_FIXTURE_H

#include "ek_test.h"
#include "moe/gate.h"
#include "moe/moe.h"
#include "tensor/select/select.h"

enum { ARENA = 1 << 20, MAX_TOKENS = 64 };

typedef struct {
    ek_arena arena;
    ek_kernels *k;
    ek_model_spec spec;
    ek_moe_weights w;
    ek_moe_step step;
    ek_micro micro;
    ek_moe_config cfg;
    ek_moe m;
    ek_moe_scratch scratch;
} fixture;

static ek_mode mode; /* of the current round */
static ek_isa isa;

static inline ek_model_spec spec_of(ek_gate_kind kind, int64_t experts, int64_t top_k)
{
    ek_model_spec s;

    ek_model_default(&s);
    s.vocab = s.hidden = s.heads = s.kv_heads = s.ff = 4;
    s.layers = 3;
    s.head_dim = 2;
    s.experts = experts;
    s.top_k = top_k;
    s.gate.kind = kind;
    s.gate.normalise = 0;
    return s;
}

static inline size_t real_size(void)
{
    return mode == EK_MODE_FP64 ? sizeof(double) : sizeof(float);
}

/* A layer of this spec for `seqs` sequences of `seq` tokens. */
static inline void setup_as(fixture *f, const ek_model_spec *spec, const ek_moe_config *cfg,
                            int64_t seqs, int64_t seq)
{
    memset(f, 0, sizeof(*f));
    f->cfg = *cfg;
    CHECK(ek_arena_init(&f->arena, ARENA, "a layer") == EK_OK);
    CHECK(ek_kernels_create(mode, isa, 2, &f->k) == EK_OK);
    f->spec = *spec;
    ek_moe_reserve_weights(&f->w, &f->arena, &f->spec, &ek_mesh_one, 0, 1, NULL);
    if (spec->gate.kind == EK_GATE_SIGMOID_BIAS) {
        f->w.bias.p = ek_arena_alloc(&f->arena, spec->experts, real_size());
        f->w.bias.g = ek_arena_alloc(&f->arena, spec->experts, real_size());
    }
    f->m.k = f->k;
    f->m.spec = &f->spec;
    f->m.w = &f->w;
    f->m.step = &f->step;
    f->m.mesh = &ek_mesh_one;
    f->m.cfg = &f->cfg;
    f->m.scratch = &f->scratch;
    ek_moe_reserve_state(&f->m, &f->arena, seq, 1);
    ek_moe_reserve_activations(&f->m, 0, &f->arena,
                               &(ek_moe_limits){MAX_TOKENS, MAX_TOKENS, MAX_TOKENS, 0}, 0);
    CHECK(ek_arena_check(&f->arena, "a layer") == EK_OK);
    f->micro = ek_micro_alone(seqs, seq, 1, 0, NULL, NULL);
    f->step = (ek_moe_step){.training = 1, .top_k = spec->top_k, .micro = &f->micro};
    ek_moe_begin_step(&f->m);
}

static inline void setup(fixture *f, const ek_model_spec *spec, int64_t seqs, int64_t seq)
{
    setup_as(f, spec, &(ek_moe_config){0}, seqs, seq);
}

static inline void teardown(fixture *f)
{
    ek_kernels_destroy(&f->k);
    ek_arena_fini(&f->arena);
}

static inline double get(const void *p, int64_t i)
{
    return mode == EK_MODE_FP64 ? ((const double *)p)[i] : (double)((const float *)p)[i];
}

static inline void set(void *p, int64_t i, double x)
{
    if (mode == EK_MODE_FP64)
        ((double *)p)[i] = x;
    else
        ((float *)p)[i] = (float)x;
}

/* Runs the gate over these logits [n, experts]. */
static inline void forward(fixture *f, const double *logits)
{
    for (int64_t i = 0; i < f->micro.n * f->spec.experts; i++)
        set(f->m.handles[0].activations.probs, i, logits[i]);
    if (mode == EK_MODE_FP64)
        ek_gate_forward_f64(&f->m, &f->micro, &f->m.handles[0].activations);
    else
        ek_gate_forward_f32(&f->m, &f->micro, &f->m.handles[0].activations);
    ek_gate_count_stats(&f->m, &f->micro, &f->m.handles[0].activations);
    ek_gate_sum_stats(&f->m, &f->micro, &f->m.handles[0].activations, 0);
}

static inline int close_to(double got, double want)
{
    return fabs(got - want) <= (mode == EK_MODE_FP64 ? 1e-14 : 1e-6) * (1 + fabs(want));
}

#define CHECK_REAL(got, want)                                                                      \
    (close_to((got), (want)) ? (void)0                                                             \
                             : EK_T_FAIL("%s is %.17g, expected %.17g", #got, (got), (want)))

static inline void check_ids(const fixture *f, const int32_t *want)
{
    for (int64_t i = 0; i < f->micro.n * f->m.cols; i++)
        if (f->m.handles[0].activations.ids[i] != want[i])
            EK_T_FAIL("choice %d of token %d is %d, expected %d", (int)(i % f->m.cols),
                      (int)(i / f->m.cols), (int)f->m.handles[0].activations.ids[i], (int)want[i]);
}

static inline double weight(const fixture *f, int64_t token, int64_t j)
{
    return get(f->m.handles[0].activations.weights, token * f->m.cols + j);
}

/* Runs every case in double, in float, and on the fast kernels of this CPU. */
static inline void three_times(void (*one)(void))
{
    const struct {
        ek_mode mode;
        ek_isa isa;
    } rounds[] = {{EK_MODE_FP64, EK_ISA_REF}, {EK_MODE_FP32, EK_ISA_REF}, {EK_MODE_FP32, 0}};

    for (int i = 0; i < 3; i++) {
        int failed = ek_t.failed;

        mode = rounds[i].mode;
        isa = i < 2 ? rounds[i].isa : ek_cpu_isa();
        one();
        if (ek_t.failed > failed)
            fprintf(stderr, "  in round %d (fp64, fp32, fp32 fast)\n", i);
    }
}

#define ROUNDS(name)                                                                               \
    static void all_##name(void)                                                                   \
    {                                                                                              \
        three_times(name);                                                                         \
    }

#endif
