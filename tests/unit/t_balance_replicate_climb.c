/* The climb and the exchanges of experts against plain ones, which score every placement in full
 * and try every pair in every pass: the same placements, slot by slot. */
#include "replicate_cases.h"

#include <string.h>

enum { TRIALS = 1 << 13, WORK = 1 << 22 }; /* of the climb, which ends at so much work */

static const uint64_t seed = UINT64_C(0x7265706c69636173), stream = UINT64_C(1) << 63;

static int32_t draw(uint64_t n, uint64_t i, int32_t below)
{
    return (int32_t)(ek_random_bits(n, 11, i) % (uint64_t)below);
}

typedef struct {
    fixture f;
    int64_t weight[MANY];
} scene;

/* Eq. 1 for random loads, placed by MRO or spread; masks of one word or two.  Ranks of a node
 * differ in every other case. */
static void set(scene *c, uint64_t n)
{
    int32_t order[MANY], r[MANY];
    int32_t nodes = n % 6 == 5 ? 60 + draw(n, 0, 10) : 2 + draw(n, 0, 8);
    int32_t room = nodes < 60 ? 2 + draw(n, 1, 4) : 2;
    int32_t experts = 1 + draw(n, 2, nodes * room < 40 ? nodes * room : 40);
    int64_t total[MANY];
    fixture *f = &c->f;

    memset(c, 0, sizeof(*c));
    for (int32_t e = 0; e < experts; e++)
        total[e] = 20 + draw(n, 10 + (uint64_t)e, 200);
    allocate(experts, nodes * room, 1 + (int32_t)(n % 3), total, order, r);
    setup(f, nodes, room, experts, r, 1 + (int32_t)(n % 3));
    for (int32_t e = 0; e < experts; e++)
        c->weight[e] = 1000 * total[e] / r[e];
    if (n % 2 == 0) {
        for (int32_t i = 0; i < nodes; i++)
            f->s.ranks[i] = 1 + i % room;
        ek_replicate_nodes_ready(&f->s);
    }
    if (n % 4 < 2)
        mro(f);
    else
        spread(f);
    ek_replicate_repair(&f->s, f->need, &f->w);
    ek_replicate_place_copy(&f->s, &f->other, &f->w);
}

/* --- plain versions --------------------------------------------------------------------------- */

/* Swaps two slots of f->other unless that scores worse. */
static int swap_plainly(fixture *f, int32_t i, int32_t j)
{
    ek_replicate_place_copy(&f->s, &f->now, &f->other);
    ek_replicate_swap(&f->s, f->need, &f->other, i, j);
    ek_replicate_score(&f->s, f->need, &f->other);
    if (ek_replicate_compare(&f->s, &f->other, &f->now) <= 0)
        return 1;
    ek_replicate_place_copy(&f->s, &f->other, &f->now);
    return 0;
}

/* Whether `more` load for a node and less for another evens them out. */
static int is_evener(const fixture *f, int32_t a, int32_t b, int64_t more)
{
    const int64_t *load = f->load;

    return ek_replicate_imbalance(&f->s, a, load[a] + more) +
               ek_replicate_imbalance(&f->s, b, load[b] - more) <
           ek_replicate_imbalance(&f->s, a, load[a]) + ek_replicate_imbalance(&f->s, b, load[b]);
}

static void climb_plainly(scene *c)
{
    fixture *f = &c->f;
    int32_t slots = f->s.slots;
    int moved = 1;

    for (uint64_t trial = 0; trial < TRIALS; trial++) {
        uint64_t bits = ek_random_bits(seed, stream, trial);
        int32_t i = (int32_t)((bits >> 32) * (uint64_t)slots >> 32);
        int32_t j = (int32_t)((bits & UINT32_MAX) * (uint64_t)slots >> 32);

        if (ek_replicate_may_swap(&f->s, &f->other, i, j))
            (void)swap_plainly(f, i, j);
    }
    while (moved) {
        moved = 0;
        for (int32_t i = 0; i < slots; i++)
            for (int32_t j = i + 1; j < slots; j++) {
                int64_t more = c->weight[f->other.at[j]] - c->weight[f->other.at[i]];

                ek_replicate_loads(&f->s, c->weight, &f->other, f->load);
                if (more != 0 && f->s.node_of[i] != f->s.node_of[j] &&
                    is_evener(f, f->s.node_of[i], f->s.node_of[j], more))
                    moved |= swap_plainly(f, i, j);
            }
    }
}

static int64_t imbalance(scene *c)
{
    int64_t sum = 0;

    ek_replicate_loads(&c->f.s, c->weight, &c->f.other, c->f.load);
    for (int32_t n = 0; n < c->f.s.nodes; n++)
        sum += ek_replicate_imbalance(&c->f.s, n, c->f.load[n]);
    return sum;
}

static void exchange_plainly(scene *c)
{
    fixture *f = &c->f;
    int moved = 1;

    while (moved) {
        moved = 0;
        for (int32_t a = 0; a < f->s.experts; a++)
            for (int32_t b = a + 1; b < f->s.experts; b++) {
                int64_t before = imbalance(c);

                if (f->r[a] != f->r[b])
                    continue;
                ek_replicate_exchange(&f->s, &f->other, a, b);
                if (imbalance(c) < before)
                    moved = 1;
                else
                    ek_replicate_exchange(&f->s, &f->other, a, b);
            }
    }
}

/* --- the cases -------------------------------------------------------------------------------- */

static int is_same(const fixture *f)
{
    return memcmp(f->w.at, f->other.at, (size_t)f->s.slots * sizeof(*f->w.at)) == 0;
}

/* Where the climb ends before its limit of work, which it does not reach with few nodes, it ends
 * where the plain one does. */
static void climbs_as_a_plain_one(void)
{
    int changed = 0, compared = 0;

    for (uint64_t n = 0; n < 24; n++) {
        scene c;

        set(&c, n);
        ek_replicate_climb(&c.f.s, c.f.need, c.weight, &c.f.w, c.f.fatal, c.f.load);
        check_place(&c.f);
        changed += !is_same(&c.f);
        if (c.f.s.work < WORK) {
            compared++;
            climb_plainly(&c);
            if (!is_same(&c.f))
                EK_T_FAIL("case %d: other slots than by a plain climb", (int)n);
        }
        ek_replicate_place_copy(&c.f.s, &c.f.other, &c.f.w);
        ek_replicate_score(&c.f.s, c.f.need, &c.f.other);
        CHECK_INT(c.f.w.lack, c.f.other.lack);
        for (int32_t k = 1; k <= c.f.s.most; k++)
            CHECK_INT(c.f.w.fatal[k], c.f.other.fatal[k]);
        teardown(&c.f);
    }
    CHECK(changed > 18 && compared >= 20);
}

static void exchanges_as_a_plain_one(void)
{
    int changed = 0;

    for (uint64_t n = 0; n < 200; n++) {
        scene c;

        set(&c, n);
        ek_replicate_even(&c.f.s, c.f.r, c.weight, &c.f.w, c.f.load);
        check_place(&c.f);
        changed += !is_same(&c.f);
        exchange_plainly(&c);
        if (!is_same(&c.f))
            EK_T_FAIL("case %d: other slots than by plain exchanges", (int)n);
        teardown(&c.f);
    }
    CHECK(changed > 80);
}

static const ek_case cases[] = {
    EK_CASE(climbs_as_a_plain_one),
    EK_CASE(exchanges_as_a_plain_one),
};

EK_TEST_MAIN(cases)
