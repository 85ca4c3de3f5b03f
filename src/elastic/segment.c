/* Segments over shm_open; listed from the folder where Linux shows them. */
#include "elastic/segment.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/random.h"

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
static const char folder[] = "/dev/shm";
enum { VERSION = 2 };

_Static_assert(sizeof(ek_segment_head) <= EK_SEGMENT_ALIGN, "the head has a page");

static void name_of(const ek_segment_id *id, char name[EK_SEGMENT_NAME])
{
    snprintf(name, EK_SEGMENT_NAME, "/evenkeel-%016" PRIx64 "-%" PRId32 "-%" PRId32, id->run,
             id->generation, id->rank);
}

static ek_status fail(int error, const char *doing, const char *name)
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

ek_status ek_segment_room(size_t *bytes)
{
    int64_t n;

    EK_TRY(ek_folder_free(folder, &n));
    *bytes = (size_t)n;
    return EK_OK;
}

/* --- mapping ----------------------------------------------------------------------------------
 */

/* Maps an open segment, which keeps the descriptor. */
static ek_status map(int fd, size_t bytes, const char *name, ek_segment *s)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    int e = errno;

    if (p == MAP_FAILED) {
        close(fd);
        return fail(e, "map", name);
    }
    *s = (ek_segment){.head = p,
                      .body = (unsigned char *)p + EK_SEGMENT_ALIGN,
                      .body_bytes = bytes - EK_SEGMENT_ALIGN,
                      .fd = fd};
    return EK_OK;
}

void ek_segment_close(ek_segment *s)
{
    if (s->head != NULL) {
        munmap(s->head, s->body_bytes + EK_SEGMENT_ALIGN);
        close(s->fd);
    }
    *s = (ek_segment){0};
}

static ek_status no_room(int error, size_t bytes, const char *name)
{
    size_t room = 0;

    if (error != ENOSPC && error != EFBIG && error != ENOMEM)
        return fail(error, "reserve", name);
    if (ek_segment_room(&room) < 0)
        room = 0;
    return EK_FAIL(EK_ENOSPC,
                   "the state of a rank needs %.1f MB of shared memory, and %s has room for %.1f "
                   "MB; make that larger (mount -o remount,size=...), or leave --elastic out",
                   (double)bytes / 1e6, folder, (double)room / 1e6);
}

/* Opens a new one of so many bytes. */
static ek_status reserve(const char *name, size_t bytes, int *fd)
{
    int e;

    shm_unlink(name); /* nobody can be using it: a run has one generation at a time */
    *fd = shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600);
    if (*fd < 0)
        return fail(errno, "make", name);
    e = flock(*fd, LOCK_EX | LOCK_NB) == 0 ? posix_fallocate(*fd, 0, (off_t)bytes) : errno;
    if (e == 0)
        return EK_OK;
    close(*fd);
    shm_unlink(name);
    return no_room(e, bytes, name);
}

ek_status ek_segment_create(const ek_segment_id *id, int32_t ranks, uint64_t likeness,
                            const char *out, size_t bytes, ek_segment *s)
{
    char name[EK_SEGMENT_NAME];
    size_t all = (bytes + 2 * EK_SEGMENT_ALIGN - 1) / EK_SEGMENT_ALIGN * EK_SEGMENT_ALIGN;
    int fd = -1;

    name_of(id, name);
    EK_TRY(reserve(name, all, &fd));
    EK_TRY(map(fd, all, name, s));
    s->head->version = VERSION;
    s->head->head_bytes = sizeof(*s->head);
    s->head->bytes = all;
    s->head->id = *id;
    s->head->ranks = ranks;
    s->head->likeness = likeness;
    s->head->pid = (int32_t)getpid();
    snprintf(s->head->out, sizeof(s->head->out), "%s", out);
    if (gethostname(s->head->host, sizeof(s->head->host) - 1) != 0)
        s->head->host[0] = '\0';
    ek_segment_set_phase(s, EK_SEGMENT_BUILDING);
    memcpy(s->head->magic, magic, sizeof(magic));
    return EK_OK;
}

static ek_status check(const ek_segment *s, const ek_segment_id *id, const char *name)
{
    const ek_segment_head *h = s->head;

    EK_REQUIRE(memcmp(h->magic, magic, sizeof(magic)) == 0, EK_ECORRUPT,
               "shared memory %s is not the state of a run", name);
    EK_REQUIRE(h->version == VERSION && h->head_bytes == sizeof(*h), EK_EUNSUPPORTED,
               "shared memory %s is of another version of evenkeel (%u); go on with that one, or "
               "remove it with `evenkeel clean`",
               name, h->version);
    EK_REQUIRE(h->bytes == s->body_bytes + EK_SEGMENT_ALIGN && h->id.run == id->run &&
                   h->id.generation == id->generation && h->id.rank == id->rank,
               EK_ECORRUPT, "shared memory %s is not what its name says", name);
    return EK_OK;
}

