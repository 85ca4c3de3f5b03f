/* SIGINT, SIGTERM and SIGHUP: what asks a command to end. */
#include "cli/cli.h"

#include <signal.h>
#include <unistd.h>

static volatile sig_atomic_t asked;

int cli_ignores_hangup(void)
{
    struct sigaction now;

    return sigaction(SIGHUP, NULL, &now) == 0 && now.sa_handler == SIG_IGN;
}

void cli_catch(void (*stop)(int sig))
{
    struct sigaction caught = {.sa_handler = stop, .sa_flags = SA_RESTART};

    sigaction(SIGINT, &caught, NULL);
    sigaction(SIGTERM, &caught, NULL);
    if (!cli_ignores_hangup())
        sigaction(SIGHUP, &caught, NULL);
}

void cli_end_at_once(int sig)
{
    static const char text[] = "evenkeel: interrupted\n";

    (void)sig;
    (void)!write(STDERR_FILENO, text, sizeof(text) - 1);
    _exit(CLI_INTERRUPTED);
}

/* The second time it ends at once. */
static void ask(int sig)
{
    (void)sig;
    if (asked)
        _exit(CLI_INTERRUPTED);
    asked = 1;
}

static int is_asked(void)
{
    return asked;
}

void cli_stop_writing_on_signals(void)
{
    ek_file_set_stop(is_asked);
    cli_catch(ask);
}
