/* Builds the groups of a rank from the sizes of a layout. */
#include "comm/mesh.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

static int or_one(int n)
{
    return n == 0 ? 1 : n;
}

/* The divisors of n as text: "1, 2 or 4". */
static void divisors_text(int n, char *text, size_t cap)
{
    size_t used = 0;
    int left = 0;

    for (int d = 1; d <= n; d++)
        left += n % d == 0;
    text[0] = '\0';
    for (int d = 1; d <= n && used + 16 < cap; d++) {
        if (n % d != 0)
            continue;
        left--;
        used += (size_t)snprintf(text + used, cap - used, "%d%s", d,
                                 left > 1    ? ", "
                                 : left == 1 ? " or "
                                             : "");
    }
}

/* EK_EINVAL unless `value` divides the n ranks, described by `what`. */
static ek_status check_factor(const char *option, int value, int n, const char *what)
{
    char fit[256];

    divisors_text(n, fit, sizeof(fit));
    EK_REQUIRE(value >= 0, EK_EINVAL, "%s %d is not a number of ranks: %s would fit", option, value,
               fit);
    EK_REQUIRE(n % or_one(value) == 0, EK_EINVAL, "%s %d does not divide %s: %s would", option,
               value, what, fit);
    return EK_OK;
}

ek_status ek_mesh_check(const ek_mesh_sizes *sizes, int ranks)
{
    char what[128];
    int stage, etp;

    snprintf(what, sizeof(what), "the %d rank%s there are", ranks, ranks == 1 ? "" : "s");
    EK_TRY(check_factor("--pp", sizes->pp, ranks, what));
    stage = ranks / or_one(sizes->pp);
    snprintf(what, sizeof(what), "the %d rank%s of a pipeline stage", stage, stage == 1 ? "" : "s");
    EK_TRY(check_factor("--tp", sizes->tp, stage, what));
    EK_TRY(check_factor("--etp", sizes->etp, stage, what));
    etp = or_one(sizes->etp);
    if (etp > 1)
        snprintf(what, sizeof(what), "the %d that --etp %d leaves of the %d ranks of a stage",
                 stage / etp, etp, stage);
    EK_TRY(check_factor("--ep", sizes->ep, stage / etp, what));
    return EK_OK;
}

int ek_mesh_rank_multiple(const ek_mesh_sizes *sizes)
{
    int tp = or_one(sizes->tp), etp = or_one(sizes->etp), both = tp;

    while (both % etp != 0)
        both += tp;
    return or_one(sizes->pp) * both;
}

void ek_mesh_fit(ek_mesh_sizes *sizes, int ranks)
{
    int n = ranks / or_one(sizes->pp) / or_one(sizes->etp), ep = or_one(sizes->ep);

    while (ep < n && n % ep != 0)
        ep++;
    sizes->ep = ep < n ? ep : n;
}

/* The largest ep that an elastic world may get. */
static int ep_limit(int ep)
{
    if (EK_MESH_EP_GROWTH * (int64_t)ep <= EK_MESH_EP_SMALL)
        return EK_MESH_EP_SMALL;
    if (EK_MESH_EP_GROWTH * (int64_t)ep <= EK_MESH_EP_MOST)
        return EK_MESH_EP_GROWTH * ep;
    return ep <= EK_MESH_EP_MOST ? EK_MESH_EP_MOST : INT_MAX;
}

/* Whether n has a divisor from `least` to `most`, or is below them. */
static int has_divisor(int n, int least, int most)
{
    if (n <= most)
        return 1;
    for (int d = least; d <= most; d++)
        if (n % d == 0)
            return 1;
    return 0;
}

int ek_mesh_elastic_ranks(const ek_mesh_sizes *sizes, int slots)
{
    int unit = ek_mesh_rank_multiple(sizes), ep = or_one(sizes->ep), most = ep_limit(ep);
    int ranks = slots - slots % unit;

    while (ranks > 0 && !has_divisor(ranks / or_one(sizes->pp) / or_one(sizes->etp), ep, most))
        ranks -= unit;
    return ranks;
}

