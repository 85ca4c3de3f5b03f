/* Counter-based random numbers: known values, moments, independence, permutations. */
#include "base/random.h"
#include "ek_test.h"

/* Known answers of Philox 4x32-10 (the authors' kat_vectors): counter, key -> first two words. */
static void known_answers(void)
{
    const uint64_t ones = UINT64_MAX;

    CHECK(ek_random_bits(0, 0, 0) == UINT64_C(0x6627e8d5e169c58d));
    CHECK(ek_random_bits(ones, ones, ones) == UINT64_C(0x408f276d41c83b0e));
    CHECK(ek_random_bits(UINT64_C(0x299f31d0a4093822), UINT64_C(0x0370734413198a2e),
                         UINT64_C(0x85a308d3243f6a88)) == UINT64_C(0xd16cfe0994fdcceb));
}

static void uniform_moments(void)
{
    enum { N = 200000 };
    double sum = 0, square = 0;

    for (uint64_t i = 0; i < N; i++) {
        double u = ek_random_uniform(1, 2, i);

        CHECK(u >= 0 && u < 1);
        sum += u;
        square += u * u;
    }
    CHECK(fabs(sum / N - 0.5) < 4 * 0.2887 / sqrt(N)); /* 4 standard errors */
    CHECK(fabs(square / N - 1.0 / 3) < 4 * 0.2981 / sqrt(N));
}

static void normal_moments(void)
{
    enum { N = 200000 };
    double m[5] = {0}, lag = 0, before = 0;

    for (uint64_t i = 0; i < N; i++) {
        double z = ek_random_normal(3, 4, i), p = 1;

        CHECK(isfinite(z));
        lag += z * before;
        before = z;
        for (int k = 1; k <= 4; k++)
            m[k] += (p *= z) / N;
    }
    CHECK(fabs(m[1]) < 4 / sqrt(N));
    CHECK(fabs(m[2] - 1) < 4 * sqrt(2.0 / N));
    CHECK(fabs(m[3]) < 4 * sqrt(15.0 / N));
    CHECK(fabs(m[4] - 3) < 4 * sqrt(96.0 / N));
    CHECK(fabs(lag / N) < 4 / sqrt(N));
}

static void arguments_matter(void)
{
    uint64_t x = ek_random_bits(5, 6, 7);

    CHECK(x == ek_random_bits(5, 6, 7));
    CHECK(x != ek_random_bits(4, 6, 7) && x != ek_random_bits(5 | UINT64_C(1) << 40, 6, 7));
    CHECK(x != ek_random_bits(5, 7, 6) && x != ek_random_bits(5, 6 | UINT64_C(1) << 40, 7));
    CHECK(x != ek_random_bits(5, 6, 8) && x != ek_random_bits(5, 6, 7 | UINT64_C(1) << 40));
    CHECK(ek_random_stream("a.weight") != ek_random_stream("b.weight"));
    CHECK(ek_random_stream("") == UINT64_C(0xcbf29ce484222325));
}

static void permutations(void)
{
    static const uint64_t sizes[] = {1, 2, 3, 4, 5, 7, 16, 17, 100, 1000, 4096, 65537};
    static unsigned char seen[65537];

    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        uint64_t n = sizes[s], fixed = 0, differs = 0;

        memset(seen, 0, sizeof(seen));
        for (uint64_t i = 0; i < n; i++) {
            uint64_t p = ek_random_permute(11, 12, n, i);

            CHECK(p < n && !seen[p < n ? p : 0]);
            if (p < n)
                seen[p] = 1;
            fixed += p == i;
            differs += p != ek_random_permute(12, 12, n, i);
        }
        if (n >= 1000) {
            CHECK(fixed < 12); /* Poisson with mean 1 */
            CHECK(differs > n - 12);
        }
    }
    CHECK(ek_random_permute(1, 1, UINT64_C(1) << 40, 5) < UINT64_C(1) << 40);
}

static void the_first_images_are_those_of_each_index(void)
{
    static const int32_t sizes[] = {1, 2, 5, 32, 100, 1000, 1024, 1025, 5000};
    int32_t images[64];

    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
        for (uint64_t stream = 0; stream < 20; stream++) {
            int32_t k = sizes[i] < 64 ? sizes[i] : 64;

            ek_random_permute_first(3, stream, sizes[i], k, images);
            for (int32_t j = 0; j < k; j++)
                CHECK_INT(images[j],
                          (int32_t)ek_random_permute(3, stream, (uint64_t)sizes[i], (uint64_t)j));
        }
}

static const ek_case cases[] = {
    EK_CASE(known_answers),  EK_CASE(uniform_moments),
    EK_CASE(normal_moments), EK_CASE(arguments_matter),
    EK_CASE(permutations),   EK_CASE(the_first_images_are_those_of_each_index)};
EK_TEST_MAIN(cases)
