/* Traffic and time of each algorithm of comm/coll_*.c.
 *
 * Complexity   O(levels) a call, and O(ranks of the group) for 2DH: the ranks of a group are
 *              equidistant, so those below one switch are a range of its indices. */
#include "sim/price_net.h"

#include "base/coll_limits.h"
#include "cost/cost.h"
#include "sim/level_ranks.h"

#include <math.h>
#include <string.h>

/* A rank and the others that it exchanges messages with. */
typedef struct {
    const ek_cluster *c;
    ek_ranks group;
    int32_t at;         /* the rank's index in the group */
    ek_rank_range span; /* itself and the others */
    ek_rank_range
        below[EK_CLUSTER_LEVELS]; /* of these, the ranks below its own switch of a level */
} party;

static party party_of(const ek_cluster *c, ek_ranks group, int32_t span, int32_t rank)
{
    party p = {
        .c = c, .group = group, .at = (rank - group.first) / (group.stride > 0 ? group.stride : 1)};

    span = span > 0 && span < group.n ? span : group.n;
    p.span.first = p.at / span * span;
    p.span.end = p.span.first + span < group.n ? p.span.first + span : group.n;
    for (int l = 0; l < c->n_levels; l++)
        p.below[l] = ek_rank_range_common(p.span, ek_rank_range_below(c, group, l, rank));
    return p;
}

/* Ranks of the span other than the caller that it meets at this level. */
static int32_t peers_at(const party *p, int level)
{
    return ek_rank_range_length(p->below[level]) -
           (level > 0 ? ek_rank_range_length(p->below[level - 1]) : 1);
}

/* --- traffic ---------------------------------------------------------------------------------- */

/* One message of `bytes` to every other rank of the span. */
static void add_even(const party *p, double bytes, ek_net_traffic *t)
{
    for (int l = 0; l < p->c->n_levels && bytes > 0; l++) {
        t->bytes[l] += bytes * peers_at(p, l);
        t->messages[l] += peers_at(p, l);
        if (peers_at(p, l) > 0)
            t->largest[l] = fmax(t->largest[l], bytes);
    }
}

/* Elements of a vector that ranks have equal ranges of, and their bytes. */
typedef struct {
    int64_t n;
    double bytes;
    int32_t ranks;
} vector;

static vector vector_of(const ek_net_work *w)
{
    double element = w->element > 0 ? w->element : 1;

    return (vector){(int64_t)(w->bytes / element), element, w->group.n};
}

static double range_bytes(vector v, ek_rank_range r)
{
    if (ek_rank_range_length(r) == 0)
        return 0;
    return v.bytes *
           (double)(ek_range_first(v.n, v.ranks, r.end) - ek_range_first(v.n, v.ranks, r.first));
}

/* Ranks of a range that have elements. */
static int32_t holders(vector v, ek_rank_range r)
{
    return v.n >= v.ranks
               ? ek_rank_range_length(r)
               : ek_rank_range_length(ek_rank_range_common(r, (ek_rank_range){0, (int32_t)v.n}));
}

/* To every other rank the range that is its own. */
static void add_ranges(const party *p, vector v, ek_net_traffic *t)
{
    ek_rank_range inner = {p->at, p->at + 1};

    for (int l = 0; l < p->c->n_levels; l++) {
        t->bytes[l] += range_bytes(v, p->below[l]) - range_bytes(v, inner);
        t->messages[l] += holders(v, p->below[l]) - holders(v, inner);
        inner = p->below[l];
    }
}

static double own_bytes(const party *p, vector v, int32_t after)
{
    int32_t i = (p->at + after) % v.ranks;

    return range_bytes(v, (ek_rank_range){i, i + 1});
}

/* Segments that a rank sends around the ring. */
static double ring_messages(const ek_net_work *w)
{
    double passes = w->collective == EK_COLLECTIVE_ALL_REDUCE ? 2 : 1;

    return passes * (w->group.n - 1) * ceil(w->bytes / w->group.n / EK_COLL_SEGMENT);
}

