/* `bench balance`: compares load balancing policies in training.
 *
 * One run alternates between --policies, step by step, with the same model, tokens and loads, and
 * with even loads as of --force-balance, so that all see the same noise.  A policy's steps are
 * compared with the median step of even loads.  The learning rate is 0, so all steps of a round
 * compute the same, which their losses verify.
 *
 *   past        the first --past iterations of the trace: policies with persistent placement have
 *               the one that training would have after as many steps (balance_past.h), which are
 *               planned and not trained
 *   warm-up     one step with the last of these iterations (by each policy that plans from the
 *               previous counts, too), and one with even loads
 *   round i     every policy and the even loads with iteration i after the past, in a different
 *               order each round
 *
 * Experts are in block order except in steps of policies with persistent placement.  Migration is
 * not part of a step: reported are the time to migrate from block order to the placement, as
 * move_ms, and the experts that moved in the past.  All policies share one memory layout: if one
 * holds optimizer state in spare slots, the optimizer of all covers those slots, and `off` has ops
 * for replicas that never arrive.  Slow planners are not disabled; one that fails ends the run.  A
 * step takes as long as on its slowest rank.  Rank 0 prints.  With --timeline every rank writes the
 * ops of all rounds, with a mark at each step, which names its policy. */
#include "base/clock.h"
#include "base/file.h"
#include "bench/balance_past.h"
#include "bench/bench_priv.h"
#include "model/hf/init.h"
#include "moe/replica_weights.h"
#include "train/batch.h"
#include "train/trainer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* Measurements of one step; bytes, plan and wait times as in metrics.jsonl. */
typedef struct {
    double ms, loss, before, after, plan_ms, replicas, replica_mb, wait_ms, sent_mb;
    char reason[EK_PLAN_REASON]; /* of the last plan */
} sample;

typedef struct {
    const char *name;
    const ek_planner *planner;
    int even;            /* even loads instead of the trace's */
    sample *of;          /* [rounds] */
    ek_plan *placements; /* [layers] persistent placements of this policy; NULL: block order */
    int64_t moved;       /* experts moved, relative to block order */
    int64_t past_moved;  /* experts that moved in the past */
    char reason[EK_PLAN_REASON]; /* of the last layer's placement */
    bench_samples migrate_s_per_expert;
} policy;

typedef struct {
    bench_mesh on;
    ek_trace trace; /* plus a last iteration with even loads */
    ek_model *model;
    ek_trainer *trainer;
    ek_arena arena;
    ek_plan *block; /* [layers] */
    const ek_planner *others[BENCH_POLICIES_MAX + 1];
    int n;
    policy of[BENCH_POLICIES_MAX + 1]; /* the last one has even loads */
    policy *there;                     /* whose placement is installed; NULL: block order */
    char reason[EK_PLAN_REASON];       /* of the last transient plan */
    int64_t *step_ns;                  /* start of each step of the rounds */
    const char **step_names;           /* its policy */
    int64_t n_steps;
} balance;

/* --- setup ------------------------------------------------------------------------------------ */

static policy *even_of(balance *x)
{
    return &x->of[x->n];
}

static ek_status read_policies(const bench *b, balance *x)
{
    bench_policies named;
    int n = 0;

    EK_TRY(bench_read_policies(b, &named));
    x->n = named.n;
    for (int i = 0; i < named.n; i++)
        x->of[i] = (policy){.name = named.of[i]->name, .planner = named.of[i]};
    *even_of(x) = (policy){.name = "force-balance", .planner = &ek_planner_off, .even = 1};
    x->step_ns = calloc((size_t)(b->cfg->steps * (x->n + 1)), sizeof(*x->step_ns));
    x->step_names = calloc((size_t)(b->cfg->steps * (x->n + 1)), sizeof(*x->step_names));
    EK_REQUIRE(x->step_ns != NULL && x->step_names != NULL, EK_ENOMEM, "no memory for a benchmark");
    for (int i = 0; i < x->n; i++)
        if (x->of[i].planner != &ek_planner_off)
            x->others[n++] = x->of[i].planner;
    for (int i = 0; i <= x->n; i++) {
        x->of[i].of = calloc((size_t)b->cfg->steps, sizeof(*x->of[i].of));
        EK_REQUIRE(x->of[i].of != NULL, EK_ENOMEM, "no memory for a benchmark");
    }
    return EK_OK;
}

