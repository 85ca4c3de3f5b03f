/* A search finds what simulating every layout finds (search/search.h), with memory as simulations
 * have it, and bounds that no step is below. */
#include "ek_test.h"
#include "search/search.h"
#include "toy_machine.h"

#include <stdlib.h>
#include <unistd.h>

enum { RANKS = 8 };

/* Nodes of 4 ranks; products at 1 TFLOP/s. */
static void set_cluster(ek_cluster *c)
{
    memset(c, 0, sizeof(*c));
    (void)snprintf(c->name, sizeof(c->name), "toy");
    c->machine = toy_machine("bf16", 1e12, 1e11);
    c->n_levels = 2;
    c->level[0] = (ek_cluster_level){
        .name = "node", .ranks = 4, .bytes_s = 1e10, .latency_s = 2e-6, .rails = 1};
    c->level[1] = (ek_cluster_level){
        .name = "net", .ranks = 64, .bytes_s = 1e9, .latency_s = 8e-6, .rails = 1};
}

/* Adapters that ranks share, so that flow and replay differ. */
static void set_shared_cluster(ek_cluster *c)
{
    set_cluster(c);
    c->level[0].bytes_s *= 0.1;
    c->level[1].bytes_s *= 0.1;
    c->level[1].shared_by = 4;
    c->machine.ranks = RANKS;
    c->machine.rank_alone = 2.5;
}

static ek_train_config small_run(void)
{
    ek_train_config c = EK_TRAIN_CONFIG_INIT;

    c.model = "small";
    c.batch = 32;
    return c;
}

/* What the cases below search: many rounds of simulations, if all are simulated. */
static const char *const some = "etp=1,etp=2,zero=0,zero=1,zero=3,micro-batch=8,micro-batch=32";

static ek_search *search_for(ek_search_config *cfg)
{
    ek_search *s = NULL;
    ek_status st = ek_search_run(cfg, &s);

    if (st < 0) {
        EK_T_FAIL("%s", ek_err_message());
        ek_search_close(&s);
    }
    return s;
}

static double best_step(const ek_search *s, int64_t index)
{
    return index >= 0 ? s->layouts[index].step_s : 0;
}

static void compare_answers(const ek_search *quick, const ek_search *all)
{
    CHECK_INT(quick->n, all->n);
    CHECK_INT(quick->n_best, all->n_best);
    for (int64_t i = 0; i < all->n_best && i < quick->n_best; i++)
        CHECK_INT(quick->best[i], all->best[i]);
    CHECK_INT(quick->n_corners, all->n_corners);
    for (int i = 0; i < all->n_corners && i < quick->n_corners; i++) {
        const ek_search_corner *a = &quick->corners[i], *b = &all->corners[i];

        CHECK(a->choice == b->choice && a->value == b->value && a->least == b->least);
        CHECK(best_step(quick, a->best) == best_step(all, b->best));
    }
}

/* Bounds of layouts that come to the front alone are refined, and only grow by that. */
static void check_refinement(const ek_search *quick, const ek_search *all)
{
    int64_t refined = 0, zero_grows = 0;

    for (int64_t i = 0; i < all->n; i++) {
        const ek_search_layout *q = &quick->layouts[i], *a = &all->layouts[i];

        CHECK(a->refined && q->bound > 0 && q->bound <= a->bound);
        refined += q->refined > 0;
        zero_grows += !q->refined && q->bound < a->bound;
    }
    CHECK(refined < all->n && zero_grows > 0);
}

static void check_bounds(const ek_search *all)
{
    for (int64_t i = 0; i < all->n; i++) {
        const ek_search_layout *l = &all->layouts[i];
        char words[256];

        if (l->outcome == EK_OUTCOME_SIMULATED && l->bound > l->even_s * (1 + 1e-9))
            EK_T_FAIL("%s: bound %g, step %g",
                      ek_layout_words(&l->choice, NULL, words, sizeof(words)), l->bound, l->even_s);
    }
}

