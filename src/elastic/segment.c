/* Segments: files of a folder in /dev/shm (segment_folder.c), mapped to adjacent addresses.
 *
 * The file "front" holds the head, the byte offsets of the blocks in the body, and the front of the
 * body, each aligned to EK_SEGMENT_ALIGN; "0", "1", ... are the blocks. */
#include "base/clock.h"
#include "base/count_text.h"
#include "base/file.h"
#include "base/random.h"
#include "elastic/segment_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

static const char magic[8] = "EKSTATE";
enum { VERSION = 5, MAX_BLOCKS = 1 << 24 };

_Static_assert(sizeof(ek_segment_head) <= EK_SEGMENT_ALIGN, "the head has a page");

static size_t round_up(size_t n)
{
    return (n + EK_SEGMENT_ALIGN - 1) / EK_SEGMENT_ALIGN * EK_SEGMENT_ALIGN;
}

static size_t table_bytes(int64_t blocks)
{
    return blocks > 0 ? round_up(((size_t)blocks + 1) * sizeof(uint64_t)) : 0;
}

static ek_status shm_error(int error, const char *doing, const char *name)
{
    char buf[128];

    return EK_FAIL(error == ENOENT ? EK_ENOENT : EK_EIO, "cannot %s shared memory %s: %s", doing,
                   name, strerror_r(error, buf, sizeof(buf)));
}

uint64_t ek_run_id(const char *out)
{
    uint64_t id = ek_random_bits(ek_random_stream(out), (uint64_t)getuid(), 0);

    return id != 0 ? id : 1;
}

ek_status ek_segment_available(size_t *bytes)
{
    int64_t n;

    EK_TRY(ek_folder_free(EK_SEGMENT_ROOT, &n));
    *bytes = (size_t)n;
    return EK_OK;
}

/* --- mapping ---------------------------------------------------------------------------------- */

/* Maps the first `bytes` of a file at a fixed address of the segment's reserved range. */
static ek_status map_file_at(unsigned char *at, int fd, size_t bytes, const char *name)
{
    void *p = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);

    return p == MAP_FAILED ? shm_error(errno, "map", name) : EK_OK;
}

/* Reserves addresses for a whole segment and maps its front.  Takes ownership of fd; closes it on
 * failure. */
