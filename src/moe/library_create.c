/* Implements evenkeel/moe_layer.h: creates a layer from its settings, and destroys it. */
#include "evenkeel/job.h"
#include "evenkeel/moe_layer.h"

#include "base/entry.h"
#include "base/random.h"
#include "base/threads.h"
#include "comm/agree.h"
#include "moe/library_weights.h"
#include "moe/replica_weights.h"
#include "tensor/select/select.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ACT_SLOTS_MAX = 65536 };

/* What a rank tells the others. */
typedef struct {
    uint64_t settings; /* fingerprint */
    int64_t isa;
} rank_settings;

/* --- settings --------------------------------------------------------------------------------- */

static ek_status find_gate(const char *name, ek_gate_kind *out)
{
    EK_REQUIRE(name != NULL, EK_EINVAL, "gate is NULL: softmax and sigmoid are the gates");
    *out = strcmp(name, "sigmoid") == 0 ? EK_GATE_SIGMOID_BIAS : EK_GATE_SOFTMAX;
    EK_REQUIRE(*out != EK_GATE_SOFTMAX || strcmp(name, "softmax") == 0, EK_EINVAL,
               "no gate %s: softmax and sigmoid are the gates", name);
    return EK_OK;
}

static ek_status find_planner(const char *name, const ek_planner **out)
{
    const ek_planner *p = ek_planner_find(name != NULL ? name : "off");

    EK_REQUIRE(p != NULL, EK_EINVAL, "no balance policy %s", name);
    EK_REQUIRE(
        p == &ek_planner_off || p->plan_persistent == NULL, EK_EINVAL,
        "balance policy %s moves experts between steps, which a layer alone cannot: take one "
        "that plans by the micro-batch, such as exact",
        name);
    *out = p != &ek_planner_off ? p : NULL;
    return EK_OK;
}

static int is_amount(double x)
{
    return x >= 0 && isfinite(x);
}

static ek_status check_numbers(const ek_moe_layer_config *c)
{
    EK_REQUIRE(c->hidden >= 1 && c->ff >= 1, EK_EINVAL, "hidden %lld and ff %lld: at least 1 each",
               (long long)c->hidden, (long long)c->ff);
    EK_REQUIRE(c->experts >= 1, EK_EINVAL, "%lld experts", (long long)c->experts);
    EK_REQUIRE(c->top_k >= 1 && c->top_k <= c->experts, EK_EINVAL, "top_k %lld of %lld experts",
               (long long)c->top_k, (long long)c->experts);
    EK_REQUIRE(c->tokens >= 1 && c->tokens < INT32_MAX, EK_EINVAL, "tokens %lld: from 1 to %d",
               (long long)c->tokens, INT32_MAX - 1);
    EK_REQUIRE(c->act_slots >= 1 && c->act_slots <= ACT_SLOTS_MAX, EK_EINVAL,
               "act_slots %d: from 1 to %d", c->act_slots, ACT_SLOTS_MAX);
    EK_REQUIRE(c->threads >= 0, EK_EINVAL, "%d threads", c->threads);
    EK_REQUIRE(c->spare_slots >= 0, EK_EINVAL, "%d spare slots", c->spare_slots);
    EK_REQUIRE(is_amount(c->compute_s_per_row) && is_amount(c->comm_s_per_row) &&
                   is_amount(c->replica_s) && is_amount(c->aux_coef) && is_amount(c->z_coef) &&
                   is_amount(c->capacity_factor) && is_amount(c->init_std) &&
                   is_amount(c->watchdog),
               EK_EINVAL,
               "a cost, a coefficient, capacity_factor, init_std or watchdog is negative or not "
               "finite");
    return EK_OK;
}

