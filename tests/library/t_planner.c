/* Registered planners in training, through the public headers alone: they are called with what
 * evenkeel/planner.h promises, their plans are used and change no loss, and one that fails is named
 * and not called again.  Under mpiexec, with two or more ranks; one rank alone calls no planner. */
#include "job_folder.h"

#include <evenkeel/planner.h>
#include <evenkeel/train.h>

enum { EXPERTS = 4, LAYERS = 2, SLOTS_MAX = 64, STEPS = 6, MICROS = 2 };

/* --- planners --------------------------------------------------------------------------------- */

static struct {
    int64_t calls, of_layer[LAYERS], batches;
    char warning[256];
} seen;

/* The planner's own history: how often each layer was planned. */
static size_t history_bytes(void *context, const ek_planner_setup *setup)
{
    (void)context;
    return (size_t)(setup->layers * setup->ep_groups) * sizeof(int64_t);
}

static void check_call(const ek_planner_input *in, int64_t *history)
{
    const ek_planner_setup *s = in->setup;

    CHECK_INT(s->experts, EXPERTS);
    CHECK_INT(s->ranks, ranks);
    CHECK_INT(s->layers, LAYERS);
    CHECK_INT(s->micro_batches, MICROS);
    CHECK(s->costs.compute_s_per_row > 0 && s->costs.replica_s > 0);
    CHECK(s->costs.comm_s_per_row >= 0); /* 0: on a busy machine twice the rows took no longer */
    CHECK(s->ranks * s->slots <= SLOTS_MAX && s->node_of[0] == s->node_of[1]);
    CHECK(in->layer >= 0 && in->layer < s->layers && in->ep_group == 0);
    if (history != NULL)
        CHECK_INT(history[in->layer]++, seen.of_layer[in->layer]);
    seen.calls++;
    seen.of_layer[in->layer]++;
    seen.batches = in->micro_batches;
}

/* A replica of every expert in the first empty slot of the next rank, which serves half. */
static ek_status plan_replicas(void *context, void *memory, const ek_planner_input *in,
                               ek_planner_output *out)
{
    int32_t slots = in->setup->slots;

    (void)context;
    check_call(in, memory);
    for (int32_t e = 0; e < in->setup->experts; e++) {
        int32_t home = out->primary[e], to = (home / slots + 1) % in->setup->ranks * slots;
        int32_t end = to + slots;

        while (to < end && out->expert_of[to] >= 0)
            to++;
        if (to == end)
            continue;
        out->expert_of[to] = e;
        out->quota[to] = out->quota[home] / 2;
        out->quota[home] -= out->quota[to];
    }
    snprintf(out->reason, EK_PLANNER_REASON, "half of it elsewhere");
    return EK_OK;
}

/* Every primary copy to the next rank. */
static ek_status plan_moves(void *context, void *memory, const ek_planner_input *in,
                            ek_planner_output *out)
{
    int32_t all = in->setup->ranks * in->setup->slots;
    int32_t expert_of[SLOTS_MAX];
    int64_t quota[SLOTS_MAX];

    (void)context;
    check_call(in, memory);
    memcpy(expert_of, out->expert_of, (size_t)all * sizeof(*expert_of));
    memcpy(quota, out->quota, (size_t)all * sizeof(*quota));
    for (int32_t s = 0; s < all; s++) {
        int32_t to = (s + in->setup->slots) % all;

        out->expert_of[to] = expert_of[s];
        out->quota[to] = quota[s];
        if (expert_of[s] >= 0)
            out->primary[expert_of[s]] = to;
    }
    return EK_OK;
}

/* From the third call on: serves less than there is. */
static ek_status plan_too_little(void *context, void *memory, const ek_planner_input *in,
                                 ek_planner_output *out)
{
    (void)context, (void)memory;
    check_call(in, NULL);
    if (seen.calls > 2)
        out->quota[out->primary[1]]++;
    return EK_OK;
}

static ek_status plan_refusal(void *context, void *memory, const ek_planner_input *in,
                              ek_planner_output *out)
{
    (void)context, (void)memory, (void)out;
    check_call(in, NULL);
    return EK_FAIL(EK_EUNSUPPORTED, "%d experts are too few for this planner",
                   (int)in->setup->experts);
}

static void register_planners(void)
{
    ek_planner_functions f = {.size = sizeof(f), .memory_bytes = history_bytes};

    f.plan_transient = plan_replicas;
    CHECK_INT(ek_planner_register("replicas", &f), EK_OK);
    f.uses_previous_counts = 1;
    CHECK_INT(ek_planner_register("replicas-ahead", &f), EK_OK);
    f.uses_previous_counts = 0;
    f.plan_transient = plan_too_little;
    CHECK_INT(ek_planner_register("too-little", &f), EK_OK);
    f.plan_transient = NULL;
    f.plan_persistent = plan_moves;
    CHECK_INT(ek_planner_register("moves", &f), EK_OK);
    f.plan_persistent = plan_refusal;
    CHECK_INT(ek_planner_register("refusal", &f), EK_OK);
}

