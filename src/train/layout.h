/* train/layout.h - a parallel layout of a run: the options of `train` that decide how a step is
 * distributed over ranks and micro-batches, and not what it computes. */
#ifndef TRAIN_LAYOUT_H
#define TRAIN_LAYOUT_H

#include "evenkeel/train.h"

typedef enum {
    EK_CHOICE_PP,
    EK_CHOICE_CHUNKS,
    EK_CHOICE_TP,
    EK_CHOICE_EP,
    EK_CHOICE_ETP,
    EK_CHOICE_ZERO,
    EK_CHOICE_MICRO_BATCH,
    EK_CHOICE_RECOMPUTE, /* index of the word */
    EK_CHOICES
} ek_choice;

typedef struct {
    int64_t value[EK_CHOICES];
} ek_layout;

/* The option of `train`: "pp-chunks". */
const char *ek_choice_name(ek_choice c);
/* The choice of that name [length]; -1: none. */
int ek_choice_named(const char *name, size_t length);
/* A value as text: "4", "full".  text [cap]; returned. */
const char *ek_choice_text(ek_choice c, int64_t value, char *text, size_t cap);
/* The value that a text [length] says: a number of at least 1 (zero: 0 to 3), at most a million, or
 * a word of --recompute; -1: none. */
int64_t ek_choice_value(ek_choice c, const char *text, size_t length);

/* Sets the choices in a run's settings. */
void ek_layout_apply(const ek_layout *l, ek_train_config *cfg);

/* The ranks that are left after the loss of the host, host_of [ranks], that has most of them. */
int ek_layout_ranks_left(int ranks, const int *host_of);
/* The first pipeline stage of which one host alone has a tensor-parallel part, which other hosts
 * have copies of with --elastic (train/rank_copies.h); -1: none. */
int ek_layout_stage_on_one_host(int ranks, int pp, int tp, const int *host_of);
/* Whether a run with --elastic can go on without any one of its hosts: there are several, and what
 * is `left` (ek_layout_ranks_left) has room for the layout, with --ep adapted.  Parts of stages on
 * one host, experts and what ZeRO shards may need copies for that. */
int ek_layout_survives(const ek_layout *l, int left);

/* Options of `train`, without those that have the default's value: "--pp 4 --micro-batch 64"; with
 * --balance if there is a policy.  text [cap]; returned. */
const char *ek_layout_words(const ek_layout *l, const char *balance, char *text, size_t cap);

#endif
