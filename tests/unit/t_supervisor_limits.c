/* Limits on processes and threads of this host: which of them a message names, and what it allows.
 */
#include "base/threads.h"
#include "ek_test.h"
#include "supervisor/limits.h"

#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { NOBODY = 65534 };

static void check_refused(ek_status st, const char *message)
{
    if (st != EK_EINVAL || strcmp(ek_err_message(), message) != 0)
        EK_T_FAIL("status %d, %s, expected %s", (int)st, ek_err_message(), message);
}

static void one_rank_with_one_thread_is_within_all_limits(void)
{
    CHECK(ek_limits_check_ranks(1) == EK_OK);
    CHECK(ek_limits_check_threads(1, 1) == EK_OK);
    CHECK(ek_limits_check_threads(0, 1000000) == EK_OK); /* their share of the cores */
}

static void ranks_are_limited_by_cores(void)
{
    long long most = 64LL * ek_cores_usable();
    char message[256];

    snprintf(message, sizeof(message),
             "%lld ranks are too many for this host: 64 processes a core allows %lld; reduce "
             "--ranks, or add hosts (--hosts)",
             most + 1, most);
    check_refused(ek_limits_check_ranks(most + 1), message);
}

static void threads_are_limited_by_cores(void)
{
    long long most = 64LL * ek_cores_usable();
    char message[256];

    snprintf(message, sizeof(message),
             "--threads %lld is too many for this host: 64 threads a core allows %lld", most + 1,
             most);
    check_refused(ek_limits_check_threads(most + 1, 1), message);
    snprintf(message, sizeof(message),
             "--threads %lld is too many for this host: 64 threads a core allows %lld for each of "
             "its ranks",
             most / 2 + 1, most / 2);
    check_refused(ek_limits_check_threads(most / 2 + 1, 2), message);
}

/* The user's limit, which does not apply to root. */
static void ranks_and_threads_are_limited_by_the_limit_of_the_user(void)
{
    struct rlimit before, low;
    int is_root = geteuid() == 0;

    if (getrlimit(RLIMIT_NPROC, &before) != 0 || before.rlim_max < 42)
        SKIP("the user's limit on processes cannot be set");
    low = (struct rlimit){.rlim_cur = 42, .rlim_max = before.rlim_max};
    CHECK(setrlimit(RLIMIT_NPROC, &low) == 0);
    if (is_root) {
        CHECK(ek_limits_check_ranks(11) == EK_OK);
        CHECK(seteuid(NOBODY) == 0);
    }
    CHECK(ek_limits_check_ranks(10) == EK_OK);
    check_refused(ek_limits_check_ranks(11),
                  "11 ranks are too many for this host: the user's limit on processes (ulimit -u) "
                  "allows 10; reduce --ranks, or add hosts (--hosts)");
    CHECK(ek_limits_check_threads(42, 1) == EK_OK);
    check_refused(ek_limits_check_threads(43, 1),
                  "--threads 43 is too many for this host: the user's limit on threads (ulimit -u) "
                  "allows 42");
    check_refused(ek_limits_check_threads(15, 3),
                  "--threads 15 is too many for this host: the user's limit on threads (ulimit -u) "
                  "allows 14 for each of its ranks");
    CHECK(!is_root || seteuid(0) == 0);
    CHECK(setrlimit(RLIMIT_NPROC, &before) == 0);
}

static const ek_case cases[] = {
    EK_CASE(one_rank_with_one_thread_is_within_all_limits),
    EK_CASE(ranks_are_limited_by_cores),
    EK_CASE(threads_are_limited_by_cores),
    EK_CASE(ranks_and_threads_are_limited_by_the_limit_of_the_user),
};

EK_TEST_MAIN(cases)
