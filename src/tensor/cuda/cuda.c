/* The kernel table of a CUDA device: memory, stream and errors.
 *
 * Memory is managed (cudaMallocManaged): the host reads and writes it like its own, and pages
 * migrate to where they are used.  A process uses one device and one stream.  Every launch is
 * followed by a synchronisation, so that the host sees its results, unless the caller allows
 * kernels to be enqueued (ek_kernels_queue). */
#include "base/count_text.h"
#include "base/memory.h"
#include "tensor/accelerator.h"
#include "tensor/cuda/fill.h"
#include "tensor/cuda/stream.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { UPLOAD_BYTES = 4 << 20, UPLOAD_ALIGN = 256 };

typedef struct {
    int device, tables;
    cudaStream_t stream;
    int multiprocessors, wgmma; /* see ek_cuda_multiprocessors, ek_cuda_has_wgmma */
    double *results;            /* [results_cap] pinned host buffer for results of kernels */
    int results_cap;
    char *upload_host, *upload_device; /* buffers of ek_cuda_upload, UPLOAD_BYTES each */
    size_t upload_used;                /* bytes in use until the next synchronisation */
    int enqueue_only;                  /* see ek_kernels_queue */
    const char *first, *last;          /* kernels since the last synchronisation */
    int several;                       /* their names differ */
    char failed[160];                  /* the first kernel that failed, "": none; and its error */
    cudaError_t error;
} context;

/* One per process, shared by all tables; the lock guards opening and closing of tables. */
static context shared;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* Guards the record of failures: memory is moved by several threads. */
static pthread_mutex_t failure_lock = PTHREAD_MUTEX_INITIALIZER;

static ek_status check_cuda(cudaError_t e, const char *what)
{
    EK_REQUIRE(e == cudaSuccess, e == cudaErrorMemoryAllocation ? EK_ENOMEM : EK_EDEVICE,
               "CUDA: %s: %s", what, cudaGetErrorString(e));
    return EK_OK;
}

/* --- memory ----------------------------------------------------------------------------------- */

/* What the device had free when it was opened, less what CUDA itself takes later; and likely bytes
 * of allocations.  More managed memory than the device holds would be paged to and fro by every
 * kernel.  Other processes that use the same device are not seen. */
static size_t capacity, reserved;

enum { CUDA_ITSELF = 256 << 20 };

static ek_status measure_capacity(void)
{
    size_t now = 0, all;

    EK_TRY(check_cuda(cudaMemGetInfo(&now, &all), "query free memory"));
    if (reserved == 0) /* else arenas outlived the tables */
        capacity = now > CUDA_ITSELF ? now - CUDA_ITSELF : 0;
    return EK_OK;
}

static size_t capacity_of_process(const ek_memory *m)
{
    (void)m;
    return capacity;
}

static ek_status alloc_managed(const ek_memory *m, size_t bytes, size_t likely, const char *what,
                               void **out)
{
    size_t left = reserved < capacity ? capacity - reserved : 0;
    char wanted[16], rest[16], all[16];
    void *p = NULL;
    cudaError_t e;

    (void)m;
    EK_REQUIRE(likely <= left, EK_ENOMEM,
               "CUDA: cannot reserve %s for %s: %s of the %s that the device had free are left",
               ek_bytes_text(wanted, sizeof(wanted), (double)likely), what,
               ek_bytes_text(rest, sizeof(rest), (double)left),
               ek_bytes_text(all, sizeof(all), (double)capacity));
    e = cudaMallocManaged(&p, bytes, cudaMemAttachGlobal);
    if (e != cudaSuccess)
        (void)cudaGetLastError(); /* clears it, or it is reported for the next kernel */
    EK_REQUIRE(e == cudaSuccess, e == cudaErrorMemoryAllocation ? EK_ENOMEM : EK_EDEVICE,
               "CUDA: cannot reserve %zu bytes for %s: %s", bytes, what, cudaGetErrorString(e));
    reserved += likely;
    *out = p;
    return EK_OK;
}

static void free_managed(const ek_memory *m, void *memory, size_t likely)
{
    (void)m;
    if (cudaFree(memory) == cudaSuccess)
        reserved -= likely;
}

/* --- the stream ------------------------------------------------------------------------------- */

/* The current CUDA device is thread-local. */
static void enter_device(const ek_kernels *k)
{
    static _Thread_local int entered;

    (void)k;
    if (!entered && shared.tables > 0)
        entered = cudaSetDevice(shared.device) == cudaSuccess;
}

void *ek_cuda_stream(void)
{
    enter_device(NULL);
    return shared.stream;
}

