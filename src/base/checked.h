/* base/checked.h - overflow-checked sums, products and narrowing conversions of sizes.
 *
 * Each returns true and sets *out when the exact result fits, false (*out unspecified) when it
 * does not.  The caller writes the error message: which sizes, from which file. */
#ifndef BASE_CHECKED_H
#define BASE_CHECKED_H

#include "evenkeel/err.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Sums and products. */
EK_CHECKED static inline bool ek_size_add(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

EK_CHECKED static inline bool ek_size_mul(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

EK_CHECKED static inline bool ek_i64_add(int64_t a, int64_t b, int64_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

EK_CHECKED static inline bool ek_i64_mul(int64_t a, int64_t b, int64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

/* Conversions: false when the value does not fit the narrower type. */
EK_CHECKED static inline bool ek_i64_to_size(int64_t a, size_t *out)
{
    return !__builtin_add_overflow(a, 0, out);
}

EK_CHECKED static inline bool ek_size_to_i64(size_t a, int64_t *out)
{
    return !__builtin_add_overflow(a, 0u, out);
}

EK_CHECKED static inline bool ek_i64_to_int(int64_t a, int *out)
{
    return !__builtin_add_overflow(a, 0, out);
}

/* n elements of `size` bytes; a negative n does not fit. */
EK_CHECKED static inline bool ek_bytes_of(int64_t n, size_t size, size_t *out)
{
    return n >= 0 && !__builtin_mul_overflow(n, size, out);
}

#endif
