/* The table of kernels on a CUDA device: its memory, its stream, and what goes wrong on it.
 *
 * Memory is managed: the host reads and writes it like its own, and pages go where they are used.
 * One device and one stream serve the process.  A kernel is waited for as soon as it is started,
 * so that what the host does next, in the same op, finds it done, but where the caller says that it
 * may be queued behind the one before it. */
#include "base/memory.h"
#include "tensor/accelerator.h"
#include "tensor/cuda/fill.h"
#include "tensor/cuda/stream.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { TOLD_BYTES = 4 << 20, TOLD_ALIGN = 256 };

typedef struct {
    int device, tables;
    cudaStream_t stream;
    double *room; /* the host's, for results */
    int room_n;
    char *said, *told; /* what the host tells: there, and on the device */
    size_t told_bytes; /* of TOLD_BYTES, those in use until the next wait */
    int queues;
    const char *first, *last; /* kernels since the last wait */
    int several;              /* not all of them are the same */
    char failed[160];         /* the first kernel that did, "": none; and its error */
    cudaError_t error;
} context;

/* Of the process; tables share it.  lock: they come and go. */
static context shared;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static ek_status check(cudaError_t e, const char *what)
{
    EK_REQUIRE(e == cudaSuccess, e == cudaErrorMemoryAllocation ? EK_ENOMEM : EK_EDEVICE,
               "CUDA: %s: %s", what, cudaGetErrorString(e));
    return EK_OK;
}

/* --- memory ----------------------------------------------------------------------------------- */

static ek_status take(const ek_memory *m, size_t bytes, const char *what, void **out)
{
    void *p = NULL;
    cudaError_t e = cudaMallocManaged(&p, bytes, cudaMemAttachGlobal);

    (void)m;
    if (e != cudaSuccess)
        (void)cudaGetLastError(); /* or the next kernel would seem to have failed */
    EK_REQUIRE(e == cudaSuccess, e == cudaErrorMemoryAllocation ? EK_ENOMEM : EK_EDEVICE,
               "CUDA: cannot reserve %zu bytes for %s: %s", bytes, what, cudaGetErrorString(e));
    *out = p;
    return EK_OK;
}

static void give(const ek_memory *m, void *memory, size_t bytes)
{
    (void)m;
    (void)bytes;
    (void)cudaFree(memory);
}

static size_t available(const ek_memory *m)
{
    size_t now = 0, all;

    (void)m;
    (void)cudaMemGetInfo(&now, &all);
    return now;
}

/* It outlives tables: arenas may be given back after them. */
static const ek_memory managed = {take, give, available};

/* --- the stream ------------------------------------------------------------------------------- */

/* Which device a thread uses is the thread's own affair. */
static void enter(const ek_kernels *k)
{
    static _Thread_local int entered;

    (void)k;
    if (!entered && shared.tables > 0)
        entered = cudaSetDevice(shared.device) == cudaSuccess;
}

void *ek_cuda_stream(void)
{
    enter(NULL);
    return shared.stream;
}

/* An error that came with a call may be that of any kernel that was queued before it. */
static void note(const char *name, cudaError_t e)
{
    if (e == cudaSuccess)
        return;
    (void)cudaGetLastError(); /* or the next call would seem to have failed */
    if (shared.failed[0] != '\0')
        return;
    if (shared.first != NULL && (shared.several || strcmp(shared.first, name) != 0))
        snprintf(shared.failed, sizeof(shared.failed), "one of the kernels from %s to %s",
                 shared.first, name);
    else
        snprintf(shared.failed, sizeof(shared.failed), "%s", name);
    shared.error = e;
}

void ek_cuda_wait_here(void)
{
    cudaError_t e = cudaStreamSynchronize(shared.stream);

    note(shared.last != NULL ? shared.last : "a wait", e);
    shared.first = shared.last = NULL;
    shared.several = 0;
}

void ek_cuda_started(const char *name, int error)
{
    note(name, (cudaError_t)error);
    shared.several |= shared.last != NULL && strcmp(shared.last, name) != 0;
    shared.first = shared.first != NULL ? shared.first : name;
    shared.last = name;
    if (!shared.queues)
        ek_cuda_wait_here();
}

static void queue(const ek_kernels *k, int on)
{
    (void)k;
    shared.queues = on;
}

double *ek_cuda_room(int n)
{
    void *p = NULL;
    cudaError_t e;

    if (n <= shared.room_n)
        return shared.room;
    enter(NULL);
    e = cudaMallocHost(&p, (size_t)n * sizeof(*shared.room));
    note("room for results", e);
    if (e != cudaSuccess)
        return NULL;
    (void)cudaFreeHost(shared.room);
    shared.room = p;
    shared.room_n = n;
    return shared.room;
}

