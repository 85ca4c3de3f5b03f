/* Replicas planned from the previous micro-batch: which counts a plan is made from, that it is used
 * whatever the current counts, and that outputs and gradients are those of one rank. */
#include "comm/fault.h"
#include "moe/replica_weights.h"
#include "moe_ranks.h"
#include "random_planner.h"

/* --- counts of the plan ---------------------------------------------------------------------- */

enum { EXPERTS = 5, ITERATIONS = 2, NONE = -1 };

/* The first step (3) uses the second row: all tokens choose expert 0; in the other step expert 3.
 */
static uint32_t loads[ITERATIONS][EXPERTS] = {{0, 3, 3, 9, 3}, {9, 3, 3, 0, 3}};
static const ek_trace jump = {.data = (const unsigned char *)loads,
                              .width = sizeof(loads[0][0]),
                              .iterations = ITERATIONS,
                              .layers = 1,
                              .sources = 1,
                              .experts = EXPERTS};

/* The expert that the current plan replicates, in both micro-batches of both steps. */
static const int32_t expected[2][MICROS] = {{NONE, 0}, {0, 3}};

/* Puts a replica of the busiest expert on every rank, for the rank's own tokens. */
static ek_status follow_busiest(void *memory, const ek_plan_limits *l, const int64_t *counts,
                                ek_plan *p)
{
    int64_t *total = ((ek_random_planner *)memory)->total;
    int32_t most = 0;

    ek_plan_totals(l, counts, total);
    for (int32_t e = 1; e < l->experts; e++)
        most = total[e] > total[most] ? e : most;
    ek_plan_primaries_only(l, total, p);
    for (int32_t r = 0; r < l->ranks; r++) {
        int32_t s = ek_plan_free_slot(&p->placement, r);

        if (s < 0 || ek_plan_slot(&p->placement, r, most) >= 0)
            continue;
        p->placement.expert_of[s] = most;
        p->quota[s] = counts[(int64_t)r * l->experts + most];
        p->quota[p->placement.primary[most]] -= p->quota[s];
    }
    if (p->explain)
        snprintf(p->reason, sizeof(p->reason), "copies of %d", (int)most);
    return EK_OK;
}

static const ek_planner busiest_ahead = {.name = "busiest",
                                         .what = "copies of one expert",
                                         .reserve = random_take,
                                         .plan_transient = follow_busiest,
                                         .uses_previous_counts = 1};

/* Rows that a slot serves in a micro-batch. */
static int64_t served(const layer *l, const ek_moe_route *route, int32_t slot)
{
    const ek_dispatch_layout *x = &l->m.x;
    int64_t n = 0;

    for (int64_t i = 0; i < (int64_t)x->token_chunks * x->ranks; i++)
        n += route->row_counts[i * x->all_slots + slot];
    return n;
}

/* The listener gets the reasons of the current plan, and the micro-batch's counts and quotas. */
static void check_reasons(void *context, int of_layer, int run, const ek_plan_limits *limits,
                          const int64_t *counts, const ek_plan *p)
{
    int32_t expert = NONE;
    char reason[EK_PLAN_REASON] = "";

    (void)context;
    CHECK(of_layer == 0 && run >= 0);
    CHECK(ek_plan_check(limits, counts, p) == EK_OK);
    for (int32_t s = 0; s < limits->ranks * limits->slots; s++)
        if (ek_plan_is_replica(&p->placement, s))
            expert = p->placement.expert_of[s];
    if (expert != NONE)
        snprintf(reason, sizeof(reason), "copies of %d", (int)expert);
    CHECK(strcmp(p->reason, reason) == 0);
}

static void check_placements(const layer *l, int turn)
{
    const ek_moe *m = &l->m;

    for (int i = 0; i < MICROS; i++) {
        const ek_moe_route *route = &m->handles[l->act_slot_of[i]].route;
        int32_t replicas = 0, want = expected[turn][i];
        int64_t rows = 0;

        for (int32_t s = 0; s < m->x.all_slots; s++) {
            if (route->expert_of[s] == m->w->placement.expert_of[s])
                continue;
            replicas++;
            CHECK_INT(route->expert_of[s], want);
            rows += served(l, route, s);
        }
        CHECK_INT(replicas, want == NONE ? 0 : (l->s->sizes.ep - 1) * m->x.ep_groups);
        /* In the second step no token selects the expert that all selected in the first. */
        CHECK((rows > 0) == (want != NONE && !(turn == 1 && i == 0)));
    }
}

