/* A queue of bounds gives layouts in the order of sorting them, also with others added in between
 * (search/bound_queue.h). */
#include "base/random.h"
#include "ek_test.h"
#include "search/bound_queue.h"

enum { LAYOUTS = 200, VALUES = 40 };

/* Of few values, so that many are equal. */
static double bound_of(int64_t index)
{
    return (double)(ek_random_bits(1, 2, (uint64_t)index) % VALUES);
}

static int is_after(double bound, int64_t index, double other, int64_t other_index)
{
    return bound > other || (bound >= other && index > other_index);
}

static void layouts_come_by_their_bounds(void)
{
    ek_bound_queue q;
    double last = -1, bound;
    int64_t last_index = -1, n = 0;

    CHECK_INT(ek_bound_queue_open(&q, LAYOUTS), EK_OK);
    for (int64_t i = LAYOUTS - 1; i >= 0; i--)
        ek_bound_queue_add(&q, bound_of(i), i);
    for (; !ek_bound_queue_is_empty(&q); n++) {
        int64_t first = ek_bound_queue_first(&q, &bound), index = ek_bound_queue_take(&q);

        CHECK(index == first && bound == bound_of(index));
        CHECK(is_after(bound, index, last, last_index));
        last = bound;
        last_index = index;
    }
    CHECK_INT(n, LAYOUTS);
    ek_bound_queue_close(&q);
}

/* Each comes twice, the second time with twice its bound, as if it had been refined. */
static void what_is_added_again_comes_in_its_place(void)
{
    ek_bound_queue q;
    int again[LAYOUTS] = {0};
    double last = -1, bound;
    int64_t n = 0;

    CHECK_INT(ek_bound_queue_open(&q, LAYOUTS), EK_OK);
    for (int64_t i = 0; i < LAYOUTS; i++)
        ek_bound_queue_add(&q, 1 + bound_of(i), i);
    for (; !ek_bound_queue_is_empty(&q); n++) {
        int64_t index = ek_bound_queue_first(&q, &bound);

        CHECK_INT(ek_bound_queue_take(&q), index);
        CHECK(bound >= last && bound == (again[index] ? 2 : 1) * (1 + bound_of(index)));
        last = bound;
        if (!again[index])
            ek_bound_queue_add(&q, 2 * bound, index);
        again[index] = 1;
    }
    CHECK_INT(n, 2 * LAYOUTS);
    ek_bound_queue_close(&q);
}

static const ek_case cases[] = {
    EK_CASE(layouts_come_by_their_bounds),
    EK_CASE(what_is_added_again_comes_in_its_place),
};
EK_TEST_MAIN(cases)
