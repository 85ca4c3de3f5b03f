/* Mapping domains so that layers share fatal sets: never worse than before, mostly the optimum over
 * all permutations, and only among domains of equal size. */
#include "base/random.h"
#include "ek_test.h"
#include "placement/align_replica_sets.h"

#include <string.h>

enum { MOST = 6, SETS = 6 };

typedef struct {
    ek_arena arena;
    ek_set_alignment a;
    ek_replica_sets others;
} fixture;

static void lay(fixture *f, ek_arena *arena, int32_t nodes)
{
    ek_align_reserve(&f->a, arena, nodes, SETS + 1);
    ek_replica_sets_reserve(&f->others, arena, nodes, SETS);
}

static void setup(fixture *f, int32_t nodes)
{
    ek_arena_measure(&f->arena);
    lay(f, &f->arena, nodes);
    CHECK(ek_arena_reserve(&f->arena, "sets") == EK_OK);
    lay(f, &f->arena, nodes);
    ek_align_clear(&f->a);
}

/* A random set of two nodes or, if few is 0, up to three. */
static uint64_t draw_set(uint64_t seed, uint64_t n, int32_t nodes, int few)
{
    uint64_t a = ek_random_bits(seed, n, 0) % (uint64_t)nodes;
    uint64_t b = (a + 1 + ek_random_bits(seed, n, 1) % (uint64_t)(nodes - 1)) % (uint64_t)nodes;
    uint64_t c = ek_random_bits(seed, n, 2) % (uint64_t)nodes;

    return UINT64_C(1) << a | UINT64_C(1) << b | (few ? 0 : UINT64_C(1) << c);
}

static int64_t new_of(const fixture *f, const int32_t *image)
{
    int64_t n = 0;

    for (int64_t s = 0; s < f->a.n; s++) {
        uint64_t real = 0;

        for (int32_t i = 0; i < f->a.nodes; i++)
            real |= (f->a.set[s] >> i & 1) << image[i];
        n += !ek_replica_sets_cover(&f->others, &real);
    }
    return n;
}

/* The optimum over all permutations of domains of equal size. */
static int64_t by_trying(const fixture *f, const int32_t *room, int32_t *image, int32_t i,
                         unsigned used)
{
    int64_t best = INT64_MAX;

    if (i == f->a.nodes)
        return new_of(f, image);
    for (int32_t to = 0; to < f->a.nodes; to++)
        if ((used >> to & 1) == 0 && room[to] == room[i]) {
            int64_t n;

            image[i] = to;
            n = by_trying(f, room, image, i + 1, used | 1U << to);
            best = n < best ? n : best;
        }
    return best;
}

static void as_good_as_all_others(void)
{
    int best = 0, tried = 0, better = 0;

    for (uint64_t n = 0; n < 300; n++) {
        int32_t nodes = 3 + (int32_t)(n % (MOST - 2)), room[MOST], image[MOST], any[MOST];
        int64_t before, after, least;
        fixture f;

        setup(&f, nodes);
        for (uint64_t i = 0; i < SETS; i++) {
            uint64_t mine = draw_set(n, i, nodes, 1), other = draw_set(n, 50 + i, nodes, i % 2);

            if (i < 1 + n % SETS)
                ek_align_add(&f.a, &mine);
            ek_replica_sets_add(&f.others, &other);
        }
        for (int32_t i = 0; i < nodes; i++) {
            room[i] = n % 4 == 0 ? 1 + i % 2 : 3;
            image[i] = i;
        }
        before = new_of(&f, image);
        after = ek_align_replica_sets(&f.a, &f.others, room, image);
        least = by_trying(&f, room, any, 0, 0);
        CHECK_INT(new_of(&f, image), after);
        CHECK(after <= before && after >= least);
        for (int32_t i = 0; i < nodes; i++)
            CHECK_INT(room[image[i]], room[i]);
        tried++;
        best += after == least;
        better += after < before;
        ek_arena_fini(&f.arena);
    }
    CHECK(better * 3 > tried);
    CHECK(best * 10 > tried * 9);
}

/* Only the smallest sets are kept, each once. */
static void smallest_sets(void)
{
    static const uint64_t mask[] = {0x7, 0x6, 0x9, 0x6, 0xe};
    fixture f;

    setup(&f, 4);
    for (size_t i = 0; i < sizeof(mask) / sizeof(mask[0]); i++)
        ek_align_add(&f.a, &mask[i]);
    CHECK_INT(f.a.n, 2);
    CHECK_INT(f.a.size, 2);
    CHECK(f.a.set[0] == 0x6 && f.a.set[1] == 0x9);
    ek_arena_fini(&f.arena);
}

/* Each layer has the four pairs of neighbours in a ring of four nodes; the second ring has another
 * order. */
static void rings_are_aligned(void)
{
    static const uint64_t ring[] = {0x3, 0x6, 0xc, 0x9}, twisted[] = {0x3, 0xa, 0xc, 0x5};
    static const int32_t room[] = {2, 2, 2, 2};
    int32_t image[] = {0, 1, 2, 3};
    fixture f;

    setup(&f, 4);
    for (int i = 0; i < 4; i++) {
        ek_replica_sets_add(&f.others, &ring[i]);
        ek_align_add(&f.a, &twisted[i]);
    }
    CHECK_INT(new_of(&f, image), 2);
    CHECK_INT(ek_align_replica_sets(&f.a, &f.others, room, image), 0);
    CHECK_INT(new_of(&f, image), 0);
    ek_arena_fini(&f.arena);
}

static const ek_case cases[] = {
    EK_CASE(as_good_as_all_others),
    EK_CASE(smallest_sets),
    EK_CASE(rings_are_aligned),
};
EK_TEST_MAIN(cases)
