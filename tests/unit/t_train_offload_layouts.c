/* Any layout whose experts' masters and moments are on disk trains as one rank does in memory, with
 * transient replicas too, and checkpoints pass between the two: a sample of layouts, drawn by the
 * seed EK_TEST_SEED (1). EK_TEST_ONLY=i runs only layout i of each case.  Ranks are threads. */
#include "equal_threads.h"

enum { SECONDS = 900 };
enum { RANDOM = 1, EXACT = EQUAL_EXACT }; /* in equal_planners */

/* Random replicas and quotas, with no copy beside its primary. */
static ek_status replicas_elsewhere(void *memory, const ek_plan_limits *l, const int64_t *counts,
                                    ek_plan *p)
{
    EK_TRY(random_transient(memory, l, counts, p));
    for (int32_t s = 0; s < l->ranks * l->slots; s++) {
        int32_t e = p->placement.expert_of[s], primary = e >= 0 ? p->placement.primary[e] : s;

        if (primary == s || primary / l->slots != s / l->slots)
            continue;
        p->quota[primary] += p->quota[s];
        p->quota[s] = 0;
        p->placement.expert_of[s] = -1;
    }
    return EK_OK;
}

static const ek_planner elsewhere = {.name = "random, elsewhere",
                                     .what = "anything",
                                     .reserve = random_take,
                                     .plan_transient = replicas_elsewhere};

/* The drawn layout with experts on disk, whose primaries stay. */
static equal_layout on_disk(equal_layout l, int i)
{
    l.gather = 0;
    l.balance = i % 3 == 0 ? 0 : i % 2 ? EXACT : RANDOM;
    l.planner = l.balance == RANDOM ? &elsewhere : NULL;
    l.entries = 3 + i % 5;
    l.forms = i % 4 * 5;
    l.offload = 1 + i % 2;
    return l;
}

/* An expert that there is none of. */
static ek_status no_such_expert(void *memory, const ek_plan_limits *l, const int64_t *counts,
                                ek_plan *p)
{
    (void)memory;
    (void)counts;
    for (int32_t s = 0; s < l->ranks * l->slots; s++)
        if (p->placement.expert_of[s] < 0)
            p->placement.expert_of[s] = l->experts + 100000000;
    return EK_OK;
}

static const ek_planner wild = {.name = "wild",
                                .what = "a plan that must be refused",
                                .reserve = random_take,
                                .plan_transient = no_such_expert};

static void run(int ranks, int count)
{
    alarm(SECONDS);
    equal_check_drawn(ranks, count, on_disk);
}

static void one_rank(void)
{
    run(1, 4);
}

static void two_ranks(void)
{
    run(2, EQUAL_MODELS);
}

static void four_ranks(void)
{
    run(4, EQUAL_MODELS);
}

static void ranks_that_nothing_divides(void)
{
    run(3, EQUAL_MODELS / 2);
    run(6, EQUAL_MODELS / 4);
}

/* Routing in which the odd experts have tokens for five steps, then the others. */
static const ek_trace *turns(int64_t layers)
{
    enum { STEPS = 10, LAYERS = 4, EXPERTS = 5 };
    static unsigned char loads[STEPS][LAYERS][EXPERTS];

    for (int i = 0; i < STEPS; i++)
        for (int l = 0; l < LAYERS; l++)
            for (int e = 0; e < EXPERTS; e++)
                loads[i][l][e] = (unsigned char)((i / 5 + l + e) % 2 * (1 + e));
    static ek_trace t = {.data = loads[0][0],
                         .width = 1,
                         .iterations = STEPS,
                         .layers = LAYERS,
                         .sources = 1,
                         .experts = EXPERTS};

    CHECK_INT(layers, LAYERS);
    return &t;
}

/* Updates of experts that one rank has, and no token chooses, are put off. */
static void experts_that_rest(void)
{
    static const int ranks[] = {2, 4, 2, 4, 3, 4};
    static equal_result result[EQUAL_RANKS_MAX];

    alarm(SECONDS);
    for (int i = EK_T_SLOW; i < (int)(sizeof(ranks) / sizeof(ranks[0])); i += 1 + EK_T_SLOW) {
        equal_layout l = equal_draw(1, ranks[i], i);

        l.model = 0;
        l.model_chunks = 1;
        l.ep = ranks[i] / l.pp / l.etp;
        l = on_disk(l, i);
        l.entries = 4 + i; /* with three none rest */
        l.planner = NULL;  /* random replicas leave no expert without rows */
        l.balance = i % 2 ? EXACT : 0;
        l.replay = turns(equal_layers(l.model));
        equal_check_into(&l, result);
        for (int r = 0; r < ranks[i]; r++)
            if (result[r].deferred == 0)
                EK_T_FAIL("%s: rank %d puts no update off", equal_text(&l), r);
    }
}

