/* Calibration with tiny budgets, on one rank and on several that are threads: results are positive,
 * equal bit for bit on all ranks, and cover the existing link classes; cached results are found
 * again, and an unreadable or unwritable cache does no harm.  No speed is asserted. */
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/threads.h"
#include "ek_test.h"
#include "machine_fixture.h"
#include "tensor/select/select.h"
#include "train/calibrate/calibrate_priv.h"

#include <pthread.h>
#include <sched.h>

enum { RANKS_MAX = 5 };

static char warning[512];

static void on_plan(void *context, ek_log_level level, const char *component, const char *message)
{
    (void)context;
    if (level == EK_LOG_WARN && strcmp(component, "train") == 0)
        snprintf(warning, sizeof(warning), "%s", message);
}

static ek_model_spec model(void)
{
    ek_model_spec s;

    ek_model_default(&s);
    s.hidden = 12;
    s.ff = 7;
    s.experts = 5;
    s.top_k = 2;
    return s;
}

typedef struct {
    ek_comm *world;
    const int *nodes; /* NULL: one */
    ek_mode mode;
    ek_model_spec spec;
    double budget;
    const char *cache;
    int anew;
    double kernels_s;
    int once;
    int64_t training_rows;
    ek_machine m;
    int cached;
    ek_status st;
    char text[512];
    pthread_t thread;
} rank;

static void *work(void *arg)
{
    rank *r = arg;
    ek_kernels *k = NULL;
    ek_calibrate_config cfg = {.spec = &r->spec,
                               .world = r->world,
                               .budget_s = r->budget,
                               .cache = r->cache,
                               .anew = r->anew,
                               .kernels_s = r->kernels_s,
                               .kernels_once = r->once,
                               .training_rows = r->training_rows,
                               .training_seq = 8};

    memset(&r->m, 0x55, sizeof(r->m));
    r->cached = -1;
    if (r->nodes != NULL)
        ek_comm_set_nodes(r->world, r->nodes);
    r->st = ek_kernels_create(r->mode, EK_ISA_REF, 1, &k);
    cfg.k = k;
    if (r->st == EK_OK)
        r->st = ek_calibrate(&cfg, &r->m, &r->cached);
    if (r->st < 0)
        snprintf(r->text, sizeof(r->text), "%s", ek_err_text());
    ek_kernels_destroy(&k);
    return NULL;
}

/* What every machine is; groups: experts that were measured. */
static void check(const ek_machine *m, int64_t ranks, int64_t nodes, int64_t groups)
{
    CHECK(ek_machine_check(m, "measured") == EK_OK);
    CHECK_INT(m->ranks, ranks);
    CHECK_INT(m->nodes, nodes);
    CHECK_INT(m->experts, groups);
    CHECK(m->hidden == 12 && m->ff == 7 && m->threads == 1);
    CHECK(m->rate[0].n == m->rate[1].n && m->rate[0].n == m->rate[2].n);
    CHECK(m->name[0] != '\0' && m->key[0] != '\0');
}

static void on_one_rank(void)
{
    static const char *const names[] = {"fp64", "fp32", "bf16"};

    for (int mode = 0; mode < 3; mode++) {
        rank r = {.mode = (ek_mode)mode, .spec = model(), .budget = 1e-4};

        work(&r);
        CHECK(r.st == EK_OK && r.cached == 0);
        check(&r.m, 1, 1, 5);
        CHECK(strcmp(r.m.dtype, names[mode]) == 0);
        CHECK(r.m.link[0].message.n == 0 && r.m.link[1].message.n == 0);
    }
}

/* The least of it is one point; with time there are all. */
static void budgets(void)
{
    rank r = {.mode = EK_MODE_FP32, .spec = model(), .budget = 1e-9};

    work(&r);
    CHECK(r.st == EK_OK);
    CHECK_INT(r.m.rate[0].n, 1);
    CHECK(r.m.rate[0].x[0] == 64);
    r.budget = 1000; /* it ends when figures repeat */
    work(&r);
    CHECK(r.st == EK_OK);
    CHECK_INT(r.m.rate[0].n, 6);
    CHECK(r.m.rate[0].x[0] == 1 && r.m.rate[0].x[5] == 1024);
}

