/* Settings of a run's balance. */
#include "train/run/balance.h"

#include "base/log.h"
#include "base/option_value.h"
#include "comm/agree.h"
#include "moe/replica_weights.h"
#include "train/batch.h"
#include "train/calibrate/calibrate.h"
#include "train/run/copies.h"
#include "train/run/explain.h"
#include "train/timing/layer_costs.h"

#include <stdlib.h>
#include <string.h>

/* --adaptive-r as a number; -1: auto. */
static ek_status read_r(const char *text, int etp, int *r)
{
    char *end;
    long n;

    *r = strcmp(text, "auto") == 0 ? -1 : etp;
    if (*r < 0 || strcmp(text, "etp") == 0)
        return EK_OK;
    n = strtol(text, &end, 10);
    EK_REQUIRE(end != text && *end == '\0' && n >= 0 && n <= etp && (n == 0 || etp % n == 0),
               EK_EINVAL, "--adaptive-r %s is not 0, a divisor of --etp %d, etp or auto", text,
               etp);
    *r = (int)n;
    return EK_OK;
}

/* Checks options that require r = etp; with r = 0 there are no rows to balance. */
static ek_status check_r(ek_run *r)
{
    const ek_train_config *c = r->cfg;
    ek_moe_config *m = &r->training.moe;
    int etp = c->etp > 1 ? c->etp : 1;

    EK_TRY(read_r(c->adaptive_r, etp, &r->options.adaptive_r));
    if (r->options.adaptive_r == etp || (r->options.sizes.ep <= 1 && etp == 1))
        return EK_OK;
    EK_REQUIRE(r->options.adaptive_r >= 0 || c->smart_group == 0, EK_EINVAL,
               "--smart-groups %d: its steps are not tuned, so --adaptive-r cannot be auto",
               c->smart_group);
    if (r->options.adaptive_r > 0 || m->planner == NULL)
        return EK_OK;
    if (r->options.adaptive_r == 0 && m->planner != &ek_planner_auto && r->rank == 0)
        ek_log("balance", EK_LOG_WARN,
               "--balance %s does nothing: with --adaptive-r 0 rows stay where they are",
               m->planner->name);
    m->planner = r->options.adaptive_r == 0 ? NULL : m->planner;
    return EK_OK;
}

/* Racks consist of whole hosts.  With one rack hosts are the failure domains. */
static void find_racks(ek_run *r)
{
    const int *rack_of = r->cfg->rack_of;
    int several = 0;

    for (int i = 1; i < r->ranks && rack_of != NULL; i++) {
        several |= rack_of[i] != rack_of[0];
        for (int j = 0; j < i; j++)
            if (rack_of[i] != rack_of[j] &&
                ek_comm_node(r->world, i) == ek_comm_node(r->world, j)) {
                if (r->rank == 0)
                    ek_log(
                        "balance", EK_LOG_WARN,
                        "racks are ignored: ranks %d and %d are both on %s, but in different racks",
                        j, i, ek_comm_host(r->world, i));
                return;
            }
    }
    r->options.rack_of = several ? rack_of : NULL;
}

/* Experts whose weights are on disk come into memory in a fixed order, with chunks of rows in turn.
 * Each takes all experts, so more chunks than one are not tried where they were not asked for. */
