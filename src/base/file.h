/* base/file.h - files and folders: reading by mapping, and writing that survives a crash.
 *
 * Reading maps a file; the mapping has the file's size at opening, so a file must not be truncated
 * while it is mapped.
 *
 * Writing goes through a table of system calls (ek_io; NULL: the real ones), so that tests can let
 * the N-th call fail or lose unsynced data.  Every write is checked.  A file whose name a user
 * chose is written under a temporary name, synced and renamed, and its folder is synced: no
 * incomplete file ever has the name, and no other file is touched.
 *
 * Errors       EK_ENOSPC when the disk (or quota) is full, EK_ENOENT when something is missing,
 *              EK_EFORMAT when the path is of the wrong kind (too long, a loop of links, a socket,
 *              a folder instead of a file or the reverse), EK_EIO for all else; the message holds
 *              the path and the system's reason.
 * Threads      no shared state except the hook of ek_file_set_stop, set once before threads. */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include "evenkeel/err.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

/* A failure of a call to the system: "cannot <doing> <path>: <reason>", with the status that fits
 * the errno value. */
ek_status ek_fail_errno(int error, const char *doing, const char *path);

/* --- paths ------------------------------------------------------------------------------------ */

/* A path by value: nothing to free. */
typedef struct {
    char s[4096];
} ek_path;

/* Formats a path; EK_EINVAL when it is too long for the system. */
EK_CHECKED ek_status ek_path_set(ek_path *p, const char *fmt, ...) EK_PRINTF(2, 3);

/* The folder that holds `path`: "a/b" -> "a", "b" -> ".", "/b" -> "/". */
EK_CHECKED ek_status ek_path_parent(const char *path, ek_path *out);

/* The absolute path, with the links of its existing part resolved: all spellings of one path give
 * the same text. */
EK_CHECKED ek_status ek_path_absolute(const char *path, ek_path *out);

typedef enum { EK_FILE_NONE, EK_FILE_REGULAR, EK_FILE_FOLDER, EK_FILE_OTHER } ek_file_kind;

/* Type of the file at a path, links followed; EK_FILE_NONE also when stat() fails. */
ek_file_kind ek_file_kind_of(const char *path);

/* Whether the path exists; a dangling link does. */
int ek_file_exists(const char *path);

/* --- reading ---------------------------------------------------------------------------------- */

/* A read-only view of a whole file.  data is never NULL, even for an empty file. */
typedef struct {
    const void *data;
    size_t bytes;
} ek_file_map;

/* Maps a regular file.  EK_EFORMAT for other types; EK_ENOENT, EK_EIO. */
EK_CHECKED ek_status ek_file_map_open(const char *path, ek_file_map *out);
/* Unmaps it; the view is then empty. */
void ek_file_map_close(ek_file_map *m);

/* Reads a whole file of at most bytes_max bytes into new memory, followed by a NUL that *bytes does
 * not count.  The caller frees *data.  EK_EFORMAT when the file is larger. */
EK_CHECKED ek_status ek_file_read(const char *path, size_t bytes_max, char **data, size_t *bytes);

/* Bytes of a file, links followed. */
EK_CHECKED ek_status ek_file_size(const char *path, int64_t *bytes);

/* Opens a regular file for reading; EK_EFORMAT for other types, without blocking on them. */
EK_CHECKED ek_status ek_file_open(const char *path, int *fd, int64_t *bytes);

/* A list of names, sorted by bytes. */
typedef struct {
    char **names;
    int64_t n, cap;
} ek_names;

/* Frees the names and the list, which is then empty. */
void ek_names_free(ek_names *l);

/* The names in a folder, without "." and ".."; the caller frees them (ek_names_free). */
EK_CHECKED ek_status ek_folder_entries(const char *path, ek_names *out);

/* All regular files below a folder, as paths relative to it, in byte order.  Names that begin
 * with a dot are left out; links to files are followed, links to folders are not. */
EK_CHECKED ek_status ek_folder_files(const char *path, ek_names *out);

/* Free bytes of the file system that holds `path`. */
EK_CHECKED ek_status ek_folder_free(const char *path, int64_t *bytes);

/* --- writing ---------------------------------------------------------------------------------- */

/* The system calls used for writing; each as its namesake: -1 and errno on failure. */
typedef struct {
    int (*open)(const char *path, int flags, mode_t mode);
    ssize_t (*write)(int fd, const void *data, size_t bytes);
    int (*sync)(int fd);
    int (*close)(int fd);
    int (*rename)(const char *from, const char *to);
    int (*unlink)(const char *path);
    int (*mkdir)(const char *path, mode_t mode);
    int (*rmdir)(const char *path);
} ek_io;

extern const ek_io ek_io_system;

typedef enum {
    EK_WRITE_NEW,     /* as `path` itself, which must not exist: in a temporary folder */
    EK_WRITE_REPLACE, /* under a temporary name, renamed to `path` when it is complete */
    EK_WRITE_GROW     /* truncates `path`: for a file that is read while it grows */
} ek_write_mode;

