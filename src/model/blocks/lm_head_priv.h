/* model/blocks/lm_head_priv.h - shared by the ops of the embedding and of the loss head. */
#ifndef MODEL_BLOCKS_LM_HEAD_PRIV_H
#define MODEL_BLOCKS_LM_HEAD_PRIV_H

#include "model/blocks/backward.h"

/* A compute op of no layer. */
ek_op ek_head_op(ek_backward *bw, ek_op_kind kind, ek_op_fn run, int32_t micro, int32_t part,
                 ek_work work, double bytes);

/* Ids relative to this rank's first vocabulary row, -1 for rows of other ranks. ids and local [n]
 * may be the same array. */
void ek_head_localise(const ek_model *m, int64_t n, const int32_t *ids, int32_t *local);

/* The same into bw->head.ids, which the next call overwrites. */
const int32_t *ek_head_local_ids(ek_backward *bw, int64_t n, const int32_t *ids);

/* Factor on the gradient of each target's loss: 1 / (number of targets that count). */
static inline double ek_head_loss_scale(const ek_backward *bw)
{
    return bw->loss.tokens > 0 ? 1.0 / bw->loss.tokens : 0;
}

/* ek_head_build for more than one tensor parallel rank (model/blocks/lm_head_tp.c). */
int32_t ek_head_build_tp(ek_backward *bw, ek_graph *g, int32_t micro, int32_t dep);

#endif
