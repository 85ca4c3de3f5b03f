/* A distributed MoE layer against the same layer on one rank: outputs, all gradients and
 * statistics, for every layout of experts over up to six ranks. */
#include "moe_ranks.h"

static void as_it_is(scenario *s, const result *one, int i)
{
    (void)i;
    check(s, one);
}

static void every_layout_of_up_to_six_ranks(void)
{
    each_layout(plain(), as_it_is);
}

/* Chunks by tokens (more than there are tokens of a rank) and by distance, over each algorithm. */
static void in_chunks(scenario *s, const result *one, int i)
{
    static const int degrees[] = {1, 2, 3, 4, 17}, groups[] = {1, 2, 3, 4, 9};

    for (int j = i; j < i + 2; j++) {
        s->cfg = (ek_moe_config){.degree = degrees[j % 5], .a2a = (ek_a2a)(j % 3)};
        s->recompute = j % 2;
        check(s, one);
        s->cfg = (ek_moe_config){.smart_group = groups[j % 5], .a2a = (ek_a2a)((j + 1) % 3)};
        check(s, one);
    }
}

static void chunks_by_tokens_and_by_distance(void)
{
    each_layout(plain(), in_chunks);
}

/* Exchange settings that vary with the layout, for cases that test something else. */
static void mixed(scenario *s, const result *one, int i)
{
    s->cfg.degree = 1 + i % 3;
    s->cfg.smart_group = i % 4 == 3 ? 1 + i % 3 : 0;
    s->cfg.a2a = (ek_a2a)(i % 3);
    s->recompute = i % 5 == 0;
    check(s, one);
}

/* With tensor parallelism; its size varies over the layouts of a number of ranks. */
static void tensor_parallel(scenario *s, const result *one, int i)
{
    static const int sizes[RANKS_MAX + 1][3] = {{1, 1, 1}, {1, 1, 1}, {2, 2, 1}, {3, 3, 1},
                                                {2, 4, 2}, {5, 5, 1}, {2, 3, 6}};

    s->sizes.tp = sizes[s->ranks][i % 3];
    mixed(s, one, i);
    s->sizes.tp = 1;
}

static void tokens_shared_by_tensor_parallel_ranks(void)
{
    each_layout(plain(), tensor_parallel);
}

/* Capacity needs whole sequences, which tensor parallel ranks split. */
static void capacity(void)
{
    scenario s = plain();
    result one;

    s.capacity_factor = 0.9;
    s.spec.gate.jitter = 0.2; /* depends on the position in the sequence */
    run_alone(&s, &one);
    CHECK(one.dropped > 0);
    drop(&one);
    each_layout(s, tensor_parallel);
}

static void experts_that_choose(void)
{
    scenario s = plain();

    s.spec.gate.kind = EK_GATE_EXPERT_CHOICE;
    s.spec.gate.normalise = 0;
    each_layout(s, tensor_parallel);
}

static void sigmoid_groups_and_noise(void)
{
    scenario s = plain();

    s.spec.experts = 6;
    s.spec.gate.kind = EK_GATE_SIGMOID_BIAS;
    s.spec.gate.groups = 3;
    s.spec.gate.group_top = 2;
    s.spec.gate.scale = 1.5;
    s.spec.gate.jitter = 0.2;
    each_layout(s, mixed);
}

/* k below the model's, as it changes from step to step; noise. */
static void fewer_choices(void)
{
    scenario s = plain();

    s.spec.top_k = 3;
    s.spec.gate.normalise = 0;
    s.spec.gate.jitter = 0.2;
    s.top_k = 1;
    each_layout(s, tensor_parallel);
}

/* All tokens go to one expert, and so to one rank: the memory for the worst case is used up. */
static void one_expert_takes_all(void)
{
    scenario s = plain();
    result one;

    s.collapse = 1;
    s.spec.top_k = s.top_k = 1;
    s.spec.gate.normalise = 0;
    run_alone(&s, &one);
    CHECK_INT(one.load[2], tokens_of(&s));
    drop(&one);
    each_layout(s, mixed);
}

static void one_expert(void)
{
    scenario s = plain();

    s.spec.experts = s.spec.top_k = s.top_k = 1;
    s.spec.gate.normalise = 0;
    each_layout(s, mixed);
}

/* Some shards of an expert have width 0. */
static void more_shards_than_width(void)
{
    scenario s = plain();

    s.spec.ff = 3;
    each_layout(s, mixed);
}

static void ranks_without_tokens(void)
{
    scenario s = plain();

    s.seqs[0] = 1; /* five of six ranks have no tokens */
    s.seqs[1] = 2;
    each_layout(s, in_chunks);
}

static void forced_balance(void)
{
    scenario s = plain();
    result one;

    s.cfg.force_balance = 1;
    s.seq = 5;
    run_alone(&s, &one);
    for (int e = 0; e < 5; e++)
        CHECK_INT(one.load[e], 18); /* 45 tokens, two choices, 5 experts */
    drop(&one);
    each_layout(s, tensor_parallel);
    s.spec.gate.kind = EK_GATE_EXPERT_CHOICE;
    s.spec.gate.normalise = 0;
    each_layout(s, mixed);
}

static void replayed_loads(void)
{
    enum { SOURCES = 2, EXPERTS = 5 };
    static const unsigned char numbers[SOURCES * EXPERTS] = {20, 1, 9, 0, 10, 0, 0, 2, 2, 1};
    static const ek_trace trace = {.data = numbers,
                                   .width = 1,
                                   .iterations = 1,
                                   .layers = 1,
                                   .sources = SOURCES,
                                   .experts = EXPERTS};
    scenario s = plain();
    result one;

    s.cfg.replay = &trace;
    run_alone(&s, &one);
    CHECK(one.load[0] > 0 && one.load[3] > 0 && one.load[3] < one.load[2]);
    CHECK_INT(one.load[0] + one.load[1] + one.load[2] + one.load[3] + one.load[4],
              tokens_of(&s) * s.top_k);
    drop(&one);
    each_layout(s, tensor_parallel);
    s.capacity_factor = 0.9; /* drops replayed assignments; the load counts them */
    run_alone(&s, &one);
    CHECK(one.dropped > 0);
    drop(&one);
    each_layout(s, tensor_parallel);
    s.capacity_factor = 0;
    s.spec.gate.kind = EK_GATE_EXPERT_CHOICE;
    s.spec.gate.normalise = 0;
    each_layout(s, mixed);
}

/* Other types of rows and of the R behind them; an odd width misaligns these. */
static void other_types(void)
{
    static const ek_mode modes[] = {EK_MODE_FP32, EK_MODE_BF16};

    for (int i = 0; i < 2; i++) {
        scenario s = plain();

        s.mode = modes[i];
        s.spec.hidden = 7;
        each_layout(s, mixed);
    }
}

static const ek_case cases[] = {
    EK_CASE(every_layout_of_up_to_six_ranks),
    EK_CASE(chunks_by_tokens_and_by_distance),
    EK_CASE(tokens_shared_by_tensor_parallel_ranks),
    EK_CASE(capacity),
    EK_CASE(experts_that_choose),
    EK_CASE(sigmoid_groups_and_noise),
    EK_CASE(fewer_choices),
    EK_CASE(one_expert_takes_all),
    EK_CASE(one_expert),
    EK_CASE(more_shards_than_width),
    EK_CASE(ranks_without_tokens),
    EK_CASE(forced_balance),
    EK_CASE(replayed_loads),
    EK_CASE(other_types),
};
EK_TEST_MAIN(cases)
