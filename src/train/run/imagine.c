/* Lays out ranks of a run, each in a world of its own, and builds their first step. */
#include "train/imagine.h"

#include "base/option_value.h"
#include "comm/fake.h"
#include "model/hf/names.h"
#include "model/param_buckets.h"
#include "sim/plan_machine.h"
#include "tensor/select/select.h"
#include "train/run/balance.h"
#include "train/run/partners.h"
#include "train/run/state.h"
#include "train/timing/layer_costs.h"

#include <stdlib.h>
#include <string.h>

/* A rank that stands for its class. */
typedef struct {
    ek_train_summary summary;
    ek_run run;
    ek_graph graph; /* a packed copy, which the run's memory is not needed for */
    uint64_t digest;
} imagined_rank;

struct ek_imagined {
    ek_train_config cfg;
    imagined_rank **rank; /* [n_classes] */
    ek_sim_class *classes;
    int32_t *class_of; /* [ranks] */
    int32_t *ranks;    /* [ranks] of the classes, one class after the other */
    ek_sim_graphs graphs;
    ek_sim_layout layout;
};

static ek_status check_imaginable(const ek_train_config *c)
{
    EK_REQUIRE(strcmp(c->offload, "off") == 0, EK_EUNSUPPORTED,
               "runs with --offload %s cannot be simulated", c->offload);
    return EK_OK;
}

/* --- a rank ----------------------------------------------------------------------------------- */

static int is_cpu(const ek_train_config *c)
{
    return c->device == NULL || strcmp(c->device, "cpu") == 0;
}

/* The CPU's, without a choice by timing, which may differ between processes; that of the reference
 * kernels, which pack weights as accelerators do, for these. */
static ek_isa layout_isa(const ek_train_config *c)
{
    ek_isa isa = is_cpu(c) ? ek_cpu_isa() : EK_ISA_REF;

    return isa > EK_ISA_AVX512_SLOW_BF16 ? EK_ISA_AVX512_SLOW_BF16 : isa;
}

/* What copies of experts cost on the cluster, by which runs with --elastic choose them. */
static ek_status take_costs(ek_run *r, const ek_cluster *c)
{
    if (!r->cfg->elastic || c == NULL || r->mesh == NULL || r->training.moe.planner == NULL)
        return EK_OK;
    r->costs.machine = calloc(1, sizeof(*r->costs.machine));
    EK_REQUIRE(r->costs.machine != NULL, EK_ENOMEM, "no memory for costs");
    ek_plan_machine(c, ek_mode_name(r->options.mode), r->mesh->ep * r->mesh->etp,
                    ek_layer_nodes(r->mesh), r->costs.machine);
    return EK_OK;
}

/* No kernel is called. */
static ek_status lay_out(ek_run *r, const int *node_of, const ek_cluster *cluster)
{
    EK_TRY(ek_run_read_options(r));
    EK_REQUIRE(r->options.adaptive_r < 0 ||
                   r->options.adaptive_r == (r->cfg->etp > 1 ? r->cfg->etp : 1),
               EK_EUNSUPPORTED, "--adaptive-r %s cannot be simulated: give etp, or auto",
               r->cfg->adaptive_r);
    EK_TRY(ek_kernels_create(r->options.mode, layout_isa(r->cfg), 1, &r->kernels));
    r->kernels->wide = !is_cpu(r->cfg);
    if (r->ranks > 1) {
        EK_TRY(ek_fake_open(r->rank, r->ranks, &r->world));
        ek_comm_set_nodes(r->world, node_of);
        r->all = r->world;
        EK_TRY(ek_mesh_open(r->world, &r->options.sizes, &r->mesh));
    }
    EK_TRY(ek_run_calibrate(r));
    EK_TRY(take_costs(r, cluster));
    return ek_run_layout_model(r);
}

static void close_rank(imagined_rank *x)
{
    ek_run *r = &x->run;

    ek_trainer_destroy(&r->trainer);
    ek_trace_close(&r->options.replay);
    ek_model_destroy(&r->model);
    ek_state_addresses_fini(&r->memory.addresses);
    ek_run_close_copies(&r->partners, 0);
    ek_mesh_close(&r->mesh);
    ek_comm_close(&r->world);
    ek_kernels_destroy(&r->kernels);
    free(r->costs.machine);
    free(r->options.shares);
    ek_graph_fini(&x->graph);
    free(x);
}

