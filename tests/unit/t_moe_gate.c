/* The gates against cases computed by hand: top-k and ties, weights, capacity, groups, expert
 * choice, bias update, noise, losses.  Every case runs in double, in float, and on the fast
 * kernels. */
#include "gate_fixture.h"

static void ties_go_to_the_lower_expert(void)
{
    const double logits[] = {0, 0, 0, 0, 0, 1, 2, 1, 2, 1, -3, 5, -3, 5, 5, -1, -2, -1, -1, -2};
    const int32_t want[] = {0, 1, 2, 1, 3, 0, 1, 3, 4, 0, 2, 3};
    ek_model_spec s = spec_of(EK_GATE_SOFTMAX, 5, 3);
    fixture f;

    setup(&f, &s, 1, 4);
    forward(&f, logits);
    check_ids(&f, want);
    teardown(&f);
}

static void weights_are_probabilities(void)
{
    const double logits[] = {log(1), log(2), log(5), log(4), log(3), log(1), log(1), log(3)};
    ek_model_spec s = spec_of(EK_GATE_SOFTMAX, 4, 2);
    fixture f;

    setup(&f, &s, 1, 2);
    forward(&f, logits);
    check_ids(&f, (const int32_t[]){2, 3, 0, 3});
    CHECK_REAL(weight(&f, 0, 0), 5.0 / 12);
    CHECK_REAL(weight(&f, 0, 1), 4.0 / 12);
    CHECK_REAL(weight(&f, 1, 0), 3.0 / 8);
    CHECK_REAL(weight(&f, 1, 1), 3.0 / 8);
    for (int t = 0; t < 8; t++)
        CHECK_REAL(get(f.m.handles[0].activations.probs, t), exp(logits[t]) / (t < 4 ? 12 : 8));
    CHECK_REAL(get(f.m.handles[0].activations.lse, 0), log(12));
    f.spec.gate.normalise = 1;
    forward(&f, logits);
    CHECK_REAL(weight(&f, 0, 0), 5.0 / 9);
    CHECK_REAL(weight(&f, 0, 1), 4.0 / 9);
    CHECK_REAL(weight(&f, 1, 0), 0.5);
    f.spec.gate.scale = 2.5;
    forward(&f, logits);
    CHECK_REAL(weight(&f, 0, 1), 2.5 * 4 / 9);
    teardown(&f);
}

/* With top-1 and normalisation a weight is exactly 1. */
static void a_single_choice_weighs_one(void)
{
    ek_model_spec s = spec_of(EK_GATE_SOFTMAX, 3, 1);
    double logits[3 * 20];
    fixture f;

    s.gate.normalise = 1;
    for (int i = 0; i < 60; i++)
        logits[i] = sin(7.0 * i) * 3;
    setup(&f, &s, 1, 20);
    forward(&f, logits);
    for (int t = 0; t < 20; t++)
        CHECK(weight(&f, t, 0) == 1.0);
    teardown(&f);
}

static void fewer_choices_in_a_step(void)
{
    ek_model_spec s = spec_of(EK_GATE_SOFTMAX, 4, 3);
    fixture f;

    s.gate.normalise = 1;
    setup(&f, &s, 1, 1);
    f.step.top_k = 2;
    forward(&f, (const double[]){log(1), log(2), log(5), log(4)});
    check_ids(&f, (const int32_t[]){2, 3, -1});
    CHECK_REAL(weight(&f, 0, 0), 5.0 / 9);
    CHECK(weight(&f, 0, 2) == 0);
    CHECK_INT(f.m.stats.load[1], 0);
    CHECK_INT(f.m.handles[0].activations.assigned, 2);
    teardown(&f);
}

/* --- capacity --------------------------------------------------------------------------------- */

/* Logits of two experts; `first` has probability p. */
static void pair(double *logits, int first, double p)
{
    logits[first] = log(p);
    logits[1 - first] = log(1 - p);
}

