/* Every layout trains as one rank does, and continues a checkpoint of any other: a covering array
 * of layouts of up to 8 ranks (equal_cover.h), by the seed EK_TEST_SEED (1).  EK_TEST_ONLY=i runs
 * only layout i; EK_TEST_COUNT=n the first n.  Ranks are threads. */
#include "equal_cover.h"
#include "equal_threads.h"

enum { PAIRS = 120, SECONDS = 3500 };

static int number(const char *name, int otherwise)
{
    const char *text = getenv(name);

    return text != NULL ? atoi(text) : otherwise;
}

static int wanted(int i)
{
    int only = number("EK_TEST_ONLY", -1);

    return only < 0 ? i < number("EK_TEST_COUNT", 1 << 30) : i == only;
}

static void every_pair_of_choices(void)
{
    static cover c;
    equal_layout l;
    int n = 0;

    alarm(SECONDS);
    cover_open(&c, (uint64_t)number("EK_TEST_SEED", 1));
    for (; cover_next(&c, &l); n++)
        if (wanted(n)) {
            if (number("EK_TEST_ONLY", -1) == n)
                fprintf(stderr, "%s\n", equal_text(&l));
            equal_check(&l);
        }
    CHECK_INT(c.n_left, 0);
    printf("%d layouts, %d factorisations\n", n, c.meshes);
}

/* Between all numbers of ranks. */
static void saved_by_one_loaded_by_another(void)
{
    alarm(SECONDS);
    for (int i = 0; i < PAIRS; i++)
        if (wanted(i))
            equal_check_drawn_pair((uint64_t)number("EK_TEST_SEED", 1), cover_sizes[i % 6],
                                   cover_sizes[i / 6 % 6], i);
}

static const ek_case cases[] = {
    EK_CASE(every_pair_of_choices),
    EK_CASE(saved_by_one_loaded_by_another),
};

EK_TEST_MAIN(cases)
