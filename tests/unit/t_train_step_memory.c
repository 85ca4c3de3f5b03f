/* What the steps of many micro-batches need of memory when they are simulated: the graphs of all
 * stages, and the state of both engines, in bytes of an op.  A search has several steps of millions
 * of ops in memory at once.
 *
 * The allocator is replaced by one that counts bytes; with sanitizers, which have their own,
 * nothing is checked. */
#include "ek_test.h"
#include "model_file.h"
#include "sim/flow.h"
#include "toy_machine.h"
#include "train/imagine.h"
#include "train/simulate.h"

#include <malloc.h>
#include <stdlib.h>
#include <unistd.h>

enum { STAGES = 8, FEW = 96, MANY = 192 };

/* Of an op: its place in the graph and its dependencies, ... */
#define GRAPH_BYTES 18
/* ... and when and by what it ends, and, of flow, what waits for it. */
#define REPLAY_BYTES 20
#define FLOW_BYTES   42

static int64_t in_use, most;

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define COUNTED 1

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void __libc_free(void *p);

static void add(void *p, int64_t times)
{
    int64_t now =
        __atomic_add_fetch(&in_use, times * (int64_t)malloc_usable_size(p), __ATOMIC_RELAXED);

    if (now > most) /* the test has one thread when it matters */
        most = now;
}

void *malloc(size_t n)
{
    void *p = __libc_malloc(n);

    add(p, 1);
    return p;
}

void *calloc(size_t n, size_t size)
{
    void *p = __libc_calloc(n, size);

    add(p, 1);
    return p;
}

void *realloc(void *p, size_t n)
{
    void *q;

    add(p, -1);
    q = __libc_realloc(p, n);
    add(q, 1);
    return q;
}

void free(void *p)
{
    add(p, -1);
    __libc_free(p);
}
#else
#define COUNTED 0
#endif

static void price_op(const void *context, const ek_sim_class *c, const ek_op *op, ek_sim_price *out)
{
    ek_simulate_price(context, c, op, out);
}

/* Ops of all stages, and bytes at the peak: of graphs, of the state of replay, and of flow. */
typedef struct {
    double ops, graphs, replay, flow;
} measured;

static double simulate(const ek_cluster *c, const ek_sim_graphs *g, int flow)
{
    ek_sim_config cfg = {.graphs = g, .price = price_op, .context = c};
    int64_t before = in_use;
    ek_sim_result r;

    most = before;
    CHECK_INT(flow ? ek_sim_flow(&cfg, c, &r) : ek_sim_replay(&cfg, &r), EK_OK);
    CHECK(r.step_s > 0);
    ek_sim_free(&r);
    return (double)(most - before);
}

static measured measure(const ek_cluster *c, const char *model, int micros)
{
    ek_train_config cfg = EK_TRAIN_CONFIG_INIT;
    int64_t before = in_use;
    const ek_sim_graphs *g;
    ek_imagined *im = NULL;
    int node_of[STAGES];
    measured m = {0};

    for (int r = 0; r < STAGES; r++)
        node_of[r] = r;
    cfg.model = model;
    cfg.pp = STAGES;
    cfg.micro_batch = 1;
    cfg.batch = micros;
    CHECK_INT(ek_imagine(&cfg, &(ek_imagined_world){STAGES, node_of, c, NULL}, 0, &im), EK_OK);
    m.graphs = (double)(in_use - before);
    g = ek_imagined_graphs(im);
    for (int32_t k = 0; k < g->n_classes; k++)
        m.ops += g->classes[k].graph->n_ops;
    m.replay = simulate(c, g, 0);
    m.flow = simulate(c, g, 1);
    ek_imagined_close(&im);
    return m;
}

static void ops_of_more_micro_batches_need_little_memory(void)
{
    char path[] = "/tmp/ek-memory-XXXXXX";
    ek_cluster c = {0};
    measured few, many;
    double ops;

    c.machine = toy_machine("bf16", 1e12, 1e11);
    c.n_levels = 1;
    c.level[0] = (ek_cluster_level){
        .name = "net", .ranks = STAGES, .bytes_s = 1e9, .latency_s = 8e-6, .rails = 1};
    write_model(path);
    few = measure(&c, path, FEW);
    many = measure(&c, path, MANY);
    (void)unlink(path);
    ops = many.ops - few.ops;
    many.graphs = (many.graphs - few.graphs) / ops;
    many.replay = (many.replay - few.replay) / ops;
    many.flow = (many.flow - few.flow) / ops;
    printf("%.0f ops more: graphs %.1f bytes of an op, replay %.1f, flow %.1f\n", ops, many.graphs,
           many.replay, many.flow);
    CHECK(ops > 20000);
    CHECK(!COUNTED || (many.graphs > 12 && many.graphs < GRAPH_BYTES));
    CHECK(!COUNTED || (many.replay > 12 && many.replay < REPLAY_BYTES));
    CHECK(!COUNTED || (many.flow > many.replay && many.flow < FLOW_BYTES));
}

static const ek_case cases[] = {
    EK_CASE(ops_of_more_micro_batches_need_little_memory),
};
EK_TEST_MAIN(cases)
