/* A bound of a layout's whole pipeline (search/pipeline_bound.h) is at most its step, and with one
 * virtual stage close to it: drawn layouts of deep models on clusters with quick and slow links. */
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
static void write_model(char *path, int words)
{
    static const char format[] =
        "{\"model_type\":\"mixtral\",\"vocab_size\":%d,\"hidden_size\":64,"
        "\"num_hidden_layers\":24,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
        "\"num_local_experts\":8,\"num_experts_per_tok\":2,\"intermediate_size\":128,"
        "\"max_position_embeddings\":256}";
    int file = mkstemp(path);

    CHECK(file >= 0 && dprintf(file, format, words) > 0 && close(file) == 0);
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

/* Whether steps under even loads may have several copies of experts. */
static int plans_copies(const ek_train_config *c)
{
    return strcmp(c->balance, "auto") != 0 && c->ep > 1;
}

static void bounds_are_at_most_the_step(void)
{
    int node_of[RANKS], close_ones = 0, closest = 0, none = 0, n = 0;
    int of_chunks[5] = {0}, of_zero[4] = {0};
    char path[2][32] = {"/tmp/ek-pipeline-XXXXXX", "/tmp/ek-pipeline-XXXXXX"};

    for (int r = 0; r < RANKS; r++)
        node_of[r] = r / NODE;
    write_model(path[0], 96);
    write_model(path[1], 4096);
    for (int draw = 0; draw < DRAWS; draw++) {
        ek_cluster cluster;
        ek_train_config c = draw_layout(draw, path[draw % 2]);
        double step, bound = 0;

        draw_cluster(draw, &cluster);
        CHECK(ek_has_pipeline_bound(&c, c.batch));
        step = step_of(&c, &cluster);
        if (step <= 0)
            continue;
        CHECK_INT(
            ek_pipeline_bound(&(ek_imagined_world){RANKS, node_of, &cluster}, &c, c.batch, &bound),
            EK_OK);
        if (bound > step || (bound < 0.2 * step && !plans_copies(&c)))
            EK_T_FAIL("draw %d: pp %d chunks %d tp %d ep %d zero %d micro-batch %lld of %lld "
                      "recompute %s balance %s spare slots %d: bound %g, step %g",
                      draw, c.pp, c.chunks, c.tp, c.ep, c.zero, (long long)c.micro_batch,
                      (long long)c.batch, c.recompute, c.balance, c.spare_slots, bound, step);
        if (bound <= 0) {
            none++;
            continue;
        }
        n++;
        of_chunks[c.chunks]++;
        of_zero[c.zero]++;
        close_ones += bound > 0.9 * step;
        closest += c.chunks == 1 && bound > 0.98 * step;
    }
    CHECK(n > DRAWS / 2 && close_ones > n / 2 && none > DRAWS / 20);
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
    write_model(path, 96);
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
        CHECK_INT(
            ek_pipeline_bound(&(ek_imagined_world){RANKS, node_of, &cluster}, &c, c.batch, &bound),
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
    write_model(path, 96);
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

static const ek_case cases[] = {
    EK_CASE(bounds_are_at_most_the_step),
    EK_CASE(what_is_done_before_does_not_follow),
    EK_CASE(a_refusal_keeps_the_bound),
    EK_CASE(some_layouts_have_none),
};

EK_TEST_MAIN(cases)
