/* Batches: joining pieces to ranges; a reader: which ranges go past the page cache, and reading the
 * others through it. */
#include "store/file_batch.h"

#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    GAP_BYTES = 64 << 10, /* pieces so near are read together */
    SKIPS_MAX = 31,       /* ranges that are not looked for in the page cache after some were not
                             there */
    PREFETCH_BYTES = 1 << 20
};

/* Pages are dropped a few megabytes at a time, as the kernel keeps a block of pages that is dropped
 * in part, and a call may take it a millisecond; and not the last blocks, where other threads
 * read. */
enum { DROP_BYTES = 8 << 20, DROP_FROM = 6, DROP_TO = 2 };

struct ek_reader_file {
    ek_reader_file *next;
    const char *path;
    ek_disk_file *direct; /* NULL: it can only be read through the page cache */
    int fd;               /* for that */
    int skips, left;      /* ranges not looked for after the last one; so many of them are left */
};

struct ek_file_reader {
    ek_file_reader_config config;
    const ek_disk_io *io;
    ek_disk *disk;
    ek_reader_file *files;
    atomic_int_fast64_t cached; /* bytes */
};

/* --- a batch ---------------------------------------------------------------------------------- */

void ek_file_batch_free(ek_file_batch *b)
{
    free(b->ranges);
    *b = (ek_file_batch){0};
}

void ek_file_batch_clear(ek_file_batch *b)
{
    b->n = 0;
}

static int is_same_path(const char *a, const char *b)
{
    return a == b || strcmp(a, b) == 0;
}

/* Whether a range and [at, end) of a file are to be read together. */
static int are_near(const ek_file_range *g, const char *path, int64_t at, int64_t end)
{
    return g->at - GAP_BYTES <= end && at <= g->at + g->bytes + GAP_BYTES &&
           is_same_path(g->path, path);
}

static ek_status reserve_range(ek_file_batch *b)
{
    int64_t cap = 2 * b->cap + 4;
    ek_file_range *grown;

    if (b->n < b->cap)
        return EK_OK;
    grown = realloc(b->ranges, (size_t)cap * sizeof(*grown));
    EK_REQUIRE(grown != NULL, EK_ENOMEM, "no memory for a list of file ranges");
    b->ranges = grown;
    b->cap = cap;
    return EK_OK;
}

ek_status ek_file_batch_add(ek_file_batch *b, const char *path, int64_t at, int64_t bytes)
{
    int64_t end = at + bytes, i = 0;

    EK_TRY(reserve_range(b));
    while (i < b->n) {
        ek_file_range *g = &b->ranges[i];

        if (!are_near(g, path, at, end)) {
            i++;
            continue;
        }
        at = g->at < at ? g->at : at;
        end = g->at + g->bytes > end ? g->at + g->bytes : end;
        *g = b->ranges[--b->n];
        i = 0;
    }
    b->ranges[b->n++] = (ek_file_range){.path = path, .at = at, .bytes = end - at};
    return EK_OK;
}

size_t ek_file_batch_room(const ek_file_batch *b)
{
    size_t room = 0;

    for (int64_t i = 0; i < b->n; i++)
        room += ek_disk_span_of(b->ranges[i].at, (size_t)b->ranges[i].bytes).bytes;
    return room;
}

const void *ek_file_batch_find(const ek_file_batch *b, const char *path, int64_t at, int64_t bytes)
{
    for (int64_t i = 0; i < b->n; i++) {
        const ek_file_range *g = &b->ranges[i];

        if (at >= g->at && at + bytes <= g->at + g->bytes && is_same_path(g->path, path))
            return g->data + (at - g->at);
    }
    return NULL;
}

/* --- files ------------------------------------------------------------------------------------ */

/* Opens a file for reads through the page cache, and past it where that works. */
static ek_status open_both(ek_file_reader *r, ek_reader_file *f)
{
    do
        f->fd = r->io->open(f->path, O_RDONLY | O_CLOEXEC, 0);
    while (f->fd < 0 && errno == EINTR);
    if (f->fd < 0)
        return ek_fail_errno(errno, "open", f->path);
    if (r->config.through_cache)
        return EK_OK;
    EK_TRY(ek_disk_open(r->disk, f->path, EK_DISK_READ, &f->direct));
    return ek_disk_is_direct(f->direct) ? EK_OK : ek_disk_close(&f->direct);
}

static ek_status find_file(ek_file_reader *r, const char *path, ek_reader_file **out)
{
    ek_reader_file *f = r->files;

    while (f != NULL && !is_same_path(f->path, path))
        f = f->next;
    *out = f;
    if (f != NULL)
        return EK_OK;
    f = calloc(1, sizeof(*f));
    EK_REQUIRE(f != NULL, EK_ENOMEM, "no memory to open %s", path);
    *f = (ek_reader_file){.next = r->files, .path = path, .fd = -1};
    r->files = f;
    *out = f;
    return open_both(r, f);
}

/* Whether the page of a byte is in the page cache.  Looking makes the system read a few pages from
 * there on if not. */
static int is_page_cached(const ek_reader_file *f, int64_t at)
{
    char byte;
    struct iovec to = {&byte, 1};

    return preadv2(f->fd, &to, 1, (off_t)at, RWF_NOWAIT) == 1;
}

/* Whether a range is in the page cache, by its first and its last page.  After ranges that are not,
 * more and more are taken for the same without a look. */
