/* Cuts the layers of a model into pipeline stages: even, as given, by their FLOPs, or by FLOPs and
 * the measured speeds of stages. */
#include "train/run/stages.h"

#include "base/log.h"
#include "comm/agree.h"
#include "cost/cost.h"
#include "model/stage_cut.h"
#include "tensor/select/select.h"
#include "train/run/stage_speeds.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int is_even(const ek_run *r)
{
    return strcmp(r->cfg->pp_layers, "even") == 0;
}

static int is_auto(const ek_run *r)
{
    return strcmp(r->cfg->pp_layers, "auto") == 0;
}

static int is_measured(const ek_run *r)
{
    return strcmp(r->cfg->pp_layers, "measured") == 0;
}

/* "6,2": the layers of each virtual stage. */
static ek_status parse_list(const char *text, int32_t *part, int *n)
{
    const char *at = text;
    char *end;

    for (*n = 0;; at = end + 1) {
        long layers;

        errno = 0;
        layers = strtol(at, &end, 10);
        EK_REQUIRE(
            *at >= '0' && *at <= '9' && errno == 0 && (*end == ',' || *end == '\0') && layers > 0 &&
                layers <= EK_LAYERS_MAX && *n < EK_LAYERS_MAX,
            EK_EINVAL,
            "--pp-layers %s is neither even, nor auto, nor measured, nor a list of layers, at "
            "least one for each stage, such as 6,2",
            text);
        part[(*n)++] = (int32_t)layers;
        if (*end == '\0')
            return EK_OK;
    }
}

ek_status ek_run_read_stages(ek_run *r)
{
    const ek_train_config *c = r->cfg;
    int chunks = c->pp > 1 && c->chunks > 1 ? c->chunks : 1, pp = c->pp > 1 ? c->pp : 1, n;
    int32_t *part = r->options.stage_layers;
    int64_t sum = 0, layers = r->source.spec.layers;

    EK_REQUIRE((int64_t)pp * chunks <= layers, EK_EINVAL,
               "--pp %d with --pp-chunks %d needs %d layers, and the model has %lld", pp, chunks,
               pp * chunks, (long long)layers);
    r->options.stages = pp * chunks;
    for (int i = 0; i < r->options.stages; i++)
        part[i] = (int32_t)ek_range_length(layers, r->options.stages, i);
    if (is_even(r) || is_auto(r) || is_measured(r))
        return EK_OK;
    EK_TRY(parse_list(c->pp_layers, part, &n));
    EK_REQUIRE(n == r->options.stages, EK_EINVAL,
               "--pp-layers %s is of %d stages, and --pp %d with --pp-chunks %d has %d",
               c->pp_layers, n, pp, chunks, r->options.stages);
    for (int i = 0; i < n; i++)
        sum += part[i];
    EK_REQUIRE(sum == layers, EK_EINVAL, "--pp-layers %s has %lld layers, and the model has %lld",
               c->pp_layers, (long long)sum, (long long)layers);
    return EK_OK;
}

/* What a micro-batch costs: FLOPs, with those of recomputation. */
typedef struct {
    double layer[EK_LAYERS_MAX], embed, head;
} layer_costs;

static void add_costs(const ek_graph *g, layer_costs *c)
{
    for (int32_t i = 0; i < g->n_ops; i++) {
        const ek_op *op = &g->ops[i];

        if (op->lane != EK_LANE_COMPUTE)
            continue;
        if (op->layer >= 0)
            c->layer[op->layer] += op->flops;
        else if (op->kind == EK_OP_LOGITS || op->kind == EK_OP_HEAD_BACKWARD)
            c->head += op->flops;
        else if (op->kind == EK_OP_EMBED || op->kind == EK_OP_EMBED_BACKWARD)
            c->embed += op->flops;
    }
}

/* Builds the step of one micro-batch as one rank would execute it: addresses for the whole model,
 * none of which is touched. */
