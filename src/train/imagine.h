/* train/imagine.h - the step graphs of a run's ranks, without starting the run.
 *
 * A rank is laid out in a fake world (comm/fake.h): its model, pass and optimizer at addresses that
 * are not touched, by the functions that training uses; then its first step is built.  So any
 * layout of any number of ranks can be looked at on one machine.  A rank takes a few milliseconds
 * to build, and longer in worlds of tens of thousands, whose tables each rank has. */
#ifndef TRAIN_IMAGINE_H
#define TRAIN_IMAGINE_H

#include "evenkeel/train.h"

#include "sim/cluster.h"
#include "sim/graphs.h"

/* Where the ranks are. */
typedef struct {
    int ranks;
    const int *node_of;        /* [ranks], numbered by first rank */
    const ek_cluster *cluster; /* what copies of experts cost there; NULL: it is not known, as in a
                                  dry run */
    const int *host_of; /* [ranks]: the hosts for whose loss other ranks have copies of all that a
                           rank keeps (train/rank_copies.h); NULL: node_of */
} ek_imagined_world;

typedef struct ek_imagined ek_imagined;

/* All ranks of a run with these settings.  Data are not read and may be missing; cfg and its texts
 * are borrowed until the ranks are closed.
 *
 * With cfg->elastic ranks have what a start without earlier state has in training: partners' copies
 * of what ZeRO shards, and by default two copies of each expert, where memory (cfg->memory_limit)
 * and their cost allow (train/run/protect.c); rank 0 decides for all.
 *
 * Where divisions leave remainders, the first rank of a stage has the most work in each of them,
 * and others wait for it: every_rank 0 makes that one stand for its stage (drawn layouts differ
 * by 0.1 % of a step at most).  every_rank 1 builds all
 * ranks, and puts those together whose graphs are equal; a list of --batch-shares has the same
 * effect.
 *
 * The caller closes *out, also after a failure.  EK_EINVAL, EK_EFORMAT and the like as ek_train()
 * returns them for a wrong setting; EK_EUNSUPPORTED: experts on disk.  Local. */
EK_CHECKED ek_status ek_imagine(const ek_train_config *cfg, const ek_imagined_world *w,
                                int every_rank, ek_imagined **out);
/* Borrowed from x. */
const ek_sim_graphs *ek_imagined_graphs(const ek_imagined *x);
const ek_sim_layout *ek_imagined_layout(const ek_imagined *x);
void ek_imagined_close(ek_imagined **x);

/* A rank alone, of which only the model is laid out: to look at many settings quickly.  Its steps
 * do not sum gradients of persistent copies of experts. */
typedef struct ek_imagined_rank ek_imagined_rank;

/* layers: of the model, which are the first of those that it has; 0: all.  The caller closes *out,
 * also after a failure; cfg's texts are borrowed until then.  Errors as of ek_imagine. */
EK_CHECKED ek_status ek_imagined_rank_open(const ek_train_config *cfg, const ek_imagined_world *w,
                                           int rank, int64_t layers, ek_imagined_rank **out);
/* Bytes of its copies of all that other ranks keep (train/rank_copies.h). */
double ek_imagined_rank_copies(const ek_imagined_rank *x);
void ek_imagined_rank_close(ek_imagined_rank **x);

ek_sim_layout ek_imagined_rank_layout(const ek_imagined_rank *x);

/* The bytes of the rank (ek_sim_class.memory) with another micro-batch and recomputation (a word of
 * --recompute). */
EK_CHECKED ek_status ek_imagined_rank_measure(ek_imagined_rank *x, int64_t micro_batch,
                                              const char *recompute, double *memory);

/* What the rank does for a sharded bucket of a layer whenever its weights are gathered, and
 * whenever its gradients are summed: network ops. */
typedef void (*ek_imagined_bucket_fn)(void *context, int32_t layer, const ek_op *gather,
                                      const ek_op *sum);

/* Calls each() for the sharded buckets of the rank's layers, in their order. */
void ek_imagined_rank_each_bucket(const ek_imagined_rank *x, ek_imagined_bucket_fn each,
                                  void *context);

/* The graph of a step of a single micro-batch, with the settings measured last.  Borrowed until the
 * next call. */
EK_CHECKED ek_status ek_imagined_rank_micro_step(ek_imagined_rank *x, const ek_graph **out);

/* The graph of its first step, with the settings measured last, or those of cfg.  Borrowed until
 * the next call. */
EK_CHECKED ek_status ek_imagined_rank_step(ek_imagined_rank *x, const ek_graph **out);

#endif
