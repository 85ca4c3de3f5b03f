/* Dependencies of replica ops in a step's graph: memory that layers share is free when it is
 * written, and gradients are complete when they are read.  Checks the graph only, as races rarely
 * change results. */
#include "ek_test.h"
#include "model/param_buckets.h"
#include "model/step/pass.h"
#include "moe/replica_weights.h"
#include "tensor/select/select.h"
#include "train/optimizer.h"

#include <pthread.h>

enum { MICROS = 3, LAYERS = 4, EXPERTS = 4, SLOTS = 3, OPS_MAX = 1200 };

/* before[i][j]: op j is done when op i starts. */
static unsigned char before[OPS_MAX][OPS_MAX];

static void close_over(const ek_graph *g)
{
    int32_t compute = -1;

    memset(before, 0, sizeof(before));
    for (int32_t i = 0; i < g->n_ops; i++) {
        const ek_op *op = &g->ops[i];

        for (int32_t d = -1; d < op->n_deps; d++) {
            int32_t j = d >= 0 ? g->deps[op->dep + d] : op->lane == EK_LANE_COMPUTE ? compute : -1;

            for (int32_t k = 0; j >= 0 && k <= j; k++)
                before[i][k] |= before[j][k] | (k == j);
        }
        if (op->lane == EK_LANE_COMPUTE)
            compute = i;
    }
}

static int is(const ek_op *op, ek_op_kind kind)
{
    return op->kind == kind;
}

static int sends_replicas(const ek_op *op)
{
    return is(op, EK_OP_REPLICAS) || is(op, EK_OP_EARLY_REPLICAS) || is(op, EK_OP_LATE_REPLICAS);
}

/* Whether an op reads the weights in a layer's slots. */
static int is_product(const ek_op *op)
{
    return is(op, EK_OP_EXPERT_UP) || is(op, EK_OP_EXPERT_DOWN) || is(op, EK_OP_EXPERT_UP_INPUT) ||
           is(op, EK_OP_EXPERT_DOWN_INPUT);
}

static int same_work(const ek_op *a, const ek_op *b)
{
    return a->layer == b->layer && a->micro == b->micro && a->recompute == b->recompute;
}

static void must(const ek_graph *g, int32_t i, int32_t j)
{
    if (!before[i][j])
        EK_T_FAIL("%s of layer %d, micro-batch %d does not wait for %s of layer %d, micro-batch %d",
                  ek_op_name(g->ops[i].kind), g->ops[i].layer, g->ops[i].micro,
                  ek_op_name(g->ops[j].kind), g->ops[j].layer, g->ops[j].micro);
}

/* The op in the compute lane that waits for what a fetch brings. */
static int32_t here_of(const ek_graph *g, int32_t fetch)
{
    for (int32_t i = fetch; i < g->n_ops; i++)
        for (int32_t d = 0; is(&g->ops[i], EK_OP_WAIT_REPLICAS) && d < g->ops[i].n_deps; d++)
            if (g->deps[g->ops[i].dep + d] == fetch)
                return i;
    return -1;
}

static int is_backward_product(const ek_op *op)
{
    return is(op, EK_OP_EXPERT_UP_INPUT) || is(op, EK_OP_EXPERT_DOWN_INPUT);
}

/* The first product after op i that reads what a fetch of the same work brings. */
static int32_t reader_of(const ek_graph *g, int32_t i, const ek_op *fetch)
{
    while (i < g->n_ops && !(is_product(&g->ops[i]) && same_work(&g->ops[i], fetch)))
        i++;
    CHECK(i < g->n_ops);
    return i < g->n_ops ? i : g->n_ops - 1;
}

/* Whether two products of layers and passes may read the same memory.  With two sets of it, layers
 * alternate, in backward the other way; with sets of each layer, another micro-batch may have had
 * the same one. */