/* A file being written from its beginning. */
typedef struct {
    const ek_io *io;
    int fd;
    int in_place;   /* a device or pipe: never deleted or synced */
    int64_t bytes;  /* written so far */
    ek_path path;   /* as the caller names it, for messages */
    ek_path target; /* REPLACE: the file that `path` stands for, links followed */
    ek_path made;   /* file to delete after a failure; "": none */
} ek_file_out;

/* Creates a file, mode 0666 less the umask; the open() that creates it never follows links.
 *
 * NEW: fails if the path exists.
 * REPLACE: the temporary file is in the folder of the target and is named
 * <target>.<8 random letters>.tmp.  An existing target keeps its permissions.  If `path` is a link,
 * the file that it leads to is replaced, but not through another user's link in a world-writable
 * folder (EK_EIO).  A device, pipe, or open file (/dev/fd/1) is written in place.  EK_EINVAL for a
 * folder.
 * GROW: links and devices as for REPLACE; nothing is deleted after a failure. */
EK_CHECKED ek_status ek_file_out_open(const ek_io *io, const char *path, ek_write_mode mode,
                                      ek_file_out *out);
/* For a command that can be interrupted: while stop() is true, writing, closing and
 * ek_file_out_check fail with EK_ECANCELED.  One hook per process; NULL: none. */
void ek_file_set_stop(int (*stop)(void));
/* EK_ECANCELED while stop() is true. */
EK_CHECKED ek_status ek_file_out_check(const ek_file_out *f);
/* Appends `bytes` of data. */
EK_CHECKED ek_status ek_file_out_write(ek_file_out *f, const void *data, size_t bytes);
/* A stdio stream to the same file; the caller closes it before the file. */
EK_CHECKED ek_status ek_file_out_stream(ek_file_out *f, FILE **stream);
/* Syncs, closes, and renames the file to its target.  After a failure the caller discards `f`; the
 * target is then unchanged, or, if only the sync of its folder failed, new and complete. */
EK_CHECKED ek_status ek_file_out_close(ek_file_out *f);
/* For clean-up: closes and deletes the unfinished file; keeps the text of the last failure. */
void ek_file_out_discard(ek_file_out *f);

/* Writes a small file as EK_WRITE_NEW, and syncs it. */
EK_CHECKED ek_status ek_file_write(const ek_io *io, const char *path, const void *data,
                                   size_t bytes);

/* Writes a small file as EK_WRITE_REPLACE: `path` has either its old or all of its new contents. */
EK_CHECKED ek_status ek_file_replace(const ek_io *io, const char *path, const void *data,
                                     size_t bytes);

/* Atomically replaces `path` by a symbolic link to `text` (a temporary link, renamed).  The old
 * file or link is lost: the caller must have checked it. */
EK_CHECKED ek_status ek_link_replace(const ek_io *io, const char *text, const char *path);

/* Deletes files left in a folder by killed writers: temporary files and links whose final names
 * match a pattern (fnmatch) and that are unchanged for age_s seconds.  Errors are ignored. */
void ek_folder_clear_temporaries(const char *folder, const char *pattern, int64_t age_s);

/* --- private to this user --------------------------------------------------------------------- */

/* Makes a folder with mode 0700, and its parents as ek_folder_make does.  EK_EINVAL if it exists
 * and is no folder, belongs to another user, or is writable by others. */
EK_CHECKED ek_status ek_folder_make_private(const char *path);

/* Opens a regular file of this user for reading, without following a link.  EK_ENOENT if it is
 * missing, belongs to another user, or is writable by others. */
EK_CHECKED ek_status ek_file_open_private(const char *path, int *fd, int64_t *bytes);

/* An unnamed file of mode 0600 in a folder: gone when *fd is closed or the process ends. */
EK_CHECKED ek_status ek_file_open_unnamed(const char *folder, int *fd);

/* --- names and folders ------------------------------------------------------------------------ */

/* Renames a file or folder and syncs the folders that hold the two names. */
EK_CHECKED ek_status ek_file_rename(const ek_io *io, const char *from, const char *to);

/* Deletes one file and syncs its folder; a missing file is no failure. */
EK_CHECKED ek_status ek_file_remove(const ek_io *io, const char *path);

/* Makes a folder and its missing parents, and syncs the folders that hold the new entries. */
EK_CHECKED ek_status ek_folder_make(const ek_io *io, const char *path);

/* Makes a new folder with a temporary name derived from `path`, and its missing parents. */
EK_CHECKED ek_status ek_folder_make_temporary(const ek_io *io, const char *path, ek_path *out);

/* Syncs a folder, so that its entries survive a power failure; succeeds on a file system that
 * cannot. */
EK_CHECKED ek_status ek_folder_sync(const ek_io *io, const char *path);

/* Locks a folder (flock; nothing is written) until *fd is closed or the process ends.  EK_ESTATE:
 * another process holds the lock.  Succeeds on a file system without locks. */
EK_CHECKED ek_status ek_folder_lock(const char *path, int *fd);

/* Deletes a folder (or file) and its contents; links are deleted, not followed.  A missing one is
 * no failure.  Not synced: deleted files may reappear after a power failure. */
EK_CHECKED ek_status ek_folder_remove(const ek_io *io, const char *path);

/* The same for clean-up: deletes what it can and keeps the text of the last failure. */
void ek_folder_discard(const ek_io *io, const char *path);

#endif
