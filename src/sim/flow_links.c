/* Links by level, merged where classes use them alike, and the bytes that ops send through them. */
#include "sim/flow_links.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Ranks of an entity below a link. */
typedef struct {
    int32_t entity, ranks;
} share;

/* A link of a level, in one direction. */
typedef struct {
    share *shares; /* [n] by entity */
    int32_t n, link;
} merged;

/* What the ranks of a class send through a level's links for an op: bytes as uses. */
typedef struct {
    int32_t class_index;
    ek_net_work work;
    ek_flow_use *bytes; /* [n] of the busiest of each merged link */
    int32_t n, cap;
    double most; /* of a rank through a link */
} known;

typedef struct {
    int64_t shared;    /* ranks of a link */
    int32_t n;         /* links in one direction */
    int32_t *link_of;  /* [n] merged: the up link; the down link is the next */
    double *up, *down; /* [n] scratch: bytes */
    double capacity;   /* of a link, bytes in a second */
} level_links;

struct ek_flow_links {
    const sim *s;
    const ek_cluster *c;
    ek_cluster alone; /* ek_cluster_alone */
    int32_t n_links;  /* of both directions: up links are even, down links odd */
    level_links level[EK_CLUSTER_LEVELS];
    double *busiest; /* [n_links] scratch: bytes */
    known **known;   /* with entities that are classes */
    int32_t n_known, cap_known;
    known one;         /* of a rank */
    ek_flow_use *uses; /* [cap_uses] */
    int32_t cap_uses;
};

static ek_status no_memory(void)
{
    return EK_FAIL(EK_ENOMEM, "no memory for the links of a cluster");
}

/* --- links ------------------------------------------------------------------------------------ */

static int compare_shares(const void *a, const void *b)
{
    int32_t x = ((const share *)a)->entity, y = ((const share *)b)->entity;

    return (x > y) - (x < y);
}

/* The entities of consecutive ranks, each once; returns how many. */
static int32_t list_shares(const sim *s, int64_t first, int64_t end, share *shares)
{
    int32_t n = 0;

    for (int64_t r = first; r < end; r++) {
        int32_t i = n > 0 && shares[n - 1].entity == s->entity_of[r] ? n - 1 : 0;

        while (i < n && shares[i].entity != s->entity_of[r])
            i++;
        if (i == n)
            shares[n++] = (share){s->entity_of[r], 0};
        shares[i].ranks++;
    }
    qsort(shares, (size_t)n, sizeof(*shares), compare_shares);
    return n;
}

/* Links of a level that were seen. */
typedef struct {
    merged *list;
    int32_t n, cap;
} merged_list;

/* The link with these ranks; -1: there was none. */
static int32_t find_merged(const merged_list *m, const share *shares, int32_t n)
{
    for (int32_t i = 0; i < m->n; i++)
        if (m->list[i].n == n &&
            memcmp(m->list[i].shares, shares, (size_t)n * sizeof(*shares)) == 0)
            return m->list[i].link;
    return -1;
}

static ek_status remember(merged_list *m, const share *shares, int32_t n, int32_t link)
{
    share *copy = malloc((size_t)n * sizeof(*copy));

    if (m->n == m->cap) {
        int32_t cap = m->cap > 0 ? 2 * m->cap : 16;
        merged *more = realloc(m->list, (size_t)cap * sizeof(*more));

        if (more != NULL) {
            m->list = more;
            m->cap = cap;
        }
    }
    if (copy == NULL || m->n == m->cap) {
        free(copy);
        return no_memory();
    }
    memcpy(copy, shares, (size_t)n * sizeof(*copy));
    m->list[m->n++] = (merged){copy, n, link};
    return EK_OK;
}

