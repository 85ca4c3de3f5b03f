/* moe/library_priv.h - what the files that implement evenkeel/moe_layer.h share: the layer of a
 * library's user, with weights of its own, on a mesh whose ranks are one expert-parallel group. */
#ifndef MOE_LIBRARY_PRIV_H
#define MOE_LIBRARY_PRIV_H

#include "evenkeel/moe_layer.h"

#include "exec/exec.h"
#include "moe/moe.h"

/* What ranks learn of each other's forward or backward before it begins. */
typedef struct {
    int64_t tokens; /* of a forward; negative: the call was refused */
    int32_t act_slot, training, backward;
} ek_moe_layer_call;

/* A forward whose activations are kept, and which may wait for its backward. */
typedef struct {
    void *tokens; /* C [limits.tokens, hidden], x of the forward */
    void *real;   /* R likewise; NULL: C is R */
    int due;      /* its backward is to come */
} ek_moe_layer_act_slot;

struct ek_moe_layer {
    ek_comm *world; /* borrowed; NULL: one process */
    ek_mesh *opened;
    const ek_mesh *mesh;
    ek_kernels *k;
    ek_exec *exec;
    ek_graph graph;
    ek_model_spec spec; /* of a model of this layer alone */
    ek_moe_config config;
    ek_moe_limits limits;
    double init_std;
    ek_arena weights, activations;
    ek_moe_weights w;
    ek_moe_scratch scratch;
    ek_moe_planning planning;
    ek_moe m;
    ek_moe_step step;
    int act_slots;                   /* forwards in flight */
    ek_moe_layer_act_slot *act_slot; /* [act_slots] */
    ek_micro *micro;                 /* [act_slots], the micro-batch of each */
    int32_t *act_slot_of;            /* [act_slots] 0, 1, 2, ... */
    void *out;                       /* R [limits.tokens, hidden], y of the forward at work */
    ek_moe_layer_call *calls;        /* [ranks] */
    int last;                        /* activation slot of the last forward */
    int broken;                      /* a call failed halfway */
    char planner_fault[256];
};

/* EK_ESTATE if an earlier call failed halfway. */
static inline ek_status ek_moe_layer_check_usable(const ek_moe_layer *l)
{
    EK_REQUIRE(!l->broken, EK_ESTATE,
               "an earlier call of this layer failed halfway: it can only be destroyed");
    return EK_OK;
}

/* A collective that failed leaves the ranks in different states. */
static inline ek_status ek_moe_layer_end_collective(ek_moe_layer *l, ek_status st)
{
    if (st < 0) {
        l->broken = 1;
        if (l->world != NULL)
            ek_comm_give_up(l->world);
    }
    return st;
}

#endif
