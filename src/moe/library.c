/* Implements evenkeel/moe_layer.h: forward and backward, each a graph of the layer alone, and what
 * they count. */
#include "evenkeel/moe_layer.h"

#include "base/entry.h"
#include "comm/agree.h"
#include "moe/library_priv.h"

#include <stdio.h>
#include <string.h>

static ek_status check_slot(const ek_moe_layer *l, int act_slot)
{
    EK_REQUIRE(act_slot >= 0 && act_slot < l->act_slots, EK_EINVAL,
               "act_slot %d: this layer has slots 0 to %d (ek_moe_layer_config.act_slots)",
               act_slot, l->act_slots - 1);
    return EK_OK;
}

static ek_status check_forward(const ek_moe_layer *l, int act_slot, const void *x, int64_t tokens,
                               const void *y)
{
    EK_TRY(check_slot(l, act_slot));
    EK_REQUIRE(tokens >= 0 && tokens <= l->limits.tokens, EK_EINVAL,
               "%lld tokens: this layer was created for at most %lld (ek_moe_layer_config.tokens)",
               (long long)tokens, (long long)l->limits.tokens);
    EK_REQUIRE(tokens == 0 || x != NULL, EK_EINVAL, "x must not be NULL");
    EK_REQUIRE(tokens == 0 || y != NULL, EK_EINVAL, "y must not be NULL");
    EK_REQUIRE(!l->act_slot[act_slot].due, EK_ESTATE,
               "the backward of the last forward in activation slot %d is due: call it first, or "
               "use another slot (a forward without a backward has training 0)",
               act_slot);
    return EK_OK;
}

static ek_status check_backward(const ek_moe_layer *l, int act_slot, const void *dy)
{
    EK_TRY(check_slot(l, act_slot));
    EK_REQUIRE(l->act_slot[act_slot].due, EK_ESTATE,
               "no backward is due in activation slot %d: call ek_moe_layer_forward with training "
               "1 and this act_slot first",
               act_slot);
    EK_REQUIRE(l->micro[act_slot].n == 0 || dy != NULL, EK_EINVAL, "dy must not be NULL");
    return EK_OK;
}

/* Learns the calls of all ranks.  *refused: the lowest rank whose call was, -1: none. */
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
static ek_status check_same_call(const ek_moe_layer *l)
{
    const ek_moe_layer_call *c = l->calls;

    for (int r = 1; r < l->mesh->stage_size; r++) {
        EK_REQUIRE(c[r].backward == c[0].backward, EK_EINVAL, "%s on rank 0 and %s on rank %d",
                   c[0].backward ? "backward" : "forward", c[r].backward ? "backward" : "forward",
                   r);
        EK_REQUIRE(c[r].training == c[0].training, EK_EINVAL,
                   "training is %d on rank 0 and %d on rank %d", c[0].training, c[r].training, r);
        EK_REQUIRE(c[r].act_slot == c[0].act_slot, EK_EINVAL,
                   "act_slot is %d on rank 0 and %d on rank %d", c[0].act_slot, c[r].act_slot, r);
    }
    return EK_OK;
}

/* Ranks agree on a call, which this rank refuses if st is a failure.  *total: tokens of all. */
static ek_status agree_on_call(ek_moe_layer *l, ek_moe_layer_call mine, ek_status st,
                               int64_t *total)
{
    int refused;

    if (st < 0)
        mine.tokens = -1;
    EK_TRY(ek_moe_layer_end_collective(l, gather_calls(l, mine, total, &refused)));
    if (refused >= 0)
        return l->world != NULL ? ek_agree_failed(l->world, "run the layer", refused, st) : st;
    return check_same_call(l);
}

static void set_micro(ek_moe_layer *l, int act_slot, int64_t tokens, int64_t total)
{
    l->micro[act_slot] = ek_micro_alone(tokens > 0, tokens, 1, 0, NULL, NULL);
    l->micro[act_slot].total = total;
}

/* Lets the kernels read the slot's x. */
static void use_slot(ek_moe_layer *l, int act_slot)
{
    l->scratch.y_real = l->scratch.mlp.y_real = l->act_slot[act_slot].real;
}