/* Waits until nobody holds the lock alone. */
static ek_status wait_for_end(int fd, const char *name, double wait_s)
{
    struct timespec nap = {0, 5000000};
    int64_t end = ek_clock_ns() + (int64_t)(wait_s * 1e9);

    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return fail(errno, "lock", name);
        EK_REQUIRE(ek_clock_ns() < end, EK_ESTATE,
                   "the process that shared memory %s belongs to still runs", name);
        nanosleep(&nap, NULL);
    }
    return EK_OK;
}

/* The process that holds the lock of a file, by Linux's list of locks; 0: nobody there does. */
static int holder_of(const struct stat *of)
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

int ek_segment_kill_holder(const ek_segment_id *id, uint64_t starter)
{
    ek_segment s = {0};
    struct stat of;
    int pid = 0;

    if (starter == 0 || ek_segment_open(id, -1, &s) < 0)
        return 0;
    if (s.head->starter == starter && fstat(s.fd, &of) == 0)
        pid = holder_of(&of);
    ek_segment_close(&s);
    return pid > 0 && pid != getpid() && kill(pid, SIGKILL) == 0 ? pid : 0;
}

ek_status ek_segment_open(const ek_segment_id *id, double wait_s, ek_segment *s)
{
    char name[EK_SEGMENT_NAME];
    struct stat of = {0};
    ek_status st = EK_OK;
    int fd;

    *s = (ek_segment){0};
    name_of(id, name);
    fd = shm_open(name, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0)
        return fail(errno, "open", name);
    st = wait_s >= 0 ? wait_for_end(fd, name, wait_s) : EK_OK;
    if (st < 0) {
        close(fd);
        return st;
    }
    if (fstat(fd, &of) != 0 || of.st_size <= EK_SEGMENT_ALIGN) {
        close(fd);
        return EK_FAIL(EK_ECORRUPT, "shared memory %s has %lld bytes, too few for a run's state",
                       name, (long long)of.st_size);
    }
    EK_TRY(map(fd, (size_t)of.st_size, name, s));
    EK_TRY_OUT(check(s, id, name));
    return EK_OK;
out:
    ek_segment_close(s);
    return st;
}

ek_status ek_segment_remove(const ek_segment_id *id)
{
    char name[EK_SEGMENT_NAME];

    name_of(id, name);
    if (shm_unlink(name) != 0 && errno != ENOENT)
        return fail(errno, "remove", name);
    return EK_OK;
}

/* --- listing ----------------------------------------------------------------------------------
 */

/* Whether a name is that of a segment, to the letter. */
static int read_name(const char *text, ek_segment_id *id)
{
    char again[EK_SEGMENT_NAME];

    if (sscanf(text, "evenkeel-%16" SCNx64 "-%" SCNd32 "-%" SCNd32, &id->run, &id->generation,
               &id->rank) != 3)
        return 0;
    name_of(id, again);
    return id->generation >= 0 && id->rank >= 0 && strcmp(again + 1, text) == 0;
}

/* Whether it is this user's. */
static int is_own(const char *text)
{
    struct stat of;
    ek_path path;

    return ek_path_set(&path, "%s/%s", folder, text) == EK_OK && stat(path.s, &of) == 0 &&
           of.st_uid == geteuid();
}

static int compare(const void *a, const void *b)
{
    const ek_segment_id *x = a, *y = b;

    if (x->run != y->run)
        return x->run < y->run ? -1 : 1;
    if (x->generation != y->generation)
        return x->generation < y->generation ? -1 : 1;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

ek_status ek_segment_list(uint64_t run, ek_segment_id **ids, int64_t *n)
{
    ek_names names = {0};
    ek_status st = EK_OK;

    *ids = NULL;
    *n = 0;
    if (ek_file_kind_of(folder) == EK_FILE_FOLDER) /* else the system has no such memory */
        EK_TRY(ek_folder_entries(folder, &names));
    *ids = malloc(((size_t)names.n + 1) * sizeof(**ids));
    EK_REQUIRE_OUT(*ids != NULL, EK_ENOMEM, "no memory for %lld names", (long long)names.n);
    for (int64_t i = 0; i < names.n; i++) {
        ek_segment_id *id = &(*ids)[*n];

        if (read_name(names.names[i], id) && (run == 0 || id->run == run) && is_own(names.names[i]))
            ++*n;
    }
    qsort(*ids, (size_t)*n, sizeof(**ids), compare);
out:
    ek_names_free(&names);
    return st;
}
