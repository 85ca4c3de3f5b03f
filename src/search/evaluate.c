/* Measures, bounds and simulates layouts. */
#include "search/evaluate.h"

#include "base/option_value.h"
#include "spec/model.h"
#include "train/imagine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OFF, ATTENTION, FULL, RECOMPUTES };
enum { FIRST, LAST, ENDS }; /* stages */

/* What a stage takes, by recomputation, in seconds. */
typedef struct {
    double micro[RECOMPUTES]; /* a micro-batch: from its first computation to the end of its last */
    double end[RECOMPUTES];   /* after the last micro-batch, with ZeRO as laid out */
    double layers[RECOMPUTES]; /* of a micro-batch, its layers alone, or less */
    double gathers; /* the rank's link, for weights of layers that a step of one micro-batch gathers
                       (ZeRO 3) */
    int64_t n_layers;
} stage_time;

/* Whether a status says that training refuses these settings. */
static int is_refusal(ek_status st)
{
    return st < 0 && ek_status_class(st) == EK_CLASS_USAGE;
}

/* --- bounds ----------------------------------------------------------------------------------- */

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
static void price_micro(const void *context, const ek_sim_class *of, const ek_op *op,
                        ek_sim_price *out)
{
    const micro_prices *p = context;
    int32_t i = (int32_t)(op - p->graph->ops);

    (void)of;
    *out = p->price[i];
    if (ek_work_is_message(&op->work) || !is_executed(op, p->recompute) ||
        !(is_of_micro_batch(op) || (p->with_end && is_of_end(p, op, i))))
        *out = (ek_sim_price){.silent = op->work.kind == EK_WORK_NET};
}

/* Replays a stage alone: *step, and until the end of its computation. */
static ek_status replay_stage(const ek_search_setting *s, const ek_sim_class *stage,
                              const micro_prices *p, double *step, double *computed)
{
    ek_sim_graphs graphs = {.ranks = s->ranks, .n_classes = 1, .classes = stage};
    ek_sim_config cfg = {.graphs = &graphs, .price = price_micro, .context = p};
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
        if (p->graph->ops[i].layer < 0) {
            ek_sim_price of;

            price_micro(p, NULL, &p->graph->ops[i], &of);
            seconds += of.seconds + of.overhead + of.wire + of.latency;
        }
    return seconds;
}

