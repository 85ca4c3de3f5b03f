/* The writing side of base/file.h; all system calls go through ek_io.  New files are created in
 * file_new.c. */
#include "base/file.h"
#include "base/file_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static int system_open(const char *path, int flags, mode_t mode)
{
    return open(path, flags, mode);
}

const ek_io ek_io_system = {
    .open = system_open,
    .write = write,
    .sync = fsync,
    .close = close,
    .rename = rename,
    .unlink = unlink,
    .mkdir = mkdir,
    .rmdir = rmdir,
};

const ek_io *ek_io_table(const ek_io *io)
{
    return io != NULL ? io : &ek_io_system;
}

/* --- files ------------------------------------------------------------------------------------ */

ek_status ek_file_out_open(const ek_io *io, const char *path, ek_write_mode mode, ek_file_out *out)
{
    out->io = ek_io_table(io);
    out->fd = -1;
    out->in_place = 0;
    out->bytes = 0;
    out->made.s[0] = '\0';
    EK_TRY(ek_path_set(&out->path, "%s", path));
    return ek_file_create(out, mode);
}

static int (*stop_hook)(void);

void ek_file_set_stop(int (*stop)(void))
{
    stop_hook = stop;
}

ek_status ek_file_out_check(const ek_file_out *f)
{
    EK_REQUIRE(stop_hook == NULL || !stop_hook(), EK_ECANCELED,
               "interrupted while %s was written; the partial file is removed", f->path.s);
    return EK_OK;
}

ek_status ek_file_out_write(ek_file_out *f, const void *data, size_t bytes)
{
    const char *p = data;

    EK_TRY(ek_file_out_check(f));
    while (bytes > 0) {
        ssize_t n = f->io->write(f->fd, p, bytes);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return ek_fail_errno(n == 0 ? EIO : errno, "write", f->path.s);
        p += n;
        bytes -= (size_t)n;
        f->bytes += n;
    }
    return EK_OK;
}

static int sync_fd(const ek_io *io, int fd)
{
    int r;

    do
        r = io->sync(fd);
    while (r != 0 && errno == EINTR);
    return r;
}

ek_status ek_file_out_stream(ek_file_out *f, FILE **stream)
{
    int fd = fcntl(f->fd, F_DUPFD_CLOEXEC, 0), e;

    if (fd < 0)
        return ek_fail_errno(errno, "write", f->path.s);
    *stream = fdopen(fd, "w");
    if (*stream == NULL) {
        e = errno;
        close(fd);
        return ek_fail_errno(e, "write", f->path.s);
    }
    return EK_OK;
}

ek_status ek_file_out_close(ek_file_out *f)
{
    int fd = f->fd, e = 0;
    ek_path folder;

    EK_TRY(ek_file_out_check(f)); /* on failure, ek_file_out_discard closes it */
    f->fd = -1;
    if (!f->in_place && sync_fd(f->io, fd) != 0)
        e = errno;
    if (f->io->close(fd) != 0 && e == 0)
        e = errno;
    if (e != 0)
        return ek_fail_errno(e, f->in_place ? "write" : "sync", f->path.s);
    if (f->target.s[0] == '\0' || f->made.s[0] == '\0') /* it has its name already */
        return EK_OK;
    EK_TRY(ek_path_parent(f->target.s, &folder));
    if (f->io->rename(f->made.s, f->target.s) != 0)
        return ek_fail_errno(errno, "write", f->path.s);
    f->made.s[0] = '\0';
    return ek_folder_sync(f->io, folder.s);
}

void ek_file_out_discard(ek_file_out *f)
{
    if (f->fd >= 0)
        f->io->close(f->fd);
    f->fd = -1;
    if (f->made.s[0] != '\0')
        f->io->unlink(f->made.s);
    f->made.s[0] = '\0';
}

static ek_status write_small(const ek_io *io, const char *path, ek_write_mode mode,
                             const void *data, size_t bytes)
{
    ek_file_out f;
    ek_status st;

    EK_TRY(ek_file_out_open(io, path, mode, &f));
    EK_TRY_OUT(ek_file_out_write(&f, data, bytes));
    EK_TRY_OUT(ek_file_out_close(&f));
out:
    if (st < 0)
        ek_file_out_discard(&f);
    return st;
}

ek_status ek_file_write(const ek_io *io, const char *path, const void *data, size_t bytes)
{
    return write_small(io, path, EK_WRITE_NEW, data, bytes);
}