static int share_memory(int sets, const ek_op *a, const ek_op *b)
{
    if (sets == EK_REPLICA_SETS_EACH)
        return a->layer == b->layer && a->micro != b->micro;
    return (a->layer + is_backward_product(a) - b->layer - is_backward_product(b)) % sets == 0;
}

/* Forms are overwritten by a fetch: the products that read what was there are done. */
static int check_fetches(const ek_graph *g, int sets)
{
    int fetches = 0;

    for (int32_t i = 0; i < g->n_ops; i++) {
        int32_t here = sends_replicas(&g->ops[i]) ? here_of(g, i) : -1, reader;

        if (!sends_replicas(&g->ops[i]))
            continue;
        fetches++;
        reader = reader_of(g, here < 0 ? 0 : here, &g->ops[i]);
        CHECK(here >= 0 && g->ops[here].layer == g->ops[i].layer &&
              g->ops[here].micro == g->ops[i].micro);
        for (int32_t j = 0; j < here; j++)
            if (is_product(&g->ops[j]) && share_memory(sets, &g->ops[j], &g->ops[reader]))
                must(g, i, j);
        for (int32_t j = here + 1;
             j < g->n_ops && (j == here + 1 || !is(&g->ops[j], EK_OP_WAIT_REPLICAS)); j++)
            if (is_product(&g->ops[j]) && same_work(&g->ops[j], &g->ops[i]))
                must(g, j, i);
    }
    return fetches;
}

/* Whether an op reduces gradients of experts. */
static int reduces_experts(const ek_model *m, const ek_op *op)
{
    return is(op, EK_OP_REDUCE_GRADIENTS) && m->buckets->bucket[op->part].share == EK_SHARE_EDP;
}

/* Gradients: of replicas, which are cleared; of primary copies, to which they are added.  Those of
 * other weights do not wait: network ops start in order, and later ones would wait, too. */
static int check_gradients(const ek_model *m, const ek_graph *g)
{
    int primaries = 0;

    for (int32_t j = 0; j < g->n_ops; j++) {
        if (!is(&g->ops[j], EK_OP_REPLICA_GRADIENTS))
            continue;
        primaries++;
        for (int32_t i = j + 1; i < g->n_ops; i++) {
            const ek_op *op = &g->ops[i];

            if (is(op, EK_OP_CLEAR_REPLICAS) && op->layer % 2 == g->ops[j].layer % 2)
                must(g, i, j);
            if ((is(op, EK_OP_EXPERT_UP_WEIGHT) || reduces_experts(m, op)) &&
                op->layer == g->ops[j].layer)
                must(g, i, j);
            else if (is(op, EK_OP_REDUCE_GRADIENTS) && same_work(op, &g->ops[j]))
                CHECK(!before[i][j]);
            if (is(op, EK_OP_GRADIENT_NORM))
                must(g, i, j);
        }
        for (int32_t i = 0; i < j; i++)
            if (is(&g->ops[i], EK_OP_EXPERT_UP_WEIGHT) && same_work(&g->ops[i], &g->ops[j]))
                must(g, j, i);
    }
    return primaries;
}

/* Of a stage. */
typedef struct {
    int32_t first, end;
} layers;

/* Where a layer's replica in the spare slot has its packed weights for a pass. */
static const void *memory_of(const ek_moe *m, int32_t micro, int backward)
{
    int32_t held[SLOTS] = {-1, -1, -1};
    ek_slot_weights w = {0};

    for (int32_t e = 0; e < EXPERTS && held[SLOTS - 1] < 0; e++)
        if (ek_slot_find(m->w->placement.expert_of + m->x.first_slot, SLOTS, e) < 0)
            held[SLOTS - 1] = e;
    CHECK(ek_slot_weights_of(m, micro, held, SLOTS - 1, 0, backward, &w));
    return w.up;
}