static ek_status find_costs(const ek_run *r, layer_costs *out)
{
    const ek_model_config mc = {.trained = 1, .never_touched = 1};
    ek_trainer_config t = {.batch = r->training.micro_batch,
                           .micro_batch = r->training.micro_batch,
                           .seq = r->training.seq,
                           .top_k = r->training.top_k,
                           .recompute = r->training.recompute,
                           .moe = {.degree = 1},
                           .exec = {.inline_async = 1}};
    ek_kernels *k = NULL; /* of the CPU: arithmetic is the same on any device */
    ek_model *m = NULL;
    ek_trainer *tr = NULL;
    ek_graph *g;
    ek_status st;

    *out = (layer_costs){0};
    EK_TRY_OUT(ek_kernels_create(r->options.mode, ek_cpu_isa(), 1, &k));
    EK_TRY_OUT(ek_model_create(&r->source.spec, k, &mc, &m));
    EK_TRY_OUT(ek_trainer_create(m, &t, &tr));
    EK_TRY_OUT(ek_trainer_build_step(tr, &g));
    add_costs(g, out);
out:
    ek_trainer_destroy(&tr);
    ek_model_destroy(&m);
    ek_kernels_destroy(&k);
    return st;
}

const char *ek_run_stages_text(const ek_run *r, char *text, size_t cap)
{
    enum { LONGEST = 8 }; /* of ",512" or "..." */
    size_t used = 0;

    text[0] = '\0';
    for (int i = 0; i < r->options.stages && used + LONGEST < cap; i++) {
        int full = i + 1 < r->options.stages && used + 2 * (size_t)LONGEST >= cap;

        used += (size_t)snprintf(text + used, cap - used, "%s%d%s", i > 0 ? "," : "",
                                 (int)r->options.stage_layers[i], full ? "..." : "");
        if (full)
            break;
    }
    return text;
}

/* What the stages cost, with their speeds if these are measured. */
typedef struct {
    layer_costs flops;
    double *rank;     /* [EK_SPEED_ROUNDS][ranks] FLOP/s */
    double *stage;    /* [pp] the same of stages */
    double *relative; /* [pp] */
    double *speed;    /* [virtual stages] relative */
    int differ;
} cut_inputs;

static ek_stage_costs costs_of(const ek_run *r, const cut_inputs *x)
{
    return (ek_stage_costs){.layer = x->flops.layer,
                            .layers = (int32_t)r->source.spec.layers,
                            .n = r->options.stages,
                            .before = x->flops.embed,
                            .after = x->flops.head,
                            .speed = x->speed};
}

/* "41.2 GFLOP/s, 20.5 GFLOP/s"; ends in "..." if there is no room for all. */
static const char *speeds_text(const ek_run *r, const cut_inputs *x, char *text, size_t cap)
{
    char quantity[EK_COST_QUANTITY];
    size_t used = 0;

    text[0] = '\0';
    for (int i = 0; i < r->mesh->pp; i++) {
        int full = used + 2 * sizeof(quantity) >= cap;

        used += (size_t)snprintf(text + used, cap - used, "%s%s", i > 0 ? ", " : "",
                                 full ? "..." : ek_cost_quantity(quantity, x->stage[i], "FLOP/s"));
        if (full)
            break;
    }
    return text;
}

static void log_cut(const ek_run *r, const cut_inputs *x)
{
    ek_stage_costs c = costs_of(r, x);
    double evenness = 100 * ek_stage_cut_evenness(&c, r->options.stage_layers);
    const char *of = r->cfg->chunks > 1 ? " of virtual stages" : "";
    char text[256], speeds[256];

    ek_run_stages_text(r, text, sizeof(text));
    if (x->speed == NULL)
        ek_log(
            "train", EK_LOG_INFO,
            "--pp-layers %s: %s layers%s; the mean has %.0f %% of the FLOPs of the busiest one%s",
            r->cfg->pp_layers, text, of, evenness,
            is_measured(r)
                ? "; speeds are measured when a run starts: until then these are the layers of auto"
                : "");
    else
        ek_log("train", EK_LOG_INFO,
               "--pp-layers measured: %s layers%s; matrix products on the slowest ranks of the "
               "stages: %s%s; by these all stages together reach %.0f %% of their speed",
               text, of, speeds_text(r, x, speeds, sizeof(speeds)),
               x->differ ? "" : ", which count as equal", evenness);
}

