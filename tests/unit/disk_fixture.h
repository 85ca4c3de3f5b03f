/* disk_fixture.h - a folder with a file of known bytes, and queues of each back end. */
#ifndef DISK_FIXTURE_H
#define DISK_FIXTURE_H

#include "base/file.h"
#include "base/random.h"
#include "ek_test.h"
#include "store/disk.h"

#include <fcntl.h>
#include <stdint.h>
#include <sys/stat.h>

static const ek_disk_backend backends[] = {EK_DISK_URING, EK_DISK_POOL};

typedef struct {
    char folder[64], path[128];
    unsigned char *bytes; /* [size], what the file holds */
    size_t size;
} disk_file;

/* A buffer of a multiple of the alignment, aligned. */
static inline unsigned char *aligned_buffer(size_t bytes)
{
    unsigned char *p = aligned_alloc(EK_DISK_ALIGN, ek_disk_span_of(0, bytes).bytes);

    if (p == NULL)
        abort();
    return p;
}

/* The byte of the test's files at an offset: no two neighbouring blocks are equal. */
static inline unsigned char byte_at(size_t offset)
{
    return (unsigned char)(offset ^ offset >> 8 ^ (offset >> 16) * 7 ^ (offset >> 12) * 31);
}

static inline int make_disk_file(disk_file *f, size_t size)
{
    int fd, ok;

    snprintf(f->folder, sizeof(f->folder), "/var/tmp/ek_disk_XXXXXX"); /* not a tmpfs */
    f->size = size;
    f->bytes = malloc(size + 1);
    if (f->bytes == NULL || mkdtemp(f->folder) == NULL)
        return 0;
    for (size_t i = 0; i < size; i++)
        f->bytes[i] = byte_at(i);
    snprintf(f->path, sizeof(f->path), "%s/data", f->folder);
    fd = open(f->path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    ok = fd >= 0 && write(fd, f->bytes, size) == (ssize_t)size && fsync(fd) == 0;
    if (fd >= 0)
        close(fd);
    return ok;
}

static inline void remove_disk_file(disk_file *f)
{
    free(f->bytes);
    ek_folder_discard(NULL, f->folder);
}

/* A queue of a back end; NULL, with a message, where the system does not have it. */
static inline ek_disk *open_disk(const ek_disk_config *config, ek_disk_backend backend)
{
    ek_disk_config c = config != NULL ? *config : (ek_disk_config){0};
    ek_disk *d = NULL;
    ek_status st;

    c.backend = backend;
    st = ek_disk_create(&c, &d);
    if (st == EK_EUNSUPPORTED)
        fprintf(stderr, "not tested: %s\n", ek_err_message());
    else
        CHECK(st == EK_OK);
    return d;
}

/* A read of the wanted bytes into a buffer that has just the room for it. */
static inline ek_disk_request read_of(ek_disk_file *f, size_t offset, size_t bytes, void *buffer)
{
    return (ek_disk_request){.file = f,
                             .offset = (int64_t)offset,
                             .bytes = bytes,
                             .buffer = buffer,
                             .room = ek_disk_span_of((int64_t)offset, bytes).bytes};
}

#endif
