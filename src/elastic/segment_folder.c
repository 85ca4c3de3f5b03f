/* Names, finds, lists and removes the folders of segments.
 *
 * All users can create files in /dev/shm and read the names there.  A folder's name ends with 128
 * random bits, and only its owner can create files in it, so no other user can have taken the name
 * before or can interfere between its creation and its use.  A folder with a name of this run that
 * belongs to another user, or that others can access, is not used. */
#include "base/file.h"
#include "base/random_name.h"
#include "elastic/segment_priv.h"

#include <errno.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_TRIES = 16, PREFIX_CAP = 64 };

static const char front[] = "front";

/* The name of a segment's folder without its random end.  Returns its length. */
static size_t folder_prefix(const ek_segment_id *id, char prefix[PREFIX_CAP])
{
    return (size_t)snprintf(prefix, PREFIX_CAP, "evenkeel-%016" PRIx64 "-%" PRId32 "-%" PRId32 "-",
                            id->run, id->generation, id->rank);
}

/* Whether a name is exactly that of a segment's folder; fills *id. */
static int parse_folder_name(const char *name, ek_segment_id *id)
{
    char prefix[PREFIX_CAP];
    size_t n;

    if (sscanf(name, "evenkeel-%16" SCNx64 "-%" SCNd32 "-%" SCNd32 "-", &id->run, &id->generation,
               &id->rank) != 3)
        return 0;
    n = folder_prefix(id, prefix);
    return id->generation >= 0 && id->rank >= 0 && strncmp(name, prefix, n) == 0 &&
           ek_random_name_is_at(name + n) && name[n + EK_RANDOM_NAME_CHARS] == '\0';
}

static void folder_path(const char *name, char path[EK_SEGMENT_FOLDER])
{
    snprintf(path, EK_SEGMENT_FOLDER, "%s/%s", EK_SEGMENT_ROOT, name);
}

/* Whether it is a folder of this user to which no other user has access. */
static int is_private_folder(const char *name)
{
    char path[EK_SEGMENT_FOLDER];
    struct stat of;

    folder_path(name, path);
    return lstat(path, &of) == 0 && S_ISDIR(of.st_mode) && of.st_uid == geteuid() &&
           (of.st_mode & (S_IRWXG | S_IRWXO)) == 0;
}

static ek_status list_shm_root(ek_names *names)
{
    *names = (ek_names){0};
    if (ek_file_kind_of(EK_SEGMENT_ROOT) != EK_FILE_FOLDER)
        return EK_OK; /* the system has no /dev/shm */
    return ek_folder_entries(EK_SEGMENT_ROOT, names);
}

static int is_folder_of(const char *name, const ek_segment_id *id)
{
    ek_segment_id of;

    return parse_folder_name(name, &of) && of.run == id->run && of.generation == id->generation &&
           of.rank == id->rank && is_private_folder(name);
}

ek_status ek_segment_folder_make(const ek_segment_id *id, char path[EK_SEGMENT_FOLDER])
{
    char name[PREFIX_CAP + EK_RANDOM_NAME_CAP];
    size_t n = folder_prefix(id, name);

    for (int i = 0; i < MAX_TRIES; i++) {
        EK_TRY(ek_random_name_make(name + n));
        folder_path(name, path);
        if (mkdir(path, S_IRWXU) == 0)
            return EK_OK;
        EK_REQUIRE(errno == EEXIST, errno == ENOSPC ? EK_ENOSPC : EK_EIO,
                   "cannot make shared memory %s: %s", path, strerror(errno));
    }
    return EK_FAIL(EK_EIO, "cannot make shared memory %s: %d random names are taken", path,
                   MAX_TRIES);
}

ek_status ek_segment_folder_find(const ek_segment_id *id, char path[EK_SEGMENT_FOLDER])
{
    ek_names names;
    int found = 0;

    EK_TRY(list_shm_root(&names));
    for (int64_t i = 0; i < names.n && !found; i++)
        if (is_folder_of(names.names[i], id)) {
            folder_path(names.names[i], path);
            found = 1;
        }
    ek_names_free(&names);
    if (found)
        return EK_OK;
    return EK_FAIL(EK_ENOENT, "no shared memory of run %016" PRIx64 " generation %d rank %d",
                   id->run, (int)id->generation, (int)id->rank);
}

void ek_segment_front_path(const char *folder, char path[EK_SEGMENT_PATH])
{
    snprintf(path, EK_SEGMENT_PATH, "%s/%s", folder, front);
}

void ek_segment_block_path(const char *folder, int64_t k, char path[EK_SEGMENT_PATH])
{
    snprintf(path, EK_SEGMENT_PATH, "%s/%" PRId64, folder, k);
}

