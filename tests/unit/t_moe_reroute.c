/* Re-routing, by hand and by its properties: which assignments move, where to, weights and
 * gradients. */
#include "base/random.h"
#include "gate_fixture.h"
#include "moe/reroute.h"

static const ek_moe_config swipe = {.reroute = EK_REROUTE_SWIPE};

/* A layer; near: which experts are on the token's node. */
static void setup_locality(fixture *f, const ek_model_spec *spec, double limit,
                           const unsigned char *near, int64_t seqs, int64_t seq)
{
    ek_moe_config cfg = {.reroute = EK_REROUTE_TOPOLOGY, .reroute_limit = limit};

    setup_as(f, spec, &cfg, seqs, seq);
    for (int64_t e = 0; e < spec->experts; e++)
        CHECK_INT(f->m.gate.allowed[e], 1); /* one rank alone */
    memcpy(f->m.gate.allowed, near, (size_t)spec->experts);
}

/* Logits of these probabilities [n]. */
static const double *logits_of(const double *p, int n)
{
    static double x[MAX_TOKENS * 8];

    for (int i = 0; i < n; i++)
        x[i] = log(p[i]);
    return x;
}

/* --- topology --------------------------------------------------------------------------------- */

static const double four[] = {0.4,  0.1,  0.3,  0.2, /* 0 near, 2 remote */
                              0.05, 0.15, 0.2,  0.6, /* 3 and 2 remote */
                              0.4,  0.1,  0.3,  0.2, /* as the first token */
                              0.6,  0.2,  0.15, 0.05};
static const unsigned char here[] = {1, 1, 0, 0};

/* Two of four remote assignments may leave: the 0.6 and the earlier 0.3. */
static void the_best_leave_the_node(void)
{
    ek_model_spec s = spec_of(EK_GATE_SOFTMAX, 4, 2);
    const int64_t load[] = {3, 3, 1, 1};
    fixture f;

    setup_locality(&f, &s, 0.25, here, 1, 4);
    forward(&f, logits_of(four, 16));
    check_ids(&f, (const int32_t[]){0, 2, 3, 1, 0, 1, 0, 1});
    CHECK_REAL(weight(&f, 0, 1), 0.3);
    CHECK_REAL(weight(&f, 1, 1), 0.15);
    CHECK_REAL(weight(&f, 2, 1), 0.1);
    for (int e = 0; e < 4; e++)
        CHECK_INT(f.m.stats.load[e], load[e]);
    f.spec.gate.normalise = 1;
    forward(&f, logits_of(four, 16));
    CHECK_REAL(weight(&f, 2, 0), 0.8);
    CHECK_REAL(weight(&f, 2, 1), 0.2);
    teardown(&f);
}

static void limits_at_their_ends(void)
{
    const unsigned char one[] = {0, 1, 0, 0}, none[] = {0, 0, 0, 0};
    const int32_t chosen[] = {0, 2, 3, 2, 0, 2, 0, 1};
    ek_model_spec s = spec_of(EK_GATE_SOFTMAX, 4, 2);
    fixture f;

    setup_locality(&f, &s, 1, here, 1, 4);
    forward(&f, logits_of(four, 16));
    check_ids(&f, chosen);
    f.cfg.reroute_limit = 0.49; /* floor(3.92) */
    forward(&f, logits_of(four, 16));
    check_ids(&f, (const int32_t[]){0, 2, 3, 1, 0, 2, 0, 1});
    f.cfg.reroute_limit = 0;
    forward(&f, logits_of(four, 16));
    check_ids(&f, (const int32_t[]){0, 1, 1, 0, 0, 1, 0, 1});
    memcpy(f.m.gate.allowed, one, sizeof(one)); /* too few near experts: the others are unchanged */
    forward(&f, logits_of(four, 16));
    check_ids(&f, (const int32_t[]){1, 2, 1, 2, 1, 2, 0, 1});
    memcpy(f.m.gate.allowed, none, sizeof(none));
    forward(&f, logits_of(four, 16));
    check_ids(&f, chosen);
    teardown(&f);
}

static void only_training_reroutes(void)
{
    const int32_t chosen[] = {0, 2, 3, 2, 0, 2, 0, 1};
    ek_model_spec s = spec_of(EK_GATE_SOFTMAX, 4, 2);
    fixture f;

    setup_locality(&f, &s, 0, here, 1, 4);
    CHECK(ek_gate_needs_sequences(&f.m));
    f.step.training = 0;
    CHECK(!ek_gate_needs_sequences(&f.m));
    forward(&f, logits_of(four, 16));
    check_ids(&f, chosen);
    teardown(&f);
}

