/* Finding and checking checkpoints. */
#include "base/json.h"
#include "store/checkpoint_priv.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

int ek_checkpoint_name_ok(const char *name)
{
    return name[0] != '\0' && name[0] != '.' && strchr(name, '/') == NULL &&
           strcmp(name, EK_MANIFEST_NAME) != 0;
}

/* --- one checkpoint --------------------------------------------------------------------------- */

static ek_status load_manifest(const char *path, json_t **root, int64_t *step)
{
    const char *format = NULL;
    int64_t version = 0;
    ek_path p;

    EK_TRY(ek_path_set(&p, "%s/%s", path, EK_MANIFEST_NAME));
    EK_TRY(ek_json_read_as(EK_JSON_TENSORS, p.s, root));
    EK_REQUIRE(json_is_object(*root), EK_EFORMAT, "%s: not the manifest of a checkpoint", p.s);
    EK_TRY(ek_json_text(*root, p.s, "format", EK_JSON_REQUIRED, &format));
    EK_REQUIRE(strcmp(format, EK_MANIFEST_FORMAT) == 0, EK_EFORMAT,
               "%s: not the manifest of a checkpoint, but of a '%.80s'", p.s, format);
    EK_TRY(ek_json_int(*root, p.s, "version", EK_JSON_REQUIRED, 0, INT64_MAX, &version));
    EK_REQUIRE(version == EK_MANIFEST_VERSION, EK_EFORMAT,
               "%s: version %" PRId64 " of the format is not the %d known here", p.s, version,
               EK_MANIFEST_VERSION);
    EK_TRY(ek_json_int(*root, p.s, "step", EK_JSON_REQUIRED, 0, INT64_MAX, step));
    EK_REQUIRE(json_is_object(json_object_get(*root, "files")), EK_EFORMAT,
               "%s: files is missing or not an object", p.s);
    return EK_OK;
}

/* Checks one file against its manifest entry. */
static ek_status check_file(const char *path, const char *name, json_t *entry,
                            ek_checkpoint_check check)
{
    json_t *bytes = json_object_get(entry, "bytes");
    const char *sum = json_string_value(json_object_get(entry, "xxh64"));
    char got[20];
    int64_t size = 0;
    ek_file_map map;
    ek_path p;

    EK_REQUIRE(ek_checkpoint_name_ok(name) && json_is_integer(bytes) && sum != NULL, EK_EFORMAT,
               "%s: the manifest's entry of '%.200s' is malformed", path, name);
    EK_TRY(ek_path_set(&p, "%s/%s", path, name));
    EK_REQUIRE(ek_file_kind_of(p.s) == EK_FILE_REGULAR, EK_ECORRUPT,
               "%s is missing, but the manifest lists it", p.s);
    EK_TRY(ek_file_size(p.s, &size));
    EK_REQUIRE(size == json_integer_value(bytes), EK_ECORRUPT,
               "%s has %" PRId64 " bytes, the manifest says %" PRId64, p.s, size,
               (int64_t)json_integer_value(bytes));
    if (check == EK_CHECK_SIZES)
        return EK_OK;
    EK_TRY(ek_file_map_open(p.s, &map));
    snprintf(got, sizeof(got), "%016" PRIx64, (uint64_t)XXH64(map.data, map.bytes, 0));
    ek_file_map_close(&map);
    EK_REQUIRE(strcmp(got, sum) == 0, EK_ECORRUPT, "%s has checksum %s, the manifest says %.40s",
               p.s, got, sum);
    return EK_OK;
}

static int is_step(const char *name, ek_step_entry *e);

/* The manifest in a step folder must be of that step: another one was copied there. */
static ek_status check_step(const char *path, int64_t step)
{
    const char *name = strrchr(path, '/');
    ek_step_entry e;

    name = name != NULL ? name + 1 : path;
    EK_REQUIRE(!is_step(name, &e) || e.step == step, EK_ECORRUPT,
               "%s: the manifest is of step %" PRId64 ", the folder of another", path, step);
    return EK_OK;
}

ek_status ek_checkpoint_check_folder(const char *path, ek_checkpoint_check check, int64_t *step)
{
    json_t *root = NULL, *entry;
    const char *name;
    ek_status st;

    EK_TRY_OUT(load_manifest(path, &root, step));
    EK_TRY_OUT(check_step(path, *step));
    EK_REQUIRE_OUT(json_object_size(json_object_get(root, "files")) > 0, EK_ECORRUPT,
                   "%s: the manifest lists no files", path);
    json_object_foreach(json_object_get(root, "files"), name, entry)
        EK_TRY_OUT(check_file(path, name, entry, check));
out:
    json_decref(root);
    return st;
}

ek_status ek_checkpoint_verify(const char *path)
{
    int64_t step;

    return ek_checkpoint_check_folder(path, EK_CHECK_SUMS, &step);
}

/* --- several checkpoints ---------------------------------------------------------------------- */

static int newest_first(const void *a, const void *b)
{
    const ek_step_entry *x = a, *y = b;

    if (x->step != y->step)
        return x->step > y->step ? -1 : 1;
    return x->aside - y->aside;
}

/* Whether `name` is exactly EK_STEP_FORMAT followed by `ending`; fills *e except aside. */
static int is_step_with(const char *name, const char *ending, ek_step_entry *e)
{
    long long step;

    if (sscanf(name, "step-%18lld", &step) != 1 || step < 0)
        return 0;
    e->step = step;
    snprintf(e->name, sizeof(e->name), EK_STEP_FORMAT "%s", step, ending);
    return strcmp(name, e->name) == 0;
}