/* A model whose every weight has another shape, and whose sequences are short. */
static ek_model_spec whole_model(void)
{
    ek_model_spec s = model();

    s.layers = 2;
    s.dense[1] = 1;
    s.heads = 3;
    s.kv_heads = 1;
    s.head_dim = 4;
    s.vocab = 50;
    s.dense_ff = 9;
    s.shared_ff = 8;
    s.max_positions = 512;
    return s;
}

/* What bounds the memory of a probe: the reference kernels are to be quick, too. */
#define KERNELS_S 0.1

static int has_kernel(const ek_machine *m, ek_cost_kernel kernel, int32_t a, int32_t b, int32_t c)
{
    const int32_t size[EK_KERNEL_SIZES] = {a, b, c};
    const ek_kernel_cost *k = ek_kernel_cost_find(&m->kernels, kernel, size);

    return k != NULL && k->rate.n > 0;
}

/* Every pass of every weight, attention, and all kernels of rows. */
static void check_kernels(const ek_machine *m)
{
    static const int32_t weights[][2] = {{14, 12}, {12, 7},  {20, 12}, {12, 12}, {16, 12},
                                         {12, 8},  {18, 12}, {12, 9},  {50, 12}, {5, 12}};

    for (int pass = EK_KERNEL_PRODUCT; pass <= EK_KERNEL_PRODUCT_WEIGHT; pass++)
        for (size_t i = 0; i < sizeof(weights) / sizeof(weights[0]); i++)
            CHECK(has_kernel(m, (ek_cost_kernel)pass, weights[i][0], weights[i][1], 0));
    CHECK(has_kernel(m, EK_KERNEL_ATTENTION, 3, 1, 4));
    CHECK(has_kernel(m, EK_KERNEL_ATTENTION_BACKWARD, 3, 1, 4));
    for (int k = EK_KERNEL_NORM; k < EK_COST_KERNELS; k++)
        if (!has_kernel(m, (ek_cost_kernel)k, 0, 0, 0) &&
            !(k == EK_KERNEL_PACK && strcmp(m->dtype, "bf16") != 0))
            EK_T_FAIL("%s is not measured", ek_kernel_info_of((ek_cost_kernel)k)->name);
    CHECK_INT(m->kernels.n, 30 + 2 + EK_COST_KERNELS - EK_KERNEL_NORM);
    CHECK(m->op_s > 0);
}

static void kernels_of_every_weight_are_measured(void)
{
    static const ek_mode modes[] = {EK_MODE_FP64, EK_MODE_FP32, EK_MODE_BF16};

    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
        rank r = {.mode = modes[i],
                  .spec = whole_model(),
                  .budget = 1e-4,
                  .kernels_s = KERNELS_S,
                  .once = 1};

        work(&r);
        CHECK(r.st == EK_OK && r.cached == 0);
        CHECK(ek_machine_check(&r.m, "measured") == EK_OK);
        check_kernels(&r.m);
    }
}

/* What there is no time for is left out, and the rest is a machine. */
static void kernels_that_take_too_long_are_left_out(void)
{
    rank r = {.mode = EK_MODE_FP32, .spec = whole_model(), .budget = 1e-4, .kernels_s = 1e-3};

    work(&r);
    CHECK(r.st == EK_OK);
    CHECK(ek_machine_check(&r.m, "measured") == EK_OK);
    CHECK_INT(r.m.kernels.n, 0);
    r.kernels_s = 0;
    work(&r);
    CHECK(r.st == EK_OK && r.m.kernels.n == 0 && r.m.op_s == 0);
}

/* An expert too large to be measured as it is: narrower. */
static void large_experts(void)
{
    rank r = {.mode = EK_MODE_FP32, .spec = model(), .budget = 1e-9};

    r.spec.hidden = 8;
    r.spec.ff = 1 << 20;
    work(&r);
    CHECK(r.st == EK_OK);
    CHECK(r.m.hidden == 8 && r.m.ff < 1 << 20 && 3 * 8 * r.m.ff <= 1 << 20);
    CHECK_INT(r.m.experts, 1);
}

