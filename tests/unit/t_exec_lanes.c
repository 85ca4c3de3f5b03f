/* The executor: order of ops over several lanes, overlap, failure, recording. */
#include "base/random.h"
#include "ek_test.h"
#include "exec/exec.h"

#include <pthread.h>
#include <stdatomic.h>

enum { OPS_MAX = 400 };

/* Records of the ops of a graph: a stamp at the start and one at the end of each. */
typedef struct {
    atomic_int clock;
    int start[OPS_MAX], end[OPS_MAX];
    int calls[OPS_MAX], polls[OPS_MAX]; /* polls: how often an op returns EK_PENDING first */
    pthread_t thread[OPS_MAX];
    int fails; /* op that fails; -1: none */
} notes;

static ek_status note(void *self, const ek_op *op)
{
    notes *n = self;
    int i = op->part;

    if (n->calls[i]++ == 0) {
        n->start[i] = atomic_fetch_add(&n->clock, 1);
        n->thread[i] = pthread_self();
    }
    if (n->calls[i] <= n->polls[i])
        return EK_PENDING;
    if (i == n->fails)
        return EK_FAIL(EK_EIO, "the wire is cut");
    n->end[i] = atomic_fetch_add(&n->clock, 1);
    return EK_OK;
}

static void clear(notes *n)
{
    memset(n, 0, sizeof(*n));
    n->fails = -1;
    for (int i = 0; i < OPS_MAX; i++)
        n->start[i] = n->end[i] = -1;
}

static int32_t add(ek_graph *g, notes *n, ek_op_kind kind, ek_lane lane, int32_t layer,
                   const int32_t *deps, int32_t n_deps)
{
    ek_op op = {.kind = kind,
                .run = note,
                .self = n,
                .lane = lane,
                .layer = layer,
                .micro = -1,
                .part = g->n_ops,
                .flops = 1000,
                .bytes = 10};

    return ek_graph_add(g, &op, deps, n_deps);
}

/* A graph of n ops on random lanes, each with up to 3 random dependencies. */
static void random_graph(ek_graph *g, notes *n, uint64_t seed, int32_t ops)
{
    for (int32_t i = 0; i < ops; i++) {
        int32_t deps[3], n_deps = i > 0 ? (int32_t)(ek_random_bits(seed, 1, (uint64_t)i) % 4) : 0;

        for (int32_t j = 0; j < n_deps; j++)
            deps[j] = (int32_t)(ek_random_bits(seed, 2, (uint64_t)(3 * i + j)) % (uint64_t)i);
        n->polls[i] = (int)(ek_random_bits(seed, 4, (uint64_t)i) % 3);
        add(g, n, EK_OP_NORM, (ek_lane)(ek_random_bits(seed, 3, (uint64_t)i) % EK_LANE_COUNT), i,
            deps, n_deps);
    }
}

static int is_async(ek_lane lane)
{
    return lane == EK_LANE_SUMS || lane == EK_LANE_NET || lane == EK_LANE_DISK;
}

/* Every op ran once, after its dependencies, in graph order within its lane (on asynchronous lanes
 * only the starts), with one thread per lane. */
static void check_order(const ek_graph *g, const notes *n)
{
    int last[EK_LANE_COUNT], seen[EK_LANE_COUNT] = {0};
    pthread_t thread[EK_LANE_COUNT];

    for (int l = 0; l < EK_LANE_COUNT; l++)
        last[l] = -1;
    for (int32_t i = 0; i < g->n_ops; i++) {
        const ek_op *op = &g->ops[i];

        if (n->calls[i] != n->polls[i] + 1 || n->end[i] < n->start[i])
            EK_T_FAIL("op %d ran %d times, not %d", (int)i, n->calls[i], n->polls[i] + 1);
        for (int32_t j = 0; j < op->n_deps; j++)
            if (n->end[g->deps[op->dep + j]] > n->start[i])
                EK_T_FAIL("op %d began before op %d had ended", (int)i, (int)g->deps[op->dep + j]);
        if (n->start[i] < last[op->lane])
            EK_T_FAIL("op %d overtook another of its lane", (int)i);
        last[op->lane] = is_async(op->lane) ? n->start[i] : n->end[i];
        if (seen[op->lane]++ > 0 && !pthread_equal(thread[op->lane], n->thread[i]))
            EK_T_FAIL("op %d ran on another thread than its lane's", (int)i);
        thread[op->lane] = n->thread[i];
        if (op->lane == EK_LANE_COMPUTE)
            CHECK(pthread_equal(n->thread[i], pthread_self()));
    }
}

