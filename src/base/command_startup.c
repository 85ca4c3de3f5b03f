/* Stack and OpenMP settings of a command, by executing it again. */
#include "base/command_startup.h"

#include "base/command.h"
#include "base/threads.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* Returns only on failure. */
static void reexecute_self(char **argv)
{
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

    if (n <= 0)
        return;
    self[n] = '\0';
    execv(self, argv);
}

void ek_command_set_openmp(char **argv, int has_peers)
{
    static const char spins_alone[] = "10001";
    const char *set = getenv("GOMP_SPINCOUNT");
    const char *spins = has_peers ? "0" : spins_alone;

    if (set != NULL && (strcmp(set, spins_alone) != 0 || strcmp(set, spins) == 0))
        return;
    if (getenv("OMP_WAIT_POLICY") != NULL)
        return;
    if (setenv("GOMP_SPINCOUNT", spins, 1) == 0)
        reexecute_self(argv); /* on failure: continue with the defaults */
}

int ek_command_ensure_stack(char **argv)
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
    fprintf(ek_command_err(),
            "evenkeel: the stack limit is %llu KiB, and at least %d KiB are needed: raise it with "
            "ulimit -s 8192\n",
            (unsigned long long)l.rlim_cur >> 10, 2 * EK_STACK_BYTES >> 10);
    return 0;
}