static void run(rank *ranks, int n, rank how)
{
    ek_comm *worlds[RANKS_MAX];

    CHECK(ek_comm_open_threads(n, worlds) == EK_OK);
    for (int i = 0; i < n; i++) {
        ranks[i] = how;
        ranks[i].world = worlds[i];
        CHECK(pthread_create(&ranks[i].thread, NULL, work, &ranks[i]) == 0);
    }
    for (int i = 0; i < n; i++)
        pthread_join(ranks[i].thread, NULL);
    for (int i = 0; i < n; i++)
        ek_comm_close(&worlds[i]);
    for (int i = 0; i < n; i++) {
        if (ranks[i].st < 0)
            EK_T_FAIL("rank %d of %d: %s", i, n, ranks[i].text);
        CHECK(memcmp(&ranks[i].m, &ranks[0].m, sizeof(ranks[i].m)) == 0);
        CHECK_INT(ranks[i].cached, ranks[0].cached);
    }
}

static void on_several_ranks(void)
{
    static const struct {
        int ranks, node_of[RANKS_MAX], nodes, most, near, far; /* most: ranks a node */
    } cases[] = {
        {2, {0, 0}, 1, 2, 1, 0},          {2, {0, 1}, 2, 1, 0, 1},
        {3, {0, 1, 0}, 2, 2, 1, 1},       {4, {0, 0, 1, 1}, 2, 2, 1, 1},
        {5, {0, 1, 2, 2, 0}, 3, 2, 1, 1}, {5, {0, 0, 0, 0, 0}, 1, 5, 1, 0},
    };
    static rank ranks[RANKS_MAX];

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const ek_machine *m = &ranks[0].m;

        run(ranks, cases[i].ranks,
            (rank){
                .mode = EK_MODE_FP32, .spec = model(), .nodes = cases[i].node_of, .budget = 1e-3});
        check(m, cases[i].ranks, cases[i].nodes, (5 + cases[i].ranks - 1) / cases[i].ranks);
        CHECK((m->link[EK_LINK_NODE].message.n > 0) == cases[i].near);
        CHECK((m->link[EK_LINK_NODE].hop.n > 0) == cases[i].near);
        CHECK((m->link[EK_LINK_NET].message.n > 0) == cases[i].far);
        CHECK((m->link[EK_LINK_NET].hop.n > 0) == cases[i].far);
        for (int l = 0; l < EK_LINKS; l++)
            if (m->link[l].message.n > 0)
                CHECK_INT(m->link[l].ranks_a_node, cases[i].most);
    }
}

static void ranks_agree_on_kernels(void)
{
    static rank ranks[RANKS_MAX];

    run(ranks, 2,
        (rank){.mode = EK_MODE_FP32,
               .spec = whole_model(),
               .budget = 1e-3,
               .kernels_s = KERNELS_S,
               .once = 1});
    CHECK(ek_machine_check(&ranks[0].m, "measured") == EK_OK);
    check_kernels(&ranks[0].m);
}

/* Share of its core that the caller gets now. */
static double share_of_core(void)
{
    int64_t start = ek_clock_ns(), ran = ek_clock_thread_ns(), passed;

    do
        passed = ek_clock_ns() - start;
    while (passed < 50 * 1000 * 1000);
    return (double)(ek_clock_thread_ns() - ran) / (double)passed;
}

static void run_on_the_core_of(int number, const cpu_set_t *of)
{
    cpu_set_t one;

    number %= CPU_COUNT(of);
    CPU_ZERO(&one);
    for (size_t i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, of) && number-- == 0)
            CPU_SET(i, &one);
    CHECK(sched_setaffinity(0, sizeof(one), &one) == 0);
}

/* Two ranks calibrate on one core, until what they share is found.  Returns 0 if other programs
 * used the core nearly always, which hides it. */
