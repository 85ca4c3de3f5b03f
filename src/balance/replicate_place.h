/* balance/replicate_place.h - private to `replicate` and its test: how many replicas each expert
 * gets, which nodes they lie on, and how many failures of nodes such a placement survives.  Slots
 * here are those of nodes: node n's follow node n - 1's. */
#ifndef BALANCE_REPLICATE_PLACE_H
#define BALANCE_REPLICATE_PLACE_H

#include "evenkeel/err.h"

#include "placement/survivability.h"

enum { EK_REPLICATE_FAILURES = 16 }; /* at once, where there are more nodes */

/* The nodes, and the sets of them whose failure is tried. */
typedef struct {
    int32_t nodes, experts, slots;
    int32_t *room;    /* [nodes] slots of each; the caller fills them in */
    int32_t *ranks;   /* [nodes] ranks of each; likewise */
    int32_t *first;   /* [nodes + 1] first slot of each */
    int32_t *node_of; /* [slots] */
    int32_t most;     /* 1 to this many nodes fail at once */
    int32_t exact;    /* for each of these numbers every set is tried */
    int32_t words;
    int32_t *word_of; /* [most + 2] first word of the sets of so many nodes */
    int64_t *sets;    /* [most + 1] how many there are */
    uint64_t *dead;   /* [nodes][words] a bit a set: the node is in it */
    uint64_t *fallen; /* [words] sets that are fatal to other layers, as regarded */
    int32_t n_replica_sets;
    uint64_t *replica_sets; /* [experts][ek_replicate_mask_words] smallest sets of nodes that held
                          an expert in the placement whose risk was asked for last */
    int32_t *core;          /* [experts] memory of the scoring */
    int64_t work;           /* word operations that the scoring has done */
} ek_replicate_nodes;

/* Which node slot holds which expert. */
typedef struct {
    int32_t *at;     /* [slots], -1: vacant */
    int32_t *count;  /* [experts][nodes] replicas */
    int32_t *vacant; /* [nodes] */
    uint64_t *mask;  /* [experts][ek_replicate_mask_words] the nodes that hold it */
    int64_t lack;    /* nodes that experts miss to what they need, all together */
    int64_t *fatal;  /* [most + 1] sets of so many nodes that take some expert's last replica */
} ek_replicate_place;

void ek_replicate_nodes_reserve(ek_replicate_nodes *s, ek_arena *a, int32_t nodes, int32_t experts,
                                int32_t slots);
/* Lays out the slots and the failures, once room and ranks are filled in. */
void ek_replicate_nodes_ready(ek_replicate_nodes *s);

void ek_replicate_place_reserve(ek_replicate_place *w, ek_arena *a, const ek_replicate_nodes *s);
void ek_replicate_place_clear(const ek_replicate_nodes *s, ek_replicate_place *w);
void ek_replicate_place_copy(const ek_replicate_nodes *s, ek_replicate_place *to,
                             const ek_replicate_place *from);
/* One more replica on a node that has room. */
void ek_replicate_put(const ek_replicate_nodes *s, ek_replicate_place *w, int32_t node,
                      int32_t expert);
/* The same with nodes renamed: what lies on node n comes to node image[n], which has its room. */
void ek_replicate_place_as(const ek_replicate_nodes *s, const ek_replicate_place *from,
                           const int32_t *image, ek_replicate_place *to);
int32_t ek_replicate_distinct(const ek_replicate_nodes *s, const ek_replicate_place *w,
                              int32_t expert);

/* Experts in ascending order of a key; equal keys in order of number. */
void ek_replicate_ascending(int32_t experts, const int64_t *key, int32_t *order);

/* Replicas that each expert is sure of: `least`, fewer where the slots do not suffice. */
int32_t ek_replicate_least(int32_t experts, int32_t slots, int32_t least);
/* Eq. 1.  replicas [experts] ascend along order [experts], which is filled too. */
EK_CHECKED ek_status ek_replicate_allocate(int32_t experts, int32_t slots, int32_t least,
                                           const int64_t *total, int32_t *order, int32_t *replicas);

/* The placements of the paper.  left [experts] is memory. */
void ek_replicate_mro(const ek_replicate_nodes *s, const int32_t *order, const int32_t *replicas,
                      int32_t *left, ek_replicate_place *w);
void ek_replicate_spread(const ek_replicate_nodes *s, const int32_t *order, const int32_t *replicas,
                         int32_t *left, ek_replicate_place *w);
void ek_replicate_compact(const ek_replicate_nodes *s, const int32_t *order,
                          const int32_t *replicas, ek_replicate_place *w);

/* Fills in lack and fatal.  need [experts]: nodes that shall hold each. */
void ek_replicate_score(ek_replicate_nodes *s, const int32_t *need, ek_replicate_place *w);
/* Negative: a is the better: fewer lacks, then fewer fatal sets of one node, of two, ... */
int ek_replicate_compare(const ek_replicate_nodes *s, const ek_replicate_place *a,
                         const ek_replicate_place *b);

/* What a placement is in danger of: nodes that experts miss, then sets of 1, 2, ... nodes that are
 * fatal to it alone, and to it or other layers. */
typedef struct {
    int64_t lack, alone[EK_REPLICATE_FAILURES + 1], joint[EK_REPLICATE_FAILURES + 1];
} ek_replicate_risk;

/* Whose holders, of real nodes, are regarded from here on; NULL: nobody's. */
void ek_replicate_regard(ek_replicate_nodes *s, const ek_replica_sets *others);
/* Finds the lack, too. */
void ek_replicate_risk_of(ek_replicate_nodes *s, const int32_t *need, ek_replicate_place *w,
                          ek_replicate_risk *r);
/* Whether all sets that take an expert, tried or not, were fatal to the placement whose risk was
 * asked for last: the nodes of one of its experts are among this one's. */
int ek_replicate_is_safe(ek_replicate_nodes *s, const ek_replicate_place *w, int32_t expert);

/* Loads of nodes: load [nodes]. */
void ek_replicate_loads(const ek_replicate_nodes *s, const int64_t *weight,
                        const ek_replicate_place *w, int64_t *load);
/* Whether a swap of two slots' contents changes anything: slots of one expert on two nodes cannot
 * be told apart, nor can two of one node. */
int ek_replicate_may_swap(const ek_replicate_nodes *s, const ek_replicate_place *w, int32_t i,
                          int32_t j);
/* Swaps them, the lack following. */
void ek_replicate_swap(const ek_replicate_nodes *s, const int32_t *need, ek_replicate_place *w,
                       int32_t i, int32_t j);
/* Two experts change places altogether. */
void ek_replicate_exchange(const ek_replicate_nodes *s, ek_replicate_place *w, int32_t a,
                           int32_t b);

/* Swaps contents of slots of two nodes while that brings experts to the nodes they need. */
void ek_replicate_repair(ek_replicate_nodes *s, const int32_t *need, ek_replicate_place *w);
/* Evens out the nodes' loads without any change in what fails: experts with as many replicas
 * change places.  weight [experts]: the load of a replica, 2^24 being all there is; load [nodes] is
 * memory. */
void ek_replicate_even(ek_replicate_nodes *s, const int32_t *replicas, const int64_t *weight,
                       ek_replicate_place *w, int64_t *load);
/* Hill-climbing by swaps: first whatever scores no worse, then of that what evens out the loads.
 * fatal [most + 1] and load [nodes] are memory. */
void ek_replicate_climb(ek_replicate_nodes *s, const int32_t *need, const int64_t *weight,
                        ek_replicate_place *w, int64_t *fatal, int64_t *load);

#endif
