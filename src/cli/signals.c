/* Handling of SIGINT, SIGTERM and SIGHUP. */
#include "cli/cli.h"

#include <signal.h>
#include <unistd.h>

static volatile sig_atomic_t stop_requested;

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

/* The first signal requests a stop, the second exits immediately. */
static void request_stop(int sig)
{
    (void)sig;
    if (stop_requested)
        _exit(CLI_INTERRUPTED);
    stop_requested = 1;
}

static int is_stop_requested(void)
{
    return stop_requested;
}

void cli_stop_writing_on_signals(void)
{
    ek_file_set_stop(is_stop_requested);
    cli_catch(request_stop);
}