static ek_status open_level(ek_flow_links *l, int index, share *shares)
{
    level_links *v = &l->level[index];
    const ek_cluster_level *of = &l->c->level[index];
    int64_t ranks = l->s->graphs->ranks;
    merged_list seen = {0};
    ek_status st = EK_OK;

    v->shared = ek_level_sharers(of);
    v->n = (int32_t)((ranks + v->shared - 1) / v->shared);
    v->capacity = ek_level_capacity(of);
    v->link_of = calloc((size_t)v->n, sizeof(*v->link_of));
    v->up = calloc(2 * (size_t)v->n, sizeof(*v->up));
    if (v->link_of == NULL || v->up == NULL)
        return no_memory();
    v->down = v->up + v->n;
    for (int32_t i = 0; i < v->n; i++) {
        int64_t end = (i + 1) * v->shared;
        int32_t n = 0;

        v->link_of[i] = -1;
        if (!l->s->each_rank) {
            n = list_shares(l->s, i * v->shared, end < ranks ? end : ranks, shares);
            v->link_of[i] = find_merged(&seen, shares, n);
        }
        if (v->link_of[i] >= 0)
            continue;
        v->link_of[i] = l->n_links;
        l->n_links += 2;
        if (!l->s->each_rank)
            EK_TRY_OUT(remember(&seen, shares, n, v->link_of[i]));
    }
out:
    for (int32_t i = 0; i < seen.n; i++)
        free(seen.list[i].shares);
    free(seen.list);
    return st;
}

ek_status ek_flow_links_open(const sim *s, const ek_cluster *c, ek_flow_links **out)
{
    ek_flow_links *l = calloc(1, sizeof(*l));
    share *shares = calloc((size_t)s->n + 1, sizeof(*shares));
    ek_status st = EK_OK;

    *out = l;
    if (l == NULL || shares == NULL) {
        free(shares);
        return no_memory();
    }
    l->s = s;
    l->c = c;
    l->alone = ek_cluster_alone(c);
    for (int i = 0; i < c->n_levels && st == EK_OK; i++)
        st = open_level(l, i, shares);
    free(shares);
    EK_TRY(st);
    l->busiest = calloc((size_t)l->n_links + 1, sizeof(*l->busiest));
    return l->busiest != NULL ? EK_OK : no_memory();
}

void ek_flow_links_close(ek_flow_links **pl)
{
    ek_flow_links *l = *pl;

    *pl = NULL;
    if (l == NULL)
        return;
    for (int i = 0; i < EK_CLUSTER_LEVELS; i++) {
        free(l->level[i].link_of);
        free(l->level[i].up);
    }
    for (int32_t i = 0; i < l->n_known; i++) {
        free(l->known[i]->bytes);
        free(l->known[i]);
    }
    free(l->known);
    free(l->one.bytes);
    free(l->busiest);
    free(l->uses);
    free(l);
}

int32_t ek_flow_links_count(const ek_flow_links *l)
{
    return l->n_links;
}

void ek_flow_links_set_bursts(const ek_flow_links *l, ek_flows *flows)
{
    for (int i = 0; i < l->c->n_levels; i++)
        for (int32_t j = 0; j < 2 * l->level[i].n; j++)
            ek_flows_set_burst(flows, l->level[i].link_of[j / 2] + j % 2,
                               l->c->level[i].burst / l->c->level[i].bytes_s);
}

/* --- bytes ------------------------------------------------------------------------------------ */

/* Bytes that a rank's links carry.  factor: on the bytes of each level. */
static void carried_times(const ek_cluster *c, const double *bytes, const double *factor,
                          double carried[EK_CLUSTER_LEVELS])
{
    double passed[EK_CLUSTER_LEVELS];

    for (int i = 0; i < c->n_levels; i++)
        passed[i] = bytes[i] * factor[i];
    ek_level_carried(c, passed, carried);
}

/* What a rank carries through each level; and the rank whose down links it passes: the peer of a
 * message, else itself. */
static int32_t carried_of_rank(const ek_cluster *c, const ek_net_work *op, int32_t rank,
                               double carried[EK_CLUSTER_LEVELS])
{
    ek_net_work w = *op;
    ek_net_traffic t;

    w.group = ek_ranks_around(rank, w.group.stride, w.group.n);
    t = ek_net_traffic_of(c, &w, rank);
    ek_level_carried(c, t.bytes, carried);
    return w.peer >= 0 ? ek_ranks_at(w.group, w.peer) : rank;
}

