/* Cosines and sines, computed in double whatever R is. */
#include "model/rope.h"

#include <math.h>

void ek_rope_fill(const ek_model_spec *s, int64_t positions, ek_dtype real, void *cos_sin)
{
    int64_t half = s->head_dim / 2;

    for (int64_t i = 0; i < half; i++) {
        double f = pow(s->rope_theta, -2.0 * (double)i / (double)s->head_dim);

        for (int64_t t = 0; t < positions; t++) {
            double c = cos((double)t * f), v = sin((double)t * f);
            int64_t at = t * s->head_dim + i;

            if (real == EK_F64) {
                ((double *)cos_sin)[at] = c;
                ((double *)cos_sin)[at + half] = v;
            } else {
                ((float *)cos_sin)[at] = (float)c;
                ((float *)cos_sin)[at + half] = (float)v;
            }
        }
    }
}
