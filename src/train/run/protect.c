/* Protection of experts against the loss of their host: what it takes and costs, and a warning
 * where there is none. */
#include "base/count_text.h"
#include "base/log.h"
#include "comm/agree.h"
#include "train/run/state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { TEXT_CAP = 512, COPIES = 2, IMPOSSIBLE = INT32_MAX };

/* --- what it takes ---------------------------------------------------------------------------- */

/* Spare slots with which each expert of this stage's expert-parallel groups can be on two hosts;
 * IMPOSSIBLE: the ranks of a group are on one. */
static ek_status find_spare_slots(const ek_run *r, int32_t *spare)
{
    const ek_mesh *mesh = r->mesh;
    int32_t *domain_of = calloc((size_t)mesh->ep, sizeof(*domain_of)), most = 0, one = 0;

    EK_REQUIRE(domain_of != NULL, EK_ENOMEM, "no memory for the hosts of %d ranks", mesh->ep);
    for (int group = 0; group < mesh->edp && one >= 0; group++) {
        for (int i = 0; i < mesh->ep; i++)
            domain_of[i] = ek_comm_node(r->world, mesh->pp_rank * mesh->stage_size +
                                                      (group * mesh->ep + i) * mesh->etp);
        one = ek_placement_spare_slots_for(domain_of, mesh->ep, (int32_t)r->source.spec.experts,
                                           COPIES);
        most = one > most ? one : most;
    }
    *spare = one < 0 ? IMPOSSIBLE : most;
    free(domain_of);
    return EK_OK;
}

/* Addresses in place of memory that outlives the process. */
static ek_status take_addresses(void *context, const ek_model *m, size_t bytes, void **memory)
{
    ek_arena *a = context;

    (void)m;
    ek_arena_measure(a);
    (void)!ek_arena_alloc(a, (int64_t)bytes, 1);
    a->never_touched = 1;
    EK_TRY(ek_arena_reserve(a, "the state of a rank"));
    *memory = a->base;
    return EK_OK;
}

static void ignore_slot(void *context, int32_t layer, int32_t slot, int32_t expert)
{
    (void)context, (void)layer, (void)slot, (void)expert;
}

/* Bytes of this rank's weights, state and activations with so many spare slots and this planner. */
static ek_status measure_with(const ek_run *r, const ek_planner *p, int32_t spare, int32_t copies,
                              double *bytes)
{
    ek_trainer_config t = r->training;
    ek_model_config mc = r->model->cfg;
    ek_arena arena = {0};
    ek_model_memory state = {.take = take_addresses,
                             .holds = ignore_slot,
                             .context = &arena,
                             .moves = 1,
                             .align = EK_SEGMENT_ALIGN};
    ek_model *m = NULL;
    size_t activations;
    int32_t slots; /* of a rank, for transient replicas; -1: any that is empty */
    ek_status st = EK_OK;

    t.moe.planner = p;
    t.moe.replicas_min = copies;
    t.moe.listener = (ek_moe_plan_listener){0};
    mc.never_touched = 1;
    mc.spare_slots = spare;
    mc.persistent_slots = ek_planner_fills_slots(p);
    slots = ek_moe_transient_slots(&t.moe, &r->source.spec, r->mesh, spare);
    mc.transient_slots = slots > 0 ? slots : 0;
    mc.state = &state;
    EK_TRY_OUT(ek_model_create(&r->source.spec, r->kernels, &mc, &m));
    EK_TRY_OUT(ek_trainer_measure(m, &t, &activations));
    *bytes = (double)(m->arena.bytes + m->state.bytes + activations);
out:
    ek_model_destroy(&m);
    ek_arena_fini(&arena);
    return st;
}

/* Bytes that two copies of each expert take more than the current settings, of the rank with the
 * most.  Collective. */
static ek_status measure_protection(ek_run *r, int32_t spare, double *bytes)
{
    const ek_planner *p = ek_planner_for(&ek_planner_auto, COPIES);
    double now, then = 0;

    EK_TRY(ek_agree(r->world, "measure its replicas", measure_with(r, p, spare, COPIES, &then)));
    now = (double)(r->out->info.predicted_bytes - (size_t)r->base_rss) -
          (r->saves.background ? (double)ek_train_copy_bytes(r->model) : 0);
    *bytes = -(then - now);
    EK_TRY(ek_minimum(r->world, bytes));
    *bytes = -*bytes;
    return EK_OK;
}

/* --- the warning ------------------------------------------------------------------------------ */

/* Whether this generation goes on from memory of several hosts: then an earlier one has warned. */
static int was_on_several_hosts(const ek_run *r)
{
    const ek_recovery *found = &r->memory.recovery;

    for (int32_t i = 1; i < found->n_survivors && r->memory.step >= 0; i++)
        if (found->survivors[i].host != found->survivors[0].host)
            return 1;
    return 0;
}

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

/* What protects experts. */
static ek_status describe_protection(ek_run *r, char *text, size_t cap)
{
    const char *balance =
        r->training.moe.planner == NULL ||
                !ek_planner_for(r->training.moe.planner, COPIES)->enforces_replicas_min
            ? "--balance auto "
            : "";
    char memory[16];
    int32_t spare = IMPOSSIBLE;
    double bytes;

    EK_TRY(ek_agree(r->world, "count spare slots", find_spare_slots(r, &spare)));
    bytes = -(double)spare;
    EK_TRY(ek_minimum(r->world, &bytes)); /* the most, over stages */
    spare = (int32_t)-bytes;
    if (spare == IMPOSSIBLE) {
        snprintf(text, cap,
                 "with the ranks of each expert-parallel group on one host no option "
                 "protects them");
        return EK_OK;
    }
    EK_TRY(measure_protection(r, spare, &bytes));
    snprintf(text, cap,
             "%s--replicas-min %d --spare-slots %d keeps each on two hosts, for %sB of memory more "
             "a rank",
             balance, COPIES, (int)spare, ek_count_text(memory, sizeof(memory), bytes));
    return EK_OK;
}

ek_status ek_run_warn_of_loss(ek_run *r)
{
    const ek_loss_risk *risk = &r->saves.risk;
    char cost[TEXT_CAP], help[TEXT_CAP] = "";

    if (!r->cfg->elastic || risk->hosts < 2 || risk->p1 <= 0 || was_on_several_hosts(r))
        return EK_OK;
    describe_cost(r, cost, sizeof(cost));
    if (risk->alone > 0)
        EK_TRY(describe_protection(r, help, sizeof(help)));
    if (r->rank == 0 && risk->alone > 0)
        ek_log("elastic", EK_LOG_WARN,
               "%" PRId64 " of %" PRId64 " experts are on one host only: if it is lost, %s are "
               "repeated; %s",
               risk->alone, risk->experts, cost, help);
    if (r->rank == 0 && risk->shard_alone)
        ek_log("elastic", EK_LOG_WARN,
               "a shard of --tp or --pp is on one host only: if it is lost, %s are repeated", cost);
    return EK_OK;
}
