/* The bump arena: measured equals allocated size, alignment, sticky overflow; and
 * the checked arithmetic of sizes. */
#include "base/arena.h"
#include "base/checked.h"
#include "ek_test.h"

/* The same three allocations in either mode. */
static void allocate_three(ek_arena *a, void *block[3])
{
    block[0] = ek_arena_alloc(a, 3, 1);
    block[1] = ek_arena_alloc(a, 1000, sizeof(double));
    block[2] = ek_arena_alloc(a, 0, 8);
}

static void measuring_predicts(void)
{
    ek_arena a;
    void *block[3];
    size_t measured;

    ek_arena_measure(&a);
    allocate_three(&a, block);
    CHECK(block[0] == NULL && block[1] == NULL);
    CHECK_INT(ek_arena_check(&a, "test"), EK_OK);
    measured = a.used;
    CHECK_INT(measured, 64 + 8000);
    ek_arena_fini(&a);
    CHECK_INT(ek_arena_init(&a, measured, "test"), EK_OK);
    allocate_three(&a, block);
    CHECK_INT(a.used, measured);
    CHECK_INT(ek_arena_check(&a, "test"), EK_OK);
    CHECK(block[1] == (void *)(a.base + 64));
    CHECK((uintptr_t)block[1] % EK_ARENA_ALIGN == 0);
    for (int i = 0; i < 1000; i++)
        CHECK(((double *)block[1])[i] == 0.0);
    CHECK(ek_arena_alloc(&a, 1, 1) == NULL);
    CHECK_INT(ek_arena_check(&a, "the test"), EK_EOVERFLOW);
    CHECK(strstr(ek_err_message(), "the test") != NULL);
    ek_arena_fini(&a);
    ek_arena_fini(&a);
}

static void impossible_sizes(void)
{
    static const int64_t counts[] = {-1, INT64_MAX};

    for (size_t i = 0; i < 2; i++) {
        ek_arena a;

        ek_arena_measure(&a);
        CHECK(ek_arena_alloc(&a, counts[i], 8) == NULL);
        CHECK_INT(ek_arena_check(&a, "test"), EK_EOVERFLOW);
        CHECK_INT(a.used, 0);
    }
}

static void refused_reservation(void)
{
    ek_arena a;

    CHECK_INT(ek_arena_init(&a, SIZE_MAX / 2, "something huge"), EK_ENOMEM);
    CHECK(strstr(ek_err_message(), "something huge") != NULL);
    ek_arena_fini(&a);
}

static void memory_of_the_caller(void)
{
    static _Alignas(EK_ARENA_ALIGN) unsigned char memory[256];
    ek_arena a;

    ek_arena_over(&a, memory, sizeof(memory));
    CHECK(ek_arena_alloc(&a, 3, 1) == memory);
    CHECK(ek_arena_alloc(&a, 128, 1) == memory + EK_ARENA_ALIGN);
    CHECK(ek_arena_alloc(&a, 65, 1) == NULL);
    CHECK_INT(ek_arena_check(&a, "a test"), EK_EOVERFLOW);
    ek_arena_fini(&a);
    memory[255] = 1; /* still valid */
    CHECK(a.base == NULL);
}

static void checked_arithmetic(void)
{
    int64_t i = 0;

    CHECK(ek_i64_add(INT64_MAX, INT64_MIN, &i) && i == -1);
    CHECK(!ek_i64_add(INT64_MAX, 1, &i));
    CHECK(ek_i64_mul(INT64_C(-3), 5, &i) && i == -15);
    CHECK(!ek_i64_mul(INT64_MIN, -1, &i));
}

/* Resident bytes of this process. */
static size_t resident(void)
{
    FILE *f = fopen("/proc/self/statm", "r");
    unsigned long all = 0, here = 0;

    if (f != NULL) {
        CHECK(fscanf(f, "%lu %lu", &all, &here) == 2);
        fclose(f);
    }
    return here * (size_t)sysconf(_SC_PAGESIZE);
}

/* Allocations of `bytes`, an eighth of them expected to be used, between small ones. */
static void allocate_worst_cases(ek_arena *a, char *block[], int n, int64_t bytes)
{
    for (int i = 0; i < n; i++) {
        ek_arena_alloc(a, 100, 8);
        block[i] = ek_arena_alloc_expected(a, bytes, bytes / 8, 1);
    }
}

static void expected_bytes_are_counted(void)
{
    enum { N = 10, LIKELY = 5 << 20 };
    char *block[N];
    ek_arena measured, a;
    size_t before, used;

    ek_arena_measure(&measured);
    allocate_worst_cases(&measured, block, N, 8 * LIKELY);
    CHECK(block[0] == NULL);
    CHECK_INT(measured.used, N * (8 * LIKELY + 832));
    CHECK_INT(ek_arena_expected(&measured), N * (LIKELY + 832));
    before = resident();
    a = measured;
    CHECK_INT(ek_arena_reserve(&a, "test"), EK_OK);
    allocate_worst_cases(&a, block, N, 8 * LIKELY);
    CHECK_INT(ek_arena_check(&a, "test"), EK_OK);
    CHECK_INT(ek_arena_expected(&a), ek_arena_expected(&measured));
    for (int i = 0; i < N; i++) {
        CHECK(block[i] != NULL);
        memset(block[i], 1, LIKELY);
    }
    used = resident() - before;
    if (before > 0 && (used < N * LIKELY * 0.97 || used > N * LIKELY * 1.03))
        EK_T_FAIL("%zu bytes are resident, expected %zu", used, ek_arena_expected(&a));
    memset(block[N - 1], 1, 8 * LIKELY); /* the unlikely case */
    CHECK(ek_arena_alloc_expected(&a, INT64_MAX, 1, 8) == NULL);
    CHECK_INT(ek_arena_check(&a, "test"), EK_EOVERFLOW);
    ek_arena_fini(&a);
}