/* 6 tokens, 2 experts, top-1, f = 1: capacity 3.  Expert 0 has 5 tokens in the first sequence: it
 * drops the lowest weight, and the later of the two that tie for the next.  The second sequence
 * has its own capacity. */
static void capacity_drops_the_lowest(double factor)
{
    const double first[] = {0.7, 0.9, 0.6, 0, 0.7, 0.95}, second[] = {0.6, 0, 0.6, 0, 0.6, 0};
    const int32_t want[] = {0, 0, -2, 1, -2, 0, 0, 1, 0, 1, 0, 1};
    ek_model_spec s = spec_of(EK_GATE_SOFTMAX, 2, 1);
    double logits[24];
    fixture f;

    for (int t = 0; t < 12; t++) {
        double p = t < 6 ? first[t] : second[t - 6];

        pair(logits + 2 * t, p > 0 ? 0 : 1, p > 0 ? p : 0.8);
    }
    setup(&f, &s, 2, 6);
    f.step.capacity_factor = factor;
    forward(&f, logits);
    check_ids(&f, want);
    CHECK_INT(f.m.stats.dropped, 2);
    CHECK_INT(f.m.stats.load[0], 8); /* before drops */
    CHECK_INT(f.m.stats.load[1], 4);
    CHECK_REAL(weight(&f, 0, 0), 0.7); /* not normalised again after drops */
    teardown(&f);
}

static void capacity_is_the_same_either_way(void)
{
    capacity_drops_the_lowest(1.0);
    capacity_drops_the_lowest(-1.0);
}

static void equal_weights_lose_the_later_tokens(void)
{
    ek_model_spec s = spec_of(EK_GATE_SOFTMAX, 2, 1);
    double logits[20];
    fixture f;

    for (int t = 0; t < 10; t++)
        pair(logits + 2 * t, 1, 0.75);
    setup(&f, &s, 1, 10);
    f.step.capacity_factor = 0.7; /* ceil(3.5) */
    forward(&f, logits);
    check_ids(&f, (const int32_t[]){1, 1, 1, 1, -3, -3, -3, -3, -3, -3});
    CHECK_INT(f.m.stats.dropped, 6);
    teardown(&f);
}

/* C = ceil(k f T / E), counted by sending all tokens to the same experts. */
static void capacity_is_rounded_up(void)
{
    const struct {
        int64_t experts, top_k, seq;
        double factor;
        int64_t places;
    } table[] = {{4, 2, 5, 1.1, 3}, {8, 1, 3, 0.1, 1}, {4, 1, 8, 1, 2},
                 {4, 1, 9, 1, 3},   {3, 2, 9, 1, 6},   {5, 3, 7, 0.5, 3}};

    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        ek_model_spec s = spec_of(EK_GATE_SOFTMAX, table[i].experts, table[i].top_k);
        double logits[MAX_TOKENS * 8];
        int64_t kept = 0;
        fixture f;

        for (int64_t j = 0; j < table[i].seq * table[i].experts; j++)
            logits[j] = -(double)(j % table[i].experts);
        setup(&f, &s, 1, table[i].seq);
        f.step.capacity_factor = table[i].factor;
        forward(&f, logits);
        for (int64_t j = 0; j < table[i].seq * table[i].top_k; j++)
            kept += f.m.handles[0].activations.ids[j] == 0;
        CHECK_INT(kept, table[i].places);
        CHECK_INT(f.m.stats.dropped, table[i].top_k * (table[i].seq - table[i].places));
        teardown(&f);
    }
}

/* Drops do not depend on how sequences are split into micro-batches. */
static void drops_do_not_depend_on_micro_batches(void)
{
    ek_model_spec s = spec_of(EK_GATE_SOFTMAX, 4, 2);
    double logits[4 * 4 * 9];
    int32_t whole[4 * 9 * 2];
    fixture f;

    for (int i = 0; i < 4 * 4 * 9; i++)
        logits[i] = sin(3.7 * i) * 2 - i % 4;
    setup(&f, &s, 4, 9);
    f.step.capacity_factor = 0.6;
    forward(&f, logits);
    memcpy(whole, f.m.handles[0].activations.ids, sizeof(whole));
    CHECK(f.m.stats.dropped > 0);
    teardown(&f);
    for (int q = 0; q < 4; q++) {
        setup(&f, &s, 1, 9);
        f.step.capacity_factor = 0.6;
        forward(&f, logits + (ptrdiff_t)q * 4 * 9);
        check_ids(&f, whole + (ptrdiff_t)q * 9 * 2);
        teardown(&f);
    }
}