static ek_status check_offload(ek_run *r)
{
    const ek_train_config *c = r->cfg;
    ek_moe_config *m = &r->training.moe;
    int etp = c->etp > 1 ? c->etp : 1;

    EK_REQUIRE(strcmp(c->offload, "experts") == 0 || strcmp(c->offload, "off") == 0, EK_EINVAL,
               "--offload %s is not experts or off", c->offload);
    EK_REQUIRE(ek_option_choice_index("auto|memory|disk", c->offload_gradients) >= 0, EK_EINVAL,
               "--offload-gradients %s is not auto, memory or disk", c->offload_gradients);
    if (strcmp(c->offload, "off") == 0)
        return EK_OK;
    EK_REQUIRE(!c->elastic, EK_EINVAL,
               "--offload experts: the scratch file ends with its process, so it does not go with "
               "--elastic");
    EK_REQUIRE(
        m->planner == NULL || c->ep <= 1 || !ek_planner_fills_slots(m->planner), EK_EINVAL,
        "--offload experts keeps experts where their state is, and --balance %s%s moves them: %s",
        c->balance, r->options.replicas_min > 1 ? " with --replicas-min" : "",
        m->planner == &ek_planner_auto_replicas ? "leave out --replicas-min"
                                                : "give --balance auto, exact or off");
    EK_REQUIRE(m->planner == NULL || c->ep <= 1 || !m->planner->uses_previous_counts, EK_EINVAL,
               "--offload experts reads weights as the layer needs them, and --balance %s sends "
               "them before: give --balance auto, exact or off",
               c->balance);
    EK_REQUIRE(
        r->options.adaptive_r == etp, EK_EINVAL,
        "--offload experts needs --adaptive-r etp, as weights of other ranks are not gathered");
    r->training.tune_degree = 0;
    return EK_OK;
}

ek_status ek_run_read_balance(ek_run *r)
{
    const ek_train_config *c = r->cfg;
    const ek_planner *p = ek_planner_find(c->balance);

    EK_REQUIRE(p != NULL, EK_EINVAL, "no balance policy %s", c->balance);
    EK_REQUIRE(c->replicas_min >= 0, EK_EINVAL, "replicas on %d hosts", c->replicas_min);
    r->options.replicas_min = c->replicas_min > 0 ? c->replicas_min : 1;
    r->options.spare_slots = c->spare_slots >= 0 ? c->spare_slots : 1;
    p = ek_planner_for(p, r->options.replicas_min);
    r->training.moe.planner = p != &ek_planner_off ? p : NULL;
    EK_REQUIRE(ek_option_choice_index("speed|survival", c->prefer) >= 0, EK_EINVAL,
               "--prefer %s is not speed or survival", c->prefer);
    r->training.moe.replicas_min = r->options.replicas_min;
    r->training.moe.prefer_survival = ek_option_choice_index("speed|survival", c->prefer);
    EK_REQUIRE(ek_option_choice_index("measured|equal", c->rank_speeds) >= 0, EK_EINVAL,
               "--rank-speeds %s is not measured or equal", c->rank_speeds);
    r->training.moe.follow_speeds = strcmp(c->rank_speeds, "measured") == 0;
    r->training.moe.plan_every = c->plan_every;
    r->training.moe.replica_sets = strcmp(c->offload, "experts") == 0 ? 1 : EK_REPLICA_SETS_EACH;
    find_racks(r);
    EK_TRY(check_r(r));
    EK_TRY(check_offload(r));
    EK_REQUIRE(
        !c->record_plans || (r->training.moe.planner != NULL && r->options.sizes.ep > 1), EK_EINVAL,
        "--record-plans: there are no plans with --balance off, --ep 1 or --adaptive-r 0; leave it "
        "out (or, with --resume, give --record-plans=false)");
    return EK_OK;
}

static int is_balanced(const ek_run *r)
{
    return r->training.moe.planner != NULL && r->mesh != NULL && r->mesh->ep > 1;
}

ek_status ek_run_set_costs(ek_run *r)
{
    const ek_trainer_config *t = &r->training;
    const ek_model_spec *spec = &r->source.spec;
    int64_t top_k = t->top_k > 0 ? t->top_k : spec->top_k;
    ek_cost_reason reason = {0};
    char line[256];

    if (r->costs.machine == NULL)
        return EK_OK;
    EK_TRY(ek_layer_costs(r->costs.machine, spec, r->mesh, (double)(t->micro_batch * t->seq), top_k,
                          ek_moe_replica_sets(&t->moe) != EK_REPLICA_SETS_EACH,
                          &r->training.moe.costs, &reason));
    EK_TRY(ek_layer_group_rows(r->costs.machine, spec, r->mesh, &r->training.moe.group_rows));
    for (int i = 0; i < reason.n && r->rank == 0; i++)
        ek_log("balance", EK_LOG_DEBUG, "%s",
               ek_cost_line_text(&reason.line[i], line, sizeof(line)));
    return EK_OK;
}

