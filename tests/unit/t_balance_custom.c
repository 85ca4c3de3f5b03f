/* evenkeel/planner.h: what registration refuses; what a planner is given; that every kind of
 * invalid plan is refused with its fault; that a failed planner does no harm. */
#include "evenkeel/balance.h"
#include "evenkeel/planner.h"

#include "count_allocations.h"
#include "ek_test.h"

/* Three experts on two ranks of three slots: rank 0 has experts 0 and 1, rank 1 has expert 2. */
enum { EXPERTS = 3, RANKS = 2, SLOTS = 3, ALL = RANKS * SLOTS };

/* One change of a valid plan, which makes it invalid. */
typedef struct {
    const char *fault; /* part of the message */
    void (*spoil)(ek_planner_output *out);
} invalid_plan;

/* What a planner under test does, and what it saw. */
typedef struct {
    void (*spoil)(ek_planner_output *out);
    ek_status status;
    const char *message;
    int init_calls, calls;
    int64_t batches;
    ek_planner_setup setup;
    char reason[2 * EK_PLANNER_REASON];
} probe;

static probe one; /* the context of all planners here */

typedef struct {
    int64_t plans, counted;
} probe_memory;

static size_t probe_bytes(void *context, const ek_planner_setup *setup)
{
    CHECK(context == &one && setup->node_of == NULL && setup->domain_of == NULL);
    CHECK(setup->costs.compute_s_per_row == 0);
    CHECK_INT(setup->experts * setup->ranks, EXPERTS * RANKS);
    return sizeof(probe_memory);
}

static void probe_init(void *context, void *memory, const ek_planner_setup *setup)
{
    probe_memory *m = memory;

    CHECK(context == &one && m->plans == 0 && m->counted == 0);
    CHECK(setup->node_of != NULL && setup->domain_of != NULL);
    m->counted = -1;
    one.init_calls++;
}

static void check_input(const ek_planner_input *in, const ek_planner_output *out)
{
    int64_t total[EXPERTS] = {0};

    CHECK_INT(in->layer, 0);
    CHECK_INT(in->ep_group, 0);
    for (int r = 0; r < RANKS; r++)
        for (int e = 0; e < EXPERTS; e++)
            total[e] += in->counts[r * EXPERTS + e];
    for (int s = 0; s < ALL; s++) { /* primary copies serve everything */
        int32_t e = out->expert_of[s];

        CHECK_INT(out->quota[s], e >= 0 && out->primary[e] == s ? total[e] : 0);
    }
    CHECK(out->before_s == 0 && out->after_s == 0 && out->reason[0] == '\0');
}

static ek_status plan_probe(void *context, void *memory, const ek_planner_input *in,
                            ek_planner_output *out)
{
    probe_memory *m = memory;

    CHECK(context == &one);
    if (m != NULL) {
        CHECK_INT(m->plans, one.calls);
        CHECK_INT(m->counted, -1);
        m->plans++;
    }
    check_input(in, out);
    one.calls++;
    one.setup = *in->setup;
    one.batches = in->micro_batches;
    if (one.status != EK_OK && one.message != NULL)
        return EK_FAIL(one.status, "%s", one.message);
    if (one.reason[0] != '\0')
        memcpy(out->reason, one.reason, EK_PLANNER_REASON);
    if (one.spoil != NULL)
        one.spoil(out);
    return one.status;
}

static ek_balance *create(const char *policy)
{
    static const int32_t node_of[RANKS] = {7, 7};
    ek_balance_config c = {.size = sizeof(c),
                           .policy = policy,
                           .experts = EXPERTS,
                           .ranks = RANKS,
                           .spare_slots = 1,
                           .node_of = node_of,
                           .replicas_min = 2,
                           .compute_s_per_row = 1e-6,
                           .comm_s_per_row = 2e-6,
                           .replica_s = 3e-6,
                           .migrate_s_per_expert = 4e-6,
                           .horizon = 2};
    ek_balance *b = NULL;

    one = (probe){0};
    if (ek_balance_create(&c, &b) < 0)
        EK_T_FAIL("%s: %s", policy, ek_err_text());
    return b;
}

static const int64_t counts[RANKS * EXPERTS] = {10, 4, 2, 20, 0, 8};

