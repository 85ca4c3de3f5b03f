/* Chooses layouts from a pool. */
#include "train/run/layouts.h"

#include "base/clock.h"
#include "base/count_text.h"
#include "base/log.h"
#include "comm/agree.h"
#include "comm/mesh.h"
#include "cost/cost.h"
#include "elastic/segment.h"
#include "model/hf/names.h"
#include "recover/supervised.h"
#include "train/layout_room.h"
#include "train/output/layout_in_use.h"
#include "train/simulate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of ek_run_layouts.refused: a layout that could not be simulated stays out; one whose state was
 * too large for shared memory is looked at again, as what is free there changes. */
enum { NOT_SIMULATED = 1, TOO_LARGE };

enum {
    WORDS = 256,
    DECISION_S = 30 /* after which no further layout is simulated: other ranks wait */
};

/* Settings without a pool: those of a simulation. */
static void forget_pool(ek_train_config *c)
{
    c->layout_pool = NULL;
    c->layout_every = 0;
}

static int rank_of(const ek_train_config *c)
{
    return c->world != NULL ? ek_comm_rank(c->world) : 0;
}

/* --- the first layout ------------------------------------------------------------------------- */

static ek_status check_settings(const ek_train_config *c)
{
    EK_REQUIRE(c->layout_every >= 0, EK_EINVAL, "--layout-every %lld is below 0",
               (long long)c->layout_every);
    EK_REQUIRE(c->layout_every == 0 || c->layout_pool != NULL, EK_EINVAL,
               "--layout-every: give --layout-pool, the layouts to choose from (evenkeel search "
               "--pool), or --layout auto");
    EK_REQUIRE(c->layout_every == 0 || c->cluster != NULL, EK_EINVAL,
               "--layout-every: give --cluster, the file of the cluster that layouts are simulated "
               "on (docs/simulate.md)");
    EK_REQUIRE(c->layout_pool == NULL || !c->elastic || c->layout_every > 0, EK_EINVAL,
               "a run with elastic and without layout_every keeps its layout: set that instead of "
               "layout_pool");
    EK_REQUIRE(c->layout_every == 0 || strcmp(c->offload, "off") == 0, EK_EINVAL,
               "--layout-every does not work with --offload %s", c->offload);
    EK_REQUIRE(c->layout_every == 0 || strcmp(c->reroute, "topology") != 0, EK_EINVAL,
               "--layout-every does not work with --reroute topology, with which losses depend on "
               "the layout");
    EK_REQUIRE(c->layout_every == 0 || (!c->timeline && !c->record_routing && !c->record_plans),
               EK_EINVAL,
               "--layout-every does not work with --timeline, --record-routing and "
               "--record-plans, whose files are of one layout: record with the layout alone");
    return EK_OK;
}

static const char *options_text(const ek_pool_layout *l, char *text, size_t cap)
{
    return ek_layout_words(&l->choice, l->balance, text, cap);
}

static int is_in_use(const ek_pool_layout *l, const ek_train_config *c)
{
    ek_train_config other = *c;

    ek_layout_apply(&l->choice, &other);
    return other.pp == c->pp && other.chunks == c->chunks && other.tp == c->tp &&
           other.ep == c->ep && other.etp == c->etp && other.zero == c->zero &&
           strcmp(other.recompute, c->recompute) == 0 &&
           (l->balance[0] == '\0' || strcmp(l->balance, c->balance) == 0);
}

/* Whether a run may have a layout: losses depend on the micro-batch. */
static int has_micro_batch(const ek_pool_layout *l, int64_t micro_batch)
{
    return micro_batch == 0 || l->choice.value[EK_CHOICE_MICRO_BATCH] == micro_batch;
}

/* Without draining ranks. */
static int64_t ranks_of(const ek_train_config *c)
{
    int draining = ek_supervised_draining(c->supervised);

    return c->world != NULL ? ek_comm_size(c->world) - draining : 1;
}

/* With elastic on several hosts: the hosts of ranks.  Collective. */
static ek_status find_hosts(ek_run_layouts *l)
{
    const ek_train_config *c = l->given;
    int ranks = (int)ranks_of(c), several = 0;
    ek_status st = EK_OK;

    for (int r = 1; r < ranks && c->elastic; r++)
        several |= ek_comm_node(c->world, r) != ek_comm_node(c->world, 0);
    if (!several)
        return EK_OK;
    l->host_of = calloc((size_t)ranks, sizeof(*l->host_of));
    if (l->host_of == NULL)
        st = EK_FAIL(EK_ENOMEM, "no memory for the hosts of %d ranks", ranks);
    EK_TRY(ek_agree(c->world, "find the hosts of ranks", st));
    for (int r = 0; r < ranks; r++)
        l->host_of[r] = ek_comm_node(c->world, r);
    l->left = ek_layout_ranks_left(ranks, l->host_of);
    return EK_OK;
}