static void plans_use_the_previous_counts(void)
{
    static const int sizes[][3] = {{4, 4, 1}, {4, 2, 1}, {6, 3, 2}};
    scenario s = plain();
    result one, many;

    s.cfg = (ek_moe_config){
        .planner = &busiest_ahead, .replay = &jump, .listener = {check_reasons, NULL}};
    s.spare_slots = 1;
    s.look = check_placements;
    run_alone(&s, &one);
    for (int i = 0; i < 3; i++) {
        s.ranks = sizes[i][0];
        s.sizes.ep = sizes[i][1];
        s.sizes.etp = sizes[i][2];
        s.cfg.degree = 1 + i % 2;
        s.recompute = i == 1;
        if (run_ranks(&s, &many))
            compare(&s, &one, &many);
        CHECK(many.replicas > 0);
        drop(&many);
    }
    drop(&one);
}

/* --- before or after the gate ---------------------------------------------------------------- */

/* In the first step expert 3 is chosen most, in the second one expert 0; or always expert 0. */
static uint32_t even_loads[ITERATIONS][EXPERTS] = {{9, 3, 3, 0, 3}, {9, 3, 3, 0, 3}};
static const ek_trace steady = {.data = (const unsigned char *)even_loads,
                                .width = sizeof(even_loads[0][0]),
                                .iterations = ITERATIONS,
                                .layers = 1,
                                .sources = 1,
                                .experts = EXPERTS};
enum { WEIGHTS_BYTES = 6 * 7 * 8 }; /* of the smaller matrix of an expert */
static const ek_plan_costs costs_of_waiting = {
    .compute_s_per_row = 1e-3, .replica_s = 1e-4, .exposed_s = 1e-5};
static int sent_steady, sent_jump;         /* by micro-batch, as bits */
static _Atomic int late_steady, late_jump; /* replicas that were added after the gate */

static void look_at_sent(const layer *l, int turn)
{
    int *sent = l->s->cfg.replay == &steady ? &sent_steady : &sent_jump;
    _Atomic int *late = l->s->cfg.replay == &steady ? &late_steady : &late_jump;
    int bits = 0;

    for (int i = 0; i < MICROS; i++) {
        const ek_moe_route *route = &l->m.handles[l->act_slot_of[i]].route;

        bits |= route->sent << (turn * MICROS + i);
        for (int32_t s = 0; s < l->m.x.all_slots && route->sent; s++)
            *late += route->late_of[s] >= 0 && l->m.w->placement.expert_of[s] < 0;
    }
    if (l->mesh->at == 0)
        *sent |= bits;
}

/* The busiest rank's rows in the second step. */
static void look_at_loads(const layer *l, int turn)
{
    const ek_dispatch_layout *x = &l->m.x;

    look_at_sent(l, turn);
    for (int i = 0; i < MICROS && turn == 1; i++) {
        const ek_moe_route *route = &l->m.handles[l->act_slot_of[i]].route;
        int64_t all = 0, most = 0, n = 0;

        for (int32_t s = 0; s < x->all_slots; s++) {
            n = s % x->slots == 0 ? 0 : n;
            n += served(l, route, s);
            all += served(l, route, s);
            most = n > most ? n : most;
        }
        CHECK(most <= all / 4 + 1);
    }
}

/* As if sending before the gate had taken longer in the first step. */
static void judge_waiting_faster(const layer *l, int turn)
{
    look_at_sent(l, turn);
    if (turn == 0)
        l->m.next_plan[0].times.before_s = 2 * l->m.next_plan[0].times.after_s;
}

