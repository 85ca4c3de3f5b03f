/* Placements: memory, block order, validity. */
#include "placement/placement.h"

#include <string.h>

void ek_placement_reserve(ek_placement *p, ek_arena *a, int32_t experts, int32_t ranks,
                          int32_t slots)
{
    p->experts = experts;
    p->ranks = ranks;
    p->slots = slots;
    p->expert_of = ek_arena_alloc(a, (int64_t)ranks * slots, sizeof(*p->expert_of));
    p->primary = ek_arena_alloc(a, experts, sizeof(*p->primary));
}

void ek_placement_copy(ek_placement *to, const ek_placement *from)
{
    memcpy(to->expert_of, from->expert_of,
           (size_t)from->ranks * (size_t)from->slots * sizeof(*to->expert_of));
    memcpy(to->primary, from->primary, (size_t)from->experts * sizeof(*to->primary));
}

void ek_placement_resize(ek_placement *to, const ek_placement *from)
{
    for (int32_t s = 0; s < to->ranks * to->slots; s++) {
        int32_t i = s % to->slots;

        to->expert_of[s] = i < from->slots ? from->expert_of[s / to->slots * from->slots + i] : -1;
    }
    for (int32_t e = 0; e < from->experts; e++) {
        int32_t h = from->primary[e], i = h % from->slots;

        to->primary[e] = i < to->slots ? h / from->slots * to->slots + i : -1;
    }
}

void ek_placement_block(ek_placement *p, int32_t groups)
{
    int32_t ranks = p->ranks / groups, each = p->experts / ranks, longer = p->experts % ranks;

    for (int32_t i = 0; i < p->ranks * p->slots; i++)
        p->expert_of[i] = -1;
    for (int32_t r = 0; r < p->ranks; r++) {
        int32_t group_rank = r % ranks, here = each + (group_rank < longer);
        int32_t first = group_rank * each + (group_rank < longer ? group_rank : longer);

        for (int32_t i = 0; i < here; i++) {
            p->expert_of[r * p->slots + i] = first + i;
            if (r < ranks)
                p->primary[first + i] = r * p->slots + i;
        }
    }
}

ek_status ek_placement_check(const ek_placement *p)
{
    for (int32_t e = 0; e < p->experts; e++) {
        int32_t h = p->primary[e];

        EK_REQUIRE(h >= 0 && h < p->ranks * p->slots && p->expert_of[h] == e, EK_EINVAL,
                   "placement: expert %d is not in its primary slot %d", (int)e, (int)h);
    }
    for (int32_t i = 0; i < p->ranks * p->slots; i++)
        EK_REQUIRE(p->expert_of[i] >= -1 && p->expert_of[i] < p->experts, EK_EINVAL,
                   "placement: slot %d holds expert %d, of %d", (int)i, (int)p->expert_of[i],
                   (int)p->experts);
    return EK_OK;
}

/* Ranks of the domain of `rank`, if it is the first of them; else 0. */
static int32_t ranks_of_domain(const int32_t *domain_of, int32_t ranks, int32_t rank)
{
    int32_t n = 0;

    for (int32_t i = 0; i < ranks; i++) {
        if (domain_of[i] == domain_of[rank] && i < rank)
            return 0;
        n += domain_of[i] == domain_of[rank];
    }
    return n;
}

/* Most copies on different domains that ranks with so many slots have room for, over all experts:
 * these can be spread so that no expert has more than one more than another. */
static int64_t copies_that_fit(const int32_t *domain_of, int32_t ranks, int32_t experts,
                               int64_t slots)
{
    int64_t sum = 0;

    for (int32_t i = 0; i < ranks; i++) {
        int64_t n = ranks_of_domain(domain_of, ranks, i) * slots;

        sum += n < experts ? n : experts;
    }
    return sum;
}

int32_t ek_placement_spare_slots_for(const int32_t *domain_of, int32_t ranks, int32_t experts,
                                     int32_t copies)
{
    int64_t base = (experts + ranks - 1) / ranks, want = (int64_t)copies * experts;
    int64_t low = base, high = experts; /* more slots never have room for fewer */

    if (copies_that_fit(domain_of, ranks, experts, high) < want)
        return -1;
    while (low < high) {
        int64_t slots = (low + high) / 2;

        if (copies_that_fit(domain_of, ranks, experts, slots) >= want)
            high = slots;
        else
            low = slots + 1;
    }
    return (int32_t)(low - base);
}
