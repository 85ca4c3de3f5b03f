/** @file
 *  evenkeel/moe_layer.h - one Mixture-of-Experts layer, for programs that have the rest of the
 *  model: router, gate, dispatch, experts, balancing, and all gradients.
 *
 *      y = sum over chosen experts e of w_e down_e (silu(gate_e x) * up_e x) [+ shared expert]
 *
 *  A layer on several ranks distributes its experts over all of them: every rank gives tokens of
 *  its own, rows are sent to the ranks of their experts and back, and a policy of
 *  evenkeel/balance.h or evenkeel/planner.h replicates experts for the call where a rank has too
 *  many rows.  Results are those of one process up to rounding.  There is no residual connection,
 *  no norm and no optimizer: the caller has them.
 *
 *  @code
 *  ek_moe_layer_config cfg = EK_MOE_LAYER_CONFIG_INIT;
 *  ek_moe_layer *layer;
 *
 *  cfg.hidden = 512, cfg.ff = 1024, cfg.experts = 16, cfg.top_k = 2, cfg.tokens = 4096;
 *  cfg.world = world, cfg.balance = "exact", cfg.spare_slots = 1;
 *  ek_moe_layer_create(&cfg, &layer);
 *  for (;;) {
 *      ek_moe_layer_forward(layer, 0, x, tokens, 1, y);
 *      ek_moe_layer_backward(layer, 0, dy, dx);
 *      ek_moe_layer_sum_gradients(layer);
 *      ...                                   update the values of ek_moe_layer_param()
 *      ek_moe_layer_pack(layer);
 *      ek_moe_layer_zero_gradients(layer);
 *  }
 *  @endcode
 *
 *  @par Types
 *  Tokens, outputs, weights and gradients are float, and double with dtype "fp64"; row-major.  With
 *  "bf16" matrix products read weights and activations as bf16.
 *
 *  @par Gradients
 *  They are of the sum over ranks of the losses that dy are gradients of, plus aux_coef times the
 *  balance loss and z_coef times the z-loss (ek_moe_layer_stats).  backward adds to the gradients
 *  of weights.  Those of an expert are on the rank that holds it and complete, with the rows of all
 *  ranks.  Those of the router and the shared expert, which every rank has, are of the rank's own
 *  tokens until ek_moe_layer_sum_gradients() adds those of the others.
 *
 *  @par Several forwards before a backward
 *  A forward keeps its activations in an activation slot, which its backward reads and frees; a
 *  layer has `act_slots` of them, for schedules in which forwards of several micro-batches come
 *  before a backward (1F1B, a sum of losses).  Backwards may come in any order; all of them before
 *  the weights change.  Gradient accumulation with each backward after its forward, and forwards
 *  that are repeated before their backward (activation checkpointing: the first with training 0),
 *  need one.  A forward with training 0 uses a slot in which no backward is due, so one more is
 *  needed to evaluate between a forward and its backward.
 *
 *  @par Memory
 *  Of each weight of a rank: value, gradient, and the weight packed for products, where those of
 *  backward read it in another order, twice; buffers of the forward or backward at work; and for
 *  each activation slot, in numbers of 8 bytes with fp64, 4 with fp32 and 2 with bf16, about
 *  - for each of the rank's tokens: hidden + experts + 2 shared_ff, with bf16 3 hidden instead of
 *    one, as the tokens are kept as float, too,
 *  - for each row that it computes, top_k a token where loads are even: 2 ff, with several ranks
 *    2 ff + hidden,
 *  - for each spare slot: a packed expert.
 *
 *  For each activation slot, create reserves address space for all rows of all ranks, of which a
 *  rank uses as much memory as it has rows.
 *
 *  @par Placement of experts
 *  In block order: with 10 experts on 4 ranks, rank 0 has experts 0 to 2, rank 1 3 to 5, rank 2 6
 *  and 7, rank 3 8 and 9.  It never changes, as the optimizer state of an expert, which the caller
 *  has, would have to move with it; replicas are of one forward and its backward.
 *
 *  @par Collective
 *  Create, destroy, forward, backward and the sum of gradients, over the world of the config: every
 *  rank calls them in the same order.  The others are not.
 *
 *  @par Ownership
 *  Create allocates the layer with all the memory that it will use, destroy frees it.  Arrays of
 *  tokens are borrowed during the call.
 *
 *  @par Threads
 *  One call at a time per layer and per world.  A layer uses its caller's thread, whose OpenMP team
 *  it sets to `threads`, and a thread for the network where a core is spare.
 *
 *  @par Errors
 *  EK_EINVAL an argument or setting, EK_ESTATE a call that does not follow the ones before,
 *  EK_EOVERFLOW sizes beyond the limits, EK_ENOMEM; with several ranks also EK_EPEER another rank
 *  failed, EK_ETIMEOUT the watchdog, EK_ECOMM MPI.  A forward or backward with an argument or in
 *  a state that it refuses has no effect; the other ranks then get EK_EPEER (if several refuse, all
 *  but the lowest of these).  If some ranks call forward and others backward, or with different
 *  act_slot or training, all get EK_EINVAL, without effect.  After any other failure of forward,
 *  backward or the sum the layer can only be destroyed (EK_ESTATE), and the world left. */
