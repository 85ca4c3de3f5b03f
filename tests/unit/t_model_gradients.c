/* The gradient of a whole model against central differences in fp64: every kind of gate, norm
 * and layer, several micro-batches, with balance and z losses. */
#include "base/random.h"
#include "ek_test.h"
#include "exec/exec.h"
#include "model/hf/init.h"
#include "model/step/pass.h"
#include "tensor/select/select.h"

enum { SEQ = 7, SEQS = 3, PROBES = 4 };

typedef struct {
    ek_kernels *k;
    ek_model *model;
    ek_pass *pass;
    ek_exec *exec;
    ek_graph graph;
    int32_t tokens[SEQS * SEQ], targets[SEQS * SEQ], starts[SEQS * SEQ];
    ek_micro micro[2];
    ek_moe_step step;
} fixture;

/* Odd on purpose: 3 query heads on 1 key head, 5 experts. */
static ek_model_spec small_spec(void)
{
    ek_model_spec s;

    CHECK(ek_model_preset("tiny", &s) == EK_OK);
    s.vocab = 23;
    s.hidden = 12;
    s.layers = 2;
    s.heads = 3;
    s.kv_heads = 1;
    s.head_dim = 4;
    s.experts = 5;
    s.top_k = 2;
    s.ff = 9;
    s.eos_id = -1;
    s.init_range = 0.3;
    s.rope_theta = 100;
    return s;
}

static ek_reroute reroute; /* batch of the passes */

static void setup(fixture *f, const ek_model_spec *spec, ek_recompute recompute)
{
    ek_pass_config cfg = {.max_seqs = 2,
                          .max_seq = SEQ,
                          .micros = 2,
                          .training = 1,
                          .recompute = recompute,
                          .moe.reroute = reroute};

    memset(f, 0, sizeof(*f));
    CHECK(ek_kernels_create(EK_MODE_FP64, EK_ISA_REF, 2, &f->k) == EK_OK);
    CHECK(ek_model_create(spec, f->k, &(ek_model_config){.trained = 1}, &f->model) == EK_OK);
    CHECK(ek_model_init(f->model, 7) == EK_OK);
    CHECK(ek_pass_create(f->model, &cfg, &f->pass) == EK_OK);
    CHECK(ek_exec_create(NULL, &f->exec) == EK_OK);
    ek_graph_init(&f->graph);
    for (int i = 0; i < SEQS * SEQ; i++) {
        /* no token twice in a row: equal ones at the start of a sequence tie exactly */
        f->tokens[i] = (int32_t)((i * 7 + i / SEQ) % 23);
        f->targets[i] = (int32_t)(ek_random_bits(1, 3, (uint64_t)i) % 23);
    }
    f->micro[0] = ek_micro_alone(2, SEQ, 2.0 / 3, 0, f->tokens, f->targets);
    f->micro[1] = ek_micro_alone(1, SEQ, 1.0 / 3, 2, f->tokens + 2 * SEQ, f->targets + 2 * SEQ);
    f->step = (ek_moe_step){.training = 1,
                            .aux_coef = 0.05,
                            .z_coef = 0.02,
                            .top_k = spec->top_k,
                            .seed = 5,
                            .step = 3};
}

static void teardown(fixture *f)
{
    ek_graph_fini(&f->graph);
    ek_exec_destroy(&f->exec);
    ek_pass_destroy(&f->pass);
    ek_model_destroy(&f->model);
    ek_kernels_destroy(&f->k);
}

static ek_losses run(fixture *f)
{
    ek_losses out = {0};

    for (int64_t i = 0; i < f->model->n_params; i++) {
        ek_weight *w = f->model->params[i].w;

        memset(w->g, 0, (size_t)ek_weight_elements(w) * sizeof(double));
    }
    CHECK(ek_pass_begin(f->pass, &f->step, f->micro, 2) == EK_OK);
    ek_graph_reset(&f->graph);
    CHECK(ek_pass_build(f->pass, &f->graph) == EK_OK);
    CHECK(ek_exec_run(f->exec, &f->graph) == EK_OK);
    ek_pass_losses(f->pass, &out);
    return out;
}

static double total(fixture *f)
{
    ek_losses l = run(f);
    double aux = f->model->spec.gate.kind == EK_GATE_SOFTMAX ? f->step.aux_coef : 0;

    return l.loss + aux * l.aux_loss + f->step.z_coef * l.z_loss;
}

