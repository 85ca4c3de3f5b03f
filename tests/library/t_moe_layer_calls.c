/* The order of calls of a layer of evenkeel/moe_layer.h: several forwards before their backwards,
 * against one process; and misuse. */
#include "library/moe_layer_fixture.h"

#include <pthread.h>

/* --- several forwards before their backwards -------------------------------------------------- */

enum { MICROS = 4, ACT_SLOTS = 3 };

/* The calls of a schedule: i is the forward of micro-batch i, BACK + i its backward, both in
 * activation slot i % ACT_SLOTS; EVALUATE is a forward without a backward, in a slot of its own. */
enum { BACK = 100, EVALUATE = -1, END = -2 };

typedef struct {
    ek_moe_layer *l;
    int64_t replicas;
    double y[MICROS][TOKENS_MAX * HIDDEN], dx[MICROS][TOKENS_MAX * HIDDEN];
} schedule_results;

static void run_schedule(schedule_results *s, const int *calls, int64_t first, int64_t n)
{
    double x[TOKENS_MAX * HIDDEN], y[TOKENS_MAX * HIDDEN];
    ek_moe_layer_stats stats;

    prefer_expert_0(s->l);
    for (; *calls != END; calls++) {
        int i = *calls % BACK, act_slot = i % ACT_SLOTS;

        if (*calls == EVALUATE) {
            fill_tokens(x, first, n, 30);
            MUST(ek_moe_layer_forward(s->l, ACT_SLOTS, x, n, 0, y));
        } else if (*calls < BACK) {
            fill_tokens(x, first, n, 10 + i);
            MUST(ek_moe_layer_forward(s->l, act_slot, x, n, 1, s->y[i]));
            MUST(ek_moe_layer_get_stats(s->l, &stats));
            s->replicas += stats.replicas;
        } else {
            fill(y, first * HIDDEN, n * HIDDEN, 20 + i);
            MUST(ek_moe_layer_backward(s->l, act_slot, y, s->dx[i]));
        }
    }
    MUST(ek_moe_layer_sum_gradients(s->l));
}

static void compare_gradients(ek_moe_layer *many, ek_moe_layer *one)
{
    static const char *const of_all[] = {"router", "shared_up"}, *const of_expert[] = {"up",
                                                                                       "down"};

    for (int i = 0; i < 2; i++) {
        ek_moe_layer_weight a = param(many, of_all[i], 0), b = param(one, of_all[i], 0);

        check_numbers(of_all[i], a.gradient, b.gradient, a.rows * a.cols);
        for (int e = 0; e < EXPERTS; e++) {
            if (rank_of(e) != rank)
                continue;
            a = param(many, of_expert[i], e);
            b = param(one, of_expert[i], e);
            check_numbers(of_expert[i], a.gradient, b.gradient, a.rows * a.cols);
        }
    }
}

/* All ranks in the order of `calls` against one process, with each backward after its forward.
 * Returns how many replicas there were. */
static int64_t compare_schedules(const int *calls, const char *balance)
{
    static const int in_turn[] = {0, BACK, 1, BACK + 1, 2, BACK + 2, 3, BACK + 3, END};
    static schedule_results one, many;
    ek_moe_layer_config c = small_config();
    int64_t first = first_token(rank) * HIDDEN, n = tokens_of(rank);

    c.act_slots = ACT_SLOTS;
    one.l = create(&c);
    run_schedule(&one, in_turn, 0, first_token(ranks));
    c.world = world;
    c.act_slots = ACT_SLOTS + 1;
    c.balance = balance;
    c.spare_slots = 1;
    c.compute_s_per_row = 1e-5;
    many.l = create(&c);
    many.replicas = 0;
    run_schedule(&many, calls, first_token(rank), n);
    for (int i = 0; i < MICROS; i++) {
        check_numbers("y", many.y[i], one.y[i] + first, n * HIDDEN);
        check_numbers("dx", many.dx[i], one.dx[i] + first, n * HIDDEN);
    }
    compare_gradients(many.l, one.l);
    ek_moe_layer_destroy(&many.l);
    ek_moe_layer_destroy(&one.l);
    return many.replicas;
}