/* The set of memory that a layer uses is what check_fetches expects. */
static void check_memory(const ek_moe *moe, const layers *at, int sets)
{
    for (int32_t l = at->first; l < at->end; l++)
        for (int backward = 0; backward < 2; backward++) {
            int same = sets > 0 ? (l + backward - at->first) % sets == 0 : l == at->first;

            CHECK((memory_of(&moe[l], 0, backward) == memory_of(&moe[at->first], 0, 0)) == same);
        }
}

/* With sets of each layer, those of micro-batches that are in flight at once are others. */
static void check_flights(const ek_moe *moe, const layers *at, int pp)
{
    for (int32_t l = at->first; l < at->end; l++)
        for (int32_t micro = 1; micro < MICROS; micro++)
            CHECK((memory_of(&moe[l], micro, 0) == memory_of(&moe[l], micro - 1, 0)) ==
                  (moe[l].act_slot_of[micro] == moe[l].act_slot_of[micro - 1]));
    CHECK((moe[at->first].act_slot_of[0] != moe[at->first].act_slot_of[1]) ==
          (pp > 1 && at->end < LAYERS));
}

static int32_t find_from(const ek_graph *g, int32_t first, ek_op_kind kind, int32_t layer,
                         int32_t micro)
{
    for (int32_t i = first; i < g->n_ops; i++)
        if (is(&g->ops[i], kind) && g->ops[i].layer == layer && g->ops[i].micro == micro &&
            !g->ops[i].recompute)
            return i;
    EK_T_FAIL("no %s of layer %d, micro-batch %d", ek_op_name(kind), (int)layer, (int)micro);
    return 0;
}

static int32_t find(const ek_graph *g, ek_op_kind kind, int32_t layer, int32_t micro)
{
    return find_from(g, 0, kind, layer, micro);
}

/* The micro-batch whose backward follows this forward on a stage of two; -1: another forward. */
static int32_t backward_after(const layers *at, int32_t micro)
{
    if (at->end == LAYERS)
        return micro;
    return micro - 1;
}

/* Weights for the backward of a stage's last layer come under its own forward: under its products
 * where there are two sets of memory, else when these are done; so not only under the loss head. */
static void check_last_layer(const ek_graph *g, const layers *at, int sets)
{
    int32_t last = at->end - 1;

    for (int32_t micro = 0; micro < MICROS; micro++) {
        int32_t arrived = find(g, EK_OP_DISPATCH_A2A, last, micro),
                back = backward_after(at, micro), fetch;

        if (back < 0)
            continue;
        fetch = find_from(g, arrived, EK_OP_REPLICAS, last, back);
        must(g, fetch, arrived);
        CHECK(before[fetch][find(g, EK_OP_EXPERT_DOWN, last, micro)] == (sets == 1));
        CHECK(!before[fetch][find(g, EK_OP_UNPERMUTE, last, micro)]);
    }
}

/* Plans made one micro-batch ahead: weights start before the gate, and under the combine of the
 * layer before where they can, by a plan that is made; and in the lane's order before the counts
 * are told, after which the next plan may be written. */
static void check_ahead(const ek_graph *g, const layers *at, int zero)
{
    for (int32_t micro = 0; micro < MICROS; micro++)
        for (int32_t l = at->first; l < at->end; l++) {
            int32_t fetch = find(g, EK_OP_EARLY_REPLICAS, l, micro),
                    route = find(g, EK_OP_ROUTER, l, micro);

            CHECK(fetch < route && fetch < find(g, EK_OP_GATHER_COUNTS, l, micro));
            CHECK(!before[fetch][route]);
            if (l > at->first && zero < 3)
                CHECK(!before[fetch][find(g, EK_OP_UNPERMUTE, l - 1, micro)]);
            if (micro > 0)
                must(g, fetch, find(g, EK_OP_PLAN_REPLICAS, l, micro - 1));
        }
}

/* With more than one set of memory weights come while the neighbour's experts are multiplied, when
 * its rows have arrived. */
