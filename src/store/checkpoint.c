/* Writing checkpoints: temporary folder, files, manifest, rename; and deleting old ones. */
#include "store/checkpoint_priv.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

struct ek_checkpoint {
    const ek_io *io;
    int64_t step;
    json_t *files, *layout;  /* of the manifest; layout may be empty */
    ek_path folder;          /* where files are written */
    ek_path temporary, name; /* the folder to rename, and its new name */
    ek_path aside;           /* where an existing checkpoint of that name is set aside */
};

/* --- deleting, and leftovers ------------------------------------------------------------------ */

/* Deletes a checkpoint, manifest first, so that a manifest never lists deleted files. */
static ek_status delete_checkpoint(const ek_io *io, const char *path)
{
    ek_path manifest;

    EK_TRY(ek_path_set(&manifest, "%s/%s", path, EK_MANIFEST_NAME));
    EK_TRY(ek_file_remove(io, manifest.s));
    return ek_folder_remove(io, path);
}

/* Restores the name of a checkpoint that was set aside, unless its successor is complete. */
static ek_status resolve_aside(const ek_io *io, const char *folder, const ek_step_entry *e)
{
    ek_path aside, name;
    int64_t step;

    EK_TRY(ek_path_set(&aside, "%s/%s", folder, e->name));
    EK_TRY(ek_path_set(&name, "%s/" EK_STEP_FORMAT, folder, (long long)e->step));
    if (ek_file_kind_of(name.s) != EK_FILE_NONE &&
        ek_checkpoint_check_folder(name.s, EK_CHECK_SIZES, &step) >= 0)
        return delete_checkpoint(io, aside.s);
    if (ek_file_kind_of(name.s) != EK_FILE_NONE)
        EK_TRY(delete_checkpoint(io, name.s));
    return ek_file_rename(io, aside.s, name.s);
}

/* Clears what a crash left inside <out>/checkpoint. */
static ek_status clear_checkpoint_folder(const ek_io *io, const char *folder)
{
    ek_names names = {0};
    ek_step_entry *steps = NULL;
    int64_t n = 0;
    ek_path p;
    ek_status st;

    EK_TRY_OUT(ek_folder_entries(folder, &names));
    for (int64_t i = 0; i < names.n; i++) {
        if (!ek_checkpoint_is_temporary(names.names[i]))
            continue;
        EK_TRY_OUT(ek_path_set(&p, "%s/%s", folder, names.names[i]));
        EK_TRY_OUT(ek_folder_remove(io, p.s));
    }
    EK_TRY_OUT(ek_checkpoint_steps(folder, &steps, &n));
    for (int64_t i = 0; i < n; i++)
        if (steps[i].aside)
            EK_TRY_OUT(resolve_aside(io, folder, &steps[i]));
out:
    free(steps);
    ek_names_free(&names);
    return st;
}

static ek_status clear_leftovers(const ek_io *io, const char *out_dir)
{
    static const char *const names[] = {"checkpoint.tmp", "checkpoint.old"};
    ek_path p;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        EK_TRY(ek_path_set(&p, "%s/%s", out_dir, names[i]));
        EK_TRY(ek_folder_remove(io, p.s));
    }
    EK_TRY(ek_path_set(&p, "%s/checkpoint", out_dir));
    if (ek_file_kind_of(p.s) == EK_FILE_FOLDER)
        EK_TRY(clear_checkpoint_folder(io, p.s));
    return EK_OK;
}

/* --- one checkpoint --------------------------------------------------------------------------- */

/* Chooses the names: the first checkpoint creates <out>/checkpoint by its rename. */
static ek_status choose_names(ek_checkpoint *c, const char *out_dir)
{
    long long step = c->step;
    ek_path all;

    EK_TRY(ek_path_set(&all, "%s/checkpoint", out_dir));
    if (ek_file_kind_of(all.s) == EK_FILE_NONE) {
        EK_TRY(ek_path_set(&c->temporary, "%s/checkpoint.tmp", out_dir));
        EK_TRY(ek_path_set(&c->folder, "%s/checkpoint.tmp/" EK_STEP_FORMAT, out_dir, step));
        c->name = all;
        return EK_OK;
    }
    EK_TRY(ek_path_set(&c->temporary, "%s/" EK_STEP_FORMAT ".tmp", all.s, step));
    EK_TRY(ek_path_set(&c->name, "%s/" EK_STEP_FORMAT, all.s, step));
    EK_TRY(ek_path_set(&c->aside, "%s/" EK_STEP_FORMAT ".old", all.s, step));
    c->folder = c->temporary;
    return EK_OK;
}