/* Probes some elements of every weight. */
static void check_all(fixture *f)
{
    for (int64_t i = 0; i < f->model->n_params; i++) {
        ek_weight *w = f->model->params[i].w;
        int64_t n = ek_weight_elements(w);
        double *p = w->p, want[PROBES];
        int64_t at[PROBES];

        if (!f->model->params[i].trained)
            continue;
        run(f);
        for (int j = 0; j < PROBES; j++) {
            at[j] = (int64_t)(ek_random_bits(9, (uint64_t)i, (uint64_t)j) % (uint64_t)n);
            want[j] = ((double *)w->g)[at[j]];
        }
        for (int j = 0; j < PROBES; j++) {
            const double h = 1e-6;
            double keep = p[at[j]], up, down, got;

            p[at[j]] = keep + h;
            up = total(f);
            p[at[j]] = keep - h;
            down = total(f);
            p[at[j]] = keep;
            got = (up - down) / (2 * h);
            if (fabs(got - want[j]) > 1e-6 * (fabs(got) + 1e-2))
                EK_T_FAIL("weight %d (layer %d, expert %d) element %d: gradient %.9g, "
                          "differences %.9g",
                          (int)i, (int)f->model->params[i].layer, (int)f->model->params[i].expert,
                          (int)at[j], want[j], got);
        }
    }
}

static void with_spec(const ek_model_spec *s, ek_recompute recompute)
{
    fixture f;

    setup(&f, s, recompute);
    check_all(&f);
    teardown(&f);
}

static void mixtral(void)
{
    ek_model_spec s = small_spec();

    with_spec(&s, EK_RECOMPUTE_OFF);
}

static void olmoe_not_normalised(void)
{
    ek_model_spec s = small_spec();

    s.arch = EK_ARCH_OLMOE;
    s.gate.normalise = 0;
    s.qk_norm = EK_QK_NORM_FULL;
    s.top_k = 3;
    with_spec(&s, EK_RECOMPUTE_OFF);
}

static void qwen3_head_norm_tied(void)
{
    ek_model_spec s = small_spec();

    s.arch = EK_ARCH_QWEN3_MOE;
    s.qk_norm = EK_QK_NORM_HEAD;
    s.tie_embeddings = 1;
    s.top_k = 1;
    s.gate.normalise = 0; /* Switch: the weight of a single expert is its probability */
    with_spec(&s, EK_RECOMPUTE_OFF);
}

static void qwen2_shared_bias_dense(void)
{
    ek_model_spec s = small_spec();

    s.arch = EK_ARCH_QWEN2_MOE;
    s.qkv_bias = 1;
    s.shared_ff = 10;
    s.shared_gated = 1;
    s.dense_ff = 14;
    s.dense[0] = 1;
    with_spec(&s, EK_RECOMPUTE_OFF);
}

static void sigmoid_bias_groups(void)
{
    ek_model_spec s = small_spec();

    s.experts = 6;
    s.gate.kind = EK_GATE_SIGMOID_BIAS;
    s.gate.groups = 3;
    s.gate.group_top = 2;
    s.gate.scale = 1.5;
    s.shared_ff = 8;
    with_spec(&s, EK_RECOMPUTE_OFF);
}

static void softmax_groups_jitter(void)
{
    ek_model_spec s = small_spec();

    s.experts = 6;
    s.gate.groups = 2;
    s.gate.group_top = 1;
    s.gate.jitter = 0.1;
    with_spec(&s, EK_RECOMPUTE_OFF);
}

static void expert_choice(void)
{
    ek_model_spec s = small_spec();

    s.gate.kind = EK_GATE_EXPERT_CHOICE;
    s.gate.normalise = 0;
    with_spec(&s, EK_RECOMPUTE_OFF);
}

static void cosine_router(void)
{
    ek_model_spec s = small_spec();

    s.router_dim = 4;
    with_spec(&s, EK_RECOMPUTE_OFF);
    s.gate.kind = EK_GATE_SIGMOID_BIAS;
    s.gate.jitter = 0.1;
    s.dense_ff = 14;
    s.dense[0] = 1;
    with_spec(&s, EK_RECOMPUTE_FULL);
}

static void swiped(void)
{
    ek_model_spec s = small_spec();
    fixture f;

    setup(&f, &s, EK_RECOMPUTE_FULL);
    f.step.capacity_factor = 1; /* an even load drops nothing */
    CHECK(run(&f).dropped > 0);
    teardown(&f);
    reroute = EK_REROUTE_SWIPE;
    setup(&f, &s, EK_RECOMPUTE_FULL);
    reroute = EK_REROUTE_OFF;
    f.step.capacity_factor = 1;
    CHECK_INT(run(&f).dropped, 0);
    check_all(&f);
    teardown(&f);
}

static void capacity_drops(void)
{
    ek_model_spec s = small_spec();
    fixture f;

    setup(&f, &s, EK_RECOMPUTE_OFF);
    f.step.capacity_factor = 0.8;
    CHECK(run(&f).dropped > 0);
    check_all(&f);
    f.step.top_k = 1; /* dynamic k, below the model's; normalised, all would tie at weight 1 */
    f.model->spec.gate.normalise = 0;
    check_all(&f);
    teardown(&f);
}

/* Document masks: the first sequence is one document, others begin and end with one of a single
 * token. */
static void mark_documents(fixture *f)
{
    static const int32_t starts[SEQS * SEQ] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1,
                                               4, 4, 4, 0, 0, 0, 0, 0, 0, 6};

    memcpy(f->starts, starts, sizeof(starts));
    for (int i = 0; i + 1 < SEQS * SEQ; i++)
        if (starts[i + 1] == (i + 1) % SEQ && starts[i + 1] > 0)
            f->targets[i] = -1;
    f->micro[0].starts = f->starts;
    f->micro[1].starts = f->starts + 2 * SEQ;
}