static void backwards_come_in_any_order(void)
{
    static const int schedules[][11] = {
        {0, 1, 2, BACK, 3, BACK + 1, BACK + 2, BACK + 3, END},           /* 1F1B */
        {0, 1, 2, EVALUATE, BACK + 2, BACK + 1, BACK, 3, BACK + 3, END}, /* a sum of losses */
        {0, 1, BACK, 3, 2, BACK + 3, BACK + 2, EVALUATE, BACK + 1, END}};
    int64_t replicas = 0;

    for (int i = 0; i < 3; i++) {
        compare_schedules(schedules[i], "off");
        if (ranks > 1)
            replicas += compare_schedules(schedules[i], "exact");
    }
    CHECK(ranks == 1 || replicas > 0);
}

/* In bf16 a layer also keeps x as the floats that it was. */
static void backwards_come_in_any_order_in_bf16(void)
{
    ek_moe_layer_config c = small_config();
    float x[2][9 * HIDDEN], y[9 * HIDDEN], in_turn[EXPERTS * HIDDEN], *gradient;
    ek_moe_layer *l;

    c.dtype = "bf16";
    c.act_slots = 2;
    l = create(&c);
    gradient = param(l, "router", 0).gradient;
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 9 * HIDDEN; j++)
            x[i][j] = (float)number(1000 * i + j);
    for (int i = 1; i >= 0; i--) {
        MUST(ek_moe_layer_forward(l, 0, x[i], 9, 1, y));
        MUST(ek_moe_layer_backward(l, 0, x[1 - i], NULL));
    }
    memcpy(in_turn, gradient, sizeof(in_turn));
    MUST(ek_moe_layer_zero_gradients(l));
    for (int i = 0; i < 2; i++)
        MUST(ek_moe_layer_forward(l, i, x[i], 9, 1, y));
    REFUSED(ek_moe_layer_pack(l), EK_ESTATE, "is due");
    for (int i = 1; i >= 0; i--)
        MUST(ek_moe_layer_backward(l, i, x[1 - i], NULL));
    CHECK(memcmp(in_turn, gradient, sizeof(in_turn)) == 0);
    ek_moe_layer_destroy(&l);
}

/* --- misuse ----------------------------------------------------------------------------------- */

static void calls_out_of_order(void)
{
    ek_moe_layer_config c = small_config();
    ek_moe_layer *l = create(&c);
    double x[HIDDEN] = {1, 2, 3}, y[HIDDEN];
    ek_moe_layer_weight w;

    REFUSED(ek_moe_layer_backward(l, 0, x, y), EK_ESTATE, "no backward is due");
    MUST(ek_moe_layer_forward(l, 0, x, 1, 1, y));
    REFUSED(ek_moe_layer_forward(l, 0, x, 1, 1, y), EK_ESTATE,
            "backward of the last forward in activation slot 0 is due");
    REFUSED(ek_moe_layer_pack(l), EK_ESTATE,
            "backward of the last forward in activation slot 0 is due");
    REFUSED(ek_moe_layer_backward(l, 0, NULL, y), EK_EINVAL, "dy must not be NULL");
    MUST(ek_moe_layer_backward(l, 0, x, NULL));
    REFUSED(ek_moe_layer_backward(l, 0, x, y), EK_ESTATE, "no backward is due");
    REFUSED(ek_moe_layer_forward(l, 1, x, 1, 1, y), EK_EINVAL,
            "act_slot 1: this layer has slots 0 to 0");
    REFUSED(ek_moe_layer_backward(l, -1, x, y), EK_EINVAL,
            "act_slot -1: this layer has slots 0 to 0");
    REFUSED(ek_moe_layer_forward(l, 0, x, TOKENS_MAX + 1, 1, y), EK_EINVAL, "at most 64");
    REFUSED(ek_moe_layer_forward(l, 0, x, -1, 1, y), EK_EINVAL, "-1 tokens");
    REFUSED(ek_moe_layer_forward(l, 0, NULL, 1, 1, y), EK_EINVAL, "x must not be NULL");
    REFUSED(ek_moe_layer_param(l, "norm", 0, &w), EK_EINVAL, "no weight norm");
    REFUSED(ek_moe_layer_param(l, "bias", 0, &w), EK_EINVAL, "no weight bias");
    REFUSED(ek_moe_layer_param(l, "up", EXPERTS, &w), EK_EINVAL, "expert 5 of 5");
    MUST(ek_moe_layer_forward(l, 0, NULL, 0, 1, NULL));
    MUST(ek_moe_layer_backward(l, 0, NULL, NULL));
    ek_moe_layer_destroy(&l);
    CHECK(l == NULL);
}