/* To the next rank of the ring: in each pass all but one range of the vector. */
static void add_ring(const party *p, const ek_net_work *w, ek_net_traffic *t)
{
    vector v = vector_of(w);
    int64_t next = ek_ranks_at(p->group, (p->at + 1) % v.ranks);
    int l = ek_cluster_level_between(p->c, ek_ranks_at(p->group, p->at), next);
    double whole = v.bytes * (double)v.n;

    if (w->collective != EK_COLLECTIVE_ALL_GATHER)
        t->bytes[l] += whole - own_bytes(p, v, 0);
    if (w->collective != EK_COLLECTIVE_REDUCE_SCATTER)
        t->bytes[l] += whole - own_bytes(p, v, 1);
    t->messages[l] += ring_messages(w);
}

static int is_vector(const ek_net_work *w)
{
    return w->collective == EK_COLLECTIVE_ALL_REDUCE || w->collective == EK_COLLECTIVE_ALL_GATHER ||
           w->collective == EK_COLLECTIVE_REDUCE_SCATTER;
}

static int is_ring(const ek_net_work *w)
{
    return is_vector(w) && w->bytes > EK_COLL_DIRECT_MAX;
}

/* Whether an all-reduce sends the whole vector to all: one phase instead of two. */
static int is_whole(const ek_net_work *w)
{
    return w->collective == EK_COLLECTIVE_ALL_REDUCE && w->bytes <= EK_COLL_WHOLE_MAX &&
           w->group.n * w->bytes <= EK_COLL_DIRECT_MAX;
}

static void add_vector(const party *p, const ek_net_work *w, ek_net_traffic *t)
{
    vector v = vector_of(w);

    if (is_ring(w)) {
        add_ring(p, w, t);
        return;
    }
    if (is_whole(w)) {
        add_even(p, w->bytes, t);
        return;
    }
    if (w->collective != EK_COLLECTIVE_ALL_GATHER)
        add_ranges(p, v, t);
    if (w->collective != EK_COLLECTIVE_REDUCE_SCATTER)
        add_even(p, own_bytes(p, v, 0), t);
}

/* Bytes for each other rank of the span. */
static double bytes_a_peer(const party *p, const ek_net_work *w)
{
    return ek_rank_range_length(p->span) > 1 ? w->bytes / (ek_rank_range_length(p->span) - 1) : 0;
}

/* --- 2DH -------------------------------------------------------------------------------------- */

/* The ranks of the group on the node of its rank `at`. */
static ek_rank_range node_of(const party *p, int32_t at)
{
    int64_t ranks = ek_cluster_node_ranks(p->c);

    return ek_rank_range_of_switch(p->group, ek_ranks_at(p->group, at) / ranks, ranks);
}

/* Ranks of the span on other nodes that the q-th of the m ranks of the caller's node serves. */
static int32_t served_by(const party *p, ek_rank_range own, int32_t q)
{
    int32_t m = ek_rank_range_length(own), n = 0;
    ek_rank_range node;

    for (int32_t at = p->span.first; at < p->span.end; at = node.end) {
        ek_rank_range there;

        node = node_of(p, at);
        there = ek_rank_range_common(node, p->span);
        if (node.first != own.first)
            n += (int32_t)(ek_ranks_below(there.end - node.first, q, m) -
                           ek_ranks_below(there.first - node.first, q, m));
    }
    return n;
}

/* Rows for other nodes that the caller gives to the other ranks of its node, the gateways. */
static void add_given(const party *p, ek_rank_range own, double bytes, ek_net_traffic *t)
{
    for (int32_t q = own.first; q < own.end; q++) {
        int l =
            ek_cluster_level_between(p->c, ek_ranks_at(p->group, p->at), ek_ranks_at(p->group, q));
        int32_t n = q != p->at ? served_by(p, own, q - own.first) : 0;

        t->bytes[l] += bytes * n;
        t->messages[l] += n > 0;
        t->largest[l] = fmax(t->largest[l], bytes * n);
    }
}