/* Whether ranks can have a layout, with --ep adapted if elastic, and can go on with it without any
 * one of their hosts. */
static int is_possible(const ek_run_layouts *l, const ek_layout *x)
{
    const int64_t *v = x->value;
    ek_mesh_sizes sizes = {(int)v[EK_CHOICE_PP], (int)v[EK_CHOICE_TP], (int)v[EK_CHOICE_EP],
                           (int)v[EK_CHOICE_ETP]};
    int ranks = (int)ranks_of(l->given);

    if (!l->given->elastic)
        return 1; /* what does not fit is refused by name */
    return ranks % ek_mesh_rank_multiple(&sizes) == 0 &&
           (l->host_of == NULL || ek_layout_survives(x, l->left));
}

/* The same, for a first layout: and if there is memory for the copies that it needs for that. */
static int is_possible_first(const ek_run_layouts *l, const ek_pool_layout *p)
{
    return is_possible(l, &p->choice) &&
           (l->host_of == NULL || ek_layout_has_room(l->given, p, (int)ranks_of(l->given),
                                                     l->host_of, rank_of(l->given) == 0));
}

/* With elastic: the layout of the run in `out`, if there is one, which rank 0 reads for all; with
 * --micro-batch as given, as another one is refused when settings are compared.  Collective. */
static ek_status find_in_use(ek_run_layouts *l)
{
    const ek_train_config *c = l->given;
    struct {
        ek_pool_layout layout;
        int found;
    } x = {.found = 0};
    ek_coll *op = NULL;
    ek_status st = EK_OK;

    l->continues = c->resume;
    if (!c->elastic)
        return EK_OK;
    if (rank_of(c) == 0)
        st = ek_layout_in_use_read(c->out, &x.layout, &x.found);
    EK_TRY(ek_agree(c->world, "read the layout in use", st));
    if (c->world != NULL) {
        EK_TRY(ek_comm_broadcast(c->world, &x, sizeof(x), 0, &op));
        EK_TRY(ek_coll_wait(&op));
    }
    l->continues = x.found;
    l->in_use = x.layout;
    if (!x.found)
        return EK_OK;
    if (c->micro_batch > 0)
        l->in_use.choice.value[EK_CHOICE_MICRO_BATCH] = c->micro_batch;
    ek_pool_layout_apply(&l->in_use, &l->cfg);
    return EK_OK;
}

/* The one that the run in `out` has; -1: the pool does not have it. */
static int64_t find_continued(const ek_run_layouts *l)
{
    for (int64_t i = l->pool->n - 1; i >= 0 && l->continues; i--)
        if (has_micro_batch(&l->pool->layout[i], l->cfg.micro_batch) &&
            is_in_use(&l->pool->layout[i], &l->cfg))
            return i;
    return -1;
}

/* The first that the run may have; a run that continues goes on with the layout that it had.  With
 * elastic also on another number of ranks than the pool is of: the layout then stays. */
static ek_status choose_first(ek_run_layouts *l)
{
    const ek_train_config *c = &l->cfg;
    ek_layout_pool *p = l->pool;
    int64_t ranks = ranks_of(c), first, n_impossible = 0;
    int had;

    EK_REQUIRE(p->ranks == ranks || c->elastic, EK_EINVAL,
               "--layout-pool: its layouts are of %lld ranks, and there are %lld",
               (long long)p->ranks, (long long)ranks);
    l->stays = p->ranks != ranks;
    l->decision = (ek_layout_decision){.n = p->n, .current = -1};
    if (l->stays && l->continues)
        return EK_OK;
    first = find_continued(l);
    had = first >= 0;
    for (int64_t i = 0; i < p->n && first < 0; i++) {
        if (!has_micro_batch(&p->layout[i], c->micro_batch))
            continue;
        if (is_possible_first(l, &p->layout[i]))
            first = i;
        else
            n_impossible++;
    }
    if (first >= 0 && l->continues && !had && rank_of(c) == 0)
        ek_log("layout", EK_LOG_INFO, "the pool does not have the layout that the run had");
    EK_REQUIRE(first >= 0 || n_impossible == 0, EK_EINVAL,
               "--layout-pool: none of its %lld layouts goes with the hosts that there are and "
               "survives the loss of any one",
               (long long)p->n);
    EK_REQUIRE(first >= 0, EK_EINVAL,
               "--layout-pool: none of its %lld layouts has --micro-batch %lld, which affects "
               "losses: search with --fix micro-batch=%lld",
               (long long)p->n, (long long)c->micro_batch, (long long)c->micro_batch);
    l->decision.current = first;
    return EK_OK;
}

