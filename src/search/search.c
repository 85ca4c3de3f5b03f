/* Measures, simulates and ranks layouts, in threads. */
#include "search/search.h"

#include "base/c_locale.h"
#include "base/clock.h"
#include "base/count_text.h"
#include "base/team.h"
#include "base/threads.h"
#include "search/bound_queue.h"
#include "search/pool.h"
#include "sim/loads.h"
#include "train/imagine.h"

#include <stdlib.h>
#include <string.h>

enum {
    ROUND = 32,
    REFINED = 64,
    LOADED = 64,
    POLICIES_FOR = 8,
    TRACE_STEPS = 8,
    FAILURES_FOR = 16
};
enum { FLOWS_FOR = 8, FLOWS_POOL = 64, FLOWS_LOADED_RANKS = 256 };
enum { REFUSAL = 1024 };

typedef struct {
    ek_search *out;
    ek_search_setting setting;
    int threads;
    int *node_of;
    char refusal[REFUSAL];
} searching;

static ek_search_layout *layout_at(const searching *s, int64_t i)
{
    return &s->out->layouts[i];
}

/* --- what is searched ------------------------------------------------------------------------- */

/* What the model and the batch are, from a run of one rank. */
static ek_status describe_model(searching *s, const ek_search_config *cfg)
{
    enum { MICROS = 1024 }; /* about: as few sequences at once as train does not refuse */
    ek_train_config one = *cfg->train;
    ek_layout plain = {{1, 1, 1, 1, 1, 0, 1 + one.batch / MICROS, 2}};
    ek_imagined_rank *rank = NULL;
    int node = 0;
    ek_status st;

    ek_layout_apply(&plain, &one);
    one.adaptive_r = "etp"; /* another one may not fit one rank; */
    one.pp_layers = "even"; /* nor may a list of the layers of several stages */
    st = ek_imagined_rank_open(&one, &(ek_imagined_world){1, &node, NULL, NULL}, 0, 0, &rank);
    if (st == EK_OK)
        s->out->model = ek_imagined_rank_layout(rank);
    s->out->model.shares = NULL; /* the rank's */
    ek_imagined_rank_close(&rank);
    return st;
}

static ek_status list_layouts(searching *s, const ek_search_config *cfg)
{
    const ek_sim_layout *m = &s->out->model;
    ek_candidate_space space = {.ranks = cfg->ranks,
                                .node_ranks = ek_cluster_node_ranks(cfg->cluster),
                                .batch = m->batch,
                                .layers = m->spec.layers,
                                .kv_heads = m->spec.kv_heads,
                                .experts = m->spec.experts};
    ek_layout *list = NULL;
    int64_t n = 0;
    int left = cfg->host_of != NULL ? ek_layout_ranks_left(cfg->ranks, cfg->host_of) : 0;
    ek_status st;

    if (cfg->fix != NULL)
        EK_TRY(ek_candidates_fix(&space, cfg->fix));
    EK_TRY(ek_candidates_list(&space, &list, &n));
    s->out->layouts = calloc((size_t)n, sizeof(*s->out->layouts));
    st = s->out->layouts != NULL ? EK_OK
                                 : EK_FAIL(EK_ENOMEM, "no memory for %lld layouts", (long long)n);
    for (int64_t i = 0; i < n && st == EK_OK; i++)
        if (cfg->host_of == NULL || ek_layout_survives(&list[i], left))
            s->out->layouts[s->out->n++].choice = list[i];
    free(list);
    EK_TRY(st);
    EK_REQUIRE(s->out->n > 0, EK_EINVAL,
               "none of %lld layouts survives the loss of any host: give more hosts, another "
               "--micro-batch, or --elastic=false",
               (long long)n);
    return EK_OK;
}

/* --- memory and bounds ------------------------------------------------------------------------ */

static int64_t end_of_beside(const searching *s, int64_t first)
{
    int64_t end = first + 1;

    while (end < s->out->n &&
           ek_candidate_is_beside(&layout_at(s, first)->choice, &layout_at(s, end)->choice))
        end++;
    return end;
}