static void check_random_graphs(const ek_exec_config *config)
{
    ek_exec *ex = NULL;
    ek_graph g;
    notes n;

    CHECK(ek_exec_create(config, &ex) == EK_OK);
    ek_graph_init(&g);
    for (uint64_t seed = 0; seed < 200; seed++) {
        clear(&n);
        ek_graph_reset(&g);
        random_graph(&g, &n, seed, 1 + (int32_t)(seed % 60));
        CHECK(ek_exec_run(ex, &g) == EK_OK);
        check_order(&g, &n);
        for (int32_t i = 0; i < g.n_ops; i++)
            if (is_async(g.ops[i].lane))
                CHECK(pthread_equal(n.thread[i], pthread_self()) == (config != NULL));
    }
    ek_graph_fini(&g);
    ek_exec_destroy(&ex);
}

static void random_graphs_run_in_order(void)
{
    const ek_exec_config here = {.inline_async = 1};

    check_random_graphs(NULL);
    check_random_graphs(&here);
}

static void the_same_graph_runs_again(void)
{
    ek_exec *ex = NULL;
    ek_graph g;
    notes n;

    CHECK(ek_exec_create(NULL, &ex) == EK_OK);
    ek_graph_init(&g);
    clear(&n);
    random_graph(&g, &n, 77, 300);
    for (int i = 0; i < 5; i++) {
        clear(&n);
        CHECK(ek_exec_run(ex, &g) == EK_OK);
        check_order(&g, &n);
    }
    ek_graph_reset(&g);
    CHECK(ek_exec_run(ex, &g) == EK_OK); /* an empty graph */
    ek_graph_fini(&g);
    ek_exec_destroy(&ex);
    CHECK(ex == NULL);
    ek_exec_destroy(&ex);
}

/* A transfer that ends only when a compute op has run, and a compute op that ends only while the
 * transfer is in flight: both end if and only if the two lanes overlap. */
typedef struct {
    atomic_int sent, computed, received;
    char wire[8], inbox[8];
} loop_back;

static ek_status transfer(void *self, const ek_op *op)
{
    loop_back *w = self;

    (void)op;
    atomic_store(&w->sent, 1);
    if (!atomic_load(&w->computed))
        return EK_PENDING;
    memcpy(w->inbox, w->wire, sizeof(w->inbox));
    atomic_store(&w->received, 1);
    return EK_OK;
}

static ek_status compute(void *self, const ek_op *op)
{
    loop_back *w = self;

    (void)op;
    if (!atomic_load(&w->sent)) /* an endless wait is ended by the test's alarm */
        return EK_PENDING;
    EK_REQUIRE(!atomic_load(&w->received), EK_EINTERNAL, "the transfer had ended already");
    atomic_store(&w->computed, 1);
    return EK_OK;
}

static ek_status consume(void *self, const ek_op *op)
{
    loop_back *w = self;

    (void)op;
    EK_REQUIRE(atomic_load(&w->received) && memcmp(w->inbox, w->wire, sizeof(w->inbox)) == 0,
               EK_EINTERNAL, "nothing was received");
    return EK_OK;
}

static void a_transfer_overlaps_computation(void)
{
    const ek_lane lanes[] = {EK_LANE_SUMS, EK_LANE_NET, EK_LANE_COPY, EK_LANE_DISK};
    ek_exec *ex = NULL;
    ek_graph g;

    CHECK(ek_exec_create(NULL, &ex) == EK_OK);
    ek_graph_init(&g);
    for (size_t i = 0; i < sizeof(lanes) / sizeof(lanes[0]); i++) {
        loop_back w = {.wire = "balance"};
        ek_op op = {.kind = EK_OP_SEND, .run = transfer, .self = &w, .lane = lanes[i], .layer = 0};
        int32_t sent;

        ek_graph_reset(&g);
        sent = ek_graph_after(&g, &op, -1);
        op.kind = EK_OP_QKV;
        op.lane = EK_LANE_COMPUTE;
        op.run = compute;
        ek_graph_after(&g, &op, -1);
        op.kind = EK_OP_ROPE;
        op.run = consume;
        ek_graph_after(&g, &op, sent);
        CHECK(ek_exec_run(ex, &g) == EK_OK);
        CHECK(atomic_load(&w.received) == 1);
    }
    ek_graph_fini(&g);
    ek_exec_destroy(&ex);
}

