/* Handling of SIGINT, SIGTERM and SIGHUP. */
#include "base/command.h"
#include "base/file.h"

#include <signal.h>
#include <unistd.h>

static volatile sig_atomic_t stop_requested;

int ek_command_ignores_hangup(void)
{
    struct sigaction now;

    return sigaction(SIGHUP, NULL, &now) == 0 && now.sa_handler == SIG_IGN;
}

void ek_command_catch(void (*stop)(int sig))
{
    struct sigaction caught = {.sa_handler = stop, .sa_flags = SA_RESTART};

    sigaction(SIGINT, &caught, NULL);
    sigaction(SIGTERM, &caught, NULL);
    if (!ek_command_ignores_hangup())
        sigaction(SIGHUP, &caught, NULL);
}

void ek_command_end_at_once(int sig)
{
    static const char text[] = "evenkeel: interrupted\n";

    (void)sig;
    (void)!write(STDERR_FILENO, text, sizeof(text) - 1);
    _exit(EK_EXIT_INTERRUPTED);
}

/* The first signal requests a stop, the second exits immediately. */
static void request_stop(int sig)
{
    (void)sig;
    if (stop_requested)
        _exit(EK_EXIT_INTERRUPTED);
    stop_requested = 1;
}

static int is_stop_requested(void)
{
    return stop_requested;
}

void ek_command_stop_writing(void)
{
    ek_file_set_stop(is_stop_requested);
    ek_command_catch(request_stop);
}
