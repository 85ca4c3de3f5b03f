/* nn/sigmoid.h - the logistic function and its gradient, in place. */
#ifndef NN_SIGMOID_H
#define NN_SIGMOID_H

#include <stdint.h>

/* x = sigmoid(x); backward, with that x: d = d * x (1 - x). */
void ek_sigmoid_f32(float *x, int64_t n);
void ek_sigmoid_f64(double *x, int64_t n);
void ek_sigmoid_backward_f32(const float *x, float *d, int64_t n);
void ek_sigmoid_backward_f64(const double *x, double *d, int64_t n);

#endif