/* A model of one such layer, and as little as possible around it, of which nothing is made. */
static ek_status make_spec(const ek_moe_layer_config *c, ek_model_spec *s)
{
    ek_model_default(s);
    s->vocab = s->heads = s->kv_heads = s->layers = 1;
    s->head_dim = 2;
    s->hidden = c->hidden;
    s->ff = c->ff;
    s->experts = c->experts;
    s->top_k = c->top_k;
    s->shared_ff = c->shared_ff;
    s->shared_gated = c->shared_gated != 0;
    s->gate.normalise = c->normalise != 0;
    EK_TRY(find_gate(c->gate, &s->gate.kind));
    EK_REQUIRE(s->gate.kind == EK_GATE_SOFTMAX || (c->aux_coef == 0 && c->z_coef == 0), EK_EINVAL,
               "aux_coef %g and z_coef %g are 0 with gate sigmoid, whose loads its bias balances",
               c->aux_coef, c->z_coef);
    return ek_model_check(s);
}

static ek_status read_config(ek_moe_layer *l, const ek_moe_layer_config *c, ek_mode *mode)
{
    const ek_planner *planner = NULL;
    int ranks = l->world != NULL ? ek_comm_size(l->world) : 1;

    EK_TRY(check_numbers(c));
    EK_TRY(make_spec(c, &l->spec));
    EK_TRY(ek_mode_parse(c->dtype, "cpu", mode));
    EK_TRY(find_planner(c->balance, &planner));
    l->init_std = c->init_std;
    l->act_slots = c->act_slots;
    l->config = (ek_moe_config){.replica_sets = EK_REPLICA_SETS_EACH,
                                .planner = ranks > 1 ? planner : NULL,
                                .replicas_min = 1,
                                .costs = {.compute_s_per_row = c->compute_s_per_row,
                                          .comm_s_per_row = c->comm_s_per_row,
                                          .replica_s = c->replica_s}};
    l->limits = (ek_moe_limits){.tokens = c->tokens,
                                .all = c->tokens,
                                .total = c->tokens * ranks,
                                .spare_slots = l->config.planner != NULL ? c->spare_slots : 0};
    l->step = (ek_moe_step){.aux_coef = c->aux_coef,
                            .z_coef = c->z_coef,
                            .capacity_factor = c->capacity_factor,
                            .top_k = c->top_k,
                            .seed = c->seed};
    return EK_OK;
}

static uint64_t settings_fingerprint(const ek_moe_layer_config *c, ek_mode mode)
{
    char text[640];

    snprintf(
        text, sizeof(text),
        "%lld %lld %lld %lld %lld %d %lld %d %s %d %s %s %d %.17g %.17g %.17g %.17g %.17g %.17g "
        "%llu %.17g",
        (long long)c->hidden, (long long)c->ff, (long long)c->experts, (long long)c->top_k,
        (long long)c->shared_ff, c->shared_gated != 0, (long long)c->tokens, c->act_slots, c->gate,
        c->normalise != 0, ek_mode_name(mode), c->balance != NULL ? c->balance : "off",
        c->spare_slots, c->compute_s_per_row, c->comm_s_per_row, c->replica_s, c->aux_coef,
        c->z_coef, c->capacity_factor, (unsigned long long)c->seed, c->init_std);
    return ek_random_stream(text);
}

/* All ranks have the same settings; *isa: what all of their processors have. */
static ek_status compare_ranks(const ek_moe_layer *l, uint64_t settings, ek_isa *isa)
{
    int ranks = ek_comm_size(l->world), rank = ek_comm_rank(l->world), other = 0;
    rank_settings *all = calloc((size_t)ranks, sizeof(*all));
    ek_status st;

    st = all != NULL ? EK_OK : EK_FAIL(EK_ENOMEM, "no memory for %d ranks", ranks);
    EK_TRY_OUT(ek_agree(l->world, "compare the settings of a MoE layer", st));
    all[rank] = (rank_settings){settings, *isa};
    EK_TRY_OUT(ek_gather(l->world, all, sizeof(*all)));
    for (int r = 0; r < ranks; r++) {
        *isa = all[r].isa < (int64_t)*isa ? (ek_isa)all[r].isa : *isa;
        if (all[r].settings != all[0].settings)
            other = r;
    }
    EK_REQUIRE_OUT(other == 0, EK_EINVAL,
                   "rank %d on %s has another ek_moe_layer_config than rank 0: all need the same",
                   other, ek_comm_host(l->world, other));
out:
    free(all);
    return st;
}