/* Steady loads: replicas are sent before the gate as soon as there are counts, and balance.  Loads
 * that change: some are added after the gate, and the next ones are sent before it, as those of one
 * micro-batch in two were needed; but not once that has taken longer than to wait. */
static void replicas_are_sent_before_the_gate_while_that_takes_less(void)
{
    scenario s = plain();
    result one, many;

    s.ranks = s.sizes.ep = 4;
    s.spare_slots = 1;
    for (int i = 0; i < 3; i++) {
        static void (*const look[])(const layer *l, int turn) = {look_at_loads, look_at_sent,
                                                                 judge_waiting_faster};

        s.cfg = (ek_moe_config){.planner = &ek_planner_auto,
                                .replay = i == 0 ? &steady : &jump,
                                .costs = costs_of_waiting};
        s.look = NULL;
        run_alone(&s, &one);
        s.look = look[i];
        sent_jump = 0;
        if (run_ranks(&s, &many))
            compare(&s, &one, &many);
        CHECK(many.replicas > 0);
        CHECK_INT(sent_jump, i == 0 ? 0 : i == 1 ? 2 | 4 | 8 : 2);
        drop(&many);
        drop(&one);
    }
    CHECK_INT(sent_steady, 2 | 4 | 8);
    CHECK_INT(late_steady, 0);
    CHECK(late_jump > 0);
}

/* Half of the choices are expert 0 in the first step, and expert 6 in the second. */
static uint32_t moving_loads[ITERATIONS][8] = {{1, 1, 1, 1, 1, 1, 7, 1}, {7, 1, 1, 1, 1, 1, 1, 1}};
static const ek_trace moving = {.data = (const unsigned char *)moving_loads,
                                .width = sizeof(moving_loads[0][0]),
                                .iterations = ITERATIONS,
                                .layers = 1,
                                .sources = 1,
                                .experts = 8};
static _Atomic int overwritten; /* micro-batches in which a rank's slot got a second replica */

static void look_at_overwritten(const layer *l, int turn)
{
    look_at_loads(l, turn);
    for (int i = 0; i < MICROS; i++)
        overwritten += l->m.handles[l->act_slot_of[i]].route.overwrites;
    CHECK(turn == 0 || l->m.handles[l->act_slot_of[0]].route.sent);
    CHECK_INT(l->m.stats.unused, turn == 0 ? 0 : 3);
}

/* The replicas that were sent before the gate fill the slots in which the expert that is now chosen
 * most needs its own: they make room, whatever memory the weights have. */
static void replicas_sent_for_other_loads_make_room(void)
{
    scenario s = plain();
    result one;

    s.spec.experts = 8;
    s.cfg =
        (ek_moe_config){.planner = &ek_planner_auto, .replay = &moving, .costs = costs_of_waiting};
    run_alone(&s, &one);
    s.ranks = s.sizes.ep = 4;
    s.spare_slots = 1;
    s.look = look_at_overwritten;
    for (int i = 0; i < 6; i++) {
        result many;

        s.cfg.replica_sets = i / 2 < 2 ? 1 + i / 2 : EK_REPLICA_SETS_EACH;
        s.recompute = i % 2;
        overwritten = 0;
        if (run_ranks(&s, &many))
            compare(&s, &one, &many);
        CHECK_INT(overwritten, 2); /* ranks 1 and 2; rank 0 had none, and rank 3 needs none */
        drop(&many);
    }
    drop(&one);
}

/* Rank 0, of which all get expert 0 before the gate, sends weights late; rank 3, of which all need
 * expert 6 instead, does not. */
static ek_status hold_early_weights(ek_comm *world)
{
    ek_fault how = {.seed = 1,
                    .delay = ek_comm_rank(world) == 0,
                    .delay_tests = 40000,
                    .delay_bytes = WEIGHTS_BYTES};

    return ek_fault_wrap(world, &how);
}

/* What was sent before the gate arrives long after its slot's next replica could: had that not
 * waited, it would be overwritten. */
