/* Cooperative threads of a block, see emulated/cuda_runtime.h: each has its own stack and runs
 * until it reaches a barrier or a shuffle. */
#include "cuda/emulated_touch.h"

#include <cuda_runtime.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <vector>

enum { WARP = 32, THREADS_MAX = 1024, STACK = 1 << 16, ALLOCATIONS_MAX = 4096, PAGE = 4096 };

static const uint64_t LEAST_ADDRESS = (uint64_t)1 << 32, MOST_ADDRESS = (uint64_t)1 << 47;

enum state { READY, AT_WARP, AT_BARRIER, DONE };

struct thread {
    state at;
    jmp_buf place;
    ucontext_t first; /* its start, on its own stack */
    int begun;
    int half; /* half of `shuffled` that it uses next */
};

dim3 threadIdx, blockIdx, blockDim, gridDim;
int emulated_backwards, emulated_multiprocessors = 1, emulated_capability = 9;

static thread threads_of[THREADS_MAX];
static uint64_t shuffled[THREADS_MAX / WARP][2][WARP];
static jmp_buf scheduler;
static void (*body_of)(void *);
static void *argument_of;

static void fail_emulation(const char *what)
{
    fprintf(stderr, "emulated CUDA: block %u, thread %u: %s\n", blockIdx.x, threadIdx.x, what);
    abort();
}

/* Index of the n-th of `of` blocks or threads to run. */
static int index_of(int n, int of)
{
    return emulated_backwards ? of - 1 - n : n;
}

static void yield_thread(state at)
{
    thread *t = &threads_of[threadIdx.x];

    t->at = at;
    if (_setjmp(t->place) == 0)
        _longjmp(scheduler, 1);
}

/* The main loop of a thread, over one block after another. */
static void thread_main(void)
{
    for (;;) {
        body_of(argument_of);
        yield_thread(DONE);
    }
}

static void resume_thread(int which)
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
    yield_thread(AT_BARRIER);
}

uint64_t emulated_exchange(uint64_t mine, int lane)
{
    int me = (int)threadIdx.x, half = threads_of[me].half;

    threads_of[me].half = !half;
    shuffled[me / WARP][half][me % WARP] = mine;
    yield_thread(AT_WARP);
    return shuffled[me / WARP][half][lane];
}

unsigned emulated_ballot(int bit)
{
    int warp = (int)threadIdx.x / WARP, half = threads_of[threadIdx.x].half;
    unsigned all = 0;

    (void)emulated_exchange(bit != 0, 0);
    for (int l = 0; l < WARP; l++)
        all |= (unsigned)shuffled[warp][half][l] << l;
    return all;
}

/* Number of threads from first to first + n - 1 in state `at`. */
static int count(int first, int n, state at)
{
    int found = 0;

    for (int i = first; i < first + n; i++)
        found += threads_of[i].at == at;
    return found;
}

/* Runs a warp until all lanes have ended or wait at a barrier. */
static void run_warp(int first, int n)
{
    do {
        for (int i = 0; i < n; i++)
            resume_thread(first + index_of(i, n));
        if (count(first, n, AT_WARP) % n != 0)
            fail_emulation("not all lanes of its warp reach a shuffle");
    } while (count(first, n, AT_WARP) > 0);
}

static void run_block(int threads)
{
    for (int i = 0; i < threads; i++) {
        threads_of[i].at = READY;
        threads_of[i].half = 0;
    }
    for (int waiting = threads; waiting > 0;) {
        for (int w = 0; w < threads / WARP; w++)
            run_warp(index_of(w, threads / WARP) * WARP, WARP);
        waiting = count(0, threads, AT_BARRIER);
        if (waiting % threads != 0)
            fail_emulation("not all threads of its block reach a barrier");
    }
}

static void get_stacks(void)
{
    for (int i = 0; i < THREADS_MAX; i++) {
        ucontext_t *c = &threads_of[i].first;
        void *stack = malloc(STACK);

        if (stack == NULL || getcontext(c) != 0)
            fail_emulation("no stack");
        c->uc_stack.ss_sp = stack;
        c->uc_stack.ss_size = STACK;
        c->uc_link = NULL;
        makecontext(c, thread_main, 0);
    }
}

