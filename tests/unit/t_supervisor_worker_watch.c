/* The connections between a supervisor and the workers on its host: which worker died first. */
#include "base/clock.h"
#include "ek_test.h"
#include "supervisor/worker_link.h"
#include "supervisor/worker_watch.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 3, WAIT_MS = 300000 };

/* A forked worker: writes one byte to `said` once it is connected, and after it is told to leave.
 */
typedef struct {
    pid_t pid;
    int told, said;
} worker;

static void work(int rank, int told, int said)
{
    char c;

    ek_worker_link_join(rank);
    if (write(said, "", 1) == 1 && read(told, &c, 1) == 1) {
        ek_worker_link_leave();
        (void)!write(said, "", 1);
    }
    for (;;)
        pause();
}

static worker start(int rank)
{
    int told[2], said[2];
    worker w;

    CHECK(pipe(told) == 0 && pipe(said) == 0);
    w = (worker){fork(), told[1], said[0]};
    if (w.pid == 0) {
        close(told[1]);
        close(said[0]);
        work(rank, told[0], said[1]);
    }
    close(told[0]);
    close(said[1]);
    return w;
}

static int has_said(const worker *w, int ms)
{
    struct pollfd p = {.fd = w->said, .events = POLLIN};
    char c;

    return poll(&p, 1, ms) == 1 && read(w->said, &c, 1) == 1;
}

static void start_all(ek_worker_watch *watch, worker *w, int n)
{
    for (int r = 0; r < n; r++) {
        w[r] = start(r);
        for (int ms = 0; !has_said(&w[r], 1) && ms < WAIT_MS; ms++)
            ek_worker_watch_poll(watch);
        CHECK_INT(watch->watched, r + 1);
    }
}

static void leave(worker *w)
{
    CHECK(write(w->told, "", 1) == 1 && has_said(w, WAIT_MS));
}

static void kill_now(worker *w)
{
    CHECK(kill(w->pid, SIGKILL) == 0 && waitpid(w->pid, NULL, 0) == w->pid);
}

static void fini(ek_worker_watch *watch, worker *w, int n)
{
    for (int r = 0; r < n; r++) {
        kill(w[r].pid, SIGKILL); /* it may have ended already */
        waitpid(w[r].pid, NULL, 0);
        close(w[r].said);
        close(w[r].told);
    }
    ek_worker_watch_fini(watch);
}

static void a_worker_waits_until_it_is_known(void)
{
    ek_worker_watch watch;
    worker w;

    ek_worker_watch_init(&watch);
    w = start(0);
    CHECK(!has_said(&w, 100));
    for (int ms = 0; watch.watched == 0 && ms < WAIT_MS; ms++) {
        ek_worker_watch_poll(&watch);
        ek_clock_sleep_ms(1);
    }
    CHECK(has_said(&w, WAIT_MS));
    fini(&watch, &w, 1);
}

/* Another process may listen there under the same name. */
static void a_worker_on_another_machine_does_not_connect(void)
{
    ek_worker_link_address at;
    ek_worker_watch watch;
    worker w;

    ek_worker_watch_init(&watch);
    at = ek_worker_link_read(getenv(EK_WORKER_LINK_NAME), getenv(EK_WORKER_LINK_MACHINE));
    at.machine[0] = at.machine[0] == '0' ? '1' : '0';
    CHECK(ek_worker_link_set(&at) == EK_OK);
    w = start(0);
    CHECK(has_said(&w, WAIT_MS));
    ek_worker_watch_poll(&watch);
    CHECK_INT(watch.n, 0);
    fini(&watch, &w, 1);
}

static void a_worker_dies_with_its_supervisor(void)
{
    ek_worker_watch watch;
    int status = 0;
    worker w[1];

    ek_worker_watch_init(&watch);
    start_all(&watch, w, 1);
    ek_worker_watch_fini(&watch);
    CHECK(waitpid(w->pid, &status, 0) == w->pid && WIFSIGNALED(status));
    close(w->said);
    close(w->told);
}

static void the_first_death_is_found_though_all_are_dead_at_the_look(void)
{
    static const int order[][RANKS] = {{1, 0, 2}, {2, 1, 0}, {0, 2, 1}};

    for (int i = 0; i < 3; i++) {
        ek_worker_watch watch;
        worker w[RANKS];

        ek_worker_watch_init(&watch);
        start_all(&watch, w, RANKS);
        for (int k = 0; k < RANKS; k++)
            kill_now(&w[order[i][k]]);
        ek_worker_watch_poll(&watch);
        CHECK_INT(watch.first, order[i][0]);
        CHECK_INT(watch.ended, RANKS);
        fini(&watch, w, RANKS);
    }
}

static void a_death_after_an_announced_exit_is_none(void)
{
    ek_worker_watch watch;
    worker w[RANKS];

    ek_worker_watch_init(&watch);
    start_all(&watch, w, RANKS);
    leave(&w[1]);
    kill_now(&w[1]);
    for (int i = 0; i < 2; i++) /* the word, then the end */
        ek_worker_watch_poll(&watch);
    CHECK(watch.first == -1 && watch.ended == 1);
    kill_now(&w[2]);
    ek_worker_watch_poll(&watch);
    CHECK(watch.first == 2 && watch.ended == 2);
    fini(&watch, w, RANKS);
}

static const ek_case cases[] = {
    EK_CASE(a_worker_waits_until_it_is_known),
    EK_CASE(a_worker_on_another_machine_does_not_connect),
    EK_CASE(a_worker_dies_with_its_supervisor),
    EK_CASE(the_first_death_is_found_though_all_are_dead_at_the_look),
    EK_CASE(a_death_after_an_announced_exit_is_none),
};
EK_TEST_MAIN(cases)