static void a_late_replica_waits_for_the_one_that_it_overwrites(void)
{
    scenario s = plain();
    result one, many;

    s.spec.experts = 8;
    s.cfg =
        (ek_moe_config){.planner = &ek_planner_auto, .replay = &moving, .costs = costs_of_waiting};
    run_alone(&s, &one);
    s.ranks = s.sizes.ep = 4;
    s.spare_slots = 1;
    s.look = look_at_overwritten;
    s.wrap = hold_early_weights;
    overwritten = 0;
    if (run_ranks(&s, &many))
        compare(&s, &one, &many);
    CHECK_INT(overwritten, 2);
    drop(&many);
    drop(&one);
}

/* A late fetch that waits for what was sent before the gate: here for a byte of the next rank. */
static void describe_late_fetch(const layer *l, int turn)
{
    ek_comm *stage = l->mesh->stage;
    int ranks = ek_comm_size(stage), me = ek_comm_rank(stage);
    ek_moe m = l->m;
    ek_graph g;
    ek_moe_builder b = {.m = &m, .g = &g};
    ek_replica_flight late = {.waiting = 1}, *before = &m.flights[0];
    void *state = &late;
    char in, out = 1, text[256] = "", peer[32];
    ek_coll *send = NULL;
    int32_t id;
    ek_op op;

    (void)turn;
    ek_graph_init(&g);
    m.ids.forward_fetch = 0;
    id = ek_replicas_build_fetch(&b, 0, -1).after;
    CHECK(id >= 0);
    op = g.ops[id];
    op.state = &state;
    CHECK_INT(ek_comm_recv(stage, &in, 1, (me + 1) % ranks, 0, &before->coll[0]), EK_OK);
    before->n = 1;
    op.describe(op.self, &op, text, sizeof(text));
    snprintf(peer, sizeof(peer), "waits for rank %d", (me + 1) % ranks);
    if (strstr(text, peer) == NULL)
        EK_T_FAIL("\"%s\" has no \"%s\"", text, peer);
    CHECK_INT(ek_comm_barrier(stage), EK_OK); /* nothing is sent before */
    CHECK_INT(ek_comm_send(stage, &out, 1, (me + ranks - 1) % ranks, 0, &send), EK_OK);
    CHECK_INT(ek_coll_wait(&send), EK_OK);
    CHECK_INT(ek_coll_wait(&before->coll[0]), EK_OK);
    before->n = 0;
    ek_graph_fini(&g);
}

static void a_late_fetch_says_what_it_waits_for(void)
{
    scenario s = plain();
    result many;

    s.cfg =
        (ek_moe_config){.planner = &ek_planner_auto, .replay = &steady, .costs = costs_of_waiting};
    s.ranks = s.sizes.ep = 4;
    s.spare_slots = 1;
    s.look = describe_late_fetch;
    CHECK(run_ranks(&s, &many));
    drop(&many);
}

/* --- any plan --------------------------------------------------------------------------------- */

static int64_t replicas_seen;

/* Weights that the first step left in the slots are not used in the second one. */
static void spoil(const layer *l, int turn)
{
    const ek_replicas *r = l->scratch.replicas;
    int64_t f = ek_range_length(l->s->spec.ff, l->mesh->etp, 0), d = l->s->spec.hidden;

    for (int32_t i = 0; turn == 0 && r != NULL && i < r->n * MICROS; i++) {
        const ek_replica_weights *w =
            l->m.replica_weights != NULL ? &l->m.replica_weights[i] : &r->slot[i / MICROS].set[0];

        memset(w->up, 0xff, (size_t)(2 * f * d) * sizeof(double));
        memset(w->down, 0xff, (size_t)(d * f) * sizeof(double));
    }
}

static void anywhere(scenario *s, const result *one, int i)
{
    static const int degrees[] = {1, 2, 3, 17};
    result many;

    s->cfg = (ek_moe_config){.planner = i % 2 ? &random_from_previous : &random_before_or_after,
                             .costs = {.compute_s_per_row = 1e-3, .replica_s = 1e-3},
                             .degree = degrees[i % 4],
                             .smart_group = i % 4 == 3 ? 1 + i % 3 : 0,
                             .replica_sets = i / 2 % 2 ? EK_REPLICA_SETS_EACH : 1,
                             .gather = i % 5 == 1   ? s->sizes.etp
                                       : i % 5 == 3 ? EK_GATHER_ALL
                                                    : 0,
                             .a2a = (ek_a2a)(i % 3)};
    s->recompute = i % 3 == 0;
    s->look = spoil;
    s->spare_slots = s->cfg.gather < 0 ? (int32_t)s->spec.experts : i % 4;
    if (run_ranks(s, &many)) {
        compare(s, one, &many);
        replicas_seen += many.replicas;
    }
    drop(&many);
}

