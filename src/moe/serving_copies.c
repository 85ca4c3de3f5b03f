/* Marks and counts the persistent copies that serve rows. */
#include "moe/serving_copies.h"

#include <string.h>

void ek_serving_copies_reserve(ek_moe *m, ek_arena *a)
{
    m->served = ek_arena_alloc(a, m->x.all_slots, 1);
    m->copies = ek_arena_alloc(a, m->x.experts, sizeof(*m->copies));
    m->serving = ek_arena_alloc(a, m->x.experts, sizeof(*m->serving));
}

void ek_serving_copies_clear(ek_moe *m)
{
    if (m->served != NULL)
        memset(m->served, 0, (size_t)m->x.all_slots);
}

void ek_serving_copies_assume_all(ek_moe *m)
{
    if (m->served != NULL)
        memset(m->served, 1, (size_t)m->x.all_slots);
}

void ek_serving_copies_add(ek_moe *m, const unsigned char *used, const int32_t *expert_of)
{
    const int32_t *kept = m->w->placement.expert_of;
    int32_t group = m->x.all_slots / m->x.ep_groups;

    if (m->served == NULL)
        return;
    for (int32_t s = 0; s < m->x.all_slots; s++) {
        int32_t e = expert_of[s], at = s;

        if (!used[s] || e < 0)
            continue;
        if (kept[s] < 0)
            at = m->x.serves[(int64_t)(s / group) * m->x.experts + e];
        if (!m->served[at])
            m->served[at] = 1;
    }
}

/* --- of a group ------------------------------------------------------------------------------- */

static int32_t slots_of_group(const ek_moe *m)
{
    return m->x.all_slots / m->x.ep_groups;
}

int ek_serving_copies_find(const ek_moe *m, int ep_group, int32_t expert, int32_t rank)
{
    int32_t first = ep_group * slots_of_group(m) + rank * m->x.slots;

    for (int32_t s = first; s < first + m->x.slots; s++)
        if (m->w->placement.expert_of[s] == expert && m->served[s])
            return 1;
    return 0;
}

void ek_serving_copies_count(const ek_moe *m, int ep_group)
{
    const int32_t *held = m->w->placement.expert_of + ep_group * slots_of_group(m);
    int32_t ranks = slots_of_group(m) / m->x.slots;

    memset(m->copies, 0, (size_t)m->x.experts * sizeof(*m->copies));
    memset(m->serving, 0, (size_t)m->x.experts * sizeof(*m->serving));
    for (int32_t r = 0; r < ranks; r++, held += m->x.slots)
        for (int32_t i = 0; i < m->x.slots; i++) {
            int32_t e = held[i];

            if (e < 0 || ek_slot_find(held, m->x.slots, e) != i)
                continue;
            m->copies[e]++;
            m->serving[e] += ek_serving_copies_find(m, ep_group, e, r);
        }
}

int32_t ek_serving_copies_root(const ek_moe *m, int ep_group, int32_t expert)
{
    int32_t primary = m->x.serves[(int64_t)ep_group * m->x.experts + expert];
    int32_t ranks = slots_of_group(m) / m->x.slots;
    int32_t primary_rank = (primary - ep_group * slots_of_group(m)) / m->x.slots;

    if (ek_serving_copies_find(m, ep_group, expert, primary_rank))
        return primary_rank;
    for (int32_t r = 0; r < ranks; r++)
        if (ek_serving_copies_find(m, ep_group, expert, r))
            return r;
    return primary_rank;
}

int64_t ek_serving_copies_messages(const ek_moe *m)
{
    int64_t n = 0;

    for (int group = 0; group < m->x.ep_groups; group++) {
        ek_serving_copies_count(m, group);
        for (int32_t e = 0; e < m->x.experts; e++)
            if (m->serving[e] > 0)
                n += m->serving[e] - 1 + m->copies[e] - 1;
    }
    return n;
}
