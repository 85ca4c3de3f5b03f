/* Creation of new files for base/file.h: following links, temporary names, and files and folders
 * private to one user. */
#include "base/clock.h"
#include "base/file.h"
#include "base/file_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

enum {
    LETTERS = 8,          /* of a temporary name */
    SUFFIX = LETTERS + 5, /* ".", letters, ".tmp" */
    TRIES = 100,          /* temporary names tried until one is free */
    LINKS = 40,           /* links followed at most, as in the kernel */
    PRIVATE_MODE = 0700,  /* of a folder */
    OTHERS_WRITE = 0022,  /* group or others may write */
    PERMISSIONS = 0777
};

/* --- temporary names -------------------------------------------------------------------------- */

/* <path>.<random letters>.tmp; `path` is cut where the name would exceed NAME_MAX. */
static ek_status set_temporary(const char *path, ek_path *out)
{
    const char *name = strrchr(path, '/');
    size_t length = strlen(path), name_at = name != NULL ? (size_t)(name + 1 - path) : 0;
    unsigned char bytes[LETTERS];
    char letters[LETTERS + 1];

    if (length - name_at > NAME_MAX - SUFFIX)
        length = name_at + NAME_MAX - SUFFIX;
    if (getrandom(bytes, sizeof(bytes), 0) != (ssize_t)sizeof(bytes))
        return ek_fail_errno(errno, "find a temporary name for", path);
    for (int i = 0; i < LETTERS; i++)
        letters[i] = (char)('a' + bytes[i] % 26);
    letters[LETTERS] = '\0';
    return ek_path_set(out, "%.*s.%s.tmp", (int)length, path, letters);
}

/* Whether `name` is a temporary name of a file that matches the pattern. */
static int is_temporary(const char *name, const char *pattern)
{
    size_t n = strlen(name), base;
    ek_path final;

    if (n <= SUFFIX)
        return 0;
    base = n - SUFFIX;
    if (name[base] != '.' || strcmp(name + n - 4, ".tmp") != 0)
        return 0;
    for (size_t i = base + 1; i < n - 4; i++)
        if (name[i] < 'a' || name[i] > 'z')
            return 0;
    return ek_path_set(&final, "%.*s", (int)base, name) == EK_OK &&
           fnmatch(pattern, final.s, 0) == 0;
}

void ek_folder_clear_temporaries(const char *folder, const char *pattern, int64_t age_s)
{
    int64_t now = (int64_t)ek_clock_epoch_s(); /* not time(), which may be behind files' times */
    ek_names l = {0};
    struct stat s;
    ek_path path;

    if (ek_folder_names(folder, &l) != 0)
        return;
    for (int64_t i = 0; i < l.n; i++)
        if (is_temporary(l.names[i], pattern) &&
            ek_path_set(&path, "%s/%s", folder, l.names[i]) == EK_OK && lstat(path.s, &s) == 0 &&
            (S_ISREG(s.st_mode) || S_ISLNK(s.st_mode)) && now - (int64_t)s.st_mtim.tv_sec >= age_s)
            unlink(path.s);
    ek_names_free(&l);
}

/* --- following links -------------------------------------------------------------------------- */

/* Whether the folder is in /proc, where links refer to open files. */
static int is_open_file(const char *folder)
{
    struct statfs s;

    return statfs(folder, &s) == 0 && s.f_type == PROC_SUPER_MAGIC;
}

/* The kernel's rule for following links (protected_symlinks of proc(5)). */
static ek_status check_link(const char *path, const char *folder, const struct stat *link)
{
    struct stat s;

    if (stat(folder, &s) != 0)
        return ek_fail_errno(errno, "look at", folder);
    EK_REQUIRE((s.st_mode & (S_ISVTX | S_IWOTH)) != (S_ISVTX | S_IWOTH) ||
                   link->st_uid == geteuid() || link->st_uid == s.st_uid,
               EK_EIO,
               "%s is a link made by user %lld in a world-writable folder and is not followed: "
               "delete it, or write elsewhere",
               path, (long long)link->st_uid);
    return EK_OK;
}

/* Replaces the link *at by its target, relative to the link's folder. */
static ek_status read_link(const ek_path *folder, ek_path *at)
{
    char text[sizeof(at->s)];
    ssize_t n = readlink(at->s, text, sizeof(text) - 1);

    if (n < 0)
        return ek_fail_errno(errno, "follow", at->s);
    text[n] = '\0';
    if (text[0] == '/')
        return ek_path_set(at, "%s", text);
    return ek_path_set(at, "%s/%s", folder->s, text);
}

/* Sets f->target to f->path with all links followed, *s to its status (st_mode 0: missing), and
 * f->in_place if it exists and is no regular file. */
static ek_status find_target(ek_file_out *f, struct stat *s)
{
    ek_path folder;
    size_t n;

    f->target = f->path;
    for (int i = 0; i < LINKS; i++) {
        if (lstat(f->target.s, s) != 0) {
            if (errno != ENOENT)
                return ek_fail_errno(errno, "look at", f->path.s);
            memset(s, 0, sizeof(*s));
        }
        n = strlen(f->target.s);
        EK_REQUIRE(!S_ISDIR(s->st_mode) && n > 0 && f->target.s[n - 1] != '/', EK_EINVAL,
                   "%s names a folder, where a file is to be written", f->path.s);
        f->in_place = s->st_mode != 0 && !S_ISREG(s->st_mode);
        if (!S_ISLNK(s->st_mode))
            return EK_OK;
        EK_TRY(ek_path_parent(f->target.s, &folder));
        if (is_open_file(folder.s))
            return EK_OK;
        EK_TRY(check_link(f->path.s, folder.s, s));
        EK_TRY(read_link(&folder, &f->target));
    }
    return ek_fail_errno(ELOOP, "create", f->path.s);
}

