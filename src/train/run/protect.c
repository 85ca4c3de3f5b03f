/* Protection of experts against the loss of their host: what it takes and costs, and a warning
 * where there is none. */
#include "base/count_text.h"
#include "base/log.h"
#include "comm/agree.h"
#include "moe/replica_weights.h"
#include "train/run/balance.h"
#include "train/run/copies.h"
#include "train/run/partners.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { TEXT_CAP = 512, LONGER_CAP = 160, COPIES = 2, IMPOSSIBLE = INT32_MAX };

/* Whether this generation goes on from memory of several hosts: then an earlier one has warned. */
static int was_on_several_hosts(const ek_run *r)
{
    const ek_recovery *found = &r->memory.recovery;

    for (int32_t i = 1; i < found->n_survivors && r->memory.step >= 0; i++)
        if (found->survivors[i].host != found->survivors[0].host)
            return 1;
    return 0;
}

/* --- what it takes ---------------------------------------------------------------------------- */

/* Racks if there are several, else hosts. */
static int domain_of_rank(const ek_run *r, int racks, int rank)
{
    return racks ? r->options.rack_of[rank] : ek_comm_node(r->world, rank);
}

/* The first rank of place i of an expert-parallel group of this stage. */
static int rank_at(const ek_mesh *mesh, int group, int i)
{
    return mesh->pp_rank * mesh->stage_size + (group * mesh->ep + i) * mesh->etp;
}

/* Spare slots with which each expert of this stage's expert-parallel groups can be on so many
 * domains; IMPOSSIBLE: the ranks of a group are on fewer.  domain_of [ep]: scratch. */
static int32_t count_spare_slots(const ek_run *r, int racks, int32_t copies, int32_t *domain_of)
{
    const ek_mesh *mesh = r->mesh;
    int32_t most = 0;

    for (int group = 0; group < mesh->edp; group++) {
        int32_t n;

        for (int i = 0; i < mesh->ep; i++)
            domain_of[i] = domain_of_rank(r, racks, rank_at(mesh, group, i));
        n = ek_placement_spare_slots_for(domain_of, mesh->ep, (int32_t)r->source.spec.experts,
                                         copies);
        if (n < 0)
            return IMPOSSIBLE;
        most = n > most ? n : most;
    }
    return most;
}

/* The same for all stages; with too few racks, hosts count.  Collective. */
static ek_status find_spare_slots(const ek_run *r, int32_t copies, int32_t *spare)
{
    int32_t *domain_of = calloc((size_t)r->mesh->ep, sizeof(*domain_of));
    double most;
    ek_status st = EK_OK;

    EK_TRY_OUT(
        ek_agree(r->world, "count spare slots",
                 domain_of != NULL
                     ? EK_OK
                     : EK_FAIL(EK_ENOMEM, "no memory for the hosts of %d ranks", r->mesh->ep)));
    *spare = IMPOSSIBLE;
    if (r->options.rack_of != NULL)
        *spare = count_spare_slots(r, 1, copies, domain_of);
    if (*spare == IMPOSSIBLE)
        *spare = count_spare_slots(r, 0, copies, domain_of);
    most = (double)*spare;
    EK_TRY_OUT(ek_maximum(r->world, &most));
    *spare = (int32_t)most;
out:
    free(domain_of);
    return st;
}

/* --- what it costs ---------------------------------------------------------------------------- */

/* How experts are placed. */
typedef struct {
    const ek_planner *planner;
    int32_t copies, spare;
    int keep_all_slots; /* ek_plan_limits */
} protection;

static protection get_protection(const ek_run *r)
{
    return (protection){r->training.moe.planner, r->options.replicas_min, r->options.spare_slots,
                        r->training.moe.keep_all_slots};
}

/* Spare slots that persistent copies may use: without those of transient replicas. */
static int32_t persistent_spare(const ek_run *r, const protection *p)
{
    ek_moe_config moe = r->training.moe;
    int32_t transient;

    moe.planner = p->planner;
    moe.replicas_min = p->copies;
    moe.keep_all_slots = p->keep_all_slots;
    transient = ek_moe_transient_slots(&moe, &r->source.spec, r->mesh, p->spare);
    return p->spare - (transient > 0 ? transient : 0);
}