/* The layout that ranks have: of the pool, or the one that stays. */
static const ek_pool_layout *current_layout(const ek_run_layouts *l)
{
    return l->decision.current >= 0 ? &l->pool->layout[l->decision.current] : &l->in_use;
}

static void apply_current(ek_run_layouts *l)
{
    l->cfg = *l->given;
    ek_pool_layout_apply(current_layout(l), &l->cfg);
}

/* Rank 0 reads the pool, for all. */
static ek_status read_pool(ek_run_layouts *l)
{
    const ek_train_config *c = l->given;
    ek_coll *op = NULL;
    ek_status st = EK_OK;

    l->pool = calloc(1, sizeof(*l->pool));
    if (l->pool == NULL)
        st = EK_FAIL(EK_ENOMEM, "no memory for a pool of layouts");
    if (st == EK_OK && rank_of(c) == 0)
        st = ek_layout_pool_read(c->layout_pool, l->pool);
    EK_TRY(ek_agree(c->world, "read --layout-pool", st));
    if (c->world == NULL)
        return EK_OK;
    EK_TRY(ek_comm_broadcast(c->world, l->pool, sizeof(*l->pool), 0, &op));
    return ek_coll_wait(&op);
}

/* On rank 0: what decisions are made from. */
static ek_status open_decisions(ek_run_layouts *l)
{
    size_t n = (size_t)l->pool->n;

    l->cluster = calloc(1, sizeof(*l->cluster));
    l->simulated = calloc(n, sizeof(*l->simulated));
    l->refused = calloc(n, sizeof(*l->refused));
    EK_REQUIRE(l->cluster != NULL && l->simulated != NULL && l->refused != NULL, EK_ENOMEM,
               "no memory for %lld layouts", (long long)l->pool->n);
    EK_TRY(ek_cluster_read(l->given->cluster, l->cluster));
    EK_REQUIRE(l->pool->ranks <= ek_cluster_ranks(l->cluster), EK_EINVAL,
               "--cluster %s has %lld ranks, and there are %lld", l->given->cluster,
               (long long)ek_cluster_ranks(l->cluster), (long long)l->pool->ranks);
    return EK_OK;
}

static void log_first(const ek_run_layouts *l)
{
    const ek_layout_pool *p = l->pool;
    const ek_pool_layout *now = current_layout(l);
    int64_t may = 0;
    char words[WORDS];

    if (l->stays) {
        ek_log("layout", EK_LOG_INFO,
               "layout %s, which stays: the layouts of the pool are of %lld ranks, and there are "
               "%lld",
               options_text(now, words, sizeof(words)), (long long)p->ranks,
               (long long)ranks_of(l->given));
        return;
    }
    for (int64_t i = 0; i < p->n; i++)
        may += has_micro_batch(&p->layout[i], now->choice.value[EK_CHOICE_MICRO_BATCH]);
    ek_log("layout", EK_LOG_INFO,
           "layout %s: number %lld of %lld in the pool, %lld with this micro-batch",
           options_text(now, words, sizeof(words)), (long long)l->decision.current + 1,
           (long long)p->n, (long long)may);
}

ek_status ek_run_layouts_open(ek_run_layouts *l, const ek_train_config *cfg)
{
    *l = (ek_run_layouts){.given = cfg, .cfg = *cfg, .lock = -1, .next = -1};
    EK_TRY(check_settings(cfg));
    if (cfg->layout_pool == NULL)
        return EK_OK;
    EK_TRY(read_pool(l));
    EK_TRY(find_hosts(l));
    EK_TRY(find_in_use(l));
    EK_TRY(choose_first(l));
    if (cfg->layout_every > 0)
        EK_TRY(
            ek_agree(cfg->world, "read --cluster", rank_of(cfg) == 0 ? open_decisions(l) : EK_OK));
    apply_current(l);
    if (rank_of(cfg) == 0)
        log_first(l);
    return EK_OK;
}

