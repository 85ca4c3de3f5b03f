/* schedule/op_kind.h - what the ops of a step graph are: one table of kinds.
 *
 * An op carries its kind.  Whoever wants to know more about it (timelines, predictions,
 * benchmarks) asks this table; no code compares the names. */
#ifndef SCHEDULE_OP_KIND_H
#define SCHEDULE_OP_KIND_H

typedef enum {
    /* Router and gate */
    EK_OP_ROUTER,
    EK_OP_GATHER_LOGITS,
    EK_OP_TOPK,
    EK_OP_GATHER_COUNTS,
    EK_OP_LAYOUT,
    EK_OP_ROUTER_BACKWARD,
    /* Token dispatch */
    EK_OP_PERMUTE,
    EK_OP_DISPATCH_A2A,
    EK_OP_UNPACK,
    EK_OP_REPACK,
    EK_OP_COMBINE_A2A,
    EK_OP_UNPERMUTE,
    EK_OP_UNPERMUTE_BACKWARD,
    EK_OP_COMBINE_A2A_BACKWARD,
    EK_OP_DISPATCH_A2A_BACKWARD,
    EK_OP_PERMUTE_BACKWARD,
    /* Experts */
    EK_OP_EXPERT_UP,
    EK_OP_SWIGLU,
    EK_OP_EXPERT_DOWN,
    EK_OP_EXPERT_DOWN_WEIGHT,
    EK_OP_EXPERT_DOWN_INPUT,
    EK_OP_SWIGLU_BACKWARD,
    EK_OP_EXPERT_UP_WEIGHT,
    EK_OP_EXPERT_UP_INPUT,
    EK_OP_STREAM_EXPERTS,
    /* Experts' state on disk */
    EK_OP_READ_STATE,
    EK_OP_WAIT_STATE,
    EK_OP_WRITE_STATE,
    EK_OP_SUM_GRADIENTS,
    EK_OP_WRITE_GRADIENTS,
    /* Replicas */
    EK_OP_PLAN_REPLICAS,
    EK_OP_REPLICAS,
    EK_OP_EARLY_REPLICAS, /* sent before the gate, by a plan from an earlier micro-batch */
    EK_OP_LATE_REPLICAS,  /* those that were not sent before the gate */
    EK_OP_WAIT_REPLICAS,
    EK_OP_PACK_REPLICAS, /* for backward, of weights that were sent for forward */
    EK_OP_CLEAR_REPLICAS,
    EK_OP_REPLICA_GRADIENTS,
    EK_OP_SHARE_GRADIENTS,
    /* Persistent placements */
    EK_OP_MOVE_EXPERTS,
    EK_OP_WAIT_EXPERTS,
    EK_OP_INSTALL_EXPERTS,
    /* Shared expert */
    EK_OP_GATHER_TOKENS,
    EK_OP_GATHER_GRADIENT,
    EK_OP_REDUCE_SCATTER,
    EK_OP_REDUCE_SCATTER_GATE,
    EK_OP_ALL_REDUCE_NORMS,
    EK_OP_SHARED_EXPERT_TOKENS,
    EK_OP_GATHER_GATE,
    EK_OP_SHARED_EXPERT,
    EK_OP_SHARED_EXPERT_ADD,
    EK_OP_SHARED_EXPERT_BACKWARD,
    EK_OP_SHARED_EXPERT_UP_WEIGHT,
    /* Attention and norms */
    EK_OP_NORM,
    EK_OP_NORM_SQUARES,
    EK_OP_NORM_RECOMPUTE,
    EK_OP_NORM_BACKWARD,
    EK_OP_QKV,
    EK_OP_QKV_BACKWARD,
    EK_OP_QKV_INPUT,
    EK_OP_QKV_WEIGHT,
    EK_OP_ROPE,
    EK_OP_ROPE_BACKWARD,
    EK_OP_ATTENTION,
    EK_OP_ATTENTION_BACKWARD,
    EK_OP_ATTENTION_GRADIENT,
    EK_OP_ATTENTION_ADD,
    EK_OP_ATTENTION_OUT,
    EK_OP_ATTENTION_OUT_BACKWARD,
    /* Embedding, head, loss */
    EK_OP_GATHER_IDS,
    EK_OP_EMBED,
    EK_OP_GATHER_COLUMNS,
    EK_OP_JOIN_COLUMNS,
    EK_OP_EMBED_ROWS,
    EK_OP_SPLIT_COLUMNS,
    EK_OP_SPREAD_COLUMNS,
    EK_OP_EMBED_GRADIENT,
    EK_OP_EMBED_BACKWARD,
    EK_OP_FINAL_NORM,
    EK_OP_FINAL_NORM_BACKWARD,
    EK_OP_LOGITS,
    EK_OP_GATHER_LOGIT_SUMS,
    EK_OP_CROSS_ENTROPY,
    EK_OP_HEAD_BACKWARD,
    EK_OP_COUNT_TARGETS,
    EK_OP_LOSSES,
    EK_OP_SUM_LOSSES,
    /* Pipeline stages */
    EK_OP_RECEIVE,
    EK_OP_SEND,
    EK_OP_GRADIENT_IN,
    EK_OP_RECEIVE_GRADIENT,
    EK_OP_GRADIENT_OUT,
    EK_OP_SEND_GRADIENT,
    /* Parameter buckets */
    EK_OP_GATHER_WEIGHTS,
    EK_OP_WAIT_WEIGHTS,
    EK_OP_PACK,
    EK_OP_PACK_FORWARD,
    EK_OP_PACK_BACKWARD,
    EK_OP_COLLECT_GRADIENTS,
    EK_OP_REDUCE_GRADIENTS,
    EK_OP_WAIT_GRADIENTS,
    EK_OP_REDUCE_TIED_GRADIENTS,
    EK_OP_COPY_GRADIENTS,
    /* Optimizer */
    EK_OP_GRADIENT_NORM,
    EK_OP_SUM_OVER_RANKS,
    EK_OP_CLIP,
    EK_OP_ADAMW,

    EK_OP_KINDS
} ek_op_kind;

/* Whether ops of a kind exchange rows of tokens between the ranks of experts. */
static inline int ek_op_is_token_exchange(ek_op_kind kind)
{
    return kind == EK_OP_DISPATCH_A2A || kind == EK_OP_COMBINE_A2A ||
           kind == EK_OP_COMBINE_A2A_BACKWARD || kind == EK_OP_DISPATCH_A2A_BACKWARD;
}

/* The part of a step under which benchmarks sum up an op. */
typedef enum {
    EK_OP_GROUP_OTHER,
    EK_OP_GROUP_ROUTING,
    EK_OP_GROUP_DISPATCH,
    EK_OP_GROUP_EXPERTS,
    EK_OP_GROUP_SWIGLU,
    EK_OP_GROUP_SHARED_EXPERT,
    EK_OP_GROUP_PROJECTIONS, /* of attention */
    EK_OP_GROUP_ATTENTION,
    EK_OP_GROUP_NORMS,
    EK_OP_GROUP_EMBED_HEAD,
    EK_OP_GROUP_OPTIMIZER,
    EK_OP_GROUPS
} ek_op_group;

typedef struct {
    const char *name; /* in timelines and in the output of benchmarks */
    ek_op_group group;
    int of_expert_layer; /* its time is part of the time of an expert layer */
} ek_op_info;

/* Static; kind is below EK_OP_KINDS. */
const ek_op_info *ek_op_info_of(ek_op_kind kind);
const char *ek_op_name(ek_op_kind kind);

/* "expert products", "attention", ... */
const char *ek_op_group_name(ek_op_group group);

#endif