static void check_message(const char *want)
{
    if (strstr(ek_err_message(), want) == NULL)
        EK_T_FAIL("\"%s\" is not in \"%s\"", want, ek_err_message());
}

/* --- registration ----------------------------------------------------------------------------- */

static void refuse(const char *name, const ek_planner_functions *f, const char *message)
{
    CHECK_INT(ek_planner_register(name, f), EK_EINVAL);
    check_message(message);
}

static void bad_registrations_are_refused(void)
{
    ek_planner_functions f = {.size = sizeof(f), .context = &one, .plan_transient = plan_probe}, g;

    refuse("", &f, "is not a name");
    refuse("a b", &f, "\"a b\" is not a name");
    refuse("policy/x", &f, "is not a name");
    refuse("abcdefghijklmnopqrstuvwxyz012345", &f, "is not a name"); /* 32 letters */
    refuse("exact", &f, "there is a planner exact already");
    refuse("none", &(ek_planner_functions){.size = sizeof(f)}, "neither");
    g = f;
    g.init = probe_init;
    refuse("none", &g, "init without memory_bytes");
    g = f;
    g.plan_persistent = plan_probe;
    g.uses_previous_counts = 1;
    refuse("none", &g, "uses_previous_counts");
    g.uses_previous_counts = 0;
    g.enforces_replicas_min = 1;
    refuse("none", &g, "enforces_replicas_min");
}

static int is_listed(const char *name)
{
    for (int i = 0; ek_balance_policy(i) != NULL; i++)
        if (strcmp(ek_balance_policy(i), name) == 0)
            return 1;
    return 0;
}

static void register_all(void)
{
    ek_planner_functions f = {.size = sizeof(f), .context = &one}, g = f;

    CHECK(!is_listed("transient"));
    g.plan_transient = plan_probe;
    CHECK_INT(ek_planner_register("transient", &g), EK_OK);
    g.memory_bytes = probe_bytes;
    g.init = probe_init;
    CHECK_INT(ek_planner_register("with-memory", &g), EK_OK);
    g = f;
    g.plan_persistent = plan_probe;
    CHECK_INT(ek_planner_register("persistent", &g), EK_OK);
    g.plan_transient = plan_probe;
    CHECK_INT(ek_planner_register("both", &g), EK_OK);
    CHECK(is_listed("transient") && is_listed("both") && is_listed("off") && is_listed("auto"));
    CHECK_INT(ek_planner_register("both", &g), EK_EINVAL);
    check_message("there is a planner both already");
}

static void registrations_end(void)
{
    ek_planner_functions f = {.size = sizeof(f), .plan_transient = plan_probe};
    ek_status st = EK_OK;
    char name[16];
    int n = 0;

    for (; n <= EK_PLANNER_COUNT && st == EK_OK; n++) {
        snprintf(name, sizeof(name), "n%d", n);
        st = ek_planner_register(name, &f);
    }
    CHECK_INT(st, EK_EOVERFLOW);
    CHECK_INT(n - 1, EK_PLANNER_COUNT - 4); /* and those of register_all */
}

/* --- what a planner is given ------------------------------------------------------------------ */

static void plans_see_setup_and_keep_memory(void)
{
    ek_balance *b = create("with-memory");
    ek_balance_plan_result p;

    CHECK_INT(one.init_calls, 1);
    memset(one.reason, 'x', sizeof(one.reason)); /* without a final NUL */
    atomic_store(&allocations, 0);
    atomic_store(&counting, 1);
    for (int i = 0; i < 3; i++)
        CHECK(ek_balance_plan(b, counts, &p) == EK_OK);
    atomic_store(&counting, 0);
    CHECK_INT(atomic_load(&allocations), 0);
    CHECK_INT(one.calls, 3);
    CHECK_INT(one.batches, 1);
    CHECK_INT((int64_t)strlen(p.reason), EK_PLANNER_REASON - 1);
    CHECK(one.setup.costs.comm_s_per_row == 2e-6 && one.setup.costs.migrate_s_per_expert == 4e-6);
    CHECK_INT(one.setup.slots, SLOTS);
    CHECK_INT(one.setup.layers * one.setup.ep_groups, 1);
    CHECK_INT(one.setup.replicas_min, 2);
    CHECK_INT(one.setup.horizon, 2);
    CHECK_INT(one.setup.micro_batches, 1);
    ek_balance_destroy(&b);
}