static ek_status run_graph(ek_moe_layer *l)
{
    EK_TRY(ek_graph_check(&l->graph));
    return ek_exec_run(l->exec, &l->graph);
}

/* x as both types that the layer reads. */
static void copy_input(ek_moe_layer *l, const ek_moe_layer_act_slot *at, const void *x, int64_t n)
{
    int64_t d = l->spec.hidden;
    size_t bytes = (size_t)(n * d) * ek_dtype_size(l->k->real);

    if (at->real == NULL) {
        memcpy(at->tokens, x, bytes);
        return;
    }
    memcpy(at->real, x, bytes);
    l->k->to_comp(n, d, at->real, at->tokens);
}

static ek_status run_forward(ek_moe_layer *l, int act_slot, const void *x, void *y)
{
    int64_t n = l->micro[act_slot].n;
    size_t bytes = (size_t)(n * l->spec.hidden) * ek_dtype_size(l->k->real);
    int failed = l->planning.failed;

    ek_kernels_enter(l->k);
    ek_moe_begin_step(&l->m);
    if (l->micro[act_slot].total == 0)
        return EK_OK;
    use_slot(l, act_slot);
    if (n > 0) {
        copy_input(l, &l->act_slot[act_slot], x, n);
        memset(l->out, 0, bytes);
    }
    ek_graph_reset(&l->graph);
    ek_moe_build_forward(&l->m, &l->graph, act_slot, n, 0, -1);
    EK_TRY(run_graph(l));
    if (l->planning.failed && !failed)
        snprintf(l->planner_fault, sizeof(l->planner_fault), "planner %s: %s",
                 l->config.planner->name, ek_err_message());
    if (n > 0)
        memcpy(y, l->out, bytes);
    return EK_OK;
}

ek_status ek_moe_layer_forward(ek_moe_layer *layer, int act_slot, const void *x, int64_t tokens,
                               int training, void *y)
{
    EK_C_LOCALE;
    int64_t total;

    EK_NOT_NULL(layer);
    EK_TRY(ek_moe_layer_check_usable(layer));
    training = training != 0;
    EK_TRY(agree_on_call(layer, (ek_moe_layer_call){tokens, act_slot, training, 0},
                         check_forward(layer, act_slot, x, tokens, y), &total));
    set_micro(layer, act_slot, tokens, total);
    layer->step.training = training;
    EK_TRY(ek_moe_layer_end_collective(layer, run_forward(layer, act_slot, x, y)));
    layer->step.step += training != 0;
    layer->act_slot[act_slot].due = training;
    layer->last = act_slot;
    return EK_OK;
}

static ek_status run_backward(ek_moe_layer *l, int act_slot, const void *dy, void *dx)
{
    int64_t n = l->micro[act_slot].n;
    size_t bytes = (size_t)(n * l->spec.hidden) * ek_dtype_size(l->k->real);

    if (l->micro[act_slot].total == 0)
        return EK_OK;
    ek_kernels_enter(l->k);
    use_slot(l, act_slot);
    if (n > 0)
        memcpy(l->scratch.dx, dy, bytes);
    ek_moe_begin_graph(&l->m);
    ek_graph_reset(&l->graph);
    ek_moe_build_backward(&l->m, &l->graph, act_slot, n, -1);
    EK_TRY(run_graph(l));
    if (n > 0 && dx != NULL)
        memcpy(dx, l->scratch.dy, bytes);
    return EK_OK;
}

ek_status ek_moe_layer_backward(ek_moe_layer *layer, int act_slot, const void *dy, void *dx)
{
    EK_C_LOCALE;
    int64_t total;

    EK_NOT_NULL(layer);
    EK_TRY(ek_moe_layer_check_usable(layer));
    EK_TRY(agree_on_call(layer, (ek_moe_layer_call){0, act_slot, 1, 1},
                         check_backward(layer, act_slot, dy), &total));
    layer->step.training = 1;
    EK_TRY(ek_moe_layer_end_collective(layer, run_backward(layer, act_slot, dy, dx)));
    layer->act_slot[act_slot].due = 0;
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
        .tokens = layer->micro[layer->last].total,
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