/* k below the model's: unused columns are neither counted nor filled. */
static void fewer_choices_in_a_step(void)
{
    ek_model_spec s = spec_of(EK_GATE_SOFTMAX, 4, 2);
    fixture f;

    setup_locality(&f, &s, 0, here, 1, 4);
    f.step.top_k = 1;
    forward(&f, logits_of(four, 16));
    check_ids(&f, (const int32_t[]){0, -1, 1, -1, 0, -1, 0, -1});
    teardown(&f);
    setup_as(&f, &s, &swipe, 1, 4);
    f.step.top_k = 1; /* of 0, 3, 0, 0 one each: the 0.6 stays, and the earlier 0.4 is first */
    forward(&f, logits_of(four, 16));
    check_ids(&f, (const int32_t[]){2, -1, 3, -1, 1, -1, 0, -1});
    teardown(&f);
}

/* The bias counts in the scores of re-routing, not in gate weights. */
static void with_a_bias(void)
{
    ek_model_spec s = spec_of(EK_GATE_SIGMOID_BIAS, 4, 1);
    double logits[8];
    fixture f;

    for (int i = 0; i < 8; i++)
        logits[i] = -log(1 / (double[]){0.2, 0.3, 0.5, 0.1, 0.2, 0.3, 0.1, 0.45}[i] - 1);
    setup_locality(&f, &s, 0.5, here, 1, 2);
    set(f.w.bias.p, 0, 0.15);
    set(f.w.bias.p, 3, 0.1);
    forward(&f, logits);
    check_ids(&f, (const int32_t[]){0, 3}); /* 0.5 goes, 0.45 + 0.1 may leave; 0.35 over 0.3 */
    CHECK_REAL(weight(&f, 0, 0), 0.2);
    CHECK_REAL(weight(&f, 1, 0), 0.45);
    teardown(&f);
}

/* --- swipe ------------------------------------------------------------------------------------ */

/* Expert 0 is every token's best; the 0.7 stays; the 0.6 moves before the 0.5, and takes the second
 * best expert of both. */
static void the_least_leave_their_expert(void)
{
    ek_model_spec s = spec_of(EK_GATE_SOFTMAX, 3, 1);
    fixture f;

    setup_as(&f, &s, &swipe, 1, 3);
    forward(&f, logits_of((const double[]){0.5, 0.3, 0.2, 0.6, 0.3, 0.1, 0.7, 0.2, 0.1}, 9));
    check_ids(&f, (const int32_t[]){2, 1, 0});
    CHECK_REAL(weight(&f, 0, 0), 0.2);
    teardown(&f);
}

static void equal_scores_move_the_later_tokens(void)
{
    ek_model_spec s = spec_of(EK_GATE_SOFTMAX, 4, 1);
    double p[20];
    fixture f;

    for (int i = 0; i < 20; i++)
        p[i] = (double[]){0.1, 0.4, 0.2, 0.3}[i % 4];
    setup_as(&f, &s, &swipe, 1, 5); /* two each: five need three experts */
    forward(&f, logits_of(p, 20));
    check_ids(&f, (const int32_t[]){1, 1, 3, 3, 2});
    teardown(&f);
}

/* Expert 0 has three assignments, its capacity is two, and the token of the 0.4 that leaves has
 * expert 2, the only one below capacity, already: the first token moves to 2 and leaves it 1. */
static void assignments_are_swapped(void)
{
    ek_model_spec s = spec_of(EK_GATE_SOFTMAX, 3, 2);
    fixture f;

    setup_as(&f, &s, &swipe, 1, 3);
    forward(&f, logits_of((const double[]){0.6, 0.3, 0.1, 0.5, 0.4, 0.1, 0.4, 0.1, 0.5}, 9));
    check_ids(&f, (const int32_t[]){0, 2, 0, 1, 2, 1});
    CHECK_REAL(weight(&f, 0, 1), 0.1);
    CHECK_REAL(weight(&f, 2, 1), 0.1);
    teardown(&f);
}

static void check_distinct(const fixture *f)
{
    int64_t cols = f->m.cols, k = f->step.top_k;
    const int32_t *ids = f->m.handles[0].activations.ids;

    for (int64_t t = 0; t < f->micro.n; t++)
        for (int64_t j = 0; j < k; j++) {
            CHECK(ids[t * cols + j] >= 0 && ids[t * cols + j] < f->spec.experts);
            for (int64_t i = 0; i < j; i++)
                CHECK(ids[t * cols + i] != ids[t * cols + j]);
        }
}

