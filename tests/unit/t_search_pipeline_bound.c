/* A bound of a layout's whole pipeline (search/pipeline_bound.h) is at most its step, and with one
 * virtual stage close to it: drawn layouts of deep models on clusters with quick and slow links. So
 * are the bounds before it (search/evaluate.h) where policies keep several copies of experts. */
#include "base/random.h"
#include "ek_test.h"
#include "search/evaluate.h"
#include "search/pipeline_bound.h"
#include "toy_machine.h"
#include "train/simulate.h"

#include <math.h>
#include <unistd.h>

enum { RANKS = 16, NODE = 4, DRAWS = 200, SPEEDS = 14 };

static int drawn(int draw, int what, int below)
{
    return (int)(ek_random_bits(77, (uint64_t)draw, (uint64_t)what) % (uint64_t)below);
}

static int one_of(int draw, int what, const int *list, int n)
{
    return list[drawn(draw, what, n)];
}

/* Links are quicker or slower than computation by up to a thousand. */
static void draw_cluster(int draw, ek_cluster *c)
{
    static const double speed[] = {1e8, 1e9, 1e10, 1e11};

    memset(c, 0, sizeof(*c));
    (void)snprintf(c->name, sizeof(c->name), "toy");
    c->machine = toy_machine("bf16", 1e12, 1e11);
    c->n_levels = 2;
    c->level[0] = (ek_cluster_level){.name = "node",
                                     .ranks = NODE,
                                     .bytes_s = 1e10 * (1 + drawn(draw, 0, 4)),
                                     .latency_s = 2e-6,
                                     .rails = 1};
    c->level[1] = (ek_cluster_level){.name = "net",
                                     .ranks = RANKS,
                                     .bytes_s = speed[drawn(draw, 1, 4)],
                                     .latency_s = 8e-6,
                                     .rails = 1};
}

/* 24 layers; with 4096 words the head has the FLOPs of several. */
static void write_model(char *path, int words, int experts)
{
    static const char format[] =
        "{\"model_type\":\"mixtral\",\"vocab_size\":%d,\"hidden_size\":64,"
        "\"num_hidden_layers\":24,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
        "\"num_local_experts\":%d,\"num_experts_per_tok\":2,\"intermediate_size\":128,"
        "\"max_position_embeddings\":256}";
    int file = mkstemp(path);

    CHECK(file >= 0 && dprintf(file, format, words, experts) > 0 && close(file) == 0);
}

/* Some of these training refuses. */
static ek_train_config draw_layout(int draw, const char *model)
{
    static const int pp[] = {2, 2, 4, 8}, two[] = {1, 2}, four[] = {1, 2, 4};
    static const char *const recompute[] = {"off", "attention", "full"};
    static const char *const balance[] = {"auto", "auto", "auto", "auto", "replicate", "eplb"};
    ek_train_config c = EK_TRAIN_CONFIG_INIT;

    c.model = model;
    c.pp = one_of(draw, 2, pp, 4);
    c.chunks = one_of(draw, 3, four, 3);
    if (24 % (c.pp * c.chunks) != 0)
        c.chunks = 1;
    c.tp = one_of(draw, 4, two, 2);
    c.ep = one_of(draw, 5, two, 2);
    c.etp = 1;
    c.zero = drawn(draw, 6, 4);
    c.recompute = recompute[drawn(draw, 7, 3)];
    c.micro_batch = RANKS / c.pp / c.tp * one_of(draw, 8, two, 2);
    c.batch = c.micro_batch * (1 + drawn(draw, 9, 24));
    c.balance = balance[drawn(draw, 10, 6)];
    c.spare_slots = 1 + drawn(draw, 11, 4);
    return c;
}

/* 0: training refuses the layout. */
static double step_of(const ek_train_config *c, const ek_cluster *cluster)
{
    ek_simulation_config cfg = {.train = c, .cluster = cluster, .ranks = RANKS};
    ek_simulation *s = NULL;
    double step = 0;

    if (ek_simulate(&cfg, &s) == EK_OK)
        step = ek_simulation_result(s)->step_s;
    ek_simulation_close(&s);
    return step;
}