static int calibrate_on_one_core(rank *ranks, rank how)
{
    const ek_machine *m = &ranks[0].m;
    int undisturbed = 0, found = 0;
    cpu_set_t all;

    CHECK(sched_getaffinity(0, sizeof(all), &all) == 0);
    for (int tries = 0; !found && tries < 24 && undisturbed < 6; tries++) {
        double share;

        run_on_the_core_of(tries, &all);
        share = share_of_core();
        run(ranks, 2, how);
        undisturbed += fmin(share, share_of_core()) > 0.9;
        found = m->link[EK_LINK_NET].seconds_a_byte_beside > 0 && m->rank_alone >= 1.1;
    }
    CHECK(sched_setaffinity(0, sizeof(all), &all) == 0);
    return found || undisturbed == 6;
}

/* What network ops take from products is measured where a rank has no core for the network. */
static void products_beside_messages_are_measured_on_shared_cores(void)
{
    static const int two_nodes[] = {0, 1};
    static rank ranks[RANKS_MAX];
    const ek_machine *m = &ranks[0].m;
    rank how = {.mode = EK_MODE_FP32,
                .spec = whole_model(),
                .budget = 1e-3,
                .kernels_s = 1e-3,
                .nodes = two_nodes};

    if (!calibrate_on_one_core(ranks, how))
        SKIP("other programs use the cores");
    CHECK(m->rank_alone >= 1.1 && m->rank_alone >= m->node_alone); /* they share the core */
    CHECK(ek_machine_check(m, "measured") == EK_OK);
    CHECK(m->link[EK_LINK_NET].seconds_a_byte_beside > 0);
    CHECK(m->link[EK_LINK_NODE].seconds_a_byte_beside == 0);
    if (ek_cores_usable() > 2) {
        run(ranks, 2, how);
        CHECK(m->link[EK_LINK_NET].seconds_a_byte_beside == 0 && m->polling == 0);
    }
    how.kernels_s = 0;
    run(ranks, 2, how); /* planners need none of this */
    CHECK(m->link[EK_LINK_NET].arrival_skew_s == 0 && m->link[EK_LINK_NET].burst == 0);
    CHECK(m->rank_alone == 0);
    CHECK(m->link[EK_LINK_NET].seconds_a_byte_beside == 0 && m->polling == 0);
}

/* --- the cache -------------------------------------------------------------------------------- */

static void kept_and_found(void)
{
    char folder[] = "/tmp/ek_calibrate_XXXXXX", cache[64];
    rank r = {.mode = EK_MODE_FP32, .spec = model(), .budget = 1e-4};
    static rank ranks[RANKS_MAX];
    ek_names names = {0};
    ek_machine first;

    CHECK(mkdtemp(folder) != NULL);
    snprintf(cache, sizeof(cache), "%s/not/there", folder);
    r.cache = cache;
    work(&r);
    CHECK(r.st == EK_OK && r.cached == 0);
    first = r.m;
    work(&r);
    CHECK(r.st == EK_OK && r.cached == 1);
    CHECK(memcmp(&first, &r.m, sizeof(first)) == 0);
    r.anew = 1;
    r.budget = 0.01;
    work(&r);
    CHECK(r.st == EK_OK && r.cached == 0);
    CHECK(memcmp(&first, &r.m, sizeof(first)) != 0); /* took_s alone differs */
    first = r.m;
    r.anew = 0;
    work(&r);
    CHECK(r.st == EK_OK && r.cached == 1 && memcmp(&first, &r.m, sizeof(first)) == 0);
    r.mode = EK_MODE_FP64; /* other kernels, other sizes, other ranks: other files */
    work(&r);
    CHECK(r.st == EK_OK && r.cached == 0);
    r.spec.ff = 8;
    work(&r);
    CHECK(r.st == EK_OK && r.cached == 0);
    run(ranks, 3, r);
    CHECK(ranks[0].st == EK_OK && ranks[0].cached == 0);
    run(ranks, 3, r);
    CHECK(ranks[0].st == EK_OK && ranks[0].cached == 1);
    CHECK(ek_folder_entries(cache, &names) == EK_OK);
    CHECK_INT(names.n, 4);
    ek_names_free(&names);
    CHECK(ek_folder_remove(NULL, folder) == EK_OK);
}