static void a_failure_ends_the_run(void)
{
    ek_exec *ex = NULL;
    ek_graph g;
    notes n;

    CHECK(ek_exec_create(NULL, &ex) == EK_OK);
    ek_graph_init(&g);
    for (int lane = 0; lane < EK_LANE_COUNT; lane++) {
        int32_t first, after_it;

        clear(&n);
        ek_graph_reset(&g);
        first = add(&g, &n, EK_OP_DISPATCH_A2A, (ek_lane)lane, 3, NULL, 0);
        for (int other = 0; other < EK_LANE_COUNT; other++) {
            after_it = add(&g, &n, EK_OP_UNPACK, (ek_lane)other, other, &first, 1);
            add(&g, &n, EK_OP_REPACK, (ek_lane)other, other, &after_it, 1);
        }
        n.fails = first;
        CHECK_INT(ek_exec_run(ex, &g), EK_EIO);
        CHECK(strcmp(ek_err_message(), "dispatch a2a of layer 3: the wire is cut") == 0);
        for (int32_t i = 1; i < g.n_ops; i++)
            CHECK_INT(n.calls[i], 0);
        clear(&n); /* the executor can run again */
        CHECK(ek_exec_run(ex, &g) == EK_OK);
        check_order(&g, &n);
    }
    ek_graph_fini(&g);
    ek_exec_destroy(&ex);
}

/* A lane that would poll for ever stops when an op of another lane fails. */
static void a_failure_ends_polling(void)
{
    ek_exec *ex = NULL;
    ek_graph g;
    notes n;

    CHECK(ek_exec_create(NULL, &ex) == EK_OK);
    ek_graph_init(&g);
    for (int lane = 0; lane < EK_LANE_COUNT; lane++) {
        clear(&n);
        ek_graph_reset(&g);
        add(&g, &n, EK_OP_ROUTER, lane == EK_LANE_COMPUTE ? EK_LANE_NET : EK_LANE_COMPUTE, -1, NULL,
            0);
        add(&g, &n, EK_OP_CLIP, (ek_lane)lane, -1, NULL, 0);
        n.polls[0] = 1 << 30;
        n.fails = 1;
        CHECK_INT(ek_exec_run(ex, &g), EK_EIO);
        CHECK(strcmp(ek_err_message(), "clip: the wire is cut") == 0);
    }
    ek_graph_fini(&g);
    ek_exec_destroy(&ex);
}

static void a_broken_graph_is_refused(void)
{
    ek_exec *ex = NULL;
    ek_graph g;
    notes n;
    int32_t later = 5;

    clear(&n);
    CHECK(ek_exec_create(NULL, &ex) == EK_OK);
    ek_graph_init(&g);
    add(&g, &n, EK_OP_NORM, EK_LANE_COMPUTE, -1, NULL, 0);
    add(&g, &n, EK_OP_NORM, EK_LANE_COMPUTE, -1, &later, 1);
    CHECK_INT(ek_exec_run(ex, &g), EK_EINTERNAL);
    CHECK_INT(n.calls[0], 0);
    ek_graph_fini(&g);
    ek_exec_destroy(&ex);
}

/* One event per op, with its lane and cost, consistent with the stamps. */
static void recording_leaves_one_event_an_op(void)
{
    ek_exec *ex = NULL;
    ek_graph g;
    notes n;
    int64_t count, per_layer[60] = {0};
    const ek_event *e;

    CHECK(ek_exec_create(NULL, &ex) == EK_OK);
    ek_graph_init(&g);
    clear(&n);
    random_graph(&g, &n, 5, 60);
    CHECK(ek_exec_run(ex, &g) == EK_OK);
    ek_exec_events(ex, &count);
    CHECK_INT(count, 0); /* off by default */
    ek_exec_record(ex, 1);
    for (int run = 1; run <= 2; run++) {
        memset(n.calls, 0, sizeof(n.calls));
        CHECK(ek_exec_run(ex, &g) == EK_OK);
        e = ek_exec_events(ex, &count);
        CHECK_INT(count, 60 * run);
    }
    for (int64_t i = 0; i < count; i++) {
        const ek_op *op = &g.ops[e[i].layer]; /* the test sets layer to the op's id */

        per_layer[e[i].layer]++;
        CHECK_INT(e[i].lane, op->lane);
        CHECK(e[i].end_ns >= e[i].start_ns && e[i].flops == 1000 && e[i].bytes == 10);
        for (int64_t j = 0; j < i; j++) /* events of a lane, or of a track of it, do not overlap */
            if (e[j].lane == e[i].lane && e[j].track == e[i].track)
                CHECK(e[j].end_ns <= e[i].start_ns);
    }
    for (int i = 0; i < 60; i++)
        CHECK_INT(per_layer[i], 2);
    ek_exec_forget(ex);
    ek_exec_record(ex, 0);
    CHECK(ek_exec_run(ex, &g) == EK_OK);
    ek_exec_events(ex, &count);
    CHECK_INT(count, 0);
    ek_graph_fini(&g);
    ek_exec_destroy(&ex);
}