/* --- groups, expert choice, bias -------------------------------------------------------------- */

/* A group's score is its best expert's: the group with the 6 wins, though others sum to more. */
static void softmax_groups_score_by_their_best(void)
{
    ek_model_spec s = spec_of(EK_GATE_SOFTMAX, 6, 2);
    fixture f;

    s.gate.groups = 3;
    s.gate.group_top = 1;
    setup(&f, &s, 1, 2);
    forward(&f, (const double[]){log(5), log(5), log(6), log(0.5), log(1), log(4), log(2), log(9),
                                 log(9), log(2), log(8), log(8)});
    check_ids(&f, (const int32_t[]){2, 3, 1, 0}); /* tie of groups: the lower one */
    CHECK_REAL(weight(&f, 0, 1), 0.5 / 21.5);
    teardown(&f);
    s.gate.group_top = 2;
    setup(&f, &s, 1, 1);
    forward(&f, (const double[]){log(1), log(3), log(6), log(0.5), log(1), log(2)});
    check_ids(&f, (const int32_t[]){2, 1});
    teardown(&f);
}

static double logit(double p)
{
    return log(p / (1 - p));
}

/* A group's score is the sum of its best two: 0.5 + 0.5 beats 0.8 + 0.1. */
static void sigmoid_groups_score_by_their_best_two(void)
{
    ek_model_spec s = spec_of(EK_GATE_SIGMOID_BIAS, 6, 2);
    fixture f;

    s.gate.groups = 2;
    s.gate.group_top = 1;
    setup(&f, &s, 1, 1);
    forward(&f, (const double[]){logit(0.8), logit(0.1), logit(0.05), logit(0.3), logit(0.5),
                                 logit(0.5)});
    check_ids(&f, (const int32_t[]){4, 5});
    CHECK_REAL(weight(&f, 0, 0), 0.5);
    teardown(&f);
}

static void the_bias_is_for_the_choice_alone(void)
{
    ek_model_spec s = spec_of(EK_GATE_SIGMOID_BIAS, 3, 1);
    fixture f;

    setup(&f, &s, 1, 1);
    set(f.w.bias.p, 2, 0.5);
    forward(&f, (const double[]){logit(0.6), logit(0.2), logit(0.3)});
    check_ids(&f, (const int32_t[]){2});
    CHECK_REAL(weight(&f, 0, 0), 0.3);
    set(f.w.bias.p, 2, 0.25);
    forward(&f, (const double[]){logit(0.6), logit(0.2), logit(0.3)});
    check_ids(&f, (const int32_t[]){0});
    teardown(&f);
}

static void feedback_is_against_the_load(void)
{
    ek_model_spec s = spec_of(EK_GATE_SIGMOID_BIAS, 4, 1);
    const int64_t load[] = {5, 1, 3, 3};
    const double want[] = {-0.25, 0.25, 0, 0};
    fixture f;

    s.gate.bias_rate = 0.25;
    setup(&f, &s, 1, 1);
    set(f.w.bias.p, 0, 0.125);
    memcpy(f.m.stats.load, load, sizeof(load));
    ek_gate_set_feedback(&f.m);
    for (int e = 0; e < 4; e++)
        CHECK_REAL(get(f.w.bias.g, e), want[e]);
    memcpy(f.m.stats.load, (const int64_t[]){1, 0, 0, 0},
           sizeof(load)); /* the mean is not an integer */
    ek_gate_set_feedback(&f.m);
    for (int e = 0; e < 4; e++)
        CHECK_REAL(get(f.w.bias.g, e), e == 0 ? -0.25 : 0.25);
    CHECK_REAL(get(f.w.bias.p, 0), 0.125); /* the optimizer adds it */
    teardown(&f);
    s.gate.kind = EK_GATE_SOFTMAX; /* it has no bias */
    setup(&f, &s, 1, 1);
    ek_gate_set_feedback(&f.m);
    teardown(&f);
}