/* An allocation whose unused part is small counts in full. */
static void small_unused_parts(void)
{
    ek_arena a;

    ek_arena_measure(&a);
    ek_arena_alloc_expected(&a, 64000, 64, 1);
    CHECK_INT(ek_arena_expected(&a), 64000);
    ek_arena_alloc_expected(&a, 0, 0, 8);
    CHECK_INT(ek_arena_expected(&a), 64000);
}

/* An ek_memory with a capacity of `most` bytes. */
typedef struct {
    ek_memory is;
    size_t most, allocated, cleared;
} other_memory;

static ek_status other_alloc(const ek_memory *m, size_t bytes, size_t likely, const char *what,
                             void **out)
{
    other_memory *o = (other_memory *)(uintptr_t)m;

    EK_REQUIRE(likely <= o->most, EK_ENOMEM, "%s is too large", what);
    *out = aligned_alloc(256, (bytes + 255) / 256 * 256);
    memset(*out, 0x55, bytes);
    o->allocated += likely;
    return EK_OK;
}

static void other_free(const ek_memory *m, void *memory, size_t likely)
{
    ((other_memory *)(uintptr_t)m)->allocated -= likely;
    free(memory);
}

static void other_clear(const ek_memory *m, void *memory, size_t bytes)
{
    ((other_memory *)(uintptr_t)m)->cleared += bytes;
    memset(memory, 0, bytes);
}

static void allocate_both(ek_arena *a, char *block[2])
{
    block[0] = ek_arena_alloc(a, 1000, 1);
    block[1] = ek_arena_alloc(ek_arena_host(a), 3000, 1);
}

/* Only what is expected to be used counts; what is never touched is not asked for at all. */
static void worst_cases_in_other_memory(void)
{
    other_memory o = {.is = {.alloc = other_alloc, .free = other_free, .clear = other_clear},
                      .most = 100000};
    ek_arena a;

    for (int never = 0; never < 2; never++) {
        ek_arena_measure_from(&a, &o.is, NULL);
        (void)ek_arena_alloc_expected(&a, 10 << 20, 1000, 1);
        a.never_touched = never;
        CHECK_INT(ek_arena_reserve(&a, "test"), EK_OK);
        CHECK(ek_arena_alloc_expected(&a, 10 << 20, 1000, 1) == a.base);
        CHECK(never ? o.allocated == 0 : o.allocated >= 1000 && o.allocated < 2000);
        CHECK_INT(o.cleared, 1000);
        ek_arena_fini(&a);
        CHECK_INT(o.allocated, 0);
    }
    ek_arena_measure_from(&a, &o.is, NULL);
    (void)ek_arena_alloc_expected(&a, 10 << 20, 200000, 1);
    CHECK_INT(ek_arena_reserve(&a, "test"), EK_ENOMEM);
}

static void host_arena_of_other_memory(void)
{
    other_memory o = {.is = {.alloc = other_alloc, .free = other_free, .clear = other_clear},
                      .most = 2000};
    ek_arena a, host;
    char *block[2];

    ek_arena_measure_from(&a, &o.is, &host);
    allocate_both(&a, block);
    CHECK(block[0] == NULL && block[1] == NULL);
    CHECK_INT(a.used, 1024);
    CHECK_INT(host.used, 3008);
    o.most = 1000;
    CHECK_INT(ek_arena_reserve(&a, "test"), EK_ENOMEM);
    CHECK(a.base == NULL && host.base == NULL && a.used == 1024 && o.allocated == 0);
    o.most = 2000;
    CHECK_INT(ek_arena_reserve(&a, "test"), EK_OK);
    CHECK_INT(o.allocated, 1024);
    allocate_both(&a, block);
    CHECK(block[0] == (char *)a.base && block[1] == (char *)host.base);
    for (int i = 0; i < 1000; i++)
        CHECK(block[0][i] == 0 && block[1][i] == 0);
    CHECK_INT(o.cleared, 1000); /* the host arena is the system's, and zero */
    CHECK_INT(ek_arena_check(&a, "test"), EK_OK);
    CHECK(ek_arena_alloc(ek_arena_host(&a), 5000, 1) == NULL);
    CHECK_INT(ek_arena_check(&a, "test"), EK_EOVERFLOW);
    ek_arena_fini(&a);
    CHECK(a.base == NULL && host.base == NULL && o.allocated == 0);
}

/* In system memory the host arena is the arena itself. */
static void host_arena_of_the_system(void)
{
    ek_arena a, host = {.used = 7};

    ek_arena_measure_from(&a, NULL, &host);
    CHECK(ek_arena_host(&a) == &a && host.used == 7);
    CHECK(ek_arena_alloc(ek_arena_host(&a), 100, 1) == NULL);
    CHECK_INT(ek_arena_reserve(&a, "test"), EK_OK);
    CHECK(ek_arena_alloc(ek_arena_host(&a), 100, 1) == a.base);
    ek_arena_fini(&a);
}

static const ek_case cases[] = {
    EK_CASE(measuring_predicts),         EK_CASE(impossible_sizes),
    EK_CASE(refused_reservation),        EK_CASE(memory_of_the_caller),
    EK_CASE(checked_arithmetic),         EK_CASE(expected_bytes_are_counted),
    EK_CASE(small_unused_parts),         EK_CASE(worst_cases_in_other_memory),
    EK_CASE(host_arena_of_other_memory), EK_CASE(host_arena_of_the_system),
};
EK_TEST_MAIN(cases)
