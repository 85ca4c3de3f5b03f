/* Cost factors of a layer on a mesh. */
#include "train/timing/layer_costs.h"

int32_t ek_layer_nodes(const ek_mesh *mesh)
{
    int32_t ranks = mesh->ep * mesh->etp, nodes = 0;

    for (int32_t r = 0; r < ranks; r++) /* nodes are numbered by their first ranks */
        if (ek_comm_node(mesh->stage, r) >= nodes)
            nodes = ek_comm_node(mesh->stage, r) + 1;
    return nodes;
}

ek_status ek_layer_costs(const ek_machine *m, const ek_model_spec *spec, const ek_mesh *mesh,
                         double tokens, int64_t top_k, int sends_twice, ek_plan_costs *out,
                         ek_cost_reason *reason)
{
    ek_model_spec cut = *spec;
    ek_plan_setting s = {.spec = &cut,
                         .sends_twice = sends_twice,
                         .ranks = mesh->ep * mesh->etp,
                         .nodes = ek_layer_nodes(mesh),
                         .rows = tokens * (double)top_k / mesh->stage_size};
    ek_coll *op = NULL;

    cut.ff = (spec->ff + mesh->etp - 1) / mesh->etp; /* the width of an expert's shard */
    EK_TRY(ek_plan_costs_of(m, &s, out, reason));
    EK_TRY(ek_comm_broadcast(mesh->stage, out, sizeof(*out), 0, &op));
    return ek_coll_wait(&op); /* plans must be the same, and processors may round differently */
}

/* Seconds of the products of one expert. */
static double product_seconds(const ek_machine *m, const ek_model_spec *spec, int64_t ff,
                              double rows)
{
    double sum = 0;

    for (int p = 0; p < EK_COST_PRODUCTS; p++)
        sum += ek_cost_products(m, (ek_cost_product)p, spec->hidden, ff, rows, 1);
    return sum;
}

ek_status ek_layer_group_rows(const ek_machine *m, const ek_model_spec *spec, const ek_mesh *mesh,
                              int64_t *rows)
{
    enum { MANY = 1024 };
    int64_t ff = (spec->ff + mesh->etp - 1) / mesh->etp;
    double a_row = product_seconds(m, spec, ff, MANY) / MANY;
    double fixed = a_row > 0 ? product_seconds(m, spec, ff, 1) / a_row - 1 : 0;
    ek_coll *op = NULL;

    *rows = fixed > MANY ? MANY : fixed > 0 ? (int64_t)fixed : 0;
    EK_TRY(ek_comm_broadcast(mesh->stage, rows, sizeof(*rows), 0, &op));
    return ek_coll_wait(&op);
}
