/* sim/dialect_net.h - network ops that other programs call in other groups or parts: switches of a
 * dialect (sim/dialect.h). */
#ifndef SIM_DIALECT_NET_H
#define SIM_DIALECT_NET_H

#include "cost/machine.h"
#include "schedule/graph.h"

/* Of the layout and the model. */
typedef struct {
    int32_t ep, etp;           /* expert-parallel ranks; tensor-parallel ranks of an expert */
    int64_t experts, top_k;    /* of a layer; of a token */
    int32_t groups, group_top; /* a token's experts are of group_top of so many groups of them; 0:
                                  of any */
    int32_t node_ranks;
} ek_dialect_layout;

/* expert-counts: a gather of counts is one of the ranks of an expert-parallel group alone. */
void ek_dialect_gather_few_counts(const ek_dialect_layout *l, ek_op *op);

/* node-once: each exchange of rows is two, in flight at once: of rows between ranks at the same
 * place of their nodes, one for each node that a token has experts on, and inside the node, one for
 * each such rank of it.  Experts are drawn evenly and differ for a token.  *to is empty; EK_ENOMEM.
 */
EK_CHECKED ek_status ek_dialect_send_once(const ek_dialect_layout *l, const ek_graph *from,
                                          ek_graph *to);

/* ddp-buckets: the sum of a layer's gradients is one sum after the other, each of matrices in the
 * order of their gradients until they have 25 MiB of the sum in the type of products; what is left
 * goes with the last one.  A sum begins when the one before has ended.  *to is empty; EK_ENOMEM. */
EK_CHECKED ek_status ek_dialect_sum_buckets(const ek_machine *m, const ek_graph *from,
                                            ek_graph *to);

#endif
