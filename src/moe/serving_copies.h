/* moe/serving_copies.h - which persistent copies of experts have served rows in a step.
 *
 * Only these have gradients.  The first of them, the primary if it is one, gets the sum, and all
 * copies receive it: a copy that served nothing sends nothing, and of an expert without rows no
 * copy does.  All ranks know the same, from the plans of the step's micro-batches.
 *
 * m->served [all slots] has the slots, from the forward of the first micro-batch on; written by the
 * compute lane, and read by ops that come after the last micro-batch's. */
#ifndef MOE_SERVING_COPIES_H
#define MOE_SERVING_COPIES_H

#include "moe/layer.h"

/* Reserves m->served if the config's planners have persistent replicas. */
void ek_serving_copies_reserve(ek_moe *m, ek_arena *a);

/* When a step begins: none has. */
void ek_serving_copies_clear(ek_moe *m);
/* All have, whatever they serve: gradients are summed before all micro-batches are planned. */
void ek_serving_copies_assume_all(ek_moe *m);

/* Adds the slots with rows of a micro-batch: used [all slots], with the experts expert_of [all
 * slots] in them.  Gradients of transient replicas are added to the primary's. */
void ek_serving_copies_add(ek_moe *m, const unsigned char *used, const int32_t *expert_of);

/* Whether an expert rank of a group has a persistent copy of an expert that has served. */
int ek_serving_copies_find(const ek_moe *m, int ep_group, int32_t expert, int32_t rank);

/* Sets m->copies and m->serving of a group: on how many ranks an expert has persistent copies, and
 * on how many of them they have served. */
void ek_serving_copies_count(const ek_moe *m, int ep_group);

/* The rank of a group that gets the sum of an expert: the primary's if its copy has served, else
 * the first that has. */
int32_t ek_serving_copies_root(const ek_moe *m, int ep_group, int32_t expert);

/* Gradients of experts that are sent for the sums of a step, in all groups. */
int64_t ek_serving_copies_messages(const ek_moe *m);

#endif