static void put_replica(ek_planner_output *out) /* of expert 0 on rank 1, for its own rows */
{
    out->expert_of[4] = 0;
    out->quota[4] = 20;
    out->quota[0] -= 20;
    out->before_s = 2;
    out->after_s = 1;
}

static void valid_plans_are_used(void)
{
    static const int64_t quota[ALL] = {10, 4, 0, 10, 20, 0};
    int64_t rows[RANKS * ALL];
    ek_balance *b = create("transient");
    ek_balance_plan_result p;

    one.spoil = put_replica;
    CHECK_INT(ek_balance_plan(b, counts, &p), EK_OK);
    CHECK(memcmp(p.quota, quota, sizeof(quota)) == 0 && p.expert_of[4] == 0);
    CHECK(p.before_s == 2 && p.after_s == 1);
    CHECK_INT(ek_balance_split(b, counts, rows), EK_OK);
    CHECK_INT(rows[0], 10);
    CHECK_INT(rows[ALL + 4], 20);
    one.spoil = NULL; /* the next plan starts without the replica: check_input */
    CHECK_INT(ek_balance_plan(b, counts, &p), EK_OK);
    CHECK_INT(p.expert_of[4], -1);
    ek_balance_destroy(&b);
}

static void move_expert_0(ek_planner_output *out) /* to the other rank, and back */
{
    int32_t from = out->primary[0], to = from == 0 ? 5 : 0;

    out->expert_of[from] = -1;
    out->expert_of[to] = 0;
    out->primary[0] = to;
    out->quota[to] = out->quota[from];
    out->quota[from] = 0;
}

static void persistent_plans_stay(void)
{
    ek_balance *b = create("persistent");
    ek_balance_plan_result p;

    one.spoil = move_expert_0;
    CHECK_INT(ek_balance_plan(b, counts, &p), EK_OK);
    CHECK_INT(p.primary[0], 5);
    one.spoil = NULL;
    CHECK_INT(ek_balance_plan(b, counts, &p), EK_OK);
    CHECK_INT(p.primary[0], 5);
    CHECK_INT(p.expert_of[0], -1);
    ek_balance_destroy(&b);
}

static void both_kinds_alternate(void)
{
    ek_balance *b = create("both");
    ek_balance_plan_result p;

    CHECK_INT(ek_balance_plan(b, counts, &p), EK_OK);
    CHECK_INT(ek_balance_plan(b, counts, &p), EK_OK);
    CHECK_INT(one.calls, 2);
    CHECK_INT(ek_balance_plan(b, counts, &p), EK_OK); /* after a horizon of two */
    CHECK_INT(one.calls, 4);
    ek_balance_destroy(&b);
}

/* --- invalid plans ---------------------------------------------------------------------------- */

/* The plan fails with the planner's name and the fault; splits go on with the placement before. */
static void fail_with(const char *policy, void (*spoil)(ek_planner_output *out), const char *fault)
{
    ek_balance *b = create(policy);
    int64_t rows[RANKS * ALL];
    char name[64];
    ek_balance_plan_result p;

    one.spoil = spoil;
    CHECK_INT(ek_balance_plan(b, counts, &p), EK_EINVAL);
    snprintf(name, sizeof(name), "planner %s: ", policy);
    check_message(name);
    check_message(fault);
    CHECK_INT(ek_balance_split(b, counts, rows), EK_OK);
    CHECK_INT(rows[0], 10);
    CHECK_INT(rows[ALL], 20);
    CHECK_INT(rows[ALL + 3], 8);
    one.spoil = NULL;
    CHECK_INT(ek_balance_plan(b, counts, &p), EK_OK);
    ek_balance_destroy(&b);
}

static void expert_too_large(ek_planner_output *out)
{
    out->expert_of[5] = EXPERTS;
}

static void expert_below_none(ek_planner_output *out)
{
    out->expert_of[5] = -2;
}

static void primary_out_of_range(ek_planner_output *out)
{
    out->primary[1] = ALL;
}

static void primary_elsewhere(ek_planner_output *out)
{
    out->primary[2] = 4;
}

static void negative_quota(ek_planner_output *out)
{
    out->expert_of[4] = 0;
    out->quota[4] = -1;
    out->quota[0] += 1;
}

