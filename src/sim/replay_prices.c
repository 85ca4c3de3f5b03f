/* Prices of a class's ops: finds ops that are alike in a hash table. */
#include "sim/replay_priv.h"

#include <stdlib.h>
#include <string.h>

enum { SLOTS_MIN = 256 };

static ek_status no_memory(void)
{
    return EK_FAIL(EK_ENOMEM, "no memory for the prices of ops");
}

/* Whether an op has factors of its own as one of the first micro-batch. */
static int is_first(const ek_sim_config *cfg, const ek_op *op)
{
    return cfg->first_differs && op->micro == 0;
}

/* Whether prices are the same.  Bytes of the work that say nothing may differ: then it is priced
 * twice. */
static int are_alike(const ek_sim_config *cfg, const ek_op *a, const ek_op *b)
{
    return a->kind == b->kind && a->lane == b->lane && is_first(cfg, a) == is_first(cfg, b) &&
           (cfg->factors == NULL || a->layer == b->layer) &&
           memcmp(&a->bytes, &b->bytes, sizeof(a->bytes)) == 0 &&
           memcmp(&a->work, &b->work, sizeof(a->work)) == 0;
}

static uint64_t hash_of(const ek_sim_config *cfg, const ek_op *op, int absent)
{
    uint64_t bytes, h = (uint64_t)op->kind * 4 + 2 * (uint64_t)absent + (uint64_t)is_first(cfg, op);

    memcpy(&bytes, &op->bytes, sizeof(bytes));
    h = h * 1024 + (cfg->factors != NULL ? (uint64_t)(op->layer + 1) : 0);
    h = (h ^ bytes) * UINT64_C(0x9e3779b97f4a7c15);
    return h ^ h >> 32;
}

static void enter(const ek_sim_config *cfg, sim_prices *p, int32_t index)
{
    const sim_priced *x = &p->list[index];
    uint64_t mask = (uint64_t)p->slots - 1, at = hash_of(cfg, &x->like, x->absent) & mask;

    while (p->lookup[at] != 0)
        at = (at + 1) & mask;
    p->lookup[at] = index + 1;
}

/* Room for another price, with at most half of the slots taken. */
static ek_status reserve(const ek_sim_config *cfg, sim_prices *p)
{
    int32_t cap = p->cap > 0 ? 2 * p->cap : SLOTS_MIN / 2;
    sim_priced *list;
    int32_t *lookup;

    if (p->n < p->cap)
        return EK_OK;
    list = realloc(p->list, (size_t)cap * sizeof(*list));
    if (list == NULL)
        return no_memory();
    p->list = list;
    lookup = calloc(2 * (size_t)cap, sizeof(*lookup));
    if (lookup == NULL)
        return no_memory();
    free(p->lookup);
    p->lookup = lookup;
    p->slots = 2 * cap;
    p->cap = cap;
    for (int32_t i = 0; i < p->n; i++)
        enter(cfg, p, i);
    return EK_OK;
}

/* The index of the price of an op like this; -1: it has none yet. */
static int32_t find(const ek_sim_config *cfg, const sim_prices *p, const ek_op *op, int absent)
{
    uint64_t mask = (uint64_t)p->slots - 1, at = hash_of(cfg, op, absent) & mask;

    if (p->slots == 0 || cfg->price_each)
        return -1;
    for (; p->lookup[at] != 0; at = (at + 1) & mask) {
        const sim_priced *x = &p->list[p->lookup[at] - 1];

        if (x->absent == absent && are_alike(cfg, &x->like, op))
            return p->lookup[at] - 1;
    }
    return -1;
}

/* Factors that depend on the op's work. */
static ek_status set_own_factors(const ek_sim_config *cfg, const ek_op *op, sim_priced *x)
{
    size_t n = (size_t)cfg->n_columns;

    if (x->factors == NULL || cfg->products == NULL || !cfg->is_product(cfg->loads, op))
        return EK_OK;
    x->own = malloc(2 * n * sizeof(*x->own));
    if (x->own == NULL)
        return no_memory();
    x->factors = x->own;
    x->replayed = x->own + n;
    return cfg->products(cfg->loads, op, x->own, x->own + n);
}

