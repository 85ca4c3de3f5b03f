/* Partners: on another host, in another rack where there is one, copies about even; groups side by
 * side. */
#include "base/random.h"
#include "base/ranks.h"
#include "ek_test.h"
#include "placement/partners.h"

enum { RANKS = 24, ROUNDS = 400 };

static int draw(int round, int what, int i, int n)
{
    return (int)(ek_random_bits((uint64_t)round, (uint64_t)what, (uint64_t)i) % (uint64_t)n);
}

/* How far r is from a rank: 0: on its host, 1, 2: in another rack. */
static int distance(const int *host, const int *rack, int a, int r)
{
    return host[a] == host[r] ? 0 : 1 + (rack != NULL && rack[a] != rack[r]);
}

static void as_far_as_possible(void)
{
    for (int round = 0; round < ROUNDS; round++) {
        int n = 1 + draw(round, 0, 0, RANKS), hosts = 1 + draw(round, 1, 0, 8);
        int host[RANKS], rack[RANKS];
        int32_t partner[RANKS], copies[RANKS], sum = 0;
        const int *racks = round % 2 == 0 ? rack : NULL;

        for (int i = 0; i < n; i++) {
            host[i] = draw(round, 2, i, hosts);
            rack[i] = host[i] / 2;
        }
        ek_partners_choose(n, host, racks, NULL, partner, copies);
        for (int i = 0; i < n; i++) {
            int farthest = 0;

            for (int r = 0; r < n; r++)
                farthest =
                    distance(host, racks, i, r) > farthest ? distance(host, racks, i, r) : farthest;
            CHECK_INT(partner[i] < 0 ? 0 : distance(host, racks, i, partner[i]), farthest);
            sum += partner[i] >= 0;
        }
        for (int i = 0; i < n; i++)
            sum -= copies[i];
        CHECK_INT(sum, 0);
    }
}

/* Ranks that need no copy have none, and nobody has one of them; the others are as far as before.
 */
static void only_of_those_that_need_one(void)
{
    for (int round = 0; round < ROUNDS; round++) {
        int n = 1 + draw(round, 0, 0, RANKS), host[RANKS];
        unsigned char needs[RANKS];
        int32_t partner[RANKS], copies[RANKS], sum = 0, want = 0;

        for (int i = 0; i < n; i++) {
            host[i] = draw(round, 1, i, 4);
            needs[i] = (unsigned char)draw(round, 2, i, 2);
        }
        ek_partners_choose(n, host, NULL, needs, partner, copies);
        for (int i = 0; i < n; i++) {
            int farthest = 0;

            for (int r = 0; r < n; r++)
                farthest |= host[r] != host[i];
            CHECK_INT(partner[i] >= 0, needs[i] && farthest);
            CHECK(partner[i] < 0 || host[partner[i]] != host[i]);
            want += needs[i] && farthest;
        }
        for (int i = 0; i < n; i++)
            sum += copies[i];
        CHECK_INT(sum, want);
    }
}

/* Hosts with equally many ranks, in any order: at most two copies each. */
static void even_copies(void)
{
    for (int hosts = 2; hosts <= 8; hosts++)
        for (int each = 1; hosts * each <= RANKS; each++)
            for (int order = 0; order < 2; order++) {
                int host[RANKS], n = hosts * each;
                int32_t partner[RANKS], copies[RANKS];

                for (int i = 0; i < n; i++)
                    host[i] = order == 0 ? i / each : i % hosts;
                ek_partners_choose(n, host, NULL, NULL, partner, copies);
                for (int i = 0; i < n; i++)
                    CHECK(copies[i] >= 0 && copies[i] <= 2);
            }
}

static void groups_side_by_side(void)
{
    enum { PP = 2, STRIDE = 3, N = 4, ALL = PP * STRIDE * N };
    int host[ALL];
    int32_t partner[ALL], scratch[4 * N];

    for (int i = 0; i < ALL; i++)
        host[i] = i / 2;
    ek_partners_choose_groups(ALL, STRIDE, N, host, NULL, partner, scratch);
    for (int i = 0; i < ALL; i++) {
        int group_host[N];
        int32_t chosen[N], copies[N];
        ek_ranks group = ek_ranks_around(i, STRIDE, N);

        for (int k = 0; k < N; k++)
            group_host[k] = host[ek_ranks_at(group, k)];
        ek_partners_choose(N, group_host, NULL, NULL, chosen, copies);
        CHECK_INT(partner[i], ek_ranks_at(group, chosen[(i - group.first) / STRIDE]));
    }
}

/* Drawn layouts and hosts: whatever one host alone has of the weights is in a copy on another. */
static void all_that_one_host_has(void)
{
    int any = 0, none = 0;

    for (int round = 0; round < ROUNDS; round++) {
        static const int32_t sizes[][4] = {{1, 1, 1, 1}, {2, 1, 2, 1}, {1, 2, 2, 1}, {2, 2, 2, 2},
                                           {3, 1, 1, 1}, {1, 4, 4, 1}, {4, 1, 2, 2}, {2, 2, 4, 1}};
        const int32_t *s = sizes[round % 8]; /* dp, tp, ep, etp */
        int32_t stage = s[0] * s[1], pp = 1 + draw(round, 0, 0, 4), n = pp * stage;
        ek_partner_layout l = {n, s[0], s[1], stage / (s[2] * s[3]), s[2], s[3], round / 8 % 2};
        int host[RANKS], each = 1 + draw(round, 1, 0, 4), alone = 0, found;
        unsigned char needs[RANKS];
        int32_t partner[RANKS], copies[RANKS];

        if (stage % (s[2] * s[3]) != 0)
            continue;
        for (int i = 0; i < n; i++)
            host[i] = i / each;
        found = ek_partners_choose_ranks(&l, host, NULL, needs, partner, copies);
        for (int kind = 0; kind < 2; kind++) /* weights, then experts */
            for (int i = 0; i < n; i++) {
                ek_ranks g = kind == 0 ? ek_ranks_around(i, l.tp, l.dp)
                                       : ek_ranks_around(i, l.ep * l.etp, l.edp);
                int hosts = 0, copied = 0, own = partner[i] >= 0;

                for (int k = 0; k < g.n; k++) {
                    hosts |= host[ek_ranks_at(g, k)] != host[i];
                    copied |= partner[ek_ranks_at(g, k)] >= 0;
                }
                alone |= kind == 0 && !hosts && host[n - 1] != host[0];
                CHECK(hosts || !found || (l.shards ? own : copied));
            }
        CHECK_INT(found, alone);
        for (int i = 0; i < n; i++) {
            CHECK(partner[i] < 0 || (found && host[partner[i]] != host[i]));
            CHECK_INT(partner[i] >= 0, needs[i]);
        }
        any += found;
        none += !found;
    }
    CHECK(any > ROUNDS / 10 && none > ROUNDS / 10);
}

static const ek_case cases[] = {
    EK_CASE(as_far_as_possible),  EK_CASE(only_of_those_that_need_one), EK_CASE(even_copies),
    EK_CASE(groups_side_by_side), EK_CASE(all_that_one_host_has),
};
EK_TEST_MAIN(cases)