/* *g: the trainer's.  copies 1: experts have those that the policy places; 0: one each. */
static ek_status build_step(ek_run *r, int copies, ek_graph **g)
{
    EK_TRY(ek_trainer_create(r->model, &r->training, &r->trainer));
    if (copies && r->training.moe.planner != NULL &&
        ek_planner_fills_slots(r->training.moe.planner))
        ek_trainer_assume_planned(r->trainer);
    return ek_trainer_build_step(r->trainer, g);
}

/* Lays out a rank, of a model of so many layers (0: all); cfg is borrowed until it is closed. */
static ek_status open_rank(const ek_train_config *cfg, int rank, const ek_imagined_world *w,
                           int64_t layers, imagined_rank **out)
{
    static const ek_train_hooks none = {0};
    imagined_rank *x = calloc(1, sizeof(*x));
    ek_status st;

    EK_REQUIRE(x != NULL, EK_ENOMEM, "no memory for a rank");
    x->run = (ek_run){.cfg = cfg,
                      .hooks = &none,
                      .out = &x->summary,
                      .rank = rank,
                      .ranks = w->ranks,
                      .layers = layers,
                      .host_of = w->host_of,
                      .memory = {.step = -1}};
    st = lay_out(&x->run, w->node_of, w->cluster);
    if (st < 0) {
        close_rank(x);
        return st;
    }
    *out = x;
    return EK_OK;
}

static double weights_of(const imagined_rank *x)
{
    return (double)(x->run.model->arena.bytes + x->run.model->state.bytes) +
           ek_run_copies_bytes(&x->run.partners);
}

static double memory_of(const imagined_rank *x)
{
    return (double)x->summary.info.predicted_bytes - (double)x->run.room.base_rss;
}

static int stage_of(const imagined_rank *x)
{
    return x->run.mesh != NULL ? x->run.mesh->pp_rank : 0;
}

/* --- classes ---------------------------------------------------------------------------------- */

/* The addresses of many large ranks at once would be too many. */
static void forget_memory(imagined_rank *x)
{
    ek_trainer_destroy(&x->run.trainer);
    ek_model_destroy(&x->run.model);
    ek_state_addresses_fini(&x->run.memory.addresses);
    ek_run_forget_copies(&x->run.partners, 0);
}

static void add_class(ek_imagined *im, imagined_rank *x)
{
    int32_t k = im->graphs.n_classes++;

    im->rank[k] = x;
    im->classes[k] = (ek_sim_class){.graph = &x->graph,
                                    .stage = stage_of(x),
                                    .memory = memory_of(x),
                                    .weights = weights_of(x),
                                    .state = (double)x->run.model->state.bytes +
                                             ek_run_copies_bytes(&x->run.partners)};
    forget_memory(x);
}

/* Puts a rank into the class of its graph, or into a new one. */
static void classify(ek_imagined *im, int rank, imagined_rank *x)
{
    int32_t n = im->graphs.n_classes, k = 0;

    while (k < n && (im->rank[k]->digest != x->digest || im->classes[k].stage != stage_of(x)))
        k++;
    im->class_of[rank] = k;
    if (k == n)
        add_class(im, x);
    else
        close_rank(x);
}

/* Lists the ranks of each class. */
static void list_ranks(ek_imagined *im)
{
    ek_sim_graphs *g = &im->graphs;
    int32_t n = 0;

    for (int32_t k = 0; k < g->n_classes; k++) {
        im->classes[k].ranks = im->ranks + n;
        for (int32_t r = 0; r < g->ranks; r++)
            if (im->class_of[r] == k)
                im->ranks[n++] = r;
        im->classes[k].n_ranks = (int32_t)(im->ranks + n - im->classes[k].ranks);
    }
}

/* Builds the step; its digest tells whether others are equal. */
static ek_status keep_step(imagined_rank *x, int digest)
{
    ek_graph *g;

    EK_TRY(build_step(&x->run, 1, &g));
    if (digest)
        x->digest = ek_graph_digest(g);
    return ek_graph_pack(&x->graph, g);
}

