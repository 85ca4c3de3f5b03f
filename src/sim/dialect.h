/* sim/dialect.h - what other programs do differently: switches that rewrite the graphs of a step.
 *
 *   unfused-attention  scores are stored: products over all pairs of a query and a key, and passes
 *                      over the scores of all heads (softmax, dropout): 6 forward, 9 backward
 *   low-messages       sums over tensor parallel ranks, and the residual stream between pipeline
 *                      stages, are sent in the type of products; here in the real type
 *   low-gradients      gradients are reduced in the type of products, those of copies of experts
 *                      likewise
 *   low-weights        weights are gathered in the type of products (ZeRO 1 to 3); here masters
 *   late-gradients     gradients are reduced after the last backward pass; here during it
 *   ring-steps         each step of a ring pays what its link takes beside bytes; here segments
 *                      of a long vector follow one another (of the cluster: sim/price_net.h)
 *   tree-sums          an all-reduce of several nodes is a double binary tree of nodes where that
 *                      is quicker than a ring (of the cluster: sim/price_net.h); here always a ring
 *   padded             every rank sends as many rows to each expert as its capacity, or, dropless,
 *                      as the most that any rank has for any (of loads: sim/capacity.h)
 *   weights-first      gradients of expert weights are computed before those of rows are sent back;
 *                      here while they are sent
 *   gradient-passes    gradients are set to zero before the step, and scaled after it, which is a
 *                      write, and a read and a write of all; here neither
 *   unfused-rows       ops on rows are kernels of their own, logits are kept whole in the real
 *                      type, and gradients of weights, in the type of products, are added after
 *                      the backward pass (sim/unfused.h); here none of this
 *   etp-gather         rows are sent to one rank of an expert (--etp), and the others gather them
 *                      from it; sums go back likewise. Here each has them from their source
 *   expert-counts      counts of rows are gathered by the ranks of an expert-parallel group; here
 *                      by all of the stage
 *   node-once          a row is sent once to each node that has experts of its token, and there
 *                      once to each rank that has (sim/dialect_net.h); here once for each expert
 *   ddp-buckets        gradients of a layer are reduced in buckets of 25 MiB, one after the other
 *                      (sim/dialect_net.h); here in one
 *   replicas-alone     nothing goes on while replicas are sent or their gradients summed, but for
 *                      messages between stages; here they are beside what does not need them
 *   whole-sums         all gradients are summed whole by each rank, with ZeRO 1, too, at once after
 *                      the backward pass (sim/dialect_zero.h); here each rank has the sums of its
 *                      own, layer by layer
 *   gather-copies      updated weights are gathered at once, into vectors of ranks, of which each
 *                      weight is copied by itself (sim/dialect_zero.h); here layer by layer
 *   staged-2dh         2DH all-to-alls exchange all rows inside the node, then all between nodes,
 *                      with a copy of all before each; here rows of the node go with those between
 *                      nodes (of the cluster: sim/price_net.h) */
#ifndef SIM_DIALECT_H
#define SIM_DIALECT_H

#include "sim/cluster.h"
#include "sim/dialect_net.h"
#include "sim/graphs.h"

enum {
    EK_DIALECT_UNFUSED_ATTENTION = 1,
    EK_DIALECT_LOW_MESSAGES = 2,
    EK_DIALECT_LOW_GRADIENTS = 4,
    EK_DIALECT_LATE_GRADIENTS = 8,
    EK_DIALECT_RING_STEPS = 16,
    EK_DIALECT_PADDED = 32,
    EK_DIALECT_WEIGHTS_FIRST = 64,
    EK_DIALECT_STAGED_2DH = 128,
    EK_DIALECT_GRADIENT_PASSES = 256,
    EK_DIALECT_UNFUSED_ROWS = 512,
    EK_DIALECT_ETP_GATHER = 1024,
    EK_DIALECT_LOW_WEIGHTS = 2048,
    EK_DIALECT_EXPERT_COUNTS = 4096,
    EK_DIALECT_NODE_ONCE = 8192,
    EK_DIALECT_DDP_BUCKETS = 16384,
    EK_DIALECT_TREE_SUMS = 32768,
    EK_DIALECT_REPLICAS_ALONE = 65536,
    EK_DIALECT_WHOLE_SUMS = 131072,
    EK_DIALECT_GATHER_COPIES = 262144
};

enum { EK_DIALECT_TEXT = 320 };

/* The i-th word, if its bit is set, else ""; NULL: i is behind the last. */
const char *ek_dialect_word(unsigned dialect, int i);

/* The set words with commas between, in text [cap], of EK_DIALECT_TEXT; "" for 0. */
const char *ek_dialect_text(unsigned dialect, char *text, size_t cap);

/* The bits of n words.  EK_EINVAL: an unknown word. */
EK_CHECKED ek_status ek_dialect_parse(const char *const *words, int64_t n, unsigned *out);

typedef struct {
    ek_sim_graphs graphs;
    ek_sim_class *classes; /* ranks borrowed from the original */
    ek_graph *copies;
} ek_dialect_graphs;

/* Graphs in the dialect, of types of the machine; the caller closes *out, also after a failure.
 * EK_ENOMEM. */
EK_CHECKED ek_status ek_dialect_open(unsigned dialect, const ek_machine *m,
                                     const ek_dialect_layout *l, const ek_sim_graphs *from,
                                     ek_dialect_graphs *out);
void ek_dialect_close(ek_dialect_graphs *d);

#endif
