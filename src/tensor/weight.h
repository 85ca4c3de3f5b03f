/* tensor/weight.h - one trainable tensor with its gradient, optimizer state and packed forms. */
#ifndef TENSOR_WEIGHT_H
#define TENSOR_WEIGHT_H

#include <stdint.h>

/* A matrix [out, in], or a vector of length out (in == 0): this rank's slice of a tensor.  p, g, m,
 * v are R; g, m, v are NULL if the model is not trained.
 *
 * Ranks that hold the same slice divide it: each owns a range of whole rows, which it counts in the
 * gradient norm, saves in checkpoints and, with ZeRO, keeps the optimizer state of.  Ranges are in
 * elements from the start of the slice. */
typedef struct {
    int64_t out, in;
    void *p;                  /* master weight of the whole slice; with ZeRO 3 gathered while
                                 kernels need it; NULL: they read only packed forms */
    void *g;                  /* gradient, accumulated by backward; of a weight that is updated by
                                 feedback what the step adds to it */
    int64_t own_first, own;   /* range owned by this rank */
    int64_t kept_first, kept; /* range of p_kept, m and v: the whole slice, or own with ZeRO */
    void *p_kept;             /* master weight of that range */
    void *m, *v;              /* AdamW moments of that range */
    void *forward, *backward; /* packed forms, possibly the same; == p if kernels read the master;
                                 NULL: none */
} ek_weight;

/* Number of elements of the slice. */
static inline int64_t ek_weight_elements(const ek_weight *w)
{
    return w->in > 0 ? w->out * w->in : w->out;
}

#endif