ek_status ek_file_replace(const ek_io *io, const char *path, const void *data, size_t bytes)
{
    return write_small(io, path, EK_WRITE_REPLACE, data, bytes);
}

ek_status ek_file_rename(const ek_io *io, const char *from, const char *to)
{
    ek_path a, b;

    EK_TRY(ek_path_parent(from, &a));
    EK_TRY(ek_path_parent(to, &b));
    if (ek_io_table(io)->rename(from, to) != 0)
        return ek_fail_errno(errno, "rename", from);
    EK_TRY(ek_folder_sync(io, b.s));
    if (strcmp(a.s, b.s) != 0)
        EK_TRY(ek_folder_sync(io, a.s));
    return EK_OK;
}

ek_status ek_file_remove(const ek_io *io, const char *path)
{
    ek_path parent;

    EK_TRY(ek_path_parent(path, &parent));
    if (ek_io_table(io)->unlink(path) != 0) {
        if (errno == ENOENT)
            return EK_OK;
        return ek_fail_errno(errno, "delete", path);
    }
    return ek_folder_sync(io, parent.s);
}

/* --- folders ---------------------------------------------------------------------------------- */

ek_status ek_folder_sync(const ek_io *io, const char *path)
{
    int fd, e = 0;

    io = ek_io_table(io);
    fd = io->open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (fd < 0)
        return ek_fail_errno(errno, "open folder", path);
    if (sync_fd(io, fd) != 0 && errno != EINVAL) /* not every file system syncs folders */
        e = errno;
    io->close(fd);
    if (e != 0)
        return ek_fail_errno(e, "sync folder", path);
    return EK_OK;
}

ek_status ek_folder_lock(const char *path, int *fd)
{
    int lock = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (lock < 0)
        return ek_fail_errno(errno, "open folder", path);
    if (flock(lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        close(lock);
        return EK_FAIL(EK_ESTATE, "%s is in use by another process", path);
    }
    *fd = lock;
    return EK_OK;
}

ek_status ek_folder_make(const ek_io *io, const char *path)
{
    ek_path parent;

    if (ek_file_kind_of(path) == EK_FILE_FOLDER)
        return EK_OK;
    EK_TRY(ek_path_parent(path, &parent));
    if (strcmp(parent.s, path) != 0)
        EK_TRY(ek_folder_make(io, parent.s));
    if (ek_io_table(io)->mkdir(path, 0777) != 0) {
        int error = errno;
        ek_file_kind kind = error == EEXIST ? ek_file_kind_of(path) : EK_FILE_NONE;

        EK_REQUIRE(kind == EK_FILE_NONE || kind == EK_FILE_FOLDER, EK_EFORMAT,
                   "cannot make folder %s: it exists, and is not a folder", path);
        if (kind != EK_FILE_FOLDER) /* else another process has just made it */
            return ek_fail_errno(error, "make folder", path);
    }
    return ek_folder_sync(io, parent.s);
}

/* Deletes a tree; 0, or the errno value of the first entry that could not be deleted. */
static int remove_tree(const ek_io *io, const char *path)
{
    ek_names l = {0};
    ek_path p;
    struct stat s;
    int e = 0;

    if (lstat(path, &s) != 0)
        return errno == ENOENT ? 0 : errno;
    if (!S_ISDIR(s.st_mode))
        return io->unlink(path) == 0 || errno == ENOENT ? 0 : errno;
    if (ek_folder_names(path, &l) != 0)
        return errno;
    for (int64_t i = 0; i < l.n && e == 0; i++) {
        int n = snprintf(p.s, sizeof(p.s), "%s/%s", path, l.names[i]);

        e = n < 0 || (size_t)n >= sizeof(p.s) ? ENAMETOOLONG : remove_tree(io, p.s);
    }
    ek_names_free(&l);
    if (e != 0)
        return e;
    return io->rmdir(path) == 0 || errno == ENOENT ? 0 : errno;
}

ek_status ek_folder_remove(const ek_io *io, const char *path)
{
    int e = remove_tree(ek_io_table(io), path);

    if (e != 0)
        return ek_fail_errno(e, "delete", path);
    return EK_OK;
}

void ek_folder_discard(const ek_io *io, const char *path)
{
    (void)remove_tree(ek_io_table(io), path);
}
