/* Computations in a child process: the result, a failure, a death, a stop. */
#include "base/command_child.h"
#include "ek_test.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

typedef struct {
    int64_t n;
    int64_t square[20000]; /* more than a pipe holds */
} squares;

static int64_t touched;

static ek_status compute_squares(const void *arg, void *result)
{
    squares *s = result;

    touched = 1;
    s->n = *(const int64_t *)arg;
    for (int64_t i = 0; i < s->n; i++)
        s->square[i] = i * i;
    return EK_OK;
}

static ek_status fail_with_words(const void *arg, void *result)
{
    (void)result;
    return EK_FAIL(EK_EFORMAT, "%s is no number", (const char *)arg);
}

static ek_status die_by_signal(const void *arg, void *result)
{
    (void)result;
    kill(getpid(), *(const int *)arg);
    return EK_OK;
}

static ek_status wait_for_long(const void *arg, void *result)
{
    (void)arg;
    (void)result;
    sleep(3600);
    return EK_OK;
}

static ek_status end_early(const void *arg, void *result)
{
    (void)arg;
    (void)result;
    _exit(3);
}

static int always(void)
{
    return 1;
}

/* Makes the next poll() fail. */
static int allow_no_files(void)
{
    struct rlimit limit;

    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = 0;
    setrlimit(RLIMIT_NOFILE, &limit);
    return 0;
}

static void ignore_it(int sig)
{
    (void)sig;
}

static void the_result_alone_comes_back(void)
{
    static squares s;
    int64_t n = 20000;

    CHECK_INT(ek_child_compute("squares", compute_squares, &n, &s, sizeof(s), NULL), EK_OK);
    CHECK_INT(s.n, n);
    CHECK_INT(s.square[n - 1], (n - 1) * (n - 1));
    CHECK_INT(touched, 0);
    CHECK_INT(waitpid(-1, NULL, WNOHANG), -1); /* there is no child any more */
}

static void a_failure_keeps_its_message(void)
{
    int result;

    CHECK_INT(ek_child_compute("it", fail_with_words, "x", &result, sizeof(result), NULL),
              EK_EFORMAT);
    CHECK(strcmp(ek_err_message(), "x is no number") == 0);
}

/* Though the parent handles the signal. */
static void a_signal_ends_the_child(void)
{
    static const int sigs[] = {SIGTERM, SIGKILL};
    int result;

    signal(SIGTERM, ignore_it);
    for (int i = 0; i < 2; i++) {
        CHECK_INT(
            ek_child_compute("the sum", die_by_signal, &sigs[i], &result, sizeof(result), NULL),
            EK_EIO);
        CHECK(strstr(ek_err_message(), "the sum: its process was killed (") != NULL);
    }
    signal(SIGTERM, SIG_DFL);
}

static void a_child_may_end_without_a_result(void)
{
    int result;

    CHECK_INT(ek_child_compute("it", end_early, NULL, &result, sizeof(result), NULL), EK_EIO);
    CHECK(strcmp(ek_err_message(), "it: its process ended without a result (status 3)") == 0);
}

static void what_cannot_be_read_is_a_failure(void)
{
    struct rlimit before;
    int result;

    getrlimit(RLIMIT_NOFILE, &before);
    CHECK_INT(ek_child_compute("it", wait_for_long, NULL, &result, sizeof(result), allow_no_files),
              EK_EIO);
    setrlimit(RLIMIT_NOFILE, &before);
    CHECK(strstr(ek_err_message(), "it: cannot read from its process: ") != NULL);
    CHECK_INT(waitpid(-1, NULL, WNOHANG), -1);
}

static void a_stop_kills_it(void)
{
    int result;

    CHECK_INT(ek_child_compute("it", wait_for_long, NULL, &result, sizeof(result), always),
              EK_ECANCELED);
    CHECK_INT(waitpid(-1, NULL, WNOHANG), -1);
}

static const ek_case cases[] = {
    EK_CASE(the_result_alone_comes_back),      EK_CASE(a_failure_keeps_its_message),
    EK_CASE(a_signal_ends_the_child),          EK_CASE(a_child_may_end_without_a_result),
    EK_CASE(what_cannot_be_read_is_a_failure), EK_CASE(a_stop_kills_it),
};

EK_TEST_MAIN(cases)
