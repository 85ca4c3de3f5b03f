/* train/offload_room.h - how the memory that is left is used for experts on disk
 * (model/offload.h). */
#ifndef TRAIN_OFFLOAD_ROOM_H
#define TRAIN_OFFLOAD_ROOM_H

#include "train/trainer.h"

/* Adds to o, with which m was laid out, the entries and forms that most of `room` bytes on each
 * rank hold: the same number on all ranks, as those that gather together use them in one order.
 * Collective over world (NULL: one rank). */
EK_CHECKED ek_status ek_offload_fill_room(ek_comm *world, const ek_model *m,
                                          const ek_trainer_config *cfg, double room,
                                          ek_offload_config *o);

#endif
