/* What is known about the workers of a job: by their messages, and by the reports of mpiexec and of
 * the connections to workers about the first death. */
#include "ek_test.h"
#include "supervisor/job_output.h"
#include "supervisor/job_state.h"

#include <string.h>

enum { RANKS = 3 };

typedef struct {
    ek_job_state s;
    ek_worker_watch watch;
} job;

static void begin(job *j)
{
    *j = (job){.watch = {.first = -1}};
    CHECK(ek_job_state_init(&j->s, RANKS) == EK_OK);
    j->s.watch = &j->watch;
}

static void read_message(job *j, const char *text)
{
    ek_worker_message m;

    CHECK(ek_message_read(text, strlen(text), &m));
    ek_job_state_handle(&j->s, &m);
}

/* All have joined: ranks 0 and 1 on a, rank 2 on b. */
static void begin_joined(job *j)
{
    begin(j);
    read_message(j, "rank 0 pid 100 host a");
    read_message(j, "rank 1 pid 101 host a");
    read_message(j, "rank 2 pid 102 host b");
}

/* Messages that were handed on. */
static void count_message(void *context, const ek_worker_message *m)
{
    int *heard = context;

    heard[m->kind]++;
}

static void workers_start_and_join(void)
{
    int heard[EK_MESSAGES] = {0};
    job j;

    begin(&j);
    j.s.on_message = (ek_message_listener){count_message, heard};
    read_message(&j, "start 1 pid 101 host x");
    read_message(&j, "rank 0 pid 100 host a"); /* without a start */
    CHECK(j.s.ready == 1 && j.s.workers[1].pid == 101 && !j.s.workers[1].joined);
    read_message(&j, "rank 1 pid 101 host y");
    read_message(&j, "rank 1 pid 101 host y");
    read_message(&j, "rank 2 pid 102 host z");
    CHECK(j.s.ready == 3 && strcmp(j.s.workers[1].host, "y") == 0);
    read_message(&j, "start 3 pid 9 host a"); /* there is no such rank */
    read_message(&j, "step 8 of 9");
    CHECK(heard[EK_MESSAGE_START] == 2 && heard[EK_MESSAGE_JOINED] == 4);
    CHECK(heard[EK_MESSAGE_STEP] == 1);
    ek_job_state_fini(&j.s);
}

static void failures_are_counted(void)
{
    job j;

    begin_joined(&j);
    read_message(&j, "failed 3 rank 2 lost");
    read_message(&j, "failed 1 rank 1");
    CHECK_INT(j.s.reported, 2);
    ek_job_state_fini(&j.s);
}

static void check_death(const job *j, const char *want)
{
    char text[512] = "";
    int known = ek_job_state_death(&j->s, text, sizeof(text));

    CHECK(known == (want != NULL));
    if (want != NULL && strcmp(text, want) != 0)
        EK_T_FAIL("\"%s\", expected \"%s\"", text, want);
}

static void a_death_by_mpich(void)
{
    job j;

    begin_joined(&j);
    check_death(&j, NULL);
    j.s.death = (ek_worker_death){.rank = -1, .pid = 102, .code = 9, .signal = 9, .host = "b"};
    check_death(&j, "rank 2 on b (process 102) was killed by signal 9 (Killed)");
    snprintf(j.s.death.host, sizeof(j.s.death.host), "%s", "b.cluster"); /* another name of it */
    check_death(&j, "rank 2 on b (process 102) was killed by signal 9 (Killed)");
    j.s.death.pid = 7;
    check_death(&j, "process 7 on b.cluster was killed by signal 9 (Killed)");
    ek_job_state_fini(&j.s);
}

static void a_death_by_open_mpi(void)
{
    job j;

    begin_joined(&j);
    j.s.death = (ek_worker_death){.rank = 1, .pid = -1, .code = 3, .signal = -1};
    check_death(&j, "rank 1 on a (process 101) exited without an error report (status 3)");
    j.s.death.rank = RANKS;
    check_death(&j, NULL);
    ek_job_state_fini(&j.s);
}

/* MPICH names one of those that it has killed: the first closed connection tells who died. */
static void a_death_by_connection(void)
{
    job j;

    begin_joined(&j);
    j.s.death = (ek_worker_death){.rank = -1, .pid = 101, .code = 9, .signal = 9, .host = "a"};
    j.watch.first = 0;
    j.watch.watched = 2;
    check_death(&j, "rank 0 on a (process 100) was killed by signal 9 (Killed)");
    j.s.death.pid = 102; /* on another host, whose workers are not watched */
    check_death(&j, "rank 2 on b (process 102) was killed by signal 9 (Killed)");
    j.watch.watched = RANKS;
    check_death(&j, "rank 0 on a (process 100) was killed by signal 9 (Killed)");
    j.watch.first = RANKS; /* there is no such rank */
    check_death(&j, "rank 2 on b (process 102) was killed by signal 9 (Killed)");
    ek_job_state_fini(&j.s);
}