/* first [n]: where the layouts that are beside each other begin. */
static ek_status measure_groups(searching *s, const int64_t *first, int64_t n)
{
    ek_team_failure failure = {.index = -1};

#pragma omp parallel for schedule(dynamic, 1) num_threads(s->threads)
    for (int64_t g = 0; g < n; g++) {
        char refusal[REFUSAL] = "";
        ek_status st;

        EK_C_LOCALE;
        if (ek_team_has_failed(&failure))
            continue;
        st = ek_search_measure(&s->setting, layout_at(s, first[g]),
                               end_of_beside(s, first[g]) - first[g], refusal, sizeof(refusal));
        if (st < 0)
            ek_team_record(&failure, g, st);
#pragma omp critical(ek_search)
        if (refusal[0] != '\0')
            memcpy(s->refusal, refusal, sizeof(refusal));
    }
    return ek_team_result(&failure);
}

static ek_status measure_all(searching *s)
{
    int64_t *first = calloc((size_t)s->out->n, sizeof(*first)), n = 0;
    ek_status st;

    EK_REQUIRE(first != NULL, EK_ENOMEM, "no memory for %lld layouts", (long long)s->out->n);
    for (int64_t i = 0; i < s->out->n; i = end_of_beside(s, i))
        first[n++] = i;
    st = measure_groups(s, first, n);
    free(first);
    return st;
}

/* --- corners ---------------------------------------------------------------------------------- */

static int compare_corners(const void *a, const void *b)
{
    const ek_search_corner *x = a, *y = b;

    if (x->choice != y->choice)
        return x->choice < y->choice ? -1 : 1;
    return (x->value > y->value) - (x->value < y->value);
}

/* Lists the values that candidates have, and what needs least memory with each. */
static ek_status list_corners(ek_search *o)
{
    o->corners = calloc((size_t)EK_SEARCH_CORNER_CHOICES * EK_CHOICE_VALUES, sizeof(*o->corners));
    EK_REQUIRE(o->corners != NULL, EK_ENOMEM, "no memory for the values of choices");
    for (int64_t i = 0; i < o->n; i++)
        for (int k = 0; k < EK_SEARCH_CORNER_CHOICES; k++) {
            const ek_search_layout *l = &o->layouts[i];
            ek_search_corner *c = ek_search_corner_of(ek_search_corners_of(o), l, k);

            if (c == NULL) {
                c = &o->corners[o->n_corners++];
                *c = (ek_search_corner){ek_search_corner_choices[k],
                                        l->choice.value[ek_search_corner_choices[k]], -1, -1};
            }
            if (l->outcome != EK_OUTCOME_REFUSED &&
                (c->least < 0 || l->memory < o->layouts[c->least].memory))
                c->least = i;
        }
    qsort(o->corners, (size_t)o->n_corners, sizeof(*o->corners), compare_corners);
    return EK_OK;
}

/* --- simulations ------------------------------------------------------------------------------ */

typedef struct {
    double key;
    int64_t index;
    int before; /* all with less of it, whatever the key */
} keyed;

