/* base/checked.h - overflow-checked sums and products.
 *
 * Each returns true and sets *out when the exact result fits, false (*out unspecified) when it
 * does not.  The caller writes the error message: which sizes, from which file. */
#ifndef BASE_CHECKED_H
#define BASE_CHECKED_H

#include "evenkeel/err.h"

#include <stdbool.h>
#include <stdint.h>

EK_CHECKED static inline bool ek_i64_add(int64_t a, int64_t b, int64_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

EK_CHECKED static inline bool ek_i64_mul(int64_t a, int64_t b, int64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

#endif
