/* store/convert.h - element conversion between file types and memory types.
 *
 * Exact wherever the target can hold the value; otherwise rounded once to nearest, ties to even
 * (also from double to the 16-bit types).  NaN stays NaN, too large becomes infinity. */
#ifndef STORE_CONVERT_H
#define STORE_CONVERT_H

#include "tensor/dtype.h"

#include <stdint.h>

/* n elements; src may be unaligned, as it is in a file in memory.  No overlap, but src may be the
 * end of dst's bytes if its elements are the smaller ones. */
void ek_convert(int64_t n, const void *src, ek_dtype from, void *dst, ek_dtype to);

#endif