static void check_overlap(const ek_graph *g, const layers *at, int ahead, int sets)
{
    for (int32_t micro = 0; micro < MICROS; micro++)
        for (int32_t l = at->first; l + 1 < at->end; l++) {
            int32_t forward, back;

            if (ahead) {
                forward = find(g, EK_OP_EARLY_REPLICAS, l + 1, micro);
                CHECK(!before[forward][find(g, EK_OP_EXPERT_UP, l, micro)]);
                must(g, forward, find(g, EK_OP_DISPATCH_A2A, l, micro));
            }
            if (sets != 2)
                continue;
            back = find_from(g, find(g, EK_OP_UNPERMUTE_BACKWARD, l + 1, micro), EK_OP_REPLICAS, l,
                             micro);
            CHECK(!before[back][find(g, EK_OP_EXPERT_DOWN_INPUT, l + 1, micro)]);
            must(g, back, find(g, EK_OP_COMBINE_A2A_BACKWARD, l + 1, micro));
        }
}

typedef struct {
    int ranks, pp, stage, ep, zero; /* stage: the one whose graph is checked */
    ek_recompute recompute;
} setup;

typedef struct {
    ek_comm *world;
    const setup *of;
    const ek_planner *planner;
    int sets;
    int looks; /* one of the ranks */
    int fetches, primaries, failed;
} peer;

static int is_ahead(const ek_planner *p)
{
    return p->uses_previous_counts || p->may_use_previous_counts;
}

static ek_status look(peer *p, ek_mesh *mesh, ek_kernels *k)
{
    ek_model_spec spec;
    ek_model_config mc = {.trained = 1, .mesh = mesh, .spare_slots = 1, .zero = p->of->zero};
    ek_pass_config pc = {.max_seqs = 2,
                         .max_seq = 4,
                         .max_total = 8,
                         .micros = MICROS,
                         .training = 1,
                         .recompute = p->of->recompute,
                         .moe = {.degree = 2, .planner = p->planner, .replica_sets = p->sets}};
    ek_moe_step step = {.training = 1, .top_k = 2};
    int32_t tokens[8] = {0};
    ek_micro micro[MICROS];
    ek_model *m = NULL;
    ek_pass *pass = NULL;
    ek_optimizer o;
    ek_optimizer_config oc = {.steps = 1};
    ek_graph g;

    ek_model_default(&spec);
    spec.vocab = 16;
    spec.hidden = 8;
    spec.layers = LAYERS;
    spec.heads = spec.kv_heads = 2;
    spec.head_dim = 4;
    spec.experts = EXPERTS;
    spec.top_k = 2;
    spec.ff = 6;
    for (int i = 0; i < MICROS; i++)
        micro[i] = ek_micro_alone(1, 4, 1.0 / MICROS, 0, tokens, tokens);
    EK_TRY(ek_model_create(&spec, k, &mc, &m));
    EK_TRY(ek_pass_create(m, &pc, &pass));
    EK_TRY(ek_pass_begin(pass, &step, micro, MICROS));
    ek_graph_init(&g);
    EK_TRY(ek_pass_build(pass, &g));
    ek_optimizer_init(&o, m, &oc);
    ek_optimizer_build(&o, &g, g.n_ops - 1);
    EK_TRY(ek_graph_check(&g));
    CHECK(g.n_ops < OPS_MAX);
    if (p->looks && g.n_ops < OPS_MAX) {
        layers at = {(int32_t)ek_model_vstage_first(m, mesh->pp_rank),
                     (int32_t)ek_model_vstage_first(m, mesh->pp_rank + 1)};

        check_memory(pass->moe, &at, p->sets);
        close_over(&g);
        p->fetches = check_fetches(&g, p->sets);
        p->primaries = check_gradients(m, &g);
        if (is_ahead(p->planner))
            check_ahead(&g, &at, p->of->zero);
        if (p->sets == EK_REPLICA_SETS_EACH)
            check_flights(pass->moe, &at, p->of->pp);
        if (p->sets != 1 && p->of->zero < 3 && p->of->recompute != EK_RECOMPUTE_FULL)
            check_overlap(&g, &at, is_ahead(p->planner), p->sets);
        if (p->sets > 0 && p->of->zero < 3 && p->of->recompute != EK_RECOMPUTE_FULL)
            check_last_layer(&g, &at, p->sets);
    }
    ek_graph_fini(&g);
    ek_pass_destroy(&pass);
    ek_model_destroy(&m);
    return EK_OK;
}

