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

#include "train/layout.h"

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

/* Restricts choices as in "pp=8,recompute=full"; a choice that is named twice may have either
 * value.  EK_EINVAL names what is wrong. */
EK_CHECKED ek_status ek_candidates_fix(ek_candidate_space *s, const char *text);

/* Lists all, those of equal pp, tp, ep and etp side by side, of these those of equal pp-chunks and
 * zero, then of equal micro-batch; the caller frees *list.  EK_EINVAL: there are none, or a fixed
 * micro-batch is larger than the batch; EK_ENOMEM. */
EK_CHECKED ek_status ek_candidates_list(const ek_candidate_space *s, ek_layout **list, int64_t *n);

/* Whether two differ in pp-chunks, zero, micro-batch and recompute alone. */
int ek_candidate_is_beside(const ek_layout *a, const ek_layout *b);
/* Whether two differ in micro-batch and recompute alone, so that weights are laid out alike. */
int ek_candidate_is_laid_out_alike(const ek_layout *a, const ek_layout *b);
/* Whether two differ in recompute alone. */
int ek_candidate_recomputes(const ek_layout *a, const ek_layout *b);

#endif
