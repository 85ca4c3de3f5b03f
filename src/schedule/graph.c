/* The step graph as two growing arrays: ops, and the ids of their dependencies.  Packed copies are
 * in graph_pack.c. */
#include "schedule/graph.h"

#include <stdlib.h>
#include <string.h>

void ek_graph_init(ek_graph *g)
{
    memset(g, 0, sizeof(*g));
}

void ek_graph_fini(ek_graph *g)
{
    free(g->ops);
    free(g->deps);
    free(g->alike);
    free(g->place);
    memset(g, 0, sizeof(*g));
}

void ek_graph_reset(ek_graph *g)
{
    g->n_ops = 0;
    g->n_deps = 0;
    g->failed = EK_OK;
}

/* Grows an array to at least `need` elements of `size` bytes; 0: no memory. */
static int reserve_elements(void **array, int32_t *cap, int32_t need, size_t size)
{
    int32_t want = *cap > 0 ? *cap : 256;
    void *p;

    if (need <= *cap)
        return 1;
    while (want < need) {
        if (want > INT32_MAX / 2)
            return 0;
        want *= 2;
    }
    p = realloc(*array, (size_t)want * size);
    if (p == NULL)
        return 0;
    *array = p;
    *cap = want;
    return 1;
}

int32_t ek_graph_add(ek_graph *g, const ek_op *op, const int32_t *deps, int32_t n_deps)
{
    void *ops = g->ops, *all = g->deps;
    int32_t id = g->n_ops;
    int ok = reserve_elements(&ops, &g->cap_ops, g->n_ops + 1, sizeof(*g->ops));

    g->ops = ops;
    ok = ok && reserve_elements(&all, &g->cap_deps, g->n_deps + n_deps, sizeof(*g->deps));
    g->deps = all;
    if (!ok) {
        g->failed = EK_ENOMEM;
        return -1;
    }
    g->ops[id] = *op;
    g->ops[id].dep = g->n_deps;
    for (int32_t i = 0; i < n_deps; i++) {
        if (deps[i] >= id) {
            g->failed = EK_EINTERNAL;
            return -1;
        }
        if (deps[i] >= 0)
            g->deps[g->n_deps++] = deps[i];
    }
    g->ops[id].n_deps = g->n_deps - g->ops[id].dep;
    g->n_ops++;
    return id;
}

int32_t ek_graph_after(ek_graph *g, const ek_op *op, int32_t dep)
{
    return ek_graph_add(g, op, &dep, 1);
}

int32_t ek_graph_last_of(const ek_graph *g, ek_lane lane)
{
    int32_t i = g->n_ops - 1;

    while (i >= 0 && g->ops[i].lane != lane)
        i--;
    return i;
}

ek_status ek_graph_check(const ek_graph *g)
{
    EK_REQUIRE(g->failed != EK_ENOMEM, EK_ENOMEM, "no memory for a step graph of %d ops",
               (int)g->n_ops);
    EK_REQUIRE(g->failed == EK_OK, EK_EINTERNAL, "op %d of the step graph depends on a later op",
               (int)g->n_ops);
    return EK_OK;
}

const char *ek_lane_name(ek_lane lane)
{
    static const char *const names[EK_LANE_COUNT] = {"compute", "sums", "net", "copy", "disk"};

    return names[lane];
}

uint64_t ek_graph_digest(const ek_graph *g)
{
    uint64_t d = 1;

    for (int32_t i = 0; i < g->n_ops; i++) {
        const ek_op *op = ek_graph_op(g, i);
        int32_t n_deps;
        const int32_t *deps = ek_graph_deps_of(g, i, &n_deps);
        int32_t words[] = {(int32_t)op->kind, (int32_t)op->lane, op->layer, ek_graph_micro(g, i),
                           op->part,          op->recompute,     n_deps};

        for (size_t k = 0; k < sizeof(words) / sizeof(words[0]); k++)
            d = ek_digest_add(d, &words[k], sizeof(words[k]));
        d = ek_digest_add(d, &op->flops, sizeof(op->flops));
        d = ek_digest_add(d, &op->bytes, sizeof(op->bytes));
        d = ek_work_digest(d, &op->work);
        for (int32_t k = 0; k < n_deps; k++)
            d = ek_digest_add(d, &deps[k], sizeof(*deps));
    }
    return d;
}