/* --- creating --------------------------------------------------------------------------------- */

/* Activations and input of a forward in flight. */
static void reserve_act_slot(ek_moe_layer *l, int act_slot)
{
    ek_arena *a = &l->activations;
    int64_t n = l->limits.tokens * l->spec.hidden;
    ek_moe_layer_act_slot measured, *at = l->act_slot != NULL ? &l->act_slot[act_slot] : &measured;

    *at = (ek_moe_layer_act_slot){.tokens = ek_arena_alloc(a, n, ek_dtype_size(l->k->comp))};
    if (l->k->comp != l->k->real)
        at->real =
            act_slot > 0 ? ek_arena_alloc(a, n, ek_dtype_size(l->k->real)) : l->scratch.y_real;
    if (l->act_slot_of != NULL)
        l->act_slot_of[act_slot] = act_slot;
    ek_moe_reserve_activations(&l->m, act_slot, a, &l->limits, 0);
    ek_moe_set_tokens(&l->m, act_slot, l->out, at->tokens);
}

static void reserve_activations(ek_moe_layer *l)
{
    ek_arena *a = &l->activations;
    int64_t n = l->limits.tokens * l->spec.hidden;

    l->act_slot = ek_arena_alloc(a, l->act_slots, sizeof(*l->act_slot));
    l->step.micro = l->micro = ek_arena_alloc(a, l->act_slots, sizeof(*l->micro));
    l->act_slot_of = ek_arena_alloc(a, l->act_slots, sizeof(*l->act_slot_of));
    l->m = (ek_moe){.k = l->k,
                    .spec = &l->spec,
                    .mesh = l->mesh,
                    .cfg = &l->config,
                    .w = &l->w,
                    .act_slot_of = l->act_slot_of,
                    .step = &l->step,
                    .scratch = &l->scratch,
                    .planning = &l->planning};
    l->out = ek_arena_alloc(a, n, ek_dtype_size(l->k->real));
    l->calls = ek_arena_alloc(a, l->mesh->stage_size, sizeof(*l->calls));
    l->scratch.dx = ek_arena_alloc(a, n, ek_dtype_size(l->k->real));
    ek_moe_reserve_scratch(&l->scratch, a, l->k, &l->spec, l->mesh, &l->config, &l->limits, 1);
    ek_moe_reserve_planning(&l->planning, a, &l->spec, l->mesh, &l->config, &l->limits);
    ek_moe_reserve_state(&l->m, a, l->limits.tokens, l->act_slots);
    ek_moe_reserve_replicas(&l->m, a, &l->limits, l->act_slots, 1);
    for (int i = 0; i < l->act_slots; i++)
        reserve_act_slot(l, i);
}

/* Measures, reserves and lays out an arena. */
static ek_status reserve_arena(ek_moe_layer *l, ek_arena *a, const char *what,
                               void (*lay_out)(ek_moe_layer *l))
{
    ek_arena_measure(a);
    lay_out(l);
    EK_TRY(ek_arena_check(a, what));
    EK_TRY(ek_arena_reserve(a, what));
    lay_out(l);
    return ek_arena_check(a, what);
}

static ek_status reserve_memory(ek_moe_layer *l)
{
    EK_TRY(ek_moe_check_limits(&l->spec, l->mesh, &l->limits));
    EK_TRY(ek_replicas_check(l->mesh, l->limits.spare_slots));
    EK_TRY(reserve_arena(l, &l->weights, "a MoE layer's weights", ek_moe_layer_reserve_weights));
    return reserve_arena(l, &l->activations, "a MoE layer's activations", reserve_activations);
}

/* Kernels and executor: a thread for the network where the host's ranks leave a core. */
static ek_status open_kernels(ek_moe_layer *l, const ek_moe_layer_config *c, ek_mode mode,
                              ek_isa isa, int threads)
{
    ek_exec_config exec = {.watchdog_s = c->watchdog};

    exec.inline_async = ek_comm_ranks_here(l->world) * threads >= ek_cores_usable();
    EK_TRY(ek_kernels_create(mode, isa, threads, &l->k));
    return ek_exec_create(&exec, &l->exec);
}

