/* Replays a single micro-batch on all stages, and all of them on the last stage. */
#include "search/pipeline_bound.h"

#include "search/bound_prices.h"
#include "sim/replay.h"
#include "train/simulate.h"

#include <stdlib.h>
#include <string.h>

/* Replays are extended by sums that may round up. */
#define ROUNDING 1e-9

/* --- prices ----------------------------------------------------------------------------------- */

/* What of a graph is left out. */
typedef struct {
    int32_t no_sums;       /* ops before this one send no gradients of a collective, */
    int32_t no_gathers;    /* and before this one no weights */
    unsigned char *absent; /* [ops] 1: it takes no time; NULL: none is so */
} stage_prices;

typedef struct {
    const ek_bound_prices *prices;
    const stage_prices *of; /* [n] by stage, of the first on */
    int32_t first;          /* stage */
    int alone;              /* 1: messages are there at once */
} pipe_prices;

static int is_sum(const ek_op *op)
{
    return op->kind >= EK_OP_COLLECT_GRADIENTS && op->kind <= EK_OP_REDUCE_TIED_GRADIENTS;
}

static int is_absent(const void *context, const ek_sim_class *c, int32_t i)
{
    const pipe_prices *p = context;
    const stage_prices *s = &p->of[c->stage - p->first];
    const ek_op *op = ek_graph_op(c->graph, i);

    return (p->alone && ek_work_is_message(&op->work)) || (is_sum(op) && i < s->no_sums) ||
           (op->kind == EK_OP_GATHER_WEIGHTS && i < s->no_gathers) ||
           (s->absent != NULL && s->absent[i]);
}

static void price_op(const void *context, const ek_sim_class *c, const ek_op *op, ek_sim_price *out)
{
    const pipe_prices *p = context;

    ek_bound_price(p->prices, c, op, out);
}

/* --- ops -------------------------------------------------------------------------------------- */

/* Whether an op computes for a micro-batch. */
static int computes(const ek_op *op)
{
    return op->lane == EK_LANE_COMPUTE && op->micro >= 0 && op->kind < EK_OP_GATHER_WEIGHTS;
}

/* The op that receives the last gradient; 0: there is none. */
static int32_t last_receive(const ek_graph *g)
{
    int32_t i = g->n_ops - 1;

    while (i > 0 && ek_graph_op(g, i)->kind != EK_OP_RECEIVE_GRADIENT)
        i--;
    return i;
}

/* Marks weights that are gathered, however late the first message comes, before it. */
static ek_status mark_prefetched(const ek_graph *g, unsigned char **absent)
{
    unsigned char *waits = calloc((size_t)g->n_ops + 1, 1);

    *absent = waits;
    EK_REQUIRE(waits != NULL, EK_ENOMEM, "no memory for %d ops", (int)g->n_ops);
    for (int32_t i = 0; i < g->n_ops; i++) {
        int32_t n;
        const int32_t *deps = ek_graph_deps_of(g, i, &n);

        waits[i] = (unsigned char)computes(ek_graph_op(g, i));
        for (int32_t k = 0; k < n && !waits[i]; k++)
            waits[i] = waits[deps[k]];
    }
    for (int32_t i = 0; i < g->n_ops; i++)
        waits[i] = !waits[i] && ek_graph_op(g, i)->kind == EK_OP_GATHER_WEIGHTS;
    return EK_OK;
}

/* --- replays ---------------------------------------------------------------------------------- */

/* Of the last stage, from the start of the step. */
typedef struct {
    double begun, computed; /* first and last computation of micro-batches; negative: none */
    double step;
} last_stage_times;

static ek_status replay(const ek_sim_graphs *graphs, const pipe_prices *p, last_stage_times *t)
{
    const ek_sim_class *last = &graphs->classes[graphs->n_classes - 1];
    ek_sim_config cfg = {.graphs = graphs,
                         .price = price_op,
                         .absent = is_absent,
                         .context = p,
                         .recorded = last->ranks,
                         .n_recorded = 1};
    ek_sim_result r = {0};
    ek_status st = ek_sim_replay(&cfg, &r);

    *t = (last_stage_times){.begun = -1, .computed = -1, .step = r.step_s};
    for (int32_t i = 0; st == EK_OK && i < r.records[0].n; i++) {
        if (!computes(ek_graph_op(r.records[0].graph, i)))
            continue;
        if (t->begun < 0)
            t->begun = r.records[0].spans[i].start;
        t->computed = r.records[0].spans[i].end;
    }
    ek_sim_free(&r);
    return st;
}

