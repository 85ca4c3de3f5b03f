/* store/disk.h - asynchronous reads and writes of files, past the page cache where possible.
 *
 * A queue (ek_disk) carries out requests on the files that were opened with it.  A request is cut
 * into pieces (1 MiB by default), of which up to `depth` are in flight at once: that many calls
 * keep a drive busy, and a large request alone reaches the drive's rate.  Requests start in the
 * order in which they were submitted, background requests only while no other waits to start;
 * they may end in any order, and requests that overlap in the file are not ordered at all.
 *
 *   ek_disk_span span = ek_disk_span_of(offset, bytes);
 *   r = (ek_disk_request){.file = f, .offset = offset, .bytes = bytes,
 *                         .buffer = aligned, .room = span.bytes};
 *   EK_TRY(ek_disk_start(d, &r));
 *   ... while (ek_disk_test(d, &r) == EK_PENDING) compute ...
 *   use(r.data);                      the wanted bytes: aligned + span.skip
 *
 * Back ends    io_uring, or a pool of threads that call pread and pwrite, where the system has no
 *              io_uring or forbids it (containers do), which creating a queue finds out.
 * Alignment    files are opened with O_DIRECT where the file system can, so ranges of a file and
 *              buffers are multiples of EK_DISK_ALIGN.  A read may have any offset and size: it is
 *              rounded outwards into the buffer, which has to have room for it.  A write must be
 *              aligned.  The same holds for files that are read through the page cache.
 * Ownership    a request and its buffer belong to the caller; the queue uses both from
 *              ek_disk_start until the request has ended.  Whatever ends a request early
 *              (ek_disk_cancel, ek_disk_close, ek_disk_destroy) waits for its calls in flight, or
 *              says that it does not.
 * Progress     calls in flight go on by themselves, but the next ones start only while a function
 * of the queue runs: with 16 calls of 1 MiB in flight, a drive of 2 GB/s that is not looked after
 * for 8 ms is idle. Threads      every function may be called by any thread; a request is submitted
 * and collected by one thread at a time.  The threads of the pool sleep while nothing is in flight.
 * Memory       creating a queue and opening a file allocate; requests do not.
 * Errors       of a request: EK_EIO, EK_ENOSPC, EK_EFORMAT when the file ends before the wanted
 *              bytes do, EK_ECANCELED; the message names the file, the range and what to do. */
#ifndef STORE_DISK_H
#define STORE_DISK_H

#include "evenkeel/err.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    EK_DISK_ALIGN = 4096,     /* of offsets, sizes and buffers, in bytes; a power of two */
    EK_DISK_DEPTH = 16,       /* default of ek_disk_config.depth */
    EK_DISK_PIECE = 1 << 20,  /* default of ek_disk_config.piece_bytes */
    EK_DISK_DEPTH_MAX = 1024, /* largest depth */
    EK_DISK_THREADS_MAX = 64  /* most threads of the pool: it has one for each call in flight */
};

typedef struct ek_disk ek_disk;
typedef struct ek_disk_file ek_disk_file;
typedef struct ek_disk_request ek_disk_request;

struct io_uring; /* of liburing */

/* The system calls; tests replace them to let one fail.  Those without a comment are as their
 * namesakes: -1 and errno on failure. */
typedef struct {
    int (*open)(const char *path, int flags, mode_t mode);
    int (*set_direct)(int fd, int on);      /* switches O_DIRECT on or off */
    int (*allocate)(int fd, int64_t bytes); /* 0 or the error number, as posix_fallocate */
    ssize_t (*pread)(int fd, void *data, size_t bytes, off_t offset);
    ssize_t (*pwrite)(int fd, const void *data, size_t bytes, off_t offset);
    int (*sync)(int fd);
    int (*close)(int fd);
    int (*ring_init)(unsigned entries, struct io_uring *ring); /* 0 or the negative error number */
    int (*ring_submit)(struct io_uring *ring);                 /* entries, or the negative error */
    /* Sees the result of a call of the ring for data [bytes] (bytes moved, or the negative error
     * number) and returns the one to use. */
    int (*ring_result)(int write, void *data, size_t bytes, int result);
} ek_disk_io;

extern const ek_disk_io ek_disk_io_system;

typedef enum {
    EK_DISK_AUTO, /* io_uring, else the pool */
    EK_DISK_URING,
    EK_DISK_POOL
} ek_disk_backend;

/* Memory that buffers are in. */
typedef struct {
    void *start; /* a multiple of EK_DISK_ALIGN */
    size_t bytes;
} ek_disk_memory;

/* Zero is a default everywhere. */
typedef struct {
    ek_disk_backend backend;
    int depth;          /* most calls in flight */
    size_t piece_bytes; /* largest call; a multiple of EK_DISK_ALIGN */
    /* [n_memory] memory to register with io_uring, which saves looking up its pages at each call:
     * all of it becomes resident and is locked until the queue is destroyed.  Buffers elsewhere
     * work too.  Where the system refuses (RLIMIT_MEMLOCK), nothing is registered. */
    const ek_disk_memory *memory;
    int n_memory;
    const ek_disk_io *io; /* NULL: the real system calls */
} ek_disk_config;

/* Creates a queue; config NULL: all defaults.  EK_EINVAL for a setting out of range;
 * EK_EUNSUPPORTED if EK_DISK_URING was asked for and there is none; EK_ENOMEM. */
EK_CHECKED ek_status ek_disk_create(const ek_disk_config *config, ek_disk **out);
/* Cancels all requests, waits for the calls in flight, closes all files, and frees *d. */
void ek_disk_destroy(ek_disk **d);

/* "io_uring" or "pread pool". */
const char *ek_disk_backend_name(const ek_disk *d);
/* Bytes of config.memory that are registered. */
size_t ek_disk_registered(const ek_disk *d);