/* A hidden size of 2 over 4 or 8 shards: most ranks have rows of experts, but no weights. */
static void shards_of_experts_may_be_empty(void)
{
    alarm(SECONDS);
    for (int i = 0; i < 4; i++) {
        equal_layout l = {.model = 12,
                          .shape = i,
                          .ranks = 8,
                          .pp = 1,
                          .model_chunks = 1,
                          .tp = 2,
                          .ep = 1 + i % 2,
                          .etp = i % 2 ? 4 : 8,
                          .zero = i,
                          .degree = 1 + i,
                          .recompute = (ek_recompute)(i % 3)};

        l = on_disk(l, i);
        l.planner = NULL;
        l.balance = i % 2 ? EXACT : 0;
        if (!EK_T_SLOW || i == 3)
            equal_check(&l);
    }
}

/* Saved from disk and loaded into memory, and the other way round. */
static void checkpoints_pass_between_disk_and_memory(void)
{
    static const int ranks[][2] = {{4, 1}, {2, 3}, {1, 4}, {2, 2}, {1, 1}, {4, 4}};
    int n = (int)(sizeof(ranks) / sizeof(ranks[0])), only = equal_number("EK_TEST_ONLY", -1);
    uint64_t seed = (uint64_t)equal_number("EK_TEST_SEED", 1);

    alarm(SECONDS);
    for (int i = 0; i < n; i++) {
        equal_layout a = on_disk(equal_draw(seed, ranks[i][0], i), i), b;

        if (only >= 0 ? only != i : EK_T_SLOW && i % 2 == 0)
            continue;
        for (int j = i;; j += 1000) {
            b = equal_draw(seed + 1, ranks[i][1], j);
            b.model = a.model;
            b.shape = a.shape;
            b.mode = a.mode;
            if (equal_legal(&b))
                break;
        }
        if (i % 3 == 1)
            b = on_disk(b, i + 1);
        equal_check_pair(i % 2 ? &b : &a, i % 2 ? &a : &b, 1 + i);
    }
}

/* --- gradients on disk of experts that several ranks hold ------------------------------------- */

/* Where experts' state and gradients are (equal_layout.offload): with buckets of a layer, and of an
 * expert. */
enum { IN_MEMORY, STATE_ON_DISK, ALL_ON_DISK, WAYS, PLACES = 2 * WAYS };

static equal_layout in_place(equal_layout l, int place)
{
    l.offload = place % WAYS;
    l.bucket_bytes = place < WAYS ? 1 << 20 : 1;
    return l;
}

/* A layout in which several ranks hold the same experts; half of them without evaluations, which
 * change what memory holds. */
static equal_layout shared_layout(int ranks, int i)
{
    equal_layout l = equal_draw(5, ranks, i);

    if (ranks / l.pp == l.ep * l.etp) {
        l.pp = l.model_chunks = l.etp = 1;
        l.ep = ranks > 2 && ranks % 2 == 0 ? 1 + i % 2 : 1;
    }
    l = on_disk(l, i);
    l.zero = (i + i / 4) % 4;
    l.blind = i / 4 % 2;
    return l;
}

static void compare_bits(const equal_layout *l, const equal_result *a, const equal_result *b)
{
    for (int s = 0; s < equal_steps_of(l->mode); s++)
        if (memcmp(&a->loss[s], &b->loss[s], sizeof(double)) != 0 ||
            memcmp(&a->norm[s], &b->norm[s], sizeof(double)) != 0 ||
            memcmp(&a->eval[s], &b->eval[s], sizeof(double)) != 0) {
            EK_T_FAIL("%s: step %d: loss %.17g, norm %.17g; another place gives %.17g, %.17g",
                      equal_text(l), s, a->loss[s], a->norm[s], b->loss[s], b->norm[s]);
            return;
        }
}

/* Steps move what was planned; more with gradients. */
static void compare_traffic(const equal_layout *l, const equal_result of[PLACES])
{
    for (int i = 0; i < PLACES; i++) {
        if (i % WAYS == IN_MEMORY) {
            CHECK(of[i].written == 0);
            continue;
        }
        CHECK(of[i].planned.written_bytes > 0);
        CHECK(of[i].written > of[i - 1].written);
        if (l->blind && memcmp(&of[i].planned, &of[i].took, sizeof(of[i].took)) != 0)
            EK_T_FAIL("%s, place %d: planned %.0f bytes read, %.0f written; took %.0f, %.0f",
                      equal_text(l), i, of[i].planned.read_bytes, of[i].planned.written_bytes,
                      of[i].took.read_bytes, of[i].took.written_bytes);
    }
}

