/* tensor/weight.h - one trainable tensor with all that belongs to it. */
#ifndef TENSOR_WEIGHT_H
#define TENSOR_WEIGHT_H

#include <stdint.h>

/* A matrix [out, in], or a vector (in == 0 stands for "one-dimensional", of length out).
 * p, g, m, v are R; g, m, v are NULL where the model is not trained. */
typedef struct {
    int64_t out, in;
    void *p;                  /* master weight */
    void *g;                  /* gradient, summed over the step's micro-batches */
    void *m, *v;              /* AdamW moments */
    void *forward, *backward; /* packed forms; == p where kernels read the master; NULL: none */
} ek_weight;

static inline int64_t ek_weight_elements(const ek_weight *w)
{
    return w->in > 0 ? w->out * w->in : w->out;
}

#endif
