/* store/disk_priv.h - the queue's data, and the table of a back end.
 *
 * The queue (disk.c) cuts requests into pieces; a back end carries out pieces.  The queue's mutex
 * is held in every call of the table but `wait`. */
#ifndef STORE_DISK_PRIV_H
#define STORE_DISK_PRIV_H

#include "store/disk.h"

#include <pthread.h>

typedef struct ek_disk_piece ek_disk_piece;
typedef struct ek_disk_backend_table ek_disk_backend_table;

/* A part of a request, which one call at a time reads or writes. */
struct ek_disk_piece {
    ek_disk_request *request;
    unsigned char *data;
    int64_t offset; /* of the piece in the file */
    size_t bytes;   /* of the piece */
    size_t need;    /* of them, those that the request wants: a read may end behind the file */
    size_t from;    /* the next call begins here, aligned */
    size_t reached; /* bytes that are done */
    int retries;
    ek_disk_piece *next; /* in a list of the back end, or free */
};

struct ek_disk_file {
    ek_disk *disk;
    ek_disk_file *next; /* in the queue's list */
    char *path;
    int fd;
    int writable, direct;
    int64_t bytes;
    int unfinished; /* requests */
};

typedef struct {
    ek_disk_request *first, *last;
} ek_disk_list;

struct ek_disk {
    ek_disk_config config; /* without defaults left; memory is not kept */
    const ek_disk_io *io;
    const ek_disk_backend_table *table;
    void *backend; /* its own data */

    pthread_mutex_t mutex;   /* guards what follows */
    ek_disk_list waiting[2]; /* requests with pieces left to start; [1]: background */
    ek_disk_list ended;      /* not collected */
    ek_disk_piece *pieces;   /* [depth] */
    ek_disk_piece *free_pieces;
    ek_disk_file *files;
    int64_t busy_since_ns; /* while stats.in_flight > 0 */
    ek_disk_stats stats;
};

struct ek_disk_backend_table {
    const char *name;
    /* Sets d->backend.  EK_EUNSUPPORTED: the system has no such thing. */
    ek_status (*create)(ek_disk *d);
    void (*destroy)(ek_disk *d); /* nothing is in flight */
    /* Takes the piece's next call; `flush` hands the calls taken so far to the system. */
    void (*queue)(ek_disk *d, ek_disk_piece *p);
    void (*flush)(ek_disk *d);
    /* Calls ek_disk_piece_done for every call that has ended. */
    void (*reap)(ek_disk *d);
    /* Waits until a call may have ended, for at most so long; without the mutex. */
    void (*wait)(ek_disk *d, int64_t most_ns);
    size_t (*registered)(const ek_disk *d);
};

extern const ek_disk_backend_table ek_disk_uring, ek_disk_pool;

/* ek_disk_io.ring_init and ring_submit of the system. */
int ek_disk_ring_init(unsigned entries, struct io_uring *ring);
int ek_disk_ring_submit(struct io_uring *ring);

/* Whether a call that failed with this error number may succeed if it is made again. */
int ek_disk_is_passing(int error);

/* The result of a piece's call: bytes, or the negative error number. */
void ek_disk_piece_done(ek_disk *d, ek_disk_piece *p, int64_t result);

/* Cancels the unfinished requests of a file (NULL: of all files) and waits until they have ended.
 */
void ek_disk_cancel_file(ek_disk *d, const ek_disk_file *f);

/* Collects the ended requests of a file.  With the mutex. */
void ek_disk_drop_results(ek_disk *d, const ek_disk_file *f);

/* Closes a file that has no requests, and frees it; 0, or the error number of close(). */
int ek_disk_file_free(ek_disk_file *f);

#endif
