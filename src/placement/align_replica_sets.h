/* placement/align_replica_sets.h - maps planned domains to real ones so that all layers share their
 * fatal failure sets.
 *
 * Source       Ours.  Lazarus (arXiv 2407.04656v2) places each layer by itself, but a lost node
 *              affects all layers.  If L layers have the same d smallest replica sets of m domains,
 *              C(N, m) - d losses of m of N domains are survived instead of as few as
 *              C(N, m) - L d.
 * Formula      Minimise |{H : no replica set of other layers is a subset of image(H)}| over the
 *              layer's smallest replica sets H: the number of further fatal losses.
 * Method       From the given image, pairs of domains of equal size are swapped, taking the first
 *              pair that lowers the sum, until none does or after 2^24 word operations.  A local
 *              minimum: the quadratic assignment problem is not solved exactly.
 * Complexity   A pass over the pairs is O(N^2 H n words) at most, H and n being the numbers of
 *              sets; only sets with one of the two domains are evaluated.
 *
 * Whole domains are swapped, so loads are unchanged up to rounding remainders.  Pure and
 * deterministic. */
#ifndef PLACEMENT_ALIGN_REPLICA_SETS_H
#define PLACEMENT_ALIGN_REPLICA_SETS_H

#include "placement/survivability.h"

typedef struct {
    int32_t nodes, words;
    int32_t size;           /* size of the sets */
    int64_t n, capacity;    /* number and capacity of sets */
    uint64_t *set;          /* [capacity][words] sets of planned domains */
    unsigned char *is_new;  /* [capacity] with the present image: includes no set of the other
                               layers */
    unsigned char *was_new; /* [capacity] before the last swap */
    uint64_t *real;         /* [words] scratch */
    int64_t work;
} ek_set_alignment;

void ek_align_reserve(ek_set_alignment *a, ek_arena *arena, int32_t nodes, int64_t capacity);
void ek_align_clear(ek_set_alignment *a);
/* Adds the replica set of an expert: mask [words] of planned domains.  Only the smallest sets are
 * kept, each once. */
void ek_align_add(ek_set_alignment *a, const uint64_t *mask);

/* Improves image [nodes]; only domains of equal size, slots [nodes], are swapped.  Returns the
 * number of sets that are not fatal to other layers. */
int64_t ek_align_replica_sets(ek_set_alignment *a, const ek_replica_sets *others,
                              const int32_t *slots, int32_t *image);

#endif