/* They are added to what the cache holds, and measured again for other rows. */
static void rates_of_training(void)
{
    char folder[] = "/tmp/ek_calibrate_XXXXXX";
    rank r = {.mode = EK_MODE_FP32, .spec = whole_model(), .budget = 1e-4, .cache = folder};
    static rank ranks[RANKS_MAX];
    ek_training_rates first;

    CHECK(mkdtemp(folder) != NULL);
    run(ranks, 2, r);
    CHECK(ranks[0].cached == 0 && ranks[0].m.training.rows == 0);
    r.training_rows = 100;
    run(ranks, 2, r);
    first = ranks[0].m.training;
    CHECK(ranks[0].cached == 1 && first.rows == 100 && first.seq == 8);
    CHECK(ek_machine_check(&ranks[0].m, "measured") == EK_OK);
    r.training_rows = 0;
    run(ranks, 2, r);
    CHECK(ranks[0].cached == 1 && memcmp(&first, &ranks[0].m.training, sizeof(first)) == 0);
    r.training_rows = 7;
    run(ranks, 2, r);
    CHECK(ranks[0].cached == 1 && ranks[0].m.training.rows == 7);
    CHECK(ek_folder_remove(NULL, folder) == EK_OK);
}

/* A model of long sequences and many heads takes no longer than others to be measured, nor more
 * memory; small ones are measured as they are. */
static void rates_of_training_are_bounded(void)
{
    static const struct {
        int64_t seq, heads, kv_heads, head_dim;
    } models[] = {{32768, 32, 8, 128}, {32768, 64, 1, 256}, {4096, 33, 33, 128}, {300, 128, 8, 64}};
    ek_kernels *k = NULL;
    ek_model_spec spec = whole_model();
    ek_calibrate_config cfg = {.spec = &spec, .training_rows = 1 << 30};
    ek_calibration c = {.cfg = &cfg, .experts = 64};
    ek_training_sizes s;

    CHECK(ek_kernels_create(EK_MODE_FP64, EK_ISA_REF, 1, &k) == EK_OK);
    cfg.k = k;
    cfg.training_seq = 200;
    ek_calibrate_training_sizes(&c, &s);
    CHECK(s.attention.batch == 5 && s.attention.seq == 200);
    CHECK(s.attention.heads == 3 && s.attention.kv_heads == 1 && s.attention.ld == 20);
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
        spec.hidden = 8192;
        spec.ff = 32768;
        spec.heads = models[i].heads;
        spec.kv_heads = models[i].kv_heads;
        spec.head_dim = models[i].head_dim;
        cfg.training_seq = models[i].seq;
        ek_calibrate_training_sizes(&c, &s);
        CHECK(s.attention.batch * s.attention.seq <= 1024 && s.attention.seq >= 64);
        CHECK(s.attention.heads >= 1 && s.attention.heads % s.attention.kv_heads == 0);
        CHECK(ek_calibrate_attention_flops(&s.attention) <= 1e9);
        CHECK(s.experts.rows <= 2048 && 3 * s.experts.d * s.experts.f <= 2 << 20);
        CHECK(ek_calibrate_training_bytes(&s) < (size_t)512 << 20);
    }
    ek_kernels_destroy(&k);
}

/* The time of a token grows with its sequence and heads beyond what is measured. */
static void attention_is_converted_to_the_run(void)
{
    ek_model_spec spec = whole_model();
    ek_calibrate_config cfg = {.spec = &spec, .training_seq = 32767};
    ek_calibration c = {.cfg = &cfg};
    ek_attention a = {.batch = 2, .seq = 511, .heads = 3, .kv_heads = 1, .head_dim = 4};

    CHECK_NEAR(ek_calibrate_attention_of_token(&c, &a, 1.0), 64.0 / 1022);
    spec.heads = 12;
    CHECK_NEAR(ek_calibrate_attention_of_token(&c, &a, 1.0), 4 * 64.0 / 1022);
    cfg.training_seq = 511;
    CHECK_NEAR(ek_calibrate_attention_of_token(&c, &a, 1.0), 4 / 1022.0);
}

