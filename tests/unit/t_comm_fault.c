/* Delayed messages change no result, dropped ones are named in errors, kills follow the seed. */
#include "comm/fault.h"
#include "comm_threads.h"
#include "ek_test.h"

static void set_unchecked(peer *p)
{
    ek_comm_set_checked(p->world, 0);
}

static void delayed(peer *p)
{
    ek_fault how = {.seed = 11, .delay = 0.3, .delay_tests = 40};

    MUST(p, ek_fault_wrap(p->world, &how));
}

static void delays(void)
{
    for (int ranks = 1; ranks <= 5; ranks++)
        ek_t.failed += over_cases(ranks, delayed);
}

static void delayed_splits(peer *p)
{
    ek_fault how = {.seed = 12, .delay = 0.02, .delay_tests = 10};

    MUST(p, ek_fault_wrap(p->world, &how));
    ek_comm_set_message_max(p->world, 1600);
}

static void delays_of_split_messages(void)
{
    ek_t.failed += over_cases(3, delayed_splits);
}

/* Rank 1 is ready to receive before rank 0 sends, so without a delay one test would do. */
static void check_delay(peer *p)
{
    ek_fault how = {.seed = 1, .delay = p->rank == 0 ? 1 : 0, .delay_tests = 1000};
    int64_t value = p->rank == 0 ? 5 : 0;
    char ready[1] = "";
    ek_coll *message = NULL;
    int tests = 0;

    MUST(p, ek_fault_wrap(p->world, &how));
    if (p->rank == 1) {
        MUST(p, ek_comm_recv(p->world, &value, 8, 0, 1, &message));
        DO(p, ek_comm_send(p->world, ready, 1, 0, 2, &op));
        MUST(p, ek_coll_wait(&message));
        EXPECT(p, value == 5);
        return;
    }
    DO(p, ek_comm_recv(p->world, ready, 1, 1, 2, &op));
    MUST(p, ek_comm_send(p->world, &value, 8, 1, 1, &message));
    while (message != NULL) {
        EXPECT(p, ek_coll_test(&message) >= 0);
        tests++;
    }
    EXPECT(p, tests > 10 && tests < 1010);
}

static void delay_is_real(void)
{
    ek_t.failed += over(2, NULL, check_delay, 0);
}

/* All messages of rank 0 in a group are dropped: the error of rank 1 names peer and group. */
static void all_dropped(peer *p)
{
    ek_fault how = {.seed = 1, .drop = p->rank == 0 ? 1 : 0};
    ek_coll *op = NULL;
    ek_comm *c = NULL;
    char text[256];
    int64_t one = 1;
    int ranks[2] = {0, 1};

    ek_comm_set_checked(p->world, (int)p->seed);
    MUST(p, ek_fault_wrap(p->world, &how));
    MUST(p, ek_comm_group(p->world, "stage", ranks, 2, &c));
    MUST(p, ek_comm_all_reduce_at(c, &one, 1, EK_SUM_I64, &op, "moe/somewhere.c:5"));
    for (int i = 0; i < 200 && op != NULL; i++) {
        EXPECT(p, ek_coll_test(&op) >= 0);
        sched_yield();
    }
    if (p->rank == 1) {
        EXPECT(p, op != NULL);
        ek_coll_describe(op, text, sizeof(text));
        EXPECT(p, strstr(text, "all_reduce on stage: rank 1 of 2 waits for rank 0 (") == text);
        EXPECT(p, strstr(text, ek_comm_host(c, 0)) != NULL);
        EXPECT(p, strstr(text, "moe/somewhere.c:5") != NULL);
    }
    ek_comm_close(&c);
}

static void drops(void)
{
    ek_t.failed += over(2, NULL, all_dropped, 0);
    ek_t.failed += over(2, NULL, all_dropped, 1);
}

enum { MESSAGES = 400 };

/* The messages at which a rank was killed, by run and rank. */
typedef struct {
    int n, at[MESSAGES];
    int message;
} kill_list;

static kill_list lists[3][2];

static void record_kill(void *arg)
{
    kill_list *l = arg;

    l->at[l->n++] = l->message;
}

/* Runs 0 and 1 have one seed, run 2 another. */
static void kill_some(peer *p)
{
    kill_list *l = &lists[p->seed][p->rank];
    ek_fault how = {.seed = p->seed / 2, .kill = 0.1, .on_kill = record_kill, .arg = l};

    MUST(p, ek_fault_wrap(p->world, &how));
    for (l->message = 0; l->message < MESSAGES; l->message++) {
        int64_t one = 1;

        DO(p, ek_comm_all_reduce(p->world, &one, 1, EK_SUM_I64, &op));
        EXPECT(p, one == 2);
    }
    EXPECT(p, l->n > MESSAGES / 20 && l->n < MESSAGES / 5);
}

static void kills(void)
{
    for (uint64_t run = 0; run < 3; run++)
        ek_t.failed += over(2, set_unchecked, kill_some, run);
    CHECK(memcmp(&lists[0][0], &lists[1][0], sizeof(kill_list)) == 0);
    CHECK(memcmp(&lists[0][1], &lists[1][1], sizeof(kill_list)) == 0);
    CHECK(memcmp(&lists[0][0], &lists[2][0], sizeof(kill_list)) != 0);
    CHECK(memcmp(&lists[0][0], &lists[0][1], sizeof(kill_list)) != 0);
}

static const ek_case cases[] = {
    EK_CASE(delays), EK_CASE(delays_of_split_messages), EK_CASE(delay_is_real), EK_CASE(drops),
    EK_CASE(kills),
};

EK_TEST_MAIN(cases)
