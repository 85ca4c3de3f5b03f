/* The warm state of a trainer: load histories, for the same or another number of ranks; and
 * unusable warm states. */
#include "base/random.h"
#include "ek_test.h"
#include "train/tune/warm_state.h"

enum { LAYERS = 4, EXPERTS = 6, RANKS = 4, BYTES = 1 << 16 };

/* The members of a pass that a warm state uses; odd layers have no load history. */
typedef struct {
    ek_model model;
    ek_pass pass;
    ek_moe moe[LAYERS];
    ek_moe_planning planning;
    int64_t counts[LAYERS][RANKS * EXPERTS];
} fake;

static void fake_init(fake *f, int ranks)
{
    memset(f, 0, sizeof(*f));
    f->model.spec.layers = LAYERS;
    f->model.spec.experts = EXPERTS;
    f->planning.limits.ranks = ranks;
    f->pass.model = &f->model;
    f->pass.moe = f->moe;
    for (int l = 0; l < LAYERS; l++) {
        f->moe[l].planning = &f->planning;
        f->moe[l].history.counts = l % 2 == 0 ? f->counts[l] : NULL;
    }
}

static void fake_fill(fake *f)
{
    for (int l = 0; l < LAYERS; l += 2) {
        f->moe[l].history.of = 10 + l;
        for (int i = 0; i < f->planning.limits.ranks * EXPERTS; i++)
            f->counts[l][i] = (int64_t)(ek_random_bits(1, (uint64_t)l, (uint64_t)i) % 1000);
    }
}

static int64_t load(const fake *f, int layer, int expert)
{
    int64_t sum = 0;

    for (int r = 0; r < f->planning.limits.ranks; r++)
        sum += f->counts[layer][r * EXPERTS + expert];
    return sum;
}

static unsigned char note[BYTES];
static const double numbers[EK_PASS_SHARED] = {1.5, -2, 0, 1e300};

static void loads_are_known(void)
{
    for (int ranks = 1; ranks <= RANKS; ranks++) {
        static fake a, b;
        ek_warm_state_found found;
        size_t bytes;

        fake_init(&a, RANKS);
        fake_fill(&a);
        fake_init(&b, ranks);
        a.pass.rebalance.placed = ranks % 2;
        bytes = ek_warm_state_write(NULL, &a.pass, numbers, note, BYTES);
        CHECK(bytes > 0 && bytes < BYTES);
        found = ek_warm_state_read(NULL, &b.pass, note, bytes, ranks != RANKS);
        CHECK(found.loads && found.placed == ranks % 2);
        CHECK(memcmp(found.shared, numbers, sizeof(numbers)) == 0);
        for (int l = 0; l < LAYERS; l += 2) {
            CHECK_INT(b.moe[l].history.of, 10 + l);
            for (int e = 0; e < EXPERTS; e++) {
                CHECK_INT(load(&b, l, e), load(&a, l, e));
                for (int r = 1; r < ranks; r++)
                    CHECK(b.counts[l][e] - b.counts[l][r * EXPERTS + e] <= 1);
            }
        }
    }
}

/* Followed by a tuner, and with as many layers as fit. */
static void with_a_tuner_and_without_room(void)
{
    static const ek_moe_traffic settings[] = {{1, EK_A2A_LINEAR, 1}, {2, EK_A2A_LINEAR, 1}};
    static fake a, b;
    static ek_tune t, u;
    ek_warm_state_found found;
    size_t bytes;

    fake_init(&a, RANKS);
    fake_fill(&a);
    ek_tune_init(&t, settings, 2);
    for (int step = 0; step < 5; step++)
        (void)ek_tune_next(&t, 0);
    for (size_t room = 0; room < BYTES; room += room < 1000 ? 1 : 977) {
        int known = 0;

        fake_init(&b, RANKS);
        ek_tune_init(&u, settings, 2);
        bytes = ek_warm_state_write(&t, &a.pass, numbers, note, room);
        CHECK(bytes <= room);
        found = ek_warm_state_read(&u, &b.pass, note, bytes, 0);
        for (int l = 0; l < LAYERS; l += 2)
            known += b.moe[l].history.of > 0;
        CHECK(known == 2 || room < 300);
        CHECK_INT(found.loads, known == 2);
        CHECK(u.step == t.step || room < 25000);
    }
    CHECK_INT(u.step, 5);
}

static void notes_of_no_use(void)
{
    static unsigned char broken[BYTES];
    static fake a, b;
    size_t bytes;

    fake_init(&a, RANKS);
    fake_fill(&a);
    bytes = ek_warm_state_write(NULL, &a.pass, numbers, note, BYTES);
    for (size_t n = 0; n < bytes; n++) {
        fake_init(&b, RANKS);
        ek_warm_state_read(NULL, &b.pass, note, n, 0);
        CHECK(b.moe[0].history.of == 0 && b.moe[2].history.of == 0);
    }
    fake_init(&b, RANKS);
    b.model.spec.experts = EXPERTS - 1;
    ek_warm_state_read(NULL, &b.pass, note, bytes, 0);
    CHECK_INT(b.moe[0].history.of, 0);
    for (uint64_t seed = 0; seed < 5000; seed++) {
        memcpy(broken, note, bytes);
        for (uint64_t i = 0; i < 1 + seed % 5; i++) {
            uint64_t x = ek_random_bits(seed, i, 1);

            broken[x % bytes] = (unsigned char)(x >> 40);
        }
        fake_init(&b, RANKS);
        ek_warm_state_read(NULL, &b.pass, broken, bytes, 0);
        for (int l = 0; l < LAYERS; l += 2)
            for (int i = 0; i < RANKS * EXPERTS; i++)
                CHECK(b.counts[l][i] >= 0 && b.counts[l][i] < INT64_C(1) << 48);
    }
}

static const ek_case cases[] = {
    EK_CASE(loads_are_known),
    EK_CASE(with_a_tuner_and_without_room),
    EK_CASE(notes_of_no_use),
};
EK_TEST_MAIN(cases)
