/* Rank after rank: the next one in another rack, else on another host, with the fewest copies. */
#include "placement/partners.h"

/* How far a rank is from another: 0: on its host; 1: in its rack; 2: in another. */
static int distance_of(const int *host, const int *rack, int32_t a, int32_t b)
{
    if (host[a] == host[b])
        return 0;
    return rack != NULL && rack[a] != rack[b] ? 2 : 1;
}

void ek_partners_choose(int32_t n, const int *host, const int *rack, const unsigned char *needs,
                        int32_t *partner, int32_t *copies)
{
    for (int32_t i = 0; i < n; i++)
        copies[i] = 0;
    for (int32_t owner = 0; owner < n; owner++) {
        int farthest = 0;

        partner[owner] = -1;
        for (int32_t i = 1; i < n && (needs == NULL || needs[owner]); i++) {
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
        ek_partners_choose(n, hosts, racks, NULL, chosen, scratch + 3 * n);
        for (int32_t i = 0; i < n; i++)
            partner[ek_ranks_at(group, i)] = chosen[i] >= 0 ? ek_ranks_at(group, chosen[i]) : -1;
    }
}

/* --- of all that a rank keeps ----------------------------------------------------------------- */

int ek_ranks_on_one_host(ek_ranks group, const int *host)
{
    for (int32_t i = 1; i < group.n; i++)
        if (host[ek_ranks_at(group, i)] != host[group.first])
            return 0;
    return 1;
}

/* The ranks that have the same weights as this one, but experts; and the same experts. */
static ek_ranks dense_group(const ek_partner_layout *l, int32_t rank)
{
    return ek_ranks_around(rank, l->tp, l->dp);
}

static ek_ranks expert_group(const ek_partner_layout *l, int32_t rank)
{
    return ek_ranks_around(rank, l->ep * l->etp, l->edp);
}

/* Whether what the ranks of a group have alone needs a copy of this one: no earlier one has it. */
static int needs_this(const ek_partner_layout *l, ek_ranks group, const int *host, int32_t rank,
                      const unsigned char *needs)
{
    for (int32_t i = 0; !l->shards && i < group.n && ek_ranks_at(group, i) < rank; i++)
        if (needs[ek_ranks_at(group, i)])
            return 0;
    return ek_ranks_on_one_host(group, host);
}

static int is_any_alone(const ek_partner_layout *l, const int *host)
{
    for (int32_t rank = 0; rank < l->ranks; rank++)
        if (ek_ranks_on_one_host(dense_group(l, rank), host))
            return 1;
    return 0;
}

int ek_partners_choose_ranks(const ek_partner_layout *l, const int *host, const int *rack,
                             unsigned char *needs, int32_t *partner, int32_t *copies)
{
    int any = is_any_alone(l, host) && !ek_ranks_on_one_host((ek_ranks){0, 1, l->ranks}, host);

    for (int32_t rank = 0; rank < l->ranks; rank++) {
        needs[rank] =
            (unsigned char)(any && (needs_this(l, dense_group(l, rank), host, rank, needs) ||
                                    needs_this(l, expert_group(l, rank), host, rank, needs)));
    }
    ek_partners_choose(l->ranks, host, rack, needs, partner, copies);
    return any;
}
