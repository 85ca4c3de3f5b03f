/* Element conversion, in blocks via float: float represents every bf16 and f16 exactly, and a
 * double that is converted to 16 bits is first rounded to odd, so that the second rounding gives
 * the result of a single one. */
#include "store/convert.h"

#include <math.h>

enum { BLOCK = 512 };

static float f16_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exp = h >> 10 & 0x1fu, frac = h & 0x3ffu, u;
    float f;

    if (exp == 0) { /* zero and subnormal: frac 2^-24 */
        f = (float)frac * 0x1p-24f;
        memcpy(&u, &f, sizeof(u));
        u |= sign;
    } else if (exp == 31) {
        u = sign | 0x7f800000u | frac << 13;
    } else {
        u = sign | (exp + 112) << 23 | frac << 13;
    }
    memcpy(&f, &u, sizeof(f));
    return f;
}

static uint16_t f16_from_float(float f)
{
    uint32_t u, sign, half;
    float magnitude = fabsf(f);

    memcpy(&u, &f, sizeof(u));
    sign = u >> 16 & 0x8000u;
    u &= 0x7fffffffu;
    if (u > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (u >> 13 & 0x1ffu));
    if (u >= 0x477ff000u) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (u < 0x38800000u) { /* below 2^-14: the last place of floats near 0.5 is 2^-24 */
        magnitude += 0.5f;
        memcpy(&half, &magnitude, sizeof(half));
        return (uint16_t)(sign | (half - 0x3f000000u));
    }
    u = (u + 0xfffu + (u >> 13 & 1u)) >> 13;
    return (uint16_t)(sign | (u - (112u << 10)));
}

/* Truncates, and sets the last bit if anything was lost. */
static float float_round_to_odd(double d)
{
    float f = (float)d;
    uint32_t u;

    if (isnan(d) || (double)f == d)
        return f;
    memcpy(&u, &f, sizeof(u));
    if (fabs((double)f) > fabs(d))
        u--;
    u |= 1u;
    memcpy(&f, &u, sizeof(f));
    return f;
}

static void widen_elements(int64_t n, const unsigned char *src, ek_dtype from, int odd, float *f)
{
    double d;
    uint16_t h;

    switch (from) {
    case EK_F64:
        for (int64_t i = 0; i < n; i++) {
            memcpy(&d, src + 8 * i, sizeof(d));
            f[i] = odd ? float_round_to_odd(d) : (float)d;
        }
        break;
    case EK_F32: memcpy(f, src, (size_t)n * sizeof(*f)); break;
    case EK_BF16:
        for (int64_t i = 0; i < n; i++) {
            memcpy(&h, src + 2 * i, sizeof(h));
            f[i] = ek_bf16_to_float(h);
        }
        break;
    case EK_F16:
        for (int64_t i = 0; i < n; i++) {
            memcpy(&h, src + 2 * i, sizeof(h));
            f[i] = f16_to_float(h);
        }
        break;
    }
}

static void narrow_elements(int64_t n, const float *f, unsigned char *dst, ek_dtype to)
{
    uint16_t h;
    double d;

    switch (to) {
    case EK_F64:
        for (int64_t i = 0; i < n; i++) {
            d = (double)f[i];
            memcpy(dst + 8 * i, &d, sizeof(d));
        }
        break;
    case EK_F32: memcpy(dst, f, (size_t)n * sizeof(*f)); break;
    case EK_BF16:
        for (int64_t i = 0; i < n; i++) {
            h = ek_bf16_from_float(f[i]);
            memcpy(dst + 2 * i, &h, sizeof(h));
        }
        break;
    case EK_F16:
        for (int64_t i = 0; i < n; i++) {
            h = f16_from_float(f[i]);
            memcpy(dst + 2 * i, &h, sizeof(h));
        }
        break;
    }
}

void ek_convert(int64_t n, const void *src, ek_dtype from, void *dst, ek_dtype to)
{
    const unsigned char *s = src;
    unsigned char *d = dst;
    float block[BLOCK];

    if (n <= 0)
        return;
    if (from == to) {
        memcpy(d, s, (size_t)n * ek_dtype_size(to));
        return;
    }
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t m = n - i < BLOCK ? n - i : BLOCK;

        widen_elements(m, s + (size_t)i * ek_dtype_size(from), from, to == EK_BF16 || to == EK_F16,
                       block);
        narrow_elements(m, block, d + (size_t)i * ek_dtype_size(to), to);
    }
}
