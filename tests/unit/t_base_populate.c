/* Memory that is touched ahead of its use: what was asked for becomes resident, and nothing else;
 * contents stay. */
#include "base/clock.h"
#include "base/populate.h"
#include "ek_test.h"

#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { PIECES = 8 };
static const size_t piece = 2 << 20, bytes = PIECES * (2 << 20);

/* Memory of small pages, at a multiple of a piece; *mapped is to be unmapped. */
static char *map_pieces(char **mapped)
{
    char *p = mmap(NULL, bytes + piece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    CHECK(p != MAP_FAILED);
    (void)madvise(p, bytes + piece, MADV_NOHUGEPAGE);
    *mapped = p;
    return p + (piece - (uintptr_t)p % piece) % piece;
}

/* Resident pages of 4 KiB in [from, to). */
static int64_t count_resident(char *memory, size_t from, size_t to)
{
    static unsigned char present[PIECES * 512];
    int64_t n = 0;

    CHECK(mincore(memory + from, to - from, present) == 0);
    for (size_t i = 0; i < (to - from) / 4096; i++)
        n += present[i] & 1;
    return n;
}

/* Waits up to 20 s until the first `to` bytes are resident. */
static int wait_resident(char *memory, size_t to)
{
    int64_t start = ek_clock_ns();

    while (count_resident(memory, 0, to) < (int64_t)(to / 4096)) {
        if (ek_clock_ns() - start > INT64_C(20000000000))
            return 0;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return 1;
}

static void what_is_asked_for_becomes_resident_and_nothing_else(void)
{
    for (int threads = 1; threads <= 3; threads++) {
        char *mapped, *memory = map_pieces(&mapped);
        ek_populate *p = NULL;

        memset(memory, 7, 100);
        CHECK(ek_populate_create(memory, bytes, threads, &p) == EK_OK);
        CHECK_INT(ek_populate_touched(p), 0);
        for (size_t n = 3; n <= PIECES; n += 5) { /* some, then all: its threads end */
            ek_populate_ask(p, n * piece - (n < PIECES ? 100 : 0)); /* rounded up to a page */
            ek_populate_ask(p, 1);                                  /* less than before */
            if (!wait_resident(memory, n * piece) && ek_populate_touched(p) <= piece)
                SKIP("this system does not touch memory ahead (Linux 5.14)");
            CHECK_INT(ek_populate_touched(p), n * piece);
            CHECK_INT(count_resident(memory, n * piece, bytes), 0);
        }
        for (int i = 0; i < 200; i++)
            CHECK_INT(memory[i], i < 100 ? 7 : 0);
        ek_populate_destroy(&p);
        CHECK(p == NULL);
        munmap(mapped, bytes + piece);
    }
}

static void without_a_request_nothing_is_touched(void)
{
    char *mapped, *memory = map_pieces(&mapped);
    ek_populate *p = NULL;

    CHECK(ek_populate_create(memory, bytes, 2, &p) == EK_OK);
    ek_populate_ask(p, 0);
    ek_populate_destroy(&p);
    CHECK_INT(count_resident(memory, 0, bytes), 0);
    munmap(mapped, bytes + piece);
}

static void destroying_does_not_wait_for_all(void)
{
    for (int i = 0; i < 20; i++) {
        char *mapped, *memory = map_pieces(&mapped);
        ek_populate *p = NULL;

        CHECK(ek_populate_create(memory, bytes, 1 + i % 4, &p) == EK_OK);
        ek_populate_ask(p, 2 * bytes); /* more than there is */
        ek_populate_destroy(&p);
        munmap(mapped, bytes + piece);
    }
}

static const ek_case cases[] = {
    EK_CASE(what_is_asked_for_becomes_resident_and_nothing_else),
    EK_CASE(without_a_request_nothing_is_touched),
    EK_CASE(destroying_does_not_wait_for_all),
};
EK_TEST_MAIN(cases)
