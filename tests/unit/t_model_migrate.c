/* Migration of experts: weights, masters and moments arrive bit for bit in their new slots, also if
 * ranks shard them; packed forms match the masters, and every number has exactly one owner; if
 * state outlives the processes, a complete copy of every expert exists at any instant. */
#include "model/experts/migrate.h"
#include "model/hf/names.h"
#include "model/hf/weights.h"
#include "small_spec.h"
#include "tensor/select/select.h"
#include "train_ranks.h"

enum { ROUNDS = 12, LAYERS = 2, PLACES = 16 };

/* Experts (counted from 1) in the memory of all ranks: in slots, then in staging entries.  An
 * expert that is complete in none of them at some instant would be lost if all ranks were killed
 * then. */
typedef struct {
    pthread_mutex_t lock;
    int held[LAYERS][RANKS_MAX][2 * PLACES];
    int run_of[RANKS_MAX], ranks,
        experts; /* ranks of an expert-parallel group split the experts, ranks of etp each expert */
    int64_t events, gaps;
} witness;

/* One rank. */
typedef struct {
    int ranks, zero, persistent;
    int of_node;   /* ranks per node; 0: one node */
    witness *seen; /* NULL: state ends with the process */
    int rank;
    void *memory;
    ek_mesh_sizes sizes;
    ek_comm *world;
    int64_t owned, whole, moved, crossed;
    int failed;
} mover;

static double number_of(int kind, const ek_hf_tensor *t, int64_t row, int64_t col)
{
    return ek_random_uniform((uint64_t)kind, ek_random_stream(t->name),
                             (uint64_t)(row * 1000 + col));
}

/* Fills, or checks, masters and moments of all experts of this rank. */
static void each_number(ek_model *m, int check, mover *v)
{
    for (int64_t i = 0; i < ek_hf_count(&m->spec); i++) {
        ek_hf_tensor t;
        ek_span a;

        ek_hf_tensor_at(&m->spec, i, &t);
        if (t.expert < 0 || !ek_model_span(m, &t, &a))
            continue;
        for (int64_t r = 0; r < a.rows; r++)
            for (int64_t c = 0; c < a.cols; c++) {
                int64_t at = a.first + r * a.ld + c - a.w->kept_first;
                double *arrays[] = {a.w->p_kept, a.w->m, a.w->v}, *read = a.w->p;

                if (check && v->zero < 3 &&
                    read[a.first + r * a.ld + c] != number_of(0, &t, a.row + r, a.col + c))
                    v->failed = 1;
                for (int kind = 0; kind < 3 && at >= 0 && at < a.w->kept; kind++) {
                    double want = number_of(kind, &t, a.row + r, a.col + c);

                    if (!check)
                        arrays[kind][at] = want;
                    else if (arrays[kind][at] != want)
                        v->failed = 1;
                }
            }
    }
}

static int is_held(const witness *w, int layer, int run, int expert)
{
    for (int r = 0; r < w->ranks; r++)
        for (int i = 0; i < 2 * PLACES && w->run_of[r] == run; i++)
            if (w->held[layer][r][i] == expert + 1)
                return 1;
    return 0;
}

static void witness_holds(void *context, int32_t layer, int32_t slot, int32_t expert)
{
    mover *v = context;
    witness *w = v->seen;
    int place = slot >= 0 ? slot : PLACES - 1 - slot;

    pthread_mutex_lock(&w->lock);
    w->events++;
    w->held[layer][v->rank][place] = expert + 1;
    for (int e = 0; e < w->experts; e++)
        w->gaps += !is_held(w, layer, w->run_of[v->rank], e);
    pthread_mutex_unlock(&w->lock);
    usleep(20); /* lets other threads run */
}

static ek_status witness_take(void *context, const ek_model *m, size_t bytes, void **memory)
{
    mover *v = context;

    (void)m;
    v->memory = aligned_alloc(64, bytes);
    EK_REQUIRE(v->memory != NULL, EK_ENOMEM, "no memory for a test");
    *memory = memset(v->memory, 0, bytes);
    return EK_OK;
}

/* The initial placement. */
static void begin_watch(mover *v, const ek_model *m)
{
    const ek_mesh *mesh = m->cfg.mesh;
    witness *w = v->seen;

    pthread_mutex_lock(&w->lock);
    w->run_of[v->rank] = mesh->edp_rank * mesh->etp + mesh->etp_rank;
    for (int l = 0; l < LAYERS; l++) {
        const ek_placement *p = &m->layers[l].experts.placement;

        for (int32_t s = 0; s < p->slots; s++)
            w->held[l][v->rank][s] = p->expert_of[mesh->ep_rank * p->slots + s] + 1;
    }
    pthread_mutex_unlock(&w->lock);
}

