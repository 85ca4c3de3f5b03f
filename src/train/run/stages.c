/* Cuts the layers of a model into pipeline stages: even, as given, or by their FLOPs. */
#include "train/run/stages.h"

#include "base/log.h"
#include "model/stage_cut.h"
#include "tensor/select/select.h"

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

/* "6,2": the layers of each virtual stage. */
static ek_status parse_list(const char *text, int32_t *part, int *n)
{
    const char *at = text;
    char *end;

    for (*n = 0;; at = end + 1) {
        long layers;

        errno = 0;
        layers = strtol(at, &end, 10);
        EK_REQUIRE(*at >= '0' && *at <= '9' && errno == 0 && (*end == ',' || *end == '\0') &&
                       layers > 0 && layers <= EK_LAYERS_MAX && *n < EK_LAYERS_MAX,
                   EK_EINVAL,
                   "--pp-layers %s is neither even, nor auto, nor a list of layers, at least one "
                   "for each stage, such as 6,2",
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
    if (is_even(r) || is_auto(r))
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
 * of which only the table of rotations is touched. */
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

static void log_cut(const ek_run *r, const layer_costs *c)
{
    double evenness = ek_stage_cut_evenness(c->layer, c->embed, c->head, r->options.stages,
                                            r->options.stage_layers);
    char text[256];

    ek_log("train", EK_LOG_INFO,
           "--pp-layers auto: %s layers%s; the mean has %.0f %% of the FLOPs of the busiest one",
           ek_run_stages_text(r, text, sizeof(text)),
           r->cfg->chunks > 1 ? " of virtual stages" : "", 100 * evenness);
}

ek_status ek_run_cut_stages(ek_run *r, ek_model_config *mc)
{
    layer_costs costs;

    if (r->options.stages == 1 || is_even(r))
        return EK_OK;
    mc->stage_layers = r->options.stage_layers;
    if (is_auto(r)) {
        EK_TRY(find_costs(r, &costs));
        EK_TRY(ek_stage_cut(costs.layer, (int32_t)r->source.spec.layers, costs.embed, costs.head,
                            r->options.stages, r->options.stage_layers));
        if (r->rank == 0)
            log_cut(r, &costs);
    }
    return EK_OK;
}
