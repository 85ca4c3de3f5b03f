/* The asynchronous lanes: several ops in flight, ek_op.state, the calling thread instead of a
 * worker, a worker that sleeps, and the watchdog. */
#include "base/backoff.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/progress_hook.h"
#include "ek_test.h"
#include "exec/exec.h"

#include <pthread.h>
#include <stdatomic.h>

enum { OPS = 12 };

static const ek_lane async_lanes[] = {EK_LANE_SUMS, EK_LANE_NET, EK_LANE_DISK};
static const ek_exec_config modes[] = {{.inline_async = 0}, {.inline_async = 1}};

#define EACH_MODE(m) for (const ek_exec_config *m = modes; m < modes + 2; m++)

/* State shared by the ops of a graph. */
typedef struct {
    atomic_int started, ended, wanted; /* a transfer ends when `wanted` have started */
    atomic_int depth, nested;
    int order[OPS];
    int wrong_cells;
    pthread_t thread[OPS];
    atomic_int flag;
} shared;

static ek_op op_of(ek_lane lane, ek_op_kind kind, ek_op_fn run, shared *s, int32_t part)
{
    return (ek_op){.kind = kind,
                   .run = run,
                   .self = s,
                   .lane = lane,
                   .layer = part,
                   .micro = -1,
                   .part = part};
}

static ek_status run_graph(const ek_exec_config *config, ek_graph *g)
{
    ek_exec *ex = NULL;
    ek_status st;

    CHECK(ek_exec_create(config, &ex) == EK_OK);
    st = ek_exec_run(ex, g);
    ek_exec_destroy(&ex);
    return st;
}

/* Ends when all have started; sets its state at the first call, and checks it at the others. */
static ek_status transfer(void *self, const ek_op *op)
{
    shared *s = self;

    s->thread[op->part] = pthread_self();
    if (*op->state == NULL) {
        s->order[atomic_fetch_add(&s->started, 1)] = op->part;
        *op->state = &s->order[op->part];
    }
    s->wrong_cells += *op->state != &s->order[op->part];
    if (atomic_load(&s->started) < atomic_load(&s->wanted))
        return EK_PENDING;
    atomic_fetch_add(&s->ended, 1);
    return EK_OK;
}

/* They end if and only if all are in flight at once; every run begins with empty states. */
static void transfers_are_in_flight_together(void)
{
    EACH_MODE(m)
    {
        ek_exec *ex = NULL;
        ek_graph g;

        CHECK(ek_exec_create(m, &ex) == EK_OK);
        ek_graph_init(&g);
        for (int run = 0; run < 3; run++) {
            shared s = {.wanted = OPS};

            ek_graph_reset(&g);
            for (int i = 0; i < OPS; i++) {
                ek_op op = op_of(async_lanes[i % 3], EK_OP_SEND, transfer, &s, i);

                ek_graph_after(&g, &op, -1);
            }
            CHECK(ek_exec_run(ex, &g) == EK_OK);
            CHECK_INT(s.ended, OPS);
            CHECK_INT(s.wrong_cells, 0);
            for (int i = 0; i < OPS; i++) {
                CHECK(pthread_equal(s.thread[i], s.thread[0]));
                CHECK(pthread_equal(s.thread[i], pthread_self()) == m->inline_async);
            }
        }
        ek_graph_fini(&g);
        ek_exec_destroy(&ex);
    }
}

/* Fails if another transfer is in flight: each depends on the one before. */
static ek_status alone(void *self, const ek_op *op)
{
    shared *s = self;

    if (*op->state == NULL) {
        *op->state = s;
        EK_REQUIRE(atomic_fetch_add(&s->depth, 1) == 0, EK_EINTERNAL, "two at once");
        return EK_PENDING;
    }
    atomic_fetch_sub(&s->depth, 1);
    return EK_OK;
}

static void dependencies_make_transfers_serial(void)
{
    EACH_MODE(m)
    {
        shared s = {0};
        ek_graph g;
        int32_t last = -1;

        ek_graph_init(&g);
        for (int i = 0; i < OPS; i++) {
            ek_op op = op_of(async_lanes[i % 3], EK_OP_SEND, alone, &s, i);

            last = ek_graph_after(&g, &op, last);
        }
        CHECK(run_graph(m, &g) == EK_OK);
        ek_graph_fini(&g);
    }
}

static ek_status at_once(void *self, const ek_op *op)
{
    (void)self;
    (void)op;
    return EK_OK;
}

/* Calls of ek_backoff_wait, which the linker lets this program see (cmake/ek_tests.cmake): a worker
 * that polls makes one after each poll in vain. */
static atomic_int backoffs;

void __real_ek_backoff_wait(ek_backoff *p);
void __wrap_ek_backoff_wait(ek_backoff *p);