/* A random placement of an expert-parallel group, the same on all ranks. */
static void draw(const ek_model *m, ek_placement *to, uint64_t round, uint64_t layer,
                 int persistent)
{
    int32_t all = to->ranks * to->slots;

    for (int32_t s = 0; s < all; s++)
        to->expert_of[s] = -1;
    for (int32_t e = 0; e < to->experts; e++) {
        int32_t s = (int32_t)(ek_random_bits(round, layer, (uint64_t)e) % (uint64_t)all);

        while (to->expert_of[s] >= 0 ||
               (!persistent &&
                s % to->slots >= ek_range_length(to->experts, to->ranks, s / to->slots)))
            s = (s + 1) % all;
        to->expert_of[s] = e;
        to->primary[e] = s;
    }
    for (int32_t s = 0; s < all && persistent; s++)
        if (to->expert_of[s] < 0 && ek_random_bits(round, layer + 9, (uint64_t)s) % 2)
            to->expert_of[s] = (int32_t)(ek_random_bits(round, layer + 5, (uint64_t)s) %
                                         (uint64_t)m->spec.experts);
}

/* Number of experts received by ranks on whose node no rank has them yet. */
static int64_t must_cross(const ek_model *m, const ek_placement *to, int layer)
{
    const ek_mesh *mesh = m->cfg.mesh;
    const ek_placement *p = &m->layers[layer].experts.placement;
    int first = mesh->edp_rank * mesh->ep;
    int64_t n = 0;

    for (int32_t e = 0; e < to->experts; e++)
        for (int32_t r = 0; r < to->ranks; r++) {
            int near = ek_slot_find(to->expert_of + r * to->slots, to->slots, e) < 0;

            for (int32_t q = 0; q < to->ranks; q++)
                near |= ek_slot_find(p->expert_of + q * p->slots, p->slots, e) >= 0 &&
                        ek_comm_node(mesh->stage, (first + q) * mesh->etp + mesh->etp_rank) ==
                            ek_comm_node(mesh->stage, (first + r) * mesh->etp + mesh->etp_rank);
            n += !near;
        }
    return n;
}

static ek_status rounds(ek_model *m, mover *v)
{
    ek_placement to;
    ek_migration mg[2];
    ek_arena a;
    ek_graph g;
    ek_exec_config cfg = {.inline_async = 1, .watchdog_s = 600};
    ek_exec *exec;
    int64_t from[64] = {0}, quota[64];

    EK_TRY(ek_arena_init(&a, 4 << 20, "a test"));
    EK_TRY(ek_exec_create(&cfg, &exec));
    ek_graph_init(&g);
    ek_placement_reserve(&to, &a, (int32_t)m->spec.experts, m->cfg.mesh->ep,
                         m->layers[0].experts.placement.slots);
    for (int l = 0; l < 2; l++)
        ek_migration_reserve(&mg[l], &a, m, l,
                             m->staging[l] != NULL ? m->staging[l]
                                                   : ek_migration_reserve_staging(&a, m));
    for (uint64_t round = 0; round < ROUNDS; round++) {
        ek_graph_reset(&g);
        for (int l = 0; l < 2; l++) {
            int64_t least;

            draw(m, &to, round, (uint64_t)l, v->persistent);
            least = must_cross(m, &to, l);
            EK_TRY(ek_migrate_to(&mg[l], &to, from, quota));
            v->moved += mg[l].experts_moved;
            v->crossed += mg[l].crossed;
            v->failed |= mg[l].crossed != least;
            ek_migrate_build_start(&mg[l], &g, -1);
        }
        for (int l = 0; l < 2; l++)
            ek_migrate_build_end(&mg[l], &g, -1);
        EK_TRY(ek_exec_run(exec, &g));
        each_number(m, 1, v);
        EK_TRY(ek_placement_check(&m->layers[0].experts.placement));
    }
    for (int64_t i = 0; i < m->n_params; i++)
        v->owned += m->params[i].w->own;
    v->whole = ek_hf_elements(&m->spec);
    ek_graph_fini(&g);
    ek_exec_destroy(&exec);
    ek_arena_fini(&a);
    return EK_OK;
}

static ek_status move_about(mover *v)
{
    ek_model_spec spec = small_spec();
    ek_mesh *mesh = NULL;
    ek_kernels *k = NULL;
    ek_model *m = NULL;
    int node_of[RANKS_MAX];
    ek_model_memory memory = {witness_take, witness_holds, v, 4096};
    ek_model_config mc = {.trained = 1,
                          .zero = v->zero,
                          .spare_slots = 1,
                          .persistent_slots = v->persistent,
                          .migrates = 1};

    for (int r = 0; r < v->ranks; r++)
        node_of[r] = v->of_node > 0 ? r / v->of_node : 0;
    ek_comm_set_nodes(v->world, node_of);
    EK_TRY(ek_kernels_create(EK_MODE_FP64, EK_ISA_REF, 1, &k));
    EK_TRY(ek_mesh_open(v->world, &v->sizes, &mesh));
    mc.mesh = mesh;
    mc.state = v->seen != NULL ? &memory : NULL;
    EK_TRY(ek_model_create(&spec, k, &mc, &m));
    CHECK(ek_model_can_migrate(m));
    each_number(m, 0, v);
    EK_TRY(ek_model_pack(m)); /* whole masters */
    if (v->seen != NULL)
        begin_watch(v, m);
    EK_TRY(ek_comm_barrier(v->world));
    EK_TRY(rounds(m, v));
    ek_model_destroy(&m);
    free(v->memory);
    ek_mesh_close(&mesh);
    ek_kernels_destroy(&k);
    return EK_OK;
}