/* Reads the trace and appends an iteration with even loads. */
static ek_status read_loads(const bench *b, balance *x)
{
    ek_trace in;
    int64_t n, more;
    uint64_t *numbers;

    EK_REQUIRE(
        b->cfg->replay != NULL, EK_EINVAL,
        "bench balance needs a trace: --replay-routing FILE (evenkeel workload generates one)");
    EK_TRY(bench_open_trace(b, &in));
    n = ek_trace_numbers(&in);
    more = in.layers * in.sources * in.experts;
    numbers = malloc((size_t)(n + more) * sizeof(*numbers));
    for (int64_t i = 0; numbers != NULL && i < n + more; i++)
        numbers[i] = i < n ? (uint64_t)ek_trace_number(&in, i) : 1;
    x->trace = (ek_trace){.own = numbers,
                          .data = (const unsigned char *)numbers,
                          .width = sizeof(*numbers),
                          .iterations = in.iterations + 1,
                          .layers = in.layers,
                          .sources = in.sources,
                          .experts = in.experts};
    ek_trace_close(&in);
    EK_REQUIRE(numbers != NULL, EK_ENOMEM, "no memory for %lld loads", (long long)(n + more));
    EK_REQUIRE(b->cfg->past < x->trace.iterations, EK_EINVAL,
               "--past %lld: the trace has %lld iterations", (long long)b->cfg->past,
               (long long)x->trace.iterations - 1);
    return EK_OK;
}

/* Whether any policy may hold optimizer state in spare slots. */
static int fills_slots(const balance *x)
{
    for (int i = 0; i < x->n; i++)
        if (x->of[i].planner->plan_transient == NULL)
            return 1;
    return 0;
}

static void on_plan(void *context, int layer, int run, const ek_plan_limits *l,
                    const int64_t *counts, const ek_plan *p)
{
    balance *x = context;

    (void)layer;
    (void)l;
    (void)counts;
    if (run >= 0)
        memcpy(x->reason, p->reason, sizeof(x->reason));
}

static ek_status open_trainer(const bench *b, balance *x)
{
    int64_t micros = ek_batch_micros(b->cfg->batch, b->cfg->micro_batch);
    ek_trainer_config cfg = {.batch = b->cfg->batch,
                             .seq = b->cfg->seq,
                             .micro_batch = b->cfg->micro_batch,
                             .aux_coef = 0.01,
                             .moe = {.degree = 1,
                                     .a2a = b->cfg->a2a,
                                     .replay = &x->trace,
                                     .planner = &ek_planner_off,
                                     .others = x->others,
                                     .replica_sets = EK_REPLICA_SETS_EACH,
                                     .plan_every = INT64_MAX,
                                     .horizon = b->cfg->plan_every * micros,
                                     .replicas_min = 1},
                             .optimizer = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .clip = 1}};
    ek_model_config mc = {.trained = 1,
                          .mesh = x->on.mesh,
                          .spare_slots = b->cfg->spare_slots,
                          .persistent_slots = fills_slots(x)};
    int64_t n;

    EK_TRY(bench_layer_costs(b, x->on.mesh, &cfg.moe.costs));
    if (b->job->rank == 0)
        cfg.moe.listener = (ek_moe_plan_listener){on_plan, x};
    cfg.exec.inline_async = bench_inline_async(b);
    EK_TRY(ek_model_create(&b->spec, b->k, &mc, &x->model));
    EK_TRY(ek_model_init(x->model, 0));
    EK_TRY(ek_model_pack(x->model));
    EK_TRY(ek_trainer_create(x->model, &cfg, &x->trainer));
    n = ek_trainer_sequences(x->trainer) * b->cfg->seq;
    bench_fill_tokens(b->spec.vocab, (uint64_t)b->job->rank, n, ek_trainer_inputs(x->trainer));
    bench_fill_tokens(b->spec.vocab, (uint64_t)b->job->rank, n, ek_trainer_targets(x->trainer));
    return EK_OK;
}

