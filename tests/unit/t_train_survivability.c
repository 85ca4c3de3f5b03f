/* Which losses of hosts a run's placement tolerates: compared with trying every loss, over stages,
 * expert-parallel groups, shards, ranges of --zero and columns of the embedding.  Ranks are
 * threads. */
#include "base/random.h"
#include "ek_test.h"
#include "model/param_buckets.h"
#include "tensor/select/select.h"
#include "train/run/state.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

enum { RANKS_MAX = 8, EXPERTS = 5, LAYERS = 4, SPARE = 2, BUCKETS_MAX = 64 };

/* One rank. */
typedef struct {
    int ranks, of_host, hosts_of_rack, zero, columns; /* racks 0: unknown */
    ek_mesh_sizes sizes;
    ek_comm *world;
    ek_train_summary out;
    ek_loss_risk risk;
    int64_t noted; /* hosts of each expert's shards as bit masks, computed by the test, for this
                      stage; behind `experts` those of the other weights */
    int64_t experts;
    uint64_t replica_sets[LAYERS * EXPERTS * 2 + 2 + BUCKETS_MAX];
    int failed;
} member;

static ek_model_spec spec_of(void)
{
    ek_model_spec s;

    ek_model_default(&s);
    s.vocab = 16;
    s.hidden = 8;
    s.layers = LAYERS;
    s.heads = s.kv_heads = 2;
    s.head_dim = 4;
    s.experts = EXPERTS;
    s.top_k = 2;
    s.ff = 6;
    s.dense[1] = 1; /* other layers are never lost */
    s.dense_ff = 7;
    return s;
}

/* Puts replicas in some empty slots, the same on all ranks of an expert-parallel group. */
static void add_replicas(ek_model *m, int64_t layer, uint64_t seed)
{
    ek_placement *p = &m->layers[layer].experts.placement;
    int32_t all = m->cfg.mesh->ep * p->slots;

    for (int32_t s = 0; s < p->ranks * p->slots; s++)
        if (p->expert_of[s] < 0)
            p->expert_of[s] =
                (int32_t)(ek_random_bits(seed, (uint64_t)layer, (uint64_t)(s % all)) % EXPERTS);
}

/* The hosts of each shard of this stage's experts. */
static void look(member *v, const ek_model *m, int64_t layer)
{
    const ek_placement *p = &m->layers[layer].experts.placement;
    const ek_mesh *mesh = m->cfg.mesh;

    for (int64_t e = 0; e < EXPERTS; e++)
        for (int i = 0; i < mesh->etp; i++) {
            uint64_t mask = 0;

            for (int32_t s = 0; s < p->ranks * p->slots; s++) {
                int at = mesh->pp_rank * mesh->stage_size + s / p->slots * mesh->etp + i;

                if (p->expert_of[s] == e)
                    mask |= UINT64_C(1) << (at / v->of_host);
            }
            v->replica_sets[v->noted++] = mask;
        }
}

/* The hosts of each shard of this stage's other weights. */
static void look_at_shards(member *v, const ek_mesh *mesh)
{
    v->experts = v->noted;
    for (int part = 0; part < mesh->tp; part++) {
        uint64_t mask = 0;

        for (int at = 0; at < mesh->stage_size; at++)
            if (at % mesh->tp == part)
                mask |= UINT64_C(1) << ((mesh->pp_rank * mesh->stage_size + at) / v->of_host);
        v->replica_sets[v->noted++] = mask;
    }
}

/* The hosts of what this rank alone keeps of each bucket: its own and its partner's. */
static void look_at_buckets(member *v, const ek_model *m)
{
    const ek_mesh *mesh = m->cfg.mesh;

    CHECK(m->buckets->n <= BUCKETS_MAX);
    for (int32_t i = 0; i < m->buckets->n; i++) {
        const ek_param_bucket *u = &m->buckets->bucket[i];
        uint64_t mask = UINT64_C(1) << (mesh->rank / v->of_host);

        if (!u->sharded && (u->share != EK_SHARE_NONE || mesh->dp == 1))
            continue;
        if (u->copies.partner != NULL)
            mask |= UINT64_C(1) << (ek_ranks_at(ek_mesh_ranks(mesh, u->copies.mesh_group),
                                                u->copies.partner[u->copies.rank]) /
                                    v->of_host);
        v->replica_sets[v->noted++] = mask;
    }
}

