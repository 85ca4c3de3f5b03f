/* Placement at a restart: in random cases every expert has one primary copy, no rank holds an
 * expert twice, experts stay on their hosts as far as slots allow, and unharmed ranks keep all
 * experts. */
#include "base/random.h"
#include "ek_test.h"
#include "elastic/restart_placement.h"

#include <string.h>

enum { RANKS = 7, EXPERTS = 12, LEFT = 9, SLOTS = EXPERTS };

typedef struct {
    ek_restart_placement x;
    int32_t survivor_host[LEFT], host[RANKS];
    unsigned char has[LEFT * EXPERTS], scratch[RANKS * (EXPERTS + 1)];
    int32_t expert_of[RANKS * SLOTS], primary[EXPERTS];
} layer;

static int64_t draw(uint64_t *n, int64_t most)
{
    return (int64_t)(ek_random_bits(7, 7, (*n)++) % (uint64_t)most);
}

static void restart(layer *a)
{
    a->x.survivor_host = a->survivor_host;
    a->x.has = a->has;
    a->x.host = a->host;
    ek_restart_placement_layer(&a->x, a->scratch, a->expert_of, a->primary);
}

static int holds(const layer *a, int32_t rank, int32_t expert)
{
    int n = 0;

    for (int32_t s = 0; s < a->x.slots; s++)
        n += a->expert_of[rank * a->x.slots + s] == expert;
    return n;
}

static int host_has(const layer *a, int32_t host, int32_t expert)
{
    for (int32_t i = 0; i < a->x.n_survivors; i++)
        if (a->survivor_host[i] == host && a->has[i * a->x.experts + expert])
            return 1;
    return 0;
}

/* Whether all ranks of all hosts that have the expert are full. */
static int no_room_at_primary(const layer *a, int32_t expert)
{
    for (int32_t r = 0; r < a->x.ranks; r++)
        if (host_has(a, a->host[r], expert) && holds(a, r, -1) > 0)
            return 0;
    return 1;
}

/* Finds a slot for an expert on a host that holds it, possibly by moving others: a matching of
 * experts and slots. */
static int match(const layer *a, int32_t expert, int32_t *owner, unsigned char *seen)
{
    for (int32_t s = 0; s < a->x.ranks * a->x.slots; s++) {
        if (seen[s] || !host_has(a, a->host[s / a->x.slots], expert))
            continue;
        seen[s] = 1;
        if (owner[s] < 0 || match(a, owner[s], owner, seen)) {
            owner[s] = expert;
            return 1;
        }
    }
    return 0;
}

/* As few primary copies as possible are on hosts that do not hold the expert. */
static void check_crossing(const layer *a)
{
    int32_t owner[RANKS * SLOTS], least = 0, crossing = 0;

    memset(owner, -1, sizeof(owner));
    for (int32_t e = 0; e < a->x.experts; e++) {
        unsigned char seen[RANKS * SLOTS] = {0};

        least += !match(a, e, owner, seen);
        crossing += !host_has(a, a->host[a->primary[e] / a->x.slots], e);
    }
    CHECK_INT(crossing, least);
}

static void check(const layer *a)
{
    const ek_restart_placement *x = &a->x;

    check_crossing(a);

    for (int32_t e = 0; e < x->experts; e++) {
        CHECK(a->primary[e] >= 0 && a->primary[e] < x->ranks * x->slots);
        CHECK_INT(a->expert_of[a->primary[e]], e);
        for (int32_t r = 0; r < x->ranks; r++) {
            int here = holds(a, r, e), is_primary = a->primary[e] / x->slots == r;

            CHECK(here <= 1);
            CHECK(!here || host_has(a, a->host[r], e) || (is_primary && no_room_at_primary(a, e)));
        }
    }
}

static void drawn(void)
{
    uint64_t n = 0;

    for (int turn = 0; turn < 3000; turn++) {
        layer a = {0};
        int32_t least;

        a.x.experts = 1 + (int32_t)draw(&n, EXPERTS);
        a.x.ranks = 1 + (int32_t)draw(&n, RANKS);
        a.x.n_survivors = (int32_t)draw(&n, LEFT + 1);
        least = (a.x.experts + a.x.ranks - 1) / a.x.ranks;
        a.x.slots = least + (int32_t)draw(&n, turn % 2 ? 1 : a.x.experts - least + 1);
        for (int32_t i = 0; i < a.x.n_survivors; i++)
            a.survivor_host[i] = (int32_t)draw(&n, 5);
        for (int32_t r = 0; r < a.x.ranks; r++)
            a.host[r] = (int32_t)draw(&n, 5);
        for (int32_t i = 0; i < a.x.n_survivors * a.x.experts; i++)
            a.has[i] = draw(&n, 3) == 0;
        restart(&a);
        check(&a);
    }
}

/* A worker was killed, and the same ranks continue: each keeps its experts, and primary copies are
 * spread evenly. */
static void unharmed(void)
{
    layer a = {.x = {.experts = 8, .n_survivors = 4, .ranks = 4, .slots = 5}};
    int32_t primaries[4] = {0};

    for (int32_t r = 0; r < 4; r++) {
        a.survivor_host[r] = a.host[r] = r;
        for (int32_t k = 0; k < 5; k++)
            a.has[r * 8 + (2 * r + k) % 8] = 1;
    }
    restart(&a);
    check(&a);
    for (int32_t r = 0; r < 4; r++)
        for (int32_t e = 0; e < 8; e++)
            CHECK_INT(holds(&a, r, e), a.has[r * 8 + e]);
    for (int32_t e = 0; e < 8; e++)
        primaries[a.primary[e] / 5]++;
    for (int32_t r = 0; r < 4; r++)
        CHECK_INT(primaries[r], 2);
}

/* With too few slots for all replicas, the only copy of each expert stays. */
static void the_rare_ones_first(void)
{
    layer a = {.x = {.experts = 6, .n_survivors = 2, .ranks = 2, .slots = 3}};

    a.host[1] = a.survivor_host[1] = 1;
    memset(a.has, 1, 6); /* the first one has all, the other half of them */
    memset(a.has + 9, 1, 3);
    restart(&a);
    check(&a);
    for (int32_t e = 0; e < 6; e++) {
        CHECK_INT(holds(&a, 0, e), e < 3);
        CHECK_INT(holds(&a, 1, e), e >= 3);
    }
}

/* Four hosts of one slot: the third expert gets a slot on one of its hosts only after the first
 * moves to its other host and the second, which is there, to its own other host. */
static void homes_push_one_another(void)
{
    static const unsigned char has[] = {1, 0, 1, 0, 1, 1, 0, 0, 0, 1, 0, 0, 0, 0, 1, 1};
    layer a = {.x = {.experts = 4, .n_survivors = 4, .ranks = 4, .slots = 1}};

    memcpy(a.has, has, sizeof(has));
    for (int32_t r = 0; r < 4; r++)
        a.survivor_host[r] = a.host[r] = r;
    restart(&a);
    check(&a);
    CHECK_INT(a.primary[0], 1);
    CHECK_INT(a.primary[1], 2);
    CHECK_INT(a.primary[2], 0);
    CHECK_INT(a.primary[3], 3);
}

static const ek_case cases[] = {
    EK_CASE(drawn),
    EK_CASE(unharmed),
    EK_CASE(the_rare_ones_first),
    EK_CASE(homes_push_one_another),
};
EK_TEST_MAIN(cases)
