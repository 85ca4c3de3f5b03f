/* Measures, bounds and simulates layouts. */
#include "search/evaluate.h"

#include "base/option_value.h"
#include "search/end_ranks.h"
#include "search/pipeline_bound.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Whether a status says that training refuses these settings. */
static int is_refusal(ek_status st)
{
    return st < 0 && ek_status_class(st) == EK_CLASS_USAGE;
}

/* --- bounds ----------------------------------------------------------------------------------- */

static int are_stages_even(const ek_search_setting *s)
{
    return strcmp(s->train->pp_layers, "even") == 0;
}

/* Seconds for a virtual stage of the fewest layers, or less. */
static double least_vstage(const ek_stage_time *t, double layers, int64_t recompute)
{
    return t->n_layers > 0 ? t->layers[recompute] * layers / t->n_layers : 0;
}

/* Raises bounds of n layouts that are laid out alike to what ZeRO 2 and 3 send. */
static ek_status bound_by_traffic(const ek_search_setting *s, const ek_end_ranks *ends,
                                  ek_search_layout *l, int64_t n)
{
    const int64_t *v = l->choice.value;
    ek_layer_traffic of;

    if (v[EK_CHOICE_ZERO] < 2 || !are_stages_even(s))
        return EK_OK;
    EK_TRY(ek_end_ranks_traffic(ends, &of));
    for (int64_t i = 0; i < n; i++) {
        ek_layer_uses u = {.layers = s->layers,
                           .pp = (int)v[EK_CHOICE_PP],
                           .chunks = (int)v[EK_CHOICE_CHUNKS],
                           .micros = s->batch / l[i].choice.value[EK_CHOICE_MICRO_BATCH]};
        double seconds;

        EK_TRY(ek_zero_traffic_bound(&of, &u, (int)v[EK_CHOICE_ZERO], &seconds));
        l[i].bound = fmax(l[i].bound, seconds);
    }
    return EK_OK;
}

/* Raises a layout's bound to what its micro-batches take; with_end: and to what is known to follow
 * them. */
static void bound_layout(const ek_search_setting *s, const ek_stage_time *of, int with_end,
                         ek_search_layout *l)
{
    const ek_stage_time *first = &of[EK_END_FIRST], *last = &of[EK_END_LAST];
    const int64_t *v = l->choice.value;
    int64_t r = v[EK_CHOICE_RECOMPUTE];
    double micros = (double)(s->batch / v[EK_CHOICE_MICRO_BATCH]);
    double layers =
        are_stages_even(s) ? (double)(s->layers / (v[EK_CHOICE_PP] * v[EK_CHOICE_CHUNKS])) : 1;
    double ramp = (double)(v[EK_CHOICE_PP] - 1) *
                  fmin(least_vstage(first, layers, r), least_vstage(last, layers, r));
    double of_first = micros * first->micro[r], of_last = micros * last->micro[r];

    l->bound = fmax(l->bound, fmax(of_first, of_last + ramp));
    if (!with_end)
        return;
    l->bound = fmax(l->bound, fmax(of_first + first->end[r], of_last + last->end[r]));
    l->bound = fmax(l->bound, of_last + ramp + first->end[r]);
    l->refined = first->is_whole ? EK_REFINED_ENDS : EK_NOT_REFINED;
}

static int fits(const ek_search_layout *l)
{
    return l->outcome == EK_OUTCOME_BOUND;
}

/* What both ends of the pipeline take for a micro-batch. */
typedef struct {
    int64_t size; /* of the micro-batch; 0: none */
    ek_stage_time of[EK_END_RANKS];
} micro_time;

/* Bounds layouts that are laid out alike: by the micro-batches of others, [EK_CHOICE_VALUES]
 * `known`, or, if they are the first in which these fit, in full. */
static ek_status bound_all(const ek_search_setting *s, const ek_end_ranks *ends,
                           ek_search_layout *l, int64_t n, micro_time *known)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t size = l[i].choice.value[EK_CHOICE_MICRO_BATCH];
        micro_time *t = known;
        int is_new;

        if (!fits(&l[i]) || l[i].bound > 0)
            continue;
        while (t->size != 0 && t->size != size)
            t++;
        is_new = t->size == 0;
        EK_TRY(is_new ? ek_end_ranks_time(ends, size, t->of) : EK_OK);
        t->size = size;
        for (int64_t k = i; k < n; k++)
            if (l[k].choice.value[EK_CHOICE_MICRO_BATCH] == size)
                bound_layout(s, t->of, is_new, &l[k]);
    }
    return EK_OK;
}

/* --- memory ----------------------------------------------------------------------------------- */

/* whole: with all layers. */
static ek_status open_ends(const ek_search_setting *s, const ek_layout *choice, int whole,
                           ek_end_ranks **ends)
{
    const ek_end_world w = {.cluster = s->cluster,
                            .ranks = s->ranks,
                            .node_of = s->node_of,
                            .host_of = s->host_of,
                            .layers = s->layers,
                            .alike = s->layers_alike && !whole,
                            .plans = s->plans};
    ek_train_config cfg = *s->train;

    ek_layout_apply(choice, &cfg);
    return ek_end_ranks_open(&w, &cfg, ends);
}

