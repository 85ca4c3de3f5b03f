/* Homes first, those with least choice before the others; then replicas, the rarest first. */
#include "elastic/restart_placement.h"

#include "placement/placement.h"

#include <string.h>

/* Where an expert may lie: with those who take it over; where it need not cross the network; where
 * there is room. */
typedef enum { TAKEN_OVER, ON_THE_HOST, ANYWHERE } whereabouts;

typedef struct {
    const ek_restart_placement *x;
    unsigned char *may;  /* [ranks][experts]: it could take it over */
    unsigned char *seen; /* [ranks] in a search for room */
    int32_t *expert_of, *primary;
} settling;

static int32_t slots_used(const settling *s, int32_t rank)
{
    int32_t n = 0;

    while (n < s->x->slots && s->expert_of[rank * s->x->slots + n] >= 0)
        n++;
    return n;
}

static void put(settling *s, int32_t rank, int32_t expert)
{
    s->expert_of[rank * s->x->slots + slots_used(s, rank)] = expert;
}

/* Ranks of a host take over in turn what ranks of it have left. */
static void pair(settling *s)
{
    const ek_restart_placement *x = s->x;

    memset(s->may, 0, (size_t)x->ranks * (size_t)x->experts);
    for (int32_t i = 0; i < x->n_left; i++) {
        int32_t before = 0, here = 0, turn;

        for (int32_t j = 0; j < i; j++)
            before += x->left_host[j] == x->left_host[i];
        for (int32_t r = 0; r < x->ranks; r++)
            here += x->host[r] == x->left_host[i];
        if (here == 0)
            continue;
        turn = before % here;
        for (int32_t r = 0; r < x->ranks; r++)
            if (x->host[r] == x->left_host[i] && turn-- == 0)
                for (int32_t e = 0; e < x->experts; e++)
                    s->may[r * x->experts + e] |= x->has[i * x->experts + e];
    }
}

static int32_t choices(const settling *s, int32_t expert)
{
    int32_t n = 0;

    for (int32_t r = 0; r < s->x->ranks; r++)
        n += s->may[r * s->x->experts + expert];
    return n;
}

static int host_has(const settling *s, int32_t rank, int32_t expert)
{
    const ek_restart_placement *x = s->x;

    for (int32_t i = 0; i < x->n_left; i++)
        if (x->left_host[i] == x->host[rank] && x->has[i * x->experts + expert])
            return 1;
    return 0;
}

static int holds(const settling *s, int32_t rank, int32_t expert)
{
    int32_t slots = s->x->slots;

    return ek_slot_find(s->expert_of + rank * slots, slots, expert) >= 0;
}

static int may_lie(const settling *s, int32_t rank, int32_t expert, whereabouts where)
{
    if (holds(s, rank, expert))
        return 0;
    return where == ANYWHERE || (where == ON_THE_HOST && host_has(s, rank, expert)) ||
           (where == TAKEN_OVER && s->may[rank * s->x->experts + expert]);
}

/* The rank with the fewest experts so far of those where it may lie. */
static int32_t least_used(const settling *s, int32_t expert, whereabouts where)
{
    int32_t best = -1, fewest = s->x->slots;

    for (int32_t r = 0; r < s->x->ranks; r++) {
        int32_t n = slots_used(s, r);

        if (n < fewest && may_lie(s, r, expert, where)) {
            best = r;
            fewest = n;
        }
    }
    return best;
}

/* A slot for a home on a host that has the expert: an empty one, or one whose home can go to
 * another of its own hosts, where that may push on others in turn (augmenting paths of a matching:
 * if there is none now, there will be none later).  -1: there is none. */
static int32_t slot_on_the_host(settling *s, int32_t expert)
{
    int32_t rank = least_used(s, expert, ON_THE_HOST), slots = s->x->slots;

    if (rank >= 0)
        return rank * slots + slots_used(s, rank);
    for (int32_t r = 0; r < s->x->ranks; r++) {
        if (s->seen[r] || !host_has(s, r, expert))
            continue;
        s->seen[r] = 1;
        for (int32_t i = r * slots; i < (r + 1) * slots; i++) {
            int32_t other = s->expert_of[i], to = slot_on_the_host(s, other);

            if (to >= 0) {
                s->expert_of[to] = other;
                s->primary[other] = to;
                return i;
            }
        }
    }
    return -1;
}

/* Where nothing has to cross the network, if it can. */
static void place_primary(settling *s, int32_t expert)
{
    int32_t rank = least_used(s, expert, TAKEN_OVER), slot;

    for (int32_t r = 0; r < s->x->ranks; r++)
        s->seen[r] = 0;
    slot = rank >= 0 ? rank * s->x->slots + slots_used(s, rank) : slot_on_the_host(s, expert);
    s->primary[expert] = slot;
    if (slot >= 0)
        s->expert_of[slot] = expert;
}

static void place_anywhere(settling *s, int32_t expert)
{
    int32_t rank = least_used(s, expert, ANYWHERE);

    s->primary[expert] = rank * s->x->slots + slots_used(s, rank);
    put(s, rank, expert);
}

void ek_restart_placement_layer(const ek_restart_placement *x, unsigned char *scratch,
                                int32_t *expert_of, int32_t *primary)
{
    settling s = {x, scratch, scratch + (size_t)x->ranks * (size_t)x->experts, expert_of, primary};

    for (int32_t i = 0; i < x->ranks * x->slots; i++)
        expert_of[i] = -1;
    for (int32_t e = 0; e < x->experts; e++)
        primary[e] = -1;
    pair(&s);
    for (int32_t n = 1; n <= x->ranks; n++) /* nobody's last, where there is room left */
        for (int32_t e = 0; e < x->experts; e++)
            if (primary[e] < 0 && choices(&s, e) == n)
                place_primary(&s, e);
    for (int32_t e = 0; e < x->experts; e++)
        if (primary[e] < 0)
            place_primary(&s, e);
    for (int32_t e = 0; e < x->experts; e++)
        if (primary[e] < 0)
            place_anywhere(&s, e);
    for (int32_t copy = 1; copy < x->ranks; copy++)
        for (int32_t e = 0; e < x->experts; e++) {
            int32_t rank = least_used(&s, e, TAKEN_OVER);

            if (rank >= 0)
                put(&s, rank, e);
        }
}