static ek_status map_segment(int fd, const ek_segment_head *h, const char *name, ek_segment *s)
{
    size_t before = EK_SEGMENT_ALIGN + table_bytes(h->blocks);
    void *p = mmap(NULL, h->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ek_status st = EK_OK;

    if (p == MAP_FAILED) {
        close(fd);
        return shm_error(ENOMEM, "map", name);
    }
    *s = (ek_segment){.head = p,
                      .block_at = (const uint64_t *)((unsigned char *)p + EK_SEGMENT_ALIGN),
                      .body = (unsigned char *)p + before,
                      .body_bytes = h->bytes - before,
                      .fd = fd};
    EK_TRY_OUT(map_file_at(p, fd, before + h->front, name));
    return EK_OK;
out:
    munmap(p, h->bytes);
    close(fd);
    *s = (ek_segment){0};
    return st;
}

void ek_segment_close(ek_segment *s)
{
    if (s->head != NULL) {
        munmap(s->head, s->head->bytes);
        close(s->fd);
    }
    *s = (ek_segment){0};
}

ek_status ek_segment_too_small(const char *what, double bytes)
{
    size_t available = 0;
    char need[32], left[32];

    if (ek_segment_available(&available) < 0)
        available = 0;
    return EK_FAIL(EK_ENOSPC,
                   "%s needs %s of shared memory, and %s has %s free; enlarge it (mount -o "
                   "remount,size=...), or start with --elastic=false",
                   what, ek_bytes_text(need, sizeof(need), bytes), EK_SEGMENT_ROOT,
                   ek_bytes_text(left, sizeof(left), (double)available));
}

static ek_status reserve_error(int error, size_t bytes, const char *name)
{
    if (error != ENOSPC && error != EFBIG && error != ENOMEM)
        return shm_error(error, "reserve", name);
    return ek_segment_too_small("the state of a rank", (double)bytes);
}

/* Reserves memory for a whole file; retries after signals.  Returns an error number. */
static int allocate_file(int fd, size_t bytes)
{
    int e;

    do {
        e = posix_fallocate(fd, 0, (off_t)bytes);
    } while (e == EINTR);
    return e;
}

/* Creates a file of `bytes`; whole: bytes of the segment, for the message. */
static ek_status create_file(const char *name, int lock, size_t bytes, size_t whole, int *fd)
{
    int e;

    *fd = open(name, O_CREAT | O_EXCL | O_RDWR | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR);
    if (*fd < 0)
        return shm_error(errno, "make", name);
    e = !lock || flock(*fd, LOCK_EX | LOCK_NB) == 0 ? allocate_file(*fd, bytes) : errno;
    if (e == 0)
        return EK_OK;
    close(*fd);
    unlink(name);
    return reserve_error(e, whole, name);
}

/* Byte offsets of blocks in the body: at [n + 1], unless NULL.  Returns the end of the last. */
static size_t block_offsets(size_t front, const size_t *block_bytes, int64_t n, uint64_t *at)
{
    size_t end = round_up(front > 0 ? front : 1);

    for (int64_t k = 0; k <= n; k++) {
        if (at != NULL)
            at[k] = end;
        end += k < n ? round_up(block_bytes[k]) : 0;
    }
    return end;
}

ek_status ek_segment_create(const ek_segment_id *id, int32_t ranks, uint64_t fingerprint,
                            const char *out, size_t front, const size_t *block_bytes, int64_t n,
                            ek_segment *s)
{
    char folder[EK_SEGMENT_FOLDER], name[EK_SEGMENT_PATH];
    ek_segment_head h = {.version = VERSION,
                         .head_bytes = sizeof(h),
                         .front = round_up(front > 0 ? front : 1),
                         .blocks = n,
                         .id = *id,
                         .ranks = ranks,
                         .fingerprint = fingerprint,
                         .pid = (int32_t)getpid()};
    size_t before = EK_SEGMENT_ALIGN + table_bytes(n);
    ek_status st = EK_OK;
    int fd = -1;

    h.bytes = before + block_offsets(front, block_bytes, n, NULL);
    snprintf(h.out, sizeof(h.out), "%s", out);
    if (gethostname(h.host, sizeof(h.host) - 1) != 0)
        h.host[0] = '\0';
    /* not in use: a run has one generation at a time, and the creator of a preallocated segment was
     * killed */
    EK_TRY(ek_segment_remove(id));
    EK_TRY(ek_segment_folder_make(id, folder));
    ek_segment_front_path(folder, name);
    EK_TRY_OUT(create_file(name, 1, before + h.front, h.bytes, &fd));
    EK_TRY_OUT(map_segment(fd, &h, name, s));
    memcpy(s->folder, folder, sizeof(folder));
    memcpy(s->head, &h, sizeof(h));
    if (n > 0)
        block_offsets(front, block_bytes, n,
                      (uint64_t *)((unsigned char *)s->head + EK_SEGMENT_ALIGN));
    ek_segment_set_phase(s, EK_SEGMENT_BUILDING);
    memcpy(s->head->magic, magic, sizeof(magic));
    return EK_OK;
out:
    unlink(name);
    rmdir(folder);
    return st;
}

/* --- blocks ----------------------------------------------------------------------------------- */

/* Maps block k from fd, and closes fd. */
static ek_status map_block(ek_segment *s, int64_t k, int fd, const char *name)
{
    ek_status st = map_file_at(s->body + s->block_at[k], fd, ek_segment_block_bytes(s, k), name);

    close(fd);
    return st;
}

/* Pre-faults an existing block: a read fault also maps the pages around it, which a write fault
 * does not.  MAP_POPULATE takes 1.5 times as long. */
static void prefault_read(const ek_segment *s, int64_t k)
{
    enum { FOUND = 1 << 16 }; /* bytes a read fault maps: Linux's default fault_around_bytes */
    const volatile unsigned char *p = s->body + s->block_at[k];
    size_t bytes = ek_segment_block_bytes(s, k);

    for (size_t i = 0; i < bytes; i += FOUND)
        (void)p[i];
    (void)p[bytes - 1];
}

/* Pre-faults a new block at once instead of page by page; advice only. */
static void prefault_write(const ek_segment *s, int64_t k)
{
#ifdef MADV_POPULATE_WRITE
    (void)madvise(s->body + s->block_at[k], ek_segment_block_bytes(s, k), MADV_POPULATE_WRITE);
#else
    (void)s;
    (void)k;
#endif
}

ek_status ek_segment_create_block(ek_segment *s, int64_t k)
{
    char name[EK_SEGMENT_PATH];
    int fd = -1;

    ek_segment_block_path(s->folder, k, name);
    EK_TRY(create_file(name, 0, ek_segment_block_bytes(s, k), s->head->bytes, &fd));
    EK_TRY(map_block(s, k, fd, name));
    prefault_write(s, k);
    return EK_OK;
}

/* Maps an existing block. */
static ek_status open_block(ek_segment *s, int64_t k)
{
    char name[EK_SEGMENT_PATH];
    struct stat of = {0};
    int fd;

    ek_segment_block_path(s->folder, k, name);
    fd = open(name, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return EK_FAIL(errno == ENOENT ? EK_ECORRUPT : EK_EIO, "shared memory %s cannot be opened",
                       name);
    if (fstat(fd, &of) != 0 || (uint64_t)of.st_size != ek_segment_block_bytes(s, k)) {
        close(fd);
        return EK_FAIL(EK_ECORRUPT, "shared memory %s has %lld bytes instead of %zu", name,
                       (long long)of.st_size, ek_segment_block_bytes(s, k));
    }
    return map_block(s, k, fd, name);
}

/* Gives the file of block j of `from` the name of block k of s, by link() or rename(). */
static ek_status attach_block(ek_segment *s, int64_t k, const ek_segment *from, int64_t j,
                              int (*by)(const char *, const char *))
{
    char old[EK_SEGMENT_PATH], name[EK_SEGMENT_PATH];

    ek_segment_block_path(from->folder, j, old);
    ek_segment_block_path(s->folder, k, name);
    EK_REQUIRE(ek_segment_block_bytes(s, k) == ek_segment_block_bytes(from, j), EK_EINVAL,
               "shared memory %s has not the size of %s", old, name);
    if (by(old, name) != 0)
        return shm_error(errno, "adopt", old);
    EK_TRY(open_block(s, k));
    prefault_read(s, k);
    return EK_OK;
}

ek_status ek_segment_adopt_block(ek_segment *s, int64_t k, const ek_segment *from, int64_t j)
{
    return attach_block(s, k, from, j, link);
}

/* A process that was killed while it created a block may have left a file that is too short. */
ek_status ek_segment_move_block(ek_segment *s, int64_t k, const ek_segment *from, int64_t j)
{
    char name[EK_SEGMENT_PATH];
    struct stat of;

    ek_segment_block_path(from->folder, j, name);
    if (lstat(name, &of) != 0 || (size_t)of.st_size != ek_segment_block_bytes(from, j))
        return EK_ENOENT;
    return attach_block(s, k, from, j, rename);
}

/* --- opening ---------------------------------------------------------------------------------- */

/* Checks the head of a front file of `bytes`. */
static ek_status check_head(const ek_segment_head *h, const ek_segment_id *id, size_t bytes,
                            const char *name)
{
    EK_REQUIRE(memcmp(h->magic, magic, sizeof(magic)) == 0, EK_ECORRUPT,
               "shared memory %s is not the state of a run", name);
    EK_REQUIRE(h->version == VERSION && h->head_bytes == sizeof(*h), EK_EUNSUPPORTED,
               "shared memory %s was written by a version of evenkeel with another format (%u); "
               "continue with that version, or remove it with `evenkeel clean`",
               name, h->version);
    EK_REQUIRE(h->blocks >= 0 && h->blocks < MAX_BLOCKS && h->front <= bytes &&
                   EK_SEGMENT_ALIGN + table_bytes(h->blocks) + h->front == bytes &&
                   h->bytes >= bytes && h->bytes < SIZE_MAX / 2 && h->id.run == id->run &&
                   h->id.generation == id->generation && h->id.rank == id->rank,
               EK_ECORRUPT, "shared memory %s is not what its name says", name);
    return EK_OK;
}

/* Checks that blocks are contiguous up to the body's end. */
static ek_status check_blocks(const ek_segment *s, const char *name)
{
    int64_t n = s->head->blocks;

    for (int64_t k = 0; k < n; k++)
        EK_REQUIRE(s->block_at[k] < s->block_at[k + 1] && s->block_at[k] % EK_SEGMENT_ALIGN == 0,
                   EK_ECORRUPT, "shared memory %s: block %lld is empty", name, (long long)k);
    EK_REQUIRE(n > 0 ? s->block_at[0] == s->head->front && s->block_at[n] == s->body_bytes
                     : s->head->front == s->body_bytes,
               EK_ECORRUPT, "shared memory %s is not what its name says", name);
    return EK_OK;
}

static ek_status open_blocks(ek_segment *s, const char *name)
{
    EK_TRY(check_blocks(s, name));
    if (ek_segment_phase_of(s) == EK_SEGMENT_BUILDING) {
        s->body_bytes = s->head->front;
        return EK_OK;
    }
    for (int64_t k = 0; k < s->head->blocks; k++)
        EK_TRY(open_block(s, k));
    return EK_OK;
}

/* Waits up to wait_s seconds for the lock. */
static ek_status wait_lock(int fd, const char *name, double wait_s)
{
    struct timespec nap = {0, 5000000};
    int64_t end = ek_clock_ns() + ek_clock_from_s(wait_s);

    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return shm_error(errno, "lock", name);
        EK_REQUIRE(ek_clock_ns() < end, EK_ESTATE,
                   "the process that holds shared memory %s still runs", name);
        nanosleep(&nap, NULL);
    }
    return EK_OK;
}

/* The process that holds the flock of a file, from /proc/locks; 0: none. */
static int lock_holder(const struct stat *of)
{
    FILE *f = fopen("/proc/locks", "re");
    char line[256];
    int found = 0;

    while (f != NULL && found == 0 && fgets(line, sizeof(line), f) != NULL) {
        unsigned major, minor;
        unsigned long long inode;
        int pid;

        if (sscanf(line, "%*d: FLOCK %*s %*s %d %x:%x:%llu", &pid, &major, &minor, &inode) == 4 &&
            inode == of->st_ino && makedev(major, minor) == of->st_dev)
            found = pid;
    }
    if (f != NULL)
        fclose(f);
    return found;
}

int ek_segment_kill_holder(const ek_segment_id *id, uint64_t supervisor_id)
{
    ek_segment s = {0};
    struct stat of;
    int pid = 0;

    if (supervisor_id == 0 || ek_segment_open(id, -1, &s) < 0)
        return 0;
    if (s.head->supervisor_id == supervisor_id && fstat(s.fd, &of) == 0)
        pid = lock_holder(&of);
    ek_segment_close(&s);
    return pid > 0 && pid != getpid() && kill(pid, SIGKILL) == 0 ? pid : 0;
}

ek_status ek_segment_open(const ek_segment_id *id, double wait_s, ek_segment *s)
{
    char folder[EK_SEGMENT_FOLDER], name[EK_SEGMENT_PATH];
    struct stat of = {0};
    ek_segment_head h;
    ek_status st = EK_OK;
    int fd, kept;

    *s = (ek_segment){0};
    EK_TRY(ek_segment_folder_find(id, folder));
    ek_segment_front_path(folder, name);
    fd = open(name, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return shm_error(errno, "open", name);
    EK_TRY_OUT(wait_s >= 0 ? wait_lock(fd, name, wait_s) : EK_OK);
    EK_REQUIRE_OUT(fstat(fd, &of) == 0 && of.st_size > EK_SEGMENT_ALIGN &&
                       pread(fd, &h, sizeof(h), 0) == (ssize_t)sizeof(h),
                   EK_ECORRUPT, "shared memory %s has %lld bytes, too few for a run's state", name,
                   (long long)of.st_size);
    EK_TRY_OUT(check_head(&h, id, (size_t)of.st_size, name));
    kept = fd;
    fd = -1;
    EK_TRY_OUT(map_segment(kept, &h, name, s));
    memcpy(s->folder, folder, sizeof(folder));
    EK_TRY_OUT(open_blocks(s, name));
    return EK_OK;
out:
    ek_segment_close(s);
    if (fd >= 0)
        close(fd);
    return st;
}
