/* Recognises, removes and restores files of runs in the output folder. */
#include "train/output/folder.h"

#include "store/checkpoint.h"
#include "train/output/eval_state.h"
#include "train/output/run_file.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEAD_BYTES = 64 };

/* A file that a run writes, and the bytes that it begins with. */
typedef struct {
    const char *name;
    const char *begins;
} out_file;

/* The first bytes of each kind, as all versions have written them. */
#define RUN_BEGINS      "{\"format\": \"evenkeel-run\""
#define EVAL_BEGINS     "{\"format\": \"evenkeel-evaluation\""
#define METRICS_BEGINS  "{\"step\": "
#define TIMELINE_BEGINS "{\"displayTimeUnit\":\"ms\",\"traceEvents\":["
#define PLANS_BEGINS    "{\"iteration\": "

static const out_file files[] = {
    {EK_RUN_FILE, RUN_BEGINS},          {"metrics.jsonl", METRICS_BEGINS},
    {"timeline.json", TIMELINE_BEGINS}, {"routing.npy", "\x93NUMPY"},
    {"plans.jsonl", PLANS_BEGINS},      {"generations.jsonl", "{\"generation\": "},
    {"run-failed.json", RUN_BEGINS},    {"metrics-failed.jsonl", METRICS_BEGINS},
    {EK_EVAL_FILE, EVAL_BEGINS},        {"metrics-undone.jsonl", METRICS_BEGINS},
};

/* Links to the best checkpoint, of the run and of one that is replaced. */
static const char *const links[] = {"best", "best.replaced"};
static const char is_link[] = "";

/* Files of other ranks and stages, from 1. */
static const struct {
    const char *before, *after, *begins;
} numbered[] = {{"timeline-rank", ".json", TIMELINE_BEGINS},
                {"plans-stage", ".jsonl", PLANS_BEGINS}};

static const char *const folders[] = {"checkpoint", "checkpoint.tmp", "checkpoint.old",
                                      "checkpoint.replaced"};

enum {
    N_LINKS = sizeof(links) / sizeof(links[0]),
    N_FILES = sizeof(files) / sizeof(files[0]),
    N_NUMBERED = sizeof(numbered) / sizeof(numbered[0]),
    N_FOLDERS = sizeof(folders) / sizeof(folders[0])
};

/* Whether a path exists, also as a dangling link. */
static int is_there(const char *path)
{
    struct stat s;

    return lstat(path, &s) == 0;
}

/* Calls fn with each path in dir that has a name of a run's file; begins is NULL for folders,
 * is_link for links. */
typedef ek_status (*out_fn)(const char *path, const char *begins, void *context);

static ek_status visit_path(const char *dir, const char *name, const char *begins, out_fn fn,
                            void *context, int *there)
{
    ek_path path;

    EK_TRY(ek_path_set(&path, "%s/%s", dir, name));
    *there = is_there(path.s);
    return *there ? fn(path.s, begins, context) : EK_OK;
}

static ek_status for_each(const char *dir, out_fn fn, void *context)
{
    int there;

    for (int i = 0; i < N_FOLDERS; i++)
        EK_TRY(visit_path(dir, folders[i], NULL, fn, context, &there));
    for (int i = 0; i < N_LINKS; i++)
        EK_TRY(visit_path(dir, links[i], is_link, fn, context, &there));
    for (int i = 0; i < N_FILES; i++)
        EK_TRY(visit_path(dir, files[i].name, files[i].begins, fn, context, &there));
    for (int i = 0; i < N_NUMBERED; i++) {
        int number = 1;

        do {
            char name[64];

            snprintf(name, sizeof(name), "%s%d%s", numbered[i].before, number++, numbered[i].after);
            EK_TRY(visit_path(dir, name, numbered[i].begins, fn, context, &there));
        } while (there);
    }
    return EK_OK;
}

static ek_status keep_first(const char *path, const char *begins, void *found)
{
    ek_path *first = found;

    (void)begins;
    return first->s[0] == '\0' ? ek_path_set(first, "%s", path) : EK_OK;
}

ek_status ek_out_find(const char *dir, ek_path *found)
{
    found->s[0] = '\0';
    return for_each(dir, keep_first, found);
}

/* --- files of runs ---------------------------------------------------------------------------- */

/* Skips white space, which JSON allows between tokens. */
static const char *skip_spaces(const char *s, const char *end)
{
    while (s < end && (*s == ' ' || *s == '\n' || *s == '\r' || *s == '\t'))
        s++;
    return s;
}

/* Whether a file begins with these bytes, ignoring white space.  A shorter file may have been
 * truncated by a kill. */