static void what_is_found_is_what_simulating_all_finds(void)
{
    ek_train_config train = small_run();
    ek_cluster cluster;
    ek_search_config cfg = {
        .train = &train, .cluster = &cluster, .ranks = RANKS, .fix = some, .top = 5};
    ek_search *quick, *all;

    set_cluster(&cluster);
    quick = search_for(&cfg);
    cfg.everything = 1;
    all = search_for(&cfg);
    if (quick != NULL && all != NULL) {
        double worst = 0;

        CHECK_INT(all->count[EK_OUTCOME_SIMULATED], all->n);
        compare_answers(quick, all);
        check_refinement(quick, all);
        CHECK(quick->count[EK_OUTCOME_SIMULATED] < all->n / 2); /* the bound was at work */
        for (int64_t i = 0; i < all->n; i++)
            worst = fmax(worst, all->layouts[i].step_s);
        check_bounds(all);
        CHECK(worst > 2 * all->layouts[all->best[0]].step_s); /* there was something to choose */
    }
    ek_search_close(&quick);
    ek_search_close(&all);
}

/* Policies that keep several copies of experts, and runs that choose them to survive. */
static void copies_do_not_hide_the_best(void)
{
    static const char *const balance[] = {"replicate", "eplb", "auto", "auto"};
    ek_cluster cluster;

    set_cluster(&cluster);
    for (int i = 0; i < 4; i++) {
        ek_train_config train = small_run();
        ek_search_config cfg = {.train = &train,
                                .cluster = &cluster,
                                .ranks = RANKS,
                                .fix = "etp=1,zero=0,zero=1,micro-batch=8,micro-batch=32",
                                .top = 5};
        ek_search *quick, *all;

        train.balance = balance[i];
        train.replicas_min = i == 2 ? 2 : 0;
        train.elastic = i == 3;
        quick = search_for(&cfg);
        cfg.everything = 1;
        all = search_for(&cfg);
        if (quick != NULL && all != NULL) {
            compare_answers(quick, all);
            check_bounds(all);
            CHECK(quick->count[EK_OUTCOME_SIMULATED] < all->count[EK_OUTCOME_SIMULATED] / 2);
        }
        ek_search_close(&quick);
        ek_search_close(&all);
    }
}

/* Stages and experts as these hosts have them, whatever the nodes of the cluster. */
static ek_search_config on_two_hosts(const ek_train_config *train, const ek_cluster *c)
{
    static const int host_of[RANKS] = {0, 0, 0, 0, 1, 1, 1, 1};

    return (ek_search_config){.train = train,
                              .cluster = c,
                              .ranks = RANKS,
                              .host_of = host_of,
                              .fix = "etp=1,tp=1,zero=0,micro-batch=8,micro-batch=32,recompute=off",
                              .top = 5};
}

/* Steps and memory have the copies; how many layouts have some. */
static int compare_with_copies(const ek_search *with, const ek_search *without)
{
    int n = 0;

    CHECK_INT(with->n, without->n);
    for (int64_t i = 0; i < with->n; i++) {
        const ek_search_layout *a = &with->layouts[i], *b = &without->layouts[i];

        CHECK(a->copies == 0 || a->choice.value[EK_CHOICE_PP] > 1);
        if (a->copies <= 0)
            continue;
        n++;
        CHECK(a->memory >= a->copies && a->memory > b->memory + 0.9 * a->copies);
        CHECK(a->even_s > b->even_s);
    }
    return n;
}

static void stages_on_one_host_have_copies(void)
{
    ek_train_config train = small_run(), plain = train;
    ek_cluster cluster, one_node;
    ek_search_config cfg = on_two_hosts(&train, &one_node);
    ek_search *quick, *all, *without;

    train.elastic = 1;
    set_cluster(&cluster);
    one_node = cluster;
    one_node.level[0].ranks = RANKS;
    quick = search_for(&cfg);
    cfg.everything = 1;
    all = search_for(&cfg);
    cfg.train = &plain;
    without = search_for(&cfg);
    if (quick != NULL && all != NULL && without != NULL) {
        compare_answers(quick, all);
        check_bounds(all);
        CHECK(compare_with_copies(all, without) > 4);
    }
    ek_search_close(&quick);
    ek_search_close(&all);
    ek_search_close(&without);
}