static ek_status measure_layout(const ek_search_setting *s, const ek_end_ranks *ends,
                                ek_search_layout *l)
{
    ek_train_config cfg = *s->train;

    ek_layout_apply(&l->choice, &cfg);
    EK_TRY(ek_end_ranks_measure(ends, cfg.micro_batch, cfg.recompute, &l->memory, &l->copies));
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

/* Measures and bounds n layouts that are laid out alike. */
static ek_status measure_alike(const ek_search_setting *s, ek_search_layout *l, int64_t n,
                               micro_time *known, char *refusal, size_t cap)
{
    ek_end_ranks *ends;
    ek_status opened = open_ends(s, &l->choice, 0, &ends), st = EK_OK;

    for (int64_t i = 0; i < n && st == EK_OK; i++)
        st =
            keep_refusal(opened < 0 ? opened : measure_layout(s, ends, &l[i]), &l[i], refusal, cap);
    if (st == EK_OK && opened == EK_OK)
        st = bound_all(s, ends, l, n, known);
    if (st == EK_OK && opened == EK_OK)
        st = bound_by_traffic(s, ends, l, n);
    ek_end_ranks_close(&ends);
    return st;
}

static ek_status refine_alike(const ek_search_setting *s, ek_search_layout *l, int64_t n)
{
    ek_stage_time of[EK_END_RANKS];
    ek_end_ranks *ends;
    ek_status st = open_ends(s, &l->choice, 1, &ends);

    if (st == EK_OK)
        st = ek_end_ranks_time(ends, l->choice.value[EK_CHOICE_MICRO_BATCH], of);
    for (int64_t i = 0; i < n && st == EK_OK; i++)
        bound_layout(s, of, 1, &l[i]);
    ek_end_ranks_close(&ends);
    return st;
}

ek_status ek_search_refine(const ek_search_setting *s, ek_search_layout *l, int64_t n)
{
    int64_t together = are_stages_even(s) ? n : 1;

    for (int64_t i = 0; i < n; i += together)
        if (together == n || l[i].outcome != EK_OUTCOME_REFUSED)
            EK_TRY(refine_alike(s, &l[i], together));
    return EK_OK;
}

ek_status ek_search_refine_pipeline(const ek_search_setting *s, ek_search_layout *l)
{
    const ek_imagined_world w = {s->ranks, s->node_of, s->cluster, s->host_of};
    ek_train_config cfg = *s->train;
    double seconds;
    ek_status st;

    ek_layout_apply(&l->choice, &cfg);
    l->refined = EK_REFINED;
    if (!ek_has_pipeline_bound(&cfg, s->batch))
        return EK_OK;
    st = ek_pipeline_bound(&w, &cfg, s->plans, s->batch, &seconds);
    if (is_refusal(st))
        return EK_OK;
    EK_TRY(st);
    l->bound = fmax(l->bound, seconds);
    return EK_OK;
}

/* Stages that are not even may depend on FLOPs, of recomputation, too. */
static int is_laid_out_alike(const ek_search_setting *s, const ek_layout *a, const ek_layout *b)
{
    return are_stages_even(s) && ek_candidate_is_laid_out_alike(a, b);
}

/* Whether a layout's micro-batches are those of one before it, with other virtual stages. */
static int has_same_layers(const ek_search_setting *s, const ek_layout *a, const ek_layout *b)
{
    return are_stages_even(s) &&
           (s->layers_alike || a->value[EK_CHOICE_CHUNKS] == b->value[EK_CHOICE_CHUNKS]);
}

ek_status ek_search_measure(const ek_search_setting *s, ek_search_layout *beside, int64_t n,
                            char *refusal, size_t cap)
{
    micro_time known[EK_CHOICE_VALUES + 1] = {{0}};
    int64_t next;

    for (int64_t i = 0; i < n; i = next) {
        const ek_layout *choice = &beside[i].choice;

        if (i > 0 && !has_same_layers(s, &beside[i - 1].choice, choice))
            memset(known, 0, sizeof(known));
        for (next = i + 1; next < n && is_laid_out_alike(s, &beside[next].choice, choice);)
            next++;
        EK_TRY(measure_alike(s, &beside[i], next - i, known, refusal, cap));
    }
    return EK_OK;
}

/* --- simulation ------------------------------------------------------------------------------- */

static void take_result(const ek_simulation *sim, ek_search_layout *l, int loaded, int by_flow)
{
    const ek_sim_result *r = ek_simulation_result(sim);
    const ek_sim_graphs *g = ek_simulation_graphs(sim);
    const ek_sim_balance *b = ek_simulation_balance(sim);

    l->memory = ek_sim_graphs_fullest(g)->memory;
    l->step_s = r->step_s;
    if (!loaded && !by_flow)
        l->even_s = r->step_s;
    l->loaded = loaded;
    l->primary_max = b != NULL ? b->before : 0;
    l->planned_max = b != NULL ? b->after : 0;
    (void)ek_simulation_steps(sim, &l->trace_steps);
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
                                  .host_of = s->host_of,
                                  .trace = loaded ? s->trace : NULL,
                                  .steps = s->steps,
                                  .plans = s->plans};
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
