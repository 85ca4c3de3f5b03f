/* The reference kernels, compiled once per mode: ref_<mode>.c defines the following and includes
 * this file, which has the common helpers and then includes one body file per subject.
 *   R, C         real and compute type          TO_R(c), TO_C(r)   conversions between them
 *   R_EXP ...    functions of <math.h> for R    NAME(x)            x with the mode's suffix
 *
 * Sums run in R.  Each element of a result is summed by one thread in a fixed order, so the bits
 * do not depend on the number of threads. */
#include "base/progress_hook.h"
#include "base/undo_log.h"

#include <math.h>
#include <omp.h>
#include <string.h>

/* Below this many multiplications one thread is faster than a team. */
#define SMALL 16384
/* Rows of a result that share one pass over the other matrix, and columns of a strip of sums. */
#define BLOCK 4
#define STRIP 256

static inline int64_t NAME(least)(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Dot products in eight partial sums: a tree that the compiler can vectorise. */
static R NAME(dot)(int64_t n, const C *a, const C *b)
{
    R s[8] = {0};
    int64_t i = 0;

    for (; i + 8 <= n; i += 8) {
        for (int j = 0; j < 8; j++)
            s[j] += TO_R(a[i + j]) * TO_R(b[i + j]);
    }
    for (; i < n; i++)
        s[i % 8] += TO_R(a[i]) * TO_R(b[i]);
    return ((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7]));
}

static R NAME(dot_real)(int64_t n, const R *a, const R *b)
{
    R s[8] = {0};
    int64_t i = 0;

    for (; i + 8 <= n; i += 8) {
        for (int j = 0; j < 8; j++)
            s[j] += a[i + j] * b[i + j];
    }
    for (; i < n; i++)
        s[i % 8] += a[i] * b[i];
    return ((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7]));
}

#include "tensor/ref/body_attention.h"
#include "tensor/ref/body_choice.h"
#include "tensor/ref/body_expert.h"
#include "tensor/ref/body_matrix.h"
#include "tensor/ref/body_norm.h"
#include "tensor/ref/body_rows.h"
#include "tensor/ref/body_table.h"
