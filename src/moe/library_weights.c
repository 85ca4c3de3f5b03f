/* Implements evenkeel/moe_layer.h: the weights of a layer, and their gradients. */
#include "moe/library_weights.h"

#include "base/entry.h"
#include "base/random.h"

#include <string.h>

/* A weight of this rank. */
typedef struct {
    const char *name;
    int64_t expert; /* -1: of no expert */
    ek_weight *w;
} named_weight;

enum { NAMED = 5 }; /* besides those of experts */

/* Weight i of this rank; 0 beyond the last. */
static int weight_at(ek_moe_layer *l, int64_t i, named_weight *out)
{
    ek_mlp_weights *mlp = &l->w.mlp;
    const named_weight named[NAMED] = {{"router", -1, &l->w.router},
                                       {"bias", -1, &l->w.bias},
                                       {"shared_up", -1, &mlp->up},
                                       {"shared_down", -1, &mlp->down},
                                       {"shared_gate", -1, &mlp->gate}};
    int64_t first = ek_range_first(l->spec.experts, l->mesh->ep, l->mesh->ep_rank);
    int64_t n = ek_range_length(l->spec.experts, l->mesh->ep, l->mesh->ep_rank), e;

    if (i < NAMED) {
        *out = named[i];
        return 1;
    }
    i -= NAMED;
    e = first + i / 2;
    if (i >= 2 * n)
        return 0;
    *out = i % 2 == 0 ? (named_weight){"up", e, &l->w.up[e]}
                      : (named_weight){"down", e, &l->w.down[e]};
    return 1;
}

static int weight_exists(const ek_weight *w)
{
    return w->p != NULL;
}

/* Whether it is an operand of products with packed forms. */
static int has_forms(const ek_weight *w)
{
    return w->forward != NULL;
}

static void *reserve_form(ek_arena *a, const ek_kernels *k, const ek_weight *w, ek_form form)
{
    size_t bytes = k->packed_bytes(k, w->out, w->in, form);

    return bytes > 0 ? ek_arena_alloc(a, (int64_t)bytes, 1) : w->p;
}

/* [out, in]; in 0: a vector, without a gradient. */
static void reserve_weight(ek_moe_layer *l, ek_weight *w, int64_t out, int64_t in, int forms)
{
    size_t real = ek_dtype_size(l->k->real);
    ek_arena *a = &l->weights;

    *w = (ek_weight){.out = out, .in = in};
    w->p = ek_arena_alloc(a, ek_weight_elements(w), real);
    if (in > 0)
        w->g = ek_arena_alloc(a, ek_weight_elements(w), real);
    if (!forms)
        return;
    w->forward = reserve_form(a, l->k, w, EK_PACKED_FORWARD);
    w->backward = l->k->one_form ? w->forward : reserve_form(a, l->k, w, EK_PACKED_BACKWARD);
}

static void reserve_shared(ek_moe_layer *l)
{
    ek_mlp_weights *mlp = &l->w.mlp;

    if (!mlp->present)
        return;
    reserve_weight(l, &mlp->up, 2 * mlp->f, l->spec.hidden, 1);
    reserve_weight(l, &mlp->down, l->spec.hidden, mlp->f, 1);
    if (mlp->gated)
        reserve_weight(l, &mlp->gate, 1, l->spec.hidden, 0);
}

void ek_moe_layer_reserve_weights(ek_moe_layer *l)
{
    int64_t experts = l->spec.experts, d = l->spec.hidden;
    int first = (int)ek_range_first(experts, l->mesh->ep, l->mesh->ep_rank);
    int n = (int)ek_range_length(experts, l->mesh->ep, l->mesh->ep_rank);

    ek_moe_reserve_weights(&l->w, &l->weights, &l->spec, l->mesh, l->limits.spare_slots, 0, NULL);
    reserve_weight(l, &l->w.router, experts, d, 0);
    if (l->spec.gate.kind == EK_GATE_SIGMOID_BIAS)
        reserve_weight(l, &l->w.bias, experts, 0, 0);
    reserve_shared(l);
    l->w.up = ek_arena_alloc(&l->weights, experts, sizeof(*l->w.up));
    l->w.down = ek_arena_alloc(&l->weights, experts, sizeof(*l->w.down));
    for (int e = first; e < first + n; e++) {
        ek_weight measured;

        reserve_weight(l, l->w.up != NULL ? &l->w.up[e] : &measured, 2 * l->w.ff, d, 1);
        reserve_weight(l, l->w.down != NULL ? &l->w.down[e] : &measured, d, l->w.ff, 1);
    }
}

/* Values depend on name, expert and place alone. */
static void fill_weight(const ek_moe_layer *l, const named_weight *of, uint64_t seed)
{
    int64_t n = ek_weight_elements(of->w), first = of->expert > 0 ? of->expert * n : 0;
    uint64_t stream = ek_random_stream(of->name);

#pragma omp parallel for schedule(static) num_threads(l->k->threads)
    for (int64_t i = 0; i < n; i++) {
        double v = l->init_std * ek_random_normal(seed, stream, (uint64_t)(first + i));

        if (l->k->real == EK_F64)
            ((double *)of->w->p)[i] = v;
        else
            ((float *)of->w->p)[i] = (float)v;
    }
}

