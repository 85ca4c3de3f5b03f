/* search/candidates.h - the layouts that a search looks at: all combinations of a few choices that
 * fit a number of ranks and a model.
 *
 *   pp           divisors of the ranks, at most the layers
 *   pp-chunks    1, 2, 4, as layers allow
 *   tp           divisors of a stage, at most the ranks of a node and the key-value heads
 *   ep, etp      ep * etp divides a stage; ep at most the experts, etp at most the ranks of a node
 *   zero         0 to 3
 *   micro-batch  powers of two times the data-parallel ranks, at most the batch
 *   recompute    off, attention, full */
#ifndef SEARCH_CANDIDATES_H
#define SEARCH_CANDIDATES_H

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
} ek_candidate;

enum { EK_CHOICE_VALUES = 64 };

/* The values that a choice is restricted to; n 0: it is not. */
typedef struct {
    int n;
    int64_t value[EK_CHOICE_VALUES];
} ek_choice_values;

typedef struct {
    int ranks;
    int64_t node_ranks; /* ranks of a node */
    int64_t batch, layers, kv_heads, experts;
    ek_choice_values fixed[EK_CHOICES];
} ek_candidate_space;

/* The option of `train`: "pp-chunks". */
const char *ek_choice_name(ek_choice c);
/* A value as text: "4", "full".  text [cap]; returned. */
const char *ek_choice_text(ek_choice c, int64_t value, char *text, size_t cap);

/* Restricts choices as in "pp=8,recompute=full"; a choice that is named twice may have either
 * value.  EK_EINVAL names what is wrong. */
EK_CHECKED ek_status ek_candidates_fix(ek_candidate_space *s, const char *text);

/* Lists all, those of equal pp, pp-chunks, tp, ep and etp side by side; the caller frees *list.
 * EK_EINVAL: there are none; EK_ENOMEM. */
EK_CHECKED ek_status ek_candidates_list(const ek_candidate_space *s, ek_candidate **list,
                                        int64_t *n);

/* Whether two differ in zero, micro-batch and recompute alone. */
int ek_candidate_is_beside(const ek_candidate *a, const ek_candidate *b);

/* Sets the choices in a run's settings. */
void ek_candidate_apply(const ek_candidate *c, ek_train_config *cfg);

/* Options of `train`, without those that have the default's value: "--pp 4 --micro-batch 64".
 * text [cap]; returned. */
const char *ek_candidate_words(const ek_candidate *c, char *text, size_t cap);

#endif