/* 4 tokens, 2 experts, k = 1: each takes 2 tokens of each sequence; one token is chosen twice, one
 * not at all; ties go to the earlier token. */
static void experts_choose_tokens(void)
{
    ek_model_spec s = spec_of(EK_GATE_EXPERT_CHOICE, 2, 1);
    double logits[16];
    fixture f;

    pair(logits, 0, 0.6);
    pair(logits + 2, 0, 0.9);
    pair(logits + 4, 0, 0.3);
    pair(logits + 6, 0, 0.7);
    for (int t = 4; t < 8; t++)
        pair(logits + (ptrdiff_t)2 * t, 0, 0.5);
    setup(&f, &s, 2, 4);
    forward(&f, logits);
    check_ids(&f, (const int32_t[]){-1, 1, 0, -1, -1, 1, 0, -1, 0, 1, 0, 1, -1, -1, -1, -1});
    CHECK_REAL(weight(&f, 0, 1), 0.4);
    CHECK_REAL(weight(&f, 1, 0), 0.9);
    CHECK(weight(&f, 1, 1) == 0);
    CHECK_INT(f.m.stats.load[0], 4);
    CHECK_INT(f.m.stats.dropped, 0);
    f.step.capacity_factor = 1.5; /* 3 tokens an expert */
    forward(&f, logits);
    check_ids(&f, (const int32_t[]){0, 1, 0, -1, -1, 1, 0, 1, 0, 1, 0, 1, 0, 1, -1, -1});
    teardown(&f);
}

/* --- noise ------------------------------------------------------------------------------------ */

enum { NOISY = 4 * 5 * 3 }; /* sequences, tokens, experts */

/* Probabilities of `seqs` sequences from `first` on, under noise, all logits 1. */
static void noisy(double *out, int64_t first, int64_t seqs, uint64_t seed, uint64_t step,
                  int training, int layer)
{
    ek_model_spec s = spec_of(EK_GATE_SOFTMAX, 3, 1);
    double logits[NOISY];
    fixture f;

    for (int i = 0; i < NOISY; i++)
        logits[i] = 1;
    s.gate.jitter = 0.25;
    setup(&f, &s, seqs, 5);
    f.w.layer = layer;
    f.micro.first_sequence = (uint64_t)first;
    f.step.seed = seed;
    f.step.step = step;
    f.step.training = training;
    forward(&f, logits);
    for (int64_t i = 0; i < seqs * 15; i++)
        out[i] = get(f.m.handles[0].activations.probs, i);
    teardown(&f);
}

static void noise_does_not_depend_on_micro_batches(void)
{
    double whole[NOISY], parts[NOISY];

    noisy(whole, 0, 4, 7, 3, 1, 1);
    noisy(parts, 0, 1, 7, 3, 1, 1);
    noisy(parts + 15, 1, 2, 7, 3, 1, 1);
    noisy(parts + 45, 3, 1, 7, 3, 1, 1);
    CHECK(memcmp(whole, parts, sizeof(whole)) == 0);
}

