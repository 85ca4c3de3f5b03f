/* offload_runs.h - training runs with experts' masters and moments on disk or in memory, and what
 * they are compared by: losses, norms, masters and moments, bit for bit. */
#ifndef OFFLOAD_RUNS_H
#define OFFLOAD_RUNS_H

#include "equal_models.h"
#include "model/hf/init.h"
#include "model/offload.h"
#include "tensor/select/select.h"
#include "train/checkpoint/checkpoint.h"

enum { STEPS_MAX = 160 };

/* One way to train. */
typedef struct {
    int model, shape, steps;
    int experts; /* a large number of them, one for each token, by a gate with a bias; 0: the
                    model's */
    ek_mode mode;
    ek_isa isa;
    ek_recompute recompute;
    int evaluates;
    int64_t bucket_bytes; /* 1: a bucket for each expert */
    const ek_offload_config *offload;
} way;

/* Training in fp32 with a bucket for each expert. */
static inline way way_of_small_buckets(int steps, const ek_offload_config *offload)
{
    return (way){.shape = 1,
                 .steps = steps,
                 .mode = EK_MODE_FP32,
                 .isa = ek_cpu_isa(),
                 .bucket_bytes = 1,
                 .offload = offload};
}

/* A trainer and what it said. */
typedef struct {
    ek_kernels *k;
    ek_model *m;
    ek_trainer *tr;
    double loss[STEPS_MAX], norm[STEPS_MAX], eval[STEPS_MAX];
} run;

static inline ek_offload_config config_of(int32_t entries, int32_t forms, ek_disk_backend backend,
                                          int gradients)
{
    return (ek_offload_config){.dir = "/var/tmp",
                               .entries = entries,
                               .forms = forms,
                               .gradients = gradients,
                               .backend = backend};
}

static inline ek_status open_run(const way *w, run *r)
{
    equal_shape shape = equal_shape_of(w->shape);
    ek_model_config mc = {.trained = 1, .bucket_bytes = w->bucket_bytes, .offload = w->offload};
    ek_trainer_config tc = {.batch = shape.batch,
                            .micro_batch = shape.micro,
                            .seq = shape.seq,
                            .aux_coef = 0.02,
                            .capacity_factor = equal_capacity(w->model),
                            .seed = 3,
                            .recompute = w->recompute,
                            .moe = {.degree = 1},
                            .optimizer = {.lr = 1e-2,
                                          .min_lr = 1e-3,
                                          .warmup = 2,
                                          .cosine = 1,
                                          .steps = w->steps,
                                          .decay = 0.1,
                                          .beta1 = 0.9,
                                          .beta2 = 0.95,
                                          .eps = 1e-8,
                                          .clip = 0.5}};
    ek_model_spec spec;

    *r = (run){0};
    equal_spec(w->model, &spec);
    if (w->experts > 0) {
        spec.experts = w->experts;
        spec.top_k = 1;
        spec.gate.kind = EK_GATE_SIGMOID_BIAS;
    }
    EK_TRY(ek_kernels_create(w->mode, w->isa, 1, &r->k));
    EK_TRY(ek_model_create(&spec, r->k, &mc, &r->m));
    EK_TRY(ek_trainer_create(r->m, &tc, &r->tr));
    EK_TRY(ek_model_init(r->m, 3));
    return ek_model_pack(r->m);
}

static inline void close_run(run *r)
{
    ek_trainer_destroy(&r->tr);
    ek_model_destroy(&r->m);
    ek_kernels_destroy(&r->k);
}

/* Tokens of an evaluation. */
static inline void read_held_out(void *context, int64_t i, int32_t *inputs, int32_t *targets)
{
    const run *r = context;
    int64_t seq = 3;

    for (int64_t t = 0; t < seq; t++) {
        inputs[t] = equal_token(77, (uint64_t)(i * 10 + t), r->m->spec.vocab);
        targets[t] = equal_token(77, (uint64_t)(i * 10 + t + 1), r->m->spec.vocab);
    }
}

