/* tensor/cpu/linear_pack.c - portable packing of strips and panels. */
#include "tensor/cpu/linear_pack.h"

#include "tensor/cpu/linear.h"

/* Elements of float or bf16, as floats. */
static float load_element(int bf16, const void *src, int64_t i)
{
    return bf16 ? ek_bf16_to_float(((const ek_bf16 *)src)[i]) : ((const float *)src)[i];
}

static void rows_any(int bf16, int64_t words, int64_t rows, int64_t k, const void *src, int64_t ld,
                     float *dst, int64_t width)
{
    for (int64_t i = 0; i < width; i++)
        for (int64_t q = 0; q < words; q++)
            dst[q * width + i] = i < rows && q < k ? load_element(bf16, src, i * ld + q) : 0;
}

static void cols_any(int bf16, int64_t words, int64_t k, int64_t cols, const void *src, int64_t ld,
                     float *dst, int64_t width)
{
    for (int64_t q = 0; q < words; q++)
        for (int64_t j = 0; j < width; j++)
            dst[q * width + j] = q < k && j < cols ? load_element(bf16, src, q * ld + j) : 0;
}

void ek_f32_rows(int64_t rows, int64_t k, const void *src, int64_t ld, void *dst, int64_t width)
{
    rows_any(0, k, rows, k, src, ld, dst, width);
}

void ek_wide_rows(int64_t rows, int64_t k, const void *src, int64_t ld, void *dst, int64_t width)
{
    rows_any(1, k + (k & 1), rows, k, src, ld, dst, width);
}

void ek_f32_cols(int64_t k, int64_t cols, const void *src, int64_t ld, void *dst, int64_t width)
{
    cols_any(0, k, k, cols, src, ld, dst, width);
}

void ek_wide_cols(int64_t k, int64_t cols, const void *src, int64_t ld, void *dst, int64_t width)
{
    cols_any(1, k + (k & 1), k, cols, src, ld, dst, width);
}

/* Element e of K of each pair lies at dst[pair][word][e]. */
void ek_round_rows(int64_t rows, int64_t k, const void *src, int64_t ld, void *dst, int64_t width)
{
    const float *s = src;
    ek_bf16 *d = dst;

    for (int64_t i = 0; i < width; i++)
        for (int64_t q = 0; q < k + (k & 1); q++)
            d[((q >> 1) * width + i) * 2 + (q & 1)] =
                i < rows && q < k ? ek_bf16_from_float(s[i * ld + q]) : 0;
}

void ek_round_cols(int64_t k, int64_t cols, const void *src, int64_t ld, void *dst, int64_t width)
{
    const float *s = src;
    ek_bf16 *d = dst;

    for (int64_t q = 0; q < k + (k & 1); q++)
        for (int64_t j = 0; j < width; j++)
            d[((q >> 1) * width + j) * 2 + (q & 1)] =
                j < cols && q < k ? ek_bf16_from_float(s[q * ld + j]) : 0;
}

/* Words of src are pairs of rows, words of dst pairs of columns: two of these and two of those are
 * four elements.  Beyond rows and k src is zero up to a whole pair. */
void ek_turn_pairs(int64_t rows, int64_t k, const void *src, int64_t ld, void *dst, int64_t width)
{
    const uint32_t *s = src;
    uint32_t *d = dst;
    int64_t pairs = (rows + 1) / 2;

    for (int64_t q = 0; q < k; q += 2, s += 2, d += width) {
        for (int64_t i = 0; i < pairs; i++) {
            uint32_t a = s[i * ld], b = s[i * ld + 1];

            d[2 * i] = (a & 0xffff) | b << 16;
            d[2 * i + 1] = a >> 16 | (b & 0xffff0000);
        }
        for (int64_t i = 2 * pairs; i < width; i++)
            d[i] = 0;
    }
}
