/* What the steps of a plan read and write, counted from the ops that they consist of. */
#include "model/offload_priv.h"

/* Steps before the one that counts: entries then hold what the same step before has left. */
enum { FIRST_STEPS = 2 };

/* Appends the ops of a plan's uses, as the products of a step do. */
static ek_status build_uses(ek_model *m, ek_graph *g)
{
    const ek_offload *o = m->offload;

    ek_offload_end_plan(m, g);
    for (int32_t i = 0; i < o->plan.n_uses && g->failed >= 0; i++) {
        int32_t layer = o->records[o->plan.uses[i].record].bucket->module;
        const ek_expert_waves *w = &o->waves[layer];
        ek_wave_call call = {.g = g,
                             .layer = layer,
                             .micro = -1,
                             .wave = o->plan.uses[i].record - o->first_record[layer],
                             .use = o->plan.uses[i].use};

        w->end(w->context, &call, w->begin(w->context, &call, -1), -1);
    }
    ek_offload_build_finish(m, g, -1);
    return ek_graph_check(g);
}

static void add_transfers(const ek_graph *g, ek_offload_traffic *out)
{
    for (int32_t i = 0; i < g->n_ops; i++) {
        const ek_op *op = &g->ops[i];

        if (op->lane != EK_LANE_DISK)
            continue;
        if (op->kind == EK_OP_READ_STATE)
            out->read_bytes += op->bytes;
        else
            out->written_bytes += op->bytes;
    }
}

/* As if no step had been planned. */
static void reset_plans(ek_model *m)
{
    ek_offload *o = m->offload;

    ek_offload_forget(m);
    for (int32_t r = 0; r < o->n; r++)
        o->records[r].pending = o->records[r].has_gradient = o->records[r].is_reduced = 0;
    o->stats.uses = o->stats.hits = o->steps = 0;
}

ek_status ek_offload_count(ek_model *m, ek_offload_plan_fn plan, void *context,
                           ek_offload_traffic *out)
{
    ek_offload_stats before = {0}, after;
    ek_graph g;
    ek_status st = EK_OK;

    *out = (ek_offload_traffic){0};
    if (m->offload == NULL)
        return EK_OK;
    ek_graph_init(&g);
    for (int step = 0; step <= FIRST_STEPS; step++) {
        ek_offload_get_stats(m, &before);
        ek_graph_reset(&g);
        ek_offload_begin_plan(m);
        EK_TRY_OUT(plan(context));
        EK_TRY_OUT(build_uses(m, &g));
        ek_offload_set_pending(m);
    }
    add_transfers(&g, out);
    ek_offload_get_stats(m, &after);
    out->uses = (double)(after.uses - before.uses);
    out->hits = (double)(after.hits - before.hits);
out:
    reset_plans(m);
    ek_graph_fini(&g);
    return st;
}
