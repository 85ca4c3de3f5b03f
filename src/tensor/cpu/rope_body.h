/* Rotary positions, and RMSNorm of query and key heads.  A body file: each instance first
 * defines vectors (attention_simd_*.h) and the storage type `comp` (attention_comp_*.h).
 *
 * All arithmetic is in float; a stored value is rounded once. */
#include "tensor/kernels.h"

#include <math.h>
#include <omp.h>
#include <string.h>

/* Below this many elements, starting the team costs more than it gains. */
enum { ALONE = 16384 };

static inline vf some_load(const comp *p, int64_t n)
{
    return n >= VW ? comp_load(p) : comp_load_n(p, n);
}

static inline vf some_load_real(const float *p, int64_t n)
{
    return n >= VW ? v_load(p) : v_load_n(p, n);
}

static inline void some_store(comp *p, vf v, int64_t n)
{
    if (n >= VW)
        comp_store(p, v);
    else
        comp_store_n(p, v, n);
}

/* --- rope ------------------------------------------------------------------------------------- */

/* Rotates pairs (x[i], x[i + half]) of one row of heads by angle i of the row's position. */
static void rope_row(comp *x, int64_t heads, int64_t head_dim, const float *cosine, vf sign)
{
    int64_t half = head_dim / 2;

    for (int64_t i = 0; i < half; i += VW) {
        vf c = some_load_real(cosine + i, half - i);
        vf s = v_mul(sign, some_load_real(cosine + half + i, half - i));

        for (int64_t h = 0; h < heads; h++) {
            comp *low = x + h * head_dim + i, *high = low + half;
            vf a = some_load(low, half - i), b = some_load(high, half - i);

            some_store(low, v_fnma(b, s, v_mul(a, c)), half - i);
            some_store(high, v_fma(a, s, v_mul(b, c)), half - i);
        }
    }
}

static void rope(int64_t n, int64_t seq, int64_t pos0, int64_t heads, int64_t head_dim,
                 const void *cos_sin, int inverse, void *x, int64_t ld)
{
    vf sign = v_set1(inverse ? -1.0f : 1.0f);

#pragma omp parallel for schedule(static) if (n * heads * head_dim > ALONE)
    for (int64_t r = 0; r < n; r++)
        rope_row((comp *)x + r * ld, heads, head_dim,
                 (const float *)cos_sin + (pos0 + r % seq) * head_dim, sign);
}

/* --- head norms ------------------------------------------------------------------------------- */

static float square_sum(const comp *x, int64_t n)
{
    vf sum = v_zero();

    for (int64_t c = 0; c < n; c += VW) {
        vf v = some_load(x + c, n - c);

        sum = v_fma(v, v, sum);
    }
    return v_sum(sum);
}

static void headnorm_forward(int64_t n, int64_t heads, int64_t width, double eps, const void *w,
                             void *x, int64_t ld, void *raw, void *rstd)
{
    const float *weight = w;

#pragma omp parallel for schedule(static) if (n * heads * width > ALONE)
    for (int64_t s = 0; s < n * heads; s++) {
        comp *row = (comp *)x + s / heads * ld + s % heads * width;
        float mean = square_sum(row, width) / (float)width, scale = 1 / sqrtf(mean + (float)eps);

        ((float *)rstd)[s] = scale;
        if (raw != NULL)
            memcpy((comp *)raw + s * width, row, (size_t)width * sizeof(*row));
        for (int64_t c = 0; c < width; c += VW) {
            vf v = v_mul(some_load(row + c, width - c), v_set1(scale));

            some_store(row + c, v_mul(v, some_load_real(weight + c, width - c)), width - c);
        }
    }
}

/* dx of one segment, in place of dy. */
static void headnorm_gradient(int64_t width, const float *w, const comp *raw, float rstd, comp *dx)
{
    vf sum = v_zero(), scale = v_set1(rstd), mean;

    for (int64_t c = 0; c < width; c += VW) {
        vf g = v_mul(some_load_real(w + c, width - c), some_load(dx + c, width - c));

        sum = v_fma(g, some_load(raw + c, width - c), sum);
    }
    mean = v_set1(v_sum(sum) * rstd * rstd / (float)width);
    for (int64_t c = 0; c < width; c += VW) {
        vf g = v_mul(some_load_real(w + c, width - c), some_load(dx + c, width - c));

        g = v_fnma(some_load(raw + c, width - c), mean, g);
        some_store(dx + c, v_mul(scale, g), width - c);
    }
}

/* dw of up to VW columns from c on, over all segments in order. */
static void headnorm_weight(int64_t n, int64_t heads, int64_t width, int64_t c, const comp *raw,
                            const float *rstd, const comp *dy, int64_t ld, float *dw)
{
    int64_t left = width - c;
    vf sum = some_load_real(dw + c, left);

    for (int64_t i = 0; i < n; i++) {
        for (int64_t h = 0; h < heads; h++) {
            int64_t s = i * heads + h;
            vf x = v_mul(some_load(raw + s * width + c, left), v_set1(rstd[s]));

            sum = v_fma(x, some_load(dy + i * ld + h * width + c, left), sum);
        }
    }
    if (left >= VW)
        v_store(dw + c, sum);
    else
        v_store_n(dw + c, sum, left);
}

/* dw first, because dx overwrites dy; threads divide columns, so that no sum is shared. */
static void headnorm_backward(int64_t n, int64_t heads, int64_t width, const void *w,
                              const void *raw, const void *rstd, void *dx, int64_t ld, void *dw,
                              void *ws)
{
    (void)ws;
#pragma omp parallel if (n * heads * width > ALONE)
    {
#pragma omp for schedule(static)
        for (int64_t c = 0; c < width; c += VW)
            headnorm_weight(n, heads, width, c, raw, rstd, dx, ld, dw);
#pragma omp for schedule(static)
        for (int64_t s = 0; s < n * heads; s++)
            headnorm_gradient(width, w, (const comp *)raw + s * width, ((const float *)rstd)[s],
                              (comp *)dx + s / heads * ld + s % heads * width);
    }
}

static void rope_fill(ek_kernels *k)
{
    k->rope = rope;
    k->headnorm_forward = headnorm_forward;
    k->headnorm_backward = headnorm_backward;
}