/* Collective, as others may want the number that this rank does not. */
static ek_status count_threads(const ek_moe_layer *l, int wanted, int *threads)
{
    int share = ek_cores_usable();

    if (l->world != NULL)
        EK_TRY(ek_job_cores(l->world, &share));
    *threads = wanted > 0 ? wanted : share;
    return EK_OK;
}

static ek_status open_layer(ek_moe_layer *l, const ek_moe_layer_config *c)
{
    static const ek_mesh_sizes one = {1, 1, 1, 1};
    ek_mesh_sizes sizes = one;
    ek_isa isa = ek_cpu_isa();
    ek_mode mode = EK_MODE_FP32;
    int threads = 1;

    EK_TRY(ek_agree(l->world, "create a MoE layer", read_config(l, c, &mode)));
    if (l->world != NULL)
        EK_TRY(compare_ranks(l, settings_fingerprint(c, mode), &isa));
    EK_TRY(count_threads(l, c->threads, &threads));
    EK_TRY(ek_agree(l->world, "create a MoE layer", open_kernels(l, c, mode, isa, threads)));
    l->mesh = &ek_mesh_one;
    if (l->world != NULL) {
        sizes.ep = ek_comm_size(l->world);
        EK_TRY(ek_mesh_open(l->world, &sizes, &l->opened));
        l->mesh = l->opened;
    }
    EK_TRY(ek_agree(l->world, "create a MoE layer", reserve_memory(l)));
    ek_moe_layer_fill_weights(l, c->seed);
    return ek_agree(l->world, "create a MoE layer", ek_moe_layer_pack_weights(l));
}

/* A layer without anything in it.  out: the argument of create. */
static ek_status allocate_layer(ek_moe_layer **out, ek_comm *world, ek_moe_layer **layer)
{
    EK_REQUIRE(out != NULL, EK_EINVAL, "ek_moe_layer_create: out must not be NULL");
    EK_TRY(ek_stack_check());
    *layer = calloc(1, sizeof(**layer));
    EK_REQUIRE(*layer != NULL, EK_ENOMEM, "no memory for a MoE layer");
    (*layer)->world = world;
    ek_graph_init(&(*layer)->graph);
    return EK_OK;
}

/* Once the world is known, ranks agree on what fails on one of them alone. */
ek_status ek_moe_layer_create(const ek_moe_layer_config *cfg, ek_moe_layer **out)
{
    EK_C_LOCALE;
    ek_moe_layer *l = NULL;
    ek_comm *world;
    ek_status st;

    if (out != NULL)
        *out = NULL;
    EK_NOT_NULL(cfg);
    EK_REQUIRE(cfg->size == sizeof(*cfg), EK_EINVAL,
               "ek_moe_layer_config of %zu bytes, this library's has %zu", cfg->size, sizeof(*cfg));
    world = cfg->world != NULL && ek_comm_size(cfg->world) > 1 ? cfg->world : NULL;
    if (world != NULL && is_amount(cfg->watchdog))
        ek_comm_set_watchdog(world, cfg->watchdog);
    st = ek_agree(world, "create a MoE layer", allocate_layer(out, world, &l));
    if (st == EK_OK)
        st = open_layer(l, cfg);
    if (st < 0)
        ek_moe_layer_destroy(&l);
    else
        *out = l;
    return st;
}

void ek_moe_layer_destroy(ek_moe_layer **layer)
{
    ek_moe_layer *l = layer != NULL ? *layer : NULL;

    if (l == NULL)
        return;
    ek_exec_destroy(&l->exec);
    ek_graph_fini(&l->graph);
    ek_mesh_close(&l->opened);
    ek_arena_fini(&l->activations);
    ek_arena_fini(&l->weights);
    ek_kernels_destroy(&l->k);
    free(l);
    *layer = NULL;
}