#ifndef EK_MOE_LAYER_H
#define EK_MOE_LAYER_H

#include "evenkeel/err.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A layer with its weights, gradients and activations. */
typedef struct ek_moe_layer ek_moe_layer;

/** Settings of a layer, the same on all ranks: create compares them, but for `threads` and
 *  `watchdog`, which may differ.  Words that may be NULL say so. */
typedef struct {
    size_t size;           /**< of this struct, set by the initialiser below */
    int64_t hidden;        /**< width of a token, at least 1 */
    int64_t ff;            /**< inner width of an expert, at least 1 */
    int64_t experts;       /**< at least 1 */
    int64_t top_k;         /**< experts of a token, 1 to experts */
    int64_t shared_ff;     /**< inner width of the shared expert, which gets every token; 0: none */
    int shared_gated;      /**< 1: its output is multiplied by sigmoid(shared_gate x) */
    int64_t tokens;        /**< the most tokens that a rank gives to one forward, at least 1 */
    int act_slots;         /**< the most forwards whose backward is due at one time, 1 to 65536 */
    const char *gate;      /**< "softmax": over all experts, then the top_k largest; "sigmoid":
                              sigmoid scores, to which "bias" is added for the choice alone */
    int normalise;         /**< 1: a token's weights are divided by their sum */
    const char *dtype;     /**< "bf16", "fp32" or "fp64"; NULL: bf16 with AVX2, else fp32 */
    int threads;           /**< compute threads of this process; 0: its share of the host's cores */
    struct ek_comm *world; /**< the ranks (evenkeel/job.h), borrowed until the layer is destroyed;
                              NULL: this process alone */
    const char *balance;   /**< a policy with plans for the micro-batch alone: "off", "shadow",
                              "fastermoe", "prophet", "exact", or a registered planner
                              (evenkeel/planner.h); NULL: "off".  Without effect on one rank */
    int spare_slots;       /**< slots of each rank for replicas, 0 or more */
    double compute_s_per_row; /**< for the policy, as in ek_balance_config */
    double comm_s_per_row;    /**< likewise */
    double replica_s;         /**< likewise */
    double aux_coef;          /**< coefficient of the balance loss; 0 with "sigmoid" */
    double z_coef;            /**< coefficient of the z-loss; 0 with "sigmoid" */
    double capacity_factor;   /**< of a rank's n tokens in a forward an expert gets at most
                                 ceil(top_k * factor * n / experts), the others are dropped: what an
                                 expert computes then depends on the ranks; 0: dropless */
    uint64_t seed;   /**< of the initial weights, which do not depend on the number of ranks */
    double init_std; /**< standard deviation of the initial weights; 0: they are zero */
    double watchdog; /**< seconds without progress after which a call fails, of this layer or any
                        other of the world; 0: never */
} ek_moe_layer_config;