/* --- files ------------------------------------------------------------------------------------ */

typedef enum {
    EK_DISK_READ,  /* an existing file */
    EK_DISK_UPDATE /* reading and writing; made if it is missing, mode 0666 less the umask */
} ek_disk_mode;

/* Opens a regular file.  EK_ENOENT, EK_EFORMAT for other types, EK_EIO, EK_ENOMEM. */
EK_CHECKED ek_status ek_disk_open(ek_disk *d, const char *path, ek_disk_mode mode,
                                  ek_disk_file **out);
/* Makes an unnamed file of `bytes` in a folder, all of it allocated: gone when it is closed or the
 * process ends.  EK_ENOSPC when the disk has no room for it, EK_EIO, EK_ENOMEM. */
EK_CHECKED ek_status ek_disk_open_scratch(ek_disk *d, const char *folder, int64_t bytes,
                                          ek_disk_file **out);
/* Cancels the file's requests, waits for its calls in flight, collects them all, and closes it.
 * Their results must be looked at before.  EK_EIO, EK_ENOSPC: writes were lost; it is closed
 * anyway. */
EK_CHECKED ek_status ek_disk_close(ek_disk_file **f);

/* Whether calls go past the page cache.  If not, its pages count as memory of this process's
 * cgroup. */
int ek_disk_is_direct(const ek_disk_file *f);
/* Bytes of the file when it was opened. */
int64_t ek_disk_file_bytes(const ek_disk_file *f);
/* Waits until what ended requests wrote is on the disk.  EK_EIO, EK_ENOSPC. */
EK_CHECKED ek_status ek_disk_sync(ek_disk_file *f);

/* --- requests --------------------------------------------------------------------------------- */

/* A range of a file, rounded outwards. */
typedef struct {
    int64_t offset; /* its start in the file */
    size_t bytes;   /* its size: the least room of a buffer for it */
    size_t skip;    /* the wanted bytes begin so many bytes into it */
} ek_disk_span;

/* The range to read for `bytes` bytes at `offset`, neither negative. */
ek_disk_span ek_disk_span_of(int64_t offset, size_t bytes);

/* Room that suffices for `bytes` bytes at any offset. */
size_t ek_disk_room(size_t bytes);

/* A read or write.  The caller sets the first part (the rest is zero or from an earlier use). */
struct ek_disk_request {
    ek_disk_file *file;
    int write;      /* 0: read */
    int background; /* starts only while no other request waits to start */
    int64_t offset; /* in the file; in a write a multiple of EK_DISK_ALIGN */
    size_t bytes;   /* not 0; in a write a multiple of EK_DISK_ALIGN */
    void *buffer;   /* [room], a multiple of EK_DISK_ALIGN; a write does not change it */
    size_t room;    /* at least what ek_disk_span_of says; a read may overwrite all that it says */
    uint64_t tag;   /* the caller's own */

    /* set by ek_disk_start */
    unsigned char *data; /* the wanted bytes, in buffer */

    /* the queue's own */
    ek_disk_request *next, *prev; /* in its list */
    int state;
    int calls;       /* pieces in flight */
    size_t started;  /* bytes of the span that pieces were cut from */
    int error;       /* error number of the first piece that failed; 0: none */
    int64_t ends_at; /* the size of the file, found when it ended too early; -1: it did not */
    int64_t start_ns;
};

/* Submits a request; does not wait.  EK_EINVAL, without submitting it: not aligned, not enough
 * room, a range beyond 2^63, a write to a file opened for reading, a request that has not ended. */
EK_CHECKED ek_status ek_disk_start(ek_disk *d, ek_disk_request *r);

/* EK_PENDING until the request has ended, then its result.  Both collect it: ek_disk_poll will not
 * return it. */
EK_CHECKED ek_status ek_disk_test(ek_disk *d, ek_disk_request *r);
EK_CHECKED ek_status ek_disk_wait(ek_disk *d, ek_disk_request *r);

/* Collects the request that ended first, of those not yet collected: NULL if none has ended.
 * wait_any waits for one: NULL if all were collected.  Its result is ek_disk_result. */
ek_disk_request *ek_disk_poll(ek_disk *d);
ek_disk_request *ek_disk_wait_any(ek_disk *d);
/* The result of a request that has ended, as often as one asks. */
EK_CHECKED ek_status ek_disk_result(const ek_disk_request *r);

/* Waits until all requests have ended; collects none. */
void ek_disk_wait_all(ek_disk *d);

/* Ends a request early, with EK_ECANCELED: at once if none of its calls is in flight, else when
 * these are done, which it does not wait for.  Nothing happens to a request that has ended. */
void ek_disk_cancel(ek_disk *d, ek_disk_request *r);
/* Cancels all requests and waits until they have ended; collects none. */
void ek_disk_cancel_all(ek_disk *d);

/* --- statistics ------------------------------------------------------------------------------- */

/* Of reads or of writes, since the queue was created. */
typedef struct {
    int64_t requests; /* ended with success, */
    int64_t failed;   /* or without, cancelled ones included */
    int64_t bytes;    /* that the successful requests asked for */
    int64_t moved;    /* bytes that calls transferred, rounding included: those of /proc/PID/io */
    int64_t calls;
    int64_t time_ns;     /* of requests from submission to the end, summed */
    int64_t time_max_ns; /* the longest */
} ek_disk_traffic;

typedef struct {
    ek_disk_traffic read, written;
    int64_t busy_ns; /* wall time while a call was in flight, as far as polling shows it */
    int in_flight;   /* calls now */
    int unfinished;  /* requests now */
} ek_disk_stats;

void ek_disk_stats_of(ek_disk *d, ek_disk_stats *out);

#endif
