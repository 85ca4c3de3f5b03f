/* moe/library_priv.h - what the files that implement evenkeel/moe_layer.h share: the layer of a
 * library's user, with weights of its own, on a mesh whose ranks are one expert-parallel group. */
#ifndef MOE_LIBRARY_PRIV_H
#define MOE_LIBRARY_PRIV_H

#include "evenkeel/moe_layer.h"

#include "exec/exec.h"
#include "moe/moe.h"

/* What a rank tells the others before each forward. */
typedef struct {
    int64_t tokens; /* negative: the call was refused */
    int64_t training;
} ek_moe_layer_call;

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
    ek_micro micro;
    void *tokens;             /* C [limits.tokens, hidden], x of the forward */
    void *out;                /* R likewise, its y */
    ek_moe_layer_call *calls; /* [ranks] */
    int due;                  /* a forward waits for its backward */
    int broken;               /* a call failed halfway */
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
