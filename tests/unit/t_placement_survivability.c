/* Survivability of all layers together: against every loss tried one by one, the paper's examples,
 * and properties of the smallest sets. */
#include "base/random.h"
#include "ek_test.h"
#include "placement/survivability.h"

#include <math.h>
#include <string.h>

enum { NODES = 10, ROWS = 24 };

typedef struct {
    ek_arena arena;
    ek_replica_sets h;
} fixture;

static void setup(fixture *f, int32_t domains, int64_t room)
{
    ek_arena_measure(&f->arena);
    ek_replica_sets_reserve(&f->h, &f->arena, domains, room);
    CHECK(ek_arena_reserve(&f->arena, "holders") == EK_OK);
    ek_replica_sets_reserve(&f->h, &f->arena, domains, room);
}

static void teardown(fixture *f)
{
    ek_arena_fini(&f->arena);
}

static void add(fixture *f, uint64_t mask)
{
    ek_replica_sets_add(&f->h, &mask);
}

static double survivability(const fixture *f, int32_t k)
{
    ek_survivability s = ek_replica_sets_survivability(&f->h, k);

    CHECK(s.error <= 0);
    return s.p;
}

static int begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* The fraction of all sets of k lost domains that leaves a domain of each row. */
static double by_trying(const uint64_t *rows, int n, int32_t domains, int32_t k)
{
    int64_t sets = 0, fatal = 0;

    for (uint64_t lost = 0; lost < UINT64_C(1) << domains; lost++) {
        int takes = 0;

        if (__builtin_popcountll(lost) != k)
            continue;
        for (int i = 0; i < n; i++)
            takes |= (rows[i] & ~lost) == 0;
        sets++;
        fatal += takes;
    }
    return 1 - (double)fatal / (double)sets;
}

static void matches_every_loss(void)
{
    for (uint64_t n = 0; n < 400; n++) {
        fixture f;
        uint64_t rows[ROWS];
        int32_t domains = 1 + (int32_t)(ek_random_bits(n, 0, 0) % NODES), any = domains;
        int many = 1 + (int)(ek_random_bits(n, 0, 1) % ROWS);

        setup(&f, domains, many);
        for (int i = 0; i < many; i++) {
            uint64_t all = (UINT64_C(1) << domains) - 1;

            rows[i] = ek_random_bits(n, 1, (uint64_t)i) & all;
            if (n % 3 == 0)
                rows[i] |= ek_random_bits(n, 2, (uint64_t)i) & all;
            rows[i] |= rows[i] == 0;
            add(&f, rows[i]);
        }
        for (int32_t k = domains; k >= 0; k--) {
            double want = by_trying(rows, many, domains, k);

            CHECK(fabs(survivability(&f, k) - want) < 1e-12);
            if (want < 1)
                any = k - 1;
        }
        CHECK_INT(ek_replica_sets_survive(&f.h), any);
        teardown(&f);
    }
}

/* Lazarus (arXiv 2407.04656v2), figures 4 and 5: five nodes, of which three fail. */
static void the_papers_examples(void)
{
    fixture f;

    setup(&f, 5, 4);
    add(&f, 0x03); /* nested: 7 of 10 */
    add(&f, 0x1f);
    CHECK(fabs(survivability(&f, 3) - 0.7) < 1e-12);
    ek_replica_sets_clear(&f.h);
    add(&f, 0x03); /* AB AB CD CD CD: 4 of 10 are fatal */
    add(&f, 0x1c);
    CHECK(fabs(survivability(&f, 3) - 0.6) < 1e-12);
    ek_replica_sets_clear(&f.h);
    add(&f, 0x03); /* AB AD BC CD CD: 7 of 10 */
    add(&f, 0x05);
    add(&f, 0x1c);
    add(&f, 0x1a);
    CHECK(fabs(survivability(&f, 3) - 0.3) < 1e-12);
    teardown(&f);
}

/* Two layers of two experts on pairs of four nodes: with equal pairs two of six losses are fatal,
 * with crossed pairs four.  The product of the layers' own probabilities would be 0.44 for both. */
