/* base/file.h - files and folders: reading by mapping, and writing that survives a crash.
 *
 * Reading maps a file; its size is what it was at opening, so a file must not be cut short while
 * it is mapped.
 *
 * Writing goes through a small table of functions, so that a test can let call number N fail or
 * lose what was not synced; NULL stands for the real system.  Every write is checked.  A file whose
 * name a user chose is written under a temporary name, synced, renamed, and the folder that holds
 * the name is synced too: its name never stands for a part of it, and no other file is touched.
 *
 * Errors       EK_ENOSPC when the disk (or quota) is full, EK_ENOENT when something is missing,
 *              EK_EFORMAT where a path is none of what is wanted there (too long, a loop of links,
 *              a socket, a folder or a file in the other's place), EK_EIO for all else; the message
 *              holds the path and the system's reason.
 * Threads      no shared state but for what ek_file_set_stop sets, once, before threads. */
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

/* The path from the root, links followed as far as it is there, so that all ways to write one path
 * come to the same. */
EK_CHECKED ek_status ek_path_absolute(const char *path, ek_path *out);

typedef enum { EK_FILE_NONE, EK_FILE_REGULAR, EK_FILE_FOLDER, EK_FILE_OTHER } ek_file_kind;

/* What stands at a path, links followed; EK_FILE_NONE also when it cannot be looked at. */
ek_file_kind ek_file_kind_of(const char *path);

/* Whether a folder has an entry of this name: also a link that leads nowhere. */
int ek_file_exists(const char *path);

/* --- reading ---------------------------------------------------------------------------------- */

/* A read-only view of a whole file.  data is never NULL, even for an empty file. */
typedef struct {
    const void *data;
    size_t bytes;
} ek_file_map;

EK_CHECKED ek_status ek_file_map_open(const char *path, ek_file_map *out);
void ek_file_map_close(ek_file_map *m);

/* Reads a whole file of at most bytes_max bytes into fresh memory, with a NUL behind it that is
 * not counted.  The caller frees *data.  EK_EFORMAT when the file is larger. */
EK_CHECKED ek_status ek_file_read(const char *path, size_t bytes_max, char **data, size_t *bytes);

EK_CHECKED ek_status ek_file_size(const char *path, int64_t *bytes);

/* Opens a regular file for reading; anything else is refused before it can block. */
EK_CHECKED ek_status ek_file_open(const char *path, int *fd, int64_t *bytes);

/* Names in byte order. */
typedef struct {
    char **names;
    int64_t n, room;
} ek_names;

void ek_names_free(ek_names *l);

/* What a folder holds, by name; neither "." nor "..". */
EK_CHECKED ek_status ek_folder_entries(const char *path, ek_names *out);

/* All regular files below a folder, as paths relative to it, in byte order.  Names that begin
 * with a dot are left out; links to files are followed, links to folders are not. */
EK_CHECKED ek_status ek_folder_files(const char *path, ek_names *out);

/* Bytes that may still be written in the file system that holds `path`. */
EK_CHECKED ek_status ek_folder_free(const char *path, int64_t *bytes);

/* --- writing ---------------------------------------------------------------------------------- */

/* What writing asks of the system; each as its namesake, -1 and errno for failure. */
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
    EK_WRITE_NEW, /* under `path` itself, where nothing may be: for a folder that is temporary */
    EK_WRITE_REPLACE, /* under a temporary name, renamed to `path` when it is complete */
    EK_WRITE_GROW     /* what is there is emptied: for a file to be read while it grows */
} ek_write_mode;

/* A file being written from its beginning. */
typedef struct {
    const ek_io *io;
    int fd;
    int in_place;   /* a device or pipe: never deleted or synced */
    int64_t bytes;  /* written so far */
    ek_path path;   /* as the caller names it, for messages */
    ek_path target; /* REPLACE: the file that `path` stands for, links followed */
    ek_path made;   /* what a failure has to delete; "": nothing */
} ek_file_out;

/* Creates a file, with the permissions that the umask leaves; links are never followed by the
 * creation itself.
 *
 * NEW: fails where something is.
 * REPLACE: the temporary file stands in the folder of the target and is named
 * <target>.<8 random letters>.tmp.  A target that is there keeps its permissions.  Where `path` is
 * a link, the file that it leads to is written, but not through another user's link in a folder
 * that all may write to (EK_EIO).  A device, pipe, or open file (/dev/fd/1) is written to as it
 * is.  EK_EINVAL for a folder.
 * GROW: where links lead, and for devices, as REPLACE; nothing is deleted after a failure. */