/* Rows of all ranks of its node that the caller forwards to the ranks of other nodes. */
static void add_forwarded(const party *p, ek_rank_range own, double bytes, ek_net_traffic *t)
{
    int32_t m = ek_rank_range_length(own), local = p->at - own.first,
            size = ek_rank_range_length(p->span);
    ek_rank_range node;

    for (int32_t at = 0; at < p->group.n; at = node.end) {
        int l =
            ek_cluster_level_between(p->c, ek_ranks_at(p->group, p->at), ek_ranks_at(p->group, at));

        node = node_of(p, at);
        for (int32_t y = node.first + local; y < node.end && node.first != own.first; y += m) {
            ek_rank_range span = {y / size * size, y / size * size + size};
            int32_t senders = ek_rank_range_length(ek_rank_range_common(span, own));

            t->bytes[l] += bytes * senders;
            t->messages[l] += senders > 0;
            t->largest[l] = fmax(t->largest[l], bytes * senders);
        }
    }
}

/* The traffic of a 2DH all-to-all: rows for ranks of the node; those for the gateways of the node;
 * and those that the caller forwards when it has them. */
typedef struct {
    ek_net_traffic own, given, forwarded;
} split;

static split split_2dh(const party *p, const ek_net_work *w)
{
    split s = {0};
    party inside = *p;
    ek_rank_range own = node_of(p, p->at);

    for (int l = 0; l < p->c->n_levels; l++)
        inside.below[l] = ek_rank_range_common(inside.below[l], own);
    add_even(&inside, bytes_a_peer(p, w), &s.own);
    add_given(p, own, bytes_a_peer(p, w), &s.given);
    add_forwarded(p, own, bytes_a_peer(p, w), &s.forwarded);
    return s;
}

/* Both at the same time, to different ranks or in messages of their own. */
static ek_net_traffic both(const ek_cluster *c, const ek_net_traffic *a, const ek_net_traffic *b)
{
    ek_net_traffic t = *a;

    for (int l = 0; l < c->n_levels; l++) {
        t.bytes[l] += b->bytes[l];
        t.messages[l] += b->messages[l];
        t.largest[l] = fmax(t.largest[l], b->largest[l]);
    }
    return t;
}

/* Both in the same messages. */
static ek_net_traffic together(const ek_cluster *c, const ek_net_traffic *a,
                               const ek_net_traffic *b)
{
    ek_net_traffic t = *a;

    for (int l = 0; l < c->n_levels; l++) {
        t.bytes[l] += b->bytes[l];
        t.messages[l] = fmax(t.messages[l], b->messages[l]);
        t.largest[l] += b->largest[l];
    }
    return t;
}

/* --- time ------------------------------------------------------------------------------------- */

/* Until the busiest link has carried its bytes. */
static double link_time(const ek_cluster *c, const ek_net_traffic *t)
{
    double carried[EK_CLUSTER_LEVELS], most = 0;

    ek_level_carried(c, t->bytes, carried);
    for (int l = 0; l < c->n_levels; l++)
        most = fmax(most, carried[l] / c->level[l].bytes_s);
    return most;
}

/* Of messages and exchanges: until also the largest message has passed between its ranks, and the
 * gap after each. */
static double exchange_time(const ek_cluster *c, const ek_net_traffic *t)
{
    double most = link_time(c, t), gaps = 0;

    for (int l = 0; l < c->n_levels; l++) {
        if (c->level[l].peer_bytes_s > 0)
            most = fmax(most, t->largest[l] / c->level[l].peer_bytes_s);
        gaps += t->messages[l] * c->level[l].gap_s;
    }
    return most + gaps;
}

static double latency_of(const ek_cluster *c, const ek_net_traffic *t)
{
    double most = 0;

    for (int l = 0; l < c->n_levels; l++)
        if (t->messages[l] > 0)
            most = fmax(most, c->level[l].latency_s);
    return most;
}

/* A message is its sender's. */
static double overhead_of(const ek_cluster *c, const ek_net_work *w, const ek_net_traffic *t)
{
    double sum = 0;

    for (int l = 0; l < c->n_levels && w->collective != EK_COLLECTIVE_RECEIVE; l++)
        sum += t->messages[l] * c->level[l].overhead_s;
    return sum;
}

