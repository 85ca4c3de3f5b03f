/* Shared by the subcommands: error messages, argument parsing, number formats. */
#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>

int cli_exit_status(ek_status st)
{
    switch (st) {
    case EK_EINVAL:
    case EK_EOVERFLOW: return CLI_USAGE;
    case EK_EUNSUPPORTED:
    case EK_EFORMAT:
    case EK_ENOENT:
    case EK_ECORRUPT: return CLI_BAD_INPUT;
    case EK_ECANCELED: return CLI_INTERRUPTED;
    default: return CLI_FAILED;
    }
}

static FILE *own_err;

FILE *cli_err(void)
{
    return own_err != NULL ? own_err : stderr;
}

void cli_set_err(FILE *f)
{
    own_err = f;
}

int cli_fail(const char *command, ek_status st)
{
    fprintf(cli_err(), "evenkeel %s: %s\n", command, ek_err_message());
    if (ek_status_class(st) == EK_CLASS_BUG)
        fprintf(cli_err(), "%s\nThis is a bug of evenkeel; please report it.\n", ek_err_text());
    return cli_exit_status(st);
}

int cli_parse(const ek_option_table *table, int argc, char **argv, ek_options **out)
{
    ek_status st = ek_options_parse(table, argc - 1, argv + 1, out);

    if (st < 0) {
        int status = cli_fail(table->command, st);

        fprintf(cli_err(), "Try `evenkeel %s --help`.\n", table->command);
        return status;
    }
    if (ek_options_help_wanted(*out)) {
        char *text = ek_options_help(table, ek_options_help_wanted(*out));

        if (text != NULL)
            fputs(text, stdout);
        free(text);
        ek_options_destroy(*out);
        return CLI_DONE;
    }
    return -1;
}

/* --- text formatting -------------------------------------------------------------------------- */

const char *cli_shown(cli_text *buf, const char *text)
{
    return ek_printable(buf->s, sizeof(buf->s), text);
}

const char *cli_count(char *buf, size_t cap, double n)
{
    static const char *const units[] = {"", " k", " M", " G", " T", " P"};
    size_t u = 0;

    while (n >= 1000 && u + 1 < sizeof(units) / sizeof(units[0])) {
        n /= 1000;
        u++;
    }
    snprintf(buf, cap,
             u == 0    ? "%.0f%s"
             : n < 10  ? "%.2f%s"
             : n < 100 ? "%.1f%s"
                       : "%.0f%s",
             n, units[u]);
    return buf;
}

const char *cli_duration(char *buf, size_t cap, double seconds)
{
    long s = (long)(seconds + 0.5);

    if (s >= 3600)
        snprintf(buf, cap, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(buf, cap, "%ld:%02ld", s / 60, s % 60);
    return buf;
}
