/* balance/replicate_place.h - private to `replicate` and its tests: the number of replicas per
 * expert, their placement on nodes, and the node failures that it survives.  Slots here are those
 * of nodes: node n's follow node n - 1's. */
#ifndef BALANCE_REPLICATE_PLACE_H
#define BALANCE_REPLICATE_PLACE_H

#include "evenkeel/err.h"

#include "placement/survivability.h"

enum {
    EK_REPLICATE_FAILURES = 16,    /* most simultaneous failures tried above 16 nodes */
    EK_REPLICATE_TRIALS = 1 << 13, /* random swaps that the climb tries for a better score */
};

/* Minimal node sets, those that hold an expert and include no such set, of the placement that
 * ek_replicate_climb improves; masks are [(nodes + 63) / 64]. */
typedef struct {
    int32_t *n_alone;                /* [nodes] experts that only this node holds */
    uint64_t *with_one, *with_three; /* nodes with one such expert or more, with three or more */
    int32_t n;                       /* minimal sets of several nodes; */
    uint64_t *mask;                  /* [experts] them, */
    int32_t *experts;                /* [experts] and how many experts have each */
    int has_lost;                    /* whether `lost` is filled in */
    uint64_t *lost;                  /* [words] the fatal sets, as in ek_replicate_nodes.dead */
    uint64_t *swapped;               /* [2] masks of two experts before a swap */
} ek_replicate_core;

/* The nodes, and the node sets whose failure is tried. */
typedef struct {
    int32_t nodes, experts, slots;
    int32_t *node_slots; /* [nodes] slots of each; filled in by the caller */
    int32_t *ranks;      /* [nodes] ranks of each; filled in by the caller */
    int32_t *first;      /* [nodes + 1] first slot of each */
    int32_t *node_of;    /* [slots] */
    int32_t most;        /* sets of 1 to `most` nodes are tried */
    int32_t exact;       /* whether all sets of each size are tried */
    int32_t words;
    int32_t *word_of; /* [most + 2] first word of the sets of k nodes */
    int64_t *sets;    /* [most + 1] number of sets of k nodes */
    uint64_t *dead;   /* [nodes][words] one bit per set: the node is in it */
    uint64_t *all;    /* [words] the bits of all sets */
    uint64_t *fallen; /* [words] sets that are fatal to other layers; see ek_replicate_regard */
    int32_t n_replica_sets;
    uint64_t *replica_sets; /* [experts][(nodes + 63) / 64] minimal node sets that held an expert
                               in the last placement given to ek_replicate_risk_of */
    int32_t *core;          /* [experts] scratch of the scoring */
    uint64_t *singles;      /* [(nodes + 63) / 64] scratch of the scoring */
    int32_t *some;          /* [nodes] scratch of the search */
    int32_t *trial;         /* [2 * EK_REPLICATE_TRIALS] pairs of slots */
    int32_t *stacked;       /* [experts] scratch of the search */
    int32_t *only;          /* [experts] see ek_replicate_find_only_nodes */
    int alike;              /* all nodes have as many ranks */
    ek_replicate_core climb;
    uint64_t *changed[2]; /* [(nodes + 63) / 64] nodes whose load changed, in two passes of
                             ek_replicate_even */
    int64_t work;         /* word operations done by the scoring */
} ek_replicate_nodes;

/* A placement: which node slot holds which expert. */
typedef struct {
    int32_t *at;       /* [slots], -1: vacant */
    int32_t *count;    /* [experts][nodes] replicas */
    int32_t *vacant;   /* [nodes] */
    int32_t *distinct; /* [experts] number of nodes that hold it */
    uint64_t *mask;    /* [experts][(nodes + 63) / 64] the nodes that hold it */
    int64_t lack;      /* number of nodes missing to what each expert needs, over all experts */
    int64_t *fatal;    /* [most + 1] number of sets of k nodes that hold all replicas of some
                          expert */
} ek_replicate_place;

void ek_replicate_nodes_reserve(ek_replicate_nodes *s, ek_arena *a, int32_t nodes, int32_t experts,
                                int32_t slots);
/* Lays out the slots and the failure sets, after node_slots and ranks are filled in. */
void ek_replicate_nodes_ready(ek_replicate_nodes *s);

void ek_replicate_place_reserve(ek_replicate_place *w, ek_arena *a, const ek_replicate_nodes *s);
void ek_replicate_place_clear(const ek_replicate_nodes *s, ek_replicate_place *w);
void ek_replicate_place_copy(const ek_replicate_nodes *s, ek_replicate_place *to,
                             const ek_replicate_place *from);
/* Adds a replica on a node that has a vacant slot. */
void ek_replicate_put(const ek_replicate_nodes *s, ek_replicate_place *w, int32_t node,
                      int32_t expert);
/* Copies with nodes permuted: node n becomes node image[n], which has as many slots. */
void ek_replicate_place_as(const ek_replicate_nodes *s, const ek_replicate_place *from,
                           const int32_t *image, ek_replicate_place *to);
/* The nodes that hold an expert, ascending: nodes [nodes].  Returns their number. */
int32_t ek_replicate_nodes_with(const ek_replicate_nodes *s, const ek_replicate_place *w,
                                int32_t expert, int32_t *nodes);

/* The node that alone holds an expert; -1: several do.  For all experts: s->only, which searches
 * keep up to date. */
int32_t ek_replicate_only_node(const ek_replicate_nodes *s, const ek_replicate_place *w,
                               int32_t expert);
void ek_replicate_find_only_nodes(ek_replicate_nodes *s, const ek_replicate_place *w);

/* Words of a mask of nodes, and the mask of those that hold an expert. */
static inline int32_t ek_replicate_words(const ek_replicate_nodes *s)
{
    return (s->nodes + 63) / 64;
}