static void *peer_main(void *arg)
{
    peer *p = arg;
    ek_mesh *mesh = NULL;
    ek_kernels *k = NULL;
    ek_mesh_sizes sizes = {p->of->pp, 1, p->of->ep, 1};

    p->failed = ek_kernels_create(EK_MODE_FP64, EK_ISA_REF, 1, &k) < 0 ||
                ek_mesh_open(p->world, &sizes, &mesh) < 0 || look(p, mesh, k) < 0;
    if (p->failed)
        fprintf(stderr, "%s\n", ek_err_message());
    ek_mesh_close(&mesh);
    ek_kernels_destroy(&k);
    return NULL;
}

/* Checks the graph of a stage's first rank. */
static void look_with(const ek_planner *planner, int sets, const setup *of)
{
    int fetches = sets == EK_REPLICA_SETS_EACH         ? 1
                  : of->recompute == EK_RECOMPUTE_FULL ? 3
                                                       : 2,
        looks = of->stage * of->ranks / 2;
    ek_comm *worlds[4];
    pthread_t threads[4];
    peer p[4];

    CHECK(ek_comm_open_threads(of->ranks, worlds) == EK_OK);
    for (int r = 0; r < of->ranks; r++) {
        p[r] = (peer){
            .world = worlds[r], .planner = planner, .of = of, .sets = sets, .looks = r == looks};
        CHECK(pthread_create(&threads[r], NULL, peer_main, &p[r]) == 0);
    }
    for (int r = 0; r < of->ranks; r++) {
        pthread_join(threads[r], NULL);
        CHECK(!p[r].failed);
        ek_comm_close(&worlds[r]);
    }
    fetches += planner->may_use_previous_counts; /* before the gate and after it */
    CHECK_INT(p[looks].fetches, fetches * LAYERS / of->pp * MICROS);
    CHECK_INT(p[looks].primaries, LAYERS / of->pp * MICROS);
}

static void look_at(setup of)
{
    static const ek_planner *const planners[] = {&ek_planner_exact, &ek_planner_prophet,
                                                 &ek_planner_auto};

    static const int sets[] = {1, 2, EK_REPLICA_SETS_EACH};

    for (int j = 0; j < 3; j++)
        for (int i = 0; i < 3; i++)
            look_with(planners[i], sets[j], &of);
}

static void kept_activations(void)
{
    look_at((setup){.ranks = 2, .pp = 1, .ep = 2});
    look_at((setup){.ranks = 4, .pp = 1, .ep = 2, .zero = 2});
}

static void recomputed_activations(void)
{
    look_at((setup){.ranks = 2, .pp = 1, .ep = 2, .recompute = EK_RECOMPUTE_FULL});
    look_at((setup){.ranks = 4, .pp = 1, .ep = 2, .zero = 3, .recompute = EK_RECOMPUTE_ATTENTION});
}

/* On the first stage the backward of a micro-batch follows the forward of a later one. */
static void pipeline_stages(void)
{
    for (int stage = 0; stage < 2; stage++)
        look_at((setup){.ranks = 4, .pp = 2, .stage = stage, .ep = 2});
}

static const ek_case cases[] = {
    EK_CASE(kept_activations),
    EK_CASE(recomputed_activations),
    EK_CASE(pipeline_stages),
};
EK_TEST_MAIN(cases)