/* Whether `name` is a step folder, or one with the suffix .old. */
static int is_step(const char *name, ek_step_entry *e)
{
    e->aside = is_step_with(name, ".old", e);
    return e->aside || is_step_with(name, "", e);
}

int ek_checkpoint_is_temporary(const char *name)
{
    ek_step_entry e;

    return is_step_with(name, ".tmp", &e);
}

int ek_checkpoint_is_step(const char *name)
{
    ek_step_entry e;

    return is_step(name, &e) || ek_checkpoint_is_temporary(name);
}

int ek_checkpoint_read_best(const char *link, ek_step_entry *out)
{
    static const char before[] = "checkpoint/";
    char target[PATH_MAX];
    ssize_t n = readlink(link, target, sizeof(target) - 1);

    if (n < 0)
        return 0;
    target[n] = '\0';
    return strncmp(target, before, strlen(before)) == 0 && is_step(target + strlen(before), out) &&
           !out->aside;
}

int ek_checkpoint_is_best_link(const char *path)
{
    ek_step_entry e;

    return ek_checkpoint_read_best(path, &e);
}

ek_status ek_checkpoint_best(const char *out_dir, int64_t step, ek_path *out)
{
    ek_step_entry e;

    EK_TRY(ek_path_set(out, "%s/" EK_BEST_NAME, out_dir));
    if (!ek_checkpoint_read_best(out->s, &e) || e.step != step ||
        ek_file_kind_of(out->s) != EK_FILE_FOLDER)
        out->s[0] = '\0';
    return EK_OK;
}

ek_status ek_checkpoint_steps(const char *folder, ek_step_entry **list, int64_t *n)
{
    ek_names names = {0};
    ek_step_entry *l = NULL;
    int64_t found = 0;
    ek_status st;

    EK_TRY_OUT(ek_folder_entries(folder, &names));
    l = calloc((size_t)names.n + 1, sizeof(*l));
    EK_REQUIRE_OUT(l != NULL, EK_ENOMEM, "no memory for the list of checkpoints in %s", folder);
    for (int64_t i = 0; i < names.n; i++)
        found += is_step(names.names[i], &l[found]);
    if (found > 1)
        qsort(l, (size_t)found, sizeof(*l), newest_first);
    *list = l;
    *n = found;
out:
    ek_names_free(&names);
    return st;
}

/* The folder that holds the step folders of `dir`; a `dir` with a manifest is itself a
 * checkpoint. */
static ek_status find_folder(const char *dir, ek_path *folder, int *is_checkpoint)
{
    ek_path p;

    EK_REQUIRE(ek_file_kind_of(dir) == EK_FILE_FOLDER, EK_ENOENT,
               "no checkpoint: there is no folder %s", dir);
    EK_TRY(ek_path_set(&p, "%s/%s", dir, EK_MANIFEST_NAME));
    *is_checkpoint = ek_file_kind_of(p.s) != EK_FILE_NONE;
    EK_TRY(ek_path_set(folder, "%s/checkpoint", dir));
    if (*is_checkpoint || ek_file_kind_of(folder->s) != EK_FILE_FOLDER)
        EK_TRY(ek_path_set(folder, "%s", dir));
    return EK_OK;
}

static void warn_skipped(ek_checkpoint_found *f, const char *name)
{
    size_t n = strlen(f->warning);

    snprintf(f->warning + n, sizeof(f->warning) - n, "%sskipped checkpoint %s: %s",
             n > 0 ? "; " : "", name, ek_err_message());
}

ek_status ek_checkpoint_latest(const char *dir, ek_checkpoint_check check, ek_checkpoint_found *out)
{
    ek_checkpoint_found f = {0};
    ek_step_entry *steps = NULL;
    int64_t n = 0, i;
    int itself = 0;
    ek_path folder;
    ek_status st;

    EK_TRY_OUT(find_folder(dir, &folder, &itself));
    if (itself) {
        EK_TRY_OUT(ek_checkpoint_check_folder(dir, check, &f.step));
        f.path = folder;
        *out = f;
        goto out;
    }
    EK_TRY_OUT(ek_checkpoint_steps(folder.s, &steps, &n));
    for (i = 0; i < n; i++) {
        EK_TRY_OUT(ek_path_set(&f.path, "%s/%s", folder.s, steps[i].name));
        if (ek_checkpoint_check_folder(f.path.s, check, &f.step) >= 0)
            break;
        warn_skipped(&f, steps[i].name);
    }
    EK_REQUIRE_OUT(n > 0, EK_ENOENT, "no checkpoint in %s", folder.s);
    EK_REQUIRE_OUT(i < n, EK_ECORRUPT, "no complete checkpoint in %s: %s", folder.s, f.warning);
    *out = f;
out:
    free(steps);
    return st;
}

ek_status ek_checkpoint_newest(const char *dir, ek_path *out)
{
    ek_step_entry *steps = NULL;
    ek_path folder;
    int64_t n = 0;
    int itself;
    ek_status st;

    EK_TRY(find_folder(dir, &folder, &itself));
    if (itself)
        return ek_path_set(out, "%s", folder.s);
    EK_TRY(ek_checkpoint_steps(folder.s, &steps, &n));
    st = n > 0 ? ek_path_set(out, "%s/%s", folder.s, steps[0].name)
               : EK_FAIL(EK_ENOENT, "no checkpoint in %s", folder.s);
    free(steps);
    return st;
}