static void settings_that_do_not_fit(void)
{
    const char *const persistent[] = {"auto", "place", "replicate", "eplb"};
    ek_moe_layer_config c = small_config();
    ek_moe_layer *l = NULL;

    for (int i = 0; i < 4; i++) {
        c.balance = persistent[i];
        REFUSED(ek_moe_layer_create(&c, &l), EK_EINVAL, "moves experts between steps");
        CHECK(l == NULL);
    }
    c.balance = "best";
    REFUSED(ek_moe_layer_create(&c, &l), EK_EINVAL, "no balance policy best");
    c = small_config();
    c.gate = "top";
    REFUSED(ek_moe_layer_create(&c, &l), EK_EINVAL, "no gate top");
    c.gate = "sigmoid";
    REFUSED(ek_moe_layer_create(&c, &l), EK_EINVAL, "aux_coef 0.3");
    c = small_config();
    c.top_k = EXPERTS + 1;
    REFUSED(ek_moe_layer_create(&c, &l), EK_EINVAL, "top_k 6 of 5 experts");
    c = small_config();
    c.dtype = "fp8";
    REFUSED(ek_moe_layer_create(&c, &l), EK_EINVAL, "unknown dtype fp8");
    c = small_config();
    c.act_slots = 0;
    REFUSED(ek_moe_layer_create(&c, &l), EK_EINVAL, "act_slots 0: from 1");
    c.act_slots = 1;
    c.z_coef = (double)NAN;
    REFUSED(ek_moe_layer_create(&c, &l), EK_EINVAL, "not finite");
}

typedef struct {
    ek_moe_layer *l;
    ek_status st;
} created;

static void *create_in_thread(void *arg)
{
    ek_moe_layer_config c = small_config();
    created *out = arg;

    c.world = world;
    out->st = ek_moe_layer_create(&c, &out->l);
    return NULL;
}

/* Creates a layer in a thread whose stack is too small for it. */
static created create_on_small_stack(void)
{
    created out = {NULL, EK_OK};
    pthread_attr_t small;
    pthread_t thread;

    CHECK_INT(pthread_attr_init(&small), 0);
    CHECK_INT(pthread_attr_setstacksize(&small, 640 << 10), 0);
    CHECK_INT(pthread_create(&thread, &small, create_in_thread, &out), 0);
    CHECK_INT(pthread_join(thread, NULL), 0);
    pthread_attr_destroy(&small);
    return out;
}

