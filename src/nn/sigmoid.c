/* The logistic function for float and double. */
#include "nn/sigmoid.h"

#include <math.h>

void ek_sigmoid_f32(float *x, int64_t n)
{
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i++)
        x[i] = 1 / (1 + (float)exp((double)-x[i]));
}

void ek_sigmoid_f64(double *x, int64_t n)
{
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i++)
        x[i] = 1 / (1 + exp(-x[i]));
}

void ek_sigmoid_backward_f32(const float *x, float *d, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        d[i] *= x[i] * (1 - x[i]);
}

void ek_sigmoid_backward_f64(const double *x, double *d, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        d[i] *= x[i] * (1 - x[i]);
}
