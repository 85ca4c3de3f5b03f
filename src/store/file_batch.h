/* store/file_batch.h - pieces of files, read together into one buffer.
 *
 * A batch joins pieces that lie near one another to ranges, each of which is one request of a disk
 * queue (store/disk.h): past the page cache, rounded outwards.  Through the page cache go ranges
 * that it holds already, and files that cannot be read past it; the thread that waits for the batch
 * copies them.
 *
 *   ek_file_batch_clear(&b);
 *   EK_TRY(ek_file_batch_add(&b, path, at, bytes)); ...
 *   EK_TRY(ek_file_reader_start(r, &b, buffer, ek_file_batch_room(&b)));
 *   ... start others, compute ...
 *   EK_TRY(ek_file_reader_wait(r, &b));
 *   use(ek_file_batch_find(&b, path, at, bytes));
 *
 * Ownership    a batch and its buffer belong to the caller; the reader uses both from the start to
 *              the end of the wait, or, after a failure, until it is destroyed.  Paths are
 *              borrowed until then.
 * Threads      batches are started by one thread at a time; any threads may wait for them, each
 *              for its own.
 * Errors       those of store/disk.h. */
#ifndef STORE_FILE_BATCH_H
#define STORE_FILE_BATCH_H

#include "store/disk.h"

/* --- a batch ---------------------------------------------------------------------------------- */

typedef struct ek_reader_file ek_reader_file;

/* Bytes of a file that are read at once. */
typedef struct {
    const char *path;
    int64_t at, bytes;
    ek_reader_file *file;
    const unsigned char *data; /* the bytes, once they were waited for */
    int cached;                /* read through the page cache */
    ek_disk_request request;   /* else */
} ek_file_range;

/* Starts as zero. */
typedef struct {
    ek_file_range *ranges;
    int64_t n, cap;
} ek_file_batch;

void ek_file_batch_free(ek_file_batch *b);
void ek_file_batch_clear(ek_file_batch *b);
/* Adds a piece; allocates when the batch has more ranges than ever before (EK_ENOMEM). */
EK_CHECKED ek_status ek_file_batch_add(ek_file_batch *b, const char *path, int64_t at,
                                       int64_t bytes);
/* Bytes of a buffer for it. */
size_t ek_file_batch_room(const ek_file_batch *b);
/* Bytes of a file; NULL: they are not part of the batch. */
const void *ek_file_batch_find(const ek_file_batch *b, const char *path, int64_t at, int64_t bytes);

/* --- a reader --------------------------------------------------------------------------------- */

/* Zero is a default everywhere. */
typedef struct {
    ek_disk_backend backend;
    int depth;           /* most calls in flight */
    int through_cache;   /* read everything through the page cache: others read the same files */
    int64_t cache_bytes; /* of what is read through the page cache, bytes that may stay there; those
                            beyond are dropped as they are read; 0: any number */
    const ek_disk_io *io; /* NULL: the real system calls */
} ek_file_reader_config;

/* Bytes that were read, rounding included. */
typedef struct {
    int64_t direct, cached;
} ek_file_reader_bytes;

typedef struct ek_file_reader ek_file_reader;

EK_CHECKED ek_status ek_file_reader_create(const ek_file_reader_config *config,
                                           ek_file_reader **out);
/* Ends what is in flight. */
void ek_file_reader_destroy(ek_file_reader **r);

/* buffer: [room], a multiple of EK_DISK_ALIGN. */
EK_CHECKED ek_status ek_file_reader_start(ek_file_reader *r, ek_file_batch *b, void *buffer,
                                          size_t room);
EK_CHECKED ek_status ek_file_reader_wait(ek_file_reader *r, ek_file_batch *b);

ek_file_reader_bytes ek_file_reader_bytes_of(ek_file_reader *r);

#endif
