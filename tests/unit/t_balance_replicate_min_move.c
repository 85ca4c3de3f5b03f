/* Placements with few moves: no more risk or load than allowed, against all placements of small
 * cases. */
#include "balance/replicate_min_move.h"
#include "replicate_cases.h"

#include <string.h>

typedef struct {
    fixture f; /* f.w is the plan */
    ek_replicate_aim aim;
    int64_t weight[MANY];
} scene;

static int32_t draw(uint64_t n, uint64_t i, int32_t below)
{
    return (int32_t)(ek_random_bits(n, 7, i) % (uint64_t)below);
}

static int64_t largest(scene *c, const ek_replicate_place *w)
{
    int64_t most = 0;

    ek_replicate_loads(&c->f.s, c->weight, w, c->f.load);
    for (int32_t n = 0; n < c->f.s.nodes; n++)
        most = c->f.load[n] > most ? c->f.load[n] : most;
    return most;
}

static void risk_of(scene *c, ek_replicate_place *w, ek_replicate_risk *r)
{
    ek_replicate_risk_of(&c->f.s, c->f.need, w, r);
}

static int no_worse(const scene *c, const ek_replicate_risk *r)
{
    const ek_replicate_risk *most = &c->aim.risk;
    int32_t alone = 1, joint = 1;

    while (alone <= c->f.s.most && r->alone[alone] == most->alone[alone])
        alone++;
    while (joint <= c->f.s.most && r->joint[joint] == most->joint[joint])
        joint++;
    return r->lack <= most->lack && (alone > c->f.s.most || r->alone[alone] < most->alone[alone]) &&
           (joint > c->f.s.most || r->joint[joint] < most->joint[joint]);
}

/* A plan by eq. 1, and a random present placement with one of ten slots vacant, as after a failure.
 */
static void set(scene *c, uint64_t n, int32_t nodes, int32_t room, int32_t experts)
{
    int32_t order[MANY], r[MANY];
    int64_t total[MANY];
    fixture *f = &c->f;

    memset(c, 0, sizeof(*c));
    for (int32_t e = 0; e < experts; e++)
        total[e] = 20 + draw(n, (uint64_t)e, 60);
    allocate(experts, nodes * room, 2, total, order, r);
    setup(f, nodes, room, experts, r, 2);
    best(f);
    for (int32_t e = 0; e < experts; e++)
        c->weight[e] = 1000 * total[e] / r[e];
    ek_replicate_place_clear(&f->s, &f->now);
    for (int32_t i = 0; i < f->s.slots; i++)
        if (draw(n, 100 + (uint64_t)i, 10) > 0)
            ek_replicate_put(&f->s, &f->now, f->s.node_of[i], draw(n, 500 + (uint64_t)i, experts));
    c->aim =
        (ek_replicate_aim){.now = &f->now, .need = f->need, .replicas = f->r, .weight = c->weight};
    c->aim.most = largest(c, &f->w) * 100 / 95;
    risk_of(c, &f->w, &c->aim.risk);
}

/* The result says whether the aim is met, and nothing gets worse. */
static int64_t check_improved(scene *c, ek_replicate_place *w, int keeps)
{
    const ek_replicate_nodes *s = &c->f.s;
    int64_t before = ek_replicate_coming(s, &c->f.now, w), after;
    ek_replicate_risk risk;
    int reached = ek_replicate_min_move(&c->f.s, &c->aim, c->f.load, w);

    after = ek_replicate_coming(s, &c->f.now, w);
    check_place_of(&c->f, w);
    risk_of(c, w, &risk);
    CHECK(!keeps || (reached && after <= before));
    CHECK_INT(reached, no_worse(c, &risk) && largest(c, w) <= c->aim.most);
    return reached ? after : INT64_MAX;
}

/* Every loss that is fatal was fatal to the plan: each expert's nodes include those of one of the
 * plan's experts. */
