/* The commands of evenkeel: help, manual page, and the one that runs. */
#include "base/command_list.h"

#include "evenkeel/version.h"

#include "base/command.h"
#include "base/nearest.h"

#include <stdio.h>
#include <string.h>

static void usage(const ek_command_row *rows, size_t n, FILE *f)
{
    fprintf(f,
            "evenkeel %s - Mixture-of-Experts training and inference\n\n"
            "usage: evenkeel COMMAND [options]\n\n",
            EK_VERSION);
    for (size_t i = 0; i < n; i++)
        fprintf(f, "  %-10s %s\n", rows[i].name, rows[i].summary);
    fprintf(
        f, "\n`evenkeel COMMAND --help`, or `evenkeel help COMMAND`, lists a command's options.\n");
}

/* The manual page of the program; those of its commands are written by options_help.c. */
static void write_man(const ek_command_row *rows, size_t n, FILE *f)
{
    fprintf(f,
            ".TH EVENKEEL 1 \"\" \"evenkeel %s\" \"evenkeel manual\"\n"
            ".SH NAME\nevenkeel \\- Mixture-of-Experts training and inference\n"
            ".SH SYNOPSIS\n\\fBevenkeel\\fR \\fICOMMAND\\fR [\\fIoptions\\fR]\n"
            ".SH COMMANDS\n",
            EK_VERSION);
    for (size_t i = 0; i < n; i++)
        fprintf(f, ".TP\n\\fBevenkeel\\-%s\\fR(1)\n%s\n", rows[i].name, rows[i].summary);
}

/* Writes what an argument that is no command asks for; false: it asks for nothing. */
static int write_about(const ek_command_row *rows, size_t n, const char *asked)
{
    if (strcmp(asked, "--help") == 0 || strcmp(asked, "-h") == 0 || strcmp(asked, "help") == 0)
        usage(rows, n, stdout);
    else if (strcmp(asked, "--help=man") == 0)
        write_man(rows, n, stdout);
    else if (strcmp(asked, "--version") == 0)
        printf("evenkeel %s\n", EK_VERSION);
    else if (strcmp(asked, "--help=commands") == 0)
        for (size_t i = 0; i < n; i++)
            printf("%s\n", rows[i].name);
    else
        return 0;
    return 1;
}

int ek_command_flush(int status)
{
    if ((fflush(stdout) != 0 || ferror(stdout)) && status == EK_EXIT_DONE) {
        fprintf(ek_command_err(), "evenkeel: cannot write to standard output\n");
        return EK_EXIT_FAILED;
    }
    return status;
}

int ek_command_list_run(const ek_command_row *rows, size_t n, int argc, char **argv)
{
    if (argc < 2) {
        usage(rows, n, ek_command_err());
        return EK_EXIT_USAGE;
    }
    ek_command_ask_for_help(argc, argv);
    if (write_about(rows, n, argv[1]))
        return ek_command_flush(EK_EXIT_DONE);
    for (size_t i = 0; i < n; i++)
        if (strcmp(argv[1], rows[i].name) == 0) {
            ek_command_catch(ek_command_end_at_once);
            return ek_command_flush(rows[i].run(argc - 1, argv + 1));
        }
    (void)EK_FAIL(EK_EINVAL, "unknown command %s; the nearest is %s", argv[1],
                  ek_spelling_nearest(argv[1], rows, n, sizeof(rows[0])));
    fprintf(ek_command_err(), "evenkeel: %s\n", ek_err_message());
    usage(rows, n, ek_command_err());
    return EK_EXIT_USAGE;
}
