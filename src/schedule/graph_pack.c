/* Copies of step graphs, plain and packed.
 *
 * Packing finds ops that are alike in a hash table; memory is reserved for what there is, as a
 * search keeps graphs of millions of ops. */
#include "schedule/graph.h"

#include <stdlib.h>
#include <string.h>

enum { SLOTS_MIN = 256 };

static ek_status no_memory(const ek_graph *g)
{
    return EK_FAIL(EK_ENOMEM, "no memory for a step graph of %d ops", (int)g->n_ops);
}

static ek_status copy_deps(ek_graph *to, const ek_graph *from)
{
    to->deps = malloc(((size_t)from->n_deps + 1) * sizeof(*to->deps));
    if (to->deps == NULL)
        return no_memory(from);
    if (from->n_deps > 0) /* else the array may be NULL */
        memcpy(to->deps, from->deps, (size_t)from->n_deps * sizeof(*to->deps));
    to->n_deps = to->cap_deps = from->n_deps;
    return EK_OK;
}

ek_status ek_graph_copy(ek_graph *to, const ek_graph *from)
{
    to->ops = malloc(((size_t)from->n_ops + 1) * sizeof(*to->ops));
    if (to->ops == NULL)
        return no_memory(from);
    to->n_ops = to->cap_ops = from->n_ops;
    for (int32_t i = 0; i < from->n_ops; i++) {
        int32_t n;
        const int32_t *deps = ek_graph_deps_of(from, i, &n);

        to->ops[i] = *ek_graph_op(from, i);
        to->ops[i].micro = ek_graph_micro(from, i);
        to->ops[i].dep = n > 0 ? (int32_t)(deps - from->deps) : 0;
        to->ops[i].n_deps = n;
    }
    return copy_deps(to, from);
}

/* --- packing ---------------------------------------------------------------------------------- */

typedef struct {
    ek_graph *to;
    int32_t cap;     /* of to->alike */
    int32_t *lookup; /* [slots] index in to->alike + 1, where the hash of an op leads; 0: none */
    int32_t slots;   /* a power of two, at least twice cap */
} packing;

/* An op without what differs between ops that are alike. */
static ek_op kept_of(const ek_op *op)
{
    ek_op kept = *op;

    kept.micro = op->micro < 0 ? -1 : 0;
    kept.dep = kept.n_deps = 0;
    kept.run = NULL;
    kept.describe = NULL;
    kept.self = NULL;
    kept.state = NULL;
    kept.busy_ns = kept.stall_ns = NULL;
    return kept;
}

/* Bytes of the work that say nothing may differ: then ops are kept twice. */
static int are_alike(const ek_op *kept, const ek_op *op)
{
    return kept->kind == op->kind && kept->lane == op->lane && kept->layer == op->layer &&
           kept->part == op->part && kept->recompute == op->recompute && kept->async == op->async &&
           (kept->micro < 0) == (op->micro < 0) &&
           memcmp(&kept->flops, &op->flops, sizeof(op->flops)) == 0 &&
           memcmp(&kept->bytes, &op->bytes, sizeof(op->bytes)) == 0 &&
           memcmp(&kept->work, &op->work, sizeof(op->work)) == 0;
}

static uint64_t hash_of(const ek_op *op)
{
    uint64_t bytes, h = (uint64_t)op->kind * 2 + (uint64_t)op->recompute;

    memcpy(&bytes, &op->bytes, sizeof(bytes));
    h = (h * 1024 + (uint64_t)(op->layer + 1)) * 1024 + (uint64_t)(op->part + 1);
    h = (h ^ bytes) * UINT64_C(0x9e3779b97f4a7c15);
    return h ^ h >> 32;
}

static void enter(packing *p, int32_t index)
{
    uint64_t mask = (uint64_t)p->slots - 1, at = hash_of(&p->to->alike[index]) & mask;

    while (p->lookup[at] != 0)
        at = (at + 1) & mask;
    p->lookup[at] = index + 1;
}

/* Room for another op, with at most half of the slots taken. */
static ek_status reserve(packing *p)
{
    int32_t cap = p->cap > 0 ? 2 * p->cap : SLOTS_MIN / 2;
    ek_op *alike;

    if (p->to->n_alike < p->cap)
        return EK_OK;
    alike = realloc(p->to->alike, (size_t)cap * sizeof(*alike));
    if (alike == NULL)
        return no_memory(p->to);
    p->to->alike = alike;
    free(p->lookup);
    p->lookup = calloc(2 * (size_t)cap, sizeof(*p->lookup));
    if (p->lookup == NULL)
        return no_memory(p->to);
    p->slots = 2 * cap;
    p->cap = cap;
    for (int32_t i = 0; i < p->to->n_alike; i++)
        enter(p, i);
    return EK_OK;
}

/* *like: the index of an op like this, which is added if there is none. */
static ek_status find(packing *p, const ek_op *op, int32_t *like)
{
    uint64_t mask, at;

    EK_TRY(reserve(p));
    mask = (uint64_t)p->slots - 1;
    for (at = hash_of(op) & mask; p->lookup[at] != 0; at = (at + 1) & mask) {
        *like = p->lookup[at] - 1;
        if (are_alike(&p->to->alike[*like], op))
            return EK_OK;
    }
    *like = p->to->n_alike++;
    p->to->alike[*like] = kept_of(op);
    p->lookup[at] = *like + 1;
    return EK_OK;
}

/* Gives back what was reserved for more ops than there are. */
static void trim(packing *p)
{
    ek_op *alike = realloc(p->to->alike, ((size_t)p->to->n_alike + 1) * sizeof(*alike));

    if (alike != NULL)
        p->to->alike = alike;
}

ek_status ek_graph_pack(ek_graph *to, const ek_graph *from)
{
    packing p = {.to = to};
    ek_status st = EK_OK;

    to->place = malloc(((size_t)from->n_ops + 1) * sizeof(*to->place));
    if (to->place == NULL)
        return no_memory(from);
    to->n_ops = from->n_ops;
    for (int32_t i = 0; i < from->n_ops && st == EK_OK; i++) {
        to->place[i] = (ek_graph_place){.micro = from->ops[i].micro, .dep = from->ops[i].dep};
        st = find(&p, &from->ops[i], &to->place[i].like);
    }
    to->place[from->n_ops].dep = from->n_deps;
    free(p.lookup);
    EK_TRY(st);
    trim(&p);
    return copy_deps(to, from);
}