static void bounds_are_at_most_the_step(void)
{
    int node_of[RANKS], close_ones = 0, closest = 0, n = 0;
    int of_chunks[5] = {0}, of_zero[4] = {0};
    char path[2][32] = {"/tmp/ek-pipeline-XXXXXX", "/tmp/ek-pipeline-XXXXXX"};

    for (int r = 0; r < RANKS; r++)
        node_of[r] = r / NODE;
    write_model(path[0], 96, 8);
    write_model(path[1], 4096, 8);
    for (int draw = 0; draw < DRAWS; draw++) {
        ek_cluster cluster;
        ek_train_config c = draw_layout(draw, path[draw % 2]);
        ek_even_plans *plans = NULL;
        double step, bound = 0;

        draw_cluster(draw, &cluster);
        CHECK(ek_has_pipeline_bound(&c, c.batch));
        step = step_of(&c, &cluster);
        if (step <= 0)
            continue;
        CHECK_INT(ek_even_plans_open(&plans), EK_OK);
        CHECK_INT(ek_pipeline_bound(&(ek_imagined_world){RANKS, node_of, &cluster, NULL}, &c, plans,
                                    c.batch, &bound),
                  EK_OK);
        ek_even_plans_close(&plans);
        if (bound > step || bound < 0.2 * step)
            EK_T_FAIL("draw %d: pp %d chunks %d tp %d ep %d zero %d micro-batch %lld of %lld "
                      "recompute %s balance %s spare slots %d: bound %g, step %g",
                      draw, c.pp, c.chunks, c.tp, c.ep, c.zero, (long long)c.micro_batch,
                      (long long)c.batch, c.recompute, c.balance, c.spare_slots, bound, step);
        n++;
        of_chunks[c.chunks]++;
        of_zero[c.zero]++;
        close_ones += bound > 0.9 * step;
        closest += c.chunks == 1 && bound > 0.98 * step;
    }
    CHECK(n > DRAWS / 2 && close_ones > n / 2);
    CHECK(closest > of_chunks[1] / 2);
    CHECK(of_chunks[1] > 0 && of_chunks[2] > 0 && of_chunks[4] > 0);
    for (int z = 0; z < 4; z++)
        CHECK(of_zero[z] > n / 8);
    CHECK(unlink(path[0]) == 0 && unlink(path[1]) == 0);
}

/* Sums of a stage's other virtual stages, and weights that it still has, are no part of what
 * follows the last micro-batch: links of all speeds, from those that bound a step on. */
static void what_is_done_before_does_not_follow(void)
{
    int node_of[RANKS];
    char path[] = "/tmp/ek-pipeline-XXXXXX";

    for (int r = 0; r < RANKS; r++)
        node_of[r] = r / NODE;
    write_model(path, 96, 8);
    for (int i = 0; i < 2 * SPEEDS; i++) {
        ek_cluster cluster;
        ek_train_config c = draw_layout(0, path);
        double bound = 0, step;

        c.pp = 4;
        c.chunks = i < SPEEDS ? 2 : 3;
        c.tp = c.ep = 1;
        c.zero = i % 2 ? 3 : 1;
        c.recompute = "off";
        c.micro_batch = 4;
        c.batch = 16 * c.micro_batch;
        draw_cluster(0, &cluster);
        cluster.level[0].bytes_s = 1e11;
        cluster.level[1].bytes_s = 1e7 * pow(2, i % SPEEDS);
        step = step_of(&c, &cluster);
        CHECK_INT(ek_pipeline_bound(&(ek_imagined_world){RANKS, node_of, &cluster, NULL}, &c, NULL,
                                    c.batch, &bound),
                  EK_OK);
        if (bound > step || bound <= 0)
            EK_T_FAIL("chunks %d zero %d, %g bytes/s: bound %g, step %g", c.chunks, c.zero,
                      cluster.level[1].bytes_s, bound, step);
    }
    CHECK(unlink(path) == 0);
}

static void some_layouts_have_none(void)
{
    ek_train_config c = EK_TRAIN_CONFIG_INIT;

    c.micro_batch = 8;
    c.pp = 1;
    CHECK(!ek_has_pipeline_bound(&c, 32));
    c.pp = 2;
    CHECK(ek_has_pipeline_bound(&c, 32));
    CHECK(!ek_has_pipeline_bound(&c, 36)); /* the last micro-batch has less */
    c.pp_layers = "auto";
    CHECK(!ek_has_pipeline_bound(&c, 32));
}