/* Copies of experts that the first rank has chosen become options of the others, as ranks of a
 * run agree. */
static void keep_choice(const ek_run *r, ek_train_config *cfg)
{
    if (!cfg->elastic || r->mesh == NULL || r->training.moe.planner == NULL)
        return;
    cfg->replicas_min = r->options.replicas_min;
    cfg->spare_slots = r->options.spare_slots;
}

static ek_status imagine(ek_imagined *im, const ek_imagined_world *w, int every_rank)
{
    int ranks = im->graphs.ranks, each = 1;
    imagined_rank *x = NULL;
    ek_status st;

    for (int r = 0; r < ranks; r += each) {
        EK_TRY(open_rank(&im->cfg, r, w, 0, &x));
        if (r == 0)
            keep_choice(&x->run, &im->cfg);
        if (!every_rank && x->run.options.shares == NULL && x->run.mesh != NULL)
            each = x->run.mesh->stage_size;
        st = keep_step(x, each == 1);
        if (st < 0) {
            close_rank(x);
            return st;
        }
        classify(im, r, x);
        for (int i = 1; i < each; i++)
            im->class_of[r + i] = im->class_of[r];
    }
    list_ranks(im);
    return EK_OK;
}

static ek_sim_layout describe(const ek_run *r)
{
    const ek_mesh *m = r->mesh != NULL ? r->mesh : &ek_mesh_one;
    const ek_trainer_config *t = &r->training;
    int64_t top_k = t->top_k > 0 ? t->top_k : r->source.spec.top_k;

    return (ek_sim_layout){.pp = m->pp,
                           .dp = m->dp,
                           .tp = m->tp,
                           .edp = m->edp,
                           .ep = m->ep,
                           .etp = m->etp,
                           .zero = r->cfg->zero,
                           .embed_columns = r->cfg->embed_columns,
                           .params = ek_hf_elements(&r->source.spec),
                           .active_params = ek_hf_active_elements(&r->source.spec),
                           .batch = t->batch,
                           .step_tokens = t->batch * t->seq,
                           .dtype = ek_mode_name(r->options.mode),
                           .spec = r->source.spec,
                           .rank_copies = ek_run_has_partners(&r->partners),
                           .planner = m->ep > 1 ? t->moe.planner : NULL,
                           .spare_slots = r->options.spare_slots,
                           .replicas_min = r->options.replicas_min,
                           .copies = ek_run_copies(r),
                           .keep_all_slots = t->moe.keep_all_slots,
                           .all_serve = r->cfg->zero >= 2 && m->edp > 1,
                           .copies_lengthen =
                               r->options.copies.left_out ? r->options.copies.lengthen : 0,
                           .sends_twice = ek_moe_replica_sets(&t->moe) != EK_REPLICA_SETS_EACH,
                           .micros = ek_batch_micros(t->batch, t->micro_batch),
                           .plan_every = r->cfg->plan_every,
                           .micro_batch = t->micro_batch,
                           .seq = t->seq,
                           .top_k = top_k,
                           .shares = r->options.shares,
                           .rows = (double)(t->micro_batch * t->seq * top_k) / m->stage_size};
}

ek_status ek_imagine(const ek_train_config *cfg, const ek_imagined_world *w, int every_rank,
                     ek_imagined **out)
{
    ek_imagined *im;
    size_t n = (size_t)w->ranks;

    *out = NULL;
    EK_TRY(check_imaginable(cfg));
    im = calloc(1, sizeof(*im));
    EK_REQUIRE(im != NULL, EK_ENOMEM, "no memory for %d ranks", w->ranks);
    *out = im;
    im->cfg = *cfg;
    im->cfg.dry_run = 2;
    im->graphs.ranks = w->ranks;
    im->rank = calloc(n, sizeof(*im->rank));
    im->classes = calloc(n, sizeof(*im->classes));
    im->class_of = calloc(n, sizeof(*im->class_of));
    im->ranks = calloc(n, sizeof(*im->ranks));
    EK_REQUIRE(im->rank != NULL && im->classes != NULL && im->class_of != NULL && im->ranks != NULL,
               EK_ENOMEM, "no memory for %d ranks", w->ranks);
    EK_TRY(imagine(im, w, every_rank));
    im->graphs.classes = im->classes;
    im->layout = describe(&im->rank[0]->run);
    return EK_OK;
}