/* Room for what is told, on both sides. */
static cudaError_t take_told(void)
{
    void *said = NULL, *told = NULL;
    cudaError_t e = cudaSuccess;

    if (shared.told != NULL)
        return e;
    enter(NULL);
    e = cudaMallocHost(&said, TOLD_BYTES);
    if (e == cudaSuccess)
        e = cudaMalloc(&told, TOLD_BYTES);
    if (e != cudaSuccess)
        (void)cudaFreeHost(said);
    if (e == cudaSuccess) {
        shared.said = said;
        shared.told = told;
    }
    return e;
}

/* The host's copy stays as it is until the device has read it: where there is no more room, all is
 * waited for, and the next piece begins where the first did. */
const void *ek_cuda_tell(const void *from, size_t bytes)
{
    size_t whole = (bytes + TOLD_ALIGN - 1) / TOLD_ALIGN * TOLD_ALIGN, at;
    cudaError_t e = whole <= TOLD_BYTES / 4 ? take_told() : cudaErrorInvalidValue;

    if (e == cudaSuccess && shared.told_bytes + whole > TOLD_BYTES) {
        ek_cuda_wait_here();
        shared.told_bytes = 0;
    }
    at = shared.told_bytes;
    if (e == cudaSuccess) {
        memcpy(shared.said + at, from, bytes);
        e = cudaMemcpyAsync(shared.told + at, shared.said + at, bytes, cudaMemcpyHostToDevice,
                            ek_cuda_stream());
    }
    note("what the host tells", e);
    if (e != cudaSuccess)
        return NULL;
    shared.told_bytes += whole;
    return shared.told + at;
}

static ek_status wait_for(const ek_kernels *k)
{
    char failed[sizeof(shared.failed)];

    (void)k;
    ek_cuda_wait_here();
    memcpy(failed, shared.failed, sizeof(failed));
    shared.failed[0] = '\0'; /* what does not heal fails the next one, too */
    return failed[0] == '\0' ? EK_OK : check(shared.error, failed);
}

/* --- the table -------------------------------------------------------------------------------- */

static int count(void)
{
    int n = 0;

    return cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
}

static ek_status describe(int device, char *text, size_t room)
{
    struct cudaDeviceProp p;

    EK_TRY(check(cudaGetDeviceProperties(&p, device), "look at a device"));
    snprintf(text, room, "%s, %.0f GiB, compute capability %d.%d", p.name,
             (double)p.totalGlobalMem / (1 << 30), p.major, p.minor);
    return EK_OK;
}

static ek_status begin(int device)
{
    int both = 0;

    EK_TRY(check(cudaDeviceGetAttribute(&both, cudaDevAttrConcurrentManagedAccess, device),
                 "look at a device"));
    EK_REQUIRE(both, EK_EUNSUPPORTED,
               "CUDA: device %d cannot share memory with the host while it computes, which is what "
               "this back end does",
               device);
    EK_TRY(check(cudaSetDevice(device), "choose a device"));
    shared = (context){.device = device};
    return check(cudaStreamCreateWithFlags(&shared.stream, cudaStreamNonBlocking), "make a stream");
}

static ek_status join(int device)
{
    EK_REQUIRE(shared.tables == 0 || shared.device == device, EK_EUNSUPPORTED,
               "this process computes on device %d, so not on %d", shared.device, device);
    if (shared.tables == 0)
        EK_TRY(begin(device));
    shared.tables++;
    return EK_OK;
}

static ek_status open_table(ek_kernels *k, ek_mode mode, int device)
{
    static const char *const names[] = {
        [EK_MODE_FP64] = "cuda fp64", [EK_MODE_FP32] = "cuda fp32", [EK_MODE_BF16] = "cuda bf16"};
    ek_status st;

    pthread_mutex_lock(&lock);
    st = join(device);
    pthread_mutex_unlock(&lock);
    EK_TRY(st);
    k->name = names[mode];
    k->memory = &managed;
    k->state = &shared;
    k->enter = enter;
    k->wait = wait_for;
    k->queue = queue;
    ek_cuda_fill_rows(k, mode);
    ek_cuda_fill_choice(k, mode);
    ek_cuda_fill_norm(k, mode);
    ek_cuda_fill_expert(k, mode);
    ek_cuda_fill_loss(k, mode);
    ek_cuda_fill_attention(k, mode);
    ek_cuda_fill_matmul(k, mode);
    return EK_OK;
}

static void close_table(ek_kernels *k)
{
    k->state = NULL;
    pthread_mutex_lock(&lock);
    if (--shared.tables == 0) {
        (void)cudaFreeHost(shared.room);
        (void)cudaFreeHost(shared.said);
        (void)cudaFree(shared.told);
        (void)cudaStreamDestroy(shared.stream);
        shared = (context){0};
    }
    pthread_mutex_unlock(&lock);
}

const ek_accelerator *ek_accelerator_linked(void)
{
    static const ek_accelerator cuda = {EK_CUDA_NAME, count, describe, open_table, close_table};

    return &cuda;
}