void emulated_run(int64_t blocks, int threads, void (*body)(void *), void *argument)
{
    if (threads_of[0].first.uc_stack.ss_sp == NULL)
        get_stacks();
    if (threads <= 0 || threads > THREADS_MAX || threads % WARP != 0)
        fail_emulation("the block does not consist of whole warps");
    emulated_touch_allow(1);
    body_of = body;
    argument_of = argument;
    gridDim = {(unsigned)blocks, 1, 1};
    blockDim = {(unsigned)threads, 1, 1};
    for (int64_t b = 0; b < blocks; b++) {
        blockIdx.x = (unsigned)index_of((int)b, (int)blocks);
        run_block(threads);
    }
    emulated_touch_allow(0);
}

/* --- the CUDA runtime: work is queued until synchronisation ----------------------------------- */

static emulated_allocation allocations[ALLOCATIONS_MAX];
static int n_allocations;
static int strict; /* a stream is open: addresses are checked */
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

cudaError_t cudaDeviceGetAttribute(int *value, int attribute, int)
{
    *value = attribute == cudaDevAttrMultiProcessorCount      ? emulated_multiprocessors
             : attribute == cudaDevAttrComputeCapabilityMajor ? emulated_capability
             : attribute == cudaDevAttrComputeCapabilityMinor ? 0
                                                              : 1;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *all)
{
    const char *mib = getenv("EK_EMULATED_MEMORY");

    *available = *all = mib != NULL ? (size_t)atoi(mib) << 20 : (size_t)1 << 40;
    return cudaSuccess;
}

static const emulated_allocation *all_allocations(int *n)
{
    *n = n_allocations;
    return allocations;
}

/* Allocates whole pages, so that adjacent addresses are not in use. */
static cudaError_t alloc_pages(void **p, size_t bytes, int host)
{
    size_t whole = (bytes + PAGE - 1) / PAGE * PAGE;

    if (n_allocations == ALLOCATIONS_MAX)
        return cudaErrorMemoryAllocation;
    *p = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (*p == MAP_FAILED)
        return cudaErrorMemoryAllocation;
    memset(*p, 0xff, whole);
    allocations[n_allocations++] = {(char *)*p, whole, host};
    return cudaSuccess;
}

cudaError_t cudaMallocManaged(void **p, size_t bytes, unsigned)
{
    return alloc_pages(p, bytes, 0);
}

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    return alloc_pages(p, bytes, 0);
}

cudaError_t cudaMallocHost(void **p, size_t bytes)
{
    return alloc_pages(p, bytes, 1);
}

cudaError_t cudaFree(void *p)
{
    last_error = cudaStreamSynchronize(NULL);
    for (int i = 0; i < n_allocations; i++)
        if (allocations[i].at == p) {
            munmap(p, allocations[i].bytes);
            allocations[i] = allocations[--n_allocations];
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
    emulated_touch_begin(all_allocations);
    *s = NULL;
    return cudaSuccess;
}

void emulated_queue(std::function<void()> work)
{
    queued.push_back(work);
}

/* After a failure the remaining work is dropped. */
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

/* Whether a word of an argument is an address of this process.  Other arguments are never so
 * large. */
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
        for (int i = 0; i < n_allocations; i++)
            known |= word >= (uintptr_t)allocations[i].at &&
                     word <= (uintptr_t)allocations[i].at + allocations[i].bytes;
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

int64_t emulated_moved[2];

/* Only counts: the host has one memory.  Several threads may call it at once. */
cudaError_t cudaMemPrefetchAsync(const void *p, size_t bytes, struct cudaMemLocation to, unsigned,
                                 cudaStream_t)
{
    const char *at = (const char *)p;
    int device = to.type == cudaMemLocationTypeDevice;

    for (int i = 0; i < n_allocations; i++)
        if (!allocations[i].host && at >= allocations[i].at &&
            at + bytes <= allocations[i].at + allocations[i].bytes) {
            __atomic_fetch_add(&emulated_moved[device], (int64_t)bytes, __ATOMIC_RELAXED);
            return cudaSuccess;
        }
    return cudaErrorInvalidValue;
}

/* Between pinned and device memory: queued like a kernel. */
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
