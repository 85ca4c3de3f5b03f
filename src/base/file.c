/* Paths, and the reading side of base/file.h: mappings, whole files, listings.  The writing side
 * is in file_write.c and file_new.c. */
#include "base/file.h"

#include "base/file_priv.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

ek_status ek_fail_errno(int error, const char *doing, const char *path)
{
    char buf[128];
    ek_status st = EK_EIO;

    if (error == ENOSPC || error == EDQUOT)
        st = EK_ENOSPC;
    else if (error == ENOENT || error == ENOTDIR)
        st = EK_ENOENT;
    else if (error == ENAMETOOLONG || error == ELOOP || error == ENXIO || error == EISDIR ||
             error == EEXIST)
        st = EK_EFORMAT; /* the path is of the wrong kind */
    return EK_FAIL(st, "cannot %s %s: %s", doing, path, strerror_r(error, buf, sizeof(buf)));
}

/* --- paths ------------------------------------------------------------------------------------ */

ek_status ek_path_set(ek_path *p, const char *fmt, ...)
{
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(p->s, sizeof(p->s), fmt, ap);
    va_end(ap);
    EK_REQUIRE(n >= 0 && (size_t)n < sizeof(p->s), EK_EINVAL,
               "a path of %d bytes is longer than the %zu allowed: %.64s...", n, sizeof(p->s) - 1,
               p->s);
    return EK_OK;
}

ek_status ek_path_parent(const char *path, ek_path *out)
{
    size_t n = strlen(path);

    while (n > 1 && path[n - 1] == '/') /* trailing slashes */
        n--;
    while (n > 0 && path[n - 1] != '/') /* the last name */
        n--;
    while (n > 1 && path[n - 1] == '/') /* slashes before it */
        n--;
    if (n == 0)
        return ek_path_set(out, ".");
    EK_REQUIRE(n < sizeof(out->s), EK_EINVAL, "a path of %zu bytes is too long: %.64s...", n, path);
    memmove(out->s, path, n);
    out->s[n] = '\0';
    return EK_OK;
}

/* Appends the components of `rest` to a path, without empty ones and ".". */
static ek_status append_names(ek_path *p, const char *rest)
{
    while (*rest != '\0') {
        size_t n = strcspn(rest, "/"), at = strlen(p->s);

        if (n > 0 && !(n == 1 && rest[0] == '.')) {
            EK_REQUIRE(at + n + 1 < sizeof(p->s), EK_EINVAL, "a path is too long: %.64s...", p->s);
            snprintf(p->s + at, sizeof(p->s) - at, "%s%.*s", at > 1 ? "/" : "", (int)n, rest);
        }
        rest += n + (rest[n] == '/');
    }
    return EK_OK;
}

ek_status ek_path_absolute(const char *path, ek_path *out)
{
    char part[sizeof(out->s)];
    size_t n = strlen(path);

    EK_REQUIRE(n < sizeof(part), EK_EINVAL, "a path of %zu bytes is too long: %.64s...", n, path);
    for (;;) {
        memcpy(part, path, n);
        part[n] = '\0';
        if (realpath(n > 0 ? part : ".", out->s) != NULL)
            return append_names(out, path + n);
        if (n == 0)
            return ek_fail_errno(errno, "find the folder of", path);
        while (n > 0 && path[n - 1] == '/')
            n--;
        while (n > 0 && path[n - 1] != '/')
            n--;
    }
}

ek_file_kind ek_file_kind_of(const char *path)
{
    struct stat s;

    if (stat(path, &s) != 0)
        return EK_FILE_NONE;
    return S_ISREG(s.st_mode)   ? EK_FILE_REGULAR
           : S_ISDIR(s.st_mode) ? EK_FILE_FOLDER
                                : EK_FILE_OTHER;
}

int ek_file_exists(const char *path)
{
    struct stat s;

    return lstat(path, &s) == 0;
}

/* --- whole files ------------------------------------------------------------------------------ */

ek_status ek_file_open(const char *path, int *fd, int64_t *bytes)
{
    struct stat s;
    int f = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    int e;

    if (f < 0)
        return ek_fail_errno(errno, "open", path);
    if (fstat(f, &s) != 0) {
        e = errno;
        close(f);
        return ek_fail_errno(e, "look at", path);
    }
    if (!S_ISREG(s.st_mode)) {
        close(f);
        return EK_FAIL(EK_EFORMAT, "%s is a %s, not a regular file", path,
                       S_ISDIR(s.st_mode) ? "folder" : "special file");
    }
    *fd = f;
    *bytes = s.st_size;
    return EK_OK;
}

ek_status ek_file_map_open(const char *path, ek_file_map *out)
{
    int64_t size = 0;
    size_t bytes;
    void *p;
    int fd = -1, e;

    EK_TRY(ek_file_open(path, &fd, &size));
    bytes = (size_t)size;
    if (bytes == 0) { /* mmap refuses a length of 0 */
        close(fd);
        out->data = "";
        out->bytes = 0;
        return EK_OK;
    }
    p = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    e = errno;
    close(fd);
    if (p == MAP_FAILED)
        return ek_fail_errno(e, "map", path);
    out->data = p;
    out->bytes = bytes;
    return EK_OK;
}