/* Whether one host alone may have a part of the dense weights, whose copies are weighed. */
static int may_need_partners(const ek_run *r)
{
    return r->cfg->elastic && r->mesh->pp * r->mesh->tp > 1 && ek_run_count_hosts(r) > 1;
}

ek_status ek_run_calibrate(ek_run *r)
{
    const ek_trainer_config *t = &r->training;
    ek_calibrate_config c = {.spec = &r->source.spec,
                             .k = r->kernels,
                             .cache = r->cfg->cache,
                             .anew = r->cfg->recalibrate};
    int64_t micros = ek_batch_micros(t->batch, t->micro_batch);
    ek_path last;
    int considers;
    ek_status st = EK_OK;

    if (!is_balanced(r))
        return EK_OK;
    r->training.moe.horizon = r->cfg->plan_every * micros;
    r->training.moe.batches = micros;
    if (r->cfg->dry_run) /* costs do not affect memory */
        return EK_OK;
    r->costs.machine = calloc(1, sizeof(*r->costs.machine));
    r->costs.layers = calloc((size_t)r->source.spec.layers, sizeof(*r->costs.layers));
    EK_TRY(ek_agree(r->world, "get memory for costs",
                    r->costs.machine != NULL && r->costs.layers != NULL
                        ? EK_OK
                        : EK_FAIL(EK_ENOMEM, "no memory for costs")));
    if (r->cfg->elastic) {
        st = r->mesh->pp_rank == 0
                 ? ek_path_set(&last, "%s/machine.json", r->cfg->out)
                 : ek_path_set(&last, "%s/machine-stage%d.json", r->cfg->out, r->mesh->pp_rank);
        c.last = last.s;
        c.hurry = r->memory.step >= 0;
        EK_TRY(ek_run_considers_copies(r, &considers));
        if ((considers && ek_layer_nodes(r->mesh) > 1) || may_need_partners(r))
            c.training_rows = ek_run_expert_rows(r);
        c.training_seq = t->seq;
    }
    c.world = r->mesh->stage;
    c.experts = (r->source.spec.experts + r->mesh->ep - 1) / r->mesh->ep;
    if (st == EK_OK) /* the same on all ranks of a stage */
        st = ek_calibrate(&c, r->costs.machine, NULL);
    return ek_agree(r->world, "measure costs", st);
}

/* Number of failure domains of an expert-parallel group. */
static int32_t count_domains(const ek_run *r)
{
    const int *domain_of = r->training.moe.domain_of;
    int32_t n = 0, ranks = r->mesh->ep * r->mesh->etp;

    if (domain_of == NULL)
        return ek_layer_nodes(r->mesh);
    for (int32_t i = 0; i < ranks; i++) {
        int32_t same = 0;

        while (domain_of[same] != domain_of[i])
            same++;
        n += same == i;
    }
    return n;
}

/* What ek_planner_copies needs. */
static ek_plan_limits limits_of_copies(const ek_run *r)
{
    int32_t experts = (int32_t)r->source.spec.experts, ranks = r->mesh->ep;

    return (ek_plan_limits){.experts = experts,
                            .ranks = ranks,
                            .slots = (experts + ranks - 1) / ranks + r->options.spare_slots,
                            .replicas_min = r->options.replicas_min};
}

int32_t ek_run_copies(const ek_run *r)
{
    const ek_planner *p = r->training.moe.planner;
    ek_plan_limits l;

    if (p == NULL || r->mesh == NULL || r->mesh->ep == 1 || r->options.replicas_min == 1 ||
        !p->enforces_replicas_min)
        return 1;
    l = limits_of_copies(r);
    return ek_planner_copies(&l, count_domains(r));
}

