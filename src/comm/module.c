/* Finds and loads the plugin module with the MPI back end (comm/flavour.h).
 *
 * Signals: UCX, a transport of MPICH, replaces the handlers of SIGHUP, SIGSEGV, SIGBUS, SIGILL and
 * SIGFPE, and the alternate signal stack, when it is loaded; Open MPI replaces others in MPI_Init.
 * All are restored. */
#include "base/file.h"
#include "comm/flavour.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

/* --- signals ---------------------------------------------------------------------------------- */

/* Signals that end a process or report its faults, and those for applications.  Not timers and
 * SIGIO, which an MPI may need for its progress. */
static const int guarded[] = {SIGHUP, SIGINT,  SIGQUIT, SIGILL,  SIGTRAP, SIGABRT, SIGBUS,
                              SIGFPE, SIGSEGV, SIGSYS,  SIGPIPE, SIGTERM, SIGUSR1, SIGUSR2};
enum { GUARDED = sizeof(guarded) / sizeof(guarded[0]) };

typedef struct {
    struct sigaction action[GUARDED];
    int known[GUARDED];
    stack_t stack;
    int has_stack;
} signal_state;

static void save_signals(signal_state *s)
{
    for (int i = 0; i < GUARDED; i++)
        s->known[i] = sigaction(guarded[i], NULL, &s->action[i]) == 0;
    s->has_stack = sigaltstack(NULL, &s->stack) == 0;
}

static void restore_signals(const signal_state *s)
{
    for (int i = 0; i < GUARDED; i++)
        if (s->known[i])
            sigaction(guarded[i], &s->action[i], NULL);
    if (s->has_stack)
        sigaltstack(&s->stack, NULL);
}

/* --- the file --------------------------------------------------------------------------------- */

/* The file of this code: a program or libevenkeel.so.  dladdr() returns only the name that it was
 * started or loaded by, which may be no path, or relative to an earlier working directory. */
static ek_status own_file(ek_path *out)
{
    static const char inside = 0;
    uintptr_t here = (uintptr_t)&inside, from, to;
    char line[sizeof(out->s) + 128];
    FILE *f = fopen("/proc/self/maps", "re");
    int at = 0, found = 0;

    EK_REQUIRE(f != NULL, EK_EIO, "cannot read /proc/self/maps to find the MPI module");
    while (!found && fgets(line, sizeof(line), f) != NULL)
        found =
            sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %*s %*s %*s %*s %n", &from, &to, &at) == 2 &&
            from <= here && here < to && line[at] == '/';
    fclose(f);
    EK_REQUIRE(found, EK_EIO, "/proc/self/maps does not name the file of evenkeel's code");
    line[strcspn(line, "\n")] = '\0';
    return ek_path_set(out, "%s", line + at);
}

/* In the folder of the program or library; in ../lib; else left to the loader's search path. */
static ek_status find_module(const char *name, ek_path *out)
{
    static const char *const places[] = {"", "../lib/"};
    ek_path own, folder;

    EK_TRY(own_file(&own));
    EK_TRY(ek_path_parent(own.s, &folder));
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        EK_TRY(ek_path_set(out, "%s/%s%s", folder.s, places[i], name));
        if (ek_file_kind_of(out->s) == EK_FILE_REGULAR)
            return EK_OK;
    }
    return ek_path_set(out, "%s", name);
}

/* RTLD_GLOBAL: plugins of Open MPI need its library's symbols.  RTLD_NODELETE: no MPI can be
 * initialised twice. */
static ek_status load_module(const ek_mpi_flavour *mpi, const ek_mpi_module **out)
{
    ek_path path;
    void *handle;
    const ek_mpi_module *found;

    EK_TRY(find_module(mpi->module, &path));
    handle = dlopen(path.s, RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE);
    EK_REQUIRE(handle != NULL, EK_EUNSUPPORTED,
               "cannot load the MPI module (%s): it must be in the folder of evenkeel or "
               "libevenkeel.so, and needs %s on this machine",
               dlerror(), mpi->library);
    found = dlsym(handle, EK_MPI_MODULE_SYMBOL);
    EK_REQUIRE(
        found != NULL && strcmp(found->version, EK_MPI_MODULE_VERSION) == 0, EK_EUNSUPPORTED,
        "%s is of another version of evenkeel (%s) than this one (%s): install both together",
        path.s, found != NULL ? found->version : "unknown", EK_MPI_MODULE_VERSION);
    *out = found;
    return EK_OK;
}

/* --- opening ---------------------------------------------------------------------------------- */

static ek_status raise_message(const char *file, int line, const char *func, ek_status st,
                               const char *message)
{
    return ek_err_raise(file, line, func, st, "%s", message);
}

/* Blocks SIGHUP while a foreign handler may be installed. */
static ek_status load_with_signals_restored(const ek_mpi_flavour *mpi, const signal_state *s,
                                            const ek_mpi_module **out)
{
    sigset_t held, before;
    ek_status st;

    sigemptyset(&held);
    sigaddset(&held, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &held, &before);
    st = load_module(mpi, out);
    restore_signals(s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return st;
}

ek_status ek_mpi_module_open(const ek_mpi_flavour *mpi, ek_comm **world)
{
    static const ek_mpi_host host = {raise_message, ek_err_pass, ek_comm_create,
                                     ek_comm_set_far_max};
    static const ek_mpi_module *module;
    signal_state before;
    ek_status st = EK_OK;

    save_signals(&before);
    if (module == NULL)
        EK_TRY(load_with_signals_restored(mpi, &before, &module));
    st = module->open(&host, world);
    restore_signals(&before);
    return st;
}