/* Allocates placements: block order, and one per policy with persistent placement. */
static ek_plan *take_plans(const bench *b, balance *x)
{
    ek_plan *plans = ek_arena_alloc(&x->arena, b->spec.layers, sizeof(*plans)), measured;

    for (int64_t l = 0; l < b->spec.layers; l++)
        ek_plan_reserve(plans != NULL ? &plans[l] : &measured, &x->arena,
                        &ek_trainer_pass(x->trainer)->planning.limits);
    return plans;
}

static void take_placements(const bench *b, balance *x)
{
    x->block = take_plans(b, x);
    for (int i = 0; i < x->n; i++)
        if (x->of[i].planner->plan_persistent != NULL)
            x->of[i].placements = take_plans(b, x);
}

static void copy_placements(const bench *b, const balance *x, ek_plan *plans)
{
    for (int64_t l = 0; l < b->spec.layers; l++)
        if (!b->spec.dense[l])
            ek_rebalance_placement(&ek_trainer_pass(x->trainer)->rebalance, l, &plans[l]);
}

static ek_status balance_open(const bench *b, balance *x)
{
    size_t bytes;

    EK_TRY(read_policies(b, x));
    EK_TRY(read_loads(b, x));
    EK_TRY(bench_open_mesh(b, &x->on));
    EK_REQUIRE(x->on.mesh->ep > 1, EK_EINVAL,
               "bench balance needs expert parallelism: --ep 2 or more");
    EK_REQUIRE(ek_model_moe_layers(&b->spec) > 0, EK_EINVAL,
               "this model has no layer with experts");
    EK_TRY(ek_replicas_check(x->on.mesh, b->cfg->spare_slots));
    EK_TRY(open_trainer(b, x));
    ek_arena_measure(&x->arena);
    take_placements(b, x);
    bytes = x->arena.used;
    EK_TRY(ek_arena_init(&x->arena, bytes, "placements"));
    take_placements(b, x);
    if (x->block != NULL)
        copy_placements(b, x, x->block);
    return ek_arena_check(&x->arena, "placements");
}

static void balance_close(balance *x)
{
    for (int i = 0; i <= x->n; i++)
        free(x->of[i].of);
    free(x->step_ns);
    free(x->step_names);
    ek_arena_fini(&x->arena);
    ek_trainer_destroy(&x->trainer);
    ek_model_destroy(&x->model);
    bench_close_mesh(&x->on);
    free(x->trace.own);
}

/* --- measuring -------------------------------------------------------------------------------- */

/* Seconds of the slowest rank since `start`. */
static ek_status since(const bench *b, int64_t start, double *s)
{
    *s = (double)(ek_clock_ns() - start) * 1e-9;
    return bench_agree(b, s, 1, EK_MAX_F64);
}

/* Moves experts to a placement. */
static ek_status move_to(const bench *b, balance *x, const ek_plan *plans, int64_t *moved,
                         double *s)
{
    int64_t start;

    EK_TRY(ek_comm_barrier(b->job->world));
    start = ek_clock_ns();
    EK_TRY(ek_trainer_place(x->trainer, plans, moved));
    return since(b, start, s);
}

/* Installs the placement of a policy, which then uses all slots. */
static ek_status enter(const bench *b, balance *x, policy *p)
{
    int64_t moved;
    double s;

    if (x->there != NULL && x->there != p)
        EK_TRY(move_to(b, x, x->block, &moved, &s));
    EK_TRY(ek_trainer_set_planner(x->trainer, p->planner));
    if (p->placements == NULL || x->there == p) {
        x->there = p->placements != NULL ? p : NULL;
        return EK_OK;
    }
    EK_TRY(move_to(b, x, p->placements, &p->moved, &s));
    bench_add(&p->migrate_s_per_expert, s);
    x->there = p;
    return EK_OK;
}

