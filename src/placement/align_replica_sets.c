/* Local search by swaps of two domains. */
#include "placement/align_replica_sets.h"

#include <string.h>

enum { WORK = 1 << 24 };

void ek_align_reserve(ek_set_alignment *a, ek_arena *arena, int32_t nodes, int64_t capacity)
{
    memset(a, 0, sizeof(*a));
    a->nodes = nodes;
    a->words = (nodes + 63) / 64;
    a->capacity = capacity;
    a->set = ek_arena_alloc(arena, capacity * a->words, sizeof(*a->set));
    a->is_new = ek_arena_alloc(arena, capacity, sizeof(*a->is_new));
    a->was_new = ek_arena_alloc(arena, capacity, sizeof(*a->was_new));
    a->real = ek_arena_alloc(arena, a->words, sizeof(*a->real));
}

void ek_align_clear(ek_set_alignment *a)
{
    a->n = 0;
    a->size = a->nodes + 1;
}

void ek_align_add(ek_set_alignment *a, const uint64_t *mask)
{
    size_t bytes = (size_t)a->words * sizeof(*mask);
    int32_t size = 0;

    for (int32_t i = 0; i < a->words; i++)
        size += __builtin_popcountll(mask[i]);
    if (size > a->size)
        return;
    if (size < a->size)
        a->n = 0;
    a->size = size;
    for (int64_t i = 0; i < a->n; i++)
        if (memcmp(a->set + i * a->words, mask, bytes) == 0)
            return;
    memcpy(a->set + a->n++ * a->words, mask, bytes);
}

static int set_includes(const ek_set_alignment *a, int64_t set, int32_t node)
{
    return (int)(a->set[set * a->words + node / 64] >> (node % 64) & 1);
}

/* Whether the loss of a set's domains is not yet fatal to the other layers. */
static int is_new_set(ek_set_alignment *a, const ek_replica_sets *others, const int32_t *image,
                      int64_t set)
{
    memset(a->real, 0, (size_t)a->words * sizeof(*a->real));
    for (int32_t i = 0; i < a->words; i++)
        for (uint64_t m = a->set[set * a->words + i]; m != 0; m &= m - 1) {
            int32_t node = image[i * 64 + __builtin_ctzll(m)];

            a->real[node / 64] |= UINT64_C(1) << (node % 64);
        }
    a->work += others->n * a->words;
    return !ek_replica_sets_cover(others, a->real);
}

static void swap_image(int32_t *image, int32_t i, int32_t j)
{
    int32_t was = image[i];

    image[i] = image[j];
    image[j] = was;
}

/* Swaps two domains if that lowers the number of new sets; returns by how much. */
static int64_t try_swap(ek_set_alignment *a, const ek_replica_sets *others, int32_t *image,
                        int32_t i, int32_t j)
{
    int64_t less = 0;

    swap_image(image, i, j);
    memcpy(a->was_new, a->is_new, (size_t)a->n);
    for (int64_t s = 0; s < a->n; s++)
        if (set_includes(a, s, i) != set_includes(a, s, j)) {
            a->is_new[s] = (unsigned char)is_new_set(a, others, image, s);
            less += a->was_new[s] - a->is_new[s];
        }
    if (less > 0)
        return less;
    swap_image(image, i, j);
    memcpy(a->is_new, a->was_new, (size_t)a->n);
    return 0;
}

int64_t ek_align_replica_sets(ek_set_alignment *a, const ek_replica_sets *others,
                              const int32_t *slots, int32_t *image)
{
    int64_t n = 0, before = -1;

    a->work = 0;
    for (int64_t s = 0; s < a->n; s++)
        n += a->is_new[s] = (unsigned char)is_new_set(a, others, image, s);
    while (n > 0 && n != before) {
        before = n;
        for (int32_t i = 0; i < a->nodes; i++)
            for (int32_t j = i + 1; j < a->nodes && n > 0 && a->work < WORK; j++)
                if (slots[i] == slots[j])
                    n -= try_swap(a, others, image, i, j);
    }
    return n;
}