static void layers_share_losses(void)
{
    int32_t experts[2][4] = {{0, 0, 1, 1}, {0, 1, 0, 1}}, primary[2] = {0, 2};
    static const int32_t domain_of[4] = {0, 1, 2, 3};
    fixture f;

    setup(&f, 4, 4);
    for (int across = 0; across < 2; across++) {
        ek_replica_sets_clear(&f.h);
        for (int layer = 0; layer < 2; layer++) {
            ek_placement p = {2, 4, 1, experts[across * layer], primary};

            ek_replica_sets_add_placement(&f.h, &p, domain_of, 0);
        }
        CHECK(fabs(survivability(&f, 2) - (across ? 2.0 / 6 : 4.0 / 6)) < 1e-12);
        CHECK_INT(f.h.n, across ? 4 : 2);
    }
    teardown(&f);
}

/* Adding a placement adds the nodes of each expert, of those on enough nodes: masks of two words.
 */
static void placements_add_each_expert(void)
{
    enum { DOMAINS = 70, SLOTS = 3, EXPERTS = 40, LAYERS = 4 };
    int32_t expert_of[DOMAINS * SLOTS], primary[EXPERTS] = {0}, domain_of[DOMAINS];
    ek_placement p = {EXPERTS, DOMAINS, SLOTS, expert_of, primary};
    fixture f, plain;

    setup(&f, DOMAINS, LAYERS * EXPERTS);
    setup(&plain, DOMAINS, LAYERS * EXPERTS);
    for (int32_t r = 0; r < DOMAINS; r++)
        domain_of[r] = DOMAINS - 1 - r;
    for (uint64_t layer = 0; layer < LAYERS; layer++) {
        for (int32_t s = 0; s < DOMAINS * SLOTS; s++) /* low experts have most slots */
            expert_of[s] = (int32_t)(ek_random_bits(layer, 0, (uint64_t)s) % EXPERTS *
                                     (ek_random_bits(layer, 1, (uint64_t)s) % EXPERTS) / EXPERTS) -
                           1;
        ek_replica_sets_add_placement(&f.h, &p, domain_of, 3);
        for (int32_t e = 0; e < EXPERTS; e++) {
            uint64_t mask[2] = {0};

            for (int32_t s = 0; s < DOMAINS * SLOTS; s++)
                if (expert_of[s] == e)
                    mask[domain_of[s / SLOTS] / 64] |= UINT64_C(1) << domain_of[s / SLOTS] % 64;
            if (__builtin_popcountll(mask[0]) + __builtin_popcountll(mask[1]) >= 3)
                ek_replica_sets_add(&plain.h, mask);
        }
        CHECK(plain.h.n > (int64_t)layer);
        CHECK_INT(f.h.n, plain.h.n);
        CHECK(memcmp(f.h.mask, plain.h.mask, (size_t)(plain.h.n * 2) * sizeof(*f.h.mask)) == 0);
    }
    teardown(&f);
    teardown(&plain);
}

/* Ranks of one domain count once; an expert that is nowhere is lost. */
static void domains_of_ranks(void)
{
    int32_t expert_of[8] = {0, 1, 0, 1, 1, -1, -1, 0}, primary[2] = {0, 1};
    static const int32_t one_each[4] = {0, 1, 2, 3}, pairs[4] = {0, 0, 1, 1}, all[4] = {0};
    ek_placement p = {2, 4, 2, expert_of, primary};
    char text[160];
    fixture f;

    setup(&f, 4, 2);
    ek_replica_sets_add_placement(&f.h, &p, one_each, 0);
    CHECK_INT(ek_replica_sets_survive(&f.h), 2);
    CHECK(fabs(survivability(&f, 3) - 0.5) < 1e-12);
    ek_replica_sets_text(&f.h, "node", text, sizeof(text));
    CHECK(strcmp(text, "survives any 2 of 4 nodes; any 3 with probability 0.50") == 0);
    expert_of[7] = 1;
    ek_replica_sets_clear(&f.h);
    ek_replica_sets_add_placement(&f.h, &p, pairs, 0); /* expert 0 on the first pair only */
    CHECK_INT(ek_replica_sets_survive(&f.h), 0);
    teardown(&f);
    setup(&f, 1, 2);
    ek_replica_sets_add_placement(&f.h, &p, all, 0);
    CHECK(strcmp(ek_replica_sets_text(&f.h, "rack", text, sizeof(text)),
                 "survives no loss of a rack") == 0);
    ek_replica_sets_clear(&f.h);
    add(&f, 0);
    CHECK_INT(ek_replica_sets_survive(&f.h), -1);
    CHECK(survivability(&f, 0) <= 0);
    teardown(&f);
}

