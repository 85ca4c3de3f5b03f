/* train/run/partners.h - with --elastic on several hosts: which ranks keep weights that no other
 * host has (stages of --pp and parts of --tp on one host), which rank keeps a copy of all that such
 * a rank keeps (train/rank_copies.h), and the memory of these copies.
 *
 * A copy has a segment of its own, as if the owner were on the partner's host: after the loss of
 * the owner's host it is found and used like any other (recover/recover.h).  While there are such
 * copies experts stay where they are. */
#ifndef TRAIN_RUN_PARTNERS_H
#define TRAIN_RUN_PARTNERS_H

#include "train/run/state.h"

/* What makes room for copies. */
#define EK_RUN_HELP_OF_ROOM                                                                        \
    "a smaller --micro-batch, --recompute full, more memory (and in /dev/shm) or more hosts make " \
    "room for it"

/* Before the model is laid out, like which it will be but for its slots: chooses partners, if there
 * is memory for the copies.  Collective. */
EK_CHECKED ek_status ek_run_choose_partners(ek_run *r, const ek_model_config *like);
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

/* Where the start before had none: logs that there are copies, what memory they take, and what time
 * of a step (train/run/partner_times.h).  Collective. */
EK_CHECKED ek_status ek_run_tell_copies(ek_run *r);

/* Closes the copies, before the rank's own state is closed; removes: with their segments.  forget:
 * partners are still known. */
void ek_run_forget_copies(ek_run_partners *p, int removes);
void ek_run_close_copies(ek_run_partners *p, int removes);

#endif