/* Of what a rank sends and receives; of a message each of its ranks pays half. */
static double beside_of(const ek_cluster *c, const ek_net_work *w, const ek_net_traffic *t)
{
    double sum = 0;

    for (int l = 0; l < c->n_levels; l++)
        sum += t->bytes[l] * c->level[l].byte_s;
    return ek_net_work_is_message(w) ? sum / 2 : sum;
}

/* Of the levels that messages pass. */
static double collective_of(const ek_cluster *c, const ek_net_traffic *t)
{
    double most = 0;

    for (int l = 0; l < c->n_levels; l++)
        if (t->messages[l] > 0)
            most = fmax(most, c->level[l].collective_s);
    return most;
}

/* Seconds that each of so many ranks at once needs on a link for its bytes: the less, the fewer of
 * those that share the link. */
static double flow_time(const ek_cluster_level *l, double bytes, double ranks)
{
    double shared = (double)ek_level_sharers(l);

    return bytes / l->bytes_s * fmin(ranks, shared) / shared;
}

/* As flow_time, of a message. */
static double passage(const ek_cluster_level *l, double bytes, double ranks)
{
    double alone = l->peer_bytes_s > 0 ? bytes / l->peer_bytes_s : 0;

    return bytes > 0 ? fmax(flow_time(l, bytes, ranks), alone) + l->gap_s : 0;
}

/* Groups of which each has a rank among consecutive ones: all do the same at the same time. */
static double interleaved(ek_ranks group)
{
    return fmax(group.stride, 1);
}

/* Pairs of neighbours in the ring that meet at a level. */
static void count_hops(const ek_cluster *c, ek_ranks g, int32_t *hops)
{
    int64_t last = ek_ranks_at(g, g.n - 1);
    int32_t within = 0; /* the levels below */

    for (int l = 0; l < c->n_levels; l++) {
        int64_t ranks = c->level[l].ranks;
        int64_t switches = g.stride >= ranks ? g.n : last / ranks - g.first / ranks + 1;
        int32_t same = g.n - (int32_t)switches + (g.first / ranks == last / ranks);

        if (l + 1 == c->n_levels)
            same = g.n;
        hops[l] = same - within;
        within = same;
    }
}

/* Of a group one rank below each switch sends to the next switch. */
static double ring_hop(const ek_cluster_level *l, const ek_net_work *w, double bytes)
{
    return flow_time(l, bytes, interleaved(w->group));
}

static double ring_step_of(const ek_cluster_level *l)
{
    return l->ring_step_s > 0 ? l->ring_step_s : l->latency_s;
}

/* What the steps of a pass take beside their bytes: a chunk takes all hops of the ring but one, and
 * that which misses the least is last. */
static double pass_of_steps(const ek_cluster *c, const int32_t *hops)
{
    double sum = 0, least = HUGE_VAL;

    for (int l = 0; l < c->n_levels; l++) {
        sum += hops[l] * ring_step_of(&c->level[l]);
        if (hops[l] > 0)
            least = fmin(least, ring_step_of(&c->level[l]));
    }
    return sum - least;
}

/* Figures by which NCCL chooses between rings and trees (graph/tuning.cc, protocol Simple): the
 * part of a ring's bandwidth that trees reach, and of that, by powers of two from 64 bytes, what
 * vectors below 512 MiB reach; and how much longer all steps of a ring through several nodes take
 * beside their bytes in all-reduces, if steps are paid at all (compute capability 8.0 and
 * later). */
#define TREE_BANDWIDTH 0.92
#define RING_PLATEAU   1.4
enum { TREE_SIZES = 23, TREE_SIZES_FROM = 64 };
static const double tree_share[TREE_SIZES] = {0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8,
                                              0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6,
                                              0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9};

static double tree_bandwidth(double bytes)
{
    int i = bytes >= TREE_SIZES_FROM ? ilogb(bytes / TREE_SIZES_FROM) : 0;

    return TREE_BANDWIDTH * (i < TREE_SIZES ? tree_share[i] : 1);
}