static void set_protection(ek_run *r, const protection *p)
{
    r->training.moe.planner = p->planner;
    r->training.moe.replicas_min = r->options.replicas_min = p->copies;
    r->options.spare_slots = p->spare;
    r->training.moe.keep_all_slots = p->keep_all_slots;
}

/* Whether persistent copies need the slots that could be left to transient replicas: hosts with
 * fewer ranks than others need more than the number of slots says. */
static int needs_all_slots(const ek_run *r, protection p, int32_t needed)
{
    p.keep_all_slots = 0;
    return needed != IMPOSSIBLE && persistent_spare(r, &p) < needed && p.spare >= needed;
}

/* Lays out the model for r's settings, without memory; the caller destroys it and the addresses. */
static ek_status lay_out_addresses(const ek_run *r, const ek_model_config *like,
                                   ek_state_addresses *state, ek_model **m, double *bytes)
{
    ek_model_config mc = *like;
    size_t activations;

    ek_state_addresses_init(state);
    mc.never_touched = 1;
    mc.state = &state->memory;
    mc.migrates = 1;
    ek_run_set_slots(r, &mc);
    EK_TRY(ek_model_create(&r->source.spec, r->kernels, &mc, m));
    EK_TRY(ek_trainer_measure(*m, &r->training, &activations));
    *bytes = (double)((*m)->arena.bytes + (*m)->state.bytes + activations);
    return EK_OK;
}

/* Bytes of a rank's weights, state and activations, of the rank with the most, and whether that
 * fits (1, else 0) on all.  like: the other settings of the model.  Collective. */
static ek_status measure_protection(ek_run *r, const ek_model_config *like, const protection *p,
                                    double *bytes, double *fits)
{
    protection before = get_protection(r);
    ek_model *model = r->model, *m = NULL;
    size_t predicted = r->out->info.predicted_bytes;
    int sets = r->training.moe.replica_sets;
    ek_state_addresses state = {0};
    ek_status st = EK_OK;

    set_protection(r, p);
    if (sets == EK_REPLICA_SETS_EACH) /* those of transient replicas may be fewer */
        r->training.moe.replica_sets = 2;
    EK_TRY_OUT(
        ek_agree(r->world, "measure replicas", lay_out_addresses(r, like, &state, &m, bytes)));
    r->model = m;
    r->out->info.predicted_bytes = (size_t)r->room.base_rss + (size_t)*bytes;
    EK_TRY_OUT(ek_run_fits_memory(r, fits));
    EK_TRY_OUT(ek_maximum(r->world, bytes));
out:
    r->training.moe.replica_sets = sets;
    r->model = model;
    r->out->info.predicted_bytes = predicted;
    set_protection(r, &before);
    ek_model_destroy(&m);
    ek_state_addresses_fini(&state);
    return st;
}

/* --- by default ------------------------------------------------------------------------------- */

/* Whether one host alone would hold some expert's rank in every expert-parallel group of this
 * stage. */
static int is_any_alone(const ek_run *r)
{
    for (int i = 0; i < r->mesh->ep; i++) {
        int several = 0;

        for (int group = 1; group < r->mesh->edp; group++)
            several |= ek_comm_node(r->world, rank_at(r->mesh, group, i)) !=
                       ek_comm_node(r->world, rank_at(r->mesh, 0, i));
        if (!several)
            return 1;
    }
    return 0;
}

/* Whether partners have the copies: experts are sharded over their ranks (--zero), or the loss of a
 * host would take all that some ranks keep. */
static int has_partner_copies(const ek_run *r)
{
    return (r->cfg->zero > 0 && r->mesh->edp > 1) || ek_run_has_partners(&r->partners);
}

/* Whether the loss of a host takes a part of the dense weights, as there are no copies of it: then
 * copies of experts help nothing. */