static ek_status run_step(const bench *b, balance *x, policy *p, int64_t iteration, sample *out)
{
    ek_step_result r;
    int64_t start;
    double s, sent;

    EK_TRY(enter(b, x, p));
    x->reason[0] = '\0';
    ek_trainer_resume(x->trainer, p->even ? x->trace.iterations - 1 : iteration);
    EK_TRY(ek_comm_barrier(b->job->world));
    start = ek_clock_ns();
    if (out != NULL) {
        x->step_names[x->n_steps] = p->name;
        x->step_ns[x->n_steps++] = start;
    }
    ek_trainer_record(x->trainer, out != NULL && b->cfg->timeline != NULL);
    EK_TRY(ek_trainer_step(x->trainer, &r));
    ek_trainer_record(x->trainer, 0); /* not the experts that move to the next placement */
    EK_TRY(since(b, start, &s));
    EK_TRY(bench_check_planner(ek_trainer_pass(x->trainer), p->name));
    sent = (double)r.comm_bytes;
    EK_TRY(bench_agree(b, &sent, 1, EK_SUM_F64));
    if (out == NULL)
        return EK_OK;
    *out = (sample){.ms = s * 1e3,
                    .loss = r.losses.loss,
                    .before = r.losses.primaries.max_over_mean,
                    .after = r.losses.ranks.max_over_mean,
                    .plan_ms = r.losses.plan_s * 1e3,
                    .replicas = (double)r.losses.replicas,
                    .replica_mb = r.losses.replica_bytes * 1e-6,
                    .wait_ms = r.losses.replica_wait_s * 1e3,
                    .sent_mb = sent * 1e-6};
    memcpy(out->reason, x->reason, sizeof(out->reason));
    return EK_OK;
}

/* The placements of a policy after the past. */
static ek_status place_by_past(const bench *b, balance *x, policy *p)
{
    const ek_mesh *mesh = x->on.mesh;
    int64_t micro = b->cfg->micro_batch > 0 ? b->cfg->micro_batch : b->cfg->batch;
    bench_past past = {.spec = &b->spec,
                       .limits = &ek_trainer_pass(x->trainer)->planning.limits,
                       .trace = &x->trace,
                       .steps = b->cfg->past,
                       .plan_every = b->cfg->plan_every,
                       .tokens = micro * b->cfg->seq / ((int64_t)mesh->edp * mesh->ep)};

    copy_placements(b, x, p->placements);
    EK_TRY(bench_place_by_past(&past, p->planner, p->placements, &p->past_moved));
    for (int64_t l = 0; l < b->spec.layers; l++)
        if (!b->spec.dense[l])
            memcpy(p->reason, p->placements[l].reason, sizeof(p->reason));
    return EK_OK;
}

/* Policies that plan from previous counts get those of the last past iteration. */
static ek_status warm_up(const bench *b, balance *x)
{
    policy plain = {.name = "off", .planner = &ek_planner_off};
    int64_t last = b->cfg->past - 1;

    EK_TRY(run_step(b, x, &plain, last, NULL));
    for (int i = 0; i < x->n; i++)
        if (x->of[i].placements != NULL)
            EK_TRY(place_by_past(b, x, &x->of[i]));
    for (int i = 0; i < x->n; i++) {
        const ek_planner *p = x->of[i].planner;

        if (p->uses_previous_counts || p->may_use_previous_counts)
            EK_TRY(run_step(b, x, &x->of[i], last, NULL));
        else if (x->of[i].placements != NULL)
            EK_TRY(enter(b, x, &x->of[i]));
    }
    return run_step(b, x, even_of(x), 0, NULL);
}