/* --- removing --------------------------------------------------------------------------------- */

/* Removes the blocks before the front, so that an interrupted removal is found again. */
static ek_status remove_folder(const char *name)
{
    char folder[EK_SEGMENT_FOLDER], path[EK_SEGMENT_PATH];
    ek_names files = {0};
    ek_status st = EK_OK;

    folder_path(name, folder);
    st = ek_folder_entries(folder, &files);
    if (st == EK_ENOENT)
        return EK_OK;
    EK_TRY(st);
    for (int last = 0; last < 2; last++)
        for (int64_t i = 0; i < files.n; i++) {
            if ((strcmp(files.names[i], front) == 0) != last)
                continue;
            snprintf(path, sizeof(path), "%s/%.20s", folder, files.names[i]);
            EK_REQUIRE_OUT(unlink(path) == 0 || errno == ENOENT, EK_EIO,
                           "cannot remove shared memory %s: %s", path, strerror(errno));
        }
    EK_REQUIRE_OUT(rmdir(folder) == 0 || errno == ENOENT, EK_EIO,
                   "cannot remove shared memory %s: %s", folder, strerror(errno));
out:
    ek_names_free(&files);
    return st;
}

ek_status ek_segment_remove(const ek_segment_id *id)
{
    ek_names names;
    ek_status st = EK_OK;

    EK_TRY(list_shm_root(&names));
    for (int64_t i = 0; i < names.n; i++)
        if (is_folder_of(names.names[i], id))
            EK_TRY_OUT(remove_folder(names.names[i]));
out:
    ek_names_free(&names);
    return st;
}

/* --- listing ---------------------------------------------------------------------------------- */

static int compare_ids(const void *a, const void *b)
{
    const ek_segment_id *x = a, *y = b;

    if (x->run != y->run)
        return x->run < y->run ? -1 : 1;
    if (x->generation != y->generation)
        return x->generation < y->generation ? -1 : 1;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

/* Removes duplicates from a sorted list; returns the new length. */
static int64_t remove_duplicates(ek_segment_id *ids, int64_t n)
{
    int64_t kept = 0;

    for (int64_t i = 0; i < n; i++)
        if (i == 0 || compare_ids(&ids[i], &ids[kept - 1]) != 0)
            ids[kept++] = ids[i];
    return kept;
}

ek_status ek_segment_list(uint64_t run, ek_segment_id **ids, int64_t *n)
{
    ek_names names;
    ek_status st = EK_OK;

    *ids = NULL;
    *n = 0;
    EK_TRY(list_shm_root(&names));
    *ids = malloc(((size_t)names.n + 1) * sizeof(**ids));
    EK_REQUIRE_OUT(*ids != NULL, EK_ENOMEM, "no memory for %lld names", (long long)names.n);
    for (int64_t i = 0; i < names.n; i++) {
        ek_segment_id *id = &(*ids)[*n];

        if (parse_folder_name(names.names[i], id) && (run == 0 || id->run == run) &&
            is_private_folder(names.names[i]))
            ++*n;
    }
    qsort(*ids, (size_t)*n, sizeof(**ids), compare_ids);
    *n = remove_duplicates(*ids, *n);
out:
    ek_names_free(&names);
    return st;
}

static void describe_owner(const char *path, char *text, size_t cap)
{
    char buf[1024];
    struct passwd user, *known = NULL;
    struct stat of;

    if (lstat(path, &of) != 0)
        return;
    if (of.st_uid == geteuid())
        snprintf(text, cap, "%s is not a folder that only its owner can use", path);
    else if (getpwuid_r(of.st_uid, &user, buf, sizeof(buf), &known) == 0 && known != NULL)
        snprintf(text, cap, "%s belongs to user %s", path, known->pw_name);
    else
        snprintf(text, cap, "%s belongs to user %u", path, (unsigned)of.st_uid);
}

ek_status ek_segment_foreign(uint64_t run, char *text, size_t cap)
{
    char prefix[PREFIX_CAP], path[EK_SEGMENT_FOLDER];
    ek_names names;
    size_t n = (size_t)snprintf(prefix, sizeof(prefix), "evenkeel-%016" PRIx64, run);

    text[0] = '\0';
    EK_TRY(list_shm_root(&names));
    for (int64_t i = 0; i < names.n && text[0] == '\0'; i++) {
        if (strncmp(names.names[i], prefix, n) != 0 || is_private_folder(names.names[i]))
            continue;
        folder_path(names.names[i], path);
        describe_owner(path, text, cap);
    }
    ek_names_free(&names);
    return EK_OK;
}
