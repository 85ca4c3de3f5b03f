/* Steps of several ranks in the steady state allocate nothing, except when more operations are in
 * flight, or more rows arrive, than ever before, which differs from run to run: so of the steps
 * with the same loads one at least allocates nothing.  This program counts every allocation on any
 * of its threads.  Ranks are threads. */
#include "base/random.h"
#include "count_allocations.h"
#include "ek_test.h"
#include "model/hf/init.h"
#include "tensor/select/select.h"
#include "train/trainer.h"

#include <pthread.h>

enum { RANKS_MAX = 4, BATCH = 5, MICRO = 2, SEQ = 16, VOCAB = 120 };
enum { LOADS = 3, WARM = 4 * LOADS, STEPS = 8 * LOADS }; /* step % LOADS: the kind of loads */

typedef struct {
    int ranks;
    ek_mesh_sizes sizes;
    int model_chunks, zero, worker, tuned;
    ek_moe_config moe;
    ek_mode mode;
} layout;

typedef struct {
    const layout *l;
    ek_comm *world;
    pthread_t thread;
    ek_status st;
    char text[400];
} rank;

static pthread_barrier_t together;
static int allocated[WARM + STEPS]; /* in each step, by all ranks */

/* Some steps have few different tokens, so that loads go from even to all to one. */
static void fill(ek_trainer *tr, uint64_t step)
{
    uint64_t kinds = step % LOADS == 0 ? 1 : step % LOADS == 1 ? 5 : VOCAB;

    for (int64_t i = 0; i < ek_trainer_sequences(tr) * SEQ; i++) {
        uint64_t at = (uint64_t)(ek_trainer_sequence(tr, i / SEQ) * SEQ + i % SEQ);

        ek_trainer_inputs(tr)[i] = (int32_t)(ek_random_bits(step, 1, at) % kinds);
        ek_trainer_targets(tr)[i] = (int32_t)(ek_random_bits(step, 2, at) % VOCAB);
    }
}

/* Counts from the start of a step on all ranks to its end on all. */
static ek_status take_steps(ek_trainer *tr, int first)
{
    ek_status st = EK_OK;

    for (uint64_t step = 0; step < WARM + STEPS; step++) {
        ek_step_result r;

        fill(tr, step);
        pthread_barrier_wait(&together);
        if (first)
            atomic_store(&counting, step >= WARM);
        pthread_barrier_wait(&together);
        if (st >= 0)
            st = ek_trainer_step(tr, &r);
        pthread_barrier_wait(&together);
        if (first) {
            atomic_store(&counting, 0);
            allocated[step] = atomic_exchange(&allocations, 0);
        }
        pthread_barrier_wait(&together);
    }
    return st;
}

static ek_status train(const rank *r, int first)
{
    const layout *l = r->l;
    ek_model_config mc = {.trained = 1, .model_chunks = l->model_chunks, .zero = l->zero};
    ek_trainer_config cfg = {
        .batch = BATCH,
        .micro_batch = MICRO,
        .seq = SEQ,
        .document_mask = l->worker,
        .document_end = 1,
        .aux_coef = 0.01,
        .moe = l->moe,
        .tune_degree = l->tuned,
        .tune_a2a = l->tuned,
        .exec = {.inline_async = !l->worker, .watchdog_s = 60},
        .optimizer = {
            .lr = 1e-3, .steps = 100, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .clip = 1}};
    ek_kernels *k = NULL;
    ek_mesh *mesh = NULL;
    ek_model *m = NULL;
    ek_trainer *tr = NULL;
    ek_model_spec s;
    ek_status st = EK_OK;

    EK_TRY_OUT(ek_model_preset("tiny", &s));
    s.vocab = VOCAB;
    s.hidden = 24;
    s.head_dim = 6;
    s.experts = 6;
    s.ff = 20;
    s.shared_ff = 9;
    s.eos_id = -1;
    EK_TRY_OUT(ek_kernels_create(l->mode, ek_cpu_isa(), 1, &k));
    EK_TRY_OUT(ek_mesh_open(r->world, &l->sizes, &mesh));
    mc.mesh = mesh;
    EK_TRY_OUT(ek_model_create(&s, k, &mc, &m));
    CHECK(ek_model_init(m, 1) == EK_OK);
    EK_TRY_OUT(ek_model_pack(m));
    EK_TRY_OUT(ek_trainer_create(m, &cfg, &tr));
    EK_TRY_OUT(take_steps(tr, first));
out:
    ek_trainer_destroy(&tr);
    ek_model_destroy(&m);
    ek_mesh_close(&mesh);
    ek_kernels_destroy(&k);
    return st;
}

