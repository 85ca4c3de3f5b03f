/* train/layout_room.h - whether copies for the loss of a host fit in memory with a layout of a
 * pool.
 */
#ifndef TRAIN_LAYOUT_ROOM_H
#define TRAIN_LAYOUT_ROOM_H

#include "train/layout_pool.h"

/* Whether a layout of which one host alone has a part of a stage fits in cfg->memory_limit with
 * copies on other hosts (train/rank_copies.h); 1 also if that is not known: there is no limit, as a
 * start learns what hosts have, or training refuses the layout.  tells: logs it if it does not.
 * host_of [ranks].  Local. */
int ek_layout_has_room(const ek_train_config *cfg, const ek_pool_layout *l, int ranks,
                       const int *host_of, int tells);

#endif
