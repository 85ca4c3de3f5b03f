/* The adapter to mpiexec: the command line for each MPI, what its real output says about a worker's
 * death, and which of its lines say nothing. */
#include "evenkeel/job.h"

#include "ek_test.h"
#include "supervisor/mpiexec.h"

#include <stdlib.h>
#include <string.h>

static ek_worker_death death_of(const char *const *lines, size_t n)
{
    ek_worker_death d = {-1, -1, -1, -1, ""};

    for (size_t i = 0; i < n; i++)
        ek_mpiexec_read_death(lines[i], &d);
    return d;
}

static void mpich_names_the_process(void)
{
    static const char *const lines[] = {
        "=======================================================================",
        "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES",
        "=   PID 10124 RUNNING AT node3",
        "=   EXIT CODE: 9",
        "=   CLEANING UP REMAINING PROCESSES",
        "=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES",
        "=======================================================================",
        "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)",
        "This typically refers to a problem with your application.",
        "Please see the FAQ page for debugging suggestions",
    };
    ek_worker_death d = death_of(lines, sizeof(lines) / sizeof(lines[0]));

    CHECK(d.rank == -1 && d.pid == 10124 && d.code == 9 && d.signal == 9);
    CHECK(strcmp(d.host, "node3") == 0);
    CHECK(ek_mpiexec_begins_report(lines[0], strlen(lines[0])));
    CHECK(!ek_mpiexec_begins_report(lines[1], strlen(lines[1])));
    CHECK(!ek_mpiexec_begins_report("=====", 5));
}

static void mpich_names_a_status(void)
{
    static const char *const lines[] = {"=   PID 77 RUNNING AT a", "=   EXIT CODE: 3"};
    ek_worker_death d = death_of(lines, 2);

    CHECK(d.pid == 77 && d.code == 3 && d.signal == -1);
}

static void open_mpi_names_the_rank(void)
{
    static const char *const killed[] = {"mpiexec noticed that process rank 1 with PID 0 on node "
                                         "node2 exited on signal 9 (Killed)."};
    static const char *const exited[] = {"  Process name: [[19330,1],2]", "  Exit code:    23"};
    ek_worker_death d = death_of(killed, 1);

    CHECK(d.rank == 1 && d.signal == 9 && d.code == -1 && d.pid == -1);
    CHECK(strcmp(d.host, "node2") == 0);
    d = death_of(exited, 2);
    CHECK(d.rank == 2 && d.code == 23 && d.signal == -1 && d.host[0] == '\0');
}

static void other_lines_name_nobody(void)
{
    static const char *const lines[] = {
        "",
        "PID 12 RUNNING AT node", /* not in a report */
        "=   PID x RUNNING AT node",
        "=   PID 12",
        "mpiexec noticed that process rank x with PID 0 on node a",
        "Process name: [[1,2]",
        "[proxy:0:0@a] HYD_pmcd_pmip_control_cmd_cb: assert (!closed) failed",
    };
    ek_worker_death d = death_of(lines, sizeof(lines) / sizeof(lines[0]));

    CHECK(d.rank == -1 && d.pid == -1 && d.code == -1 && d.signal == -1);
}

static void lines_have_a_kind(void)
{
    static const struct {
        const char *line;
        ek_mpiexec_line kind;
    } lines[] = {
        {"Primary job  terminated normally, but 1 process returned", EK_MPIEXEC_BOILERPLATE},
        {"a non-zero exit code. Per user-direction, the job has been aborted.",
         EK_MPIEXEC_BOILERPLATE},
        {"--------------------------------------------------------------------------",
         EK_MPIEXEC_BOILERPLATE},
        {"----------", EK_MPIEXEC_OTHER},
        {"[mpiexec@head] control_cb: unable to connect", EK_MPIEXEC_INTERNAL},
        {"[proxy:0:2@node3] launch_procs: unable to change wdir", EK_MPIEXEC_INTERNAL},
        {"[node3:123] an error", EK_MPIEXEC_OTHER},
        {"ssh: connect to host node3 port 22: No route to host", EK_MPIEXEC_OTHER},
        {"", EK_MPIEXEC_OTHER},
    };

    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
        CHECK_INT(ek_mpiexec_classify(lines[i].line), lines[i].kind);
}