static void quota_of_empty_slot(ek_planner_output *out)
{
    out->quota[5] = 1;
}

static void quota_short(ek_planner_output *out)
{
    out->quota[1] -= 1;
}

static void quota_over(ek_planner_output *out)
{
    put_replica(out);
    out->quota[0] += 20;
}

static void time_not_finite(ek_planner_output *out)
{
    out->after_s = (double)NAN;
}

static void time_negative(ek_planner_output *out)
{
    out->before_s = -1;
}

static const invalid_plan invalid[] = {
    {"slot 5 holds expert 3, of 3", expert_too_large},
    {"slot 5 holds expert -2, of 3", expert_below_none},
    {"expert 1 is not in its primary slot 6", primary_out_of_range},
    {"expert 2 is not in its primary slot 4", primary_elsewhere},
    {"slot 4, which holds expert 0, serves -1 assignments", negative_quota},
    {"slot 5, which holds expert -1, serves 1 assignments", quota_of_empty_slot},
    {"expert 1 has 4 assignments, its slots serve 3", quota_short},
    {"expert 0 has 30 assignments, its slots serve 50", quota_over},
    {"it predicts layer times of 0 s before and nan s after", time_not_finite},
    {"it predicts layer times of -1 s before and 0 s after", time_negative},
};

static void invalid_plans_are_refused(void)
{
    for (size_t i = 0; i < sizeof(invalid) / sizeof(invalid[0]); i++) {
        /* A transient plan also must not move a primary copy, which is found first. */
        if (invalid[i].spoil != primary_out_of_range && invalid[i].spoil != primary_elsewhere)
            fail_with("transient", invalid[i].spoil, invalid[i].fault);
        fail_with("persistent", invalid[i].spoil, invalid[i].fault);
    }
}

static void overwrite_slot(ek_planner_output *out)
{
    out->expert_of[3] = 0;
    out->quota[3] = 0;
}

static void transient_plans_keep_what_is_there(void)
{
    fail_with("transient", move_expert_0,
              "plan_transient moved the primary copy of expert 0 from slot 0 to 5");
    fail_with("transient", overwrite_slot,
              "plan_transient put expert 0 into slot 3, which holds expert 2");
}

static void persistent_plans_leave_spare_slots(void)
{
    ek_balance *b = create("both");
    ek_balance_plan_result p;

    for (int i = 0; i < 2; i++)
        CHECK_INT(ek_balance_plan(b, counts, &p), EK_OK);
    one.spoil = put_replica; /* one copy too many */
    CHECK_INT(ek_balance_plan(b, counts, &p), EK_EINVAL);
    check_message("plan_persistent put 2 experts on rank 1, which must have 1");
    ek_balance_destroy(&b);
}

static void failures_are_passed_on(void)
{
    ek_balance *b = create("transient");
    ek_balance_plan_result p;

    one.status = EK_EUNSUPPORTED;
    one.message = "only for ranks on one node";
    CHECK_INT(ek_balance_plan(b, counts, &p), EK_EUNSUPPORTED);
    check_message("planner transient: only for ranks on one node");
    one.message = NULL;
    CHECK_INT(ek_balance_plan(b, counts, &p), EK_EUNSUPPORTED);
    check_message("planner transient: it returned a failure without a message");
    one.status = EK_PENDING;
    CHECK_INT(ek_balance_plan(b, counts, &p), EK_EINVAL);
    check_message("planner transient: it returned 1, which is no status of a planner");
    one.status = EK_OK;
    CHECK_INT(ek_balance_plan(b, counts, &p), EK_OK);
    ek_balance_destroy(&b);
}

static const ek_case cases[] = {
    EK_CASE(bad_registrations_are_refused),
    EK_CASE(register_all), /* before those below */
    EK_CASE(plans_see_setup_and_keep_memory),
    EK_CASE(valid_plans_are_used),
    EK_CASE(persistent_plans_stay),
    EK_CASE(both_kinds_alternate),
    EK_CASE(invalid_plans_are_refused),
    EK_CASE(transient_plans_keep_what_is_there),
    EK_CASE(persistent_plans_leave_spare_slots),
    EK_CASE(failures_are_passed_on),
    EK_CASE(registrations_end), /* last */
};
EK_TEST_MAIN(cases)