EK_CHECKED ek_status ek_file_out_open(const ek_io *io, const char *path, ek_write_mode mode,
                                      ek_file_out *out);
/* For a command that can be interrupted: while `stop` (NULL: never) is true, writing and closing
 * fail with EK_ECANCELED, and so does ek_file_out_check.  It is asked for the whole process. */
void ek_file_set_stop(int (*stop)(void));
EK_CHECKED ek_status ek_file_out_check(const ek_file_out *f);
EK_CHECKED ek_status ek_file_out_write(ek_file_out *f, const void *data, size_t bytes);
/* A stream that writes to the same file; to be closed before it. */
EK_CHECKED ek_status ek_file_out_stream(ek_file_out *f, FILE **stream);
/* Syncs, closes, and gives the file its name.  After a failure, to be discarded, the target is as
 * it was, or, where only the sync of its folder failed, new and whole. */
EK_CHECKED ek_status ek_file_out_close(ek_file_out *f);
/* For clean-up: closes and deletes what has no name yet, and leaves the text of the failure
 * alone. */
void ek_file_out_discard(ek_file_out *f);

/* Writes a small file as EK_WRITE_NEW, and syncs it. */
EK_CHECKED ek_status ek_file_write(const ek_io *io, const char *path, const void *data,
                                   size_t bytes);

/* Writes a small file as EK_WRITE_REPLACE: `path` holds either what it held or all of the new. */
EK_CHECKED ek_status ek_file_replace(const ek_io *io, const char *path, const void *data,
                                     size_t bytes);

/* Makes `path` a link with this text, in place of what is there, by way of a temporary name.  What
 * `path` was is lost: the caller has looked at it. */
EK_CHECKED ek_status ek_link_replace(const ek_io *io, const char *text, const char *path);

/* Deletes what writers that were killed have left in a folder: temporary files and links whose
 * final names match a pattern (fnmatch), and that have not changed for age_s seconds. */
void ek_folder_clear_temporaries(const char *folder, const char *pattern, int64_t age_s);

/* --- for this user alone ---------------------------------------------------------------------- */

/* Makes a folder with mode 0700 (those above it as ek_folder_make does).  One that is there has to
 * be a folder of this user's that nobody else may write to: EK_EINVAL. */
EK_CHECKED ek_status ek_folder_make_private(const char *path);

/* Opens a regular file for reading that belongs to this user and that nobody else may write to; not
 * through a link.  EK_ENOENT: it is not there, or not so. */
EK_CHECKED ek_status ek_file_open_private(const char *path, int *fd, int64_t *bytes);

/* A file of mode 0600 in a folder, without a name: it ends with its descriptor, however the process
 * ends. */
EK_CHECKED ek_status ek_file_open_unnamed(const char *folder, int *fd);

/* --- names and folders ------------------------------------------------------------------------ */

/* Renames a file or folder and syncs the folders that hold the two names. */
EK_CHECKED ek_status ek_file_rename(const ek_io *io, const char *from, const char *to);

/* Deletes one file and syncs its folder; a missing file is no failure. */
EK_CHECKED ek_status ek_file_remove(const ek_io *io, const char *path);

/* Makes a folder and those above it that are missing, and syncs where they are entered. */
EK_CHECKED ek_status ek_folder_make(const ek_io *io, const char *path);

/* Makes a new folder with a temporary name of `path`, and those above it. */
EK_CHECKED ek_status ek_folder_make_temporary(const ek_io *io, const char *path, ek_path *out);

EK_CHECKED ek_status ek_folder_sync(const ek_io *io, const char *path);

/* Takes the lock of a folder (flock; nothing is written), which lasts until *fd is closed or the
 * process ends.  EK_ESTATE: another process holds it.  A file system without locks gives them. */
EK_CHECKED ek_status ek_folder_lock(const char *path, int *fd);

/* Deletes a folder (or file) with all that it holds; links are deleted, not followed.  A missing
 * one is no failure.  Not synced: what is deleted may come back after a loss of power. */
EK_CHECKED ek_status ek_folder_remove(const ek_io *io, const char *path);

/* The same for clean-up: deletes what it can and leaves the text of the failure alone. */
void ek_folder_discard(const ek_io *io, const char *path);

#endif
