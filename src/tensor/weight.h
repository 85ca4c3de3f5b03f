/* tensor/weight.h - one trainable tensor with all that belongs to it. */
#ifndef TENSOR_WEIGHT_H
#define TENSOR_WEIGHT_H

#include <stdint.h>

/* A matrix [out, in], or a vector (in == 0 stands for "one-dimensional", of length out): the part
 * of a tensor that this rank computes with.  p, g, m, v are R; g, m, v are NULL where the model is
 * not trained.
 *
 * Ranks that hold the same part share it out: each answers for a run of whole rows of it ("own"),
 * which is counted in the gradient norm, saved in checkpoints and, with ZeRO, the only run whose
 * optimizer state it keeps.  All runs are in elements from the start of the part. */
typedef struct {
    int64_t out, in;
    void *p;                  /* where kernels read the master, all of it; with ZeRO 3 it is there
                                 while they need it, NULL: they read packed forms alone */
    void *g;                  /* gradient, where backward adds */
    int64_t own_first, own;   /* the run that this rank answers for */
    int64_t kept_first, kept; /* the run that p_kept, m and v hold: all, or own with ZeRO */
    void *p_kept;             /* master weight of that run */
    void *m, *v;              /* AdamW moments of that run */
    void *forward, *backward; /* packed forms, or one for both; == p where kernels read the
                                 master; NULL: none */
} ek_weight;

static inline int64_t ek_weight_elements(const ek_weight *w)
{
    return w->in > 0 ? w->out * w->in : w->out;
}

#endif