/* A sum up two binary trees of nodes, each of half of the vector, and down again, in which the
 * ranks of a node are a chain; HUGE_VAL latency: inside a node. */
static ek_net_time tree_time(const ek_cluster *c, const ek_net_work *w, const int32_t *hops,
                             double slowest)
{
    double inside = 0, between = 0;
    int32_t nodes = 0;

    for (int l = 0; l < c->n_levels; l++) {
        double step = hops[l] > 0 ? ring_step_of(&c->level[l]) : 0;

        if (ek_level_is_inside_node(c, l)) {
            inside = fmax(inside, step);
        } else {
            between = fmax(between, step);
            nodes += hops[l];
        }
    }
    if (nodes < 2)
        return (ek_net_time){.latency_s = HUGE_VAL};
    return (ek_net_time){.wire_s = 2 * w->bytes * slowest / tree_bandwidth(w->bytes),
                         .latency_s = 2 * ((ceil((double)w->group.n / nodes) - 1) * inside +
                                           floor(log2(nodes)) * between)};
}

static double seconds_of(ek_net_time t)
{
    return t.overhead_s + t.wire_s + t.latency_s;
}

/* A pass is as long as its slowest link carries one chunk after the other, or as a segment takes
 * around the ring, with the latency of each hop, and the rest of its chunk. */
static ek_net_time ring_time(const ek_cluster *c, const ek_net_work *w)
{
    double passes = w->collective == EK_COLLECTIVE_ALL_REDUCE ? 2 : 1;
    double chunk = w->bytes / w->group.n, segment = fmin(chunk, EK_COLL_SEGMENT);
    double around = 0, least = HUGE_VAL, slowest = 0, latency = 0, collective = 0, steady;
    ek_net_time ring, tree = {.latency_s = HUGE_VAL};
    int32_t hops[EK_CLUSTER_LEVELS];

    count_hops(c, w->group, hops);
    for (int l = 0; l < c->n_levels; l++) {
        const ek_cluster_level *level = &c->level[l];
        double hop = level->latency_s + ring_hop(level, w, segment);

        if (hops[l] == 0)
            continue;
        around += hops[l] * hop;
        least = fmin(least, hop);
        slowest = fmax(slowest, ring_hop(level, w, 1));
        latency = fmax(latency, level->latency_s);
        collective = fmax(collective, level->collective_s);
    }
    steady = passes * (w->group.n - 1) * chunk * slowest;
    if (c->ring_steps)
        latency = passes * pass_of_steps(c, hops);
    if (c->tree_sums && w->collective == EK_COLLECTIVE_ALL_REDUCE)
        tree = tree_time(c, w, hops, slowest);
    if (c->ring_steps && tree.latency_s < HUGE_VAL)
        latency *= RING_PLATEAU;
    around = passes * (around - least) + (chunk - segment) * slowest;
    ring = (ek_net_time){.wire_s = steady, .latency_s = fmax(latency, around - steady)};
    if (seconds_of(tree) < seconds_of(ring))
        ring = tree;
    ring.latency_s += collective;
    return ring;
}

/* Rounds, each as long as its slowest pair.  In round k every rank sends to the k-th after it: of
 * the ranks below one switch the last k to another switch, in the last rounds the first ones. */
static double pairwise_time(const party *p, const ek_net_work *w)
{
    int32_t n = ek_rank_range_length(p->span);
    double sum = 0;

    for (int32_t k = 1; k < n; k++) {
        double round = 0;

        for (int l = 0; l < p->c->n_levels; l++) {
            const ek_cluster_level *level = &p->c->level[l];
            double near = l > 0 ? ek_rank_range_length(p->below[l - 1]) : 1;
            double leave = fmin(near, k < n - k ? k : n - k) * interleaved(p->group);

            if (peers_at(p, l) > 0)
                round = fmax(round, level->latency_s + passage(level, bytes_a_peer(p, w), leave));
        }
        sum += round;
    }
    return sum;
}