void ek_file_map_close(ek_file_map *m)
{
    if (m->bytes > 0)
        munmap((void *)(uintptr_t)m->data, m->bytes);
    m->data = "";
    m->bytes = 0;
}

ek_status ek_file_read(const char *path, size_t bytes_max, char **data, size_t *bytes)
{
    ek_status st = EK_OK;
    char *buf = NULL;
    size_t n, got = 0;
    int64_t size = 0;
    int fd = -1;

    EK_TRY_OUT(ek_file_open(path, &fd, &size));
    n = (size_t)size;
    EK_REQUIRE_OUT(n <= bytes_max, EK_EFORMAT, "%s has %zu bytes, more than the %zu allowed", path,
                   n, bytes_max);
    buf = malloc(n + 1);
    EK_REQUIRE_OUT(buf != NULL, EK_ENOMEM, "no memory for the %zu bytes of %s", n, path);
    while (got < n) {
        ssize_t r = read(fd, buf + got, n - got);

        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0) {
            st = ek_fail_errno(errno, "read", path);
            goto out;
        }
        if (r == 0)
            break;
        got += (size_t)r;
    }
    buf[got] = '\0';
    *data = buf;
    *bytes = got;
    buf = NULL;
out:
    free(buf);
    if (fd >= 0)
        close(fd);
    return st;
}

ek_status ek_file_size(const char *path, int64_t *bytes)
{
    struct stat s;

    if (stat(path, &s) != 0)
        return ek_fail_errno(errno, "look at", path);
    *bytes = (int64_t)s.st_size;
    return EK_OK;
}

ek_status ek_folder_free(const char *path, int64_t *bytes)
{
    struct statvfs s;

    if (statvfs(path, &s) != 0)
        return ek_fail_errno(errno, "get the free space of", path);
    if (__builtin_mul_overflow(s.f_bavail, s.f_frsize, bytes))
        *bytes = INT64_MAX;
    return EK_OK;
}

/* --- listings --------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* 0, or -1 when memory ran out. */
static int names_add(ek_names *l, const char *name)
{
    if (l->n == l->cap) {
        int64_t cap = l->cap > 0 ? 2 * l->cap : 16;
        char **grown = realloc(l->names, (size_t)cap * sizeof(*grown));

        if (grown == NULL)
            return -1;
        l->names = grown;
        l->cap = cap;
    }
    l->names[l->n] = strdup(name);
    if (l->names[l->n] == NULL)
        return -1;
    l->n++;
    return 0;
}

static void names_sort(ek_names *l)
{
    if (l->n > 1)
        qsort(l->names, (size_t)l->n, sizeof(*l->names), by_name);
}

void ek_names_free(ek_names *l)
{
    for (int64_t i = 0; i < l->n; i++)
        free(l->names[i]);
    free(l->names);
    memset(l, 0, sizeof(*l));
}

int ek_folder_names(const char *path, ek_names *out)
{
    ek_names l = {0};
    struct dirent *e;
    DIR *d = opendir(path);
    int error = 0;

    if (d == NULL)
        return -1;
    while (errno = 0, (e = readdir(d)) != NULL) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        if (names_add(&l, e->d_name) != 0) {
            errno = ENOMEM;
            break;
        }
    }
    error = errno;
    closedir(d);
    if (error != 0) {
        ek_names_free(&l);
        errno = error;
        return -1;
    }
    names_sort(&l);
    *out = l;
    return 0;
}

ek_status ek_folder_entries(const char *path, ek_names *out)
{
    if (ek_folder_names(path, out) != 0)
        return ek_fail_errno(errno, "list folder", path);
    return EK_OK;
}

/* Adds the files of root/below (below is "" or ends with a slash). */
static ek_status add_files(const char *root, const char *below, ek_names *l)
{
    ek_status st = EK_OK;
    ek_names here = {0};
    ek_path full, rel;
    struct stat s;

    EK_TRY_OUT(ek_path_set(&full, "%s/%s", root, below));
    EK_TRY_OUT(ek_folder_entries(full.s, &here));
    for (int64_t i = 0; i < here.n; i++) {
        if (here.names[i][0] == '.')
            continue;
        EK_TRY_OUT(ek_path_set(&full, "%s/%s%s", root, below, here.names[i]));
        EK_TRY_OUT(ek_path_set(&rel, "%s%s", below, here.names[i]));
        if (ek_file_kind_of(full.s) == EK_FILE_REGULAR) {
            EK_REQUIRE_OUT(names_add(l, rel.s) == 0, EK_ENOMEM, "no memory to list %s", root);
        } else if (lstat(full.s, &s) == 0 && S_ISDIR(s.st_mode)) {
            EK_TRY_OUT(ek_path_set(&rel, "%s%s/", below, here.names[i]));
            EK_TRY_OUT(add_files(root, rel.s, l));
        }
    }
out:
    ek_names_free(&here);
    return st;
}

ek_status ek_folder_files(const char *path, ek_names *out)
{
    ek_status st = EK_OK;
    ek_names l = {0};

    EK_TRY_OUT(add_files(path, "", &l));
    names_sort(&l);
    *out = l;
    memset(&l, 0, sizeof(l));
out:
    ek_names_free(&l);
    return st;
}