/* Checks --replicas-min, and warns of what slots do not allow. */
static ek_status check_hosts(const ek_run *r)
{
    const ek_planner *p = r->training.moe.planner;
    int32_t want = r->options.replicas_min;
    ek_plan_limits l = limits_of_copies(r);

    if (want == 1)
        return EK_OK;
    EK_REQUIRE(!p->enforces_replicas_min || r->cfg->plan_every > 0, EK_EINVAL,
               "--replicas-min %d: with --plan-every 0 no replicas are placed", want);
    if (r->rank != 0 || !ek_run_is_executed(r))
        return EK_OK;
    ek_planner_warn_of_copies(p, &l, count_domains(r), "--balance",
                              r->options.rack_of != NULL ? "rack" : "host");
    if (p == &ek_planner_auto_replicas)
        ek_log("balance", EK_LOG_INFO,
               "--replicas-min %d: auto makes persistent replicas, as replicate does, %s", want,
               ek_moe_transient_slots(&r->training.moe, &r->source.spec, r->mesh,
                                      r->options.spare_slots) > 0
                   ? "and transient ones in the last slot of each rank"
                   : "and no transient ones, as no slot is left: give more --spare-slots");
    return EK_OK;
}

void ek_run_set_slots(const ek_run *r, ek_model_config *mc)
{
    const ek_planner *p = r->training.moe.planner;

    if (p == NULL)
        return;
    mc->spare_slots = r->options.spare_slots;
    mc->persistent_slots = ek_planner_fills_slots(p);
    mc->transient_slots = 0;
    if (p->plan_transient != NULL && mc->persistent_slots)
        mc->transient_slots =
            ek_moe_transient_slots(&r->training.moe, &r->source.spec, r->mesh, mc->spare_slots);
}

/* Why experts stay where they are: text [cap]. */
static const char *why_kept(const ek_run *r, char *text, size_t cap)
{
    if (ek_run_has_partners(&r->partners))
        return "some ranks have a copy of all that they keep on another host";
    snprintf(text, cap,
             "with --zero %d the shards of their state are on %d ranks each and, where these are "
             "on several hosts, their partners",
             r->cfg->zero, r->mesh->edp);
    return text;
}

int ek_run_keep_primaries(ek_run *r)
{
    ek_moe_config *moe = &r->training.moe;
    int copied = (r->cfg->elastic && r->cfg->zero > 0 && r->mesh->edp > 1) ||
                 ek_run_has_partners(&r->partners);
    int moves = moe->planner->plan_persistent != NULL &&
                (moe->planner->plan_transient == NULL || ek_planner_fills_slots(moe->planner));

    if (!copied && strcmp(r->cfg->offload, "experts") != 0)
        return 0;
    moe->plan_every = moe->horizon = 0;
    if (!copied || !moves)
        return 0;
    moe->planner = &ek_planner_auto;
    moe->replicas_min = r->options.replicas_min = 1;
    return 1;
}

/* The same; says what it changes. */
static void keep_primaries(ek_run *r)
{
    const char *with = r->options.replicas_min > 1 ? " with --replicas-min" : "";
    char why[256];

    if (ek_run_keep_primaries(r) && r->rank == 0 && ek_run_is_executed(r))
        ek_log("balance", EK_LOG_WARN,
               "--balance auto makes transient replicas in place of --balance %s%s: with --elastic "
               "experts stay where they are, as %s",
               r->cfg->balance, with, why_kept(r, why, sizeof(why)));
}