static ek_status open_temporary(ek_file_out *f, mode_t mode)
{
    ek_path name;

    for (int i = 0; i < TRIES; i++) {
        EK_TRY(set_temporary(f->target.s, &name));
        f->fd = f->io->open(name.s, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
        if (f->fd >= 0) {
            f->made = name;
            return EK_OK;
        }
        if (errno != EEXIST)
            break;
    }
    return ek_fail_errno(errno, "create", f->path.s);
}

ek_status ek_file_create(ek_file_out *f, ek_write_mode mode)
{
    const int exclusive = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    /* O_CREAT: the kernel then refuses other users' pipes in world-writable folders */
    const int in_place = O_WRONLY | O_CREAT | O_APPEND | O_NOCTTY | O_CLOEXEC;
    struct stat s;

    f->target.s[0] = '\0';
    if (mode != EK_WRITE_NEW) {
        EK_TRY(find_target(f, &s));
        if (!f->in_place && mode == EK_WRITE_REPLACE) {
            mode_t permissions = s.st_mode & PERMISSIONS;

            EK_TRY(open_temporary(f, s.st_mode != 0 ? permissions : 0666));
            if (s.st_mode != 0)
                (void)!fchmod(f->fd, permissions); /* not every file system has permissions */
            return EK_OK;
        }
    }
    if (mode == EK_WRITE_GROW && !f->in_place)
        f->fd =
            f->io->open(f->target.s, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    else
        f->fd = f->io->open(f->path.s, f->in_place ? in_place : exclusive, 0666);
    if (f->fd < 0)
        return ek_fail_errno(errno, f->in_place ? "write to" : "create", f->path.s);
    if (mode == EK_WRITE_NEW)
        f->made = f->path;
    return EK_OK;
}

ek_status ek_link_replace(const ek_io *io, const char *text, const char *path)
{
    ek_path temporary;
    ek_status st;

    for (int i = 0; i < TRIES; i++) {
        EK_TRY(set_temporary(path, &temporary));
        if (symlink(text, temporary.s) == 0) {
            st = ek_file_rename(io, temporary.s, path);
            if (st < 0)
                unlink(temporary.s);
            return st;
        }
        if (errno != EEXIST)
            break;
    }
    return ek_fail_errno(errno, "make the link", path);
}

ek_status ek_folder_make_temporary(const ek_io *io, const char *path, ek_path *out)
{
    ek_path parent;

    io = ek_io_table(io);
    EK_TRY(ek_path_parent(path, &parent));
    EK_TRY(ek_folder_make(io, parent.s));
    for (int i = 0; i < TRIES; i++) {
        EK_TRY(set_temporary(path, out));
        if (io->mkdir(out->s, PERMISSIONS) == 0)
            return ek_folder_sync(io, parent.s);
        if (errno != EEXIST)
            break;
    }
    return ek_fail_errno(errno, "make folder", path);
}

/* --- private to this user --------------------------------------------------------------------- */

ek_status ek_folder_make_private(const char *path)
{
    ek_path parent;
    struct stat s;

    EK_TRY(ek_path_parent(path, &parent));
    EK_TRY(ek_folder_make(NULL, parent.s));
    if (mkdir(path, PRIVATE_MODE) != 0 && errno != EEXIST)
        return ek_fail_errno(errno, "make folder", path);
    if (lstat(path, &s) != 0)
        return ek_fail_errno(errno, "look at", path);
    EK_REQUIRE(S_ISDIR(s.st_mode), EK_EINVAL, "%s exists and is not a folder: delete it", path);
    EK_REQUIRE(s.st_uid == geteuid(), EK_EINVAL,
               "%s belongs to user %lld, but this process to user %lld: files of other users are "
               "not read; delete it, or name another folder",
               path, (long long)s.st_uid, (long long)geteuid());
    EK_REQUIRE(
        (s.st_mode & OTHERS_WRITE) == 0, EK_EINVAL,
        "%s is writable by others (mode %03o), so its contents cannot be trusted: delete it, "
        "and it is created again",
        path, (unsigned)(s.st_mode & PERMISSIONS));
    return EK_OK;
}

ek_status ek_file_open_private(const char *path, int *fd, int64_t *bytes)
{
    int f = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    struct stat s;

    if (f >= 0 && fstat(f, &s) == 0 && S_ISREG(s.st_mode) && s.st_uid == geteuid() &&
        (s.st_mode & OTHERS_WRITE) == 0) {
        *fd = f;
        *bytes = s.st_size;
        return EK_OK;
    }
    if (f >= 0)
        close(f);
    return EK_FAIL(EK_ENOENT, "%s is missing, of another user, or writable by others", path);
}

ek_status ek_file_open_unnamed(const char *folder, int *fd)
{
    ek_path name;

    *fd = open(folder, O_TMPFILE | O_RDWR | O_EXCL | O_CLOEXEC, 0600);
    if (*fd >= 0)
        return EK_OK;
    if (errno != EOPNOTSUPP && errno != EISDIR &&
        errno != EINVAL) /* not supported by this file system */
        return ek_fail_errno(errno, "make a temporary file in", folder);
    EK_TRY(ek_path_set(&name, "%s/evenkeel-XXXXXX", folder));
    *fd = mkostemp(name.s, O_CLOEXEC);
    if (*fd < 0)
        return ek_fail_errno(errno, "make a temporary file in", folder);
    unlink(name.s);
    return EK_OK;
}
