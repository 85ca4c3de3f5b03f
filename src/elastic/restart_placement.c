/* Places primary copies first, experts with the fewest candidate ranks before others; then
 * replicas, one more of each expert per pass. */
#include "elastic/restart_placement.h"

#include "placement/placement.h"

#include <string.h>

/* Where an expert may be placed: on a rank that can adopt it; on a host that holds it; on any rank
 * with a free slot. */
typedef enum { ON_ADOPTING_RANK, ON_SAME_HOST, ANYWHERE } residency;

typedef struct {
    const ek_restart_placement *x;
    unsigned char *adoptable; /* [ranks][experts]: it can adopt the block */
    unsigned char *visited;   /* [ranks] in a search for a slot */
    int32_t *expert_of, *primary;
} layer_placement;

static int32_t used_slots(const layer_placement *s, int32_t rank)
{
    int32_t n = 0;

    while (n < s->x->slots && s->expert_of[rank * s->x->slots + n] >= 0)
        n++;
    return n;
}

static void append_expert(layer_placement *s, int32_t rank, int32_t expert)
{
    s->expert_of[rank * s->x->slots + used_slots(s, rank)] = expert;
}

/* Assigns survivors to the new ranks of their host, round-robin. */
static void assign_survivors(layer_placement *s)
{
    const ek_restart_placement *x = s->x;

    memset(s->adoptable, 0, (size_t)x->ranks * (size_t)x->experts);
    for (int32_t i = 0; i < x->n_survivors; i++) {
        int32_t before = 0, here = 0, nth;

        for (int32_t j = 0; j < i; j++)
            before += x->survivor_host[j] == x->survivor_host[i];
        for (int32_t r = 0; r < x->ranks; r++)
            here += x->host[r] == x->survivor_host[i];
        if (here == 0)
            continue;
        nth = before % here;
        for (int32_t r = 0; r < x->ranks; r++)
            if (x->host[r] == x->survivor_host[i] && nth-- == 0)
                for (int32_t e = 0; e < x->experts; e++)
                    s->adoptable[r * x->experts + e] |= x->has[i * x->experts + e];
    }
}

static int32_t count_candidates(const layer_placement *s, int32_t expert)
{
    int32_t n = 0;

    for (int32_t r = 0; r < s->x->ranks; r++)
        n += s->adoptable[r * s->x->experts + expert];
    return n;
}

static int host_has(const layer_placement *s, int32_t rank, int32_t expert)
{
    const ek_restart_placement *x = s->x;

    for (int32_t i = 0; i < x->n_survivors; i++)
        if (x->survivor_host[i] == x->host[rank] && x->has[i * x->experts + expert])
            return 1;
    return 0;
}

static int rank_holds(const layer_placement *s, int32_t rank, int32_t expert)
{
    int32_t slots = s->x->slots;

    return ek_slot_find(s->expert_of + rank * slots, slots, expert) >= 0;
}

static int may_place(const layer_placement *s, int32_t rank, int32_t expert, residency within)
{
    if (rank_holds(s, rank, expert))
        return 0;
    return within == ANYWHERE || (within == ON_SAME_HOST && host_has(s, rank, expert)) ||
           (within == ON_ADOPTING_RANK && s->adoptable[rank * s->x->experts + expert]);
}

/* The rank with the fewest experts so far among those where the expert may be placed. */
static int32_t least_loaded_rank(const layer_placement *s, int32_t expert, residency within)
{
    int32_t best = -1, fewest = s->x->slots;

    for (int32_t r = 0; r < s->x->ranks; r++) {
        int32_t n = used_slots(s, r);

        if (n < fewest && may_place(s, r, expert, within)) {
            best = r;
            fewest = n;
        }
    }
    return best;
}

/* A slot for the primary copy on a host that holds the expert: an empty one, or one whose primary
 * copy can move to another host that holds it, which may displace others in turn (an augmenting
 * path of the matching; if there is none now, there will be none later).  -1: there is none. */
static int32_t primary_slot_on_host(layer_placement *s, int32_t expert)
{
    int32_t rank = least_loaded_rank(s, expert, ON_SAME_HOST), slots = s->x->slots;

    if (rank >= 0)
        return rank * slots + used_slots(s, rank);
    for (int32_t r = 0; r < s->x->ranks; r++) {
        if (s->visited[r] || !host_has(s, r, expert))
            continue;
        s->visited[r] = 1;
        for (int32_t i = r * slots; i < (r + 1) * slots; i++) {
            int32_t other = s->expert_of[i], to = primary_slot_on_host(s, other);

            if (to >= 0) {
                s->expert_of[to] = other;
                s->primary[other] = to;
                return i;
            }
        }
    }
    return -1;
}

/* Where the expert's state need not cross the network, if possible. */
static void place_primary(layer_placement *s, int32_t expert)
{
    int32_t rank = least_loaded_rank(s, expert, ON_ADOPTING_RANK), slot;

    for (int32_t r = 0; r < s->x->ranks; r++)
        s->visited[r] = 0;
    slot = rank >= 0 ? rank * s->x->slots + used_slots(s, rank) : primary_slot_on_host(s, expert);
    s->primary[expert] = slot;
    if (slot >= 0)
        s->expert_of[slot] = expert;
}

static void place_anywhere(layer_placement *s, int32_t expert)
{
    int32_t rank = least_loaded_rank(s, expert, ANYWHERE);

    s->primary[expert] = rank * s->x->slots + used_slots(s, rank);
    append_expert(s, rank, expert);
}

void ek_restart_placement_layer(const ek_restart_placement *x, unsigned char *scratch,
                                int32_t *expert_of, int32_t *primary)
{
    layer_placement s = {x, scratch, scratch + (size_t)x->ranks * (size_t)x->experts, expert_of,
                         primary};

    for (int32_t i = 0; i < x->ranks * x->slots; i++)
        expert_of[i] = -1;
    for (int32_t e = 0; e < x->experts; e++)
        primary[e] = -1;
    assign_survivors(&s);
    for (int32_t n = 1; n <= x->ranks; n++) /* experts that no rank can adopt follow below */
        for (int32_t e = 0; e < x->experts; e++)
            if (primary[e] < 0 && count_candidates(&s, e) == n)
                place_primary(&s, e);
    for (int32_t e = 0; e < x->experts; e++)
        if (primary[e] < 0)
            place_primary(&s, e);
    for (int32_t e = 0; e < x->experts; e++)
        if (primary[e] < 0)
            place_anywhere(&s, e);
    for (int32_t copy = 1; copy < x->ranks; copy++)
        for (int32_t e = 0; e < x->experts; e++) {
            int32_t rank = least_loaded_rank(&s, e, ON_ADOPTING_RANK);

            if (rank >= 0)
                append_expert(&s, rank, e);
        }
}