/* A layout that training refuses keeps its bound, and the search goes on. */
static void a_refusal_keeps_the_bound(void)
{
    int node_of[RANKS];
    char path[] = "/tmp/ek-pipeline-XXXXXX";
    ek_cluster cluster;
    ek_train_config c;
    ek_search_setting s = {
        .train = &c, .cluster = &cluster, .ranks = RANKS, .node_of = node_of, .layers = 24};
    ek_search_layout l = {.bound = 1e-9, .refined = EK_REFINED_ENDS};
    ek_layout *choice = &l.choice;

    for (int r = 0; r < RANKS; r++)
        node_of[r] = r / NODE;
    write_model(path, 96, 8);
    draw_cluster(0, &cluster);
    c = draw_layout(0, path);
    c.balance = "auto";
    s.batch = c.batch = 64;
    *choice = (ek_layout){.value = {[EK_CHOICE_PP] = 4,
                                    [EK_CHOICE_CHUNKS] = 1,
                                    [EK_CHOICE_TP] = 1,
                                    [EK_CHOICE_EP] = 1,
                                    [EK_CHOICE_ETP] = 1,
                                    [EK_CHOICE_MICRO_BATCH] = 4}};
    CHECK_INT(ek_search_refine_pipeline(&s, &l), EK_OK);
    CHECK(l.bound > 1e-9 && l.refined == EK_REFINED);
    l.bound = 1e-9;
    choice->value[EK_CHOICE_EP] = 3;
    CHECK_INT(ek_search_refine_pipeline(&s, &l), EK_OK);
    CHECK(l.bound == 1e-9 && l.refined == EK_REFINED);
    CHECK(unlink(path) == 0);
}

/* --- bounds before that ----------------------------------------------------------------------- */

/* Policies that keep several copies of experts, some by --replicas-min, some as runs with --elastic
 * choose. */
static ek_train_config draw_copies(int draw, const char *model)
{
    static const int pp[] = {1, 1, 2, 4}, ep[] = {2, 2, 4, 8}, etp[] = {1, 1, 1, 2};
    static const char *const balance[] = {"eplb", "replicate", "auto", "auto", "auto", "auto"};
    ek_train_config c = draw_layout(draw, model);
    int policy = drawn(draw, 20, 6), stage;

    c.pp = one_of(draw, 21, pp, 4);
    c.chunks = c.pp > 1 ? 1 + drawn(draw, 22, 2) : 1;
    stage = RANKS / c.pp;
    c.etp = one_of(draw, 23, etp, 4);
    c.ep = one_of(draw, 24, ep, 4);
    c.ep = c.ep * c.etp > stage ? stage / c.etp : c.ep;
    c.tp = drawn(draw, 25, 2) + 1;
    c.micro_batch = stage / c.tp * (1 + drawn(draw, 26, 2));
    c.batch = c.micro_batch * (1 + drawn(draw, 27, 8));
    c.balance = balance[policy];
    c.replicas_min = policy == 2 ? 2 : drawn(draw, 28, 2);
    if (policy <= 2)
        return c;
    c.elastic = drawn(draw, 35, 2) ? EK_ELASTIC_BY_DEFAULT : 1;
    c.replicas_min = drawn(draw, 36, 4) == 0 ? 2 : 0;
    c.spare_slots = -1;
    c.ep = stage / c.etp < 8 ? stage / c.etp : 8; /* few groups, so that hosts have experts alone */
    c.batch = c.micro_batch * (1 + drawn(draw, 38, 48));
    return c;
}

static ek_layout layout_of(const ek_train_config *c, int zero, int recompute)
{
    return (ek_layout){.value = {[EK_CHOICE_PP] = c->pp,
                                 [EK_CHOICE_CHUNKS] = c->chunks,
                                 [EK_CHOICE_TP] = c->tp,
                                 [EK_CHOICE_EP] = c->ep,
                                 [EK_CHOICE_ETP] = c->etp,
                                 [EK_CHOICE_ZERO] = zero,
                                 [EK_CHOICE_MICRO_BATCH] = c->micro_batch,
                                 [EK_CHOICE_RECOMPUTE] = recompute}};
}