void ek_moe_layer_fill_weights(ek_moe_layer *l, uint64_t seed)
{
    named_weight of;

    for (int64_t i = 0; l->init_std > 0 && weight_at(l, i, &of); i++)
        if (weight_exists(of.w) && of.w->in > 0)
            fill_weight(l, &of, seed);
}

static ek_status pack_weight(const ek_kernels *k, const ek_weight *w)
{
    if (w->forward != w->p)
        EK_TRY(k->pack(k, w->out, w->in, EK_PACKED_FORWARD, w->p, w->forward));
    if (w->backward != w->p && w->backward != w->forward)
        EK_TRY(k->pack(k, w->out, w->in, EK_PACKED_BACKWARD, w->p, w->backward));
    return EK_OK;
}

ek_status ek_moe_layer_pack_weights(ek_moe_layer *l)
{
    named_weight of;

    ek_kernels_enter(l->k);
    for (int64_t i = 0; weight_at(l, i, &of); i++)
        if (weight_exists(of.w) && has_forms(of.w))
            EK_TRY(pack_weight(l->k, of.w));
    return EK_OK;
}

/* --- for the caller --------------------------------------------------------------------------- */

static int is_of_expert(const char *name)
{
    return strcmp(name, "up") == 0 || strcmp(name, "down") == 0;
}

ek_status ek_moe_layer_param(ek_moe_layer *layer, const char *name, int64_t expert,
                             ek_moe_layer_weight *out)
{
    EK_C_LOCALE;
    named_weight of;
    int64_t i = 0;
    int by_expert;

    EK_NOT_NULL(layer);
    EK_NOT_NULL(name);
    EK_NOT_NULL(out);
    by_expert = is_of_expert(name);
    EK_REQUIRE(!by_expert || (expert >= 0 && expert < layer->spec.experts), EK_EINVAL,
               "expert %lld of %lld", (long long)expert, (long long)layer->spec.experts);
    while (weight_at(layer, i, &of) &&
           (strcmp(of.name, name) != 0 || (by_expert && of.expert != expert)))
        i++;
    EK_REQUIRE(!by_expert || weight_at(layer, i, &of), EK_ENOENT,
               "expert %lld is on another rank than %d", (long long)expert, layer->mesh->rank);
    EK_REQUIRE(weight_at(layer, i, &of) && weight_exists(of.w), EK_EINVAL,
               "this layer has no weight %s: see ek_moe_layer_param in evenkeel/moe_layer.h", name);
    *out = (ek_moe_layer_weight){of.w->p, of.w->g, of.w->out, of.w->in > 0 ? of.w->in : 1};
    return EK_OK;
}

ek_status ek_moe_layer_pack(ek_moe_layer *layer)
{
    EK_C_LOCALE;

    EK_NOT_NULL(layer);
    EK_TRY(ek_moe_layer_check_usable(layer));
    for (int i = 0; i < layer->act_slots; i++)
        EK_REQUIRE(!layer->act_slot[i].due, EK_ESTATE,
                   "the backward of the last forward in activation slot %d is due, which needs the "
                   "weights of that forward: call it before the weights change",
                   i);
    return ek_moe_layer_pack_weights(layer);
}

ek_status ek_moe_layer_zero_gradients(ek_moe_layer *layer)
{
    EK_C_LOCALE;
    named_weight of;

    EK_NOT_NULL(layer);
    for (int64_t i = 0; weight_at(layer, i, &of); i++)
        if (of.w->g != NULL)
            layer->k->clear(ek_weight_elements(of.w) * (int64_t)ek_dtype_size(layer->k->real),
                            of.w->g);
    return EK_OK;
}

static ek_status sum_gradients(ek_moe_layer *l)
{
    ek_reduce how = l->k->real == EK_F64 ? EK_SUM_F64 : EK_SUM_F32;
    named_weight of;

    for (int64_t i = 0; i < NAMED && weight_at(l, i, &of); i++) {
        ek_coll *op = NULL;

        if (of.w->g == NULL)
            continue;
        EK_TRY(ek_comm_all_reduce(l->mesh->stage, of.w->g, ek_weight_elements(of.w), how, &op));
        EK_TRY(ek_coll_wait(&op));
    }
    return EK_OK;
}

ek_status ek_moe_layer_sum_gradients(ek_moe_layer *layer)
{
    EK_C_LOCALE;

    EK_NOT_NULL(layer);
    EK_TRY(ek_moe_layer_check_usable(layer));
    return layer->world != NULL ? ek_moe_layer_end_collective(layer, sum_gradients(layer)) : EK_OK;
}