static void errors_of_ucx(void)
{
    static const char ucx[] =
        "[1795318471.361091] [vm:7928 :0]   mm_posix.c:219  UCX  ERROR open() failed";
    static const char text[] = "the UCX  library";

    CHECK(ek_mpiexec_is_ucx_error(ucx, strlen(ucx)));
    CHECK(!ek_mpiexec_is_ucx_error(text, strlen(text)));
    CHECK(!ek_mpiexec_is_ucx_error("", 0) && !ek_mpiexec_is_ucx_error("[", 1));
}

static void ucx_names_the_process_that_it_lost(void)
{
    static const char line[] = "[1795790773.605079] [vm:2387 :0]        mm_posix.c:219  UCX  ERROR "
                               "  open(file_name=/proc/2388/fd/28 flags=0x0) failed: %s";
    ek_lost_peer c = {"", 0, 0};
    char text[256];

    snprintf(text, sizeof(text), line, "No such file or directory");
    CHECK(ek_mpiexec_read_lost_peer(text, &c));
    CHECK(strcmp(c.host, "vm") == 0 && c.pid == 2387 && c.lost == 2388);
    snprintf(text, sizeof(text), line, "Permission denied");
    CHECK(!ek_mpiexec_read_lost_peer(text, &c));
    CHECK(!ek_mpiexec_read_lost_peer("[1795790746.980153] [vm:1065 :0]         mm_sysv.c:57   UCX  "
                                     "ERROR   shmat(shmid=113016853) failed: Invalid argument",
                                     &c));
    CHECK(!ek_mpiexec_read_lost_peer("open(file_name=/proc/1/fd/2) failed: No such file", &c));
}

static int has_word(const ek_mpiexec_args *a, const char *word)
{
    for (size_t i = 0; i < a->n; i++)
        if (strcmp(a->argv[i], word) == 0)
            return (int)i;
    return -1;
}

/* mpiexec -n 3 OPTIONS WORDS PROGRAM ARGUMENTS */
static void command_line(void)
{
    char train[] = "train", step[] = "--steps", n[] = "5";
    char *argv[] = {train, step, n};
    ek_supervisor_config config = {
        .command = "train", .mpiexec_args = "  -ppn 2\t-x ", .argc = 3, .argv = argv};
    int open_mpi = strncmp(ek_job_library(), "Open MPI", 8) == 0;
    ek_mpiexec_args a;

    CHECK(ek_mpiexec_args_init(&config, "/opt/mpiexec", 3, "a:2,b:1", &a) == EK_OK);
    CHECK(strcmp(a.argv[0], "/opt/mpiexec") == 0 && strcmp(a.argv[1], "-n") == 0);
    CHECK(strcmp(a.argv[2], "3") == 0 && a.argv[a.n] == NULL);
    CHECK(has_word(&a, open_mpi ? "--host" : "-hosts") + 1 == has_word(&a, "a:2,b:1"));
    CHECK(has_word(&a, "-ppn") + 1 == has_word(&a, "2") && has_word(&a, "-x") > 0);
    CHECK(strcmp(a.argv[a.n - 3], "train") == 0 && strcmp(a.argv[a.n - 1], "5") == 0);
    CHECK(a.argv[a.n - 4][0] == '/'); /* this program */
    ek_mpiexec_args_fini(&a);
    config.mpiexec_args = NULL;
    CHECK(ek_mpiexec_args_init(&config, "mpiexec", 1, NULL, &a) == EK_OK);
    CHECK(has_word(&a, "-hosts") < 0 && has_word(&a, "--host") < 0);
    CHECK(has_word(&a, open_mpi ? "--bind-to" : "-bind-to") + 1 == has_word(&a, "none"));
    ek_mpiexec_args_fini(&a);
    config.mpiexec_args = "-bind-to core";
    CHECK(ek_mpiexec_args_init(&config, "mpiexec", 1, NULL, &a) == EK_OK);
    CHECK(has_word(&a, "none") < 0 && has_word(&a, "-bind-to") + 1 == has_word(&a, "core"));
    ek_mpiexec_args_fini(&a);
}

static const ek_case cases[] = {
    EK_CASE(mpich_names_the_process),
    EK_CASE(mpich_names_a_status),
    EK_CASE(open_mpi_names_the_rank),
    EK_CASE(other_lines_name_nobody),
    EK_CASE(lines_have_a_kind),
    EK_CASE(errors_of_ucx),
    EK_CASE(ucx_names_the_process_that_it_lost),
    EK_CASE(command_line),
};
EK_TEST_MAIN(cases)
