/* faulty_io.h - a table of io functions (base/file.h) on the real file system that counts calls
 * and breaks at call number `at`:
 *
 *   ONCE   that call fails, later ones work: a full disk, a bad sector
 *   CRASH  that call (a write: after half of its bytes) and all later ones fail: what is on disk
 *          is what kill -9 leaves
 *   POWER  as CRASH; faulty_power_loss() then takes away what was not synced: the bytes of files
 *          and, if asked, names made, renamed or deleted in folders that were not synced since
 *
 * Nothing is really synced, so that hundreds of runs take no time. */
#ifndef FAULTY_IO_H
#define FAULTY_IO_H

#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef enum { FAULTY_ONCE, FAULTY_CRASH, FAULTY_POWER } faulty_mode;

enum { FAULTY_MAX = 512 };

static struct {
    faulty_mode mode;
    int64_t calls, at; /* at 0: never */
    int error;
    char grave[200]; /* POWER: a folder outside the test's, where deleted files wait */
    /* POWER: files written, and how much of them is safe */
    struct {
        int fd, own; /* the writer's descriptor (-1: closed), and ours */
        off_t synced;
    } files[FAULTY_MAX];
    /* POWER: changes of names, oldest first; "" for nothing */
    struct {
        char *from, *to; /* made: from NULL; renamed or buried: both; "rmdir": to NULL */
    } changes[FAULTY_MAX];
    struct {
        int fd;
        char *path;
    } folders[16]; /* open ones */
    int n_files, n_changes, buried;
} faulty;

static int faulty_hit(void)
{
    faulty.calls++;
    if (faulty.at == 0 || faulty.calls < faulty.at ||
        (faulty.mode == FAULTY_ONCE && faulty.calls > faulty.at))
        return 0;
    errno = faulty.error;
    return 1;
}

static void faulty_change(const char *from, const char *to)
{
    if (faulty.mode != FAULTY_POWER)
        return;
    if (faulty.n_changes == FAULTY_MAX)
        abort();
    faulty.changes[faulty.n_changes].from = from != NULL ? strdup(from) : NULL;
    faulty.changes[faulty.n_changes++].to = to != NULL ? strdup(to) : NULL;
}

static int faulty_open(const char *path, int flags, mode_t mode)
{
    int fresh = access(path, F_OK) != 0, fd;

    if (faulty_hit())
        return -1;
    fd = open(path, flags, mode);
    if (fd < 0 || faulty.mode != FAULTY_POWER)
        return fd;
    if (flags & O_DIRECTORY) {
        for (size_t i = 0; i < 16; i++)
            if (faulty.folders[i].path == NULL) {
                faulty.folders[i].fd = fd;
                faulty.folders[i].path = strdup(path);
                return fd;
            }
        abort();
    }
    if (faulty.n_files == FAULTY_MAX)
        abort();
    faulty.files[faulty.n_files].fd = fd;
    faulty.files[faulty.n_files].own = dup(fd);
    faulty.files[faulty.n_files++].synced = 0;
    if (fresh)
        faulty_change(NULL, path);
    return fd;
}

static ssize_t faulty_write(int fd, const void *data, size_t bytes)
{
    if (!faulty_hit())
        return write(fd, data, bytes);
    if (faulty.mode != FAULTY_ONCE && faulty.calls == faulty.at && write(fd, data, bytes / 2) < 0)
        abort();
    errno = faulty.error;
    return -1;
}

/* "from/x" becomes "to/x". */
static void faulty_move(char **path, const char *from, const char *to)
{
    size_t n = strlen(from), room;
    char *moved;

    if (*path == NULL || strncmp(*path, from, n) != 0 || (*path)[n] != '/')
        return;
    room = strlen(to) + strlen(*path + n) + 1;
    moved = malloc(room);
    snprintf(moved, room, "%s%s", to, *path + n);
    free(*path);
    *path = moved;
}

/* All changes of names in this folder are safe now.  What lies in a folder that was renamed for
 * good has its place under the new name. */