static void noise_differs_everywhere_else(void)
{
    double base[NOISY], other[NOISY];
    int same = 0;

    noisy(base, 0, 4, 7, 3, 1, 1);
    for (int i = 0; i < NOISY; i++) {
        CHECK(fabs(log(base[i] * 3)) <= 0.5 + 1e-6 && fabs(base[i] - 1.0 / 3) > 1e-9);
        for (int j = 0; j < i; j++)
            same += base[i] == base[j];
    }
    CHECK(same <= 1);
    noisy(other, 0, 4, 8, 3, 1, 1);
    CHECK(memcmp(base, other, sizeof(base)) != 0);
    noisy(other, 0, 4, 7, 4, 1, 1);
    CHECK(memcmp(base, other, sizeof(base)) != 0);
    noisy(other, 0, 4, 7, 3, 1, 2);
    CHECK(memcmp(base, other, sizeof(base)) != 0);
    noisy(other, 0, 4, 7, 3, 0, 1);
    for (int i = 0; i < NOISY; i++) /* no noise outside training */
        CHECK_REAL(other[i], 1.0 / 3);
}

/* --- losses ----------------------------------------------------------------------------------- */

static void losses_by_hand(void)
{
    const double p[2][2] = {{0.75, 0.25}, {0.9, 0.1}};
    const double even[2][2] = {{0.75, 0.25}, {0.25, 0.75}};
    ek_model_spec s = spec_of(EK_GATE_SOFTMAX, 2, 1);
    double logits[4];
    fixture f;

    for (int i = 0; i < 4; i++)
        logits[i] = log(p[i / 2][i % 2]) + 2; /* logsumexp 2 */
    setup(&f, &s, 1, 2);
    f.micro.share = 0.5;
    forward(&f, logits);
    CHECK_REAL(f.m.stats.aux_loss, 0.5 * 2 * (0.75 + 0.9) / 2); /* all assignments to expert 0 */
    CHECK_REAL(f.m.stats.z_loss, 0.5 * 4);
    for (int i = 0; i < 4; i++)
        logits[i] = log(even[i / 2][i % 2]) - 3;
    forward(&f, logits); /* adds to the sums of the step */
    CHECK_REAL(f.m.stats.aux_loss, 0.5 * 1.65 + 0.5);
    CHECK_REAL(f.m.stats.z_loss, 0.5 * 4 + 0.5 * 9);
    CHECK_INT(f.m.stats.load[0], 3);
    CHECK_INT(f.m.stats.load[1], 1);
    teardown(&f);
}

ROUNDS(ties_go_to_the_lower_expert)
ROUNDS(weights_are_probabilities)
ROUNDS(a_single_choice_weighs_one)
ROUNDS(fewer_choices_in_a_step)
ROUNDS(capacity_is_the_same_either_way)
ROUNDS(equal_weights_lose_the_later_tokens)
ROUNDS(capacity_is_rounded_up)
ROUNDS(drops_do_not_depend_on_micro_batches)
ROUNDS(softmax_groups_score_by_their_best)
ROUNDS(sigmoid_groups_score_by_their_best_two)
ROUNDS(the_bias_is_for_the_choice_alone)
ROUNDS(feedback_is_against_the_load)
ROUNDS(experts_choose_tokens)
ROUNDS(noise_does_not_depend_on_micro_batches)
ROUNDS(noise_differs_everywhere_else)
ROUNDS(losses_by_hand)

static const ek_case cases[] = {
    EK_CASE(all_ties_go_to_the_lower_expert),
    EK_CASE(all_weights_are_probabilities),
    EK_CASE(all_a_single_choice_weighs_one),
    EK_CASE(all_fewer_choices_in_a_step),
    EK_CASE(all_capacity_is_the_same_either_way),
    EK_CASE(all_equal_weights_lose_the_later_tokens),
    EK_CASE(all_capacity_is_rounded_up),
    EK_CASE(all_drops_do_not_depend_on_micro_batches),
    EK_CASE(all_softmax_groups_score_by_their_best),
    EK_CASE(all_sigmoid_groups_score_by_their_best_two),
    EK_CASE(all_the_bias_is_for_the_choice_alone),
    EK_CASE(all_feedback_is_against_the_load),
    EK_CASE(all_experts_choose_tokens),
    EK_CASE(all_noise_does_not_depend_on_micro_batches),
    EK_CASE(all_noise_differs_everywhere_else),
    EK_CASE(all_losses_by_hand),
};
EK_TEST_MAIN(cases)