static int is_cached(ek_reader_file *f, const ek_file_range *g)
{
    if (f->left > 0) {
        f->left--;
        return 0;
    }
    if (is_page_cached(f, g->at + g->bytes - 1) && is_page_cached(f, g->at)) {
        f->skips = 0;
        return 1;
    }
    f->skips = f->skips < SKIPS_MAX ? 2 * f->skips + 1 : SKIPS_MAX;
    f->left = f->skips;
    return 0;
}

/* --- reading ---------------------------------------------------------------------------------- */

/* Starts to read a range into the page cache, in pieces that the system does not cut short. */
static void prefetch_range(const ek_file_range *g)
{
    for (int64_t done = 0; done < g->bytes; done += PREFETCH_BYTES) {
        int64_t left = g->bytes - done;

        (void)posix_fadvise(g->file->fd, (off_t)(g->at + done),
                            (off_t)(left < PREFETCH_BYTES ? left : PREFETCH_BYTES),
                            POSIX_FADV_WILLNEED);
    }
}

static ek_status start_range(ek_file_reader *r, ek_file_range *g, unsigned char *buffer,
                             size_t room)
{
    EK_TRY(find_file(r, g->path, &g->file));
    g->cached = g->file->direct == NULL || is_cached(g->file, g);
    g->data = buffer;
    if (g->cached) {
        if (g->file->direct == NULL)
            prefetch_range(g);
        return EK_OK;
    }
    g->request = (ek_disk_request){.file = g->file->direct,
                                   .offset = g->at,
                                   .bytes = (size_t)g->bytes,
                                   .buffer = buffer,
                                   .room = room};
    EK_TRY(ek_disk_start(r->disk, &g->request));
    g->data = g->request.data;
    return EK_OK;
}

ek_status ek_file_reader_start(ek_file_reader *r, ek_file_batch *b, void *buffer, size_t room)
{
    unsigned char *at = buffer;

    EK_REQUIRE(ek_file_batch_room(b) <= room, EK_EINVAL,
               "a batch of %zu bytes does not fit in a buffer of %zu", ek_file_batch_room(b), room);
    for (int64_t i = 0; i < b->n; i++) {
        size_t bytes = ek_disk_span_of(b->ranges[i].at, (size_t)b->ranges[i].bytes).bytes;

        EK_TRY(start_range(r, &b->ranges[i], at, bytes));
        at += bytes;
    }
    return EK_OK;
}

/* Drops the pages of a range, and of what lies before it, from the page cache, unless there is
 * memory for them. */
static void drop_pages(ek_file_reader *r, const ek_file_range *g)
{
    int64_t from = g->at / DROP_BYTES, to = (g->at + g->bytes) / DROP_BYTES;
    int64_t before = atomic_fetch_add(&r->cached, g->bytes);

    if (r->config.cache_bytes == 0 || before < r->config.cache_bytes || from == to)
        return;
    from = from > DROP_FROM ? from - DROP_FROM : 0;
    to = to > DROP_TO ? to - DROP_TO : 0;
    if (to > from)
        (void)posix_fadvise(g->file->fd, (off_t)(from * DROP_BYTES),
                            (off_t)((to - from) * DROP_BYTES), POSIX_FADV_DONTNEED);
}

/* Copies a range from the page cache, or reads it there. */
static ek_status copy_range(ek_file_reader *r, ek_file_range *g)
{
    unsigned char *to = (unsigned char *)(uintptr_t)g->data;
    int64_t done = 0;

    while (done < g->bytes) {
        ssize_t got =
            r->io->pread(g->file->fd, to + done, (size_t)(g->bytes - done), (off_t)(g->at + done));

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return ek_fail_errno(errno, "read", g->path);
        EK_REQUIRE(got > 0, EK_EFORMAT,
                   "%s ends at byte %" PRId64 ": the file was cut short; copy or make it again",
                   g->path, g->at + done);
        done += got;
    }
    drop_pages(r, g);
    return EK_OK;
}

ek_status ek_file_reader_wait(ek_file_reader *r, ek_file_batch *b)
{
    for (int64_t i = 0; i < b->n; i++) {
        ek_file_range *g = &b->ranges[i];

        EK_TRY(g->cached ? copy_range(r, g) : ek_disk_wait(r->disk, &g->request));
    }
    return EK_OK;
}

ek_file_reader_bytes ek_file_reader_bytes_of(ek_file_reader *r)
{
    ek_disk_stats s;

    ek_disk_stats_of(r->disk, &s);
    return (ek_file_reader_bytes){s.read.moved, atomic_load(&r->cached)};
}

/* --- creation --------------------------------------------------------------------------------- */

ek_status ek_file_reader_create(const ek_file_reader_config *config, ek_file_reader **out)
{
    ek_file_reader *r = calloc(1, sizeof(*r));
    ek_status st;

    EK_REQUIRE(r != NULL, EK_ENOMEM, "no memory to read files");
    r->config = *config;
    r->io = config->io != NULL ? config->io : &ek_disk_io_system;
    st = ek_disk_create(
        &(ek_disk_config){.backend = config->backend, .depth = config->depth, .io = config->io},
        &r->disk);
    if (st < 0) {
        free(r);
        return st;
    }
    *out = r;
    return EK_OK;
}

void ek_file_reader_destroy(ek_file_reader **pr)
{
    ek_file_reader *r = *pr;

    if (r == NULL)
        return;
    ek_disk_destroy(&r->disk);
    for (ek_reader_file *f = r->files, *next; f != NULL; f = next) {
        next = f->next;
        if (f->fd >= 0)
            r->io->close(f->fd);
        free(f);
    }
    free(r);
    *pr = NULL;
}