static void check_harmless(const scene *c, const ek_replicate_place *plan)
{
    for (int32_t e = 0; e < c->f.s.experts; e++) {
        int found = 0;

        for (int32_t g = 0; g < c->f.s.experts && !found; g++)
            found = (plan->mask[g] & ~c->f.w.mask[e]) == 0;
        CHECK(found);
    }
}

/* From the plan, and from the nearest start. */
static int64_t place_both(scene *c)
{
    int64_t plan, near;

    ek_replicate_place_copy(&c->f.s, &c->f.other, &c->f.w);
    plan = check_improved(c, &c->f.w, 1);
    check_harmless(c, &c->f.other);

    ek_replicate_nearest(&c->f.s, &c->aim, c->f.left, c->f.load, &c->f.near);
    check_place_of(&c->f, &c->f.near);
    ek_replicate_score(&c->f.s, c->f.need, &c->f.near);
    near = check_improved(c, &c->f.near, 0);
    return near < plan ? near : plan;
}

/* --- the cases -------------------------------------------------------------------------------- */

/* All sizes: far fewer incoming replicas. */
static void fewer_incoming_replicas(void)
{
    int64_t matched = 0, settled = 0;

    for (uint64_t n = 0; n < 150; n++) {
        int32_t nodes = n % 10 == 0 ? 24 : 2 + draw(n, 90, 7), room = 2 + draw(n, 91, 5), experts;
        scene c;

        experts = 1 + draw(n, 92, nodes * room / 2);
        set(&c, n, nodes, room, experts);
        matched += ek_replicate_coming(&c.f.s, &c.f.now, &c.f.w);
        settled += place_both(&c);
        teardown(&c.f);
    }
    CHECK(matched > 1000);
    CHECK(settled < matched * 8 / 10);
}

/* A present placement that meets the plan stays, duplicates on a node included. */
static void what_is_right_stays(void)
{
    for (uint64_t n = 0; n < 100; n++) {
        int32_t nodes = 2 + draw(n, 90, 5), room = 2 + draw(n, 91, 4);
        scene c;

        set(&c, n, nodes, room, 1 + draw(n, 92, nodes * room / 2));
        ek_replicate_place_copy(&c.f.s, &c.f.now, &c.f.w);
        ek_replicate_nearest(&c.f.s, &c.aim, c.f.left, c.f.load, &c.f.near);
        CHECK(memcmp(c.f.near.count, c.f.now.count,
                     (size_t)(nodes * c.f.s.experts) * sizeof(*c.f.now.count)) == 0);
        CHECK_INT(place_both(&c), 0);
        teardown(&c.f);
    }
}

/* Replicas beyond one on a node and beyond its present ones. */
static int64_t stacked(const scene *c, const ek_replicate_place *w)
{
    const ek_replicate_nodes *s = &c->f.s;
    int64_t sum = 0;

    for (int64_t i = 0; i < (int64_t)s->experts * s->nodes; i++) {
        int32_t most = c->f.now.count[i] > 1 ? c->f.now.count[i] : 1;

        sum += w->count[i] > most ? w->count[i] - most : 0;
    }
    return sum;
}

typedef struct {
    scene *c;
    int32_t left[8];
    int64_t stacked; /* of the plan */
    int64_t fewest;  /* incoming replicas */
    int64_t apart;   /* the same where no more replicas are stacked */
} search;