static void costs_without_kernels_are_measured_again_for_them(void)
{
    char folder[] = "/tmp/ek_calibrate_XXXXXX";
    rank r = {.mode = EK_MODE_FP32, .spec = whole_model(), .budget = 1e-4, .cache = folder};

    CHECK(mkdtemp(folder) != NULL);
    work(&r);
    CHECK(r.st == EK_OK && r.cached == 0 && r.m.kernels.n == 0);
    r.kernels_s = KERNELS_S;
    r.once = 1;
    work(&r);
    CHECK(r.st == EK_OK && r.cached == 0 && r.m.kernels.n > 0);
    work(&r);
    CHECK(r.st == EK_OK && r.cached == 1 && r.m.kernels.n > 0);
    r.spec.vocab = 51; /* the same experts, another head */
    work(&r);
    CHECK(r.st == EK_OK && r.cached == 0 && r.m.kernels.n > 0);
    r.kernels_s = 0; /* planners need less */
    work(&r);
    CHECK(r.st == EK_OK && r.cached == 1);
    CHECK(ek_folder_remove(NULL, folder) == EK_OK);
}

static void harmless(void)
{
    char folder[] = "/tmp/ek_calibrate_XXXXXX", path[512];
    rank r = {.mode = EK_MODE_FP32, .spec = model(), .budget = 1e-4, .cache = folder};
    ek_names names = {0};

    CHECK(mkdtemp(folder) != NULL);
    ek_log_set_sink(on_plan, NULL, EK_LOG_WARN);
    warning[0] = '\0';
    work(&r);
    CHECK(r.st == EK_OK && warning[0] == '\0');
    CHECK(ek_folder_entries(folder, &names) == EK_OK && names.n == 1);
    snprintf(path, sizeof(path), "%s/%s", folder, names.n > 0 ? names.names[0] : "");
    ek_names_free(&names);
    CHECK(ek_file_replace(NULL, path, "{", 1) == EK_OK);
    work(&r); /* a spoilt file is measured again, and replaced */
    CHECK(r.st == EK_OK && r.cached == 0);
    CHECK(strstr(warning, "costs are measured again: ") == warning);
    CHECK(strstr(warning, path) != NULL);
    warning[0] = '\0';
    work(&r);
    CHECK(r.st == EK_OK && r.cached == 1 && warning[0] == '\0');
    r.cache = "/dev/null/cache";
    work(&r); /* no place to keep it */
    CHECK(r.st == EK_OK && r.cached == 0);
    CHECK(strstr(warning, "measured costs are not kept: ") == warning);
    ek_log_set_sink(NULL, NULL, EK_LOG_WARN);
    CHECK(ek_folder_remove(NULL, folder) == EK_OK);
}

/* A file of the right name that was measured on something else. */
static void somebody_elses(void)
{
    char folder[] = "/tmp/ek_calibrate_XXXXXX", path[512];
    rank r = {.mode = EK_MODE_FP32, .spec = model(), .budget = 1e-4, .cache = folder};
    ek_names names = {0};
    ek_machine other = by_hand();

    CHECK(mkdtemp(folder) != NULL);
    work(&r);
    CHECK(ek_folder_entries(folder, &names) == EK_OK && names.n == 1);
    snprintf(path, sizeof(path), "%s/%s", folder, names.n > 0 ? names.names[0] : "");
    ek_names_free(&names);
    CHECK(ek_machine_write(&other, path) == EK_OK);
    work(&r);
    CHECK(r.st == EK_OK && r.cached == 0 && r.m.ranks == 1);
    CHECK(ek_folder_remove(NULL, folder) == EK_OK);
}

static const ek_case cases[] = {
    EK_CASE(kernels_of_every_weight_are_measured),
    EK_CASE(kernels_that_take_too_long_are_left_out),
    EK_CASE(ranks_agree_on_kernels),
    EK_CASE(products_beside_messages_are_measured_on_shared_cores),
    EK_CASE(costs_without_kernels_are_measured_again_for_them),
    EK_CASE(rates_of_training),
    EK_CASE(rates_of_training_are_bounded),
    EK_CASE(attention_is_converted_to_the_run),
    EK_CASE(on_one_rank),
    EK_CASE(budgets),
    EK_CASE(large_experts),
    EK_CASE(on_several_ranks),
    EK_CASE(kept_and_found),
    EK_CASE(harmless),
    EK_CASE(somebody_elses),
};
EK_TEST_MAIN(cases)
