/* store/convert: every 16-bit value against a plain formula, and rounding against neighbours. */
#include "base/random.h"
#include "ek_test.h"
#include "store/convert.h"

#include <math.h>
#include <stdint.h>

/* The value of a 16-bit float with `frac` fraction bits, by the definition of the format. */
static double value(uint32_t bits, int frac)
{
    int ebits = 15 - frac, bias = (1 << (ebits - 1)) - 1;
    int e = (int)(bits >> frac & ((1u << ebits) - 1)), m = (int)(bits & ((1u << frac) - 1));
    double sign = bits >> 15 ? -1.0 : 1.0;

    if (e == (1 << ebits) - 1)
        return m != 0 ? (double)NAN : sign * (double)INFINITY;
    if (e == 0)
        return sign * ldexp(m, 1 - bias - frac);
    return sign * ldexp(m + (1 << frac), e - bias - frac);
}

static int frac_of(ek_dtype t)
{
    return t == EK_BF16 ? 7 : 10;
}

static int same(double a, double b)
{
    return isnan(a) ? isnan(b) : a == b && signbit(a) == signbit(b);
}

static const ek_dtype halves[] = {EK_BF16, EK_F16};

/* Widening is exact, and narrowing back gives the same bits. */
static void all_values(void)
{
    static uint16_t in[65536], back[65536];
    static float f[65536];
    static double d[65536];

    for (int i = 0; i < 65536; i++)
        in[i] = (uint16_t)i;
    for (int h = 0; h < 2; h++) {
        int bad = 0;

        ek_convert(65536, in, halves[h], f, EK_F32);
        ek_convert(65536, in, halves[h], d, EK_F64);
        for (int i = 0; i < 65536; i++) {
            double v = value((uint32_t)i, frac_of(halves[h]));

            bad += !same(f[i], v) || !same(d[i], v);
        }
        CHECK_INT(bad, 0);
        for (int wide = 0; wide < 2; wide++) {
            ek_convert(65536, wide ? (const void *)d : (const void *)f, wide ? EK_F64 : EK_F32,
                       back, halves[h]);
            for (int i = 0; i < 65536; i++)
                bad += isnan(f[i]) ? !isnan(value(back[i], frac_of(halves[h]))) : back[i] != i;
        }
        CHECK_INT(bad, 0);
    }
}

/* Between neighbours: below the middle down, above it up, the middle to even; in double too,
 * where the middle is missed by less than a float can say. */
static void rounding(void)
{
    for (int h = 0; h < 2; h++) {
        int frac = frac_of(halves[h]), bad = 0;
        uint32_t inf = halves[h] == EK_BF16 ? 0x7f80 : 0x7c00;

        for (uint32_t lo = 0; lo < inf; lo++) {
            uint32_t hi = lo + 1, even = lo % 2 == 0 ? lo : hi;
            double a = value(lo, frac),
                   b = hi == inf ? 2 * a - value(lo - 1, frac) : value(hi, frac), mid = (a + b) / 2,
                   eps = (b - a) * 0x1p-40;
            double x[6] = {mid, mid - eps, mid + eps, -mid, eps - mid, -eps - mid};
            uint16_t want[6] = {(uint16_t)even,
                                (uint16_t)lo,
                                (uint16_t)hi,
                                (uint16_t)(even | 0x8000),
                                (uint16_t)(lo | 0x8000),
                                (uint16_t)(hi | 0x8000)};
            uint16_t got[6], from_float;
            float m = (float)mid;

            ek_convert(6, x, EK_F64, got, halves[h]);
            for (int i = 0; i < 6; i++)
                bad += got[i] != want[i];
            ek_convert(1, &m, EK_F32, &from_float, halves[h]);
            bad += (double)m == mid && from_float != even;
        }
        CHECK_INT(bad, 0);
    }
}

/* Blocks, unaligned sources, and the pairs that do not touch 16 bits. */
static void sizes_and_pairs(void)
{
    static unsigned char raw[8 * 2000 + 1];
    static double d[2000], d2[2000];
    static float f[2000];
    static uint16_t h[2000], h2[2000];

    for (uint64_t i = 0; i < 2000; i++)
        d[i] = ek_random_normal(1, 2, i) * exp2(20 * ek_random_normal(1, 3, i));
    memcpy(raw + 1, d, sizeof(d));
    for (int64_t n = 0; n < 2000; n += n < 600 ? 37 : 1) {
        memset(f, 0, sizeof(f));
        ek_convert(n, raw + 1, EK_F64, f, EK_F32);
        CHECK(n == 0 || f[n - 1] == (float)d[n - 1]);
        CHECK(f[n] == 0);
    }
    ek_convert(2000, f, EK_F32, d2, EK_F64);
    for (int i = 0; i < 1999; i++)
        CHECK(d2[i] == (double)f[i]);
    ek_convert(2000, d, EK_F64, d2, EK_F64);
    CHECK(memcmp(d, d2, sizeof(d)) == 0);
    for (int i = 0; i < 2000; i++)
        h[i] = (uint16_t)(0x3c00 + i); /* f16 from 1 to 3.9 and beyond */
    ek_convert(2000, h, EK_F16, h2, EK_BF16);
    for (int i = 0; i < 2000; i++) {
        float v = (float)value(h[i], 10);

        CHECK_INT(h2[i], ek_bf16_from_float(v));
    }
}

static const ek_case cases[] = {
    EK_CASE(all_values),
    EK_CASE(rounding),
    EK_CASE(sizes_and_pairs),
};

EK_TEST_MAIN(cases)