void ek_run_layouts_close(ek_run_layouts *l)
{
    free(l->pool);
    free(l->host_of);
    free(l->cluster);
    free(l->loads);
    free(l->simulated);
    free(l->refused);
}

ek_status ek_run_layouts_check(const ek_run *r)
{
    const ek_layout_pool *p = r->layouts != NULL ? r->layouts->pool : NULL;
    const ek_trainer_config *t = &r->training;

    if (p == NULL)
        return EK_OK;
    EK_REQUIRE(p->batch == t->batch && p->seq == t->seq, EK_EINVAL,
               "--layout-pool: its layouts are for steps of %lld sequences of %lld tokens, and the "
               "run has --batch %lld --seq %lld",
               (long long)p->batch, (long long)p->seq, (long long)t->batch, (long long)t->seq);
    EK_REQUIRE(p->params == ek_hf_elements(&r->source.spec), EK_EINVAL,
               "--layout-pool: its layouts are for a model of %lld parameters, and this one has "
               "%lld",
               (long long)p->params, (long long)ek_hf_elements(&r->source.spec));
    return EK_OK;
}

/* --- measurements ----------------------------------------------------------------------------- */

static int decides(const ek_run *r)
{
    const ek_run_layouts *l = r->layouts;

    return l != NULL && l->pool != NULL && l->given->layout_every > 0 && !l->stays;
}

/* The first step of a start ends it; what it took tells what a change costs. */
static void end_start(ek_run_layouts *l, int64_t now)
{
    if (l->changing_ns > 0)
        l->change_s = (double)(now - l->changing_ns) / 1e9;
    l->start_s = (double)(now - l->opened_ns) / 1e9;
    l->changing_ns = 0;
}

void ek_run_layouts_note_opening(ek_run_layouts *l)
{
    l->opened_ns = ek_clock_ns();
}

int64_t ek_run_layouts_begin(ek_run_layouts *l)
{
    if (l->began_ns == 0)
        l->began_ns = ek_clock_ns();
    return l->began_ns;
}

static void add_loads(ek_run *r)
{
    const ek_model_spec *spec = &r->source.spec;
    double *at = r->layouts->loads;

    for (int64_t i = 0; i < spec->layers; i++) {
        const double *load = ek_pass_load(ek_trainer_pass(r->trainer), i);

        for (int64_t e = 0; e < spec->experts && !spec->dense[i]; e++)
            *at++ += load[e];
    }
}

void ek_run_layouts_add_step(ek_run *r, double seconds)
{
    ek_run_layouts *l = r->layouts;
    int64_t done = ek_trainer_steps_done(r->trainer);
    size_t n = (size_t)(ek_model_moe_layers(&r->source.spec) * r->source.spec.experts);

    if (!decides(r))
        return;
    if (l->next < 0)
        l->next = done - 1 + l->given->layout_every;
    if (done == r->first_step + 1) {
        end_start(l, ek_clock_ns());
    } else {
        l->step_s += seconds;
        l->n_steps++;
    }
    if (r->rank != 0)
        return;
    if (l->loads == NULL) /* without memory for them nothing is decided */
        l->loads = calloc(n + 1, sizeof(*l->loads));
    if (l->loads != NULL)
        add_loads(r);
}

/* --- decisions -------------------------------------------------------------------------------- */

/* The loads as a trace of one iteration; the caller frees own. */
static ek_status trace_of_loads(const ek_run *r, ek_trace *t)
{
    const ek_model_spec *spec = &r->source.spec;
    int64_t layers = ek_model_moe_layers(spec), n = layers * spec->experts;
    uint64_t *counts = calloc((size_t)n + 1, sizeof(*counts));

    EK_REQUIRE(counts != NULL, EK_ENOMEM, "no memory for the loads of experts");
    for (int64_t i = 0; i < n; i++)
        counts[i] = (uint64_t)r->layouts->loads[i];
    *t = (ek_trace){.own = counts,
                    .data = (const unsigned char *)counts,
                    .width = sizeof(*counts),
                    .iterations = 1,
                    .layers = layers,
                    .sources = 1,
                    .experts = spec->experts};
    return EK_OK;
}

/* Whether the shared memory of hosts has room for the state of a layout, in place of the present
 * one. */