/* The only layouts are pipelines, of two hosts. */
static void copies_without_room_are_the_reason(void)
{
    ek_train_config train = small_run();
    ek_cluster cluster;
    ek_search_config cfg = on_two_hosts(&train, &cluster);
    ek_search *any, *tight = NULL;
    const ek_search_layout *least = NULL;

    train.elastic = 1;
    set_cluster(&cluster);
    cfg.fix = "pp=2,ep=1,etp=1,tp=1,zero=0,micro-batch=8,micro-batch=32,recompute=off";
    any = search_for(&cfg);
    for (int64_t i = 0; any != NULL && i < any->n; i++)
        if (least == NULL || any->layouts[i].memory < least->memory)
            least = &any->layouts[i];
    if (least != NULL) {
        cfg.memory = least->memory - 0.5 * least->copies;
        CHECK_INT(ek_search_run(&cfg, &tight), EK_ENOMEM);
        CHECK(strstr(ek_err_message(), "B of it for a copy of what one host alone would have") !=
              NULL);
        ek_search_close(&tight);
        cfg.fix = "pp=1,pp=2,ep=1,etp=1,tp=1,zero=0,zero=3,micro-batch=8,recompute=off";
        tight = search_for(&cfg);
        CHECK(tight == NULL || (tight->n_no_room_for_copies > 0 &&
                                tight->n_no_room_for_copies < tight->count[EK_OUTCOME_TOO_MUCH]));
    }
    ek_search_close(&tight);
    ek_search_close(&any);
}

/* Stages of the best layout; *copies: bytes of it that are copies. */
static int64_t best_stages(ek_search_config *cfg, const ek_train_config *train, double *copies)
{
    ek_search *s;
    int64_t stages = 0;

    cfg->train = train;
    s = search_for(cfg);
    if (s != NULL) {
        const ek_search_layout *l = &s->layouts[s->best[0]];

        stages = l->choice.value[EK_CHOICE_PP];
        *copies = l->copies;
    }
    ek_search_close(&s);
    return stages;
}

/* A stage's copies are its gradients once more: what other layouts send more has to be more. */
static void pipelines_with_copies_are_chosen_where_they_pay(void)
{
    ek_train_config train = small_run(), plain = train;
    ek_cluster cluster;
    ek_search_config cfg = on_two_hosts(&train, &cluster);
    double copies;

    train.elastic = 1;
    set_cluster(&cluster);
    cluster.level[1].bytes_s = 1e7;
    CHECK_INT(best_stages(&cfg, &train, &copies), 2);
    CHECK(copies > 0);
    cluster.level[1].bytes_s = 1e9;
    CHECK_INT(best_stages(&cfg, &plain, &copies), 2);
    CHECK(copies == 0);
    CHECK_INT(best_stages(&cfg, &train, &copies), 1);
}

/* Of layers enough for a few of them to be laid out.  With 4096 words the head has the FLOPs of
 * several layers. */
static const char *write_deep_model(char *path, int words)
{
    static const char format[] =
        "{\"model_type\":\"mixtral\",\"vocab_size\":%d,\"hidden_size\":64,"
        "\"num_hidden_layers\":12,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
        "\"num_local_experts\":8,\"num_experts_per_tok\":2,\"intermediate_size\":128,"
        "\"max_position_embeddings\":256}";
    int file = mkstemp(path);

    CHECK(file >= 0 && dprintf(file, format, words) > 0 && close(file) == 0);
    return path;
}

/* Whether a layout's memory is that of another search of all layers, but for tables. */
static int has_memory_of(const ek_search_layout *a, const ek_search_layout *all)
{
    return a->outcome == EK_OUTCOME_SIMULATED || fabs(a->memory - all->memory) < 4096;
}

#define DEEP "etp=1,zero=0,zero=2,zero=3,micro-batch=8,micro-batch=32,recompute=off,recompute=full"

enum { DEEP_LAYERS = 12, EVERY = 4 };

/* A layout's bound by its two ends, all of whose layers are laid out. */
static double bound_of_all_layers(const ek_search_config *cfg, const ek_search_layout *l)
{
    int node_of[RANKS] = {0, 0, 0, 0, 1, 1, 1, 1};
    ek_search_setting s = {.train = cfg->train,
                           .cluster = cfg->cluster,
                           .ranks = RANKS,
                           .node_of = node_of,
                           .layers = DEEP_LAYERS,
                           .batch = cfg->train->batch};
    ek_search_layout of = {.choice = l->choice, .outcome = EK_OUTCOME_BOUND};

    CHECK_INT(ek_search_refine(&s, &of, 1), EK_OK);
    return of.bound;
}

/* Layouts of the deep model, of which few layers are laid out if they are cut into stages evenly.
 */
