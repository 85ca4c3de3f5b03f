/* Threads of a block by turns, see emulated/cuda_runtime.h: each has a stack of its own and runs
 * until it comes to a barrier, or to a word with the others of its warp. */
#include "cuda/emulated_touch.h"

#include <cuda_runtime.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <vector>

enum { WARP = 32, THREADS_MAX = 1024, STACK = 1 << 16, GIVEN_MAX = 4096, PAGE = 4096 };

static const uint64_t LEAST_ADDRESS = (uint64_t)1 << 32, MOST_ADDRESS = (uint64_t)1 << 47;

enum state { READY, AT_WARP, AT_BARRIER, DONE };

struct thread {
    state at;
    jmp_buf place;
    ucontext_t first; /* where it begins, on its stack */
    int begun;
    int turn; /* which of the two halves of `brought` is next */
};

dim3 threadIdx, blockIdx, blockDim, gridDim;
int emulated_backwards;

static thread threads_of[THREADS_MAX];
static uint64_t brought[THREADS_MAX / WARP][2][WARP];
static jmp_buf scheduler;
static void (*body_of)(void *);
static void *argument_of;

static void fail(const char *what)
{
    fprintf(stderr, "emulated CUDA: block %u, thread %u: %s\n", blockIdx.x, threadIdx.x, what);
    abort();
}

/* The n'th one to have its turn, of `of`. */
static int turn_of(int n, int of)
{
    return emulated_backwards ? of - 1 - n : n;
}

static void leave(state at)
{
    thread *t = &threads_of[threadIdx.x];

    t->at = at;
    if (_setjmp(t->place) == 0)
        _longjmp(scheduler, 1);
}

/* A thread of one block after another. */
static void live(void)
{
    for (;;) {
        body_of(argument_of);
        leave(DONE);
    }
}

static void resume(int which)
{
    thread *t = &threads_of[which];

    threadIdx.x = (unsigned)which;
    t->at = READY;
    if (_setjmp(scheduler) != 0)
        return;
    if (t->begun)
        _longjmp(t->place, 1);
    t->begun = 1;
    setcontext(&t->first);
}

void emulated_barrier(void)
{
    leave(AT_BARRIER);
}

uint64_t emulated_exchange(uint64_t mine, int lane)
{
    int me = (int)threadIdx.x, half = threads_of[me].turn;

    threads_of[me].turn = !half;
    brought[me / WARP][half][me % WARP] = mine;
    leave(AT_WARP);
    return brought[me / WARP][half][lane];
}

unsigned emulated_ballot(int bit)
{
    int warp = (int)threadIdx.x / WARP, half = threads_of[threadIdx.x].turn;
    unsigned all = 0;

    (void)emulated_exchange(bit != 0, 0);
    for (int l = 0; l < WARP; l++)
        all |= (unsigned)brought[warp][half][l] << l;
    return all;
}

/* How many threads first .. first + n stand at `at`. */
static int count(int first, int n, state at)
{
    int found = 0;

    for (int i = first; i < first + n; i++)
        found += threads_of[i].at == at;
    return found;
}

/* Until all lanes have ended, or wait for other warps. */
static void run_warp(int first, int n)
{
    do {
        for (int i = 0; i < n; i++)
            resume(first + turn_of(i, n));
        if (count(first, n, AT_WARP) % n != 0)
            fail("lanes of its warp do not come to a shuffle");
    } while (count(first, n, AT_WARP) > 0);
}

static void run_block(int threads)
{
    for (int i = 0; i < threads; i++) {
        threads_of[i].at = READY;
        threads_of[i].turn = 0;
    }
    for (int waiting = threads; waiting > 0;) {
        for (int w = 0; w < threads / WARP; w++)
            run_warp(turn_of(w, threads / WARP) * WARP, WARP);
        waiting = count(0, threads, AT_BARRIER);
        if (waiting % threads != 0)
            fail("threads of its block do not come to a barrier");
    }
}

static void get_stacks(void)
{
    for (int i = 0; i < THREADS_MAX; i++) {
        ucontext_t *c = &threads_of[i].first;
        void *stack = malloc(STACK);

        if (stack == NULL || getcontext(c) != 0)
            fail("no stack");
        c->uc_stack.ss_sp = stack;
        c->uc_stack.ss_size = STACK;
        c->uc_link = NULL;
        makecontext(c, live, 0);
    }
}

void emulated_run(int64_t blocks, int threads, void (*body)(void *), void *argument)
{
    if (threads_of[0].first.uc_stack.ss_sp == NULL)
        get_stacks();
    if (threads <= 0 || threads > THREADS_MAX || threads % WARP != 0)
        fail("a block has whole warps");
    emulated_touch_allow(1);
    body_of = body;
    argument_of = argument;
    gridDim = {(unsigned)blocks, 1, 1};
    blockDim = {(unsigned)threads, 1, 1};
    for (int64_t b = 0; b < blocks; b++) {
        blockIdx.x = (unsigned)turn_of((int)b, (int)blocks);
        run_block(threads);
    }
    emulated_touch_allow(0);
}

/* --- the runtime: what was started is done ---------------------------------------------------- */