static int compare_keys(const void *a, const void *b)
{
    const keyed *x = a, *y = b;

    if (x->before != y->before)
        return x->before > y->before ? -1 : 1;
    if (x->key < y->key || x->key > y->key)
        return x->key < y->key ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

/* Whether the answer may have a layout: with a trace only what was simulated with its loads, and
 * with failures only with them. */
static int is_eligible(const searching *s, const ek_search_layout *l)
{
    return l->outcome == EK_OUTCOME_SIMULATED &&
           (s->setting.trace == NULL || s->out->n_loaded == 0 || l->loaded) &&
           (s->out->n_failures == 0 || l->failures != NULL);
}

/* Indices of the eligible layouts, the best first; the caller frees *list [*n].  flow_first: those
 * simulated by flow before all others. */
static ek_status list_layouts_by(const searching *s, int flow_first, int64_t **list, int64_t *n)
{
    const ek_search *o = s->out;
    keyed *keys = calloc((size_t)o->n, sizeof(*keys));

    *n = 0;
    *list = calloc((size_t)o->n, sizeof(**list));
    if (keys == NULL || *list == NULL) {
        free(keys);
        return EK_FAIL(EK_ENOMEM, "no memory for %lld layouts", (long long)o->n);
    }
    for (int64_t i = 0; i < o->n; i++)
        if (is_eligible(s, &o->layouts[i]))
            keys[(*n)++] =
                (keyed){ek_search_value(o, &o->layouts[i]), i, flow_first && o->layouts[i].by_flow};
    qsort(keys, (size_t)*n, sizeof(*keys), compare_keys);
    for (int64_t i = 0; i < *n; i++)
        (*list)[i] = keys[i].index;
    free(keys);
    return EK_OK;
}

static ek_status list_by_value(const searching *s, int64_t **list, int64_t *n)
{
    return list_layouts_by(s, 1, list, n);
}

/* Simulates layouts [n]; what training refuses after all becomes refused. */
static ek_status simulate_round(searching *s, const int64_t *index, int64_t n, int loaded)
{
    ek_team_failure failure = {.index = -1};

#pragma omp parallel for schedule(dynamic, 1) num_threads(s->threads)
    for (int64_t i = 0; i < n; i++) {
        ek_search_layout *l = layout_at(s, index[i]);
        ek_status st;

        EK_C_LOCALE;
        if (ek_team_has_failed(&failure))
            continue;
        st = ek_search_simulate(&s->setting, l, loaded);
        if (st < 0 && ek_status_class(st) == EK_CLASS_USAGE)
            l->outcome = EK_OUTCOME_REFUSED;
        else if (st < 0)
            ek_team_record(&failure, i, st);
    }
    return ek_team_result(&failure);
}

static void add_once(int64_t *list, int64_t *n, int64_t index)
{
    for (int64_t i = 0; i < *n; i++)
        if (list[i] == index)
            return;
    list[(*n)++] = index;
}

/* --- the most promising first ----------------------------------------------------------------- */

/* Layouts by their bounds, which are refined when they come to the front: the order is that of
 * refined bounds, and a layout whose first bound is too large already is never refined. */
typedef struct {
    searching *s;
    ek_search_found found;
    ek_bound_queue queue;
} simulating;

/* The layouts that differ from one in recomputation alone, [*n] from the one returned on. */
static int64_t refined_with(const searching *s, int64_t index, int64_t *n)
{
    const ek_layout *of = &layout_at(s, index)->choice;
    int64_t first = index, end = index + 1;

    while (first > 0 && ek_candidate_recomputes(&layout_at(s, first - 1)->choice, of))
        first--;
    while (end < s->out->n && ek_candidate_recomputes(&layout_at(s, end)->choice, of))
        end++;
    *n = end - first;
    return first;
}

static ek_status refine_all(searching *s, const int64_t *index, int64_t n)
{
    ek_team_failure failure = {.index = -1};

#pragma omp parallel for schedule(dynamic, 1) num_threads(s->threads)
    for (int64_t i = 0; i < n; i++) {
        int64_t together, first = refined_with(s, index[i], &together);
        ek_search_layout *l = layout_at(s, index[i]);
        ek_status st;

        EK_C_LOCALE;
        if (ek_team_has_failed(&failure))
            continue;
        st = l->refined == EK_REFINED_ENDS
                 ? ek_search_refine_pipeline(&s->setting, l)
                 : ek_search_refine(&s->setting, layout_at(s, first), together);
        if (st < 0)
            ek_team_record(&failure, i, st);
    }
    return ek_team_result(&failure);
}

/* Refines the bounds of the first layouts of the queue, a few at once for the threads; drops what
 * cannot enter the answer. */
static ek_status refine_front(simulating *x)
{
    int64_t taken[2 * REFINED], n_taken = 0, index[REFINED], n = 0, together;

    while (!ek_bound_queue_is_empty(&x->queue) && n_taken < 2 * REFINED && n < REFINED) {
        int64_t i = ek_bound_queue_take(&x->queue);
        const ek_search_layout *l = layout_at(x->s, i);

        if (!ek_search_found_admits(&x->found, l))
            continue;
        taken[n_taken++] = i;
        if (l->refined == EK_REFINED_ENDS)
            add_once(index, &n, i);
        else if (l->refined == EK_NOT_REFINED)
            add_once(index, &n, refined_with(x->s, i, &together));
    }
    EK_TRY(refine_all(x->s, index, n));
    for (int64_t i = 0; i < n_taken; i++)
        ek_bound_queue_add(&x->queue, layout_at(x->s, taken[i])->bound, taken[i]);
    return EK_OK;
}

/* Takes the next layouts to simulate from the queue, [*n] of at most ROUND. */
static ek_status take_round(simulating *x, int64_t *round, int64_t *n)
{
    *n = 0;
    while (!ek_bound_queue_is_empty(&x->queue) && *n < ROUND) {
        double bound;
        int64_t i = ek_bound_queue_first(&x->queue, &bound);
        const ek_search_layout *l = layout_at(x->s, i);

        if (ek_search_found_admits(&x->found, l) && l->refined != EK_REFINED) {
            EK_TRY(refine_front(x));
            continue;
        }
        (void)ek_bound_queue_take(&x->queue);
        if (l->bound > bound) /* it was refined with another */
            ek_bound_queue_add(&x->queue, l->bound, i);
        else if (ek_search_found_admits(&x->found, l))
            round[(*n)++] = i;
    }
    return EK_OK;
}

static ek_status simulate_promising(simulating *x)
{
    int64_t round[ROUND], n;

    do {
        EK_TRY(take_round(x, round, &n));
        EK_TRY(simulate_round(x->s, round, n, 0));
        for (int64_t i = 0; i < n; i++)
            if (layout_at(x->s, round[i])->outcome == EK_OUTCOME_SIMULATED)
                ek_search_found_add(&x->found, layout_at(x->s, round[i]));
    } while (n > 0);
    return EK_OK;
}

static ek_status simulate_all(searching *s)
{
    int64_t top = s->out->cfg->top > FLOWS_FOR ? s->out->cfg->top : FLOWS_FOR;
    simulating x = {.s = s};
    ek_status st;

    if (s->setting.trace != NULL && top < LOADED)
        top = LOADED;
    st = ek_search_found_open(&x.found, ek_search_corners_of(s->out), top);
    x.found.everything = s->out->cfg->everything;
    if (st == EK_OK)
        st = ek_bound_queue_open(&x.queue, s->out->n);
    for (int64_t i = 0; i < s->out->n && st == EK_OK; i++)
        if (layout_at(s, i)->outcome == EK_OUTCOME_BOUND)
            ek_bound_queue_add(&x.queue, layout_at(s, i)->bound, i);
    if (st == EK_OK)
        st = simulate_promising(&x);
    ek_bound_queue_close(&x.queue);
    ek_search_found_close(&x.found);
    return st;
}

/* --- loads of a trace ------------------------------------------------------------------------- */

static int is_better(const ek_search *o, const ek_search_layout *a, const ek_search_layout *b)
{
    if (a->by_flow != b->by_flow)
        return a->by_flow;
    return ek_search_value(o, a) < ek_search_value(o, b);
}

/* Sets the best layout of each corner. */
static void fill_corners(const searching *s)
{
    ek_search *o = s->out;

    for (int i = 0; i < o->n_corners; i++)
        o->corners[i].best = -1;
    for (int64_t i = 0; i < o->n; i++)
        for (int k = 0; k < EK_SEARCH_CORNER_CHOICES && is_eligible(s, &o->layouts[i]); k++) {
            ek_search_corner *c = ek_search_corner_of(ek_search_corners_of(o), &o->layouts[i], k);

            if (c->best < 0 || is_better(o, &o->layouts[i], &o->layouts[c->best]))
                c->best = i;
        }
}

/* The best so many, or the top, and those of each corner; the caller frees *list [*n], which has
 * room for so many more. */
static ek_status list_promising(searching *s, int64_t most, int64_t room, int64_t **list,
                                int64_t *n)
{
    int64_t *order = NULL, n_order = 0;
    ek_status st;

    most = most > s->out->cfg->top ? most : s->out->cfg->top;
    *n = 0;
    *list = calloc((size_t)(most + s->out->n_corners + room), sizeof(**list));
    EK_REQUIRE(*list != NULL, EK_ENOMEM, "no memory for %lld layouts", (long long)most);
    st = list_by_value(s, &order, &n_order);
    for (int64_t i = 0; i < n_order && i < most; i++)
        add_once(*list, n, order[i]);
    free(order);
    fill_corners(s);
    for (int i = 0; i < s->out->n_corners; i++)
        if (s->out->corners[i].best >= 0)
            add_once(*list, n, s->out->corners[i].best);
    return st;
}

/* The best under even loads, and those of each corner, with the trace's loads. */
static ek_status simulate_loaded(searching *s)
{
    int64_t *list = NULL, n = 0;
    ek_status st = list_promising(s, LOADED, 0, &list, &n);

    if (st == EK_OK)
        st = simulate_round(s, list, n, 1);
    if (st == EK_OK)
        s->out->n_loaded = n;
    free(list);
    return st;
}

static int fits_memory(const searching *s, const ek_search_layout *l)
{
    return s->setting.memory <= 0 || l->memory <= s->setting.memory;
}

/* Tries another policy for layouts [n]; keeps it where the step is shorter and still fits. */
static ek_status try_policy(searching *s, const char *policy, const int64_t *index, int64_t n)
{
    ek_search_layout before[POLICIES_FOR];

    for (int64_t i = 0; i < n; i++) {
        before[i] = *layout_at(s, index[i]);
        layout_at(s, index[i])->balance = policy;
    }
    EK_TRY(simulate_round(s, index, n, 1));
    for (int64_t i = 0; i < n; i++) {
        ek_search_layout *l = layout_at(s, index[i]);

        if (l->outcome != EK_OUTCOME_SIMULATED || !fits_memory(s, l) ||
            l->step_s >= before[i].step_s)
            *l = before[i];
    }
    s->out->n_loaded += n;
    return EK_OK;
}

static ek_status try_policies(searching *s)
{
    static const char *const policies[] = {"off", "exact", "auto"};
    int64_t *order = NULL, n = 0, some[POLICIES_FOR], n_some = 0;
    ek_status st = list_by_value(s, &order, &n);

    for (int64_t i = 0; i < n && n_some < POLICIES_FOR; i++)
        if (layout_at(s, order[i])->choice.value[EK_CHOICE_EP] > 1) /* else all serve their own */
            some[n_some++] = order[i];
    free(order);
    for (size_t p = 0; p < sizeof(policies) / sizeof(policies[0]) && st == EK_OK; p++)
        if (strcmp(policies[p], s->setting.train->balance) != 0)
            st = try_policy(s, policies[p], some, n_some);
    return st;
}

/* --- flows ------------------------------------------------------------------------------------ */

/* Adds what no other beats in both time and memory, or at most so many of it, evenly spaced. */
static ek_status add_unbeaten(searching *s, int64_t most, int64_t *list, int64_t *n)
{
    int64_t *order = NULL, n_order = 0;
    ek_status st = list_layouts_by(s, 0, &order, &n_order);

    if (st == EK_OK) {
        int64_t all = ek_search_list_unbeaten(&(ek_search_by_time){s->out->layouts, order, n_order},
                                              0, order);
        int64_t some = all < most ? all : most;

        for (int64_t i = 0; i < some; i++)
            add_once(list, n, order[some > 1 ? i * (all - 1) / (some - 1) : 0]);
    }
    free(order);
    return st;
}

/* Steps by flow and by replay are not to be compared: either all numbers of ranks have them. */
static int has_flows(const searching *s)
{
    const ek_search_config *c = s->out->cfg;
    int ranks = c->most_ranks > c->ranks ? c->most_ranks : c->ranks;

    return s->setting.failures == NULL && (s->setting.trace == NULL || ranks <= FLOWS_LOADED_RANKS);
}

/* The best so far, those of each corner, and the pool. */
static ek_status simulate_flows(searching *s)
{
    int64_t *list = NULL, n = 0;
    ek_status st;

    if (!has_flows(s))
        return EK_OK;
    st = list_promising(s, FLOWS_FOR, FLOWS_POOL, &list, &n);
    if (st == EK_OK)
        st = add_unbeaten(s, FLOWS_POOL, list, &n);
    s->setting.engine = EK_ENGINE_FLOW;
    if (st == EK_OK)
        st = simulate_round(s, list, n, s->setting.trace != NULL);
    s->setting.engine = EK_ENGINE_REPLAY;
    s->out->n_flow = n;
    free(list);
    return st;
}

/* --- failures --------------------------------------------------------------------------------- */

/* Runs of layouts [n] under failures, in threads; a layout that is refused has none. */
static ek_status simulate_runs(searching *s, const int64_t *index, int64_t n)
{
    ek_team_failure failure = {.index = -1};

#pragma omp parallel for schedule(dynamic, 1) num_threads(s->threads)
    for (int64_t i = 0; i < n; i++) {
        ek_status st;

        EK_C_LOCALE;
        if (ek_team_has_failed(&failure))
            continue;
        st = ek_search_simulate_failures(&s->setting, layout_at(s, index[i]), &s->out->failures[i]);
        if (st == EK_OK)
            layout_at(s, index[i])->failures = &s->out->failures[i];
        else if (ek_status_class(st) != EK_CLASS_USAGE && st != EK_ENOMEM)
            ek_team_record(&failure, i, st);
#pragma omp critical(ek_search)
        if (st < 0)
            (void)snprintf(s->refusal, sizeof(s->refusal), "%s", ek_err_message());
    }
    return ek_team_result(&failure);
}

/* The shortest steps, and the best of each corner, under failures. */
static ek_status simulate_failures(searching *s)
{
    ek_search *o = s->out;
    int64_t *list = NULL, n = 0, n_left = 0;
    ek_status st = list_promising(s, FAILURES_FOR, 0, &list, &n);

    EK_TRY_OUT(st);
    o->failures = calloc((size_t)n + 1, sizeof(*o->failures));
    EK_REQUIRE_OUT(o->failures != NULL, EK_ENOMEM, "no memory for runs under failures");
    EK_TRY_OUT(simulate_runs(s, list, n));
    for (int64_t i = 0; i < n; i++) {
        ek_search_layout *l = layout_at(s, list[i]);

        n_left += l->failures != NULL;
        if (l->failures != NULL) /* with copies of experts, if it recovers */
            l->memory = l->failures->of.memory;
    }
    EK_REQUIRE_OUT(n_left > 0, EK_EINVAL, "%s", s->refusal);
    o->n_failures = n;
out:
    free(list);
    return st;
}

/* Objectives that need what the cluster does not have. */
static ek_status check_objective(searching *s, const ek_search_config *cfg)
{
    const ek_cluster *c = cfg->cluster;

    EK_REQUIRE(cfg->objective != EK_OBJECTIVE_COST || c->node_s_price > 0, EK_EINVAL,
               "--objective cost: cluster %s has no key `price`", c->name);
    EK_REQUIRE(cfg->objective != EK_OBJECTIVE_STEP || cfg->failures == NULL, EK_EINVAL,
               "--failures: a search with --objective step has none; give --objective goodput or "
               "cost");
    s->setting.failures = cfg->failures;
    s->setting.on_failure = cfg->on_failure != NULL ? cfg->on_failure : "best";
    if (cfg->objective == EK_OBJECTIVE_GOODPUT && cfg->failures == NULL)
        s->setting.failures = "cluster";
    return EK_OK;
}

/* The layout with the shortest step of all that the answer may have. */
static ek_status find_shortest(searching *s)
{
    int64_t *order = NULL, n = 0;
    ek_status st = list_by_value(s, &order, &n);

    s->out->shortest = n > 0 ? order[0] : -1;
    free(order);
    return st;
}

/* --- the answer ------------------------------------------------------------------------------- */

static ek_status check_any_fits(const searching *s)
{
    const ek_search *o = s->out;
    const ek_search_layout *least = NULL;
    char needs[16], has[32], text[256], copies[128] = "", of_copies[16];
    int survive = o->cfg->host_of != NULL;

    for (int64_t i = 0; i < o->n; i++) {
        const ek_search_layout *l = &o->layouts[i];

        if (l->outcome == EK_OUTCOME_BOUND)
            return EK_OK;
        if (l->outcome == EK_OUTCOME_TOO_MUCH && (least == NULL || l->memory < least->memory))
            least = l;
    }
    EK_REQUIRE(least != NULL, EK_EINVAL, "%s", s->refusal);
    if (least->copies > 0)
        (void)snprintf(copies, sizeof(copies),
                       ", %sB of it for a copy of what one host alone would have",
                       ek_count_text(of_copies, sizeof(of_copies), least->copies));
    return EK_FAIL(EK_ENOMEM,
                   "none of %lld layouts%s fits in %s of memory a rank: the smallest needs %sB "
                   "(%s)%s%s",
                   (long long)o->n, survive ? " that survive the loss of any host" : "",
                   ek_memory_text(has, sizeof(has), s->setting.memory),
                   ek_count_text(needs, sizeof(needs), least->memory),
                   ek_layout_words(&least->choice, NULL, text, sizeof(text)), copies,
                   survive ? "; others may fit: --elastic=false" : "");
}

static void count_outcomes(ek_search *o)
{
    for (int64_t i = 0; i < o->n; i++)
        o->count[o->layouts[i].outcome]++;
    for (int64_t i = 0; i < o->n; i++)
        o->n_no_room_for_copies += ek_search_lacks_room_for_copies(o, &o->layouts[i]);
}

/* order: all by time.  The pool is of the engine that the best is of. */
static ek_status fill_pools(ek_search *o, const int64_t *order, int64_t n)
{
    const ek_search_by_time all = {o->layouts, order, n};
    const ek_search_layout *best = &o->layouts[o->best[0]];

    o->pool = calloc((size_t)n + 1, sizeof(*o->pool));
    o->pool_for_runs = calloc((size_t)n + 1, sizeof(*o->pool_for_runs));
    EK_REQUIRE(o->pool != NULL && o->pool_for_runs != NULL, EK_ENOMEM,
               "no memory for a pool of layouts");
    o->n_pool = ek_search_list_unbeaten(&all, best->by_flow, o->pool);
    o->n_pool_for_runs = ek_search_list_for_runs(&all, o->pool, o->n_pool, ek_search_corners_of(o),
                                                 best->step_s, o->pool_for_runs);
    return EK_OK;
}

static ek_status fill_answer(searching *s)
{
    ek_search *o = s->out;
    int64_t *order = NULL, n;
    ek_status st;

    fill_corners(s);
    count_outcomes(o);
    EK_TRY(list_by_value(s, &o->best, &n));
    EK_REQUIRE(n > 0, EK_EINVAL, "training refuses all layouts");
    ek_search_find_near(o, n);
    o->n_best = n < o->cfg->top ? n : o->cfg->top;
    st = list_layouts_by(s, 0, &order, &n);
    if (st == EK_OK)
        st = fill_pools(o, order, n);
    free(order);
    return st;
}

/* What the best layout would take with even loads, and without balancing those of the trace. */
static ek_status simulate_other_loads(searching *s)
{
    const ek_search_layout *best = layout_at(s, s->out->best[0]);
    ek_search_layout even = *best, off = *best;
    ek_status st;

    if (!best->loaded)
        return EK_OK;
    s->setting.engine = best->by_flow ? EK_ENGINE_FLOW : EK_ENGINE_REPLAY;
    EK_TRY(ek_search_simulate(&s->setting, &even, 0));
    s->out->even_s = even.step_s;
    off.balance = "off";
    st = ek_search_simulate(&s->setting, &off, 1);
    if (st == EK_OK)
        s->out->off_s = off.step_s;
    return ek_status_class(st) == EK_CLASS_USAGE ? EK_OK : st; /* refused, as in training */
}

static ek_status search(searching *s, const ek_search_config *cfg)
{
    EK_REQUIRE(cfg->ranks <= ek_cluster_ranks(cfg->cluster), EK_EINVAL,
               "--ranks %d: cluster %s has %lld (`ranks` of its last level)", cfg->ranks,
               cfg->cluster->name, (long long)ek_cluster_ranks(cfg->cluster));
    EK_TRY(check_objective(s, cfg));
    EK_TRY(ek_cluster_nodes(cfg->cluster, cfg->ranks, &s->node_of));
    s->setting.node_of = s->node_of;
    s->setting.host_of = cfg->host_of;
    EK_TRY(describe_model(s, cfg));
    if (cfg->trace != NULL)
        EK_TRY(ek_sim_loads_check(cfg->trace, s->out->model.spec.experts));
    s->setting.layers = s->out->model.spec.layers;
    s->setting.layers_alike = !cfg->everything && ek_model_layers_are_alike(&s->out->model.spec);
    s->setting.batch = s->out->model.batch;
    EK_TRY(list_layouts(s, cfg));
    EK_TRY(measure_all(s));
    EK_TRY(check_any_fits(s));
    EK_TRY(list_corners(s->out));
    EK_TRY(simulate_all(s));
    if (cfg->trace != NULL) {
        EK_TRY(simulate_loaded(s));
        EK_TRY(try_policies(s));
    }
    EK_TRY(simulate_flows(s));
    EK_TRY(find_shortest(s));
    if (s->setting.failures != NULL)
        EK_TRY(simulate_failures(s));
    EK_TRY(fill_answer(s));
    return simulate_other_loads(s);
}

ek_status ek_search_run(const ek_search_config *cfg, ek_search **out)
{
    double memory = cfg->memory > 0 ? cfg->memory : cfg->cluster->memory;
    searching s = {.out = calloc(1, sizeof(*s.out)),
                   .threads = ek_cores_usable(),
                   .setting = {.train = cfg->train,
                               .cluster = cfg->cluster,
                               .ranks = cfg->ranks,
                               .memory = memory,
                               .trace = cfg->trace,
                               .steps = cfg->steps > 0 ? cfg->steps : TRACE_STEPS}};
    int64_t began = ek_clock_ns();
    ek_status st;

    *out = s.out;
    EK_REQUIRE(s.out != NULL, EK_ENOMEM, "no memory for a search");
    s.out->cfg = cfg;
    s.out->memory = memory;
    st = ek_even_plans_open(&s.setting.plans);
    if (st == EK_OK)
        st = search(&s, cfg);
    ek_even_plans_close(&s.setting.plans);
    s.out->took_s = (double)(ek_clock_ns() - began) * 1e-9;
    free(s.node_of);
    return st;
}

void ek_search_close(ek_search **s)
{
    if (*s == NULL)
        return;
    free((*s)->layouts);
    free((*s)->best);
    free((*s)->pool);
    free((*s)->pool_for_runs);
    free((*s)->corners);
    free((*s)->failures);
    free(*s);
    *s = NULL;
}