/* Tokens of a micro-batch on a rank. */
static int64_t rows_of_rank(const ek_run *r)
{
    return r->training.micro_batch * r->training.seq / r->mesh->stage_size;
}

static ek_status reserve_speeds(const ek_run *r, cut_inputs *x)
{
    x->rank = calloc((size_t)EK_SPEED_ROUNDS * (size_t)r->ranks, sizeof(*x->rank));
    x->stage = calloc((size_t)r->mesh->pp, sizeof(*x->stage));
    x->relative = calloc((size_t)r->mesh->pp, sizeof(*x->relative));
    x->speed = calloc((size_t)r->options.stages, sizeof(*x->speed));
    EK_REQUIRE(x->rank != NULL && x->stage != NULL && x->relative != NULL && x->speed != NULL,
               EK_ENOMEM, "no memory for the speeds of %d ranks", r->ranks);
    return EK_OK;
}

static void free_speeds(cut_inputs *x)
{
    free(x->rank);
    free(x->stage);
    free(x->relative);
    free(x->speed);
}

/* Collective. */
static ek_status measure_stages(const ek_run *r, cut_inputs *x)
{
    const ek_trainer_config *t = &r->training;
    ek_speed_config c = {.spec = &r->source.spec,
                         .k = r->kernels,
                         .world = r->world,
                         .rows = rows_of_rank(r),
                         .top_k = t->top_k > 0 ? t->top_k : r->source.spec.top_k};

    EK_TRY(ek_agree(r->world, "get memory for speeds", reserve_speeds(r, x)));
    EK_TRY(ek_measure_speeds(&c, x->rank));
    x->differ = ek_stage_speeds(x->rank, r->ranks, r->mesh->pp, x->stage, x->relative);
    for (int i = 0; i < r->options.stages; i++) /* stages have chunks in turn */
        x->speed[i] = x->relative[i % r->mesh->pp];
    return EK_OK;
}

/* Rank 0's, as other hosts may round differently.  Collective. */
static ek_status broadcast_cut(ek_run *r)
{
    ek_coll *op = NULL;

    EK_TRY(ek_comm_broadcast(r->world, r->options.stage_layers, sizeof(r->options.stage_layers), 0,
                             &op));
    return ek_coll_wait(&op);
}

/* By the FLOPs and speeds there are. */
static ek_status cut_layers(ek_run *r, const cut_inputs *x)
{
    ek_stage_costs c = costs_of(r, x);

    return ek_stage_cut(&c, r->options.stage_layers);
}

ek_status ek_run_measure_stages(ek_run *r)
{
    cut_inputs x = {0};
    ek_status st = EK_OK;

    if (r->options.stages == 1 || !is_measured(r) || r->cfg->dry_run)
        return EK_OK;
    EK_TRY_OUT(ek_agree(r->world, "count the FLOPs of layers", find_costs(r, &x.flops)));
    EK_TRY_OUT(measure_stages(r, &x));
    EK_TRY_OUT(ek_agree(r->world, "cut stages", cut_layers(r, &x)));
    EK_TRY_OUT(broadcast_cut(r));
    if (r->rank == 0)
        log_cut(r, &x);
out:
    free_speeds(&x);
    return st;
}

ek_status ek_run_cut_stages(ek_run *r)
{
    cut_inputs x = {0};

    if (r->options.stages == 1 || !(is_auto(r) || (is_measured(r) && r->cfg->dry_run)))
        return EK_OK;
    EK_TRY(find_costs(r, &x.flops));
    EK_TRY(cut_layers(r, &x));
    if (r->rank == 0)
        log_cut(r, &x);
    return EK_OK;
}