/* Wherever state and gradients are, the bits are the same. */
static void gradients_of_shared_experts_on_disk_are_the_same_bits(void)
{
    static const int ranks[] = {2, 4, 3, 4, 3, 2, 4, 6};
    static equal_result result[PLACES][EQUAL_RANKS_MAX];
    int only = equal_number("EK_TEST_ONLY", -1);

    alarm(2 * SECONDS);
    for (int i = 0; i < (int)(sizeof(ranks) / sizeof(ranks[0])); i++) {
        equal_layout l = shared_layout(ranks[i], i);

        CHECK(ranks[i] / l.pp > l.ep * l.etp);
        if (only < 0 ? !equal_takes(ranks[i], i) : only != i)
            continue;
        for (int place = 0; place < PLACES; place++) {
            equal_layout here = in_place(l, place);

            equal_check_into(&here, result[place]);
            for (int r = 0; r < ranks[i] && place % WAYS != IN_MEMORY; r++)
                compare_bits(&here, &result[place][r], &result[place - 1][r]);
        }
        for (int r = 0; r < ranks[i]; r++) {
            equal_result of[PLACES];

            for (int place = 0; place < PLACES; place++)
                of[place] = result[place][r];
            compare_traffic(&l, of);
        }
    }
}

/* Each chunk of rows takes the experts of a layer in turn: as often as there are chunks, by tokens
 * or by distance, and with the bits of as many chunks in memory. */
static void chunks_take_experts_in_turn(void)
{
    static const int degrees[] = {1, 3, 2, 1}, groups[] = {0, 0, 0, 2}, chunks[] = {1, 3, 2, 2};
    static equal_result memory[EQUAL_RANKS_MAX], disk[EQUAL_RANKS_MAX];
    double uses = 0;

    alarm(SECONDS);
    for (int i = 0; i < 4 - 2 * EK_T_SLOW; i++) {
        equal_layout l = equal_draw(3, 4, 1);

        l.model = 0;
        l.pp = l.model_chunks = l.tp = l.etp = 1;
        l.ep = 2;
        l.zero = i;
        l.recompute = EK_RECOMPUTE_OFF;
        l = on_disk(l, 2 * i); /* with random replicas, but once */
        l.degree = degrees[i];
        l.group = groups[i];
        l = in_place(l, WAYS + IN_MEMORY);
        equal_check_into(&l, memory);
        l = in_place(l, WAYS + STATE_ON_DISK + i % 2);
        equal_check_into(&l, disk);
        for (int r = 0; r < l.ranks; r++)
            compare_bits(&l, &disk[r], &memory[r]);
        uses = i == 0 ? disk[0].planned.uses : uses;
        CHECK(uses > 0);
        if (i % 2 == 0)
            CHECK_INT((int64_t)disk[0].planned.uses, chunks[i] * (int64_t)uses);
        else /* gradients on disk are a use of their own, for all chunks */
            CHECK_INT(2 * (int64_t)disk[0].planned.uses, (2 * chunks[i] + 1) * (int64_t)uses);
    }
}

/* Training goes on without a planner whose plans are out of range. */
static void plans_out_of_range_are_refused(void)
{
    static equal_result result[EQUAL_RANKS_MAX];
    equal_layout l = equal_draw(1, 2, 0);

    alarm(SECONDS);
    l.model = 0;
    l.pp = l.tp = l.etp = l.model_chunks = 1;
    l.ep = 2;
    l.zero = 0;
    l = on_disk(l, 0);
    l.balance = EXACT;
    l.planner = &wild;
    equal_check_into(&l, result);
    CHECK_INT(result[0].replicas, 0);
}

static const ek_case cases[] = {
    EK_CASE(one_rank),
    EK_CASE(two_ranks),
    EK_CASE(four_ranks),
    EK_CASE(ranks_that_nothing_divides),
    EK_CASE(plans_out_of_range_are_refused),
    EK_CASE(chunks_take_experts_in_turn),
    EK_CASE(experts_that_rest),
    EK_CASE(shards_of_experts_may_be_empty),
    EK_CASE(gradients_of_shared_experts_on_disk_are_the_same_bits),
    EK_CASE(checkpoints_pass_between_disk_and_memory),
};

EK_TEST_MAIN(cases)