static void replicas_anywhere_change_nothing(void)
{
    replicas_seen = 0;
    each_layout(plain(), anywhere);
    CHECK(replicas_seen > 50);
}

static void more_ranks_than_experts(void)
{
    scenario s = plain();

    s.spec.experts = 2;
    s.spec.top_k = s.top_k = 1;
    replicas_seen = 0;
    each_layout(s, anywhere);
    CHECK(replicas_seen > 50);
}

static void one_expert_takes_all(void)
{
    scenario s = plain();

    s.collapse = 1;
    s.top_k = 1;
    each_layout(s, anywhere);
}

/* --- a planner that fails --------------------------------------------------------------------- */

static ek_status give_up(void *memory, const ek_plan_limits *l, const int64_t *counts, ek_plan *p)
{
    EK_TRY(random_transient(memory, l, counts, p));
    return EK_FAIL(EK_EINVAL, "no plan");
}

static ek_status lose_some(void *memory, const ek_plan_limits *l, const int64_t *counts, ek_plan *p)
{
    EK_TRY(random_transient(memory, l, counts, p));
    for (int32_t s = 0; s < l->ranks * l->slots; s++)
        p->quota[s] /= 2;
    return EK_OK;
}

static ek_status move_primaries(void *memory, const ek_plan_limits *l, const int64_t *counts,
                                ek_plan *p)
{
    EK_TRY(random_transient(memory, l, counts, p));
    p->placement.primary[0] = p->placement.primary[1];
    return EK_OK;
}

/* Fails after the first step. */
static ek_status tire(void *memory, const ek_plan_limits *l, const int64_t *counts, ek_plan *p)
{
    ek_random_planner *r = memory;
    uint64_t calls = r->draws;

    EK_REQUIRE(calls < MICROS, EK_EINVAL, "tired");
    EK_TRY(follow_busiest(memory, l, counts, p));
    r->draws = calls + 1;
    return EK_OK;
}

static void failing_planners_are_not_called_again(void)
{
    static const ek_plan_fn fast[] = {give_up, lose_some, move_primaries, tire};
    scenario s = plain();
    result one;

    run_alone(&s, &one);
    s.ranks = s.sizes.ep = 4;
    s.spare_slots = 2;
    for (int j = 0; j < 8; j++) {
        int i = j / 2;
        ek_planner bad = {.name = "bad",
                          .reserve = random_take,
                          .plan_transient = fast[i],
                          .uses_previous_counts = j % 2,
                          .may_use_previous_counts = !(j % 2)};
        result many;

        s.cfg = (ek_moe_config){.degree = 1, .planner = &bad};
        if (run_ranks(&s, &many))
            compare(&s, &one, &many);
        /* In the second step the last plan is still used; the other planner was called twice as
         * often, and has failed in the first. */
        CHECK((many.replicas > 0) == (j == 7));
        drop(&many);
    }
    drop(&one);
}

static const ek_case cases[] = {
    EK_CASE(plans_use_the_previous_counts),
    EK_CASE(replicas_are_sent_before_the_gate_while_that_takes_less),
    EK_CASE(replicas_sent_for_other_loads_make_room),
    EK_CASE(a_late_replica_waits_for_the_one_that_it_overwrites),
    EK_CASE(a_late_fetch_says_what_it_waits_for),
    EK_CASE(replicas_anywhere_change_nothing),
    EK_CASE(more_ranks_than_experts),
    EK_CASE(one_expert_takes_all),
    EK_CASE(failing_planners_are_not_called_again),
};
EK_TEST_MAIN(cases)