static void *rank_main(void *arg)
{
    rank *r = arg;

    r->st = train(r, ek_comm_rank(r->world) == 0);
    if (r->st < 0)
        snprintf(r->text, sizeof(r->text), "%s", ek_err_text());
    return NULL;
}

static void run(const layout *l)
{
    static const int node_of[RANKS_MAX] = {0, 1, 1, 0};
    rank ranks[RANKS_MAX];
    ek_comm *world[RANKS_MAX];

    CHECK(pthread_barrier_init(&together, NULL, (unsigned)l->ranks) == 0);
    CHECK(ek_comm_open_threads(l->ranks, world) == EK_OK);
    for (int i = 0; i < l->ranks; i++) {
        ek_comm_set_nodes(world[i], node_of);
        ranks[i] = (rank){.l = l, .world = world[i]};
        CHECK(pthread_create(&ranks[i].thread, NULL, rank_main, &ranks[i]) == 0);
    }
    for (int i = 0; i < l->ranks; i++) {
        CHECK(pthread_join(ranks[i].thread, NULL) == 0);
        if (ranks[i].st < 0)
            EK_T_FAIL("rank %d of %d: %s", i, l->ranks, ranks[i].text);
        ek_comm_close(&world[i]);
    }
    pthread_barrier_destroy(&together);
}

static int least_allocations(int load)
{
    int least = allocated[WARM + load];

    for (int step = WARM + load; step < WARM + STEPS; step += LOADS)
        least = allocated[step] < least ? allocated[step] : least;
    return least;
}

static void check(layout l)
{
    if (!COUNTED)
        SKIP("a sanitizer owns the allocator");
    for (l.worker = 0; l.worker < 2; l.worker++) {
        l.mode = l.worker ? EK_MODE_FP64 : EK_MODE_FP32;
        run(&l);
        for (int load = 0; load < LOADS; load++)
            if (least_allocations(load) > 0)
                EK_T_FAIL(
                    "%d ranks, pp %d tp %d ep %d, zero %d: every step with load %d allocates, "
                    "%d times or more",
                    l.ranks, l.sizes.pp, l.sizes.tp, l.sizes.ep, l.zero, load,
                    least_allocations(load));
    }
}

static void data_parallel(void)
{
    for (int zero = 0; zero < 4; zero++)
        check((layout){.ranks = 3, .zero = zero});
}

static void expert_parallel(void)
{
    check((layout){.ranks = 4, .sizes = {.ep = 2}, .zero = 1, .moe = {.degree = 3}});
    check((layout){.ranks = 3, .sizes = {.ep = 3}, .moe = {.degree = 2, .a2a = EK_A2A_PAIRWISE}});
    check((layout){.ranks = 4, .sizes = {.ep = 4}, .moe = {.a2a = EK_A2A_2DH}});
    check((layout){.ranks = 4, .sizes = {.ep = 2, .etp = 2}, .moe = {.smart_group = 1}});
}

/* Every setting has been tried once when counting begins. */
static void tuned(void)
{
    check((layout){.ranks = 4, .sizes = {.ep = 4}, .tuned = 1});
    check((layout){.ranks = 4, .sizes = {.ep = 2, .etp = 2}, .zero = 1, .tuned = 1});
}

static void tensor_parallel(void)
{
    check((layout){.ranks = 4, .sizes = {.tp = 2, .ep = 4}, .zero = 3});
    check((layout){.ranks = 3, .sizes = {.tp = 3}});
}

static void pipeline(void)
{
    check((layout){.ranks = 2, .sizes = {.pp = 2}, .model_chunks = 2});
    check((layout){.ranks = 4, .sizes = {.pp = 2, .tp = 2, .ep = 2}, .zero = 2});
}

static const ek_case cases[] = {
    EK_CASE(data_parallel),   EK_CASE(expert_parallel), EK_CASE(tuned),
    EK_CASE(tensor_parallel), EK_CASE(pipeline),
};

EK_TEST_MAIN(cases)