static void search_deep_model(int words, const char *pp_layers, const char *fix)
{
    char path[] = "/tmp/ek-search-XXXXXX";
    ek_train_config train = EK_TRAIN_CONFIG_INIT;
    ek_cluster cluster;
    ek_search_config cfg = {
        .train = &train, .cluster = &cluster, .ranks = RANKS, .fix = fix, .top = 5};
    ek_search *quick, *all;

    train.model = write_deep_model(path, words);
    train.batch = 32;
    train.pp_layers = pp_layers;
    set_cluster(&cluster);
    quick = search_for(&cfg);
    cfg.everything = 1;
    all = search_for(&cfg);
    if (quick != NULL && all != NULL) {
        int64_t tight = 0, seen = 0, few = strcmp(pp_layers, "even") == 0;

        compare_answers(quick, all);
        CHECK(!few || quick->count[EK_OUTCOME_SIMULATED] < all->n / 2);
        for (int64_t i = 0; i < all->n; i++) {
            const ek_search_layout *q = &quick->layouts[i], *a = &all->layouts[i];

            CHECK(has_memory_of(q, a));
            CHECK(q->bound > 0 && q->bound <= a->bound && a->bound <= a->even_s * (1 + 1e-9));
            if (!few || i % EVERY != 0 || q->refined != EK_NOT_REFINED)
                continue;
            seen++;
            tight += q->bound > 0.95 * bound_of_all_layers(&cfg, a);
        }
        CHECK(!few || (seen > 0 && tight > seen / 4));
    }
    ek_search_close(&quick);
    ek_search_close(&all);
    CHECK(unlink(path) == 0);
}

static void few_layers_tell_what_all_do(void)
{
    search_deep_model(96, "even", DEEP);
}

/* By their FLOPs, and, of the layouts without stages, by a list. */
static void layers_that_are_not_cut_evenly_are_all_laid_out(void)
{
    search_deep_model(4096, "auto", DEEP);
    search_deep_model(4096, "12", DEEP ",pp=1");
}

/* By flow, where the ranks of a node share an adapter and cores: how much longer the step of the
 * best layout is than the shortest of all; and of what replay says is best. */
static double regret_of(const ek_search *all, ek_search_setting *s, double *by_replay)
{
    double best = INFINITY, chosen = 0, replay = INFINITY, of_replay = 0;

    s->engine = EK_ENGINE_FLOW;
    for (int64_t i = 0; i < all->n; i++) {
        ek_search_layout l = all->layouts[i];

        if (l.outcome != EK_OUTCOME_SIMULATED)
            continue;
        CHECK_INT(ek_search_simulate(s, &l, 0), EK_OK);
        CHECK(l.by_flow && (!all->layouts[i].by_flow || l.step_s == all->layouts[i].step_s));
        best = fmin(best, l.step_s);
        if (i == all->best[0])
            chosen = l.step_s;
        if (all->layouts[i].even_s < replay) {
            replay = all->layouts[i].even_s;
            of_replay = l.step_s;
        }
    }
    *by_replay = of_replay / best - 1;
    return chosen / best - 1;
}

static void the_best_are_simulated_by_flow(void)
{
    ek_train_config train = small_run();
    ek_cluster cluster;
    int node_of[RANKS] = {0, 0, 0, 0, 1, 1, 1, 1};
    ek_search_config cfg = {.train = &train,
                            .cluster = &cluster,
                            .ranks = RANKS,
                            .fix = "etp=1,zero=0,zero=1,micro-batch=8,micro-batch=32",
                            .top = 5,
                            .everything = 1};
    ek_search_setting setting = {
        .train = &train, .cluster = &cluster, .ranks = RANKS, .node_of = node_of, .batch = 32};
    ek_search *s;

    set_shared_cluster(&cluster);
    s = search_for(&cfg);
    if (s != NULL) {
        double by_replay, regret = regret_of(s, &setting, &by_replay);

        CHECK(s->n_flow > s->n_best);
        for (int64_t i = 0; i < s->n_best; i++) {
            CHECK(s->layouts[s->best[i]].by_flow);
            CHECK(i == 0 || s->layouts[s->best[i]].step_s >= s->layouts[s->best[i - 1]].step_s);
        }
        CHECK(regret == 0 && by_replay > 0.01);
    }
    ek_search_close(&s);
}

static int is_in_pool(const ek_search *s, int64_t index)
{
    for (int64_t i = 0; i < s->n_pool; i++)
        if (s->pool[i] == index)
            return 1;
    return 0;
}