static void free_checkpoint(ek_checkpoint *c)
{
    if (c == NULL)
        return;
    json_decref(c->files);
    json_decref(c->layout);
    free(c);
}

ek_status ek_checkpoint_begin(const ek_io *io, const char *out_dir, int64_t step,
                              ek_checkpoint **out)
{
    ek_checkpoint *c = calloc(1, sizeof(*c));
    ek_status st;

    EK_REQUIRE_OUT(step >= 0, EK_EINVAL, "a checkpoint of step %" PRId64 " cannot be", step);
    EK_REQUIRE_OUT(c != NULL, EK_ENOMEM, "no memory for a checkpoint in %s", out_dir);
    c->files = json_object();
    c->layout = json_object();
    EK_REQUIRE_OUT(c->files != NULL && c->layout != NULL, EK_ENOMEM,
                   "no memory for a checkpoint in %s", out_dir);
    c->io = io;
    c->step = step;
    EK_TRY_OUT(ek_folder_make(io, out_dir));
    EK_TRY_OUT(clear_leftovers(io, out_dir));
    EK_TRY_OUT(choose_names(c, out_dir));
    EK_TRY_OUT(ek_folder_make(io, c->folder.s));
    *out = c;
    c = NULL;
out:
    if (c != NULL && c->temporary.s[0] != '\0')
        ek_folder_discard(io, c->temporary.s);
    free_checkpoint(c);
    return st;
}

const char *ek_checkpoint_folder(const ek_checkpoint *c)
{
    return c->folder.s;
}

ek_status ek_checkpoint_add(ek_checkpoint *c, const char *name, const ek_file_sum *sum)
{
    char hex[20];

    EK_REQUIRE(ek_checkpoint_name_ok(name), EK_EINVAL, "'%s' cannot name a file of a checkpoint",
               name);
    EK_REQUIRE(json_object_get(c->files, name) == NULL, EK_EINVAL,
               "checkpoint %s has a file %s already", c->name.s, name);
    snprintf(hex, sizeof(hex), "%016" PRIx64, sum->xxh64);
    EK_REQUIRE(json_object_set_new(
                   c->files, name,
                   json_pack("{s:I, s:s}", "bytes", (json_int_t)sum->bytes, "xxh64", hex)) == 0,
               EK_EINVAL, "the file name '%s' is not valid UTF-8", name);
    return EK_OK;
}

ek_status ek_checkpoint_write(ek_checkpoint *c, const char *name, const void *data, size_t bytes)
{
    ek_file_sum sum = {.bytes = (int64_t)bytes, .xxh64 = XXH64(data, bytes, 0)};
    ek_path p;

    EK_TRY(ek_checkpoint_add(c, name, &sum));
    EK_TRY(ek_path_set(&p, "%s/%s", c->folder.s, name));
    return ek_file_write(c->io, p.s, data, bytes);
}

ek_status ek_checkpoint_layout(ek_checkpoint *c, const char *key, int64_t value)
{
    EK_REQUIRE(json_object_set_new(c->layout, key, json_integer(value)) == 0, EK_ENOMEM,
               "no memory for the layout of %s", c->name.s);
    return EK_OK;
}