static int lacks_stage_copies(const ek_run *r)
{
    return r->partners.no_room > 0 || r->partners.costs.left_out;
}

/* Hosts that are to hold each expert; 1: the options leave nothing to choose.  The same on all
 * ranks. */
static int32_t copies_by_options(const ek_run *r)
{
    const ek_train_config *c = r->cfg;
    int32_t copies = c->replicas_min > 0 ? c->replicas_min : COPIES;
    const ek_planner *p = r->training.moe.planner;

    if (!c->elastic || r->mesh == NULL || r->mesh->ep == 1 || p == NULL || c->plan_every == 0 ||
        r->options.adaptive_r != r->mesh->etp || has_partner_copies(r) || lacks_stage_copies(r) ||
        (c->replicas_min == 0 ? p != &ek_planner_auto : c->spare_slots >= 0) ||
        !ek_planner_for(p, copies)->enforces_replicas_min)
        return 1;
    return copies;
}

/* The same, 1 also if no stage has experts that one host alone would hold.  Collective. */
static ek_status copies_to_choose(const ek_run *r, int32_t *copies)
{
    double none;

    *copies = copies_by_options(r);
    if (*copies == 1 || r->cfg->replicas_min > 0)
        return EK_OK;
    none = !is_any_alone(r);
    EK_TRY(ek_minimum(r->world, &none));
    if (none > 0)
        *copies = 1;
    return EK_OK;
}

ek_status ek_run_considers_copies(const ek_run *r, int *considers)
{
    int32_t copies;

    EK_TRY(copies_to_choose(r, &copies));
    *considers = copies > 1 && r->cfg->replicas_min == 0;
    return EK_OK;
}

/* " and steps that are predicted to take 2 % longer", and if copies were left out for that, what
 * losses are expected to cost without them; "" if that is not known; in a dry run the condition.
 * text [cap]. */
static const char *longer_text(const ek_run *r, char *text, size_t cap, double part)
{
    size_t n;

    if (r->cfg->dry_run && r->cfg->elastic == EK_ELASTIC_BY_DEFAULT && r->cfg->replicas_min == 0)
        return ", unless they are predicted to lengthen a step by more than 5 %, and by more than "
               "losses are expected to cost without them, which a dry run does not measure";
    n = (size_t)snprintf(text, cap, " and steps that are predicted to take %.*f %% longer",
                         part < 0.1, 100 * part);
    if (r->options.copies.left_out)
        snprintf(text + n, cap - n, EK_RUN_LOSSES_COST, ek_decimals(100 * r->options.copies.losses),
                 100 * r->options.copies.losses);
    return part >= 0 ? text : "";
}

/* Says what the default costs more than one copy. */
static ek_status tell_cost(ek_run *r, const ek_model_config *like, const protection *p,
                           double bytes, double part)
{
    const protection one = {&ek_planner_auto, 1, 1, 0};
    double less, fits;
    char memory[16], longer[LONGER_CAP];

    EK_TRY(measure_protection(r, like, &one, &less, &fits));
    if (r->rank == 0)
        ek_log(
            "elastic", EK_LOG_INFO,
            "every expert is on two hosts (--replicas-min %d --spare-slots %d), for %sB of memory "
            "more a rank than with --replicas-min 1 --spare-slots 1%s",
            (int)p->copies, (int)p->spare, ek_count_text(memory, sizeof(memory), bytes - less),
            longer_text(r, longer, sizeof(longer), part));
    return EK_OK;
}

/* Predicts what copies cost, and whether they are left out for that. */
static ek_status predict_costs(ek_run *r, int32_t copies, ek_copies_costs *out)
{
    double lengthen, step_s;

    EK_TRY(ek_run_predict_copies(r, copies, &lengthen, &step_s));
    EK_TRY(ek_run_weigh_copies(r, lengthen, step_s, out));
    if (r->cfg->replicas_min > 0) /* asked for */
        out->left_out = 0;
    return EK_OK;
}