void __wrap_ek_backoff_wait(ek_backoff *p)
{
    atomic_fetch_add(&backoffs, 1);
    __real_ek_backoff_wait(p);
}

/* Pending until it was polled more often than a worker does before it sleeps. */
static ek_status transfer_until_polled(void *self, const ek_op *op)
{
    shared *s = self;

    if (*op->state == NULL) {
        s->order[0] = atomic_load(&backoffs);
        *op->state = s;
    }
    return atomic_load(&backoffs) - s->order[0] < 1000 ? EK_PENDING : EK_OK;
}

/* Ends when nobody has polled for a while. */
static ek_status compute_until_quiet(void *self, const ek_op *op)
{
    shared *s = self;

    (void)op;
    for (int i = 0; i < 200; i++) {
        int before = atomic_load(&backoffs);

        ek_clock_sleep_ms(50);
        if (atomic_load(&backoffs) == before)
            return EK_OK;
    }
    atomic_fetch_add(&s->flag, 1);
    return EK_OK;
}

/* While a compute op runs and nothing is in flight, the worker does not poll; else it does. */
static void a_worker_with_nothing_to_poll_sleeps(void)
{
    shared s = {0};
    ek_graph g;

    ek_graph_init(&g);
    for (size_t i = 0; i < 3; i++) {
        ek_op op = op_of(async_lanes[i], EK_OP_SEND, at_once, &s, 0);
        int32_t last;

        ek_graph_after(&g, &op, -1); /* the worker is awake when the wait begins */
        op = op_of(EK_LANE_COMPUTE, EK_OP_QKV, compute_until_quiet, &s, 0);
        last = ek_graph_after(&g, &op, -1);
        op = op_of(async_lanes[i], EK_OP_SEND, transfer_until_polled, &s, 1);
        ek_graph_after(&g, &op, last);
    }
    CHECK(run_graph(&modes[0], &g) == EK_OK);
    CHECK_INT(s.flag, 0);
    ek_graph_fini(&g);
}

static ek_status fail_late(void *self, const ek_op *op)
{
    (void)self;
    (void)op;
    ek_clock_sleep_ms(30);
    return EK_FAIL(EK_EIO, "failed late");
}

/* A failure of another lane wakes it. */
static void a_sleeping_worker_sees_a_failure(void)
{
    shared s = {0};
    ek_graph g;
    ek_op op = op_of(EK_LANE_COMPUTE, EK_OP_QKV, fail_late, &s, 0);
    int32_t last;

    ek_graph_init(&g);
    last = ek_graph_after(&g, &op, -1);
    op = op_of(EK_LANE_DISK, EK_OP_SEND, at_once, &s, 0);
    ek_graph_after(&g, &op, last);
    CHECK(run_graph(&modes[0], &g) == EK_EIO);
    ek_graph_fini(&g);
}

static ek_status quick(void *self, const ek_op *op)
{
    shared *s = self;
    int at = atomic_fetch_add(&s->started, 1);

    if (at < OPS)
        s->order[at] = op->part;
    return EK_OK;
}

/* Ends only when the transfer before it in its lane has started. */
static ek_status raise_flag(void *self, const ek_op *op)
{
    shared *s = self;

    (void)op;
    for (int i = 0; i < 1000; i++)
        ek_progress();
    atomic_store(&s->flag, 1);
    return EK_OK;
}

/* Transfer 1 waits for a compute op; transfer 2, which could start, starts after it. */
static void starts_keep_the_order_of_the_graph(void)
{
    EACH_MODE(m)
    {
        shared s = {0};
        ek_graph g;
        ek_op ops[] = {op_of(EK_LANE_COMPUTE, EK_OP_QKV, raise_flag, &s, 0),
                       op_of(EK_LANE_NET, EK_OP_WAIT_WEIGHTS, quick, &s, 1),
                       op_of(EK_LANE_NET, EK_OP_RECEIVE, quick, &s, 2)};

        ek_graph_init(&g);
        ek_graph_after(&g, &ops[0], -1);
        ek_graph_after(&g, &ops[1], 0);
        ek_graph_after(&g, &ops[2], -1);
        CHECK(run_graph(m, &g) == EK_OK);
        CHECK(s.order[0] == 1 && s.order[1] == 2);
        ek_graph_fini(&g);
    }
}

/* A kernel that ends only after the network was served from inside it. */
static ek_status kernel(void *self, const ek_op *op)
{
    shared *s = self;

    (void)op;
    while (atomic_load(&s->ended) < OPS)
        ek_progress();
    return EK_OK;
}

