/* train/run/partners.h - with --elastic on several hosts: which ranks keep weights that no other
 * host has (stages of --pp and parts of --tp on one host), which rank keeps a copy of all that such
 * a rank keeps (train/rank_copies.h), and the memory of these copies.
 *
 * A copy has a segment of its own, as if the owner were on the partner's host: after the loss of
 * the owner's host it is found and used like any other (recover/recover.h).  While there are such
 * copies experts stay where they are. */
#ifndef TRAIN_RUN_PARTNERS_H
#define TRAIN_RUN_PARTNERS_H

#include "recover/recover.h"
#include "train/rank_copies.h"
#include "train/run/state_addresses.h"

typedef struct ek_run ek_run;

/* Memory of a copy, laid out as on its owner. */
typedef struct {
    ek_comm *world; /* in which only the owner exists */
    ek_mesh *mesh;
    ek_model *model;
    ek_rank_state state;
    ek_state_addresses addresses; /* instead, of a rank that only is laid out */
} ek_copied_rank;

typedef struct {
    int32_t *partner;       /* [ranks]: who has a copy of each; -1: nobody needs one.  NULL: no rank
                               has one */
    int32_t most;           /* copies of the rank with the most */
    ek_copied_rank *copied; /* [copies.n] */
    ek_rank_copies copies;
} ek_run_partners;

/* Before the model is laid out: chooses partners.  Local; the same on all ranks. */
EK_CHECKED ek_status ek_run_choose_partners(ek_run *r);
static inline int ek_run_has_partners(const ek_run_partners *p)
{
    return p->partner != NULL;
}

/* If there are partners, after the model is laid out, like it: then training updates the copies.
 * Not collective. */
EK_CHECKED ek_status ek_run_layout_copies(ek_run *r, const ek_model_config *like);
/* Bytes of their state. */
double ek_run_copies_bytes(const ek_run_partners *p);

/* As for the rank's own state (recover/rank_state.h, recover/recover.h): start and create_blocks
 * are not collective. */
EK_CHECKED ek_status ek_run_start_copies(ek_run *r);
EK_CHECKED ek_status ek_run_create_copies(ek_run *r);
/* The state of copy i; NULL: this rank has fewer. */
ek_rank_state *ek_run_copy_state(const ek_run_partners *p, int32_t i);
/* Makes this generation valid, with the rank's own state. */
EK_CHECKED ek_status ek_run_commit_copies(ek_run *r);

/* At a start that is not from memory: logs that there are copies, and what they take.  Collective.
 */
EK_CHECKED ek_status ek_run_tell_copies(ek_run *r);

/* Before the rank's own state is closed; removes: with their segments. */
void ek_run_close_copies(ek_run_partners *p, int removes);

#endif