static ek_status time_recompute(const ek_search_setting *s, const ek_sim_class *stage,
                                micro_prices *p, stage_time *t)
{
    int r = p->recompute;
    double step = 0, computed = 0;

    p->with_end = 0;
    EK_TRY(replay_stage(s, stage, p, &step, &t->micro[r]));
    t->layers[r] = fmax(t->micro[r] - seconds_beside_layers(p), 0);
    p->with_end = 1;
    EK_TRY(replay_stage(s, stage, p, &step, &computed));
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

/* first: of the stage's n ranks; g: a step of a micro-batch with full recomputation. */
static ek_status time_stage(const ek_search_setting *s, int32_t first, int32_t n, const ek_graph *g,
                            stage_time *t)
{
    ek_sim_price *price = calloc((size_t)g->n_ops + 1, sizeof(*price));
    int32_t *ranks = calloc((size_t)n, sizeof(*ranks));
    ek_sim_class stage = {.graph = g, .n_ranks = n, .ranks = ranks};
    micro_prices p = {.graph = g, .price = price, .updated = find_update(g)};
    ek_status st = EK_OK;

    if (price == NULL || ranks == NULL)
        st = EK_FAIL(EK_ENOMEM, "no memory for the prices of %d ops", (int)g->n_ops);
    for (int32_t i = 0; i < n && st == EK_OK; i++)
        ranks[i] = first + i;
    for (int32_t i = 0; i < g->n_ops && st == EK_OK; i++) {
        ek_simulate_price(s->cluster, &stage, &g->ops[i], &price[i]);
        if (g->ops[i].kind == EK_OP_GATHER_WEIGHTS && g->ops[i].layer >= 0)
            t->gathers += price[i].wire;
    }
    for (; p.recompute < RECOMPUTES && st == EK_OK; p.recompute++)
        st = time_recompute(s, &stage, &p, t);
    t->n_layers = count_layers(g);
    free(price);
    free(ranks);
    return st;
}

/* Seconds for a virtual stage of the fewest layers, or less. */
static double least_vstage(const stage_time *t, double layers, int64_t recompute)
{
    return t->n_layers > 0 ? t->layers[recompute] * layers / (double)t->n_layers : 0;
}

/* The rank's link for ZeRO 3's gathers: a pass through a virtual stage, forward or backward, finds
 * the weights of two layers at most where the pass before has left them. */
static double time_gathers(const stage_time *t, double layers, int64_t chunks)
{
    double gathered = (double)chunks * fmax(layers - 2, 0);

    return t->n_layers > 0 ? t->gathers * gathered / (double)t->n_layers : 0;
}

/* What both ends of the pipeline take for a micro-batch. */
typedef struct {
    int64_t size; /* of the micro-batch; 0: none */
    stage_time of[ENDS];
} micro_time;

/* Raises a layout's bound to what its micro-batches take; with_end: and what follows them. */
static void bound_layout(const ek_search_setting *s, const stage_time *of, int with_end,
                         ek_search_layout *l)
{
    const int64_t *v = l->choice.value;
    int64_t r = v[EK_CHOICE_RECOMPUTE];
    double micros = (double)(s->batch / v[EK_CHOICE_MICRO_BATCH]);
    double layers = (double)(s->layers / (v[EK_CHOICE_PP] * v[EK_CHOICE_CHUNKS]));
    double ramp = (double)(v[EK_CHOICE_PP] - 1) *
                  fmin(least_vstage(&of[FIRST], layers, r), least_vstage(&of[LAST], layers, r));
    double first = micros * of[FIRST].micro[r], last = micros * of[LAST].micro[r];

    l->bound = fmax(l->bound, fmax(first, last + ramp));
    if (!with_end)
        return;
    l->bound = fmax(l->bound, fmax(first + of[FIRST].end[r], last + of[LAST].end[r]));
    l->bound = fmax(l->bound, last + ramp + of[FIRST].end[r]);
    if (v[EK_CHOICE_ZERO] == 3)
        l->bound = fmax(l->bound, micros * time_gathers(&of[FIRST], layers, v[EK_CHOICE_CHUNKS]));
    l->refined = 1;
}

/* Times a micro-batch of the layout's size at both ends, whatever its recomputation. */
static ek_status time_micro_batch(const ek_search_setting *s, ek_imagined_rank **end,
                                  const ek_layout *choice, micro_time *out)
{
    int32_t stage = (int32_t)(s->ranks / choice->value[EK_CHOICE_PP]);

    *out = (micro_time){.size = choice->value[EK_CHOICE_MICRO_BATCH]};
    for (int i = 0; i < ENDS; i++) {
        const ek_graph *g;
        double memory;

        if (end[i] == NULL) {
            out->of[i] = out->of[FIRST];
            continue;
        }
        EK_TRY(ek_imagined_rank_measure(end[i], out->size, "full", &memory));
        EK_TRY(ek_imagined_rank_micro_step(end[i], &g));
        EK_TRY(time_stage(s, i == FIRST ? 0 : s->ranks - stage, stage, g, &out->of[i]));
    }
    return EK_OK;
}

static int fits(const ek_search_layout *l)
{
    return l->outcome == EK_OUTCOME_BOUND;
}

/* Bounds layouts of one ZeRO stage: by the micro-batches of one before it, [EK_CHOICE_VALUES]
 * `known`, or, if it is the first in which these fit, in full. */
static ek_status bound_all(const ek_search_setting *s, ek_imagined_rank **end, ek_search_layout *l,
                           int64_t n, micro_time *known)
{
    for (int64_t i = 0; i < n; i++) {
        const ek_layout *choice = &l[i].choice;
        micro_time *t = known, own;

        if (!fits(&l[i]) || l[i].bound > 0)
            continue;
        while (t->size != 0 && t->size != choice->value[EK_CHOICE_MICRO_BATCH])
            t++;
        EK_TRY(t->size == 0 ? time_micro_batch(s, end, choice, &own) : EK_OK);
        for (int64_t k = i; k < n; k++)
            if (l[k].choice.value[EK_CHOICE_MICRO_BATCH] == choice->value[EK_CHOICE_MICRO_BATCH])
                bound_layout(s, t->size == 0 ? own.of : t->of, t->size == 0, &l[k]);
        if (t->size == 0)
            *t = own;
    }
    return EK_OK;
}

/* --- memory ----------------------------------------------------------------------------------- */

static void close_ends(ek_imagined_rank **end)
{
    for (int i = 0; i < ENDS; i++)
        ek_imagined_rank_close(&end[i]);
}

/* Lays out the first rank of the first stage and of the last one, if that is another. */
static ek_status open_ends(const ek_search_setting *s, const ek_train_config *cfg,
                           ek_imagined_rank **end)
{
    const ek_imagined_world w = {s->ranks, s->node_of, s->cluster};
    ek_train_config own = *cfg;
    int stage = s->ranks / cfg->pp;

    end[FIRST] = end[LAST] = NULL;
    if (own.elastic && own.replicas_min == 0)
        own.replicas_min = 1; /* copies are left out where they do not fit */
    EK_TRY(ek_imagined_rank_open(&own, &w, 0, &end[FIRST]));
    if (cfg->pp > 1)
        EK_TRY(ek_imagined_rank_open(&own, &w, s->ranks - stage, &end[LAST]));
    return EK_OK;
}

static ek_status measure_layout(const ek_search_setting *s, ek_imagined_rank **end,
                                ek_search_layout *l)
{
    ek_train_config cfg = *s->train;

    ek_layout_apply(&l->choice, &cfg);
    for (int i = 0; i < ENDS && end[i] != NULL; i++) {
        double memory;

        EK_TRY(ek_imagined_rank_measure(end[i], cfg.micro_batch, cfg.recompute, &memory));
        l->memory = fmax(l->memory, memory);
    }
    l->outcome = s->memory > 0 && l->memory > s->memory ? EK_OUTCOME_TOO_MUCH : EK_OUTCOME_BOUND;
    return EK_OK;
}

/* Turns a refusal into an outcome. */
static ek_status keep_refusal(ek_status st, ek_search_layout *l, char *refusal, size_t cap)
{
    if (!is_refusal(st))
        return st;
    l->outcome = EK_OUTCOME_REFUSED;
    (void)snprintf(refusal, cap, "%s", ek_err_message());
    return EK_OK;
}

/* Measures and bounds n layouts of one ZeRO stage. */
static ek_status measure_zero(const ek_search_setting *s, ek_search_layout *l, int64_t n,
                              micro_time *known, char *refusal, size_t cap)
{
    ek_imagined_rank *end[ENDS];
    ek_train_config cfg = *s->train;
    ek_status opened, st = EK_OK;

    ek_layout_apply(&l->choice, &cfg);
    opened = open_ends(s, &cfg, end);
    for (int64_t i = 0; i < n && st == EK_OK; i++)
        st = keep_refusal(opened < 0 ? opened : measure_layout(s, end, &l[i]), &l[i], refusal, cap);
    if (st == EK_OK && opened == EK_OK)
        st = bound_all(s, end, l, n, known);
    close_ends(end);
    return st;
}

ek_status ek_search_refine(const ek_search_setting *s, ek_search_layout *l, int64_t n)
{
    ek_imagined_rank *end[ENDS];
    ek_train_config cfg = *s->train;
    micro_time t;
    ek_status st;

    ek_layout_apply(&l->choice, &cfg);
    st = open_ends(s, &cfg, end);
    if (st == EK_OK)
        st = time_micro_batch(s, end, &l->choice, &t);
    for (int64_t i = 0; i < n && st == EK_OK; i++)
        bound_layout(s, t.of, 1, &l[i]);
    close_ends(end);
    return st;
}

ek_status ek_search_measure(const ek_search_setting *s, ek_search_layout *beside, int64_t n,
                            char *refusal, size_t cap)
{
    micro_time known[EK_CHOICE_VALUES + 1] = {{0}};
    int64_t next;

    for (int64_t i = 0; i < n; i = next) {
        for (next = i + 1; next < n && beside[next].choice.value[EK_CHOICE_ZERO] ==
                                           beside[i].choice.value[EK_CHOICE_ZERO];)
            next++;
        EK_TRY(measure_zero(s, &beside[i], next - i, known, refusal, cap));
    }
    return EK_OK;
}

/* --- simulation ------------------------------------------------------------------------------- */

static void take_result(const ek_simulation *sim, ek_search_layout *l, int loaded, int by_flow)
{
    const ek_sim_result *r = ek_simulation_result(sim);
    const ek_sim_graphs *g = ek_simulation_graphs(sim);

    l->memory = 0;
    for (int32_t k = 0; k < g->n_classes; k++)
        l->memory = fmax(l->memory, g->classes[k].memory);
    l->step_s = r->step_s;
    if (!loaded && !by_flow)
        l->even_s = r->step_s;
    l->loaded = loaded;
    l->by_flow = by_flow;
    l->flops = r->flops;
    l->parts = r->parts;
    l->outcome = EK_OUTCOME_SIMULATED;
}

/* The simulation of a layout; train: filled with its settings. */
static ek_simulation_config config_of(const ek_search_setting *s, const ek_search_layout *l,
                                      int loaded, ek_train_config *train)
{
    *train = *s->train;
    ek_layout_apply(&l->choice, train);
    if (l->balance != NULL)
        train->balance = l->balance;
    if (s->memory > 0) /* which copies have to fit in, too */
        train->memory_limit = (int64_t)s->memory;
    return (ek_simulation_config){.train = train,
                                  .cluster = s->cluster,
                                  .ranks = s->ranks,
                                  .trace = loaded ? s->trace : NULL,
                                  .steps = s->steps};
}

ek_status ek_search_simulate(const ek_search_setting *s, ek_search_layout *l, int loaded)
{
    ek_train_config train;
    ek_simulation_config cfg = config_of(s, l, loaded, &train);
    ek_simulation *sim = NULL;
    ek_status st;

    cfg.engine = s->engine;
    st = ek_simulate(&cfg, &sim);
    if (st == EK_OK)
        take_result(sim, l, loaded, s->engine == EK_ENGINE_FLOW);
    if (st == EK_OK && s->memory > 0 && l->memory > s->memory)
        l->outcome = EK_OUTCOME_TOO_MUCH; /* of a stage in the middle, as layers differ */
    ek_simulation_close(&sim);
    return st;
}

/* --- failures --------------------------------------------------------------------------------- */

static ek_status simulate_losses(const ek_search_setting *s, const ek_search_layout *l,
                                 ek_on_failure what, int elastic, ek_search_failures *out)
{
    ek_train_config train;
    ek_simulation_config cfg = config_of(s, l, l->loaded, &train);
    const ek_failures_result *r = &out->of.result;

    *out = (ek_search_failures){.what = what, .elastic = elastic};
    train.elastic = elastic;
    EK_TRY(ek_simulate_failures(&cfg, s->failures, what, &out->of));
    EK_REQUIRE(s->memory <= 0 || out->of.memory <= s->memory, EK_ENOMEM,
               "with copies of its experts a layout needs more memory than there is");
    EK_REQUIRE(r->steps > 0, EK_EINVAL, "--failures: a run completes no step");
    out->step_s = out->of.config.seconds / r->steps;
    out->node_s = r->node_s / r->steps;
    return EK_OK;
}

/* Takes recoveries if they leave more steps.  *left_out: copies of experts were, for their time. */
static ek_status try_recovery(const ek_search_setting *s, const ek_search_layout *l, int elastic,
                              ek_search_failures *best, int *left_out)
{
    ek_search_failures x;
    ek_status st = simulate_losses(s, l, EK_ON_FAILURE_RECOVER, elastic, &x);

    *left_out = st == EK_OK && x.of.copies_lengthen > 0;
    if (st == EK_OK && x.step_s <= best->step_s)
        *best = x;
    return is_refusal(st) || st == EK_ENOMEM ? EK_OK : st;
}

ek_status ek_search_simulate_failures(const ek_search_setting *s, const ek_search_layout *l,
                                      ek_search_failures *out)
{
    int word = ek_option_choice_index(EK_SEARCH_ON_FAILURE_WORDS, s->on_failure);
    int left_out;

    if (word > 0)
        return simulate_losses(s, l, (ek_on_failure)(word - 1), s->train->elastic, out);
    EK_TRY(simulate_losses(s, l, EK_ON_FAILURE_RESTART, s->train->elastic, out));
    EK_TRY(try_recovery(s, l, s->train->elastic, out, &left_out));
    return left_out ? try_recovery(s, l, 1, out, &left_out) : EK_OK;
}
