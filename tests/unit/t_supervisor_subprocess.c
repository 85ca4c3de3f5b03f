/* Auxiliary commands: how they end is reported; an mpiexec whose remote launchers have all failed
 * is detected soon, and one whose launchers have succeeded is not mistaken for it; time in which
 * this process was stalled does not count. */
#include "base/clock.h"
#include "ek_test.h"
#include "supervisor/subprocess.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static void nap(double s)
{
    const struct timespec t = {(time_t)s, (long)((s - (double)(time_t)s) * 1e9)};

    nanosleep(&t, NULL);
}

static void begin(ek_subprocess *e, const char *script, int keep, double seconds)
{
    char shell[] = "/bin/sh", c[] = "-c", text[128];
    char *argv[] = {shell, c, text, NULL};

    snprintf(text, sizeof(text), "%s", script);
    CHECK(ek_subprocess_begin(e, argv, keep, seconds) == EK_OK);
}

static int end_of(ek_subprocess *e)
{
    int status;

    while ((status = ek_subprocess_poll(e)) == EK_SUBPROCESS_RUNNING)
        nap(0.002);
    CHECK(e->pid == 0);
    return status;
}

static int run(const char *script, double seconds, double *took)
{
    ek_subprocess e;
    int status;

    begin(&e, script, 0, seconds);
    status = end_of(&e);
    *took = e.took;
    ek_subprocess_end(&e);
    return status;
}

static void ends(void)
{
    double took;

    CHECK(run("exit 0", 60, &took) == 0);
    CHECK(took >= 0 && took < 60);
    CHECK(run("exit 7", 60, &took) == 7);
    CHECK(run("kill -9 $$", 60, &took) == EK_SUBPROCESS_KILLED);
    CHECK(run("exec sleep 3600", 0.3, &took) == EK_SUBPROCESS_LATE);
    CHECK(took >= 0.3 && took < 60);
}

/* exec: the shell's child becomes a child of sleep, which, like mpiexec, does not reap it. */
static void launchers(void)
{
    double took;

    CHECK(run("(exit 255) & exec sleep 3600", 60, &took) == EK_SUBPROCESS_STUCK);
    CHECK(run("sh -c 'kill -9 $$' & exec sleep 3600", 60, &took) == EK_SUBPROCESS_STUCK);
    CHECK(run("(exit 0) & exec sleep 0.5", 60, &took) == 0);
    CHECK(run("(exit 255) & sleep 3600 & exec sleep 0.3", 60, &took) == 0);
}

/* MPICH's mpiexec forwards EOF of its stdin, and fails if its worker has just ended. */
static void stdin_stays_open(void)
{
    double took;

    CHECK(run("timeout 0.3 cat; test $? = 124", 60, &took) == 0);
}

static void said(void)
{
    ek_subprocess e;
    char *said;

    begin(&e, "cat; (exit 255) & echo a b; exec sleep 0.3", 1, 60); /* has no stdin */
    CHECK(end_of(&e) == 0);
    said = ek_subprocess_output(&e);
    CHECK(said != NULL && strcmp(said, "a b\n") == 0);
    free(said);
    ek_subprocess_end(&e);
}

/* No poll for longer than the command's time limit. */
static void stall(void)
{
    ek_subprocess e;

    begin(&e, "exec sleep 3600", 0, 1.0);
    nap(1.5);
    CHECK(ek_subprocess_poll(&e) == EK_SUBPROCESS_RUNNING);
    CHECK(end_of(&e) == EK_SUBPROCESS_LATE);
    CHECK(e.took >= 1.0 && e.took < 2.0);
    ek_subprocess_end(&e);
}

static const ek_case cases[] = {
    EK_CASE(ends), EK_CASE(launchers), EK_CASE(stdin_stays_open), EK_CASE(said), EK_CASE(stall),
};
EK_TEST_MAIN(cases)