ek_status ek_run_set_balance(ek_run *r, ek_model_config *mc)
{
    if (!is_balanced(r))
        r->training.moe.planner = NULL;
    if (r->training.moe.planner == NULL)
        return EK_OK;
    keep_primaries(r);
    if (r->cfg->record_plans && r->mesh->at == 0)
        EK_TRY(ek_plan_record_listener(&r->records.plans, r->source.spec.layers,
                                       &r->training.moe.listener));
    if (r->options.rack_of != NULL)
        r->training.moe.domain_of = r->options.rack_of + r->mesh->pp_rank * r->mesh->stage_size;
    EK_TRY(ek_run_keep_all_slots(r));
    EK_TRY(check_hosts(r));
    ek_run_set_slots(r, mc);
    EK_TRY(ek_replicas_check(r->mesh, r->options.spare_slots));
    return EK_OK;
}

ek_status ek_run_set_slices(ek_run *r, ek_model_config *mc)
{
    ek_moe_config *c = &r->training.moe;
    int etp = r->mesh != NULL ? r->mesh->etp : 1, ep = r->mesh != NULL ? r->mesh->ep : 1;
    int want = r->options.adaptive_r;
    int fills = c->planner != NULL && ek_planner_fills_slots(c->planner);
    int64_t experts = r->source.spec.experts, spare = experts - (experts + ep - 1) / ep;

    if (want == etp || r->mesh == NULL || !ek_mesh_distributes_experts(r->mesh))
        return EK_OK;
    if (want < 0 && fills && r->rank == 0)
        ek_log("balance", EK_LOG_INFO,
               "--adaptive-r auto: 0 is not tried, as --balance %s keeps state in spare slots",
               c->planner->name);
    EK_REQUIRE(experts * etp <= EK_COMM_TAGS / 8, EK_EINVAL,
               "--adaptive-r %s of %lld experts with --etp %d needs more than %d messages at once; "
               "use --adaptive-r etp",
               r->cfg->adaptive_r, (long long)experts, etp, EK_COMM_TAGS / 8);
    c->gather = want < 0 ? 1 : want == 0 ? EK_GATHER_ALL : etp / want;
    c->gather_most = want >= 0 ? 0 : fills ? etp : EK_GATHER_ALL;
    r->training.tune_gather = want < 0;
    if (want > 0 || fills || mc->spare_slots >= spare)
        return EK_OK;
    if (c->planner != NULL && r->rank == 0)
        ek_log("balance", EK_LOG_INFO,
               "--adaptive-r %s: each rank has %lld spare slots, so that all experts fit; %s may "
               "use them, too",
               r->cfg->adaptive_r, (long long)spare, c->planner->name);
    mc->spare_slots = (int32_t)spare;
    return EK_OK;
}

static void add_mean(double *mean, double x, int64_t n)
{
    *mean += (x - *mean) / (double)n;
}

void ek_run_add_balance(ek_run *r, int64_t n, double step_s)
{
    const ek_losses *l = &r->progress.last.losses;
    ek_train_balance *b = &r->out->balance;

    if (!is_balanced(r))
        return;
    b->policy = r->training.moe.planner->name;
    add_mean(&b->before, l->primaries.max_over_mean, n);
    add_mean(&b->after, l->ranks.max_over_mean, n);
    add_mean(&b->deviation_before, l->primaries.deviation, n);
    add_mean(&b->deviation_after, l->ranks.deviation, n);
    add_mean(&b->replicas, (double)l->replicas, n);
    add_mean(&b->replicas_ahead, (double)l->replicas_ahead, n);
    add_mean(&b->replica_bytes, l->replica_bytes, n);
    add_mean(&b->experts_moved, (double)l->experts_moved, n);
    add_mean(&b->plan_s, l->plan_s, n);
    add_mean(&b->waited_s, l->replica_wait_s, n);
    add_mean(&b->step_s, step_s, n);
    add_mean(&b->saved_s, l->saved_s - l->plan_s / r->mesh->pp - l->replica_wait_s, n);
    add_mean(&b->slowest_rank, 1 / l->slowest_rank, n);
    ek_run_add_layers(r);
}
