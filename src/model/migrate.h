/* model/migrate.h - experts that move to other ranks for good, or come to stay as replicas: a new
 * lasting placement of a layer, and the ops that bring weights, masters and moments.
 *
 *   ek_migrate_to(m, layer, to, mg)     between steps: who sends what to whom; from here on the
 *                                       model's tables speak of the new placement
 *   ek_migrate_build_start(...)         early in the next step's graph: state travels
 *   ek_migrate_build_end(...)           before the layer's first op: state is in place, and packed
 *
 * Bits do not change on the way.  An expert that stays on a rank stays in its slot; one that comes
 * takes the lowest slot that is free.  It is sent by one of those that have its state: by one of
 * the own node where there is one, and of these by the one that has least to send.  All runs of
 * ranks (edp) do the same, each by itself, each by the nodes that its own ranks are on.
 *
 * Crashes     where state outlives the process (cfg.state), what comes lies there, too, until all
 *             ranks have got theirs, and only then are slots overwritten: at any time each expert
 *             that moves is whole somewhere, and cfg.state->holds says where.
 *
 * Needs       ranks that keep whole masters and moments of their experts: --zero 0, or edp 1. */
#ifndef MODEL_MIGRATE_H
#define MODEL_MIGRATE_H

#include "model/model.h"
#include "schedule/graph.h"

/* State of an expert on its way. */
typedef struct {
    int32_t expert, slot; /* of this rank, where it comes to or lies */
    int peer;             /* rank of the stage */
} ek_move;

/* The moves of one layer. */
typedef struct {
    ek_model *m;
    int32_t layer;
    int32_t n_in, n_out;
    ek_move *in, *out; /* [slots], [ep * slots] */
    ek_coll **coll;    /* [6 (n_in + n_out)] */
    int32_t n_coll;
    void *staging;         /* R: what comes, until the old content has left */
    int32_t *expert_of;    /* [ep * slots], scratch */
    int32_t *given;        /* [ep] experts that a rank sends */
    int64_t experts_moved; /* over all ranks of a run: state that was sent, in experts */
    int64_t crossed;       /* of these, from one node to another */
    int changes;           /* something moves, of which this rank may have no slice */
    double barrier;        /* of all ranks of the stage */
    int started;           /* in the graph being built */
    int32_t op;            /* in the graph being built */
} ek_migration;

/* Whether experts of this model can move. */
int ek_model_can_migrate(const ek_model *m);

/* Room for what comes to one layer, which two layers of a model take in turns; whose turn it is. */
int ek_migration_buf_idx(const ek_model *m, int32_t layer);
void *ek_migration_take_staging(ek_arena *a, const ek_model *m);

/* Takes what a layer's moves need besides. */
void ek_migration_reserve(ek_migration *mg, ek_arena *a, ek_model *m, int32_t layer, void *staging);

/* Adopts a placement of one run of ranks; on a rank its experts may come to lie in other slots, and
 * `from`, quotas of its slots, become quota [ep * slots].  EK_EINVAL: a rank has no room for all
 * that is placed there; nothing has changed then. */
EK_CHECKED ek_status ek_migrate_to(ek_migration *mg, const ek_placement *to, const int64_t *from,
                                   int64_t *quota);

/* The same of a model whose weights are yet to be filled in: nothing travels. */
EK_CHECKED ek_status ek_migrate_assume(ek_migration *mg, const ek_placement *to,
                                       const int64_t *from, int64_t *quota);

/* Appends the travel of what moves, if anything does, after dep, when staging is free; and its end,
 * which returns what the layer's ops wait for. */
void ek_migrate_build_start(ek_migration *mg, ek_graph *g, int32_t dep);
int32_t ek_migrate_build_end(ek_migration *mg, ek_graph *g, int32_t dep);

#endif
