/* Agreement on failures: the status and message that each rank gets. */
#include "comm/agree.h"
#include "comm_threads.h"
#include "ek_test.h"

/* Of three ranks, those from 1 on fail, with this status. */
static ek_status meet(const peer *p, ek_status st)
{
    ek_status mine = p->rank > 0 ? EK_FAIL(st, "words of rank %d", p->rank) : EK_OK;

    return ek_agree(p->world, "do it", mine);
}

static void all_well(peer *p)
{
    EXPECT(p, ek_agree(p->world, "do it", EK_OK) == EK_OK);
}

static void some_fail(peer *p)
{
    ek_status st = meet(p, EK_ENOSPC);

    /* rank 1 has it to report; the words of rank 2 are nobody's */
    EXPECT(p, st == (p->rank == 1 ? EK_ENOSPC : EK_EPEER));
    EXPECT(p, p->rank != 1 || strcmp(ek_err_message(), "words of rank 1") == 0);
    EXPECT(p, p->rank == 1 || (strstr(ek_err_message(), "rank 1 (") == ek_err_message() &&
                               strstr(ek_err_message(), "could not do it: words of rank 1")));
    EXPECT(p, ek_comm_barrier(p->world) == EK_OK); /* the world is whole */
}

/* Rank 0 has learned of the failure before the others agree with it again. */
static void some_fail_within(peer *p)
{
    ek_status st = ek_agree(p->world, "do both", meet(p, EK_ENOSPC));

    EXPECT(p, st == (p->rank == 1 ? EK_ENOSPC : EK_EPEER));
    EXPECT(p, p->rank != 1 || strcmp(ek_err_message(), "words of rank 1") == 0);
    EXPECT(p, p->rank == 1 || strstr(ek_err_message(), "could not do both: words of rank 1"));
    EXPECT(p, ek_agree(p->world, "do it", EK_FAIL(EK_EPEER, "all")) == EK_EPEER);
    EXPECT(p, ek_comm_barrier(p->world) == EK_OK);
}

static void some_are_interrupted(peer *p)
{
    EXPECT(p, meet(p, EK_ECANCELED) == EK_ECANCELED);
    EXPECT(p, strcmp(ek_err_message(), "words of rank 1") == 0);
}

static void agree(void)
{
    ek_t.failed += over(3, NULL, all_well, 0);
    ek_t.failed += over(3, NULL, some_fail, 0);
    ek_t.failed += over(3, NULL, some_fail_within, 0);
    ek_t.failed += over(3, NULL, some_are_interrupted, 0);
}

static void alone(void)
{
    CHECK(ek_agree(NULL, "do it", EK_OK) == EK_OK);
    CHECK(ek_agree(NULL, "do it", EK_FAIL(EK_EIO, "why")) == EK_EIO);
    CHECK(strcmp(ek_err_message(), "why") == 0);
}

static const ek_case cases[] = {EK_CASE(agree), EK_CASE(alone)};

EK_TEST_MAIN(cases)