ek_status ek_run_protect_experts(ek_run *r, const ek_model_config *like)
{
    protection p = {0};
    int32_t needed, given = r->cfg->spare_slots;
    double bytes, fits = 0;

    EK_TRY(copies_to_choose(r, &p.copies));
    if (p.copies == 1)
        return EK_OK;
    EK_TRY(predict_costs(r, p.copies, &r->options.copies));
    if (r->options.copies.left_out)
        return EK_OK;
    EK_TRY(find_spare_slots(r, p.copies, &needed));
    if (needed == IMPOSSIBLE || (given >= 0 && given < needed))
        return EK_OK;
    p.planner = ek_planner_for(r->training.moe.planner, p.copies);
    /* one slot more is for transient replicas, if there is memory for it */
    for (int more = 1; more >= 0 && fits <= 0; more--) {
        p.spare = given >= 0 ? given : needed + more;
        p.keep_all_slots = needs_all_slots(r, p, needed);
        if (ek_replicas_check(r->mesh, p.spare) >= 0 && persistent_spare(r, &p) >= needed)
            EK_TRY(measure_protection(r, like, &p, &bytes, &fits));
    }
    r->options.no_room = fits <= 0;
    if (fits <= 0)
        return EK_OK;
    set_protection(r, &p);
    r->options.copies.kept = 1;
    return r->cfg->replicas_min == 0 && ek_run_is_executed(r) && !was_on_several_hosts(r)
               ? tell_cost(r, like, &p, bytes, r->options.copies.lengthen)
               : EK_OK;
}

ek_status ek_run_keep_all_slots(ek_run *r)
{
    protection p = get_protection(r);
    int32_t needed;

    if (p.planner != &ek_planner_auto_replicas)
        return EK_OK;
    EK_TRY(find_spare_slots(r, p.copies, &needed));
    r->training.moe.keep_all_slots = needs_all_slots(r, p, needed);
    return EK_OK;
}

/* --- the warning ------------------------------------------------------------------------------ */

/* What is repeated when such a host is lost. */
static void describe_cost(const ek_run *r, char *text, size_t cap)
{
    const ek_train_config *c = r->cfg;

    if (c->save_seconds > 0)
        snprintf(text, cap, "the steps since the last checkpoint (--save-every %" PRId64 "s)",
                 c->save_seconds);
    else if (c->save_every > 0)
        snprintf(text, cap, "up to %" PRId64 " steps (--save-every), and those during a save,",
                 c->save_every);
    else if (c->save_every < 0)
        snprintf(text, cap, "the steps since the last checkpoint (--save-every auto)");
    else
        snprintf(text, cap, "all steps, as --save-every is 0,");
}

/* What protects experts.  Collective. */
static ek_status describe_protection(ek_run *r, char *text, size_t cap)
{
    const ek_planner *planner = r->training.moe.planner;
    int enforced = planner != NULL && ek_planner_for(planner, COPIES)->enforces_replicas_min;
    protection now = get_protection(r),
               p = {ek_planner_for(enforced ? planner : &ek_planner_auto, COPIES), COPIES, 0, 0};
    double bytes, less, fits, ignored, part, step_s;
    char memory[16], longer[LONGER_CAP];
    int32_t needed;

    if (ek_run_has_partners(&r->partners)) {
        snprintf(text, cap, "their ranks have no copy on another host");
        return EK_OK;
    }
    if (has_partner_copies(r)) {
        snprintf(text, cap,
                 "with --zero %d they stay on their ranks, and have a copy only where those are on "
                 "several hosts: use hosts with equally many slots",
                 r->cfg->zero);
        return EK_OK;
    }
    EK_TRY(find_spare_slots(r, COPIES, &p.spare));
    if (p.spare == IMPOSSIBLE) {
        snprintf(text, cap,
                 "with the ranks of an expert-parallel group on one host no option protects them");
        return EK_OK;
    }
    needed = p.spare;
    while (persistent_spare(r, &p) < needed) /* at most one more */
        p.spare++;
    EK_TRY(measure_protection(r, &r->model->cfg, &p, &bytes, &fits));
    EK_TRY(measure_protection(r, &r->model->cfg, &now, &less, &ignored));
    EK_TRY(ek_run_predict_copies(r, COPIES, &part, &step_s));
    snprintf(text, cap,
             "%s--replicas-min %d --spare-slots %d keeps each on two hosts, for %sB of memory more "
             "a rank%s%s",
             enforced ? "" : "--balance auto ", COPIES, (int)p.spare,
             ek_count_text(memory, sizeof(memory), bytes - less),
             fits <= 0 ? " (which is more than there is)" : "",
             longer_text(r, longer, sizeof(longer), part));
    return EK_OK;
}