static ek_status judge(member *v, uint64_t seed)
{
    ek_train_config cfg = {.elastic = 1, .zero = v->zero, .embed_columns = v->columns};
    ek_run r = {.cfg = &cfg, .out = &v->out, .world = v->world, .ranks = v->ranks};
    ek_model_config mc = {.trained = 1,
                          .spare_slots = SPARE,
                          .persistent_slots = 1,
                          .zero = v->zero,
                          .embed_columns = v->columns,
                          .partner_copies = 1};
    int node_of[RANKS_MAX], rack_of[RANKS_MAX];

    r.source.spec = spec_of();
    r.rank = ek_comm_rank(v->world);
    r.training.moe.planner = &ek_planner_replicate;
    r.options.replicas_min = 2;
    for (int i = 0; i < v->ranks; i++) {
        node_of[i] = i / v->of_host;
        rack_of[i] = v->hosts_of_rack > 0 ? 9 - node_of[i] / v->hosts_of_rack : 0;
    }
    r.options.rack_of = v->hosts_of_rack > 0 ? rack_of : NULL;
    ek_comm_set_nodes(v->world, node_of);
    EK_TRY(ek_kernels_create(EK_MODE_FP64, EK_ISA_REF, 1, &r.kernels));
    EK_TRY(ek_mesh_open(v->world, &v->sizes, &r.mesh));
    mc.mesh = r.mesh;
    mc.rack_of = r.options.rack_of;
    EK_TRY(ek_model_create(&r.source.spec, r.kernels, &mc, &r.model));
    for (int64_t l = 0; l < LAYERS; l++)
        if (ek_model_has_moe_layer(r.model, l)) {
            add_replicas(r.model, l, seed);
            look(v, r.model, l);
        }
    look_at_shards(v, r.mesh);
    look_at_buckets(v, r.model);
    EK_TRY(ek_run_evaluate_survivability(&r));
    EK_TRY(ek_run_find_risk(&r, &v->risk));
    ek_model_destroy(&r.model);
    ek_mesh_close(&r.mesh);
    ek_kernels_destroy(&r.kernels);
    return EK_OK;
}

static uint64_t seed_of_all;

static void *member_main(void *arg)
{
    member *v = arg;

    if (judge(v, seed_of_all) < 0) {
        fprintf(stderr, "%s\n", ek_err_message());
        v->failed = 1;
    }
    return NULL;
}

/* The fraction of losses of k hosts that leaves a copy of everything. */
static double by_trying(const member *v, int ranks, int hosts, int k)
{
    int sets = 0, fatal = 0;

    for (uint64_t lost = 0; lost < UINT64_C(1) << hosts; lost++) {
        int takes = 0;

        if (__builtin_popcountll(lost) != k)
            continue;
        for (int r = 0; r < ranks; r++)
            for (int64_t i = 0; i < v[r].noted; i++)
                takes |= (v[r].replica_sets[i] & ~lost) == 0;
        sets++;
        fatal += takes;
    }
    return 1 - (double)fatal / sets;
}

/* The number of racks that can be lost, whichever they are. */
static int racks_lost(const member *v, int ranks, int hosts, int hosts_of_rack)
{
    int racks = (hosts + hosts_of_rack - 1) / hosts_of_rack, least = racks;

    for (int r = 0; r < ranks; r++)
        for (int64_t i = 0; i < v[r].noted; i++) {
            int in = 0;

            for (int rack = 0; rack < racks; rack++)
                in += (v[r].replica_sets[i] >> (rack * hosts_of_rack) &
                       ((UINT64_C(1) << hosts_of_rack) - 1)) != 0;
            least = in - 1 < least ? in - 1 : least;
        }
    return least;
}

static void check_racks(const member *v, int ranks, int hosts)
{
    const char *text = v[0].out.balance.racks_text;
    int of = v[0].hosts_of_rack, racks, any = -1, all = -1;

    if (of == 0) {
        CHECK(text[0] == '\0');
        return;
    }
    racks = racks_lost(v, ranks, hosts, of);
    CHECK(sscanf(text, "survives any %d of %d racks", &any, &all) == 2);
    CHECK_INT(all, (hosts + of - 1) / of);
    CHECK((strstr(text, "racks with") == NULL) == (racks > 0));
    CHECK_INT(any, racks > 0 ? racks : 1);
}

/* Experts of which one host alone holds a shard, each stage counted by one of its ranks. */
static void check_risk(const member *v, int ranks, int hosts, int pp)
{
    int64_t alone = 0, etp = v[0].sizes.etp;
    int shard_alone = 0;

    for (int r = 0; r < ranks; r += ranks / pp)
        for (int64_t i = 0; i < v[r].noted; i += i < v[r].experts ? etp : 1) {
            int some = 0;

            for (int64_t k = i; k < (i < v[r].experts ? i + etp : i + 1); k++)
                some |= __builtin_popcountll(v[r].replica_sets[k]) == 1;
            alone += i < v[r].experts && some;
            shard_alone |= i >= v[r].experts && some;
        }
    for (int r = 0; r < ranks; r++) {
        const ek_loss_risk *x = &v[r].risk;

        CHECK_INT(x->hosts, hosts);
        CHECK(fabs(x->p1 - 1 + by_trying(v, ranks, hosts, 1)) < 1e-12);
        CHECK(hosts == 1 || fabs(x->p2 - 1 + by_trying(v, ranks, hosts, 2)) < 1e-12);
        CHECK_INT(x->experts, (LAYERS - 1) * EXPERTS);
        CHECK_INT(x->alone, alone);
        CHECK_INT(x->shard_alone, shard_alone);
    }
}