/* The loss of the same targets where every sequence is one document. */
static double loss_together(fixture *f)
{
    static const int32_t starts[SEQS * SEQ];
    ek_losses l;

    f->micro[0].starts = f->micro[1].starts = starts;
    l = run(f);
    f->micro[0].starts = f->starts;
    f->micro[1].starts = f->starts + 2 * SEQ;
    return l.loss;
}

static void documents_apart(void)
{
    ek_model_spec s = small_spec();
    fixture f;

    for (int recompute = EK_RECOMPUTE_OFF; recompute <= EK_RECOMPUTE_FULL; recompute++) {
        setup(&f, &s, (ek_recompute)recompute);
        mark_documents(&f);
        CHECK(run(&f).loss_tokens == SEQS * SEQ - 3);
        CHECK(fabs(run(&f).loss - loss_together(&f)) > 1e-4);
        check_all(&f);
        for (int i = 2 * SEQ; i < SEQS * SEQ; i++)
            f.targets[i] = -1; /* nothing of the second micro-batch counts */
        check_all(&f);
        teardown(&f);
    }
}

/* No division by zero if no target counts. */
static void no_target_counts(void)
{
    ek_model_spec s = small_spec();
    ek_losses l;
    fixture f;

    setup(&f, &s, EK_RECOMPUTE_OFF);
    mark_documents(&f);
    f.step.aux_coef = f.step.z_coef = 0;
    for (int i = 0; i < SEQS * SEQ; i++)
        f.targets[i] = -1;
    l = run(&f);
    CHECK(l.loss == 0 && l.loss_tokens == 0);
    for (int64_t i = 0; i < f.model->n_params; i++) {
        const ek_weight *w = f.model->params[i].w;

        for (int64_t j = 0; j < ek_weight_elements(w); j++)
            CHECK(((const double *)w->g)[j] == 0);
    }
    teardown(&f);
}

/* Recomputing activations changes neither losses, nor statistics, nor one bit of a gradient. */
static void recompute_is_the_same(void)
{
    ek_model_spec s = small_spec();
    fixture a, b;

    s.shared_ff = 8;
    s.dense_ff = 10;
    s.dense[1] = 1;
    s.layers = 3;
    setup(&a, &s, EK_RECOMPUTE_OFF);
    for (int mode = EK_RECOMPUTE_ATTENTION; mode <= EK_RECOMPUTE_FULL; mode++) {
        ek_losses x = run(&a), y;

        setup(&b, &s, (ek_recompute)mode);
        CHECK(b.pass->arena.used < a.pass->arena.used);
        y = run(&b);
        CHECK(x.loss == y.loss && x.aux_loss == y.aux_loss && x.z_loss == y.z_loss);
        CHECK(x.expert_max_over_mean == y.expert_max_over_mean);
        for (int64_t i = 0; i < a.model->n_params; i++) {
            ek_weight *p = a.model->params[i].w, *q = b.model->params[i].w;

            CHECK(memcmp(p->g, q->g, (size_t)ek_weight_elements(p) * sizeof(double)) == 0);
        }
        teardown(&b);
    }
    teardown(&a);
}

/* Tokens follow the placement: permuting slots changes no result beyond the order of rows. */
static void placement_moves_rows_only(void)
{
    ek_model_spec s = small_spec();
    fixture f;
    ek_losses before, after;
    ek_placement *p;
    int32_t row;

    setup(&f, &s, EK_RECOMPUTE_OFF);
    before = run(&f);
    p = &f.model->layers[0].experts.placement;
    row = f.pass->moe[0].handles[0].activations.row_of[0];
    for (int32_t e = 0; e < p->experts; e++) {
        p->primary[e] = p->experts - 1 - e;
        p->expert_of[p->primary[e]] = e;
    }
    CHECK(ek_placement_check(p) == EK_OK);
    after = run(&f);
    CHECK(f.pass->moe[0].handles[0].activations.row_of[0] != row);
    CHECK(fabs(before.loss - after.loss) < 1e-14);
    check_all(&f);
    teardown(&f);
}

static const ek_case cases[] = {
    EK_CASE(mixtral),
    EK_CASE(olmoe_not_normalised),
    EK_CASE(qwen3_head_norm_tied),
    EK_CASE(qwen2_shared_bias_dense),
    EK_CASE(sigmoid_bias_groups),
    EK_CASE(softmax_groups_jitter),
    EK_CASE(expert_choice),
    EK_CASE(cosine_router),
    EK_CASE(swiped),
    EK_CASE(capacity_drops),
    EK_CASE(documents_apart),
    EK_CASE(no_target_counts),
    EK_CASE(recompute_is_the_same),
    EK_CASE(placement_moves_rows_only),
};
EK_TEST_MAIN(cases)