static emulated_stretch given[GIVEN_MAX];
static int n_given;
static int strict; /* a device is in use */
static cudaError_t last_error;
static std::vector<std::function<void()>> queued;

const char *cudaGetErrorString(cudaError_t e)
{
    return e == cudaErrorIllegalAddress ? "an illegal memory access was encountered" : "an error";
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t e = last_error;

    last_error = cudaSuccess;
    return e;
}

cudaError_t cudaGetDeviceCount(int *n)
{
    *n = 1;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int)
{
    *p = {"emulated", 0, 0, 0};
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int)
{
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, int, int)
{
    *value = 1;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *all)
{
    *available = *all = (size_t)1 << 40;
    return cudaSuccess;
}

static const emulated_stretch *all_given(int *n)
{
    *n = n_given;
    return given;
}

/* A whole number of pages, so that no address of ours lies beside somebody else's. */
static cudaError_t take(void **p, size_t bytes, int host)
{
    size_t whole = (bytes + PAGE - 1) / PAGE * PAGE;

    if (n_given == GIVEN_MAX)
        return cudaErrorMemoryAllocation;
    *p = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (*p == MAP_FAILED)
        return cudaErrorMemoryAllocation;
    memset(*p, 0xff, whole);
    given[n_given++] = {(char *)*p, whole, host};
    return cudaSuccess;
}

cudaError_t cudaMallocManaged(void **p, size_t bytes, unsigned)
{
    return take(p, bytes, 0);
}

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    return take(p, bytes, 0);
}

cudaError_t cudaMallocHost(void **p, size_t bytes)
{
    return take(p, bytes, 1);
}

cudaError_t cudaFree(void *p)
{
    last_error = cudaStreamSynchronize(NULL);
    for (int i = 0; i < n_given; i++)
        if (given[i].at == p) {
            munmap(p, given[i].bytes);
            given[i] = given[--n_given];
            return cudaSuccess;
        }
    return p == NULL ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaFreeHost(void *p)
{
    return cudaFree(p);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned)
{
    strict = 1;
    emulated_touch_begin(all_given);
    *s = NULL;
    return cudaSuccess;
}

void emulated_queue(std::function<void()> work)
{
    queued.push_back(work);
}

/* What fails ends what comes after it, too. */
cudaError_t cudaStreamSynchronize(cudaStream_t)
{
    cudaError_t e;

    for (size_t i = 0; i < queued.size() && last_error == cudaSuccess; i++)
        queued[i]();
    queued.clear();
    emulated_touch_waited();
    e = last_error;
    last_error = cudaSuccess;
    return e;
}

cudaError_t cudaStreamDestroy(cudaStream_t)
{
    return cudaSuccess;
}

/* Whether a word of an argument is an address of this process: no number there is so large and
 * happens to be one, but what fills the gaps of a struct may look like one. */
static int is_address(uint64_t word)
{
    uintptr_t page = word / PAGE * PAGE;
    unsigned char resident;

    return word >= LEAST_ADDRESS && word <= MOST_ADDRESS &&
           mincore((void *)page, PAGE, &resident) == 0;
}

int emulated_is_foreign(const void *argument, size_t bytes)
{
    for (size_t at = 0; strict && at + sizeof(uint64_t) <= bytes; at += sizeof(uint64_t)) {
        uint64_t word;
        int known = 0;

        memcpy(&word, (const char *)argument + at, sizeof(word));
        for (int i = 0; i < n_given; i++)
            known |=
                word >= (uintptr_t)given[i].at && word <= (uintptr_t)given[i].at + given[i].bytes;
        if (is_address(word) && !known)
            last_error = cudaErrorIllegalAddress;
    }
    return last_error != cudaSuccess;
}

int emulated_is_to_fail(const char *kernel)
{
    const char *name = getenv("EK_EMULATED_FAILURE");

    if (name == NULL || strcmp(name, kernel) != 0)
        return 0;
    last_error = cudaErrorIllegalAddress;
    return 1;
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_stride, const void *from, size_t from_stride,
                              size_t width, size_t rows, int, cudaStream_t)
{
    if (width > to_stride || width > from_stride)
        return cudaErrorInvalidValue;
    if (emulated_is_foreign(&to, sizeof(to)) || emulated_is_foreign(&from, sizeof(from)))
        return cudaGetLastError();
    emulated_queue([=] {
        emulated_touch_allow(1);
        for (size_t i = 0; i < rows; i++)
            memcpy((char *)to + i * to_stride, (const char *)from + i * from_stride, width);
        emulated_touch_allow(0);
    });
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t)
{
    if (emulated_is_foreign(&p, sizeof(p)))
        return cudaGetLastError();
    emulated_queue([=] {
        emulated_touch_allow(1);
        memset(p, value, bytes);
        emulated_touch_allow(0);
    });
    return cudaSuccess;
}

/* Of pinned memory or the device's: when its turn comes. */
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, int, cudaStream_t)
{
    if (emulated_is_foreign(&to, sizeof(to)) || emulated_is_foreign(&from, sizeof(from)))
        return cudaGetLastError();
    emulated_queue([=] {
        emulated_touch_allow(1);
        memcpy(to, from, bytes);
        emulated_touch_allow(0);
    });
    return cudaSuccess;
}