static ek_status measure(const bench *b, balance *x)
{
    int64_t past = b->cfg->past, others = x->trace.iterations - 1 - past; /* without the even one */

    EK_TRY(warm_up(b, x));
    for (int64_t round = 0; round < b->cfg->steps; round++)
        for (int64_t i = 0; i <= x->n;
             i++) { /* back and forth, each time starting at another policy */
            int64_t at = (round % 2 == 0 ? i : x->n - i) + round;
            policy *p = &x->of[at % (x->n + 1)];
            int64_t iteration = others > 0 ? past + round % others : past - 1;

            EK_TRY(run_step(b, x, p, iteration, &p->of[round]));
        }
    return EK_OK;
}

/* The file of a rank: of rank 0 as named, of rank 1 "a-rank1.json" for "a.json", ... */
static ek_status timeline_path(const char *named, int rank, ek_path *path)
{
    const char *name = strrchr(named, '/');
    const char *end = strrchr(name != NULL ? name : named, '.');
    int stem = (int)(end != NULL ? end - named : (ptrdiff_t)strlen(named));

    if (rank == 0)
        return ek_path_set(path, "%s", named);
    return ek_path_set(path, "%.*s-rank%d%s", stem, named, rank, named + stem);
}

static ek_status write_timeline(const bench *b, const balance *x)
{
    const ek_timeline_rank who = {.rank = b->job->rank,
                                  .ranks = x->on.ranks,
                                  .origin_ns = x->step_ns[0],
                                  .step_ns = x->step_ns,
                                  .step_names = x->step_names,
                                  .n_steps = x->n_steps};
    const ek_event *events;
    ek_path path;
    int64_t n;

    if (b->cfg->timeline == NULL)
        return EK_OK;
    events = ek_exec_events(ek_trainer_exec(x->trainer), &n);
    EK_TRY(timeline_path(b->cfg->timeline, b->job->rank, &path));
    return ek_timeline_write(events, n, &who, path.s);
}

/* --- printing --------------------------------------------------------------------------------- */

static double median_ms(const bench *b, const policy *p)
{
    bench_samples s = {0};

    for (int64_t i = 0; i < b->cfg->steps; i++)
        bench_add(&s, p->of[i].ms);
    return bench_stat_of(&s).median;
}

/* Median over the rounds of (time with even loads) / (time of the policy). */
static bench_stat against_even(const bench *b, balance *x, const policy *p)
{
    double even = median_ms(b, even_of(x));
    bench_samples s = {0};

    for (int64_t i = 0; i < b->cfg->steps; i++)
        bench_add(&s, even / p->of[i].ms);
    return bench_stat_of(&s);
}

static double mean_of(const bench *b, const policy *p, size_t field)
{
    double sum = 0;

    for (int64_t i = 0; i < b->cfg->steps; i++)
        sum += *(const double *)((const char *)&p->of[i] + field);
    return sum / (double)b->cfg->steps;
}

