/* Experts that move between ranks for good: weights, masters and moments are the same bits wherever
 * they come to lie, packed forms are those of the masters, and every weight has one rank that
 * answers for it. */
#include "model/hf_names.h"
#include "model/migrate.h"
#include "train_ranks.h"

enum { ROUNDS = 12 };

/* One rank. */
typedef struct {
    int ranks, zero, lasting;
    ek_mesh_sizes sizes;
    ek_comm *world;
    int64_t owned, whole, moved;
    int failed;
} mover;

static ek_model_spec migrate_spec(void)
{
    ek_model_spec s;

    ek_model_default(&s);
    s.vocab = 16;
    s.hidden = 8;
    s.layers = 2;
    s.heads = s.kv_heads = 2;
    s.head_dim = 4;
    s.experts = 7;
    s.top_k = 2;
    s.ff = 5;
    return s;
}

static double number_of(int kind, const ek_hf_tensor *t, int64_t row, int64_t col)
{
    return ek_random_uniform((uint64_t)kind, ek_random_stream(t->name),
                             (uint64_t)(row * 1000 + col));
}

/* Fills, or checks, masters and moments of all experts that are here. */
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
                double *arrays[] = {a.w->p_kept, a.w->m, a.w->v};

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

/* A placement of a run at random, the same on all ranks. */
static void draw(const ek_model *m, ek_placement *to, uint64_t round, uint64_t layer, int lasting)
{
    int32_t all = to->ranks * to->slots;

    for (int32_t s = 0; s < all; s++)
        to->expert_of[s] = -1;
    for (int32_t e = 0; e < to->experts; e++) {
        int32_t s = (int32_t)(ek_random_bits(round, layer, (uint64_t)e) % (uint64_t)all);

        while (to->expert_of[s] >= 0 ||
               (!lasting && s % to->slots >= ek_run_length(to->experts, to->ranks, s / to->slots)))
            s = (s + 1) % all;
        to->expert_of[s] = e;
        to->home[e] = s;
    }
    for (int32_t s = 0; s < all && lasting; s++)
        if (to->expert_of[s] < 0 && ek_random_bits(round, layer + 9, (uint64_t)s) % 2)
            to->expert_of[s] = (int32_t)(ek_random_bits(round, layer + 5, (uint64_t)s) %
                                         (uint64_t)m->spec.experts);
}

static ek_status rounds(ek_model *m, mover *v)
{
    ek_placement to;
    ek_migration mg[2];
    ek_arena a;
    ek_graph g;
    ek_exec_config cfg = {.inline_network = 1, .watchdog_s = 20};
    ek_exec *exec;
    int64_t from[64] = {0}, quota[64];

    EK_TRY(ek_arena_init(&a, 4 << 20, "a test"));
    EK_TRY(ek_exec_create(&cfg, &exec));
    ek_graph_init(&g);
    ek_placement_take(&to, &a, (int32_t)m->spec.experts, m->cfg.mesh->ep,
                      m->layers[0].experts.placement.slots);
    for (int l = 0; l < 2; l++)
        ek_migration_take(&mg[l], &a, m, l, ek_migration_take_staging(&a, m));
    for (uint64_t round = 0; round < ROUNDS; round++) {
        ek_graph_reset(&g);
        for (int l = 0; l < 2; l++) {
            draw(m, &to, round, (uint64_t)l, v->lasting);
            EK_TRY(ek_migrate_to(&mg[l], &to, from, quota));
            v->moved += mg[l].experts_moved;
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
    v->whole = m->n_whole;
    ek_graph_fini(&g);
    ek_exec_destroy(&exec);
    ek_arena_fini(&a);
    return EK_OK;
}

static ek_status move_about(mover *v)
{
    ek_model_spec spec = migrate_spec();
    ek_mesh *mesh = NULL;
    ek_kernels *k = NULL;
    ek_model *m = NULL;
    ek_model_config mc = {
        .trained = 1, .zero = v->zero, .spare_slots = 1, .lasting_slots = v->lasting};

    EK_TRY(ek_kernels_create(EK_MODE_FP64, EK_ISA_REF, 1, &k));
    EK_TRY(ek_mesh_open(v->world, &v->sizes, &mesh));
    mc.mesh = mesh;
    EK_TRY(ek_model_create(&spec, k, &mc, &m));
    CHECK(ek_model_can_migrate(m));
    each_number(m, 0, v);
    EK_TRY(rounds(m, v));
    ek_model_destroy(&m);
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

static void move_over(int ranks, int ep, int etp, int zero, int lasting)
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
                       .lasting = lasting,
                       .sizes = {1, 1, ep, etp},
                       .world = worlds[r]};
        CHECK(pthread_create(&threads[r], NULL, mover_main, &v[r]) == 0);
    }
    for (int r = 0; r < ranks; r++) {
        pthread_join(threads[r], NULL);
        if (v[r].failed)
            EK_T_FAIL("rank %d of %d, ep %d, etp %d, zero %d, lasting %d", r, ranks, ep, etp, zero,
                      lasting);
        owned += v[r].owned;
        ek_comm_close(&worlds[r]);
    }
    CHECK_INT(owned, v[0].whole);
    CHECK(v[0].moved > ROUNDS);
}

static void homes_change_places(void)
{
    move_over(2, 2, 1, 0, 0);
    move_over(3, 3, 1, 3, 0);
    move_over(4, 2, 1, 0, 0);
    move_over(4, 2, 2, 1, 0);
}

static void replicas_come_to_stay(void)
{
    move_over(2, 2, 1, 2, 1);
    move_over(3, 3, 1, 0, 1);
    move_over(6, 3, 2, 0, 1);
    move_over(8, 4, 1, 0, 1);
}

static const ek_case cases[] = {
    EK_CASE(homes_change_places),
    EK_CASE(replicas_come_to_stay),
};
EK_TEST_MAIN(cases)