/* Whether experts that one host alone has get a copy in the first step: hosts have joined one that
 * went on without others.  Collective. */
static ek_status are_copies_to_come(const ek_run *r, int *to_come)
{
    protection p = get_protection(r);
    int32_t needed;

    *to_come = p.copies >= COPIES && p.planner != NULL &&
               ek_planner_for(p.planner, p.copies)->enforces_replicas_min;
    if (!*to_come)
        return EK_OK;
    EK_TRY(find_spare_slots(r, COPIES, &needed));
    *to_come = needed != IMPOSSIBLE && persistent_spare(r, &p) >= needed;
    return EK_OK;
}

/* Of a part of the weights without a copy, and of experts that are alone beside it. */
static void warn_of_stages(const ek_run *r, int64_t alone, const char *cost)
{
    const ek_copies_costs *c = &r->partners.costs;
    char experts[64] = "", bytes[32];

    if (alone > 0)
        snprintf(experts, sizeof(experts), "%" PRId64 " of %" PRId64 " experts and ", alone,
                 r->saves.risk.experts);
    if (c->left_out) {
        ek_log("elastic", EK_LOG_WARN,
               "%sa shard of --tp or --pp %s on one host only: if it is lost, %s are repeated; "
               "--elastic keeps a copy on another host, for steps that are predicted to take %.*f "
               "%% longer" EK_RUN_LOSSES_COST,
               experts, alone > 0 ? "are" : "is", cost, c->lengthen < 0.1, 100 * c->lengthen,
               ek_decimals(100 * c->losses), 100 * c->losses);
        return;
    }
    ek_log("elastic", EK_LOG_WARN,
           "%sa shard of --tp or --pp %s on one host only, and a copy of all that its ranks keep "
           "takes %s a rank of another host, for which there is no memory: if it is lost, %s are "
           "repeated; " EK_RUN_HELP_OF_ROOM,
           experts, alone > 0 ? "are" : "is",
           ek_bytes_text(bytes, sizeof(bytes), r->partners.no_room), cost);
}

ek_status ek_run_warn_of_loss(ek_run *r)
{
    const ek_loss_risk *risk = &r->saves.risk;
    int of_stages = lacks_stage_copies(r) && risk->shard_alone, to_come, warns;
    char cost[TEXT_CAP], help[TEXT_CAP] = "";

    if (!r->cfg->elastic || risk->hosts < 2 || risk->p1 <= 0 ||
        (was_on_several_hosts(r) && !r->options.no_room && r->partners.no_room <= 0))
        return EK_OK;
    describe_cost(r, cost, sizeof(cost));
    EK_TRY(are_copies_to_come(r, &to_come));
    warns = risk->alone > 0 && !to_come;
    if (of_stages) {
        if (r->rank == 0)
            warn_of_stages(r, warns ? risk->alone : 0, cost);
        return EK_OK;
    }
    if (warns)
        EK_TRY(describe_protection(r, help, sizeof(help)));
    if (r->rank == 0 && warns)
        ek_log("elastic", EK_LOG_WARN,
               "%" PRId64 " of %" PRId64 " experts are on one host only: if it is lost, %s are "
               "repeated; %s",
               risk->alone, risk->experts, cost, help);
    if (r->rank == 0 && risk->shard_alone)
        ek_log(
            "elastic", EK_LOG_WARN,
            "a shard of --tp, --pp or --zero is on one host only: if it is lost, %s are repeated",
            cost);
    return EK_OK;
}