/* A single micro-batch on all stages. */
static ek_status replay_micro(const ek_bound_prices *prices, const ek_sim_graphs *g,
                              const ek_train_config *cfg, last_stage_times *t)
{
    stage_prices *of = calloc((size_t)g->n_classes, sizeof(*of));
    ek_status st;

    EK_REQUIRE(of != NULL, EK_ENOMEM, "no memory for %d stages", (int)g->n_classes);
    for (int32_t k = 0; k < g->n_classes; k++) {
        const ek_graph *of_class = g->classes[k].graph;

        if (cfg->chunks > 1) {
            of[k].no_sums = last_receive(of_class);
            of[k].no_gathers = cfg->zero == 3 ? of_class->n_ops : 0;
        }
    }
    st = replay(g, &(pipe_prices){.prices = prices, .of = of}, t);
    free(of);
    return st;
}

/* A stage alone, the messages of others are there at once; seconds of its computation, 0 if it has
 * none. */
static ek_status replay_alone(const ek_bound_prices *prices, const ek_sim_class *stage,
                              int32_t ranks, int with_sums, double *seconds)
{
    ek_sim_graphs one = {.ranks = ranks, .n_classes = 1, .classes = stage};
    stage_prices of = {.no_sums = with_sums ? 0 : stage->graph->n_ops};
    last_stage_times t = {0};
    ek_status st = mark_prefetched(stage->graph, &of.absent);

    if (st == EK_OK)
        st = replay(&one,
                    &(pipe_prices){.prices = prices, .of = &of, .first = stage->stage, .alone = 1},
                    &t);
    *seconds = t.computed - t.begun;
    free(of.absent);
    return st;
}

/* The last stage with all micro-batches. */
static ek_status replay_last(const ek_imagined_world *w, const ek_train_config *cfg,
                             const ek_bound_prices *prices, const ek_sim_class *last,
                             double *seconds)
{
    ek_imagined_rank *x = NULL;
    ek_sim_class stage = *last;
    ek_status st = ek_imagined_rank_open(cfg, w, last->ranks[0], 0, &x);

    if (st == EK_OK)
        st = ek_imagined_rank_step(x, &stage.graph);
    if (st == EK_OK)
        st = replay_alone(prices, &stage, w->ranks, 1, seconds);
    ek_imagined_rank_close(&x);
    return st;
}

/* --- the bound -------------------------------------------------------------------------------- */

int ek_has_pipeline_bound(const ek_train_config *cfg, int64_t batch)
{
    return cfg->pp > 1 && !cfg->elastic && strcmp(cfg->pp_layers, "even") == 0 &&
           strcmp(cfg->batch_shares, "even") == 0 && batch % cfg->micro_batch == 0;
}

static ek_status bound_of(const ek_imagined_world *w, const ek_train_config *cfg,
                          ek_even_plans *plans, const ek_imagined *all, int64_t micros,
                          double *seconds)
{
    const ek_sim_graphs *g = ek_imagined_graphs(all);
    const ek_sim_class *last = &g->classes[g->n_classes - 1];
    ek_sim_layout l = *ek_imagined_layout(all);
    ek_bound_prices prices;
    last_stage_times t;
    double alone;

    l.micros = micros; /* of the step, which copies are planned for */
    EK_TRY(ek_bound_prices_of(w->cluster, &l, w->ranks, plans, &prices));
    EK_TRY(replay_micro(&prices, g, cfg, &t));
    if (t.begun < 0)
        return EK_OK;
    if (cfg->zero >= 2) {
        EK_TRY(replay_last(w, cfg, &prices, last, &alone));
    } else {
        EK_TRY(replay_alone(&prices, last, w->ranks, 0, &alone));
        *seconds = t.step + (double)(micros - 1) * alone;
        alone *= (double)micros;
    }
    if (cfg->zero >= 2 || cfg->chunks > 1)
        *seconds = t.begun + alone + (t.step - t.computed);
    *seconds *= 1 - ROUNDING;
    return EK_OK;
}

ek_status ek_pipeline_bound(const ek_imagined_world *w, const ek_train_config *cfg,
                            ek_even_plans *plans, int64_t batch, double *seconds)
{
    ek_train_config one = *cfg;
    ek_imagined *all = NULL;
    ek_status st;

    *seconds = 0;
    one.batch = cfg->micro_batch;
    st = ek_imagine(&one, w, 0, &all);
    if (st == EK_OK && ek_imagined_graphs(all)->n_classes == cfg->pp) /* a graph for each stage */
        st = bound_of(w, cfg, plans, all, batch / cfg->micro_batch, seconds);
    ek_imagined_close(&all);
    return st;
}
