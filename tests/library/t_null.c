/* Every public function rejects NULL, and structs of unknown size, with a status and a message that
 * names the argument; functions for which NULL is valid do nothing.
 *
 * tools/symbols.sh compares the names here with those that the library exports. */
#include "ek_test.h"

#include <evenkeel/balance.h>
#include <evenkeel/elastic.h>
#include <evenkeel/err.h>
#include <evenkeel/job.h>
#include <evenkeel/lm.h>
#include <evenkeel/moe_layer.h>
#include <evenkeel/planner.h>
#include <evenkeel/simulate.h>
#include <evenkeel/train.h>
#include <evenkeel/version.h>

/* The call fails with EK_EINVAL and this message. */
#define REFUSED(call, word)                                                                        \
    do {                                                                                           \
        (void)EK_FAIL(EK_OK, "nothing");                                                           \
        CHECK_INT((call), EK_EINVAL);                                                              \
        if (strstr(ek_err_message(), (word)) == NULL)                                              \
            EK_T_FAIL("%s says \"%s\", without \"%s\"", #call, ek_err_message(), (word));          \
    } while (0)

/* A non-NULL address that must not be dereferenced. */
static double something[64];

static void *any(void)
{
    return something;
}

static void err(void)
{
    CHECK_INT(ek_err_raise(NULL, 0, NULL, EK_EIO, NULL), EK_EIO);
    CHECK_INT(ek_err_pass(NULL, 0, NULL, EK_EIO), EK_EIO);
    CHECK(ek_err_text() != NULL && ek_err_message() != NULL);
    CHECK(ek_status_name((ek_status)12345) != NULL);
    CHECK_INT(ek_status_class((ek_status)-12345), EK_CLASS_BUG);
}

static void elastic(void)
{
    ek_elastic_config c = {.size = sizeof(c), .out = "run"};
    ek_train_config train = EK_TRAIN_CONFIG_INIT;
    static ek_train_summary summary;
    char name[] = "program", *argv[] = {name, NULL};
    ek_elastic *e = NULL;

    CHECK_INT(ek_elastic_enter(NULL, 1, argv, &e), 2);
    CHECK_INT(ek_elastic_enter(&c, 1, NULL, &e), 2);
    CHECK_INT(ek_elastic_enter(&c, 1, argv, NULL), 2);
    c.size = 0;
    CHECK_INT(ek_elastic_enter(&c, 1, argv, &e), 2);
    c = (ek_elastic_config){.size = sizeof(c)};
    CHECK_INT(ek_elastic_enter(&c, 1, argv, &e), 2);
    REFUSED(ek_elastic_train(NULL, &train, NULL, &summary), "e must not be NULL");
    REFUSED(ek_elastic_train(any(), NULL, NULL, &summary), "cfg must not be NULL");
    REFUSED(ek_elastic_train(any(), &train, NULL, NULL), "summary must not be NULL");
    train.size = 0;
    REFUSED(ek_elastic_train(any(), &train, NULL, &summary), "size is 0");
    CHECK_INT(ek_elastic_rank(NULL), -1);
    CHECK_INT(ek_elastic_is_draining(NULL), 0);
    CHECK_INT(ek_elastic_leave(NULL, EK_OK), 0);
    CHECK_INT(ek_elastic_leave(&e, EK_EINVAL), 2);
}

static void version(void)
{
    CHECK(strcmp(ek_version(), EK_VERSION) == 0);
}

static void balance(void)
{
    ek_balance_config c = {.size = sizeof(c), .experts = 4, .ranks = 2, .spare_slots = 1};
    int64_t counts[8] = {1, 2, 3, 4, 5, 6, 7, 8}, rows[12];
    ek_balance_plan_result p;
    ek_balance *b = NULL;

    CHECK(ek_balance_policy(-1) == NULL && ek_balance_policy(1000) == NULL);
    REFUSED(ek_balance_create(NULL, &b), "cfg must not be NULL");
    REFUSED(ek_balance_create(&c, NULL), "out must not be NULL");
    c.size = 0;
    REFUSED(ek_balance_create(&c, &b), "0 bytes");
    c.size = sizeof(c) + 8;
    REFUSED(ek_balance_create(&c, &b), "bytes");
    CHECK(b == NULL);
    c.size = sizeof(c);
    CHECK_INT(ek_balance_create(&c, &b), EK_OK);
    REFUSED(ek_balance_plan(NULL, counts, &p), "b must not be NULL");
    REFUSED(ek_balance_plan(b, NULL, &p), "counts must not be NULL");
    REFUSED(ek_balance_plan(b, counts, NULL), "out must not be NULL");
    REFUSED(ek_balance_set_rank_speeds(NULL, NULL), "b must not be NULL");
    CHECK_INT(ek_balance_set_rank_speeds(b, NULL), EK_OK);
    REFUSED(ek_balance_split(NULL, counts, rows), "b must not be NULL");
    REFUSED(ek_balance_split(b, NULL, rows), "counts must not be NULL");
    REFUSED(ek_balance_split(b, counts, NULL), "rows must not be NULL");
    CHECK_INT(ek_balance_plan(b, counts, &p), EK_OK);
    CHECK_INT(ek_balance_split(b, counts, rows), EK_OK);
    ek_balance_destroy(&b);
    ek_balance_destroy(&b);
    ek_balance_destroy(NULL);
}

static ek_status plan_nothing(void *context, void *memory, const ek_planner_input *in,
                              ek_planner_output *out)
{
    (void)context, (void)memory, (void)in, (void)out;
    return EK_OK;
}

static void planner(void)
{
    ek_planner_functions f = {.size = sizeof(f)};

    REFUSED(ek_planner_register(NULL, &f), "name must not be NULL");
    REFUSED(ek_planner_register("mine", NULL), "functions must not be NULL");
    REFUSED(ek_planner_register("mine", &f), "neither plan_persistent nor plan_transient");
    f.plan_transient = plan_nothing;
    f.size = 0;
    REFUSED(ek_planner_register("mine", &f), "0 bytes");
    f.size = sizeof(f) + 8;
    REFUSED(ek_planner_register("mine", &f), "bytes");
    f.size = sizeof(f);
    CHECK_INT(ek_planner_register("mine", &f), EK_OK);
}

static void moe_layer(void)
{
    ek_moe_layer_config c = EK_MOE_LAYER_CONFIG_INIT;
    ek_moe_layer_weight w;
    ek_moe_layer_stats s;
    ek_moe_layer *l = NULL;
    float x[2] = {1, 2};

    c.hidden = c.ff = c.experts = 2;
    c.top_k = c.tokens = c.threads = 1;
    REFUSED(ek_moe_layer_create(NULL, &l), "cfg must not be NULL");
    REFUSED(ek_moe_layer_create(&c, NULL), "out must not be NULL");
    c.size = 0;
    REFUSED(ek_moe_layer_create(&c, &l), "0 bytes");
    c.size = sizeof(c) + 8;
    REFUSED(ek_moe_layer_create(&c, &l), "bytes");
    c.size = sizeof(c);
    c.gate = NULL;
    REFUSED(ek_moe_layer_create(&c, &l), "gate is NULL");
    CHECK(l == NULL);
    c.gate = "softmax";
    c.dtype = c.balance = NULL;
    CHECK_INT(ek_moe_layer_create(&c, &l), EK_OK);
    REFUSED(ek_moe_layer_param(NULL, "router", 0, &w), "layer must not be NULL");
    REFUSED(ek_moe_layer_param(l, NULL, 0, &w), "name must not be NULL");
    REFUSED(ek_moe_layer_param(l, "router", 0, NULL), "out must not be NULL");
    REFUSED(ek_moe_layer_pack(NULL), "layer must not be NULL");
    REFUSED(ek_moe_layer_zero_gradients(NULL), "layer must not be NULL");
    REFUSED(ek_moe_layer_sum_gradients(NULL), "layer must not be NULL");
    REFUSED(ek_moe_layer_forward(NULL, 0, x, 1, 1, x), "layer must not be NULL");
    REFUSED(ek_moe_layer_forward(l, 0, NULL, 1, 1, x), "x must not be NULL");
    REFUSED(ek_moe_layer_forward(l, 0, x, 1, 1, NULL), "y must not be NULL");
    REFUSED(ek_moe_layer_backward(NULL, 0, x, x), "layer must not be NULL");
    CHECK_INT(ek_moe_layer_forward(l, 0, x, 1, 1, x), EK_OK);
    REFUSED(ek_moe_layer_backward(l, 0, NULL, x), "dy must not be NULL");
    CHECK_INT(ek_moe_layer_backward(l, 0, x, NULL), EK_OK);
    REFUSED(ek_moe_layer_get_stats(NULL, &s), "layer must not be NULL");
    REFUSED(ek_moe_layer_get_stats(l, NULL), "out must not be NULL");
    ek_moe_layer_destroy(&l);
    ek_moe_layer_destroy(&l);
    ek_moe_layer_destroy(NULL);
}

static void job(void)
{
    int cores;
    ek_comm *none = NULL;

    REFUSED(ek_job_join(NULL), "world must not be NULL");
    CHECK_INT(ek_job_rank(NULL), -1);
    CHECK_INT(ek_job_size(NULL), 0);
    CHECK(strcmp(ek_job_host(NULL, 0), "") == 0);
    REFUSED(ek_job_cores(NULL, &cores), "world must not be NULL");
    REFUSED(ek_job_cores(any(), NULL), "cores must not be NULL");
    ek_job_abort(NULL, 1);
    ek_job_leave(NULL);
    ek_job_leave(&none);
    CHECK(ek_job_library() != NULL && ek_job_launcher() != NULL);
}

static void lm_open(void)
{
    ek_lm_config c = {.size = sizeof(c)};
    ek_lm *lm = NULL;

    REFUSED(ek_lm_open(NULL, &c, &lm), "model must not be NULL");
    REFUSED(ek_lm_open("nowhere", &c, NULL), "out must not be NULL");
    c.size = 4;
    REFUSED(ek_lm_open("nowhere", &c, &lm), "4 bytes");
    ek_lm_close(&lm);
    ek_lm_close(NULL);
}

static void lm_get_expert_stats(void)
{
    ek_lm_expert_stats s = {.size = sizeof(s)};

    REFUSED(ek_lm_get_expert_stats(NULL, &s), "lm must not be NULL");
    REFUSED(ek_lm_get_expert_stats(any(), NULL), "out must not be NULL");
    s.size = 8;
    REFUSED(ek_lm_get_expert_stats(any(), &s), "8 bytes");
}

static void lm_eval(void)
{
    const char *data[] = {NULL};
    ek_lm_eval_config c = {.size = sizeof(c)};
    ek_lm_eval_result r;

    REFUSED(ek_lm_eval(NULL, &c, &r), "lm must not be NULL");
    REFUSED(ek_lm_eval(any(), NULL, &r), "config must not be NULL");
    REFUSED(ek_lm_eval(any(), &c, NULL), "out must not be NULL");
    REFUSED(ek_lm_eval(any(), &c, &r), "no data");
    c.n_data = 1;
    REFUSED(ek_lm_eval(any(), &c, &r), "no data");
    c.data = data;
    REFUSED(ek_lm_eval(any(), &c, &r), "entry 0 of data is NULL");
    data[0] = "text.txt";
    REFUSED(ek_lm_eval(any(), &c, &r), "cache_dir and scratch_dir are NULL");
    for (size_t size = 0; size < sizeof(c) + 16; size++) {
        c.size = size;
        CHECK(ek_lm_eval(any(), &c, &r) == EK_EINVAL);
    }
}

static void lm_generate(void)
{
    const char *stop[] = {NULL};
    ek_lm_generate_config c = {.size = sizeof(c), .tokens = 1};

    REFUSED(ek_lm_generate(NULL, "", &c, NULL, NULL, NULL), "lm must not be NULL");
    REFUSED(ek_lm_generate(any(), NULL, &c, NULL, NULL, NULL), "prompt must not be NULL");
    REFUSED(ek_lm_generate(any(), "", NULL, NULL, NULL, NULL), "config must not be NULL");
    c.n_stop = 1;
    REFUSED(ek_lm_generate(any(), "", &c, NULL, NULL, NULL), "no list");
    c.stop = stop;
    REFUSED(ek_lm_generate(any(), "", &c, NULL, NULL, NULL), "stop[0] is NULL");
    c.size = 1;
    REFUSED(ek_lm_generate(any(), "", &c, NULL, NULL, NULL), "1 bytes");
    c.size = sizeof(c) - 3; /* half a field */
    REFUSED(ek_lm_generate(any(), "", &c, NULL, NULL, NULL), "bytes");
    c.size = sizeof(c) + 8;
    REFUSED(ek_lm_generate(any(), "", &c, NULL, NULL, NULL), "bytes");
}

static void lm_export(void)
{
    REFUSED(ek_lm_export(NULL, "to", NULL), "from must not be NULL");
    REFUSED(ek_lm_export("from", NULL, NULL), "to must not be NULL");
}

static void train(void)
{
    const char *data[] = {"nothing.bin", NULL};
    ek_train_config whole = EK_TRAIN_CONFIG_INIT, c;
    const struct {
        const char **field;
        const char *name;
    } texts[] = {{&c.model, "model"},
                 {&c.out, "out"},
                 {&c.data_order, "data_order"},
                 {&c.lr_schedule, "lr_schedule"},
                 {&c.recompute, "recompute"},
                 {&c.adaptive_r, "adaptive_r"},
                 {&c.a2a, "a2a"},
                 {&c.balance, "balance"},
                 {&c.reroute, "reroute"}};
    ek_train_summary s;

    whole.out = "/nonexistent/out";
    whole.data = data;
    whole.n_data = 1;
    REFUSED(ek_train(NULL, NULL, &s), "cfg must not be NULL");
    REFUSED(ek_train(&whole, NULL, NULL), "out must not be NULL");
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        c = whole;
        *texts[i].field = NULL;
        REFUSED(ek_train(&c, NULL, &s), texts[i].name);
    }
    c = whole;
    c.size = 0;
    REFUSED(ek_train(&c, NULL, &s), "0 bytes");
    c = whole;
    c.data = NULL;
    REFUSED(ek_train(&c, NULL, &s), "data is NULL");
    c = whole;
    c.n_data = 2;
    REFUSED(ek_train(&c, NULL, &s), "entry 1 of data is NULL");
    c = whole;
    c.n_data = 0;
    REFUSED(ek_train(&c, NULL, &s), "no data");
    c = whole;
    c.n_eval_data = 1;
    REFUSED(ek_train(&c, NULL, &s), "eval_data is NULL");
    c = whole;
    c.eval_data = data + 1;
    c.n_eval_data = 1;
    REFUSED(ek_train(&c, NULL, &s), "entry 0 of eval_data is NULL");
    c = whole;
    c.n_command = 1;
    REFUSED(ek_train(&c, NULL, &s), "command is NULL");
    CHECK_INT(ek_train(&whole, NULL, &s), EK_ENOENT); /* NULL for every argument that allows it */
}

static void simulate(void)
{
    char *text = NULL;

    REFUSED(ek_simulate_json(NULL, &text), "settings must not be NULL");
    REFUSED(ek_simulate_json("{}", NULL), "report must not be NULL");
    REFUSED(ek_search_json(NULL, &text), "settings must not be NULL");
    REFUSED(ek_search_json("{}", NULL), "answer must not be NULL");
    CHECK(text == NULL);
}

static const ek_case cases[] = {
    EK_CASE(err),      EK_CASE(elastic),     EK_CASE(version),   EK_CASE(balance),
    EK_CASE(planner),  EK_CASE(job),         EK_CASE(lm_open),   EK_CASE(lm_get_expert_stats),
    EK_CASE(lm_eval),  EK_CASE(lm_generate), EK_CASE(lm_export), EK_CASE(train),
    EK_CASE(simulate), EK_CASE(moe_layer)};
EK_TEST_MAIN(cases)