static inline ek_status take_step(const way *w, run *r, int step)
{
    ek_batch_reader reader = {read_held_out, r};
    int64_t top_k = equal_top_k(w->model, step);
    ek_eval_sums sums = {0};
    ek_step_result result;

    if (top_k > 0)
        EK_TRY(ek_trainer_set_top_k(r->tr, top_k));
    if (w->evaluates && step % 2 == 1)
        EK_TRY(ek_trainer_forward(r->tr, 1, 3, &reader, &sums));
    equal_tokens(r->tr, step, equal_shape_of(w->shape).seq, r->m->spec.vocab);
    EK_TRY(ek_trainer_step(r->tr, &result));
    r->loss[step] = result.losses.loss;
    r->norm[step] = result.grad_norm;
    r->eval[step] = sums.loss;
    return EK_OK;
}

static inline ek_status train(const way *w, run *r, int from, int to)
{
    for (int step = from; step < to; step++)
        EK_TRY(take_step(w, r, step));
    return ek_trainer_apply_updates(r->tr);
}

/* --- comparing -------------------------------------------------------------------------------- */

/* Brings a weight of `r` into memory, if it is on disk. */
static inline const ek_weight *weight_of(run *r, int64_t i)
{
    const ek_param *p = &r->m->params[i];
    const ek_param_bucket *u = &r->m->buckets->bucket[p->bucket];

    if (ek_param_bucket_is_offloaded(u))
        CHECK(ek_offload_load(r->m, u, EK_PART_STATE) == EK_OK);
    return p->w;
}

static inline void compare_state(const char *text, run *a, run *b)
{
    size_t real = ek_dtype_size(a->k->real);
    int bad = 0;

    CHECK_INT(a->m->n_params, b->m->n_params);
    for (int64_t i = 0; i < a->m->n_params; i++) {
        const ek_weight *x = weight_of(a, i), *y = weight_of(b, i);
        size_t bytes = (size_t)x->kept * real;

        CHECK(x->kept == y->kept);
        bad += memcmp(x->p_kept, y->p_kept, bytes) != 0 || memcmp(x->m, y->m, bytes) != 0 ||
               memcmp(x->v, y->v, bytes) != 0;
    }
    if (bad > 0)
        EK_T_FAIL("%s: %d of %lld weights differ", text, bad, (long long)a->m->n_params);
}

static inline void compare_runs(const char *text, const way *w, run *a, run *b)
{
    for (int s = 0; s < w->steps; s++) {
        if (memcmp(&a->loss[s], &b->loss[s], sizeof(double)) != 0)
            EK_T_FAIL("%s: step %d: loss %.17g and %.17g", text, s, a->loss[s], b->loss[s]);
        if (memcmp(&a->norm[s], &b->norm[s], sizeof(double)) != 0)
            EK_T_FAIL("%s: step %d: norm %.17g and %.17g", text, s, a->norm[s], b->norm[s]);
        if (memcmp(&a->eval[s], &b->eval[s], sizeof(double)) != 0)
            EK_T_FAIL("%s: step %d: evaluation %.17g and %.17g", text, s, a->eval[s], b->eval[s]);
    }
    compare_state(text, a, b);
}

/* A file of two checkpoints of the same step. */
static inline void compare_files(char folders[2][64], int step, const char *name)
{
    char *bytes[2] = {NULL, NULL};
    size_t n[2] = {0, 0};

    for (int i = 0; i < 2; i++) {
        ek_path path;

        CHECK(ek_path_set(&path, "%s/checkpoint/step-%08d/%s", folders[i], step, name) == EK_OK);
        CHECK(ek_file_read(path.s, 1 << 30, &bytes[i], &n[i]) == EK_OK);
    }
    CHECK(n[0] > 1000 && n[0] == n[1] && memcmp(bytes[0], bytes[1], n[0]) == 0);
    free(bytes[0]);
    free(bytes[1]);
}

#endif