static inline uint64_t *ek_replicate_mask(const ek_replicate_nodes *s, const ek_replicate_place *w,
                                          int32_t expert)
{
    return w->mask + (int64_t)expert * ek_replicate_words(s);
}

/* The number of replicas of an expert on a node. */
static inline int32_t ek_replicate_count(const ek_replicate_nodes *s, const ek_replicate_place *w,
                                         int32_t node, int32_t expert)
{
    return w->count[(int64_t)expert * s->nodes + node];
}

/* A node's term of the imbalance: its load squared, per rank. */
static inline int64_t ek_replicate_imbalance(const ek_replicate_nodes *s, int32_t node,
                                             int64_t load)
{
    return s->alike ? load * load : load * load / s->ranks[node];
}

/* Whether the imbalance falls if node x gets `more` load from node y, another one; more is not 0.
 */
static inline int ek_replicate_evens_out(const ek_replicate_nodes *s, const int64_t *load,
                                         int32_t x, int32_t y, int64_t more)
{
    int64_t half = load[x] - load[y] + more; /* where ranks are alike it changes by 2 more half */

    if (s->alike)
        return half != 0 && (more < 0) != (half < 0);
    return ek_replicate_imbalance(s, x, load[x] + more) - ek_replicate_imbalance(s, x, load[x]) +
               ek_replicate_imbalance(s, y, load[y] - more) -
               ek_replicate_imbalance(s, y, load[y]) <
           0;
}

/* Fills order [experts] with the experts by ascending key; equal keys by number. */
void ek_replicate_ascending(int32_t experts, const int64_t *key, int32_t *order);

/* The minimum number of replicas per expert: `least`, or what the slots allow, at least 1. */
int32_t ek_replicate_least(int32_t experts, int32_t slots, int32_t least);
/* Eq. 1: fills order [experts], ascending by total, and replicas [experts], which ascend along it.
 * EK_EINVAL: fewer slots than experts. */
EK_CHECKED ek_status ek_replicate_allocate(int32_t experts, int32_t slots, int32_t least,
                                           const int64_t *total, int32_t *order, int32_t *replicas);

/* The paper's MRO placement, and replicas in turn over all nodes.  left [experts] is scratch. */
void ek_replicate_mro(const ek_replicate_nodes *s, const int32_t *order, const int32_t *replicas,
                      int32_t *left, ek_replicate_place *w);
void ek_replicate_spread(const ek_replicate_nodes *s, const int32_t *order, const int32_t *replicas,
                         int32_t *left, ek_replicate_place *w);

/* Fills in w->lack and w->fatal.  need [experts]: nodes that must hold each. */
void ek_replicate_score(ek_replicate_nodes *s, const int32_t *need, ek_replicate_place *w);
/* Negative: a is better: less lack, then fewer fatal sets of one node, of two, ... */
int ek_replicate_compare(const ek_replicate_nodes *s, const ek_replicate_place *a,
                         const ek_replicate_place *b);

/* Risk of a placement: lack; then the number of sets of 1, 2, ... nodes that are fatal to it alone,
 * and to it or other layers. */
typedef struct {
    int64_t lack, alone[EK_REPLICATE_FAILURES + 1], joint[EK_REPLICATE_FAILURES + 1];
} ek_replicate_risk;

/* Sets the replica sets of other layers, in real nodes, that `joint` counts from here on; NULL:
 * none. */
void ek_replicate_regard(ek_replicate_nodes *s, const ek_replica_sets *others);
/* Fills *r and w->lack, and keeps the minimal replica sets for ek_replicate_is_safe. */
void ek_replicate_risk_of(ek_replicate_nodes *s, const int32_t *need, ek_replicate_place *w,
                          ek_replicate_risk *r);
/* Whether every failure that loses this expert, tried or not, was fatal to the placement last given
 * to ek_replicate_risk_of: the nodes of one of that placement's experts are a subset of this one's.
 */
int ek_replicate_is_safe(ek_replicate_nodes *s, const ek_replicate_place *w, int32_t expert);

/* Sums the loads of nodes: load [nodes]. */
void ek_replicate_loads(const ek_replicate_nodes *s, const int64_t *weight,
                        const ek_replicate_place *w, int64_t *load);
/* Whether a swap of two slots changes anything: they are on different nodes and hold different
 * experts. */
int ek_replicate_may_swap(const ek_replicate_nodes *s, const ek_replicate_place *w, int32_t i,
                          int32_t j);
/* Swaps the contents of two slots and updates w->lack. */
void ek_replicate_swap(const ek_replicate_nodes *s, const int32_t *need, ek_replicate_place *w,
                       int32_t i, int32_t j);
/* Exchanges two experts in all their slots. */
void ek_replicate_exchange(const ek_replicate_nodes *s, ek_replicate_place *w, int32_t a,
                           int32_t b);

/* Swaps slots of two nodes while that reduces the lack, and updates what ek_replicate_score filled
 * in. */
void ek_replicate_repair(ek_replicate_nodes *s, const int32_t *need, ek_replicate_place *w);
/* Evens out the nodes' loads without changing the risk: exchanges experts with equal numbers of
 * replicas.  weight [experts]: load of a replica, 2^24 being the total of all assignments; load
 * [nodes] is scratch. */
void ek_replicate_even(ek_replicate_nodes *s, const int32_t *replicas, const int64_t *weight,
                       ek_replicate_place *w, int64_t *load);
/* Hill-climbing by swaps: first those that score no worse, then of those the ones that even out the
 * loads.  fatal [most + 1] and load [nodes] are scratch. */
void ek_replicate_climb(ek_replicate_nodes *s, const int32_t *need, const int64_t *weight,
                        ek_replicate_place *w, int64_t *fatal, int64_t *load);

#endif