static void check_shares(const fixture *f)
{
    int64_t cols = f->m.cols, experts = f->spec.experts, seq = f->micro.seq;
    int64_t share = (f->step.top_k * seq + experts - 1) / experts;

    for (int64_t q = 0; q < f->micro.seqs; q++) {
        int64_t load[8] = {0};

        for (int64_t i = q * seq * cols; i < (q + 1) * seq * cols; i++)
            if (f->m.handles[0].activations.ids[i] >= 0)
                load[f->m.handles[0].activations.ids[i]]++;
        for (int64_t e = 0; e < experts; e++)
            if (load[e] > share)
                EK_T_FAIL("%d experts, k %d, sequence %d: expert %d has %d, its share is %d",
                          (int)experts, (int)cols, (int)q, (int)e, (int)load[e], (int)share);
    }
}

/* Logits of at most 64 tokens and 8 experts: random; biased to one expert; all equal. */
static void draw(double *x, const ek_model_spec *s, int64_t n, int i)
{
    for (int64_t j = 0; j < n * s->experts; j++) {
        x[j] = ek_random_normal(5, (uint64_t)i, (uint64_t)(i % 3 == 2 ? j % s->experts : j));
        if (i % 3 == 1 && j % s->experts == i % s->experts)
            x[j] += 4;
    }
}

static void capacities_hold(void)
{
    double logits[MAX_TOKENS * 8];

    for (int i = 0; i < 150; i++) {
        int64_t experts = 1 + i % 8, k = 1 + i / 8 % experts, seq = 1 + i % 11, seqs = 1 + i % 4;
        ek_model_spec s = spec_of(EK_GATE_SOFTMAX, experts, k);
        fixture f;

        draw(logits, &s, seqs * seq, i);
        setup_as(&f, &s, &swipe, seqs, seq);
        forward(&f, logits);
        check_distinct(&f);
        check_shares(&f);
        teardown(&f);
    }
}

static void balanced_loads_are_unchanged(void)
{
    ek_model_spec s = spec_of(EK_GATE_SOFTMAX, 4, 2);
    double logits[8 * 4];
    int32_t want[16];
    fixture f;

    for (int i = 0; i < 32; i++)
        logits[i] = i % 4 == i / 4 % 4 ? 3 : i % 4 == (i / 4 + 1) % 4 ? 2 : 0;
    for (int t = 0; t < 8; t++) {
        want[2 * t] = t % 4;
        want[2 * t + 1] = (t + 1) % 4;
    }
    setup_as(&f, &s, &swipe, 1, 8);
    forward(&f, logits);
    check_ids(&f, want);
    teardown(&f);
}

/* The result for a sequence does not depend on the other sequences. */
static void sequences_are_apart(void)
{
    const ek_moe_config cfgs[] = {swipe, {.reroute = EK_REROUTE_TOPOLOGY, .reroute_limit = 0.2}};
    ek_model_spec s = spec_of(EK_GATE_SOFTMAX, 5, 2);
    const unsigned char near[] = {0, 1, 0, 1, 1};
    double logits[4 * 9 * 5];
    int32_t whole[4 * 9 * 2];
    fixture f;

    draw(logits, &s, 4 * 9, 1);
    for (int i = 0; i < 2; i++)
        for (int64_t q = -1; q < 4; q++) {
            setup_as(&f, &s, &cfgs[i], q < 0 ? 4 : 1, 9);
            if (i == 1)
                memcpy(f.m.gate.allowed, near, sizeof(near));
            forward(&f, logits + (q < 0 ? 0 : q * 9 * 5));
            if (q < 0)
                memcpy(whole, f.m.handles[0].activations.ids, sizeof(whole));
            else
                check_ids(&f, whole + q * 9 * 2);
            check_distinct(&f);
            teardown(&f);
        }
}

/* --- gradients, settings ---------------------------------------------------------------------- */

enum { G_SEQ = 6, G_EXPERTS = 5, G_N = 2 * G_SEQ };

/* The loss: an arbitrary function of the weights. */
static double loss(fixture *f, const double *logits, const double *factor)
{
    double sum = 0;

    forward(f, logits);
    for (int64_t i = 0; i < G_N * f->m.cols; i++)
        sum += factor[i] * get(f->m.handles[0].activations.weights, i);
    return sum;
}

