/* The supervisor's decision core in thousands of random worlds (supervisor_world.h): what must
 * always hold, holds, and the worlds reach every state, action, report and reason to exit. */
#include "base/random.h"
#include "ek_test.h"
#include "supervisor_world.h"

enum { WORLDS = 20000, BYTES_LEAST = 20, BYTES_MAX = 600, SEED = 1 };

/* World i: a random number of random bytes. */
static size_t random_bytes(uint8_t bytes[BYTES_MAX], int i)
{
    size_t n = BYTES_LEAST + ek_random_bits(SEED, 0, (uint64_t)i) % (BYTES_MAX - BYTES_LEAST);

    for (size_t k = 0; k < n; k += sizeof(uint64_t)) {
        uint64_t bits = ek_random_bits(SEED, 1 + (uint64_t)i, k);

        memcpy(bytes + k, &bits, n - k < sizeof(bits) ? n - k : sizeof(bits));
    }
    return n;
}

static unsigned all_of(int kinds)
{
    return (1u << kinds) - 1;
}

static void worlds_of_random_bytes_hold_and_reach_everything(void)
{
    static world w, all;
    static uint8_t bytes[BYTES_MAX];
    int64_t generations = 0, steps = 0;

    for (int i = 0; i < WORLDS; i++) {
        if (!world_run(&w, bytes, random_bytes(bytes, i))) {
            EK_T_FAIL("world %d: %s", i, w.fault);
            return;
        }
        all.seen.state |= w.seen.state;
        all.seen.action |= w.seen.action;
        all.seen.task |= w.seen.task;
        all.seen.report |= w.seen.report;
        all.seen.exit |= w.seen.exit;
        generations += w.generations;
        steps += w.progress;
    }
    CHECK_INT(all.seen.state, all_of(EK_CORE_STATES));
    CHECK_INT(all.seen.action, all_of(EK_CORE_EXIT + 1));
    CHECK_INT(all.seen.task, all_of(EK_TASK_FREE + 1) & ~1u);
    CHECK_INT(all.seen.report, all_of(EK_REPORT_END + 1));
    CHECK_INT(all.seen.exit, all_of(EK_CORE_EXIT_INTERRUPTED + 1));
    CHECK(generations > WORLDS);
    CHECK(steps > WORLDS);
}

static const ek_case cases[] = {
    EK_CASE(worlds_of_random_bytes_hold_and_reach_everything),
};

EK_TEST_MAIN(cases)
