/* Definitions for attention_body.h with products in float FMAs: an element of a packed block is one
 * float, for any storage type.
 *
 * Before this file: a simd header, `comp`, comp_load(_n). */
#ifndef TENSOR_CPU_ATTENTION_FMA_H
#define TENSOR_CPU_ATTENTION_FMA_H

enum { PAIR = 1 };

static inline vf element_set1(const float *a)
{
    return v_set1(*a);
}

/* c + a b */
static inline vf multiply_add(vf c, vf a, vf b)
{
    return v_fma(a, b, c);
}

/* n rows of d to [n][wide], zeros from d to wide (a multiple of VW). */
static void pack_rows(const comp *x, int64_t ld, int64_t n, int64_t d, int64_t wide, float *to)
{
    for (int64_t r = 0; r < n; r++) {
        for (int64_t c = 0; c < wide; c += VW) {
            int64_t left = d - c;

            v_store(to + r * wide + c, left >= VW ? comp_load(x + r * ld + c)
                                       : left > 0 ? comp_load_n(x + r * ld + c, left)
                                                  : v_zero());
        }
    }
}

/* The layout for products that sum over rows. */
static void pack_over_rows(const comp *x, int64_t ld, int64_t n, int64_t d, int64_t wide, float *to)
{
    pack_rows(x, ld, n, d, wide, to);
}

/* PAIR vectors of neighbouring columns of a row of scores, as the left side of a product over
 * columns. */
static inline void pack_columns(float *to, const vf *x)
{
    v_store(to, x[0]);
}

/* The same columns of PAIR neighbouring rows, as the left side of a product over rows. */
static inline void pack_row_pair(float *to, const vf *x)
{
    v_store(to, x[0]);
}

#endif