/* Create fails on rank 1 alone; the others are told why, and the world stays usable. */
static void one_rank_cannot_create(void)
{
    ek_moe_layer_config c = small_config();
    int me = rank == 1;
    ek_moe_layer *l;

    if (ranks == 1)
        SKIP("there is one rank");
    c.world = world;
    c.top_k = me ? EXPERTS + 1 : TOP_K;
    REFUSED(ek_moe_layer_create(&c, &l), me ? EK_EINVAL : EK_EPEER, "top_k 6 of 5 experts");
    c.top_k = TOP_K;
    c.watchdog = me ? -1 : 300;
    REFUSED(ek_moe_layer_create(&c, &l), me ? EK_EINVAL : EK_EPEER, "watchdog is negative");
    c.watchdog = 300;
    REFUSED(ek_moe_layer_create(&c, me ? NULL : &l), me ? EK_EINVAL : EK_EPEER,
            "out must not be NULL");
    if (me)
        CHECK_INT(create_on_small_stack().st, EK_ENOMEM);
    else
        REFUSED(ek_moe_layer_create(&c, &l), EK_EPEER, "the stack of this thread has");
    CHECK(l == NULL);
    l = create(&c);
    ek_moe_layer_destroy(&l);
}

/* Threads and watchdog are a rank's own. */
static void some_settings_may_differ(void)
{
    ek_moe_layer_config c = small_config();
    double x[HIDDEN] = {1, 2, 3}, y[HIDDEN];
    ek_moe_layer *l;

    if (ranks == 1)
        SKIP("there is one rank");
    c.world = world;
    c.threads = rank == 1;
    c.watchdog = 300 + rank;
    l = create(&c);
    MUST(ek_moe_layer_forward(l, 0, x, 1, 0, y));
    ek_moe_layer_destroy(&l);
}

/* What one rank gets wrong, all learn; a refused forward has no effect. */
static void one_rank_is_wrong(void)
{
    ek_moe_layer_config c = small_config();
    double x[HIDDEN] = {1, 2, 3}, y[HIDDEN];
    ek_moe_layer *l;

    if (ranks == 1)
        SKIP("there is one rank");
    c.world = world;
    c.act_slots = 2;
    c.seed += rank == ranks - 1;
    REFUSED(ek_moe_layer_create(&c, &l), EK_EINVAL, "has another ek_moe_layer_config than rank 0");
    c.seed = 7;
    l = create(&c);
    REFUSED(ek_moe_layer_forward(l, 0, x, rank == 1 ? TOKENS_MAX + 1 : 1, 1, y),
            rank == 1 ? EK_EINVAL : EK_EPEER, "65 tokens: this layer was created for at most 64");
    REFUSED(ek_moe_layer_forward(l, 0, x, 1, rank == 1, y), EK_EINVAL, "training is 0 on rank 0");
    REFUSED(ek_moe_layer_forward(l, rank == 1, x, 1, 1, y), EK_EINVAL, "act_slot is 0 on rank 0");
    MUST(ek_moe_layer_forward(l, 0, x, 1, 1, y));
    MUST(ek_moe_layer_forward(l, 1, x, 1, 1, y));
    REFUSED(ek_moe_layer_backward(l, 0, rank == 1 ? NULL : x, y), rank == 1 ? EK_EINVAL : EK_EPEER,
            "dy must not be NULL");
    REFUSED(ek_moe_layer_backward(l, rank == 1, x, y), EK_EINVAL, "act_slot is 0 on rank 0");
    MUST(ek_moe_layer_backward(l, 0, x, y));
    REFUSED(rank == 1 ? ek_moe_layer_backward(l, 1, x, y) : ek_moe_layer_forward(l, 0, x, 1, 1, y),
            EK_EINVAL, "forward on rank 0 and backward on rank 1");
    MUST(ek_moe_layer_backward(l, 1, x, y));
    ek_moe_layer_destroy(&l);
}

static const ek_case cases[] = {EK_CASE(calls_out_of_order),
                                EK_CASE(settings_that_do_not_fit),
                                EK_CASE(backwards_come_in_any_order),
                                EK_CASE(backwards_come_in_any_order_in_bf16),
                                EK_CASE(one_rank_cannot_create),
                                EK_CASE(some_settings_may_differ),
                                EK_CASE(one_rank_is_wrong)};

int main(int argc, char **argv)
{
    return run_cases(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
