/* train/rank_copies.h - copies of all that other ranks keep, which this rank updates, too.
 *
 * Some ranks keep weights that no other host has: where all data-parallel ranks of a pipeline
 * stage, or of one of its tensor-parallel parts, are on one host.  A rank of another host, the
 * partner, keeps a copy of such a rank's state: masters, gradients and moments, laid out as there,
 * with a step journal of its own.  In a step the owner sends its reduced gradients, and what
 * feedback adds to router biases; the partner updates the copy as the owner does, so that both have
 * the same bits.  (What ranks of one group shard, ZeRO, has partners in the group, where that is on
 * several hosts: model/param_buckets.h.)
 *
 * The messages of a step are one op, of all ranks of the world if any of them has a copy, after the
 * last gradients: nothing hides it.  The optimizer (train/optimizer.h) builds the ops and keeps the
 * journals. */
#ifndef TRAIN_RANK_COPIES_H
#define TRAIN_RANK_COPIES_H

#include "elastic/step_journal.h"
#include "model/param_buckets.h"

typedef struct {
    int32_t owner;             /* rank of the world */
    const ek_model *model;     /* as on the owner; of its memory only the state is used */
    ek_journal *journal;       /* NULL: steps are only built */
    const int64_t *extents_of; /* [buckets + 2], as in recover/rank_state.h */
} ek_rank_copy;

/* The copies that this rank has, and who has one of it.  Filled by the caller, who owns all. */
typedef struct {
    const ek_model *model; /* this rank's */
    int32_t partner;       /* the rank that has a copy of this one's state; -1: none */
    ek_rank_copy *copy;    /* [n] */
    int32_t n;
    ek_coll **flight;  /* [ek_rank_copies_messages]: messages under way */
    int32_t in_flight; /* of the op under way */
} ek_rank_copies;

/* Messages of a step that this rank sends and receives, at most. */
int32_t ek_rank_copies_messages(const ek_rank_copies *c);

/* Numbers of a copy: of each of its arrays. */
double ek_rank_copy_numbers(const ek_rank_copy *c);

/* Sends masters and moments to the copies, after they were filled on the owners.  Collective over
 * the world. */
EK_CHECKED ek_status ek_rank_copies_fill(ek_rank_copies *c);

/* Appends the op that sends gradients to the copies, after op dep; returns it. */
int32_t ek_rank_copies_build_send(ek_rank_copies *c, ek_graph *g, int32_t dep);

/* The journals of the copies, as of the rank's own: see elastic/step_journal.h. */
void ek_rank_copies_reduced(const ek_rank_copies *c, int64_t step);
void ek_rank_copies_record(const ek_rank_copies *c, int64_t step, const void *record, size_t bytes);
/* Updates what gradients update, of copy i; then of all copies what feedback updates. */
void ek_rank_copies_update(const ek_rank_copies *c, int32_t i, const ek_journal_rule *rule);
void ek_rank_copies_add_feedback(const ek_rank_copies *c, const ek_journal_rule *rule);

#endif
