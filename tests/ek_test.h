/* ek_test.h - the test framework.  A test program is a list of cases; its exit code is
 * 0 passed, 1 failed, 77 all skipped.  A failed check is counted and the case continues: leaving it
 * on one rank would leave the other ranks in a collective. */
#ifndef EK_TEST_H
#define EK_TEST_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef EK_TEST_MPI
#include <mpi.h>
#endif

/* Whether sanitizers make this program several times as slow: a test may then do less. */
#ifdef __SANITIZE_ADDRESS__
enum { EK_T_SLOW = 1 };
#else
enum { EK_T_SLOW = 0 };
#endif

typedef struct {
    const char *name;
    void (*run)(void);
} ek_case;

/* clang-format off */
#define EK_CASE(fn) { #fn, fn }
/* clang-format on */
#define EK_TEST_MAIN(cases)                                                                        \
    int main(int argc, char **argv)                                                                \
    {                                                                                              \
        return ek_test_main(argc, argv, cases, sizeof(cases) / sizeof((cases)[0]));                \
    }

static struct {
    int failed, skipped;
} ek_t;

#define EK_T_FAIL(...)                                                                             \
    ((void)(ek_t.failed++, fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, __func__),           \
            fprintf(stderr, __VA_ARGS__), fputc('\n', stderr)))

#define CHECK(cond) ((cond) ? (void)0 : EK_T_FAIL("failed: %s", #cond))
#define CHECK_INT(got, want)                                                                       \
    ((got) == (want)                                                                               \
         ? (void)0                                                                                 \
         : EK_T_FAIL("%s is %lld, expected %lld", #got, (long long)(got), (long long)(want)))
#define CHECK_NMSE(got, want, n, tol)                                                              \
    (ek_nmse((got), (want), (n)) <= (tol)                                                          \
         ? (void)0                                                                                 \
         : EK_T_FAIL("nmse(%s, %s) is %.3g, allowed %.3g", #got, #want,                            \
                     ek_nmse((got), (want), (n)), (double)(tol)))
#define SKIP(reason)                                                                               \
    do {                                                                                           \
        ek_t.skipped++;                                                                            \
        fprintf(stderr, "skipped %s: %s\n", __func__, (reason));                                   \
        return;                                                                                    \
    } while (0)

/* Normalised mean square error; infinite when anything in `got` is not finite. */
static inline double ek_nmse(const float *got, const float *want, size_t n)
{
    double err = 0, ref = 0;

    for (size_t i = 0; i < n; i++) {
        double d = (double)got[i] - (double)want[i];

        if (!isfinite(got[i]))
            return (double)INFINITY;
        err += d * d;
        ref += (double)want[i] * (double)want[i];
    }
    return ref > 0 ? err / ref : err;
}

static int ek_t_agree(int mine)
{
#ifdef EK_TEST_MPI
    MPI_Allreduce(MPI_IN_PLACE, &mine, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
#endif
    return mine;
}

static inline int ek_test_main(int argc, char **argv, const ek_case *cases, size_t n)
{
    const char *only = argc > 1 ? argv[1] : NULL;
    int rank = 0, passed = 0, failed = 0, skipped = 0;

    alarm(1800); /* a hang is a failure, also without ctest */
#ifdef EK_TEST_MPI
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
#endif
    for (size_t i = 0; i < n; i++) {
        int f = ek_t.failed, s = ek_t.skipped;

        if (only != NULL && strcmp(only, cases[i].name) != 0)
            continue;
        cases[i].run();
        f = ek_t_agree(ek_t.failed > f);
        s = ek_t_agree(ek_t.skipped > s);
        failed += f;
        skipped += !f && s;
        passed += !f && !s;
        if (rank == 0)
            printf("%s %s\n", f ? "FAIL" : s ? "skip" : "ok  ", cases[i].name);
    }
    if (rank == 0)
        printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
#ifdef EK_TEST_MPI
    MPI_Finalize();
#endif
    return failed > 0 || passed + skipped == 0 ? 1 : passed == 0 ? 77 : 0;
}

#endif