static void *mover_main(void *arg)
{
    mover *v = arg;

    if (move_about(v) < 0) {
        fprintf(stderr, "%s\n", ek_err_message());
        v->failed = 1;
    }
    return NULL;
}

/* seen NULL: completeness is not checked.  Returns the number of transferred experts and, if
 * crossed is not NULL, how many of them came from another node. */
static int64_t move_between(int ranks, int of_node, int ep, int etp, int zero, int persistent,
                            witness *seen, int64_t *crossed)
{
    ek_comm *worlds[RANKS_MAX];
    pthread_t threads[RANKS_MAX];
    mover v[RANKS_MAX];
    int64_t owned = 0;

    memset(v, 0, sizeof(v));
    CHECK(ek_comm_open_threads(ranks, worlds) == EK_OK);
    for (int r = 0; r < ranks; r++) {
        v[r] = (mover){.ranks = ranks,
                       .zero = zero,
                       .persistent = persistent,
                       .of_node = of_node,
                       .seen = seen,
                       .rank = r,
                       .sizes = {1, 1, ep, etp},
                       .world = worlds[r]};
        CHECK(pthread_create(&threads[r], NULL, mover_main, &v[r]) == 0);
    }
    for (int r = 0; r < ranks; r++) {
        pthread_join(threads[r], NULL);
        if (v[r].failed)
            EK_T_FAIL("rank %d of %d, ep %d, etp %d, zero %d, lasting %d", r, ranks, ep, etp, zero,
                      persistent);
        owned += v[r].owned;
        ek_comm_close(&worlds[r]);
    }
    CHECK_INT(owned, v[0].whole);
    CHECK(v[0].moved > ROUNDS);
    if (crossed != NULL)
        *crossed = v[0].crossed;
    return v[0].moved;
}

static void move_over(int ranks, int ep, int etp, int zero, int persistent, witness *seen)
{
    move_between(ranks, 0, ep, etp, zero, persistent, seen, NULL);
}

static void homes_change_places(void)
{
    move_over(2, 2, 1, 0, 0, NULL);
    move_over(3, 3, 1, 3, 0, NULL);
    move_over(4, 2, 1, 0, 0, NULL);
    move_over(4, 2, 2, 1, 0, NULL);
}

/* Ranges of 2, 3 and 4 ranks, that nothing divides. */
static void sharded_experts_move(void)
{
    for (int zero = 1; zero <= 3; zero++)
        for (int persistent = 0; persistent < 2; persistent++) {
            move_over(4, 2, 1, zero, persistent, NULL);
            move_over(6, 2, 1, zero, persistent, NULL);
            move_over(8, 2, 1, zero, persistent, NULL);
            move_over(8, 2, 2, zero, persistent, NULL);
        }
}

static void replicas_come_to_stay(void)
{
    move_over(2, 2, 1, 2, 1, NULL);
    move_over(3, 3, 1, 0, 1, NULL);
    move_over(6, 3, 2, 0, 1, NULL);
    move_over(8, 4, 1, 0, 1, NULL);
}

/* No transfer crosses nodes if the node has a replica; shards and expert-parallel groups use their
 * own nodes. */
static void from_the_own_node(void)
{
    int64_t crossed, moved = move_between(4, 2, 4, 1, 0, 1, NULL, &crossed);

    CHECK(crossed > 0 && crossed < moved);
    move_between(8, 2, 4, 2, 0, 1, NULL, &crossed);
    move_between(6, 2, 3, 1, 0, 1, NULL, &crossed);
    move_between(6, 2, 3, 1, 1, 1, NULL, &crossed);
}

static void watch(int ranks, int ep, int etp, int persistent)
{
    witness w = {
        .lock = PTHREAD_MUTEX_INITIALIZER, .ranks = ranks, .experts = (int)small_spec().experts};

    move_over(ranks, ep, etp, 0, persistent, &w);
    CHECK(w.events > ROUNDS * LAYERS * ranks);
    CHECK_INT(w.gaps, 0);
}

static void whole_at_any_instant(void)
{
    watch(2, 2, 1, 0);
    watch(3, 3, 1, 0);
    watch(3, 3, 1, 1);
    watch(6, 3, 2, 1);
    watch(4, 2, 1, 1);
}

static const ek_case cases[] = {
    EK_CASE(homes_change_places), EK_CASE(sharded_experts_move), EK_CASE(replicas_come_to_stay),
    EK_CASE(from_the_own_node),   EK_CASE(whole_at_any_instant),
};
EK_TEST_MAIN(cases)
