/* Implements evenkeel/moe_layer.h: forward and backward, each a graph of the layer alone, and what
 * they count. */
#include "evenkeel/moe_layer.h"

#include "base/entry.h"
#include "comm/agree.h"
#include "moe/library_priv.h"

#include <stdio.h>
#include <string.h>

static ek_status check_forward(const ek_moe_layer *l, const void *x, int64_t tokens, const void *y)
{
    EK_REQUIRE(tokens >= 0 && tokens <= l->limits.tokens, EK_EINVAL,
               "%lld tokens: this layer was created for at most %lld (ek_moe_layer_config.tokens)",
               (long long)tokens, (long long)l->limits.tokens);
    EK_REQUIRE(tokens == 0 || x != NULL, EK_EINVAL, "x must not be NULL");
    EK_REQUIRE(tokens == 0 || y != NULL, EK_EINVAL, "y must not be NULL");
    EK_REQUIRE(!l->due, EK_ESTATE,
               "the backward of the last forward is due: a layer keeps the activations of one "
               "forward (training 0: without a backward)");
    return EK_OK;
}

/* Learns the tokens of all ranks.  *refused: the lowest rank whose call was, -1: none. */
static ek_status gather_calls(ek_moe_layer *l, ek_moe_layer_call mine, int64_t *total, int *refused)
{
    int ranks = l->mesh->stage_size;
    ek_coll *op = NULL;

    *refused = -1;
    *total = 0;
    l->calls[l->mesh->at] = mine;
    if (l->world != NULL) {
        EK_TRY(
            ek_comm_all_gather(l->mesh->stage, l->calls, l->scratch.each, sizeof(*l->calls), &op));
        EK_TRY(ek_coll_wait(&op));
    }
    for (int r = ranks - 1; r >= 0; r--) {
        *total += l->calls[r].tokens;
        if (l->calls[r].tokens < 0)
            *refused = r;
    }
    return EK_OK;
}

/* The same failure on all ranks, as all know all calls. */
static ek_status check_same_kind(const ek_moe_layer *l)
{
    for (int r = 1; r < l->mesh->stage_size; r++)
        EK_REQUIRE(l->calls[r].training == l->calls[0].training, EK_EINVAL,
                   "training is %d on rank 0 and %d on rank %d", (int)l->calls[0].training,
                   (int)l->calls[r].training, r);
    return EK_OK;
}

static void set_micro(ek_moe_layer *l, int64_t tokens, int64_t total)
{
    l->micro = ek_micro_alone(tokens > 0, tokens, 1, 0, NULL, NULL);
    l->micro.total = total;
}

static ek_status run_graph(ek_moe_layer *l)
{
    EK_TRY(ek_graph_check(&l->graph));
    return ek_exec_run(l->exec, &l->graph);
}

/* x as both types that the layer reads. */
static void copy_input(ek_moe_layer *l, const void *x, int64_t n)
{
    int64_t d = l->spec.hidden;
    size_t bytes = (size_t)(n * d) * ek_dtype_size(l->k->real);

    if (l->k->comp == l->k->real) {
        memcpy(l->tokens, x, bytes);
        return;
    }
    memcpy(l->scratch.y_real, x, bytes);
    l->k->to_comp(n, d, l->scratch.y_real, l->tokens);
}

static ek_status run_forward(ek_moe_layer *l, const void *x, int64_t n, void *y)
{
    size_t bytes = (size_t)(n * l->spec.hidden) * ek_dtype_size(l->k->real);
    int failed = l->planning.failed;

    ek_kernels_enter(l->k);
    ek_moe_begin_step(&l->m);
    if (l->micro.total == 0)
        return EK_OK;
    if (n > 0) {
        copy_input(l, x, n);
        memset(l->out, 0, bytes);
    }
    ek_graph_reset(&l->graph);
    ek_moe_build_forward(&l->m, &l->graph, 0, n, 0, -1);
    EK_TRY(run_graph(l));
    if (l->planning.failed && !failed)
        snprintf(l->planner_fault, sizeof(l->planner_fault), "planner %s: %s",
                 l->config.planner->name, ek_err_message());
    if (n > 0)
        memcpy(y, l->out, bytes);
    return EK_OK;
}

ek_status ek_moe_layer_forward(ek_moe_layer *layer, const void *x, int64_t tokens, int training,
                               void *y)
{
    EK_C_LOCALE;
    int64_t total;
    int refused;
    ek_status st;

    EK_NOT_NULL(layer);
    EK_TRY(ek_moe_layer_check_usable(layer));
    st = check_forward(layer, x, tokens, y);
    EK_TRY(ek_moe_layer_end_collective(
        layer, gather_calls(layer, (ek_moe_layer_call){st == EK_OK ? tokens : -1, training != 0},
                            &total, &refused)));
    if (refused >= 0)
        return layer->world != NULL ? ek_agree_failed(layer->world, "run the layer", refused, st)
                                    : st;
    EK_TRY(check_same_kind(layer));
    set_micro(layer, tokens, total);
    layer->step.training = training != 0;
    EK_TRY(ek_moe_layer_end_collective(layer, run_forward(layer, x, tokens, y)));
    layer->step.step += training != 0;
    layer->due = training != 0;
    return EK_OK;
}

static ek_status run_backward(ek_moe_layer *l, const void *dy, void *dx)
{
    int64_t n = l->micro.n;
    size_t bytes = (size_t)(n * l->spec.hidden) * ek_dtype_size(l->k->real);

    if (l->micro.total == 0)
        return EK_OK;
    ek_kernels_enter(l->k);
    if (n > 0)
        memcpy(l->scratch.dx, dy, bytes);
    ek_moe_begin_graph(&l->m);
    ek_graph_reset(&l->graph);
    ek_moe_build_backward(&l->m, &l->graph, 0, n, -1);
    EK_TRY(run_graph(l));
    if (n > 0 && dx != NULL)
        memcpy(dx, l->scratch.dy, bytes);
    return EK_OK;
}

ek_status ek_moe_layer_backward(ek_moe_layer *layer, const void *dy, void *dx)
{
    EK_C_LOCALE;

    EK_NOT_NULL(layer);
    EK_TRY(ek_moe_layer_check_usable(layer));
    EK_REQUIRE(layer->due, EK_ESTATE,
               "backward without a forward before it (with training 1) whose gradients are wanted");
    EK_REQUIRE(layer->micro.n == 0 || dy != NULL, EK_EINVAL, "dy must not be NULL");
    EK_TRY(ek_moe_layer_end_collective(layer, run_backward(layer, dy, dx)));
    layer->due = 0;
    return EK_OK;
}

ek_status ek_moe_layer_get_stats(const ek_moe_layer *layer, ek_moe_layer_stats *out)
{
    EK_C_LOCALE;
    const ek_moe_stats *s;

    EK_NOT_NULL(layer);
    EK_NOT_NULL(out);
    s = &layer->m.stats;
    *out = (ek_moe_layer_stats){
        .tokens = layer->micro.total,
        .load = s->load,
        .busiest_before = ek_moe_primary_balance(s, &layer->m.x).max_over_mean,
        .busiest = ek_moe_rank_balance(s, &layer->m.x).max_over_mean,
        .replicas = s->replicas,
        .dropped = s->dropped,
        .balance_loss = s->aux_loss,
        .z_loss = s->z_loss,
        .planner_fault = layer->planner_fault[0] != '\0' ? layer->planner_fault : NULL};
    return EK_OK;
}