/* Needs three calls, and calls ek_progress itself for longer than the hook's period. */
static ek_status ticking_transfer(void *self, const ek_op *op)
{
    shared *s = self;
    int64_t end = ek_clock_ns() + 100000;

    if (atomic_fetch_add(&s->depth, 1) > 0)
        atomic_fetch_add(&s->nested, 1);
    while (ek_clock_ns() < end)
        ek_progress();
    atomic_fetch_sub(&s->depth, 1);
    if (++s->order[op->part] < 3)
        return EK_PENDING;
    atomic_fetch_add(&s->ended, 1);
    return EK_OK;
}

static void kernels_keep_the_network_moving(void)
{
    EACH_MODE(m)
    {
        shared s = {0};
        ek_graph g;
        ek_op op = op_of(EK_LANE_COMPUTE, EK_OP_QKV, kernel, &s, 0);

        ek_graph_init(&g);
        ek_graph_after(&g, &op, -1);
        for (int i = 0; i < OPS; i++) {
            op = op_of(EK_LANE_NET, EK_OP_SEND, ticking_transfer, &s, i);
            ek_graph_after(&g, &op, -1);
        }
        CHECK(run_graph(m, &g) == EK_OK);
        CHECK_INT(s.nested, 0);
        ek_graph_fini(&g);
    }
}

static void count_call(void *context)
{
    ++*(int *)context;
}

/* After a run, failed or not, the thread's progress hook is unset. */
static void the_progress_hook_is_unset_after_a_run(void)
{
    shared s = {0};
    ek_graph g;
    int calls = 0;
    ek_op op = op_of(EK_LANE_COMPUTE, EK_OP_NORM, quick, &s, 0);

    ek_progress_hook_set(count_call, &calls);
    ek_graph_init(&g);
    ek_graph_after(&g, &op, -1);
    CHECK(run_graph(&modes[1], &g) == EK_OK);
    ek_progress();
    CHECK_INT(calls, 0);
    ek_graph_fini(&g);
}

/* --- hangs ------------------------------------------------------------------------------------ */

static ek_status never(void *self, const ek_op *op)
{
    (void)self;
    (void)op;
    return EK_PENDING;
}

static void describe_never(void *self, const ek_op *op, char *text, size_t cap)
{
    (void)self;
    snprintf(text, cap, "part %d waits for rank 3", (int)op->part);
}

typedef struct {
    atomic_int warnings;
    char last[512];
} heard;

static void on_plan(void *context, ek_log_level level, const char *component, const char *message)
{
    heard *h = context;

    (void)component;
    h->warnings += level == EK_LOG_WARN;
    snprintf(h->last, sizeof(h->last), "%s", message);
}

/* A transfer hangs while ops of all lanes wait for it, for ever, or for each other. */
static void a_hang_names_op_and_peer(void)
{
    EACH_MODE(m)
    {
        ek_exec_config config = *m;
        shared s = {0};
        heard h = {0};
        ek_graph g;
        ek_op op = op_of(EK_LANE_NET, EK_OP_DISPATCH_A2A, never, &s, 7);
        int32_t hung;

        config.watchdog_s = 0.04;
        ek_log_set_sink(on_plan, &h, EK_LOG_WARN);
        ek_graph_init(&g);
        op.micro = 2;
        op.describe = describe_never;
        hung = ek_graph_after(&g, &op, -1);
        op = op_of(EK_LANE_NET, EK_OP_REDUCE_GRADIENTS, never, &s, 1);
        ek_graph_after(&g, &op, -1);
        op = op_of(EK_LANE_DISK, EK_OP_PACK, never, &s, 1);
        ek_graph_after(&g, &op, -1);
        op = op_of(EK_LANE_COMPUTE, EK_OP_WAIT_WEIGHTS, quick, &s, 0);
        ek_graph_after(&g, &op, hung);
        CHECK_INT(run_graph(&config, &g), EK_ETIMEOUT);
        CHECK(strstr(ek_err_message(),
                     "dispatch a2a of layer 7, micro-batch 2: nothing has moved for ") ==
              ek_err_message());
        CHECK(strstr(ek_err_message(), "part 7 waits for rank 3") != NULL);
        CHECK_INT(h.warnings, 1);
        CHECK(strstr(h.last, "dispatch a2a of layer 7, micro-batch 2: nothing has") != NULL);
        CHECK(strstr(h.last, "part 7 waits for rank 3") != NULL);
        CHECK_INT(s.started, 0);
        ek_log_set_sink(NULL, NULL, EK_LOG_ERROR);
        ek_graph_fini(&g);
    }
}

/* Computes for several times the watchdog's limit. */
static ek_status long_kernel(void *self, const ek_op *op)
{
    shared *s = self;
    int64_t end = ek_clock_ns() + 150000000;

    (void)op;
    while (ek_clock_ns() < end)
        ek_progress();
    atomic_store(&s->flag, 1);
    return EK_OK;
}

