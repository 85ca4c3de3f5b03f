/* train/share_follower.h - shares of a batch that follow the speeds of data-parallel ranks.
 *
 * The speed of a data-parallel rank is that of the slowest of its expert ranks, over all pipeline
 * stages, as planners heed it (balance/rank_speeds.h): attention and other dense layers are taken
 * to be as much slower there as expert products are. */
#ifndef TRAIN_SHARE_FOLLOWER_H
#define TRAIN_SHARE_FOLLOWER_H

#include "model/step/pass.h"

typedef struct {
    int64_t *weights; /* [dp] of the last step's speeds; NULL: nothing is followed */
    int64_t *sums;    /* [dp + 1] of them (nn/batch_shares.h) */
} ek_share_follower;

/* The caller calls fini, also on failure. */
EK_CHECKED ek_status ek_share_follower_init(ek_share_follower *f, const ek_mesh *mesh);
void ek_share_follower_fini(ek_share_follower *f);

/* After a step, whose sums all ranks have: sets f->sums, no weight above `most` times their mean,
 * and returns 1; 0: nothing is followed.  All ranks find the same. */
int ek_share_follower_update(ek_share_follower *f, const ek_pass *p, double most);

#endif