static int same_beginning(const char *head, const char *end, const char *begins)
{
    const char *last = begins + strlen(begins);

    for (;;) {
        head = skip_spaces(head, end);
        begins = skip_spaces(begins, last);
        if (head == end || begins == last)
            return 1;
        if (*head++ != *begins++)
            return 0;
    }
}

/* An empty file counts as one. */
static int begins_with(const char *path, const char *begins, int follow)
{
    char head[HEAD_BYTES];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | (follow ? 0 : O_NOFOLLOW));
    struct stat s;
    ssize_t n = -1;

    if (fd >= 0 && fstat(fd, &s) == 0 && S_ISREG(s.st_mode))
        n = read(fd, head, sizeof(head));
    if (fd >= 0)
        close(fd);
    return n >= 0 && same_beginning(head, head + n, begins);
}

static ek_status check_folder(const char *path)
{
    ek_names names = {0};
    ek_status st = EK_OK;
    struct stat s;

    EK_REQUIRE(lstat(path, &s) == 0 && S_ISDIR(s.st_mode), EK_EINVAL,
               "%s is not a folder that a run has made: move it away, or give another --out", path);
    EK_TRY(ek_folder_entries(path, &names));
    for (int64_t i = 0; i < names.n && st == EK_OK; i++)
        if (!ek_checkpoint_is_step(names.names[i]))
            st = EK_FAIL(EK_EINVAL,
                         "%s/%s is not of a run, and would be deleted: move it away, or give "
                         "another --out",
                         path, names.names[i]);
    ek_names_free(&names);
    return st;
}

/* Files that only a new run deletes.  A resumed run keeps the folder of checkpoints, which may
 * contain other files. */
static int stays_on_resume(const char *path)
{
    const char *name = strrchr(path, '/') + 1;

    return strcmp(name, "checkpoint") == 0 || strstr(name, ".replaced") != NULL ||
           strstr(name, "-failed.") != NULL;
}

/* A link through which a resumed run writes; no regular file is replaced. */
static int leads_to_no_file(const char *path)
{
    struct stat s;

    return stat(path, &s) != 0 || !S_ISREG(s.st_mode);
}

static ek_status check_own(const char *path, const char *begins, void *context)
{
    int resume = *(const int *)context;

    if (resume && stays_on_resume(path))
        return EK_OK;
    if (begins == NULL)
        return check_folder(path);
    if (resume && begins != is_link && leads_to_no_file(path))
        return EK_OK;
    EK_REQUIRE(begins == is_link ? ek_checkpoint_is_best_link(path)
                                 : begins_with(path, begins, resume),
               EK_EINVAL,
               "%s is not a file that a run has written, and would be replaced: move it away, or "
               "give another --out",
               path);
    return EK_OK;
}

ek_status ek_out_check_own(const char *dir, int resume)
{
    return for_each(dir, check_own, &resume);
}

/* --- clearing and restoring ------------------------------------------------------------------- */

/* What an elastic run that goes back to its start keeps: the supervisor's file, and lines of
 * metrics, which ek_metrics_open moves aside. */
static const char *const kept_by_elastic[] = {"generations.jsonl", "metrics.jsonl",
                                              "metrics-undone.jsonl"};

/* context: int, whether the run is elastic. */
static ek_status clear_file(const char *path, const char *begins, void *context)
{
    const char *name = strrchr(path, '/') + 1;
    const int *elastic = context;

    if (begins == NULL || begins == is_link)
        return EK_OK;
    for (size_t i = 0; *elastic && i < sizeof(kept_by_elastic) / sizeof(kept_by_elastic[0]); i++)
        if (strcmp(name, kept_by_elastic[i]) == 0)
            return EK_OK;
    return ek_file_remove(NULL, path);
}

/* What is renamed while a run is replaced: its checkpoints, and the link to the best. */
static const char *const aside_names[] = {"checkpoint", "best"};
enum { N_ASIDE = sizeof(aside_names) / sizeof(aside_names[0]) };

static ek_status set_paths(const char *dir, int which, ek_path *all, ek_path *replaced)
{
    EK_TRY(ek_path_set(all, "%s/%s", dir, aside_names[which]));
    return ek_path_set(replaced, "%s.replaced", all->s);
}

/* A folder or a link. */
static ek_status remove_either(const char *path)
{
    return ek_checkpoint_is_best_link(path) ? ek_file_remove(NULL, path)
                                            : ek_folder_remove(NULL, path);
}

static ek_status put_aside(const char *dir, int which)
{
    ek_path all, replaced;

    EK_TRY(set_paths(dir, which, &all, &replaced));
    if (!is_there(all.s)) /* keep those of an earlier replacement that was killed */
        return EK_OK;
    EK_TRY(remove_either(replaced.s));
    return ek_file_rename(NULL, all.s, replaced.s);
}

