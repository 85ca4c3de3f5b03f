/* Memory of transient replicas: with a set of each layer their weights are sent once, with sets
 * that layers share once for forward and again for backward; losses are the same bits, and those of
 * one rank.  Ranks are threads. */
#include "balance/workload.h"
#include "equal_threads.h"

#include <math.h>

enum { ITERATIONS = 40, LAYERS = 2, SOURCES = 1, EXPERTS = 5 };

static uint32_t numbers[ITERATIONS * LAYERS * SOURCES * EXPERTS];

/* A hot expert of each layer, which stays for a while. */
static const ek_trace *hot_spots(void)
{
    static ek_trace t = {.data = (const unsigned char *)numbers,
                         .width = sizeof(*numbers),
                         .iterations = ITERATIONS,
                         .layers = LAYERS,
                         .sources = SOURCES,
                         .experts = EXPERTS};
    ek_workload_shape s = {.iterations = ITERATIONS,
                           .layers = LAYERS,
                           .sources = SOURCES,
                           .experts = EXPERTS,
                           .tokens = 1000,
                           .top_k = 2,
                           .seed = 3};
    ek_workload_maker *m = NULL;

    CHECK(ek_workload_open(ek_workload_find("W5"), &s, &m) == EK_OK);
    for (int64_t i = 0; i < ITERATIONS * LAYERS; i++)
        ek_workload_counts(m, i / LAYERS, i % LAYERS, numbers + i * SOURCES * EXPERTS);
    ek_workload_close(&m);
    return &t;
}

typedef struct {
    equal_result rank[EQUAL_RANKS_MAX];
    double sent, brought;
} outcome;

/* Trains with so many sets. */
static void train(equal_layout l, int sets, outcome *out)
{
    *out = (outcome){0};
    l.sets = sets;
    equal_check_into(&l, out->rank);
    for (int i = 0; i < l.ranks; i++)
        out->sent += (double)out->rank[i].sent;
    out->brought = out->rank[0].brought;
}

static void same_bits(const equal_layout *l, const outcome *a, const outcome *b)
{
    const equal_result *x = a->rank, *y = b->rank;

    if (memcmp(x->loss, y->loss, sizeof(x->loss)) != 0 ||
        memcmp(x->aux, y->aux, sizeof(x->aux)) != 0 ||
        memcmp(x->norm, y->norm, sizeof(x->norm)) != 0)
        EK_T_FAIL("%s: losses differ", equal_text(l));
    CHECK_INT(x->replicas, y->replicas);
    CHECK(x->replicas > 0);
}

/* Weights and gradients of a replica have the same bytes: of three parts two are left.  Recomputed
 * forwards fetch replicas, too, where they are not kept.  What `auto` has sent to no purpose are
 * weights for forward, in both cases. */
static void compare_bytes(const equal_layout *l, const outcome *shared, const outcome *kept)
{
    double once = shared->brought - kept->brought;
    double unused = 3 * kept->brought - 2 * shared->brought;
    int less = l->recompute == EK_RECOMPUTE_FULL ? 2 : 1;
    double each; /* of a replica */
    ek_model_spec spec;

    equal_spec(l->model, &spec);
    each = 3.0 * (double)(spec.hidden * spec.ff) * sizeof(double);
    if (unused < 0 || unused > once || fmod(unused, each) != 0 ||
        (unused > 0 && l->balance != EQUAL_AUTO) || shared->sent - kept->sent != less * once)
        EK_T_FAIL("%s: %.0f instead of %.0f bytes of replicas, %.0f instead of %.0f sent",
                  equal_text(l), kept->brought, shared->brought, kept->sent, shared->sent);
}

static void compare(const equal_layout *l)
{
    static outcome shared, kept;

    train(*l, 2, &shared);
    train(*l, EK_REPLICA_SETS_EACH, &kept);
    same_bits(l, &shared, &kept);
    if (l->mode == EK_MODE_FP64)
        compare_bytes(l, &shared, &kept);
}

static equal_layout over(int ranks, int balance)
{
    return (equal_layout){.ranks = ranks,
                          .pp = 1,
                          .model_chunks = 1,
                          .tp = 1,
                          .ep = ranks,
                          .etp = 1,
                          .degree = 2,
                          .shape = 1,
                          .blind = 1,
                          .balance = balance,
                          .replay = hot_spots()};
}

/* Planned after the gate, before it, and either. */
static void weights_are_sent_once(void)
{
    equal_layout exact = over(4, EQUAL_EXACT), prophet = over(4, EQUAL_PROPHET),
                 either = over(4, EQUAL_AUTO);

    compare(&exact);
    compare(&prophet);
    if (!EK_T_SLOW)
        compare(&either);
}

/* Several micro-batches are between forward and backward. */
static void of_stages(void)
{
    equal_layout l = over(8, EQUAL_AUTO);

    l.ep = 4;
    l.pp = 2;
    l.shape = 5;
    compare(&l);
    l.balance = EQUAL_EXACT;
    l.ep = 2;
    l.model_chunks = 2;
    if (!EK_T_SLOW)
        compare(&l);
}

static void recomputed_and_sharded(void)
{
    equal_layout l = over(4, EQUAL_EXACT);

    l.ep = 2;
    l.shape = 5;
    l.zero = 3;
    l.recompute = EK_RECOMPUTE_ATTENTION;
    compare(&l);
    l.zero = 1;
    l.recompute = EK_RECOMPUTE_FULL;
    if (!EK_T_SLOW)
        compare(&l);
}

/* Kernels whose form for backward is not what was received, but made of it. */
static void of_packed_weights(void)
{
    equal_layout l = over(4, EQUAL_EXACT);

    l.mode = EK_MODE_FP32;
    compare(&l);
}

static const ek_case cases[] = {
    EK_CASE(weights_are_sent_once),
    EK_CASE(of_stages),
    EK_CASE(recomputed_and_sharded),
    EK_CASE(of_packed_weights),
};
EK_TEST_MAIN(cases)