/* --- a rank alone ----------------------------------------------------------------------------- */

struct ek_imagined_rank {
    ek_train_config cfg;
    imagined_rank *rank; /* NULL: it could not be laid out */
};

ek_status ek_imagined_rank_open(const ek_train_config *cfg, const ek_imagined_world *w, int rank,
                                int64_t layers, ek_imagined_rank **out)
{
    ek_imagined_rank *x;

    *out = NULL;
    EK_TRY(check_imaginable(cfg));
    x = calloc(1, sizeof(*x));
    EK_REQUIRE(x != NULL, EK_ENOMEM, "no memory for a rank");
    *out = x;
    x->cfg = *cfg;
    x->cfg.dry_run = 2;
    return open_rank(&x->cfg, rank, w, layers, &x->rank);
}

double ek_imagined_rank_copies(const ek_imagined_rank *x)
{
    return ek_run_copies_bytes(&x->rank->run.partners);
}

ek_sim_layout ek_imagined_rank_layout(const ek_imagined_rank *x)
{
    return describe(&x->rank->run);
}

ek_status ek_imagined_rank_measure(ek_imagined_rank *x, int64_t micro_batch, const char *recompute,
                                   double *memory)
{
    ek_run *r = &x->rank->run;
    int word = ek_option_choice_index("off|attention|full", recompute);

    EK_REQUIRE(word >= 0, EK_EINVAL, "no recomputation %s", recompute);
    ek_trainer_destroy(&r->trainer);
    r->training.micro_batch = micro_batch;
    r->training.recompute = (ek_recompute)word;
    ek_run_choose_a2a(r);
    EK_TRY(ek_run_measure(r));
    *memory = memory_of(x->rank);
    return EK_OK;
}

void ek_imagined_rank_each_bucket(const ek_imagined_rank *x, ek_imagined_bucket_fn each,
                                  void *context)
{
    const ek_model *m = x->rank->run.model;

    for (int32_t i = 0; i < m->buckets->n; i++) {
        const ek_param_bucket *u = &m->buckets->bucket[i];
        ek_op gather = {.kind = EK_OP_GATHER_WEIGHTS,
                        .lane = EK_LANE_NET,
                        .work = ek_param_bucket_gather_work(m, u)};
        ek_op sum = {.kind = EK_OP_REDUCE_GRADIENTS,
                     .lane = EK_LANE_SUMS,
                     .work = ek_param_bucket_reduce_work(m, u)};

        if (u->module >= 0 && u->sharded)
            each(context, u->module, &gather, &sum);
    }
}

ek_status ek_imagined_rank_step(ek_imagined_rank *x, const ek_graph **out)
{
    ek_graph *g = NULL;
    ek_status st;

    ek_trainer_destroy(&x->rank->run.trainer);
    st = build_step(&x->rank->run, 0, &g);
    *out = g;
    return st;
}

ek_status ek_imagined_rank_micro_step(ek_imagined_rank *x, const ek_graph **out)
{
    ek_trainer_config *t = &x->rank->run.training;
    int64_t batch = t->batch;
    ek_status st;

    t->batch = t->micro_batch;
    st = ek_imagined_rank_step(x, out);
    t->batch = batch;
    return st;
}

void ek_imagined_rank_close(ek_imagined_rank **px)
{
    ek_imagined_rank *x = *px;

    *px = NULL;
    if (x == NULL)
        return;
    if (x->rank != NULL)
        close_rank(x->rank);
    free(x);
}

/* --- questions -------------------------------------------------------------------------------- */

const ek_sim_graphs *ek_imagined_graphs(const ek_imagined *x)
{
    return &x->graphs;
}

const ek_sim_layout *ek_imagined_layout(const ek_imagined *x)
{
    return &x->layout;
}

void ek_imagined_close(ek_imagined **px)
{
    ek_imagined *im = *px;

    *px = NULL;
    if (im == NULL)
        return;
    for (int32_t k = 0; k < im->graphs.n_classes; k++)
        close_rank(im->rank[k]);
    free(im->rank);
    free(im->classes);
    free(im->class_of);
    free(im->ranks);
    free(im);
}
