/* model/head_priv.h - what the ops of the model's two ends share: embedding and loss head. */
#ifndef MODEL_HEAD_PRIV_H
#define MODEL_HEAD_PRIV_H

#include "model/pass.h"

/* A compute op of no layer. */
ek_op ek_head_op(ek_pass *p, ek_op_kind kind, ek_op_fn run, int32_t micro, int32_t part,
                 double flops, double bytes);

/* Ids counted from this rank's first row of the vocabulary, -1 where it has not got them; in
 * place, perhaps. */
void ek_head_localise(const ek_model *m, int64_t n, const int32_t *ids, int32_t *local);

/* The same in p->ids, until the next call. */
const int32_t *ek_head_local_ids(ek_pass *p, int64_t n, const int32_t *ids);

/* What gradients of a target's loss are multiplied by: one over the targets that count. */
static inline double ek_head_loss_scale(const ek_pass *p)
{
    return p->loss_tokens > 0 ? 1.0 / p->loss_tokens : 0;
}

/* ek_head_build between tensor parallel ranks (model/head_tp.c). */
int32_t ek_head_build_tp(ek_pass *p, ek_graph *g, int32_t micro, int32_t dep);

#endif
