/* Records host accesses to pages of managed device memory: on a GPU each such page would migrate to
 * the host, and back to the device for the next kernel.
 *
 * EK_EMULATED_TOUCHES names a file that receives the number of kernels and synchronisations, and a
 * line for each place of the program that touched a page: count, and address for addr2line.  Pages
 * are protected while no kernel runs, and unprotected on their first fault; system calls that
 * access protected pages fail. */
#include "cuda/emulated_touch.h"

#include <cuda_runtime.h>
#include <execinfo.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { PLACES_MAX = 4096, DEPTH = 8, PAGE = 4096 };

struct place {
    uintptr_t address;
    long times;
};

static emulated_allocations allocations_of;
static place places[PLACES_MAX];
static int n_places;
static long kernels, waits;
static const char *file;

extern "C" char __executable_start, etext;

static int is_ours(uintptr_t address)
{
    return address >= (uintptr_t)&__executable_start && address < (uintptr_t)&etext;
}

/* Address in the innermost function of the program itself, below C library functions. */
static uintptr_t place_now(void)
{
    void *frame[DEPTH + 3];
    int n = backtrace(frame, DEPTH + 3);

    for (int i = 3; i < n; i++) /* skips this function, the handler and its caller */
        if (is_ours((uintptr_t)frame[i]))
            return (uintptr_t)frame[i] - (uintptr_t)&__executable_start;
    return 0;
}

static void count(uintptr_t address)
{
    int i = 0;

    while (i < n_places && places[i].address != address)
        i++;
    if (i == PLACES_MAX)
        abort();
    if (i == n_places)
        places[n_places++] = {address, 0};
    places[i].times++;
}

static void touched(int, siginfo_t *info, void *)
{
    char *at = (char *)info->si_addr;
    int n;
    const emulated_allocation *given = allocations_of(&n);

    for (int i = 0; i < n; i++)
        if (at >= given[i].at && at < given[i].at + given[i].bytes) {
            mprotect((void *)((uintptr_t)at / PAGE * PAGE), PAGE, PROT_READ | PROT_WRITE);
            count(place_now());
            return;
        }
    signal(SIGSEGV, SIG_DFL);
}

static void report(void)
{
    FILE *f = fopen(file, "w");

    if (f != NULL)
        fprintf(f, "%ld kernels\n%ld waits\n", kernels, waits);
    for (int i = 0; f != NULL && i < n_places; i++)
        fprintf(f, "%ld %lx\n", places[i].times, (unsigned long)places[i].address);
    if (f == NULL || fclose(f) != 0)
        fprintf(stderr, "emulated CUDA: cannot write %s\n", file);
}

void emulated_touch_begin(emulated_allocations allocations)
{
    void *frame[1];
    struct sigaction by = {};

    if (allocations_of != NULL || getenv("EK_EMULATED_TOUCHES") == NULL)
        return;
    file = getenv("EK_EMULATED_TOUCHES");
    allocations_of = allocations;
    (void)backtrace(frame, 1); /* loads libgcc outside the handler */
    by.sa_sigaction = touched;
    by.sa_flags = SA_SIGINFO | SA_NODEFER;
    if (sigaction(SIGSEGV, &by, NULL) != 0 || atexit(report) != 0)
        abort();
}

void emulated_touch_waited(void)
{
    waits++;
}

void emulated_touch_allow(int device)
{
    int n;
    const emulated_allocation *given = allocations_of != NULL ? allocations_of(&n) : NULL;

    kernels += device;
    for (int i = 0; given != NULL && i < n; i++)
        if (!given[i].host &&
            mprotect(given[i].at, given[i].bytes, device ? PROT_READ | PROT_WRITE : PROT_NONE) != 0)
            abort();
}