static void run_with(int ranks, int of_host, int hosts_of_rack, ek_mesh_sizes sizes, int zero,
                     int columns)
{
    ek_comm *worlds[RANKS_MAX];
    pthread_t threads[RANKS_MAX];
    static member v[RANKS_MAX];
    int hosts = (ranks + of_host - 1) / of_host;

    memset(v, 0, sizeof(v));
    CHECK(ek_comm_open_threads(ranks, worlds) == EK_OK);
    for (int r = 0; r < ranks; r++) {
        v[r] = (member){.ranks = ranks,
                        .of_host = of_host,
                        .hosts_of_rack = hosts_of_rack,
                        .zero = zero,
                        .columns = columns,
                        .sizes = sizes,
                        .world = worlds[r]};
        CHECK(pthread_create(&threads[r], NULL, member_main, &v[r]) == 0);
    }
    for (int r = 0; r < ranks; r++) {
        pthread_join(threads[r], NULL);
        CHECK(!v[r].failed);
    }
    for (int r = 0; r < ranks; r++) {
        const ek_train_balance *b = &v[r].out.balance;

        CHECK_INT(b->hosts, hosts);
        for (int k = 1; k < hosts && k <= EK_TRAIN_LOST; k++) {
            double want = by_trying(v, ranks, hosts, k);

            CHECK(fabs(b->survivability[k - 1] - want) < 1e-12);
            CHECK((k <= b->survives) == (want > 1 - 1e-12));
        }
        CHECK(strncmp(b->survivability_text, "survives ", 9) == 0);
        ek_comm_close(&worlds[r]);
    }
    check_racks(v, ranks, hosts);
    check_risk(v, ranks, hosts, sizes.pp);
}

static void run_on(int ranks, int of_host, int hosts_of_rack, ek_mesh_sizes sizes)
{
    run_with(ranks, of_host, hosts_of_rack, sizes, 0, (int)seed_of_all % 2);
    run_with(ranks, of_host, hosts_of_rack, sizes, 1 + (int)seed_of_all % 3, seed_of_all > 1);
}

static void as_every_loss_says(void)
{
    for (seed_of_all = 0; seed_of_all < 4; seed_of_all++) {
        run_on(4, 1, 0, (ek_mesh_sizes){1, 1, 4, 1});
        run_on(6, 2, 0, (ek_mesh_sizes){1, 1, 6, 1});
        run_on(6, 2, 2, (ek_mesh_sizes){1, 1, 3, 1}); /* two expert-parallel groups */
        run_on(8, 1, 3, (ek_mesh_sizes){1, 1, 4, 2}); /* shards on hosts of their own */
        run_on(8, 2, 2, (ek_mesh_sizes){2, 1, 4, 1}); /* stages of two hosts */
        run_on(7, 3, 0, (ek_mesh_sizes){1, 1, 7, 1});
        run_on(8, 1, 4, (ek_mesh_sizes){1, 1, 8, 1});
        run_on(8, 2, 0, (ek_mesh_sizes){2, 2, 4, 1}); /* tensor-parallel shards */
        run_on(4, 2, 0, (ek_mesh_sizes){2, 1, 2, 1}); /* a stage on each host */
        run_on(6, 2, 0, (ek_mesh_sizes){1, 1, 1, 1}); /* everything everywhere */
    }
}

/* No result without required replicas, nor partners. */
static void nobody_asks(void)
{
    ek_train_summary out = {0};
    ek_train_config cfg = {.zero = 1};
    ek_run r = {.cfg = &cfg, .out = &out, .ranks = 1, .options = {.replicas_min = 1}};

    CHECK(ek_run_evaluate_survivability(&r) == EK_OK);
    r.training.moe.planner = &ek_planner_replicate;
    CHECK(ek_run_evaluate_survivability(&r) == EK_OK);
    r.options.replicas_min = 2;
    r.training.moe.planner = &ek_planner_exact;
    CHECK(ek_run_evaluate_survivability(&r) == EK_OK);
    CHECK(out.balance.survivability_text[0] == '\0');
}

static const ek_case cases[] = {
    EK_CASE(as_every_loss_says),
    EK_CASE(nobody_asks),
};
EK_TEST_MAIN(cases)