/* Phase after phase, and in between rows are copied. */
static double staged_2dh_time(const party *p, const ek_net_work *w, const split *s)
{
    ek_net_traffic inside = together(p->c, &s->given, &s->own);
    double n = ek_rank_range_length(p->span), rows = w->bytes * n / (n - 1);
    double copies = 2 * ek_cost_copies(&p->c->machine, 2 * rows);

    return copies + exchange_time(p->c, &inside) + latency_of(p->c, &inside) +
           exchange_time(p->c, &s->forwarded) + latency_of(p->c, &s->forwarded);
}

static double bytes_of(const ek_cluster *c, const ek_net_traffic *t)
{
    double sum = 0;

    for (int l = 0; l < c->n_levels; l++)
        sum += t->bytes[l];
    return sum;
}

/* Inside a node, and between ranks that are alone on their nodes, there is nothing to stage. */
static int is_staged(const party *p, const split *s)
{
    return p->c->staged_2dh && bytes_of(p->c, &s->given) > 0;
}

static double time_2dh(const party *p, const ek_net_work *w)
{
    split s = split_2dh(p, w);
    ek_net_traffic rest = both(p->c, &s.own, &s.forwarded);

    if (is_staged(p, &s))
        return staged_2dh_time(p, w, &s);
    return exchange_time(p->c, &s.given) + latency_of(p->c, &s.given) + exchange_time(p->c, &rest) +
           latency_of(p->c, &rest);
}

/* The level of a message between the caller and its peer. */
static void add_message(const ek_cluster *c, const ek_net_work *w, int32_t rank, ek_net_traffic *t)
{
    int32_t peer = ek_ranks_at(w->group, w->peer);
    int l = ek_cluster_level_between(c, rank, peer);

    if (peer == rank)
        return;
    t->bytes[l] += w->bytes;
    t->messages[l]++;
    t->largest[l] = w->bytes;
}

/* The level of what the caller sends to its partner. */
static void add_partner(const party *p, const ek_net_work *w, int32_t rank, ek_net_traffic *t)
{
    int32_t to = ek_ranks_at(w->group, (p->at + w->after) % w->group.n);
    int l = ek_cluster_level_between(p->c, rank, to);

    t->bytes[l] += w->bytes;
    t->messages[l]++;
    t->largest[l] = w->bytes;
}

ek_net_traffic ek_net_traffic_of(const ek_cluster *c, const ek_net_work *w, int32_t rank)
{
    party p = party_of(c, w->group, w->span, rank);
    ek_net_traffic t = {0};

    if (w->group.n < 2 || w->bytes <= 0)
        return t;
    if (ek_net_work_is_message(w)) {
        add_message(c, w, rank, &t);
    } else if (w->collective == EK_COLLECTIVE_PARTNERS) {
        add_partner(&p, w, rank, &t);
    } else if (is_vector(w)) {
        add_vector(&p, w, &t);
    } else if (w->collective == EK_COLLECTIVE_A2A_2DH) {
        split s = split_2dh(&p, w);
        ek_net_traffic rest = both(c, &s.own, &s.forwarded);

        t = both(c, &s.given, &rest);
    } else {
        add_even(&p, bytes_a_peer(&p, w), &t);
    }
    return t;
}

/* Of consecutive ranks as many send at once as groups of messages are interleaved. */
static double message_time(const ek_cluster *c, const ek_net_work *w, const ek_net_traffic *t)
{
    double sum = 0;

    for (int l = 0; l < c->n_levels; l++)
        sum += passage(&c->level[l], t->bytes[l], interleaved(w->group));
    return sum;
}