/* Enumerates all fillings of the slots from the i-th on, those of a node in ascending order. */
static void fill_slots(search *x, int32_t i)
{
    fixture *f = &x->c->f;
    ek_replicate_risk risk;
    int64_t come;

    if (i == f->s.slots) {
        ek_replicate_place_clear(&f->s, &f->other);
        for (int32_t s = 0; s < f->s.slots; s++)
            ek_replicate_put(&f->s, &f->other, f->s.node_of[s], f->near.at[s]);
        come = ek_replicate_coming(&f->s, &f->now, &f->other);
        if (come >= x->apart || largest(x->c, &f->other) > x->c->aim.most)
            return;
        risk_of(x->c, &f->other, &risk);
        if (!no_worse(x->c, &risk))
            return;
        x->fewest = come < x->fewest ? come : x->fewest;
        x->apart = stacked(x->c, &f->other) <= x->stacked ? come : x->apart;
        return;
    }
    for (int32_t e = 0; e < f->s.experts; e++) {
        int in_order = i % f->s.node_slots[0] == 0 || e >= f->near.at[i - 1];

        if (!in_order || x->left[e] == 0)
            continue;
        f->near.at[i] = e;
        x->left[e]--;
        fill_slots(x, i + 1);
        x->left[e]++;
    }
}

/* Never fewer incoming replicas than the optimum, and mostly those of the optimum that stacks no
 * more replicas than the plan. */
static void mostly_the_fewest(void)
{
    int tried = 0, hit = 0;

    for (uint64_t n = 0; n < 120; n++) {
        int32_t nodes = 3 + (int32_t)(n % 2), room = nodes == 3 ? 3 : 2;
        int32_t experts = 3 + (int32_t)(n / 2 % 2);
        search x = {0};
        int64_t found;
        scene c;

        set(&c, n, nodes, room, experts);
        x.c = &c;
        x.fewest = x.apart = INT64_MAX;
        x.stacked = stacked(&c, &c.f.w);
        memcpy(x.left, c.f.r, sizeof(x.left));
        fill_slots(&x, 0);
        found = place_both(&c);
        CHECK(found >= x.fewest);
        hit += found <= x.apart;
        tried++;
        teardown(&c.f);
    }
    CHECK_INT(tried, 120);
    CHECK(hit >= 100);
}

/* Improves the nearest start: whether it is accepted although sets of two nodes are fatal to it or
 * to others that were fatal to neither the plan nor others. */
static int is_accepted_and_worse(scene *c, const ek_replica_sets *others)
{
    ek_replicate_risk plan, near;
    int taken;

    ek_replicate_nearest(&c->f.s, &c->aim, c->f.left, c->f.load, &c->f.near);
    ek_replicate_score(&c->f.s, c->f.need, &c->f.near);
    taken = check_improved(c, &c->f.near, 0) < INT64_MAX;
    ek_replicate_regard(&c->f.s, others);
    risk_of(c, &c->f.w, &plan);
    risk_of(c, &c->f.near, &near);
    return taken && near.joint[2] > plan.joint[2];
}

/* One loss of two nodes is fatal to another layer, and to this one as planned. */
static void others_are_regarded(void)
{
    int blind = 0;

    for (uint64_t n = 0; n < 60; n++)
        for (int regards = 0; regards < 2; regards++) {
            ek_replica_sets others;
            int worse;
            ek_arena a;
            scene c;

            CHECK(ek_arena_init(&a, 1 << 12, "holders") == EK_OK);
            ek_replica_sets_reserve(&others, &a, 4, 4);
            ek_replica_sets_clear(&others);
            set(&c, n, 4, 5, 8);
            for (int32_t e = 0; e < 8 && others.n == 0; e++)
                if (c.f.w.distinct[e] == 2)
                    ek_replica_sets_add(&others, c.f.w.mask + e);
            ek_replicate_regard(&c.f.s, regards ? &others : NULL);
            risk_of(&c, &c.f.w, &c.aim.risk);
            worse = is_accepted_and_worse(&c, &others);
            CHECK(!regards || !worse);
            blind += worse;
            ek_arena_fini(&a);
            teardown(&c.f);
        }
    CHECK(blind > 5);
}

static const ek_case cases[] = {
    EK_CASE(fewer_incoming_replicas),
    EK_CASE(what_is_right_stays),
    EK_CASE(mostly_the_fewest),
    EK_CASE(others_are_regarded),
};

EK_TEST_MAIN(cases)
