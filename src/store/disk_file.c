/* Files of a disk queue: opening with O_DIRECT where that works, closing, and the table of system
 * calls. */
#include "base/count_text.h"
#include "base/file.h"
#include "store/disk_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- system calls ----------------------------------------------------------------------------- */

static int system_open(const char *path, int flags, mode_t mode)
{
    return open(path, flags, mode);
}

static int system_set_direct(int fd, int on)
{
    int flags = fcntl(fd, F_GETFL);

    if (flags < 0)
        return -1;
    return fcntl(fd, F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT);
}

static int system_allocate(int fd, int64_t bytes)
{
    return posix_fallocate(fd, 0, (off_t)bytes);
}

static int same_result(int write, void *data, size_t bytes, int result)
{
    (void)write;
    (void)data;
    (void)bytes;
    return result;
}

const ek_disk_io ek_disk_io_system = {.open = system_open,
                                      .set_direct = system_set_direct,
                                      .allocate = system_allocate,
                                      .pread = pread,
                                      .pwrite = pwrite,
                                      .sync = fdatasync,
                                      .close = close,
                                      .ring_init = ek_disk_ring_init,
                                      .ring_submit = ek_disk_ring_submit,
                                      .ring_result = same_result};

/* --- opening ---------------------------------------------------------------------------------- */

/* Switches to O_DIRECT if a read then works: some file systems accept the flag and refuse reads. */
static int try_direct(const ek_disk_io *io, int fd)
{
    _Alignas(EK_DISK_ALIGN) unsigned char block[EK_DISK_ALIGN];

    if (io->set_direct(fd, 1) != 0)
        return 0;
    if (io->pread(fd, block, sizeof(block), 0) >= 0)
        return 1;
    io->set_direct(fd, 0);
    return 0;
}

/* Opens a regular file: its descriptor, or -1 and errno; EISDIR for one of another type.
 * O_NONBLOCK keeps open() from waiting at a pipe, and is taken off again: older kernels answer
 * EAGAIN to reads of such files by io_uring. */
static int open_regular(const ek_disk_io *io, const char *path, ek_disk_mode mode)
{
    int flags = mode == EK_DISK_READ ? O_RDONLY : O_RDWR | O_CREAT, fd, error;
    struct stat s;

    do
        fd = io->open(path, flags | O_CLOEXEC | O_NONBLOCK, 0666);
    while (fd < 0 && errno == EINTR);
    if (fd < 0)
        return -1;
    if (fstat(fd, &s) == 0 && S_ISREG(s.st_mode) &&
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK) == 0)
        return fd;
    error = S_ISREG(s.st_mode) ? errno : EISDIR;
    io->close(fd);
    errno = error;
    return -1;
}

/* Adds an open file to the queue; owns fd, also after a failure. */
static ek_status add_file(ek_disk *d, const char *path, int fd, ek_disk_mode mode,
                          ek_disk_file **out)
{
    ek_disk_file *f = calloc(1, sizeof(*f));
    struct stat s;

    if (f != NULL)
        f->path = strdup(path);
    if (f == NULL || f->path == NULL || fstat(fd, &s) != 0) {
        d->io->close(fd);
        free(f);
        return EK_FAIL(EK_ENOMEM, "no memory to open %s", path);
    }
    f->disk = d;
    f->fd = fd;
    f->writable = mode == EK_DISK_UPDATE;
    f->bytes = (int64_t)s.st_size;
    f->direct = try_direct(d->io, fd);
    pthread_mutex_lock(&d->mutex);
    f->next = d->files;
    d->files = f;
    pthread_mutex_unlock(&d->mutex);
    *out = f;
    return EK_OK;
}

ek_status ek_disk_open(ek_disk *d, const char *path, ek_disk_mode mode, ek_disk_file **out)
{
    int fd = open_regular(d->io, path, mode);

    if (fd < 0 && errno == EISDIR)
        return EK_FAIL(EK_EFORMAT, "%s is not a regular file", path);
    if (fd < 0)
        return ek_fail_errno(errno, "open", path);
    return add_file(d, path, fd, mode, out);
}

ek_status ek_disk_open_scratch(ek_disk *d, const char *folder, int64_t bytes, ek_disk_file **out)
{
    ek_path name;
    int fd = -1, error;
    char size[16];

    EK_REQUIRE(bytes > 0, EK_EINVAL, "a scratch file in %s needs bytes", folder);
    EK_TRY(ek_path_set(&name, "the scratch file in %s", folder));
    EK_TRY(ek_file_open_unnamed(folder, &fd));
    do
        error = d->io->allocate(fd, bytes);
    while (error == EINTR);
    if (error != 0) {
        d->io->close(fd);
        return error == ENOSPC || error == EDQUOT || error == EFBIG
                   ? EK_FAIL(EK_ENOSPC,
                             "%s has no room for a scratch file of %s: make room there, or "
                             "choose a folder on a larger disk",
                             folder, ek_bytes_text(size, sizeof(size), (double)bytes))
                   : ek_fail_errno(error, "allocate a scratch file in", folder);
    }
    return add_file(d, name.s, fd, EK_DISK_UPDATE, out);
}

/* --- open files ------------------------------------------------------------------------------- */

int ek_disk_file_free(ek_disk_file *f)
{
    int error = f->disk->io->close(f->fd) == 0 ? 0 : errno;

    free(f->path);
    free(f);
    return error == EINTR ? 0 : error; /* Linux has closed it */
}

ek_status ek_disk_close(ek_disk_file **pf)
{
    ek_disk_file *f;
    ek_disk *d;
    ek_path path = {{0}};
    int error;

    if (pf == NULL || *pf == NULL)
        return EK_OK;
    f = *pf;
    d = f->disk;
    *pf = NULL;
    ek_disk_cancel_file(d, f);
    pthread_mutex_lock(&d->mutex);
    ek_disk_drop_results(d, f);
    for (ek_disk_file **at = &d->files; *at != NULL; at = &(*at)->next)
        if (*at == f) {
            *at = f->next;
            break;
        }
    pthread_mutex_unlock(&d->mutex);
    strncpy(path.s, f->path, sizeof(path.s) - 1);
    error = ek_disk_file_free(f);
    return error == 0 ? EK_OK : ek_fail_errno(error, "close", path.s);
}

int ek_disk_is_direct(const ek_disk_file *f)
{
    return f->direct;
}

int64_t ek_disk_file_bytes(const ek_disk_file *f)
{
    return f->bytes;
}

ek_status ek_disk_sync(ek_disk_file *f)
{
    while (f->disk->io->sync(f->fd) != 0)
        if (errno != EINTR)
            return ek_fail_errno(errno, "sync", f->path);
    return EK_OK;
}
