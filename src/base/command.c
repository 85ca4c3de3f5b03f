/* Exit statuses, messages and arguments of a command. */
#include "base/command.h"

#include <stdlib.h>
#include <string.h>

int ek_command_status(ek_status st)
{
    switch (st) {
    case EK_EINVAL:
    case EK_EOVERFLOW: return EK_EXIT_USAGE;
    case EK_EUNSUPPORTED:
    case EK_EFORMAT:
    case EK_ENOENT:
    case EK_ECORRUPT: return EK_EXIT_BAD_INPUT;
    case EK_ECANCELED: return EK_EXIT_INTERRUPTED;
    default: return EK_EXIT_FAILED;
    }
}

static FILE *own_err;

FILE *ek_command_err(void)
{
    return own_err != NULL ? own_err : stderr;
}

void ek_command_set_err(FILE *f)
{
    own_err = f;
}

int ek_command_fail(const char *command, ek_status st)
{
    fprintf(ek_command_err(), "evenkeel %s: %s\n", command, ek_err_message());
    if (ek_status_class(st) == EK_CLASS_BUG)
        fprintf(ek_command_err(), "%s\nThis is a bug of evenkeel; please report it.\n",
                ek_err_text());
    return ek_command_status(st);
}

int ek_command_parse(const ek_option_table *table, int argc, char **argv, ek_options **out)
{
    ek_status st = ek_options_parse(table, argc - 1, argv + 1, out);

    if (st < 0) {
        int status = ek_command_fail(table->command, st);

        fprintf(ek_command_err(), "Try `evenkeel %s --help`.\n", table->command);
        return status;
    }
    if (ek_options_help_wanted(*out)) {
        char *text =
            ek_options_help(table, ek_options_help_wanted(*out), ek_options_help_word(*out));

        if (text != NULL)
            fputs(text, stdout);
        free(text);
        ek_options_destroy(*out);
        return EK_EXIT_DONE;
    }
    return -1;
}

int ek_command_run(const ek_option_table *table, int argc, char **argv,
                   ek_status (*run)(const ek_options *o))
{
    ek_options *o = NULL;
    int status = ek_command_parse(table, argc, argv, &o);
    ek_status st;

    if (status >= 0)
        return status;
    st = run(o);
    ek_options_destroy(o);
    return st < 0 ? ek_command_fail(table->command, st) : EK_EXIT_DONE;
}

void ek_command_ask_for_help(int argc, char **argv)
{
    static char help[] = "--help";

    if (argc < 3 || strcmp(argv[1], "help") != 0)
        return;
    for (int i = 1; i < argc - 1; i++)
        argv[i] = argv[i + 1];
    argv[argc - 1] = help;
}