/* The bounds that a search has of a layout, one after the other; 0: training refuses it. */
static int check_bounds(const ek_search_setting *s, ek_search_layout *l, int draw)
{
    ek_search_layout simulated = *l, again = *l, refined = *l;
    double bound[3] = {l->bound};
    ek_search_setting tight = *s;

    if (s->train->elastic) /* copies may not fit */
        tight.memory = l->memory * (1 + 0.1 * drawn(draw, 37, 20));
    if (l->outcome != EK_OUTCOME_BOUND || ek_search_simulate(&tight, &simulated, 0) < 0)
        return 0;
    tight.plans = NULL; /* planned for this one alone */
    CHECK_INT(ek_search_simulate(&tight, &again, 0), EK_OK);
    CHECK(again.even_s == simulated.even_s);
    CHECK_INT(ek_search_refine(s, &refined, 1), EK_OK);
    bound[1] = refined.bound;
    CHECK_INT(ek_search_refine_pipeline(s, &refined), EK_OK);
    bound[2] = refined.bound;
    for (int i = 0; i < 3; i++) {
        char words[256];

        if (bound[i] > simulated.even_s * (1 + 1e-9))
            EK_T_FAIL("draw %d: %s of %lld, balance %s spare slots %d replicas min %d "
                      "elastic %d: bound %d is %g, step %g (%+.2f %%)",
                      draw, ek_layout_words(&l->choice, NULL, words, sizeof(words)),
                      (long long)s->batch, s->train->balance, s->train->spare_slots,
                      s->train->replicas_min, s->train->elastic, i, bound[i], simulated.even_s,
                      100 * (bound[i] / simulated.even_s - 1));
    }
    CHECK(bound[0] > 0);
    return 1;
}

/* Copies shorten exchanges: the tokens of a rank with a copy stay there. */
static void bounds_allow_for_copies(void)
{
    enum { COPIES_DRAWS = 240, ZEROS = 4, BESIDE = 2 * ZEROS };
    int node_of[RANKS], n = 0;
    char path[3][32] = {"/tmp/ek-pipeline-XXXXXX", "/tmp/ek-pipeline-XXXXXX",
                        "/tmp/ek-pipeline-XXXXXX"};
    char refusal[256];

    for (int r = 0; r < RANKS; r++)
        node_of[r] = r / NODE;
    write_model(path[0], 96, 8);
    write_model(path[1], 96, 12);
    write_model(path[2], 96, 32);
    for (int draw = 0; draw < COPIES_DRAWS; draw++) {
        ek_cluster cluster;
        ek_train_config c = draw_copies(draw, path[drawn(draw, 31, 3)]);
        ek_search_setting s = {.train = &c,
                               .cluster = &cluster,
                               .ranks = RANKS,
                               .node_of = node_of,
                               .layers = 24,
                               .layers_alike = drawn(draw, 29, 2),
                               .batch = c.batch};
        ek_search_layout l[BESIDE] = {{.bound = 0}};
        int chosen = drawn(draw, 30, BESIDE);

        CHECK_INT(ek_even_plans_open(&s.plans), EK_OK);
        draw_cluster(draw, &cluster);
        cluster.level[drawn(draw, 32, 2)].shared_by = 1 << drawn(draw, 33, 3);
        if (drawn(draw, 34, 4) == 0) { /* ranks share cores */
            cluster.machine.ranks = 2 * NODE;
            cluster.machine.rank_alone = 1.5;
        }
        for (int i = 0; i < BESIDE; i++)
            l[i].choice = layout_of(&c, i / 2, i % 2 * 2);
        CHECK_INT(ek_search_measure(&s, l, BESIDE, refusal, sizeof(refusal)), EK_OK);
        n += check_bounds(&s, &l[chosen], draw);
        n += check_bounds(&s, &l[0], draw);
        ek_even_plans_close(&s.plans);
    }
    CHECK(n > COPIES_DRAWS);
    for (int i = 0; i < 3; i++)
        CHECK(unlink(path[i]) == 0);
}

static const ek_case cases[] = {
    EK_CASE(bounds_are_at_most_the_step), EK_CASE(what_is_done_before_does_not_follow),
    EK_CASE(a_refusal_keeps_the_bound),   EK_CASE(some_layouts_have_none),
    EK_CASE(bounds_allow_for_copies),
};

EK_TEST_MAIN(cases)
