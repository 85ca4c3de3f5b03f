/* placement/passing.h - the order in which ranks pass the weights of experts on.
 *
 * The weights of an expert go from the rank of its primary copy through the ranks with replicas in
 * a chain: each but the last sends them on.  Ranks that send experts of their own come last, so
 * that with one replica a rank no link carries three. */
#ifndef PLACEMENT_PASSING_H
#define PLACEMENT_PASSING_H

#include <stdint.h>

/* Fills order [2 * ranks], whose second half is scratch: ranks with no expert that others hold,
 * too, then the others; both ascend.  expert_of [ranks * slots]; primary [experts]: slot number,
 * where `first` is that of the first slot. */
void ek_passing_order(const int32_t *expert_of, const int32_t *primary, int32_t ranks,
                      int32_t slots, int32_t first, int32_t *order);

#endif
