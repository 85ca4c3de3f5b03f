/* Prices and replays a stage's step of a micro-batch. */
#include "search/stage_time.h"

#include "train/simulate.h"

#include <math.h>
#include <stdlib.h>

enum { ATTENTION = 1, FULL };

/* Prices of the ops of a step of a single micro-batch with full recomputation, and of which ops
 * they are asked. */
typedef struct {
    const ek_graph *graph;
    const ek_sim_price *price; /* [ops] */
    int32_t updated;           /* the first op of the optimizer's update */
    int recompute;             /* ops of another recomputation alone */
    int with_end;              /* 1: also what follows the micro-batch */
} micro_prices;

/* Whether every micro-batch repeats the op, whatever the ZeRO stage. */
static int is_of_micro_batch(const ek_op *op)
{
    return op->micro >= 0 && op->kind < EK_OP_GATHER_WEIGHTS;
}

/* Whether an op, the i-th, follows the micro-batches once: gradients are summed, weights updated.
 */
static int is_of_end(const micro_prices *p, const ek_op *op, int32_t i)
{
    return i >= p->updated ||
           (op->kind >= EK_OP_COLLECT_GRADIENTS && op->kind <= EK_OP_REDUCE_TIED_GRADIENTS);
}

/* Whether a recomputation executes an op of full recomputation. */
static int is_executed(const ek_op *op, int recompute)
{
    if (!op->recompute || recompute == FULL)
        return 1;
    return recompute == ATTENTION &&
           (op->kind == EK_OP_QKV || op->kind == EK_OP_ROPE || op->kind == EK_OP_ATTENTION);
}

/* Other stages are as quick as can be: their messages are always there. */
static int is_absent(const void *context, const ek_sim_class *of, int32_t i)
{
    const micro_prices *p = context;
    const ek_op *op = &p->graph->ops[i];

    (void)of;
    return ek_work_is_message(&op->work) || !is_executed(op, p->recompute) ||
           !(is_of_micro_batch(op) || (p->with_end && is_of_end(p, op, i)));
}

static void price_micro(const void *context, const ek_sim_class *of, const ek_op *op,
                        ek_sim_price *out)
{
    const micro_prices *p = context;

    (void)of;
    *out = p->price[op - p->graph->ops];
}

/* Replays a stage alone: *step, and until the end of its computation. */
static ek_status replay_stage(int ranks, const ek_sim_class *stage, const micro_prices *p,
                              double *step, double *computed)
{
    ek_sim_graphs graphs = {.ranks = ranks, .n_classes = 1, .classes = stage};
    ek_sim_config cfg = {
        .graphs = &graphs, .price = price_micro, .absent = is_absent, .context = p};
    ek_sim_result r;
    ek_status st = ek_sim_replay(&cfg, &r);

    if (st == EK_OK) {
        *step = r.step_s;
        *computed = r.step_s - r.of_class[0].end;
    }
    ek_sim_free(&r);
    return st;
}

/* Seconds of embedding, head and what else is of no layer, one after the other. */
static double seconds_beside_layers(const micro_prices *p)
{
    double seconds = 0;

    for (int32_t i = 0; i < p->graph->n_ops; i++)
        if (p->graph->ops[i].layer < 0 && !is_absent(p, NULL, i)) {
            const ek_sim_price *of = &p->price[i];

            seconds += of->seconds + of->overhead + of->wire + of->latency;
        }
    return seconds;
}

/* Seconds of the update's computation, which begins when that of the last micro-batch has ended. */
static double seconds_of_update(const micro_prices *p)
{
    double seconds = 0;

    for (int32_t i = p->updated; i < p->graph->n_ops; i++)
        if (p->graph->ops[i].lane == EK_LANE_COMPUTE)
            seconds += p->price[i].seconds;
    return seconds;
}

static ek_status time_recompute(int ranks, const ek_sim_class *stage, micro_prices *p,
                                ek_stage_time *t)
{
    int r = p->recompute;
    double step = 0, computed = 0;

    p->with_end = 0;
    EK_TRY(replay_stage(ranks, stage, p, &step, &t->micro[r]));
    t->layers[r] = fmax(t->micro[r] - seconds_beside_layers(p), 0);
    if (!t->is_whole) {
        t->end[r] = seconds_of_update(p);
        return EK_OK;
    }
    p->with_end = 1;
    EK_TRY(replay_stage(ranks, stage, p, &step, &computed));
    t->end[r] = fmax(step - t->micro[r], 0);
    return EK_OK;
}

static int64_t count_layers(const ek_graph *g)
{
    unsigned char seen[EK_LAYERS_MAX] = {0};
    int64_t n = 0;

    for (int32_t i = 0; i < g->n_ops; i++)
        if (g->ops[i].layer >= 0 && !seen[g->ops[i].layer]) {
            seen[g->ops[i].layer] = 1;
            n++;
        }
    return n;
}

static int32_t find_update(const ek_graph *g)
{
    int32_t i = 0;

    while (i < g->n_ops && g->ops[i].kind != EK_OP_ADAMW)
        i++;
    return i;
}

ek_status ek_stage_time_of(int ranks, int32_t first, int32_t n, const ek_graph *g, int is_whole,
                           const ek_bound_prices *prices, ek_stage_time *t)
{
    ek_sim_price *price = calloc((size_t)g->n_ops + 1, sizeof(*price));
    int32_t *list = calloc((size_t)n, sizeof(*list));
    ek_sim_class stage = {.graph = g, .n_ranks = n, .ranks = list};
    micro_prices p = {.graph = g, .price = price, .updated = find_update(g)};
    ek_status st = EK_OK;

    *t = (ek_stage_time){.n_layers = (double)count_layers(g), .is_whole = is_whole};
    if (price == NULL || list == NULL)
        st = EK_FAIL(EK_ENOMEM, "no memory for the prices of %d ops", (int)g->n_ops);
    for (int32_t i = 0; i < n && st == EK_OK; i++)
        list[i] = first + i;
    for (int32_t i = 0; i < g->n_ops && st == EK_OK; i++) {
        ek_bound_price(prices, &stage, &g->ops[i], &price[i]);
    }
    for (; p.recompute < EK_RECOMPUTES && st == EK_OK; p.recompute++)
        st = time_recompute(ranks, &stage, &p, t);
    free(price);
    free(list);
    return st;
}
