/* The module's entry point (comm/flavour.h), and its error functions, which forward to the program
 * that loaded it. */
#include "comm/mpi/mpi.h"

#include <stdarg.h>
#include <stdio.h>

enum { MESSAGE_CAP = 1024 };

static const ek_mpi_host *host;

/* Called by EK_FAIL and EK_TRY in this module. */
ek_status ek_err_raise(const char *file, int line, const char *func, ek_status st, const char *fmt,
                       ...)
{
    char message[MESSAGE_CAP];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(message, sizeof(message), fmt, ap);
    va_end(ap);
    return host->raise(file, line, func, st, message);
}

ek_status ek_err_pass(const char *file, int line, const char *func, ek_status st)
{
    return host->pass(file, line, func, st);
}

static ek_status open_module(const ek_mpi_host *program, ek_comm **world)
{
    host = program;
    return ek_mpi_open(program, world);
}

__attribute__((visibility("default")))
const ek_mpi_module ek_mpi_module_entry = {EK_MPI_MODULE_VERSION, open_module};
