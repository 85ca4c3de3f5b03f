/* evenkeel: selects and runs the subcommand. */
#include "evenkeel/version.h"

#include "base/nearest.h"
#include "base/threads.h"
#include "cli/cli.h"
#include "supervisor/internal_command.h"
#include "supervisor/worker.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

typedef struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
} command;

static const command commands[] = {
    {"train", cli_train, "train a model on text or token files"},
    {"eval", cli_eval, "compute loss and perplexity of a model"},
    {"generate", cli_generate, "generate text from a prompt"},
    {"export", cli_export, "export a checkpoint as a Hugging Face folder"},
    {"check", cli_check, "verify a checkpoint and describe it"},
    {"clean", cli_clean, "list or remove shared memory left by train --elastic"},
    {"plan", cli_plan, "replay a routing trace through a planner"},
    {"simulate", cli_simulate, "predict the step time of a layout on a cluster"},
    {"search", cli_search, "find the layout with the shortest step on a cluster"},
    {"workload", cli_workload, "generate a synthetic routing trace"},
    {"fit", cli_fit, "show which memory a model needs, and what fits"},
    {"bench", cli_bench, "measure evenkeel and the limits of this machine"},
    {"info", cli_info, "show build, CPU features and kernels"},
};

static void usage(FILE *f)
{
    fprintf(f,
            "evenkeel %s - Mixture-of-Experts training and inference\n\n"
            "usage: evenkeel COMMAND [options]\n\n",
            EK_VERSION);
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        fprintf(f, "  %-10s %s\n", commands[i].name, commands[i].summary);
    fprintf(
        f, "\n`evenkeel COMMAND --help`, or `evenkeel help COMMAND`, lists a command's options.\n");
}

/* The manual page of the program; those of its commands are written by base/options_help.c. */
static void write_man(FILE *f)
{
    fprintf(f,
            ".TH EVENKEEL 1 \"\" \"evenkeel %s\" \"evenkeel manual\"\n"
            ".SH NAME\nevenkeel \\- Mixture-of-Experts training and inference\n"
            ".SH SYNOPSIS\n\\fBevenkeel\\fR \\fICOMMAND\\fR [\\fIoptions\\fR]\n"
            ".SH COMMANDS\n",
            EK_VERSION);
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        fprintf(f, ".TP\n\\fBevenkeel\\-%s\\fR(1)\n%s\n", commands[i].name, commands[i].summary);
}

/* For shell completion. */
static void write_commands(FILE *f)
{
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        fprintf(f, "%s\n", commands[i].name);
}

/* Re-executes this program with the same arguments; returns only on failure.  argv[0] is kept. */
static void reexecute_self(char **argv)
{
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

    if (n <= 0)
        return;
    self[n] = '\0';
    execv(self, argv);
}

/* Idle OpenMP threads spin for milliseconds by default, which on shared cores costs far more than
 * the wake-up it saves; where several ranks share the cores, any spinning slows the others.  The
 * OpenMP runtime reads its settings when it is loaded, so the program re-executes itself with new
 * ones, before MPI is loaded and with the environment of the MPI launcher.  Settings of the user
 * are kept; the value for a single process is replaced, as it may be inherited from our own
 * launcher. */
static void set_openmp_defaults(char **argv)
{
    static const char spins_alone[] = "10001";
    const char *set = getenv("GOMP_SPINCOUNT");
    const char *spins = ek_worker_has_peers() ? "0" : spins_alone;

    if (set != NULL && (strcmp(set, spins_alone) != 0 || strcmp(set, spins) == 0))
        return;
    if (getenv("OMP_WAIT_POLICY") != NULL)
        return;
    if (setenv("GOMP_SPINCOUNT", spins, 1) == 0)
        reexecute_self(argv); /* on failure: continue with the defaults */
}

/* Raises a soft stack limit that is too small and re-executes, since the stack size of the main
 * thread and the default of others are fixed at program start.  Returns false if the hard limit is
 * too small. */
static int ensure_stack(char **argv)
{
    enum { WANTED = 8 << 20 };
    struct rlimit l, more;

    if (getrlimit(RLIMIT_STACK, &l) != 0 || l.rlim_cur >= 2 * EK_STACK_BYTES)
        return 1;
    if (l.rlim_max >= 2 * EK_STACK_BYTES) {
        more = l;
        more.rlim_cur = l.rlim_max < WANTED ? l.rlim_max : WANTED;
        if (setrlimit(RLIMIT_STACK, &more) == 0)
            reexecute_self(argv);
    }
    fprintf(stderr,
            "evenkeel: the stack limit is %llu KiB, and at least %d KiB are needed: raise it with "
            "ulimit -s 8192\n",
            (unsigned long long)l.rlim_cur >> 10, 2 * EK_STACK_BYTES >> 10);
    return 0;
}

/* Flushes stdout; a full disk or a closed pipe turns success into EK_EXIT_FAILED. */
static int finish(int status)
{
    if ((fflush(stdout) != 0 || ferror(stdout)) && status == EK_EXIT_DONE) {
        fprintf(stderr, "evenkeel: cannot write to standard output\n");
        return EK_EXIT_FAILED;
    }
    return status;
}

int main(int argc, char **argv)
{
    ek_spelling search = {0};
    cli_text name;
    int status;

    if (!ensure_stack(argv))
        return EK_EXIT_FAILED;
    set_openmp_defaults(argv);
    signal(SIGPIPE, SIG_IGN); /* a closed pipe is a failed write, not a fatal signal */
    signal(SIGXFSZ, SIG_IGN); /* so is exceeding the file size limit */
    if (argc < 2) {
        usage(stderr);
        return EK_EXIT_USAGE;
    }
    ek_command_ask_for_help(argc, argv);
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        usage(stdout);
        return finish(EK_EXIT_DONE);
    }
    if (strcmp(argv[1], "--help=man") == 0) {
        write_man(stdout);
        return finish(EK_EXIT_DONE);
    }
    if (strcmp(argv[1], "--help=commands") == 0) {
        write_commands(stdout);
        return finish(EK_EXIT_DONE);
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("evenkeel %s\n", EK_VERSION);
        return finish(EK_EXIT_DONE);
    }
    if (ek_internal_command(argc, argv, &status))
        return finish(status);
    search.name = argv[1], search.n = strlen(argv[1]);
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        if (strcmp(argv[1], commands[i].name) == 0) {
            ek_command_catch(ek_command_end_at_once);
            return finish(commands[i].run(argc - 1, argv + 1));
        }
        ek_spelling_try(&search, commands[i].name);
    }
    fprintf(stderr, "evenkeel: unknown command %s; the nearest is %s\n", cli_shown(&name, argv[1]),
            search.best);
    usage(stderr);
    return EK_EXIT_USAGE;
}