static ek_status add_bytes(known *k, int32_t link, double bytes)
{
    if (k->n == k->cap) {
        int32_t cap = k->cap > 0 ? 2 * k->cap : 8;
        ek_flow_use *more = realloc(k->bytes, (size_t)cap * sizeof(*more));

        if (more == NULL)
            return no_memory();
        k->bytes = more;
        k->cap = cap;
    }
    k->bytes[k->n++] = (ek_flow_use){link, bytes};
    return EK_OK;
}

/* Adds what a rank sends to the bytes of its links and, of a message, of its peer's. */
static void add_rank(ek_flow_links *l, const ek_net_work *op, int32_t rank, known *k)
{
    double carried[EK_CLUSTER_LEVELS];
    int32_t to = carried_of_rank(l->c, op, rank, carried);

    for (int i = 0; i < l->c->n_levels; i++) {
        level_links *v = &l->level[i];

        v->up[rank / v->shared] += carried[i];
        v->down[to / v->shared] += carried[i];
        k->most = fmax(k->most, carried[i]);
    }
}

/* Of links that are merged the busiest counts. */
static ek_status collect_links(ek_flow_links *l, known *k)
{
    for (int i = 0; i < l->c->n_levels; i++) {
        level_links *v = &l->level[i];

        for (int32_t j = 0; j < v->n; j++) {
            double *at = &l->busiest[v->link_of[j]];

            at[0] = fmax(at[0], v->up[j]);
            at[1] = fmax(at[1], v->down[j]);
        }
        memset(v->up, 0, 2 * (size_t)v->n * sizeof(*v->up));
    }
    for (int32_t i = 0; i < l->n_links; i++)
        if (l->busiest[i] > 0) {
            EK_TRY(add_bytes(k, i, l->busiest[i]));
            l->busiest[i] = 0;
        }
    return EK_OK;
}

/* Of a rank alone, without a look at all links. */
static ek_status collect_rank(ek_flow_links *l, const ek_net_work *op, int32_t rank, known *k)
{
    double carried[EK_CLUSTER_LEVELS];
    int32_t to = carried_of_rank(l->c, op, rank, carried);

    k->n = 0;
    k->most = 0;
    for (int i = 0; i < l->c->n_levels; i++) {
        const level_links *v = &l->level[i];

        if (carried[i] <= 0)
            continue;
        EK_TRY(add_bytes(k, v->link_of[rank / v->shared], carried[i]));
        EK_TRY(add_bytes(k, v->link_of[to / v->shared] + 1, carried[i]));
        k->most = fmax(k->most, carried[i]);
    }
    return EK_OK;
}

static int is_same_work(const ek_net_work *a, const ek_net_work *b)
{
    return a->collective == b->collective && a->group.stride == b->group.stride &&
           a->group.n == b->group.n && a->span == b->span && a->peer == b->peer &&
           a->after == b->after && a->element == b->element && a->bytes == b->bytes;
}

/* Of all ranks of a class, once for each work. */
static ek_status collect_class(ek_flow_links *l, const sim_class *c, const ek_net_work *w,
                               const known **out)
{
    known *k;

    for (int32_t i = 0; i < l->n_known; i++)
        if (l->known[i]->class_index == c->index && is_same_work(&l->known[i]->work, w)) {
            *out = l->known[i];
            return EK_OK;
        }
    if (l->n_known == l->cap_known) {
        int32_t cap = l->cap_known > 0 ? 2 * l->cap_known : 64;
        known **more = realloc(l->known, (size_t)cap * sizeof(*more));

        if (more == NULL)
            return no_memory();
        l->known = more;
        l->cap_known = cap;
    }
    k = calloc(1, sizeof(*k));
    if (k == NULL)
        return no_memory();
    l->known[l->n_known++] = k;
    k->class_index = c->index;
    k->work = *w;
    for (int32_t i = 0; i < c->of->n_ranks; i++)
        add_rank(l, w, c->of->ranks[i], k);
    *out = k;
    return collect_links(l, k);
}

/* Whose capacity a link has. */
static double capacity_of(const ek_flow_links *l, int32_t link)
{
    int i = 0;

    while (i + 1 < l->c->n_levels && link >= l->level[i + 1].link_of[0])
        i++;
    return l->level[i].capacity;
}

