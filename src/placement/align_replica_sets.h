/* placement/align_replica_sets.h - which planned domain becomes which real one, so that a layer
 * falls with the same losses of domains as other layers do.
 *
 * Source       ours.  Lazarus (arXiv 2407.04656v2) places each layer by itself; but a lost node
 *              hits all layers, and layers whose smallest sets of holders are the same ones fall
 *              together: of L layers with d such sets each, C(N, m) - d losses of m domains of N
 *              are outlived instead of as few as C(N, m) - L d.
 * Formula      minimize |{H : no holder set of the others is a subset of image(H)}| over the
 *              layer's smallest holder sets H: what adds to the losses of so many domains that are
 *              fatal already.
 * Method       from the image given, domains of one size change places in pairs while that lessens
 *              the sum; the first pair that does is taken, until none does or 2^24 words have been
 *              looked at.  A local minimum: quadratic assignment is not solved exactly here.
 * Complexity   a round of pairs O(N^2 H n words) at most, H and n being the numbers of sets, of
 *              which only those with one of the two are looked at.
 *
 * Loads stay what they are, up to remainders, as domains change places whole.  Pure, the same for
 * all who know the same. */
#ifndef PLACEMENT_ALIGN_REPLICA_SETS_H
#define PLACEMENT_ALIGN_REPLICA_SETS_H

#include "placement/survivability.h"

typedef struct {
    int32_t nodes, words;
    int32_t size;           /* of the sets */
    int64_t n, room;        /* sets */
    uint64_t *set;          /* [room][words], of planned domains */
    unsigned char *is_new;  /* [room] as the image is: no set of the others is within it */
    unsigned char *was_new; /* [room] before the last change */
    uint64_t *real;         /* [words], memory */
    int64_t work;
} ek_set_alignment;

void ek_align_reserve(ek_set_alignment *a, ek_arena *arena, int32_t nodes, int64_t room);
void ek_align_clear(ek_set_alignment *a);
/* Planned domains that hold an expert; the smallest sets are kept, each once. */
void ek_align_add(ek_set_alignment *a, const uint64_t *mask);

/* Improves image [nodes], where only those of equal room [nodes] may change places.  Returns how
 * many sets are still new. */
int64_t ek_align_replica_sets(ek_set_alignment *a, const ek_replica_sets *others,
                              const int32_t *room, int32_t *image);

#endif