static void set_coordinates(ek_mesh *m, const ek_mesh_sizes *sizes)
{
    m->pp = or_one(sizes->pp);
    m->tp = or_one(sizes->tp);
    m->ep = or_one(sizes->ep);
    m->etp = or_one(sizes->etp);
    m->stage_size = m->size / m->pp;
    m->dp = m->stage_size / m->tp;
    m->edp = m->stage_size / (m->ep * m->etp);
    m->pp_rank = m->rank / m->stage_size;
    m->at = m->rank % m->stage_size;
    m->dp_rank = m->at / m->tp;
    m->tp_rank = m->at % m->tp;
    m->etp_rank = m->at % m->etp;
    m->ep_rank = m->at / m->etp % m->ep;
    m->edp_rank = m->at / m->etp / m->ep;
}

ek_ranks ek_mesh_ranks(const ek_mesh *m, ek_mesh_group group)
{
    int start = m->pp_rank * m->stage_size, experts = m->ep * m->etp;

    switch (group) {
    case EK_MESH_WORLD: return (ek_ranks){0, 1, m->size};
    case EK_MESH_STAGE: return (ek_ranks){start, 1, m->stage_size};
    case EK_MESH_DP: return (ek_ranks){start + m->tp_rank, m->tp, m->dp};
    case EK_MESH_TP: return (ek_ranks){start + m->dp_rank * m->tp, 1, m->tp};
    case EK_MESH_EDP: return (ek_ranks){start + m->ep_rank * m->etp + m->etp_rank, experts, m->edp};
    case EK_MESH_PIPE: return (ek_ranks){m->at, m->stage_size, m->pp};
    case EK_MESH_ENDS: return (ek_ranks){m->at, (m->pp - 1) * m->stage_size, 2};
    }
    return (ek_ranks){m->rank, 1, 1};
}

/* Opens a group; ranks: scratch of its size. */
static ek_status open_group(const ek_mesh *m, const char *name, ek_mesh_group group, int *ranks,
                            ek_comm **out)
{
    ek_ranks r = ek_mesh_ranks(m, group);

    for (int i = 0; i < r.n; i++)
        ranks[i] = ek_ranks_at(r, i);
    EK_TRY(ek_comm_group(m->world, name, ranks, r.n, out));
    return EK_OK;
}

static ek_status open_groups(ek_mesh *m, int *ranks)
{
    EK_TRY(open_group(m, "stage", EK_MESH_STAGE, ranks, &m->stage));
    EK_TRY(open_group(m, "tp", EK_MESH_TP, ranks, &m->tp_group));
    EK_TRY(open_group(m, "dp", EK_MESH_DP, ranks, &m->dp_group));
    EK_TRY(open_group(m, "edp", EK_MESH_EDP, ranks, &m->edp_group));
    EK_TRY(open_group(m, "pipe", EK_MESH_PIPE, ranks, &m->pipe));
    if (m->pp > 1 && (m->pp_rank == 0 || m->pp_rank == m->pp - 1))
        EK_TRY(open_group(m, "ends", EK_MESH_ENDS, ranks, &m->ends));
    return EK_OK;
}

ek_status ek_mesh_open(ek_comm *world, const ek_mesh_sizes *sizes, ek_mesh **out)
{
    int size = ek_comm_size(world), *ranks = NULL;
    ek_mesh *m = NULL;
    ek_status st;

    EK_TRY(ek_mesh_check(sizes, size));
    m = calloc(1, sizeof(*m));
    ranks = calloc((size_t)size, sizeof(*ranks));
    EK_REQUIRE_OUT(m != NULL && ranks != NULL, EK_ENOMEM, "no memory for a mesh of %d ranks", size);
    m->world = world;
    m->rank = ek_comm_rank(world);
    m->size = size;
    set_coordinates(m, sizes);
    EK_TRY_OUT(open_groups(m, ranks));
    *out = m;
    m = NULL;
out:
    ek_mesh_close(&m);
    free(ranks);
    return st;
}

void ek_mesh_close(ek_mesh **mesh)
{
    ek_mesh *m = *mesh;

    if (m == NULL)
        return;
    ek_comm_close(&m->ends);
    ek_comm_close(&m->pipe);
    ek_comm_close(&m->edp_group);
    ek_comm_close(&m->dp_group);
    ek_comm_close(&m->tp_group);
    ek_comm_close(&m->stage);
    free(m);
    *mesh = NULL;
}