ek_net_time ek_price_net_of(const ek_cluster *c, const ek_net_work *w, int32_t rank)
{
    party p = party_of(c, w->group, w->span, rank);
    ek_net_traffic traffic = ek_net_traffic_of(c, w, rank);
    ek_net_time t = {0};

    if (w->group.n < 2 || w->bytes <= 0)
        return t;
    if (is_ring(w)) {
        t = ring_time(c, w);
    } else {
        int phases = w->collective == EK_COLLECTIVE_ALL_REDUCE && !is_whole(w) ? 2 : 1;

        t.wire_s = ek_net_work_is_message(w) ? message_time(c, w, &traffic)
                   : is_vector(w)            ? link_time(c, &traffic)
                                             : exchange_time(c, &traffic);
        t.latency_s = phases * latency_of(c, &traffic);
        if (is_vector(w))
            t.latency_s += collective_of(c, &traffic);
    }
    if (w->collective == EK_COLLECTIVE_A2A_PAIRWISE)
        t.latency_s = fmax(t.latency_s, pairwise_time(&p, w) - t.wire_s);
    else if (w->collective == EK_COLLECTIVE_A2A_2DH)
        t.latency_s = fmax(t.latency_s, time_2dh(&p, w) - t.wire_s);
    if (w->collective == EK_COLLECTIVE_A2A_2DH && c->staged_2dh) /* nothing goes beside it */
        t = (ek_net_time){.wire_s = t.wire_s + t.latency_s};
    t.overhead_s = overhead_of(c, w, &traffic);
    t.beside_s = beside_of(c, w, &traffic);
    return t;
}

ek_net_time ek_price_traffic(const ek_cluster *c, const ek_net_traffic *t)
{
    static const ek_net_work several = {.collective = EK_COLLECTIVE_MULTICASTS};

    return (ek_net_time){.overhead_s = overhead_of(c, &several, t),
                         .wire_s = exchange_time(c, t),
                         .latency_s = latency_of(c, t),
                         .beside_s = beside_of(c, &several, t)};
}

static ek_net_time slower(ek_net_time a, ek_net_time b)
{
    return seconds_of(a) >= seconds_of(b) ? a : b;
}

/* Of the group's ranks i in [0, n): the time of the slowest so far, and of rank i. */
static ek_net_time slower_at(const ek_cluster *c, const ek_net_work *w, int32_t i, ek_net_time t)
{
    if (i < 0 || i >= w->group.n)
        return t;
    return slower(t, ek_price_net_of(c, w, ek_ranks_at(w->group, i)));
}

/* Of a ring, in which ranks differ by their neighbours alone. */
static ek_net_time slowest_of_ring(const ek_cluster *c, const ek_net_work *w)
{
    double passes = w->collective == EK_COLLECTIVE_ALL_REDUCE ? 2 : 1;
    double bytes = passes * (w->group.n - 1) * w->bytes / w->group.n;
    ek_net_time t = ring_time(c, w);
    int32_t hops[EK_CLUSTER_LEVELS];

    count_hops(c, w->group, hops);
    for (int l = 0; l < c->n_levels; l++)
        if (hops[l] > 0) {
            t.overhead_s = fmax(t.overhead_s, ring_messages(w) * c->level[l].overhead_s);
            t.beside_s = fmax(t.beside_s, bytes * c->level[l].byte_s);
        }
    return t;
}

/* Ranks differ where switches hold few ranks of the group: those at its ends.  Tried are the ranks
 * on both sides of the ends of the first and the last switch of each level.  Of a message the peer
 * is known: its neighbours in the group are near to it, or not. */
ek_net_time ek_price_net(const ek_cluster *c, const ek_net_work *w)
{
    int32_t n = w->group.n;
    ek_net_time t = {0};

    if (ek_net_work_is_message(w))
        return slower_at(c, w, (w->peer + 1) % n, slower_at(c, w, (w->peer + n - 1) % n, t));
    if (n > 1 && is_ring(w))
        return slowest_of_ring(c, w);
    t = slower_at(c, w, 0, slower_at(c, w, n - 1, t));
    for (int l = 0; l < c->n_levels; l++) {
        int64_t ranks = c->level[l].ranks;
        ek_rank_range first = ek_rank_range_of_switch(w->group, w->group.first / ranks, ranks);
        ek_rank_range last =
            ek_rank_range_of_switch(w->group, ek_ranks_at(w->group, n - 1) / ranks, ranks);

        t = slower_at(c, w, first.end - 1, slower_at(c, w, first.end, t));
        t = slower_at(c, w, last.first - 1, slower_at(c, w, last.first, t));
    }
    return t;
}