static void describe_error(const char *name, cudaError_t e)
{
    if (shared.first != NULL && (shared.several || strcmp(shared.first, name) != 0))
        snprintf(shared.failed, sizeof(shared.failed), "one of the kernels from %s to %s",
                 shared.first, name);
    else
        snprintf(shared.failed, sizeof(shared.failed), "%s", name);
    shared.error = e;
}

/* Records the first error.  A call may return an error of any kernel enqueued before it. */
static void record_error(const char *name, cudaError_t e)
{
    if (e == cudaSuccess)
        return;
    (void)cudaGetLastError(); /* clears it, or the next call would report it */
    pthread_mutex_lock(&failure_lock);
    if (shared.failed[0] == '\0')
        describe_error(name, e);
    pthread_mutex_unlock(&failure_lock);
}
void ek_cuda_synchronize(void)
{
    cudaError_t e = cudaStreamSynchronize(shared.stream);

    record_error(shared.last != NULL ? shared.last : "synchronisation", e);
    shared.first = shared.last = NULL;
    shared.several = 0;
}

void ek_cuda_launched(const char *name, int error)
{
    record_error(name, (cudaError_t)error);
    shared.several |= shared.last != NULL && strcmp(shared.last, name) != 0;
    shared.first = shared.first != NULL ? shared.first : name;
    shared.last = name;
    if (!shared.enqueue_only)
        ek_cuda_synchronize();
}

int ek_cuda_multiprocessors(void)
{
    return shared.multiprocessors;
}

int ek_cuda_has_wgmma(void)
{
    return shared.wgmma;
}

static void set_enqueue(const ek_kernels *k, int on)
{
    (void)k;
    shared.enqueue_only = on;
}

/* --- pages of managed memory ------------------------------------------------------------------ */

static cudaError_t prefetch(void *memory, size_t bytes, ek_memory_user next)
{
    int host = next == EK_USED_BY_HOST;
    cudaStream_t stream = ek_cuda_stream();
#if CUDART_VERSION >= 13000
    struct cudaMemLocation to = {
        .type = host ? cudaMemLocationTypeHost : cudaMemLocationTypeDevice,
        .id = host ? 0 : shared.device,
    };

    return cudaMemPrefetchAsync(memory, bytes, to, 0, stream);
#else
    return cudaMemPrefetchAsync(memory, bytes, host ? cudaCpuDeviceId : shared.device, stream);
#endif
}

static void move_managed(const ek_memory *m, void *memory, size_t bytes, ek_memory_user next)
{
    cudaError_t e = prefetch(memory, bytes, next);

    (void)m;
    record_error("moving memory", e);
}

/* Fresh pages are created on the device by the prefetch: as faults of the writing kernel they would
 * take longer. */
static void clear_managed(const ek_memory *m, void *memory, size_t bytes)
{
    cudaError_t e = prefetch(memory, bytes, EK_USED_BY_ACCELERATOR);

    (void)m;
    if (e == cudaSuccess)
        e = cudaMemsetAsync(memory, 0, bytes, shared.stream);
    if (e == cudaSuccess)
        e = cudaStreamSynchronize(shared.stream);
    record_error("clearing memory", e);
}

/* Static, as arenas may be released after the tables. */
static const ek_memory managed = {alloc_managed, free_managed, capacity_of_process, clear_managed,
                                  move_managed};

/* --- buffers of the host ---------------------------------------------------------------------- */

double *ek_cuda_results(int n)
{
    void *p = NULL;
    cudaError_t e;

    if (n <= shared.results_cap)
        return shared.results;
    enter_device(NULL);
    e = cudaMallocHost(&p, (size_t)n * sizeof(*shared.results));
    record_error("allocation of the result buffer", e);
    if (e != cudaSuccess)
        return NULL;
    (void)cudaFreeHost(shared.results);
    shared.results = p;
    shared.results_cap = n;
    return shared.results;
}

/* Allocates the upload buffers of host and device. */
static cudaError_t alloc_upload_buffers(void)
{
    void *host = NULL, *dev = NULL;
    cudaError_t e = cudaSuccess;

    if (shared.upload_device != NULL)
        return e;
    enter_device(NULL);
    e = cudaMallocHost(&host, UPLOAD_BYTES);
    if (e == cudaSuccess)
        e = cudaMalloc(&dev, UPLOAD_BYTES);
    if (e != cudaSuccess)
        (void)cudaFreeHost(host);
    if (e == cudaSuccess) {
        shared.upload_host = host;
        shared.upload_device = dev;
    }
    return e;
}

/* The host's copy must not change until the device has read it: when the buffer is full, the stream
 * is synchronised and the buffer is reused from its start. */