static void check_gradient(fixture *f)
{
    double logits[G_N * G_EXPERTS], factor[G_N * 3], dlogits[G_N * G_EXPERTS];
    ek_moe_scratch scratch = {.dlogits = dlogits, .dweights = factor};
    const double h = 1e-6;

    f->m.scratch = &scratch;
    draw(logits, &f->spec, G_N, 1);
    for (int i = 0; i < G_N * 3; i++)
        factor[i] = ek_random_normal(6, 0, (uint64_t)i);
    loss(f, logits, factor);
    ek_gate_backward(&f->m, &f->micro, &f->m.handles[0].activations);
    for (int i = 0; i < G_N * G_EXPERTS; i++) {
        double keep = logits[i], up, down;

        logits[i] = keep + h;
        up = loss(f, logits, factor);
        logits[i] = keep - h;
        down = loss(f, logits, factor);
        logits[i] = keep;
        if (fabs((up - down) / (2 * h) - dlogits[i]) > 1e-8)
            EK_T_FAIL("logit %d: gradient %.12g, differences %.12g", i, dlogits[i],
                      (up - down) / (2 * h));
    }
}

static void gradients_are_differences(void)
{
    const unsigned char near[] = {1, 0, 0, 1, 1};
    ek_model_spec s = spec_of(EK_GATE_SOFTMAX, G_EXPERTS, 3);
    fixture f;

    mode = EK_MODE_FP64;
    isa = EK_ISA_REF;
    for (int i = 0; i < 4; i++) {
        s.gate.normalise = i % 2;
        if (i < 2)
            setup_as(&f, &s, &swipe, 2, G_SEQ);
        else
            setup_locality(&f, &s, 0.1, near, 2, G_SEQ);
        check_gradient(&f);
        teardown(&f);
    }
}

static void unsupported_gates_are_refused(void)
{
    ek_model_spec s = spec_of(EK_GATE_EXPERT_CHOICE, 4, 2);
    ek_moe_config cfg = {0};
    ek_trace replay = {0};

    CHECK(ek_reroute_check(&s, &cfg) == EK_OK);
    cfg.reroute = EK_REROUTE_SWIPE;
    CHECK(ek_reroute_check(&s, &cfg) == EK_EINVAL);
    s.gate.kind = EK_GATE_SIGMOID_BIAS;
    CHECK(ek_reroute_check(&s, &cfg) == EK_OK);
    s.gate.groups = s.gate.group_top = 2;
    CHECK(ek_reroute_check(&s, &cfg) == EK_EINVAL);
    s.gate.groups = s.gate.group_top = 0;
    cfg.force_balance = 1;
    CHECK(ek_reroute_check(&s, &cfg) == EK_EINVAL);
    cfg.force_balance = 0;
    cfg.replay = &replay;
    CHECK(ek_reroute_check(&s, &cfg) == EK_EINVAL);
    cfg.replay = NULL;
    cfg.reroute = EK_REROUTE_TOPOLOGY;
    cfg.reroute_limit = 1.5;
    CHECK(ek_reroute_check(&s, &cfg) == EK_EINVAL);
    cfg.reroute_limit = -0.01;
    CHECK(ek_reroute_check(&s, &cfg) == EK_EINVAL);
    cfg.reroute_limit = (double)NAN;
    CHECK(ek_reroute_check(&s, &cfg) == EK_EINVAL);
    cfg.reroute_limit = 1;
    CHECK(ek_reroute_check(&s, &cfg) == EK_OK);
}

ROUNDS(the_best_leave_the_node)
ROUNDS(limits_at_their_ends)
ROUNDS(only_training_reroutes)
ROUNDS(fewer_choices_in_a_step)
ROUNDS(with_a_bias)
ROUNDS(the_least_leave_their_expert)
ROUNDS(equal_scores_move_the_later_tokens)
ROUNDS(assignments_are_swapped)
ROUNDS(capacities_hold)
ROUNDS(balanced_loads_are_unchanged)
ROUNDS(sequences_are_apart)

static const ek_case cases[] = {
    EK_CASE(all_the_best_leave_the_node),
    EK_CASE(all_limits_at_their_ends),
    EK_CASE(all_only_training_reroutes),
    EK_CASE(all_fewer_choices_in_a_step),
    EK_CASE(all_with_a_bias),
    EK_CASE(all_the_least_leave_their_expert),
    EK_CASE(all_equal_scores_move_the_later_tokens),
    EK_CASE(all_assignments_are_swapped),
    EK_CASE(all_capacities_hold),
    EK_CASE(all_balanced_loads_are_unchanged),
    EK_CASE(all_sequences_are_apart),
    EK_CASE(gradients_are_differences),
    EK_CASE(unsupported_gates_are_refused),
};
EK_TEST_MAIN(cases)
