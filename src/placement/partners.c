/* Rank after rank: the next one in another rack, else on another host, with the fewest copies. */
#include "placement/partners.h"

#include "base/ranks.h"

/* How far a rank is from another: 0: on its host; 1: in its rack; 2: in another. */
static int distance_of(const int *host, const int *rack, int32_t a, int32_t b)
{
    if (host[a] == host[b])
        return 0;
    return rack != NULL && rack[a] != rack[b] ? 2 : 1;
}

void ek_partners_choose(int32_t n, const int *host, const int *rack, int32_t *partner,
                        int32_t *copies)
{
    for (int32_t i = 0; i < n; i++)
        copies[i] = 0;
    for (int32_t owner = 0; owner < n; owner++) {
        int farthest = 0;

        partner[owner] = -1;
        for (int32_t i = 1; i < n; i++) {
            int32_t r = (owner + i) % n;
            int distance = distance_of(host, rack, owner, r);

            if (distance < farthest || distance == 0 ||
                (distance == farthest && copies[r] >= copies[partner[owner]]))
                continue;
            farthest = distance;
            partner[owner] = r;
        }
        if (partner[owner] >= 0)
            copies[partner[owner]]++;
    }
}

void ek_partners_choose_groups(int32_t ranks, int32_t stride, int32_t n, const int *host,
                               const int *rack, int32_t *partner, int32_t *scratch)
{
    int32_t *hosts = scratch, *racks = scratch + n, *chosen = scratch + 2 * n;

    for (int32_t first = 0; first < ranks; first++) {
        ek_ranks group = ek_ranks_around(first, stride, n);

        if (group.first != first)
            continue;
        for (int32_t i = 0; i < n; i++) {
            hosts[i] = host[ek_ranks_at(group, i)];
            racks[i] = rack != NULL ? rack[ek_ranks_at(group, i)] : 0;
        }
        ek_partners_choose(n, hosts, racks, chosen, scratch + 3 * n);
        for (int32_t i = 0; i < n; i++)
            partner[ek_ranks_at(group, i)] = chosen[i] >= 0 ? ek_ranks_at(group, chosen[i]) : -1;
    }
}