static void put_policy(bench *b, balance *x, const policy *p, json_t *all)
{
    static const struct {
        size_t field;
        double scale;
        const char *unit;
    } means[] = {{offsetof(sample, replica_mb), 1e6, "B"},
                 {offsetof(sample, sent_mb), 1e6, "B"},
                 {offsetof(sample, plan_ms), 1e-3, "s"},
                 {offsetof(sample, wait_ms), 1e-3, "s"}};
    char text[EK_COST_QUANTITY];
    json_t *rounds = json_array(), *row;
    bench_stat r = against_even(b, x, p), moves = bench_stat_of(&p->migrate_s_per_expert);

    for (int64_t i = 0; i < b->cfg->steps; i++) {
        const sample *s = &p->of[i];

        bench_append(b, rounds,
                     json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:s}", "ms", s->ms,
                               "loss", s->loss, "before", s->before, "after", s->after, "plan_ms",
                               s->plan_ms, "replicas", s->replicas, "replica_mb", s->replica_mb,
                               "wait_ms", s->wait_ms, "sent_mb", s->sent_mb, "reason", s->reason));
    }
    row = json_pack("{s:s, s:I, s:f, s:I, s:s, s:o}", "policy", p->name, "moved",
                    (json_int_t)p->moved, "move_ms", p->moved > 0 ? moves.median * 1e3 : 0.0,
                    "past_moved", (json_int_t)p->past_moved, "reason", p->reason, "rounds", rounds);
    bench_append(b, all, row);
    bench_say(b, "%-13s %8s  %5.3f (%5.3f .. %5.3f) %6.3f %6.3f", p->name,
              ek_cost_quantity(text, median_ms(b, p) * 1e-3, "s"), r.median, r.min, r.max,
              mean_of(b, p, offsetof(sample, before)), mean_of(b, p, offsetof(sample, after)));
    for (size_t i = 0; i < sizeof(means) / sizeof(means[0]); i++)
        bench_say(
            b, " %8s",
            ek_cost_quantity(text, mean_of(b, p, means[i].field) * means[i].scale, means[i].unit));
    if (p->moved > 0)
        bench_say(b, "  %lld experts move, %s", (long long)p->moved,
                  ek_cost_quantity(text, moves.median, "s"));
    if (p->past_moved > 0)
        bench_say(b, "; %lld in %lld past steps", (long long)p->past_moved,
                  (long long)b->cfg->past);
    bench_say(b, "\n");
}

static void put(bench *b, balance *x, double cpu_s)
{
    json_t *all = json_array();

    bench_say(b,
              "%lld x %lld tokens a step, %d ranks on %d node%s, ep %d; %d spare slot%s a rank; "
              "%lld rounds\n\n",
              (long long)b->cfg->batch, (long long)b->cfg->seq, x->on.ranks, x->on.nodes,
              x->on.nodes > 1 ? "s" : "", x->on.mesh->ep, b->cfg->spare_slots,
              b->cfg->spare_slots != 1 ? "s" : "", (long long)b->cfg->steps);
    bench_say(b, "%-13s %8s  %22s %6s %6s %8s %8s %8s %8s\n", "", "step", "of even (min .. max)",
              "before", "after", "replica", "sent", "plan", "wait");
    bench_say(b, "%-13s %8s  %22s %6s %6s\n", "", "", "", "max/", "mean");
    for (int i = 0; i <= x->n; i++)
        put_policy(b, x, &x->of[i], all);
    bench_say(b,
              "\nof even: a step of force-balance (even loads) over one of the policy, by medians\n"
              "max/mean: rows of the busiest rank over the mean, without and with the plan\n"
              "wait: for replicas; moves of experts are not in a step\n");
    bench_put(b, "ranks", json_integer(x->on.ranks));
    bench_put(b, "nodes", json_integer(x->on.nodes));
    bench_put(b, "past", json_integer(b->cfg->past));
    bench_put(b, "tokens", json_integer(b->cfg->batch * b->cfg->seq));
    bench_put(b, "cpu_s", json_real(cpu_s));
    bench_put(b, "costs", bench_costs_json(&ek_trainer_pass(x->trainer)->cfg.moe.costs));
    bench_put(b, "policies", all);
}

/* CPU seconds of all ranks so far. */
static ek_status cpu_seconds(const bench *b, double *s)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    *s = (double)u.ru_utime.tv_sec + 1e-6 * (double)u.ru_utime.tv_usec;
    return bench_agree(b, s, 1, EK_SUM_F64);
}

ek_status bench_balance(bench *b)
{
    balance *x = calloc(1, sizeof(*x));
    ek_status st = EK_OK;
    double cpu_s;

    EK_REQUIRE(x != NULL, EK_ENOMEM, "no memory for a benchmark");
    bench_show_warnings(b);
    EK_TRY_OUT(balance_open(b, x));
    EK_TRY_OUT(measure(b, x));
    EK_TRY_OUT(cpu_seconds(b, &cpu_s));
    if (b->job->rank == 0)
        put(b, x, cpu_s);
    b->late = write_timeline(b, x);
out:
    balance_close(x);
    free(x);
    return st;
}
