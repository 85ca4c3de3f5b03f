/* The table of op kinds. */
#include "schedule/op_kind.h"

static const ek_op_info kinds[EK_OP_KINDS] = {
    /* Router and gate */
    [EK_OP_ROUTER] = {"router", EK_OP_GROUP_ROUTING},
    [EK_OP_GATHER_LOGITS] = {"gather logits", EK_OP_GROUP_ROUTING},
    [EK_OP_TOPK] = {"topk", EK_OP_GROUP_ROUTING},
    [EK_OP_GATHER_COUNTS] = {"gather counts", EK_OP_GROUP_ROUTING},
    [EK_OP_LAYOUT] = {"layout", EK_OP_GROUP_ROUTING},
    [EK_OP_ROUTER_BACKWARD] = {"router backward", EK_OP_GROUP_ROUTING},
    /* Token dispatch */
    [EK_OP_PERMUTE] = {"permute", EK_OP_GROUP_DISPATCH, .of_expert_layer = 1},
    [EK_OP_DISPATCH_A2A] = {"dispatch a2a", EK_OP_GROUP_DISPATCH, .of_expert_layer = 1},
    [EK_OP_UNPACK] = {"unpack", EK_OP_GROUP_DISPATCH, .of_expert_layer = 1},
    [EK_OP_REPACK] = {"repack", EK_OP_GROUP_DISPATCH, .of_expert_layer = 1},
    [EK_OP_COMBINE_A2A] = {"combine a2a", EK_OP_GROUP_DISPATCH, .of_expert_layer = 1},
    [EK_OP_UNPERMUTE] = {"unpermute", EK_OP_GROUP_DISPATCH, .of_expert_layer = 1},
    [EK_OP_UNPERMUTE_BACKWARD] = {"unpermute backward", EK_OP_GROUP_DISPATCH, .of_expert_layer = 1},
    [EK_OP_COMBINE_A2A_BACKWARD] = {"combine a2a backward", EK_OP_GROUP_DISPATCH,
                                    .of_expert_layer = 1},
    [EK_OP_DISPATCH_A2A_BACKWARD] = {"dispatch a2a backward", EK_OP_GROUP_DISPATCH,
                                     .of_expert_layer = 1},
    [EK_OP_PERMUTE_BACKWARD] = {"permute backward", EK_OP_GROUP_DISPATCH, .of_expert_layer = 1},
    /* Experts */
    [EK_OP_EXPERT_UP] = {"expert up", EK_OP_GROUP_EXPERTS, .of_expert_layer = 1},
    [EK_OP_SWIGLU] = {"swiglu", EK_OP_GROUP_SWIGLU, .of_expert_layer = 1},
    [EK_OP_EXPERT_DOWN] = {"expert down", EK_OP_GROUP_EXPERTS, .of_expert_layer = 1},
    [EK_OP_EXPERT_DOWN_WEIGHT] = {"expert down weight", EK_OP_GROUP_EXPERTS, .of_expert_layer = 1},
    [EK_OP_EXPERT_DOWN_INPUT] = {"expert down input", EK_OP_GROUP_EXPERTS, .of_expert_layer = 1},
    [EK_OP_SWIGLU_BACKWARD] = {"swiglu backward", EK_OP_GROUP_SWIGLU, .of_expert_layer = 1},
    [EK_OP_EXPERT_UP_WEIGHT] = {"expert up weight", EK_OP_GROUP_EXPERTS, .of_expert_layer = 1},
    [EK_OP_EXPERT_UP_INPUT] = {"expert up input", EK_OP_GROUP_EXPERTS, .of_expert_layer = 1},
    [EK_OP_STREAM_EXPERTS] = {"stream experts", EK_OP_GROUP_EXPERTS, .of_expert_layer = 1},
    /* Experts' state on disk */
    [EK_OP_READ_STATE] = {"read state", EK_OP_GROUP_OTHER},
    [EK_OP_WAIT_STATE] = {"wait state", EK_OP_GROUP_OTHER},
    [EK_OP_WRITE_STATE] = {"write state", EK_OP_GROUP_OTHER},
    [EK_OP_SUM_GRADIENTS] = {"sum gradients", EK_OP_GROUP_OPTIMIZER},
    [EK_OP_WRITE_GRADIENTS] = {"write gradients", EK_OP_GROUP_OTHER},
    /* Replicas */
    [EK_OP_PLAN_REPLICAS] = {"plan replicas", EK_OP_GROUP_OTHER},
    [EK_OP_REPLICAS] = {"replicas", EK_OP_GROUP_OTHER},
    [EK_OP_EARLY_REPLICAS] = {"early replicas", EK_OP_GROUP_OTHER},
    [EK_OP_LATE_REPLICAS] = {"late replicas", EK_OP_GROUP_OTHER},
    [EK_OP_WAIT_REPLICAS] = {"wait replicas", EK_OP_GROUP_OTHER, .of_expert_layer = 1},
    [EK_OP_PACK_REPLICAS] = {"pack replicas", EK_OP_GROUP_OTHER, .of_expert_layer = 1},
    [EK_OP_CLEAR_REPLICAS] = {"clear replicas", EK_OP_GROUP_OTHER, .of_expert_layer = 1},
    [EK_OP_REPLICA_GRADIENTS] = {"replica gradients", EK_OP_GROUP_OTHER},
    [EK_OP_SHARE_GRADIENTS] = {"share gradients", EK_OP_GROUP_OTHER},
    /* Persistent placements */
    [EK_OP_MOVE_EXPERTS] = {"move experts", EK_OP_GROUP_OTHER},
    [EK_OP_WAIT_EXPERTS] = {"wait experts", EK_OP_GROUP_OTHER},
    [EK_OP_INSTALL_EXPERTS] = {"install experts", EK_OP_GROUP_OTHER},
    /* Shared expert */
    [EK_OP_GATHER_TOKENS] = {"gather tokens", EK_OP_GROUP_OTHER},
    [EK_OP_GATHER_GRADIENT] = {"gather gradient", EK_OP_GROUP_OTHER},
    [EK_OP_REDUCE_SCATTER] = {"reduce-scatter", EK_OP_GROUP_OTHER},
    [EK_OP_REDUCE_SCATTER_GATE] = {"reduce-scatter gate", EK_OP_GROUP_OTHER},
    [EK_OP_ALL_REDUCE_NORMS] = {"all-reduce norms", EK_OP_GROUP_OTHER},
    [EK_OP_SHARED_EXPERT_TOKENS] = {"shared expert tokens", EK_OP_GROUP_SHARED_EXPERT},
    [EK_OP_GATHER_GATE] = {"gather gate", EK_OP_GROUP_OTHER},
    [EK_OP_SHARED_EXPERT] = {"shared expert", EK_OP_GROUP_SHARED_EXPERT},
    [EK_OP_SHARED_EXPERT_ADD] = {"shared expert add", EK_OP_GROUP_SHARED_EXPERT},
    [EK_OP_SHARED_EXPERT_BACKWARD] = {"shared expert backward", EK_OP_GROUP_SHARED_EXPERT},
    [EK_OP_SHARED_EXPERT_UP_WEIGHT] = {"shared expert up weight", EK_OP_GROUP_SHARED_EXPERT},
    /* Attention and norms */
    [EK_OP_NORM] = {"norm", EK_OP_GROUP_NORMS},
    [EK_OP_NORM_SQUARES] = {"norm squares", EK_OP_GROUP_NORMS},
    [EK_OP_NORM_RECOMPUTE] = {"norm recompute", EK_OP_GROUP_NORMS},
    [EK_OP_NORM_BACKWARD] = {"norm backward", EK_OP_GROUP_NORMS},
    [EK_OP_QKV] = {"qkv", EK_OP_GROUP_PROJECTIONS},
    [EK_OP_QKV_BACKWARD] = {"qkv backward", EK_OP_GROUP_PROJECTIONS},
    [EK_OP_QKV_INPUT] = {"qkv input", EK_OP_GROUP_PROJECTIONS},
    [EK_OP_QKV_WEIGHT] = {"qkv weight", EK_OP_GROUP_PROJECTIONS},
    [EK_OP_ROPE] = {"rope", EK_OP_GROUP_NORMS},
    [EK_OP_ROPE_BACKWARD] = {"rope backward", EK_OP_GROUP_NORMS},
    [EK_OP_ATTENTION] = {"attention", EK_OP_GROUP_ATTENTION},
    [EK_OP_ATTENTION_BACKWARD] = {"attention backward", EK_OP_GROUP_ATTENTION},
    [EK_OP_ATTENTION_GRADIENT] = {"attention gradient", EK_OP_GROUP_ATTENTION},
    [EK_OP_ATTENTION_ADD] = {"attention add", EK_OP_GROUP_ATTENTION},
    [EK_OP_ATTENTION_OUT] = {"attention out", EK_OP_GROUP_PROJECTIONS},
    [EK_OP_ATTENTION_OUT_BACKWARD] = {"attention out backward", EK_OP_GROUP_PROJECTIONS},
    /* Embedding, head, loss */
    [EK_OP_GATHER_IDS] = {"gather ids", EK_OP_GROUP_EMBED_HEAD},
    [EK_OP_EMBED] = {"embed", EK_OP_GROUP_EMBED_HEAD},
    [EK_OP_GATHER_COLUMNS] = {"gather columns", EK_OP_GROUP_EMBED_HEAD},
    [EK_OP_JOIN_COLUMNS] = {"join columns", EK_OP_GROUP_EMBED_HEAD},
    [EK_OP_EMBED_ROWS] = {"embed rows", EK_OP_GROUP_EMBED_HEAD},
    [EK_OP_SPLIT_COLUMNS] = {"split columns", EK_OP_GROUP_EMBED_HEAD},
    [EK_OP_SPREAD_COLUMNS] = {"spread columns", EK_OP_GROUP_EMBED_HEAD},
    [EK_OP_EMBED_GRADIENT] = {"embed gradient", EK_OP_GROUP_EMBED_HEAD},
    [EK_OP_EMBED_BACKWARD] = {"embed backward", EK_OP_GROUP_EMBED_HEAD},
    [EK_OP_FINAL_NORM] = {"final norm", EK_OP_GROUP_EMBED_HEAD},
    [EK_OP_FINAL_NORM_BACKWARD] = {"final norm backward", EK_OP_GROUP_EMBED_HEAD},
    [EK_OP_LOGITS] = {"logits", EK_OP_GROUP_EMBED_HEAD},
    [EK_OP_GATHER_LOGIT_SUMS] = {"gather logit sums", EK_OP_GROUP_EMBED_HEAD},
    [EK_OP_CROSS_ENTROPY] = {"cross entropy", EK_OP_GROUP_EMBED_HEAD},
    [EK_OP_HEAD_BACKWARD] = {"head backward", EK_OP_GROUP_EMBED_HEAD},
    [EK_OP_COUNT_TARGETS] = {"count targets", EK_OP_GROUP_EMBED_HEAD},
    [EK_OP_LOSSES] = {"losses", EK_OP_GROUP_EMBED_HEAD},
    [EK_OP_SUM_LOSSES] = {"sum losses", EK_OP_GROUP_EMBED_HEAD},
    /* Pipeline stages */
    [EK_OP_RECEIVE] = {"receive", EK_OP_GROUP_OTHER},
    [EK_OP_SEND] = {"send", EK_OP_GROUP_OTHER},
    [EK_OP_GRADIENT_IN] = {"gradient in", EK_OP_GROUP_OTHER},
    [EK_OP_RECEIVE_GRADIENT] = {"receive gradient", EK_OP_GROUP_OTHER},
    [EK_OP_GRADIENT_OUT] = {"gradient out", EK_OP_GROUP_OTHER},
    [EK_OP_SEND_GRADIENT] = {"send gradient", EK_OP_GROUP_OTHER},
    /* Parameter buckets */
    [EK_OP_GATHER_WEIGHTS] = {"gather weights", EK_OP_GROUP_OTHER},
    [EK_OP_WAIT_WEIGHTS] = {"wait weights", EK_OP_GROUP_OTHER},
    [EK_OP_PACK] = {"pack", EK_OP_GROUP_OPTIMIZER},
    [EK_OP_PACK_FORWARD] = {"pack forward", EK_OP_GROUP_OPTIMIZER},
    [EK_OP_PACK_BACKWARD] = {"pack backward", EK_OP_GROUP_OPTIMIZER},
    [EK_OP_COLLECT_GRADIENTS] = {"collect gradients", EK_OP_GROUP_OTHER},
    [EK_OP_REDUCE_GRADIENTS] = {"reduce gradients", EK_OP_GROUP_OTHER},
    [EK_OP_WAIT_GRADIENTS] = {"wait gradients", EK_OP_GROUP_OTHER},
    [EK_OP_REDUCE_TIED_GRADIENTS] = {"reduce tied gradients", EK_OP_GROUP_OTHER},
    [EK_OP_COPY_GRADIENTS] = {"copy gradients", EK_OP_GROUP_OTHER},
    /* Optimizer */
    [EK_OP_GRADIENT_NORM] = {"gradient norm", EK_OP_GROUP_OPTIMIZER},
    [EK_OP_SUM_OVER_RANKS] = {"sum over ranks", EK_OP_GROUP_OPTIMIZER},
    [EK_OP_CLIP] = {"clip", EK_OP_GROUP_OPTIMIZER},
    [EK_OP_ADAMW] = {"adamw", EK_OP_GROUP_OPTIMIZER},
};

const ek_op_info *ek_op_info_of(ek_op_kind kind)
{
    return &kinds[kind];
}

const char *ek_op_name(ek_op_kind kind)
{
    return kinds[kind].name;
}

const char *ek_op_group_name(ek_op_group group)
{
    static const char *const names[EK_OP_GROUPS] = {
        [EK_OP_GROUP_OTHER] = "other",
        [EK_OP_GROUP_ROUTING] = "routing",
        [EK_OP_GROUP_DISPATCH] = "dispatch, combine",
        [EK_OP_GROUP_EXPERTS] = "expert products",
        [EK_OP_GROUP_SWIGLU] = "swiglu",
        [EK_OP_GROUP_SHARED_EXPERT] = "shared expert",
        [EK_OP_GROUP_PROJECTIONS] = "attention projections",
        [EK_OP_GROUP_ATTENTION] = "attention",
        [EK_OP_GROUP_NORMS] = "norms, rotation",
        [EK_OP_GROUP_EMBED_HEAD] = "embedding, head, loss",
        [EK_OP_GROUP_OPTIMIZER] = "optimizer, packing",
    };

    return names[group];
}