static int fits_shared_memory(ek_run_layouts *l, int64_t i, const ek_sim_graphs *g)
{
    char words[WORDS], needed[32], room[32];
    double state = 0;

    for (int32_t k = 0; k < g->n_classes; k++)
        state = fmax(state, g->classes[k].state);
    if (state <= l->shared_cap)
        return 1;
    if (l->refused[i] == TOO_LARGE) /* was told */
        return 0;
    l->refused[i] = TOO_LARGE;
    ek_log("layout", EK_LOG_WARN,
           "%s is not considered: its state takes %s of shared memory a rank, and a host has %s "
           "for each",
           options_text(&l->pool->layout[i], words, sizeof(words)),
           ek_bytes_text(needed, sizeof(needed), state),
           ek_bytes_text(room, sizeof(room), l->shared_cap));
    return 0;
}

/* Seconds of a step with a layout of the pool; infinite if it cannot be had. */
static double simulate_layout(ek_run_layouts *l, int64_t i, const ek_trace *loads)
{
    ek_train_config c = *l->given;
    ek_simulation_config cfg = {.train = &c,
                                .cluster = l->cluster,
                                .ranks = (int)l->pool->ranks,
                                .host_of = l->host_of,
                                .trace = loads,
                                .steps = 1};
    ek_simulation *s = NULL;
    double step_s = INFINITY;
    char words[WORDS];
    ek_status st;
    int logged;

    ek_pool_layout_apply(&l->pool->layout[i], &c);
    forget_pool(&c);
    c.world = NULL;
    c.supervised = NULL;
    c.replay_routing = NULL;             /* its loads are what was measured */
    logged = ek_log_limit(EK_LOG_ERROR); /* what a run with this layout would tell */
    st = ek_simulate(&cfg, &s);
    ek_log_unlimit(logged);
    if (st == EK_OK) {
        if (i == l->decision.current || fits_shared_memory(l, i, ek_simulation_graphs(s)))
            step_s = ek_simulation_result(s)->step_s;
    } else {
        l->refused[i] = NOT_SIMULATED;
        ek_log("layout", EK_LOG_WARN, "%s cannot be simulated: %s",
               options_text(&l->pool->layout[i], words, sizeof(words)), ek_err_message());
    }
    ek_simulation_close(&s);
    return step_s;
}

/* Whether a layout has the micro-batch of the run, survives what the run is to survive, and memory
 * for it is left. */
static int may_use(const ek_run *r, int64_t i)
{
    const ek_run_layouts *l = r->layouts;
    const ek_pool_layout *now = &l->pool->layout[l->decision.current], *p = &l->pool->layout[i];

    return l->refused[i] != NOT_SIMULATED &&
           has_micro_batch(p, now->choice.value[EK_CHOICE_MICRO_BATCH]) &&
           is_possible(l, &p->choice) && p->memory <= now->memory + r->room.spare_bytes;
}

static void simulate_pool(ek_run *r)
{
    ek_run_layouts *l = r->layouts;
    int64_t now = l->decision.current, until = ek_clock_ns() + ek_clock_from_s(DECISION_S);
    ek_trace t = {0};

    if (l->loads == NULL || trace_of_loads(r, &t) < 0) {
        for (int64_t i = 0; i < l->pool->n; i++)
            l->simulated[i] = INFINITY;
        return;
    }
    l->simulated[now] = simulate_layout(l, now, &t);
    for (int64_t i = 0; i < l->pool->n; i++)
        if (i != now)
            l->simulated[i] =
                may_use(r, i) && ek_clock_ns() < until ? simulate_layout(l, i, &t) : INFINITY;
    free(t.own);
}

/* What a change costs: as measured, else as much as this start took, once more for the save. */
static double cost_of_change(const ek_run_layouts *l)
{
    return l->change_s > 0 ? l->change_s : 2 * l->start_s;
}