/* clang-format off */
/** The defaults, in the order of the fields; the sizes are the caller's to set. */
#define EK_MOE_LAYER_CONFIG_INIT {                                                                 \
    /* size */ sizeof(ek_moe_layer_config),                                                        \
    /* hidden */ 0,                                                                                \
    /* ff */ 0,                                                                                    \
    /* experts */ 0,                                                                               \
    /* top_k */ 0,                                                                                 \
    /* shared_ff */ 0,                                                                             \
    /* shared_gated */ 0,                                                                          \
    /* tokens */ 0,                                                                                \
    /* act_slots */ 1,                                                                             \
    /* gate */ "softmax",                                                                          \
    /* normalise */ 1,                                                                             \
    /* dtype */ "fp32",                                                                            \
    /* threads */ 0,                                                                               \
    /* world */ NULL,                                                                              \
    /* balance */ "off",                                                                           \
    /* spare_slots */ 0,                                                                           \
    /* compute_s_per_row */ 0.0,                                                                   \
    /* comm_s_per_row */ 0.0,                                                                      \
    /* replica_s */ 0.0,                                                                           \
    /* aux_coef */ 0.0,                                                                            \
    /* z_coef */ 0.0,                                                                              \
    /* capacity_factor */ 0.0,                                                                     \
    /* seed */ 0,                                                                                  \
    /* init_std */ 0.02,                                                                           \
    /* watchdog */ 300.0,                                                                          \
}
/* clang-format on */

/** A weight of a layer.  The layer owns both arrays, which stay where they are. */
typedef struct {
    void *value;    /**< [rows, cols], for the caller to change; then ek_moe_layer_pack() */
    void *gradient; /**< [rows, cols]; NULL: "bias", which has none */
    int64_t rows;   /**< outputs */
    int64_t cols;   /**< inputs */
} ek_moe_layer_weight;

/** What the last forward has counted, over all ranks, and the same on each. */
typedef struct {
    int64_t tokens;      /**< of all ranks */
    const int64_t *load; /**< [experts] rows that the gate has chosen for each, also those that were
                            then dropped; owned by the layer, valid until its next forward */
    double busiest_before; /**< rows of the busiest rank over the mean, without replicas */
    double busiest;        /**< the same as computed */
    int64_t replicas;      /**< experts that were sent to another rank */
    int64_t dropped;       /**< rows over capacity */
    double balance_loss;   /**< experts times the sum over experts of the share of rows and the mean
                              probability: 1 where loads are even; without its coefficient */
    double z_loss; /**< mean square of the logits' log-sum-exp, likewise; 0 with "sigmoid" */
    const char *planner_fault; /**< NULL, or the message of a planner that has failed, in this or an
                                  earlier forward, and is not called again; owned by the layer */
} ek_moe_layer_stats;

/** Creates a layer with initial weights.  Collective.
 *
 *  @param[in]  cfg  borrowed during the call, but for its world
 *  @param[out] out  freed by ek_moe_layer_destroy; NULL on failure
 *  @return EK_EINVAL with the bad setting, also if other ranks have another one, or for a policy
 *          that moves experts between steps; EK_EOVERFLOW: too many rows; EK_ENOMEM; EK_EPEER,
 *          EK_ETIMEOUT, EK_ECOMM.  A config that is NULL, or of another `size`, has no world that
 *          could be told: the other ranks then wait for the watchdog, so that programs of all
 *          ranks have to be compiled with the same header */
EK_CHECKED EK_API ek_status ek_moe_layer_create(const ek_moe_layer_config *cfg, ek_moe_layer **out);

/** Frees a layer.  Collective.
 *
 *  @param[in,out] layer  *layer is set to NULL; NULL and *layer == NULL are allowed */
EK_API void ek_moe_layer_destroy(ek_moe_layer **layer);