/* Whether another layout, simulated by flow, has neither a longer step nor more memory. */
static int is_beaten_by_flow(const ek_search *s, int64_t index)
{
    const ek_search_layout *l = &s->layouts[index];

    for (int64_t i = 0; i < s->n; i++) {
        const ek_search_layout *x = &s->layouts[i];

        if (i != index && x->by_flow && x->step_s <= l->step_s && x->memory <= l->memory)
            return 1;
    }
    return 0;
}

/* Whether another layout has, by replay, neither a longer step nor more memory. */
static int is_beaten_by_replay(const ek_search *s, int64_t index)
{
    const ek_search_layout *l = &s->layouts[index];

    for (int64_t i = 0; i < s->n; i++) {
        const ek_search_layout *x = &s->layouts[i];

        if (i != index && x->outcome == EK_OUTCOME_SIMULATED && x->even_s <= l->even_s &&
            x->memory <= l->memory)
            return 1;
    }
    return 0;
}

static void a_pool_is_of_one_engine(void)
{
    ek_train_config train = small_run();
    ek_cluster cluster;
    ek_search_config cfg = {
        .train = &train, .cluster = &cluster, .ranks = RANKS, .fix = some, .top = 1};
    ek_search *s;

    set_shared_cluster(&cluster);
    s = search_for(&cfg);
    if (s != NULL) {
        CHECK(s->n_pool > 2 && s->pool[0] == s->best[0]);
        for (int64_t i = 0; i < s->n_pool; i++)
            CHECK(s->layouts[s->pool[i]].by_flow);
        for (int64_t i = 0; i < s->n; i++) {
            if (s->layouts[i].outcome == EK_OUTCOME_SIMULATED && !is_beaten_by_replay(s, i))
                CHECK(s->layouts[i].by_flow);
            if (s->layouts[i].by_flow && !is_beaten_by_flow(s, i))
                CHECK(is_in_pool(s, i));
        }
    }
    ek_search_close(&s);
}

static void measured_memory_is_that_of_the_simulation(void)
{
    ek_train_config train = small_run();
    ek_cluster cluster;
    int node_of[RANKS] = {0, 0, 0, 0, 1, 1, 1, 1};
    ek_search_setting s = {.train = &train,
                           .cluster = &cluster,
                           .ranks = RANKS,
                           .node_of = node_of,
                           .layers = 4,
                           .batch = 32};
    static const ek_layout some_layouts[] = {
        {{1, 1, 1, 8, 1, 0, 32, 0}}, {{1, 1, 2, 4, 2, 2, 8, 2}}, {{2, 2, 1, 4, 1, 3, 16, 1}},
        {{4, 1, 2, 2, 1, 1, 8, 0}},  {{4, 1, 1, 1, 1, 0, 4, 2}},
    };

    set_cluster(&cluster);
    for (size_t i = 0; i < sizeof(some_layouts) / sizeof(some_layouts[0]); i++) {
        ek_search_layout l = {.choice = some_layouts[i]};
        char refusal[256];
        double measured;

        CHECK_INT(ek_search_measure(&s, &l, 1, refusal, sizeof(refusal)), EK_OK);
        measured = l.memory;
        CHECK(measured > 1e6);
        CHECK_INT(ek_search_simulate(&s, &l, 0), EK_OK);
        CHECK(fabs(l.memory - measured) < 1);
    }
}

static void what_does_not_fit_is_not_chosen(void)
{
    ek_train_config train = small_run();
    ek_cluster cluster;
    ek_search_config cfg = {
        .train = &train, .cluster = &cluster, .ranks = RANKS, .fix = some, .top = 3};
    ek_search *any, *tight;

    set_cluster(&cluster);
    any = search_for(&cfg);
    if (any == NULL)
        return;
    cfg.memory = any->layouts[any->best[0]].memory - 1;
    tight = search_for(&cfg);
    if (tight != NULL) {
        CHECK(tight->layouts[any->best[0]].outcome == EK_OUTCOME_TOO_MUCH);
        CHECK(tight->count[EK_OUTCOME_TOO_MUCH] > 0);
        for (int64_t i = 0; i < tight->n_best; i++)
            CHECK(tight->layouts[tight->best[i]].memory <= cfg.memory);
        CHECK(best_step(tight, tight->best[0]) >= best_step(any, any->best[0]));
        for (int64_t i = 1; i < tight->n_pool; i++) {
            CHECK(tight->layouts[tight->pool[i]].memory <
                  tight->layouts[tight->pool[i - 1]].memory);
            CHECK(best_step(tight, tight->pool[i]) >= best_step(tight, tight->pool[i - 1]));
        }
    }
    ek_search_close(&tight);
    ek_search_close(&any);
}