/* UCX of process `by` says that process `lost` is gone. */
static void lose(job *j, int by, int lost)
{
    char line[256];
    ek_job_output t;

    CHECK(ek_job_output_init(&t, &j->s) == EK_OK);
    snprintf(line, sizeof(line),
             "[1795790773.605079] [a:%d :0]        mm_posix.c:219  UCX  ERROR   "
             "open(file_name=/proc/%d/fd/28 flags=0x0) failed: No such file or directory",
             by, lost);
    ek_job_output_stdout(&t, line, strlen(line));
    ek_job_output_fini(&t);
}

/* Rank 1 dies; rank 0, which cannot connect to it any more, ends first. */
static void a_death_that_another_worker_noticed(void)
{
    job j;

    begin_joined(&j);
    j.s.death = (ek_worker_death){.rank = -1, .pid = 100, .code = 9, .signal = 9, .host = "a"};
    j.watch.first = 0;
    j.watch.watched = RANKS;
    check_death(&j, "rank 0 on a (process 100) was killed by signal 9 (Killed)");
    lose(&j, 100, 101);
    check_death(&j, "rank 1 on a (process 101) was killed by signal 9 (Killed)");
    j.s.death = (ek_worker_death){.rank = -1, .pid = 100, .code = 15, .signal = -1, .host = "a"};
    check_death(&j, "rank 1 on a (process 101) exited without an error report, unnoticed by "
                    "mpiexec,");
    j.s.death = (ek_worker_death){-1, -1, -1, -1, ""};
    j.s.death_unseen = 1;
    check_death(&j, "rank 1 on a (process 101) exited without an error report, unnoticed by "
                    "mpiexec,");
    j.watch.first = -1; /* no worker has ended yet when mpiexec has */
    check_death(&j, "rank 1 on a (process 101) exited without an error report, unnoticed by "
                    "mpiexec,");
    lose(&j, 101, 100); /* a circle: the first that reported */
    CHECK_INT(j.s.lost_reports, 2);
    check_death(&j, "rank 0 on a (process 100) exited without an error report, unnoticed by "
                    "mpiexec,");
    ek_job_state_fini(&j.s);
}

/* ssh ends the lines of its errors with "\r\n". */
static void a_line_of_another_program(void)
{
    static const char line[] = "ssh: no such host\r";
    ek_job_output t;
    job j;

    begin(&j);
    CHECK(ek_job_output_init(&t, &j.s) == EK_OK);
    ek_job_output_stderr(&t, line, strlen(line));
    CHECK_INT(t.held_bytes, strlen(line));
    CHECK(memcmp(t.held, "ssh: no such host\n", t.held_bytes) == 0);
    ek_job_output_drop(&t);
    ek_job_output_fini(&t);
    ek_job_state_fini(&j.s);
}

/* Rank 1 dies first; rank 0 then loses rank 2, which mpiexec kills. */
static void a_death_before_others_are_lost(void)
{
    job j;

    begin_joined(&j);
    j.s.death = (ek_worker_death){.rank = -1, .pid = 102, .code = 9, .signal = 9, .host = "b"};
    j.watch.first = 1;
    j.watch.watched = RANKS;
    lose(&j, 100, 102);
    check_death(&j, "rank 1 on a (process 101) was killed by signal 9 (Killed)");
    lose(&j, 7, 101); /* no worker */
    CHECK_INT(j.s.lost_reports, 1);
    lose(&j, 101, 102); /* a process of another host has this number */
    check_death(&j, "rank 1 on a (process 101) was killed by signal 9 (Killed)");
    ek_job_state_fini(&j.s);
}

static void a_death_that_mpiexec_did_not_see(void)
{
    job j;

    begin_joined(&j);
    j.watch.first = 1;
    j.watch.watched = RANKS;
    check_death(&j, NULL);
    j.s.death_unseen = 1;
    check_death(&j, "rank 1 on a (process 101) exited without an error report, unnoticed by "
                    "mpiexec,");
    j.s.mpiexec_status = 0; /* says nothing */
    check_death(&j, "rank 1 on a (process 101) exited without an error report, unnoticed by "
                    "mpiexec,");
    j.s.mpiexec_status = 11;
    check_death(&j, "rank 1 on a (process 101) exited without an error report, unnoticed by "
                    "mpiexec (status 11),");
    ek_job_state_fini(&j.s);
}

static const ek_case cases[] = {
    EK_CASE(workers_start_and_join),
    EK_CASE(failures_are_counted),
    EK_CASE(a_death_by_mpich),
    EK_CASE(a_death_by_open_mpi),
    EK_CASE(a_death_by_connection),
    EK_CASE(a_death_that_another_worker_noticed),
    EK_CASE(a_line_of_another_program),
    EK_CASE(a_death_before_others_are_lost),
    EK_CASE(a_death_that_mpiexec_did_not_see),
};
EK_TEST_MAIN(cases)