ek_status ek_out_clear(const char *dir, int elastic, int *aside)
{
    ek_path all, replaced;

    for (int i = N_ASIDE - 1; i >= 0; i--) /* the link before the folder to which it points */
        EK_TRY(put_aside(dir, i));
    EK_TRY(set_paths(dir, 0, &all, &replaced));
    *aside = is_there(replaced.s);
    return for_each(dir, clear_file, &elastic);
}

void ek_out_clear_temporaries(const char *dir)
{
    char pattern[64];

    for (int i = 0; i < N_FILES; i++)
        ek_folder_clear_temporaries(dir, files[i].name, 0);
    for (int i = 0; i < N_NUMBERED; i++) {
        snprintf(pattern, sizeof(pattern), "%s*%s", numbered[i].before, numbered[i].after);
        ek_folder_clear_temporaries(dir, pattern, 0);
    }
    ek_folder_clear_temporaries(dir, "machine*.json", 0);
    ek_folder_clear_temporaries(dir, links[0], 0);
}

ek_status ek_out_drop_replaced(const char *dir)
{
    ek_path all, replaced;

    for (int i = N_ASIDE - 1; i >= 0; i--) {
        EK_TRY(set_paths(dir, i, &all, &replaced));
        EK_TRY(remove_either(replaced.s));
    }
    return EK_OK;
}

int ek_out_restore(const char *dir)
{
    static const char *const names[][2] = {{EK_RUN_FILE, "run-failed.json"},
                                           {"metrics.jsonl", "metrics-failed.jsonl"}};
    ek_path from, to;

    if (set_paths(dir, 0, &to, &from) < 0 || is_there(to.s) || rename(from.s, to.s) != 0)
        return 0;
    if (set_paths(dir, 1, &to, &from) == EK_OK)
        (void)rename(from.s, to.s); /* most runs have none */
    for (int i = 0; i < 2; i++)
        if (ek_path_set(&from, "%s/%s", dir, names[i][0]) == EK_OK &&
            ek_path_set(&to, "%s/%s", dir, names[i][1]) == EK_OK)
            (void)rename(from.s, to.s); /* it may not be there yet */
    return 1;
}

ek_status ek_out_no_checkpoint(const char *dir)
{
    ek_path all, replaced, found = {.s = ""};

    EK_TRY(set_paths(dir, 0, &all, &replaced));
    if (ek_file_kind_of(dir) == EK_FILE_FOLDER)
        EK_TRY(ek_out_find(dir, &found));
    EK_REQUIRE(
        found.s[0] != '\0', EK_ENOENT,
        "--resume: there is no run in %s, and so no complete checkpoint: give the --out of a "
        "run, or start one without --resume",
        dir);
    EK_REQUIRE(!is_there(replaced.s), EK_ENOENT,
               "--resume: there is no complete checkpoint in %s, but those of the run that "
               "--overwrite was replacing when it was killed, in %s.  To continue that run, "
               "delete " EK_RUN_FILE
               " and metrics.jsonl in %s and rename checkpoint.replaced to checkpoint "
               "(best.replaced, if it is there, to best); to start the new run again, give "
               "--overwrite instead of --resume",
               dir, replaced.s, dir);
    return EK_FAIL(EK_ENOENT,
                   "--resume: there is no complete checkpoint in %s: start the run again, with "
                   "--overwrite instead of --resume",
                   dir);
}

/* --- a folder by default ---------------------------------------------------------------------- */

static ek_status set_default(int64_t number, ek_path *out)
{
    return number <= 1 ? ek_path_set(out, "run") : ek_path_set(out, "run-%" PRId64, number);
}

/* 1 for "run", N for "run-N"; 0 for names that set_default does not give. */
static int64_t default_number(const char *name)
{
    long long number = 1;
    ek_path same;

    if (strcmp(name, "run") != 0 && (sscanf(name, "run-%18lld", &number) != 1 || number < 2))
        return 0;
    return set_default(number, &same) == EK_OK && strcmp(same.s, name) == 0 ? number : 0;
}

ek_status ek_out_default(int go_on, ek_path *out)
{
    int64_t last = 0;
    ek_names names = {0};
    ek_path found;
    ek_status st = EK_OK;

    EK_TRY(ek_folder_entries(".", &names));
    for (int64_t i = 0; i < names.n; i++) {
        int64_t number = default_number(names.names[i]);

        if (number <= last)
            continue;
        EK_TRY_OUT(ek_out_find(names.names[i], &found));
        if (found.s[0] != '\0')
            last = number;
    }
    EK_TRY_OUT(set_default(go_on ? last : last + 1, out));
out:
    ek_names_free(&names);
    return st;
}