/* More domains than bits in a word: P(m) stays exact. */
static void many_domains(void)
{
    enum { WIDE = 240, PAIRS = 60 };
    fixture f;
    uint64_t mask[4];
    char text[160];

    setup(&f, WIDE, PAIRS + 1);
    for (int i = 0; i < PAIRS; i++) {
        memset(mask, 0, sizeof(mask));
        mask[i % 4] = UINT64_C(1) << (i / 4);
        mask[(i + 1) % 4] |= UINT64_C(1) << (i / 4);
        ek_replica_sets_add(&f.h, mask);
    }
    mask[0] = mask[1] = mask[2] = 7; /* includes a pair, so it is not minimal */
    ek_replica_sets_add(&f.h, mask);
    CHECK_INT(f.h.n, PAIRS);
    CHECK_INT(ek_replica_sets_survive(&f.h), 1);
    CHECK(fabs(survivability(&f, 2) - (1 - PAIRS / (WIDE * (WIDE - 1) / 2.0))) < 1e-12);
    ek_replica_sets_text(&f.h, "node", text, sizeof(text));
    CHECK(begins(text, "survives any 1 of 240 nodes; any 2 with probability 0.998; any 3 with "
                       "probability 0.99"));
    CHECK(strstr(text, " +- 0.005") != NULL); /* drawn */
    teardown(&f);
}

/* With too many sets they are drawn, within the stated error; the true value for one pair is C(n-2,
 * k-2) / C(n, k). */
static void drawn_within_the_stated_error(void)
{
    enum { N = 50 };
    fixture f;

    setup(&f, N, 1);
    add(&f, 3);
    for (int32_t k = 20; k <= 40; k += 10) {
        ek_survivability s = ek_replica_sets_survivability(&f.h, k),
                         again = ek_replica_sets_survivability(&f.h, k);
        double want = 1 - (double)k * (k - 1) / ((double)N * (N - 1));

        CHECK(s.error > 0.005 && s.error < 0.006);
        CHECK(fabs(s.p - want) <= s.error);
        CHECK(memcmp(&s, &again, sizeof(s)) == 0);
    }
    teardown(&f);
}

/* A probability near 1 is not printed as 1. */
static void words(void)
{
    char text[160];
    fixture f;

    setup(&f, 64, 2);
    add(&f, 0xf);
    ek_replica_sets_text(&f.h, "node", text, sizeof(text));
    CHECK(begins(text, "survives any 3 of 64 nodes; any 4 with probability 0.999998; "));
    ek_replica_sets_clear(&f.h);
    add(&f, 1);
    add(&f, 2);
    ek_replica_sets_text(&f.h, "rack", text, sizeof(text));
    CHECK(strcmp(text, "survives any 1 of 64 racks with probability 0.97; any 2 with probability "
                       "0.94") == 0);
    teardown(&f);
}

static const ek_case cases[] = {
    EK_CASE(matches_every_loss),
    EK_CASE(the_papers_examples),
    EK_CASE(layers_share_losses),
    EK_CASE(placements_add_each_expert),
    EK_CASE(domains_of_ranks),
    EK_CASE(many_domains),
    EK_CASE(drawn_within_the_stated_error),
    EK_CASE(words),
};
EK_TEST_MAIN(cases)