static void nothing_fits_says_what_the_smallest_needs(void)
{
    ek_train_config train = small_run();
    ek_cluster cluster;
    ek_search_config cfg = {
        .train = &train, .cluster = &cluster, .ranks = RANKS, .fix = some, .top = 3};
    ek_search *s = NULL;

    set_cluster(&cluster);
    cfg.memory = 1e6;
    CHECK_INT(ek_search_run(&cfg, &s), EK_ENOMEM);
    CHECK(strstr(ek_err_message(), "fits in 1.00 MB") != NULL);
    CHECK(strstr(ek_err_message(), "the smallest needs") != NULL);
    CHECK(strstr(ek_err_message(), "--zero 3") != NULL);
    ek_search_close(&s);
}

static void refusals_of_training_are_the_message_if_all_are_refused(void)
{
    ek_train_config train = small_run();
    ek_cluster cluster;
    ek_search_config cfg = {.train = &train,
                            .cluster = &cluster,
                            .ranks = RANKS,
                            .fix = "pp=1,etp=2,zero=1,micro-batch=32",
                            .top = 3};
    ek_search *s = NULL;

    set_cluster(&cluster);
    train.adaptive_r = "3";
    CHECK_INT(ek_search_run(&cfg, &s), EK_EINVAL);
    CHECK(strstr(ek_err_message(), "--adaptive-r 3") != NULL);
    ek_search_close(&s);
    train.adaptive_r = "etp";
    cfg.ranks = 65;
    CHECK_INT(ek_search_run(&cfg, &s), EK_EINVAL);
    CHECK(strstr(ek_err_message(), "--ranks 65") != NULL);
    ek_search_close(&s);
}

/* As training does: the stages of the others are not as many. */
static void a_list_of_layers_leaves_layouts_with_as_many_stages(void)
{
    ek_train_config train = small_run();
    ek_cluster cluster;
    ek_search_config cfg = {.train = &train, .cluster = &cluster, .ranks = RANKS, .fix = some};
    ek_search *s;
    int64_t simulated = 0;

    set_cluster(&cluster);
    cfg.top = 1;
    train.pp_layers = "3,1";
    s = search_for(&cfg);
    for (int64_t i = 0; s != NULL && i < s->n; i++) {
        const ek_search_layout *l = &s->layouts[i];
        const int64_t *v = l->choice.value;
        int fits = v[EK_CHOICE_PP] * v[EK_CHOICE_CHUNKS] == 2;

        simulated += l->outcome == EK_OUTCOME_SIMULATED;
        CHECK(fits == (l->outcome != EK_OUTCOME_REFUSED));
    }
    CHECK(simulated > 0);
    ek_search_close(&s);
    train.pp_layers = "1,2,1";
    CHECK_INT(ek_search_run(&cfg, &s), EK_EINVAL);
    CHECK(strstr(ek_err_message(), "--pp-layers 1,2,1 is of 3 stages") != NULL);
    ek_search_close(&s);
}

static const ek_case cases[] = {
    EK_CASE(what_is_found_is_what_simulating_all_finds),
    EK_CASE(copies_do_not_hide_the_best),
    EK_CASE(stages_on_one_host_have_copies),
    EK_CASE(copies_without_room_are_the_reason),
    EK_CASE(pipelines_with_copies_are_chosen_where_they_pay),
    EK_CASE(few_layers_tell_what_all_do),
    EK_CASE(layers_that_are_not_cut_evenly_are_all_laid_out),
    EK_CASE(the_best_are_simulated_by_flow),
    EK_CASE(a_pool_is_of_one_engine),
    EK_CASE(measured_memory_is_that_of_the_simulation),
    EK_CASE(what_does_not_fit_is_not_chosen),
    EK_CASE(nothing_fits_says_what_the_smallest_needs),
    EK_CASE(a_list_of_layers_leaves_layouts_with_as_many_stages),
    EK_CASE(refusals_of_training_are_the_message_if_all_are_refused),
};
EK_TEST_MAIN(cases)