static void faulty_sync_names(const char *folder)
{
    size_t n = strlen(folder);
    int kept = 0;

    for (int i = 0; i < faulty.n_changes; i++) {
        char *from = faulty.changes[i].from, *to = faulty.changes[i].to;
        const char *p = from != NULL ? from : to;

        if (strncmp(p, folder, n) != 0 || p[n] != '/' || strchr(p + n + 1, '/') != NULL) {
            faulty.changes[kept++] = faulty.changes[i];
            continue;
        }
        for (int k = 0; k < kept && from != NULL && to != NULL; k++) {
            faulty_move(&faulty.changes[k].from, from, to);
            faulty_move(&faulty.changes[k].to, from, to);
        }
        free(from);
        free(to);
    }
    faulty.n_changes = kept;
}

static int faulty_sync(int fd)
{
    if (faulty_hit())
        return -1;
    for (int i = 0; i < faulty.n_files; i++)
        if (faulty.files[i].fd == fd)
            faulty.files[i].synced = lseek(fd, 0, SEEK_END);
    for (size_t i = 0; i < 16; i++)
        if (faulty.folders[i].path != NULL && faulty.folders[i].fd == fd)
            faulty_sync_names(faulty.folders[i].path);
    return 0;
}

static int faulty_close(int fd)
{
    for (int i = 0; i < faulty.n_files; i++)
        if (faulty.files[i].fd == fd)
            faulty.files[i].fd = -1;
    for (size_t i = 0; i < 16; i++)
        if (faulty.folders[i].path != NULL && faulty.folders[i].fd == fd) {
            free(faulty.folders[i].path);
            faulty.folders[i].path = NULL;
        }
    close(fd);
    return faulty_hit() ? -1 : 0;
}

static int faulty_rename(const char *from, const char *to)
{
    char old[256];

    if (faulty_hit())
        return -1;
    snprintf(old, sizeof(old), "%s/%d", faulty.grave, faulty.buried++);
    if (faulty.mode == FAULTY_POWER && link(to, old) == 0) /* a file that gives way */
        faulty_change(to, old);
    if (rename(from, to) != 0)
        return -1;
    faulty_change(from, to);
    return 0;
}

static int faulty_unlink(const char *path)
{
    char to[256];

    if (faulty_hit())
        return -1;
    if (faulty.mode != FAULTY_POWER)
        return unlink(path);
    snprintf(to, sizeof(to), "%s/%d", faulty.grave, faulty.buried++);
    if (rename(path, to) != 0)
        return -1;
    faulty_change(path, to);
    return 0;
}

static int faulty_mkdir(const char *path, mode_t mode)
{
    if (faulty_hit() || mkdir(path, mode) != 0)
        return -1;
    faulty_change(NULL, path);
    return 0;
}

static int faulty_rmdir(const char *path)
{
    if (faulty_hit() || rmdir(path) != 0)
        return -1;
    faulty_change(path, NULL);
    return 0;
}

static const ek_io faulty_io = {
    .open = faulty_open,
    .write = faulty_write,
    .sync = faulty_sync,
    .close = faulty_close,
    .rename = faulty_rename,
    .unlink = faulty_unlink,
    .mkdir = faulty_mkdir,
    .rmdir = faulty_rmdir,
};

/* Forgets everything; the next call is number 1. */
static inline void faulty_arm(faulty_mode mode, int64_t at, int error)
{
    for (int i = 0; i < faulty.n_files; i++)
        close(faulty.files[i].own);
    for (int i = 0; i < faulty.n_changes; i++) {
        free(faulty.changes[i].from);
        free(faulty.changes[i].to);
    }
    faulty.n_files = faulty.n_changes = 0;
    faulty.mode = mode;
    faulty.calls = 0;
    faulty.at = at;
    faulty.error = error;
}

/* The power goes: unsynced bytes are lost and, if `names`, unsynced changes of names are undone,
 * the latest first. */
static inline void faulty_power_loss(int names)
{
    for (int i = 0; i < faulty.n_files; i++)
        if (ftruncate(faulty.files[i].own, faulty.files[i].synced) != 0)
            abort();
    for (int i = faulty.n_changes - 1; names && i >= 0; i--) {
        const char *from = faulty.changes[i].from, *to = faulty.changes[i].to;

        if (from == NULL)
            ek_folder_discard(NULL, to);
        else if ((to == NULL ? mkdir(from, 0777) : rename(to, from)) != 0)
            abort();
    }
    faulty_arm(FAULTY_ONCE, 0, 0);
}

#endif