static ek_status until_flag(void *self, const ek_op *op)
{
    shared *s = self;

    (void)op;
    return atomic_load(&s->flag) ? EK_OK : EK_PENDING;
}

static void computing_is_no_hang(void)
{
    EACH_MODE(m)
    {
        ek_exec_config config = *m;
        shared s = {0};
        ek_graph g;
        ek_op ops[] = {op_of(EK_LANE_COMPUTE, EK_OP_QKV, long_kernel, &s, 0),
                       op_of(EK_LANE_NET, EK_OP_SEND, until_flag, &s, 1)};

        config.watchdog_s = 0.05;
        ek_graph_init(&g);
        ek_graph_after(&g, &ops[0], -1);
        ek_graph_after(&g, &ops[1], -1);
        CHECK(run_graph(&config, &g) == EK_OK);
        ek_graph_fini(&g);
    }
}

/* A slow transfer: bytes are transferred, so the run continues. */
static ek_status slow(void *self, const ek_op *op)
{
    int64_t *end = self;

    (void)op;
    if (*end == 0)
        *end = ek_clock_ns() + 150000000;
    return ek_clock_ns() < *end ? EK_PENDING : EK_OK;
}

static int64_t bytes_moved(void *context)
{
    return ++*(int64_t *)context;
}

static void moving_bytes_are_no_hang(void)
{
    EACH_MODE(m)
    {
        int64_t bytes = 0, end = 0;
        ek_exec_config config = *m;
        ek_graph g;
        ek_op op = {.kind = EK_OP_SEND, .run = slow, .self = &end, .lane = EK_LANE_NET};

        config.watchdog_s = 0.05;
        config.moved = bytes_moved;
        config.context = &bytes;
        ek_graph_init(&g);
        ek_graph_after(&g, &op, -1);
        CHECK(run_graph(&config, &g) == EK_OK);
        end = 0;
        config.moved = NULL;
        CHECK_INT(run_graph(&config, &g), EK_ETIMEOUT);
        CHECK(strstr(ek_err_message(), "1 ops are in flight") != NULL);
        ek_graph_fini(&g);
    }
}

/* --- recording -------------------------------------------------------------------------------- */

/* Ops in flight at the same time have different tracks, the lowest that are free. */
static void tracks_are_free_of_overlap(void)
{
    EACH_MODE(m)
    {
        shared s = {.wanted = OPS};
        ek_exec *ex = NULL;
        const ek_event *e;
        ek_graph g;
        int64_t n, seen = 0;
        int32_t last = -1;

        CHECK(ek_exec_create(m, &ex) == EK_OK);
        ek_exec_record(ex, 1);
        ek_graph_init(&g);
        for (int i = 0; i < OPS; i++) {
            ek_op op = op_of(EK_LANE_NET, EK_OP_SEND, transfer, &s, i);

            last = ek_graph_after(&g, &op, -1);
        }
        for (int i = 0; i < 3; i++) {
            ek_op op = op_of(EK_LANE_NET, EK_OP_UNPACK, quick, &s, i);

            last = ek_graph_after(&g, &op, last);
        }
        CHECK(ek_exec_run(ex, &g) == EK_OK);
        e = ek_exec_events(ex, &n);
        CHECK_INT(n, OPS + 3);
        for (int64_t i = 0; i < n; i++) {
            CHECK(i == 0 || e[i].end_ns >= e[i - 1].end_ns);
            if (e[i].kind == EK_OP_SEND)
                seen |= (int64_t)1 << e[i].track;
            else
                CHECK(e[i].track < OPS);
            for (int64_t j = 0; j < i; j++)
                if (e[i].track == e[j].track)
                    CHECK(e[j].end_ns <= e[i].start_ns);
        }
        CHECK_INT(seen, (1 << OPS) - 1);
        ek_graph_fini(&g);
        ek_exec_destroy(&ex);
    }
}

static const ek_case cases[] = {
    EK_CASE(transfers_are_in_flight_together),
    EK_CASE(dependencies_make_transfers_serial),
    EK_CASE(a_worker_with_nothing_to_poll_sleeps),
    EK_CASE(a_sleeping_worker_sees_a_failure),
    EK_CASE(starts_keep_the_order_of_the_graph),
    EK_CASE(kernels_keep_the_network_moving),
    EK_CASE(the_progress_hook_is_unset_after_a_run),
    EK_CASE(a_hang_names_op_and_peer),
    EK_CASE(computing_is_no_hang),
    EK_CASE(moving_bytes_are_no_hang),
    EK_CASE(tracks_are_free_of_overlap),
};
EK_TEST_MAIN(cases)