static ek_status write_manifest(const ek_checkpoint *c)
{
    json_t *root = json_pack("{s:s, s:i, s:I, s:O}", "format", EK_MANIFEST_FORMAT, "version",
                             EK_MANIFEST_VERSION, "step", (json_int_t)c->step, "files", c->files);
    char *text = NULL;
    ek_path p;
    ek_status st;

    if (root != NULL &&
        (json_object_size(c->layout) == 0 || json_object_set(root, "layout", c->layout) == 0))
        text = json_dumps(root, JSON_INDENT(2));
    EK_REQUIRE_OUT(text != NULL, EK_ENOMEM, "no memory for the manifest of %s", c->name.s);
    EK_TRY_OUT(ek_path_set(&p, "%s/%s", c->folder.s, EK_MANIFEST_NAME));
    EK_TRY_OUT(ek_file_write(c->io, p.s, text, strlen(text)));
out:
    free(text);
    json_decref(root);
    return st;
}

/* Renames the temporary folder to its final name; sets aside an existing checkpoint of that
 * name. */
static ek_status rename_folder(const ek_checkpoint *c)
{
    int taken = ek_file_kind_of(c->name.s) != EK_FILE_NONE;

    if (taken)
        EK_TRY(ek_file_rename(c->io, c->name.s, c->aside.s));
    EK_TRY(ek_file_rename(c->io, c->temporary.s, c->name.s));
    if (taken)
        (void)delete_checkpoint(c->io, c->aside.s); /* leftovers are cleared by the next begin */
    return EK_OK;
}

ek_status ek_checkpoint_commit(ek_checkpoint **c)
{
    ek_checkpoint *x = *c;
    ek_status st;

    EK_TRY_OUT(write_manifest(x));
    EK_TRY_OUT(ek_folder_sync(x->io, x->folder.s)); /* its parent was synced at creation */
    EK_TRY_OUT(rename_folder(x));
out:
    ek_checkpoint_abort(c); /* after success there is no temporary folder */
    return st;
}

void ek_checkpoint_abort(ek_checkpoint **c)
{
    if (*c == NULL)
        return;
    ek_folder_discard((*c)->io, (*c)->temporary.s);
    free_checkpoint(*c);
    *c = NULL;
}

/* --- several checkpoints ---------------------------------------------------------------------- */

ek_status ek_checkpoint_set_best(const ek_io *io, const char *out_dir, int64_t step)
{
    ek_path target, link;
    struct stat s;

    EK_TRY(ek_path_set(&target, "checkpoint/" EK_STEP_FORMAT, (long long)step));
    EK_TRY(ek_path_set(&link, "%s/" EK_BEST_NAME, out_dir));
    EK_REQUIRE(lstat(link.s, &s) != 0 || ek_checkpoint_is_best_link(link.s), EK_EINVAL,
               "%s is not a link to a checkpoint of this run, and is not replaced: move it away",
               link.s);
    return ek_link_replace(io, target.s, link.s);
}

/* Whether it is a link to a folder elsewhere, which no run creates. */
static int is_link(const char *path)
{
    struct stat s;

    return lstat(path, &s) == 0 && S_ISLNK(s.st_mode);
}

ek_status ek_checkpoint_prune(const ek_io *io, const char *out_dir, int64_t keep)
{
    ek_step_entry *steps = NULL;
    int64_t n = 0, complete = 0, step;
    ek_path folder, p, link;
    ek_step_entry best;
    ek_status st;
    int has_best;

    EK_REQUIRE(keep >= 1, EK_EINVAL, "at least 1 checkpoint must be kept, not %" PRId64, keep);
    EK_TRY(ek_path_set(&folder, "%s/checkpoint", out_dir));
    EK_TRY(ek_path_set(&link, "%s/" EK_BEST_NAME, out_dir));
    has_best = ek_checkpoint_read_best(link.s, &best);
    EK_TRY_OUT(ek_checkpoint_steps(folder.s, &steps, &n));
    for (int64_t i = 0; i < n; i++) {
        EK_TRY_OUT(ek_path_set(&p, "%s/%s", folder.s, steps[i].name));
        if (complete < keep) {
            complete += ek_checkpoint_check_folder(p.s, EK_CHECK_SIZES, &step) >= 0;
            continue;
        }
        if ((has_best && strcmp(best.name, steps[i].name) == 0) || is_link(p.s))
            continue;
        EK_TRY_OUT(delete_checkpoint(io, p.s));
    }
out:
    free(steps);
    return st;
}