static ek_status price_op(const ek_sim_config *cfg, const ek_sim_class *c, const ek_op *op,
                          sim_priced *x)
{
    const double *f = cfg->factors != NULL ? cfg->factors(cfg->loads, op) : NULL;
    int is_net = op->work.kind == EK_WORK_NET;
    double sum = 0;

    if (x->absent)
        x->price = (ek_sim_price){.silent = is_net};
    else
        cfg->price(cfg->context, c, op, &x->price);
    x->factors = f;
    x->replayed = f != NULL && cfg->replayed != NULL ? cfg->replayed(cfg->loads, op) : NULL;
    if (x->replayed == NULL)
        x->replayed = f;
    x->exchange = f != NULL && cfg->exchange != NULL ? cfg->exchange(cfg->loads, op) : NULL;
    for (int32_t i = 0; f != NULL && i < cfg->n_columns; i++)
        sum += f[i];
    if (is_net && f != NULL && sum == 0)
        x->price = (ek_sim_price){.silent = 1};
    return set_own_factors(cfg, op, x);
}

static ek_status add(const ek_sim_config *cfg, const ek_sim_class *c, const ek_op *op, int absent,
                     sim_prices *p)
{
    EK_TRY(reserve(cfg, p));
    p->list[p->n] = (sim_priced){.like = *op, .absent = absent};
    enter(cfg, p, p->n++);
    return price_op(cfg, c, op, &p->list[p->n - 1]);
}

/* Sets p->of of an op. */
static ek_status price(const ek_sim_config *cfg, const ek_sim_class *c, int32_t i, int absent,
                       sim_prices *p)
{
    const ek_op *op = ek_graph_op(c->graph, i);
    ek_op own;

    if (cfg->first_differs) { /* a packed graph keeps the micro-batch elsewhere */
        own = *op;
        own.micro = ek_graph_micro(c->graph, i);
        op = &own;
    }
    p->of[i] = find(cfg, p, op, absent);
    if (p->of[i] >= 0)
        return EK_OK;
    p->of[i] = p->n;
    return add(cfg, c, op, absent, p);
}

ek_status ek_sim_prices_open(const ek_sim_config *cfg, const ek_sim_class *c, sim_prices *p)
{
    const ek_graph *g = c->graph;
    /* [n_alike][2][2] index + 1 of the price of an op, and of one of the first micro-batch; and of
     * absent ones */
    int32_t *known = NULL;
    ek_status st = EK_OK;

    *p = (sim_prices){.of = malloc(((size_t)g->n_ops + 1) * sizeof(*p->of))};
    if (g->place != NULL && !cfg->price_each)
        known = calloc(4 * (size_t)g->n_alike + 1, sizeof(*known));
    if (p->of == NULL || (g->place != NULL && !cfg->price_each && known == NULL))
        st = no_memory();
    for (int32_t i = 0; i < g->n_ops && st == EK_OK; i++) {
        int absent = cfg->absent != NULL && cfg->absent(cfg->context, c, i) != 0;
        int first = cfg->first_differs && ek_graph_micro(g, i) == 0;
        int32_t *of = known != NULL ? &known[4 * g->place[i].like + 2 * absent + first] : NULL;

        if (of != NULL && *of > 0)
            p->of[i] = *of - 1;
        else
            st = price(cfg, c, i, absent, p);
        if (of != NULL && st == EK_OK)
            *of = p->of[i] + 1;
    }
    free(known);
    return st;
}

void ek_sim_prices_close(sim_prices *p)
{
    for (int32_t i = 0; i < p->n; i++)
        free(p->list[i].own);
    free(p->list);
    free(p->of);
    free(p->lookup);
    *p = (sim_prices){0};
}
