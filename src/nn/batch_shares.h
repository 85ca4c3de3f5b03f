/* nn/batch_shares.h - how many sequences of a micro-batch each data parallel rank has.
 *
 * Ranks have consecutive ranges, in the order of the ranks, in proportion to their weights:
 * rank r of n sequences has [first(r), first(r + 1)), where first(r) is n W(r) / W(ranks), rounded,
 * and W(r) the sum of the weights of the ranks before r.  Without weights ranges differ by at most
 * one. */
#ifndef NN_BATCH_SHARES_H
#define NN_BATCH_SHARES_H

#include <stdint.h>

/* The largest weight: the sum over all ranks, times the sequences of a batch, fits an int64_t. */
enum { EK_BATCH_WEIGHT_MAX = 1000000 };

/* weights [ranks], each in [1, EK_BATCH_WEIGHT_MAX], to sums [ranks + 1], W above. */
void ek_shares_sum(const int64_t *weights, int ranks, int64_t *sums);

/* First of n sequences of a rank; of rank `ranks`: n.  sums: NULL: no weights. */
int64_t ek_shares_first(const int64_t *sums, int ranks, int64_t n, int rank);

/* The first of the tokens of n sequences of `seq` that a rank of the stage has, where `tp`
 * consecutive ranks split those of a data parallel rank; of rank ranks * tp: all. */
int64_t ek_shares_first_token(const int64_t *sums, int ranks, int tp, int64_t n, int64_t seq,
                              int rank);

/* Sequences of a rank. */
int64_t ek_shares_length(const int64_t *sums, int ranks, int64_t n, int rank);

/* The most that any rank can have of up to n sequences. */
int64_t ek_shares_longest(const int64_t *sums, int ranks, int64_t n);

/* Lowers weights until none is above `most` times their mean (most > 1). */
void ek_shares_limit(int64_t *weights, int ranks, double most);

#endif