const void *ek_cuda_upload(const void *from, size_t bytes)
{
    size_t whole = (bytes + UPLOAD_ALIGN - 1) / UPLOAD_ALIGN * UPLOAD_ALIGN, at;
    cudaError_t e = whole <= UPLOAD_BYTES / 4 ? alloc_upload_buffers() : cudaErrorInvalidValue;

    if (e == cudaSuccess && shared.upload_used + whole > UPLOAD_BYTES) {
        ek_cuda_synchronize();
        shared.upload_used = 0;
    }
    at = shared.upload_used;
    if (e == cudaSuccess) {
        memcpy(shared.upload_host + at, from, bytes);
        e = cudaMemcpyAsync(shared.upload_device + at, shared.upload_host + at, bytes,
                            cudaMemcpyHostToDevice, ek_cuda_stream());
    }
    record_error("upload of host data", e);
    if (e != cudaSuccess)
        return NULL;
    shared.upload_used += whole;
    return shared.upload_device + at;
}

static ek_status wait_stream(const ek_kernels *k)
{
    char failed[sizeof(shared.failed)];

    (void)k;
    ek_cuda_synchronize();
    pthread_mutex_lock(&failure_lock);
    memcpy(failed, shared.failed, sizeof(failed));
    shared.failed[0] = '\0'; /* a persistent error fails the next wait, too */
    pthread_mutex_unlock(&failure_lock);
    return failed[0] == '\0' ? EK_OK : check_cuda(shared.error, failed);
}

/* --- the table -------------------------------------------------------------------------------- */

static int count_devices(void)
{
    int n = 0;

    return cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
}

static ek_status describe_device(int device, char *text, size_t cap)
{
    struct cudaDeviceProp p;

    EK_TRY(check_cuda(cudaGetDeviceProperties(&p, device), "query a device"));
    snprintf(text, cap, "%s, %.0f GiB, compute capability %d.%d", p.name,
             (double)p.totalGlobalMem / (1 << 30), p.major, p.minor);
    return EK_OK;
}

#ifdef EK_CUDA_WGMMA
enum { WGMMA = 1 };
#else
enum { WGMMA = 0 }; /* not compiled */
#endif

/* wgmma exists in compute capability 9.0 alone. */
static ek_status query_products(int device)
{
    int major = 0, minor = 0;

    EK_TRY(check_cuda(
        cudaDeviceGetAttribute(&shared.multiprocessors, cudaDevAttrMultiProcessorCount, device),
        "query a device"));
    EK_TRY(check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
                      "query a device"));
    EK_TRY(check_cuda(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
                      "query a device"));
    shared.wgmma = WGMMA && major == 9 && minor == 0;
    return EK_OK;
}

static ek_status open_device(int device)
{
    int both = 0;

    EK_TRY(check_cuda(cudaDeviceGetAttribute(&both, cudaDevAttrConcurrentManagedAccess, device),
                      "query a device"));
    EK_REQUIRE(both, EK_EUNSUPPORTED,
               "CUDA: device %d does not support concurrent access to managed memory by the host, "
               "which this back end needs",
               device);
    EK_TRY(check_cuda(cudaSetDevice(device), "select a device"));
    shared = (context){.device = device};
    EK_TRY(measure_capacity());
    EK_TRY(query_products(device));
    return check_cuda(cudaStreamCreateWithFlags(&shared.stream, cudaStreamNonBlocking),
                      "create a stream");
}

static ek_status join_device(int device)
{
    EK_REQUIRE(shared.tables == 0 || shared.device == device, EK_EUNSUPPORTED,
               "this process uses CUDA device %d already, so it cannot use device %d",
               shared.device, device);
    if (shared.tables == 0)
        EK_TRY(open_device(device));
    shared.tables++;
    return EK_OK;
}

static ek_status open_table(ek_kernels *k, ek_mode mode, int device)
{
    static const char *const names[] = {
        [EK_MODE_FP64] = "cuda fp64", [EK_MODE_FP32] = "cuda fp32", [EK_MODE_BF16] = "cuda bf16"};
    ek_status st;

    pthread_mutex_lock(&lock);
    st = join_device(device);
    pthread_mutex_unlock(&lock);
    EK_TRY(st);
    k->name = names[mode];
    k->memory = &managed;
    k->state = &shared;
    k->enter = enter_device;
    k->wait = wait_stream;
    k->queue = set_enqueue;
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
        (void)cudaFreeHost(shared.results);
        (void)cudaFreeHost(shared.upload_host);
        (void)cudaFree(shared.upload_device);
        (void)cudaStreamDestroy(shared.stream);
        shared = (context){0};
    }
    pthread_mutex_unlock(&lock);
}

const ek_accelerator *ek_accelerator_linked(void)
{
    static const ek_accelerator cuda = {EK_CUDA_NAME, count_devices, describe_device, open_table,
                                        close_table};

    return &cuda;
}