/* A device that records its calls: + and - for queue on and off, s for synchronize, and the name of
 * each op. */
typedef struct {
    char said[64];
    int async, fails; /* fails: counts down to the synchronize that fails */
} accelerator;

static void say(accelerator *a, const char *what)
{
    strncat(a->said, what, sizeof(a->said) - strlen(a->said) - 1);
}

static ek_status kernels(void *self, const ek_op *op)
{
    say(self, (char[]){ek_op_name(op->kind)[0], '\0'});
    return EK_OK;
}

static ek_status synchronize(const void *computer)
{
    accelerator *a = (accelerator *)(uintptr_t)computer;

    say(a, "s");
    return --a->fails == 0 ? EK_FAIL(EK_EDEVICE, "it is too hot") : EK_OK;
}

static void queue(const void *computer, int on)
{
    accelerator *a = (accelerator *)(uintptr_t)computer;

    if (on != a->async)
        say(a, on ? "+" : "-");
    a->async = on;
}

/* Runs async ops (q), other ops (h), and network ops (n). */
static ek_status run_on(accelerator *a, const char *ops, int record)
{
    const ek_exec_config config = {.synchronize = synchronize, .queue = queue, .computer = a};
    ek_exec *ex = NULL;
    ek_graph g;
    ek_status st;

    ek_graph_init(&g);
    for (; *ops != '\0'; ops++) {
        ek_op op = {.kind = *ops == 'q'   ? EK_OP_QKV
                            : *ops == 'h' ? EK_OP_HEAD_BACKWARD
                                          : EK_OP_NORM,
                    .run = kernels,
                    .self = a,
                    .lane = *ops == 'n' ? EK_LANE_NET : EK_LANE_COMPUTE,
                    .layer = -1,
                    .micro = -1,
                    .async = *ops == 'q'};

        ek_graph_after(&g, &op, g.n_ops - 1);
    }
    CHECK(ek_exec_create(&config, &ex) == EK_OK);
    ek_exec_record(ex, record);
    st = ek_exec_run(ex, &g);
    ek_exec_destroy(&ex);
    ek_graph_fini(&g);
    return st;
}

static void async_ops_are_synchronised_lazily(void)
{
    static const struct {
        const char *ops;
        int record;
        const char *said;
    } t[] = {
        {"qqhq", 0, "+qqs-hs+qs-"}, {"hh", 0, "hshs"},   {"qq", 0, "+qqs-"}, {"", 0, ""},
        {"qqhq", 1, "qsqshsqs"},    {"qqn", 0, "qsqsn"},
    };

    for (size_t i = 0; i < sizeof(t) / sizeof(*t); i++) {
        accelerator a = {0};

        CHECK_INT(run_on(&a, t[i].ops, t[i].record), EK_OK);
        if (strcmp(a.said, t[i].said) != 0)
            EK_T_FAIL("%s: %s, expected %s", t[i].ops, a.said, t[i].said);
    }
}

/* The synchronising op has the message, and queueing is off afterwards. */
static void an_async_op_fails(void)
{
    accelerator a = {.fails = 1}, b = {.fails = 1};

    CHECK_INT(run_on(&a, "qqhq", 0), EK_EDEVICE);
    CHECK(strcmp(a.said, "+qqs-") == 0);
    CHECK(strcmp(ek_err_message(), "head backward: it is too hot") == 0);
    CHECK_INT(run_on(&b, "qq", 0), EK_EDEVICE);
    CHECK(strcmp(b.said, "+qqs-") == 0);
    CHECK(strcmp(ek_err_message(), "qkv: it is too hot") == 0);
}

static const ek_case cases[] = {
    EK_CASE(random_graphs_run_in_order),
    EK_CASE(the_same_graph_runs_again),
    EK_CASE(a_transfer_overlaps_computation),
    EK_CASE(a_failure_ends_the_run),
    EK_CASE(a_failure_ends_polling),
    EK_CASE(a_broken_graph_is_refused),
    EK_CASE(recording_leaves_one_event_an_op),
    EK_CASE(async_ops_are_synchronised_lazily),
    EK_CASE(an_async_op_fails),
};
EK_TEST_MAIN(cases)