/* --- runs ------------------------------------------------------------------------------------- */

static void keep_warning(void *context, const char *message)
{
    (void)context;
    snprintf(seen.warning, sizeof(seen.warning), "%s", message);
}

static ek_train_summary train(const char *planner)
{
    const char *data[] = {in_folder("a.txt")};
    const ek_train_hooks hooks = {.warning = keep_warning};
    ek_train_config c = EK_TRAIN_CONFIG_INIT;
    static ek_train_summary summary;

    memset(&seen, 0, sizeof(seen));
    c.model = in_folder("config.json");
    c.tokenizer = "bytes";
    c.out = in_folder(planner);
    c.data = data;
    c.n_data = 1;
    c.batch = 4;
    c.micro_batch = 4 / MICROS;
    c.seq = 16;
    c.steps = STEPS;
    c.dtype = "fp64";
    c.threads = 1;
    c.a2a = "linear";
    c.pipeline_degree = 1;
    c.world = world;
    c.ep = ranks;
    c.balance = planner;
    c.spare_slots = EXPERTS;
    c.plan_every = 2;
    if (ek_train(&c, &hooks, &summary) != EK_OK)
        EK_T_FAIL("%s: %s", planner, ek_err_text());
    CHECK_INT(summary.end.step, STEPS);
    return summary;
}

/* The loss with primary copies that stay and serve everything. */
static double loss_without(void)
{
    static double loss;

    if (loss <= 0)
        loss = train("off").end.loss;
    return loss;
}

static void check_loss(const ek_train_summary *s)
{
    if (rank == 0)
        CHECK(fabs(s->end.loss - loss_without()) < 1e-9);
}

static void one_rank_plans_nothing(void)
{
    ek_train_summary s;

    if (ranks > 1)
        SKIP("there are several ranks");
    s = train("replicas");
    CHECK(seen.calls == 0 && s.balance.policy == NULL);
}

static void need_ranks(void)
{
    if (ranks > 1)
        (void)loss_without();
}

static void transient_plans_are_used(void)
{
    static const char *const names[] = {"replicas", "replicas-ahead"};

    if (ranks == 1)
        SKIP("there is one rank");
    need_ranks();
    for (int i = 0; i < 2; i++) {
        ek_train_summary s = train(names[i]);

        CHECK_INT(seen.calls, STEPS * MICROS * LAYERS);
        CHECK_INT(seen.of_layer[1], STEPS * MICROS);
        CHECK_INT(seen.batches, 1);
        CHECK(seen.warning[0] == '\0');
        CHECK(strcmp(s.balance.policy, names[i]) == 0);
        CHECK(s.balance.replicas >= EXPERTS * MICROS * LAYERS - 1e-9);
        check_loss(&s);
    }
}

static void persistent_plans_move_experts(void)
{
    ek_train_summary s;

    if (ranks == 1)
        SKIP("there is one rank");
    need_ranks();
    s = train("moves");
    CHECK(seen.calls >= LAYERS * (STEPS / 2) && seen.batches > 1);
    CHECK(s.balance.experts_moved > 0 && seen.warning[0] == '\0');
    check_loss(&s);
}

static void failing_planners_are_named(void)
{
    ek_train_summary s;

    if (ranks == 1)
        SKIP("there is one rank");
    need_ranks();
    s = train("too-little");
    CHECK_INT(seen.calls, 3);
    if (rank == 0 &&
        (strstr(seen.warning, "planner too-little failed: plan: expert 1 has ") == NULL ||
         strstr(seen.warning, "training continues without it") == NULL))
        EK_T_FAIL("the warning is \"%s\"", seen.warning);
    check_loss(&s);
    s = train("refusal");
    CHECK_INT(seen.calls, 1);
    if (rank == 0 &&
        strcmp(seen.warning, "layer 0: planner refusal failed: 4 experts are too few for "
                             "this planner; training continues without it") != 0)
        EK_T_FAIL("the warning is \"%s\"", seen.warning);
    check_loss(&s);
}

static const ek_case cases[] = {EK_CASE(one_rank_plans_nothing), EK_CASE(transient_plans_are_used),
                                EK_CASE(persistent_plans_move_experts),
                                EK_CASE(failing_planners_are_named)};

int main(int argc, char **argv)
{
    int status;

    if (!open_job_folder("planner"))
        return 1;
    register_planners();
    wait_for_all();
    status = ek_test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
    close_job_folder();
    return status;
}