/** Finds a weight.  Not collective.
 *
 *  | name | shape | |
 *  |---|---|---|
 *  | "router" | [experts, hidden] | |
 *  | "bias" | [experts, 1] | of the "sigmoid" gate; initially 0, the caller moves it by the loads |
 *  | "up" | [2 ff, hidden] | of an expert: the rows of the gate, then those of up |
 *  | "down" | [hidden, ff] | of an expert |
 *  | "shared_up" | [2 shared_ff, hidden] | of the shared expert |
 *  | "shared_down" | [hidden, shared_ff] | of the shared expert |
 *  | "shared_gate" | [1, hidden] | of the shared expert, if it is gated |
 *
 *  @param[in]  layer   the layer
 *  @param[in]  name    one of these
 *  @param[in]  expert  which one, for "up" and "down"; else ignored
 *  @param[out] out     the weight; unchanged on failure
 *  @return EK_ENOENT: another rank holds the expert; EK_EINVAL: no such expert, or a name that
 *          this layer does not have */
EK_CHECKED EK_API ek_status ek_moe_layer_param(ek_moe_layer *layer, const char *name,
                                               int64_t expert, ek_moe_layer_weight *out);

/** Makes what the products read from the values of weights: after they were changed, on each rank,
 *  before the next forward.  Not collective.
 *
 *  @param[in] layer  the layer
 *  @return EK_EINVAL, EK_ESTATE: a backward is due, which needs the weights of its forward */
EK_CHECKED EK_API ek_status ek_moe_layer_pack(ek_moe_layer *layer);

/** Sets this rank's gradients to zero.  Not collective.
 *
 *  @param[in] layer  the layer
 *  @return EK_EINVAL */
EK_CHECKED EK_API ek_status ek_moe_layer_zero_gradients(ek_moe_layer *layer);

/** Computes the output of tokens.  Collective: ranks may have different numbers of tokens, also
 *  none.
 *
 *  @param[in]  layer     the layer
 *  @param[in]  act_slot  where activations are kept, 0 to act_slots - 1 of the config, in which
 *                        no backward is due.  The same on all ranks
 *  @param[in]  x         [tokens, hidden]; may be NULL without tokens
 *  @param[in]  tokens    0 to those of the config
 *  @param[in]  training  1: ek_moe_layer_backward follows in this slot; 0: it does not, and no
 *                        replicas are made.  The same on all ranks
 *  @param[out] y         [tokens, hidden]; may be x
 *  @return EK_ESTATE: a backward is due in this slot; see the top */
EK_CHECKED EK_API ek_status ek_moe_layer_forward(ek_moe_layer *layer, int act_slot, const void *x,
                                                 int64_t tokens, int training, void *y);

/** Computes the gradients of the last forward in an activation slot, and adds those of weights to
 * what they have.  Collective.
 *
 *  @param[in]  layer  the layer
 *  @param[in]  act_slot  of the forward; the same on all ranks
 *  @param[in]  dy     [tokens, hidden] gradient of y, for the tokens of the forward
 *  @param[out] dx     [tokens, hidden] gradient of x; may be dy; NULL: not wanted
 *  @return EK_ESTATE: no forward with `training` in this slot since its last backward; see the top
 */
EK_CHECKED EK_API ek_status ek_moe_layer_backward(ek_moe_layer *layer, int act_slot, const void *dy,
                                                  void *dx);

/** Sums the gradients of the router and the shared expert over ranks: once, after the last backward
 *  of a step.  A caller who sums gradients of all ranks anyway does not need it.  Collective.
 *
 *  @param[in] layer  the layer
 *  @return see the top */
EK_CHECKED EK_API ek_status ek_moe_layer_sum_gradients(ek_moe_layer *layer);

/** What the last forward has counted.  Not collective.
 *
 *  @param[in]  layer  the layer
 *  @param[out] out    zeros before the first forward
 *  @return EK_EINVAL */
EK_CHECKED EK_API ek_status ek_moe_layer_get_stats(const ek_moe_layer *layer,
                                                   ek_moe_layer_stats *out);

#ifdef __cplusplus
}
#endif
#endif