/* A flow that takes `seconds` at full speed, from its bytes by link. */
static ek_status use_links(ek_flow_links *l, const known *k, double seconds,
                           const ek_flow_use **uses, int32_t *n, double *growth)
{
    if (k->n > l->cap_uses) {
        ek_flow_use *more = realloc(l->uses, 2 * (size_t)k->n * sizeof(*more));

        if (more == NULL)
            return no_memory();
        l->uses = more;
        l->cap_uses = 2 * k->n;
    }
    for (int32_t i = 0; i < k->n; i++)
        l->uses[i] = (ek_flow_use){k->bytes[i].link,
                                   k->bytes[i].use / (seconds * capacity_of(l, k->bytes[i].link))};
    *uses = l->uses;
    *n = k->n;
    *growth = k->most > 0 ? seconds / k->most : 1;
    return EK_OK;
}

/* Seconds of the busiest of a rank's links. */
static double longest(const ek_flow_links *l, const double carried[EK_CLUSTER_LEVELS])
{
    double most = 0;

    for (int i = 0; i < l->c->n_levels; i++)
        most = fmax(most, carried[i] / l->level[i].capacity);
    return most;
}

/* The up links of a rank, or its down links, with the bytes that each carries. */
static ek_status use_one_way(ek_flow_links *l, int32_t rank, int down,
                             const double carried[EK_CLUSTER_LEVELS], double seconds,
                             const ek_flow_use **uses, int32_t *n, double *growth)
{
    l->one.n = 0;
    l->one.most = 0;
    for (int i = 0; i < l->c->n_levels; i++) {
        const level_links *v = &l->level[i];

        if (carried[i] > 0)
            EK_TRY(add_bytes(&l->one, v->link_of[rank / v->shared] + down, carried[i]));
        l->one.most = fmax(l->one.most, carried[i]);
    }
    return use_links(l, &l->one, seconds, uses, n, growth);
}

ek_status ek_flow_links_exchange(ek_flow_links *l, const sim_class *c, const ek_net_work *w,
                                 const ek_sim_price *p, const ek_level_rows *rows, int32_t x,
                                 int down, const ek_flow_use **uses, int32_t *n, double *growth,
                                 double *seconds)
{
    double even[EK_CLUSTER_LEVELS], carried[EK_CLUSTER_LEVELS], most, part;
    int32_t rank = c->of->ranks[x - c->first];
    ek_net_work of = *w;
    ek_net_traffic t;

    of.group = ek_ranks_around(rank, of.group.stride, of.group.n);
    t = ek_net_traffic_of(l->c, &of, rank);
    ek_level_carried(l->c, t.bytes, even);
    carried_times(l->c, t.bytes, down ? rows->got : rows->sent, carried);
    most = longest(l, even);
    part = most > 0 ? longest(l, carried) / most : 0;
    *seconds = p->wire * part;
    return use_one_way(l, rank, down, carried, *seconds, uses, n, growth);
}

ek_status ek_flow_links_traffic(ek_flow_links *l, const sim_class *c, const ek_sim_price *p,
                                int32_t x, int down, const ek_flow_use **uses, int32_t *n,
                                double *growth, double *seconds)
{
    ek_net_traffic t =
        ek_copy_messages_traffic(&(down ? p->got : p->sent)[l->s->entity[x].column], p->unit);
    double carried[EK_CLUSTER_LEVELS];

    ek_level_carried(l->c, t.bytes, carried);
    *seconds = ek_price_traffic(&l->alone, &t).wire_s;
    return use_one_way(l, c->of->ranks[x - c->first], down, carried, *seconds, uses, n, growth);
}

ek_status ek_flow_links_uses(ek_flow_links *l, const sim_class *c, const ek_net_work *w,
                             const ek_sim_price *p, int32_t x, const ek_flow_use **uses, int32_t *n,
                             double *growth)
{
    const known *k = &l->one;

    if (l->s->each_rank)
        EK_TRY(collect_rank(l, w, c->of->ranks[x - c->first], &l->one));
    else
        EK_TRY(collect_class(l, c, w, &k));
    return use_links(l, k, p->wire, uses, n, growth);
}
