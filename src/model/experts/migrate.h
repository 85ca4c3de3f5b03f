/* model/experts/migrate.h - installs a new persistent placement of a layer: expert state moves
 * between ranks, and persistent replicas are created and dropped.
 *
 *   ek_migrate_to(m, layer, to, mg)     between steps: decides senders and receivers; the model's
 *                                       tables describe the new placement from here on
 *   ek_migrate_build_start(...)         early in the next step's graph: sends and receives state
 *   ek_migrate_build_end(...)           before the layer's first op: copies received state into
 *                                       its slots and packs it
 *
 * Weights, masters and moments are copied bit for bit.  An expert that stays on a rank keeps its
 * slot; an arriving one takes the lowest free slot.  Its sender is a rank that has its state: one
 * on the receiver's node if there is one, and among these the one with the fewest sends.  Every
 * expert-parallel group (edp) does the same independently, with the nodes of its own ranks.
 *
 * ZeRO        ranks at the same place of several groups shard an expert's state, in all slots alike
 *             (ek_model_config.migrates): a range moves within its group.  With ZeRO 1 and 2, where
 *             every rank reads or packs whole masters, the ranges of masters also come from the
 *             other groups, from their ranks at the sender's place; with ZeRO 3 they are gathered
 *             when the layer needs them, so that it has to be installed before.
 *
 * Crashes     if state outlives the process (cfg.state), received state stays in persistent staging
 *             memory until all ranks have received theirs; only then are slots overwritten.  So at
 *             any time one complete copy of each moving expert exists, and cfg.state->holds has
 *             reported where. */
#ifndef MODEL_EXPERTS_MIGRATE_H
#define MODEL_EXPERTS_MIGRATE_H

#include "model/model.h"
#include "schedule/graph.h"

/* One transfer of an expert's state. */
typedef struct {
    int32_t expert, slot; /* slot of this rank that sends or receives it */
    int32_t rank, group;  /* the sender's place in a group; the receiver's place and its group */
} ek_move;

/* The transfers of one layer. */
typedef struct {
    ek_model *m;
    int32_t layer;
    int32_t n_in, n_out;
    ek_move *in, *out; /* [slots], [ep * slots], times edp with ZeRO 1 and 2 */
    ek_coll **coll;
    int32_t n_coll;
    void *staging;      /* R: received state, until its slots have been sent */
    int32_t *expert_of; /* [ep * slots], scratch */
    int32_t *n_sends;   /* [ep] experts that each rank of a group sends */
    int64_t
        experts_moved; /* experts whose state is sent, over all ranks of an expert-parallel group */
    int64_t crossed;   /* of these, between nodes; for tests */
    int changes;       /* the placement changes, even if this rank transfers nothing */
    double barrier;    /* all-reduced over the stage */
    int started;       /* in the graph being built */
    int32_t op;        /* in the graph being built */
} ek_migration;

/* Whether this model supports migration: ranks that shard experts shard all slots alike. */
int ek_model_can_migrate(const ek_model *m);

/* Staging memory for received state: an entry for each slot with state
 * (ek_param_buckets_staging_bytes).  Two buffers alternate between the layers of a model; the first
 * function gives the buffer of a layer. */
int ek_migration_buf_idx(const ek_model *m, int32_t layer);
void *ek_migration_reserve_staging(ek_arena *a, const ek_model *m);

/* Reserves a layer's transfer tables from `a`. */
void ek_migration_reserve(ek_migration *mg, ek_arena *a, ek_model *m, int32_t layer, void *staging);

/* Adopts a placement of one expert-parallel group.  Experts of a rank may be assigned to other
 * slots than in `to`; `from`, the quotas of the slots of `to`, are reordered into quota [ep *
 * slots]. EK_EINVAL: a rank has too few slots with state; nothing has changed. */
EK_CHECKED ek_status ek_migrate_to(ek_migration *mg, const ek_placement *to, const int64_t *from,
                                   int64_t *quota);

/* The same for a model whose weights are not filled in yet: no state is sent. */
EK_CHECKED ek_status ek_migrate_assume(ek_migration *mg, const ek_placement *to,
                                       const int64_t *from, int64_t *quota);

/* Append the ops of a pending migration, if any. start: the transfer, after dep, when staging is
 * free. end: the installation; returns the op that the layer's ops depend on. */
void ek_migrate_build_start(ek_migration *mg, ek_graph *g, int32_t dep);
int32_t ek_migrate_build_end(ek_migration *mg, ek_graph *g, int32_t dep);

#endif