static void log_verdict(const ek_run_layouts *l, const ek_layout_prospect *p,
                        const ek_layout_verdict *v, double took_s)
{
    char a[EK_COST_QUANTITY], b[EK_COST_QUANTITY];
    char words[WORDS], change[32], of_step[64] = "", of_change[64];

    (void)options_text(&l->pool->layout[v->best], words, sizeof(words));
    (void)snprintf(of_step, sizeof(of_step), "%s a step instead of %s",
                   ek_cost_quantity(a, v->expected_s, "s"),
                   ek_cost_quantity(b, p->measured_s, "s"));
    (void)snprintf(of_change, sizeof(of_change), "a change takes %s",
                   ek_time_text(change, sizeof(change), p->change_s));
    if (v->change)
        ek_log("layout", EK_LOG_INFO, "changing to the layout %s: by simulation %s; %s", words,
               of_step, of_change);
    else if (!isfinite(p->simulated[l->decision.current]))
        ek_log("layout", EK_LOG_INFO,
               "the layout stays: the one in use cannot be simulated, so others cannot be compared "
               "with it");
    else if (v->best == l->decision.current)
        ek_log("layout", EK_LOG_INFO,
               "the layout stays: no other is simulated to be faster (decided in %s)",
               ek_cost_quantity(a, took_s, "s"));
    else
        ek_log("layout", EK_LOG_INFO,
               "the layout stays: the best other one, %s, is simulated to take %s, which would not "
               "save twice its cost within %lld steps: %s",
               words, of_step, (long long)p->steps, of_change);
}

/* On rank 0. */
static int64_t decide_here(ek_run *r, int64_t steps)
{
    ek_run_layouts *l = r->layouts;
    int64_t began = ek_clock_ns();
    ek_layout_prospect p = {.simulated = l->simulated,
                            .measured_s = l->step_s / (double)l->n_steps,
                            .change_s = cost_of_change(l),
                            .steps = steps};
    ek_layout_verdict v;

    simulate_pool(r);
    v = ek_layout_decide(&l->decision, &p);
    log_verdict(l, &p, &v, (double)(ek_clock_ns() - began) / 1e9);
    return v.change ? v.best : l->decision.current;
}

/* Begins to count anew. */
static void clear_counts(ek_run *r)
{
    ek_run_layouts *l = r->layouts;
    int64_t n = ek_model_moe_layers(&r->source.spec) * r->source.spec.experts;

    l->step_s = 0;
    l->n_steps = 0;
    for (int64_t i = 0; i < n && l->loads != NULL; i++)
        l->loads[i] = 0;
}

/* What each rank may take of the shared memory of its host, if the state in it is removed.
 * Collective. */
static ek_status find_shared_cap(ek_run *r)
{
    ek_run_layouts *l = r->layouts;
    double ranks = 1, state = (double)r->model->state.bytes;
    size_t free_bytes;

    l->shared_cap = INFINITY;
    if (!l->given->elastic)
        return EK_OK;
    EK_TRY(ek_run_sum_on_host(r, &ranks));
    EK_TRY(ek_run_sum_on_host(r, &state));
    if (ek_segment_available(&free_bytes) == EK_OK)
        l->shared_cap = ((double)free_bytes + state) / ranks;
    return ek_minimum(r->world, &l->shared_cap);
}

ek_status ek_run_layouts_decide(ek_run *r, int *change)
{
    ek_run_layouts *l = r->layouts;
    int64_t done = ek_trainer_steps_done(r->trainer), next, left;
    ek_coll *op = NULL;

    *change = 0;
    if (!decides(r) || done < l->next || l->n_steps == 0)
        return EK_OK;
    left = r->training.optimizer.steps - done;
    l->next = done + l->given->layout_every;
    next = l->decision.current;
    if (left <= 0)
        return EK_OK;
    EK_TRY(find_shared_cap(r));
    if (r->rank == 0)
        next = decide_here(r, left < l->given->layout_every ? left : l->given->layout_every);
    if (r->ranks > 1) {
        EK_TRY(ek_comm_broadcast(r->world, &next, sizeof(next), 0, &op));
        EK_TRY(ek_coll_wait(&op));
    }
    clear_counts(r);
    *change = next != l->decision.current;
    if (!*change)
        return EK_OK;
    l->changing_ns = ek_clock_ns();
    l->decision.current = next;
    l->changing = 1;
    l->changes++;
    return EK_OK;
}

int ek_run_layouts_continue(ek_run_layouts *l)
{
    if (!l->changing)
        return 0;
    l->changing = 0;
    apply_current(l);
    l->cfg.resume = 1;
    l->cfg.overwrite = 0;
    return 1;
}

void ek_run_layouts_describe(const ek_run_layouts *l, ek_train_summary *out)
{
    if (l->pool == NULL)
        return;
    out->layouts.n = l->pool->n;
    out->layouts.changes = l->changes;
    (void)options_text(current_layout(l), out->layouts.options, sizeof(out->layouts.options));
}
