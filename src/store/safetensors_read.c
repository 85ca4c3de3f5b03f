/* Opening a file, a folder, or a sharded set with its index; lookup and reads. */
#include "base/json.h"
#include "store/convert.h"
#include "store/safetensors_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define INDEX_NAME "model.safetensors.index.json"
#define MODEL_NAME "model.safetensors"

enum { BLOCK_BYTES = 32768 };

static int by_name(const void *a, const void *b)
{
    return strcmp(((const ek_safetensor *)a)->name, ((const ek_safetensor *)b)->name);
}

static ek_status create_set(int64_t files, ek_safetensors **out)
{
    ek_safetensors *st = calloc(1, sizeof(*st));

    if (st != NULL)
        st->files = calloc((size_t)files + 1, sizeof(*st->files));
    if (st == NULL || st->files == NULL) {
        free(st);
        return EK_FAIL(EK_ENOMEM, "no memory for a set of %" PRId64 " safetensors files", files);
    }
    *out = st;
    return EK_OK;
}

void ek_safetensors_close(ek_safetensors **st)
{
    ek_safetensors *s = *st;

    if (s == NULL)
        return;
    for (int64_t i = 0; i < s->n; i++)
        free((void *)(uintptr_t)s->tensors[i].name);
    for (int64_t i = 0; i < s->n_files; i++) {
        if (s->files[i].fd >= 0)
            close(s->files[i].fd);
        free(s->files[i].path);
    }
    free(s->tensors);
    free(s->files);
    free(s);
    *st = NULL;
}

/* Opens a file as the next entry of s->files. memory: its bytes; NULL: those of the file `path`. */
static ek_status add_file(ek_safetensors *s, const char *path, const void *memory, int64_t bytes)
{
    ek_tensor_file *file = &s->files[s->n_files];

    file->path = strdup(path);
    EK_REQUIRE(file->path != NULL, EK_ENOMEM, "no memory for the name %s", path);
    s->n_files++;
    file->memory = memory;
    file->bytes = bytes;
    file->fd = -1;
    if (memory == NULL)
        EK_TRY(ek_file_open(path, &file->fd, &file->bytes));
    return ek_safetensors_header(file, &s->tensors, &s->n);
}

/* Sorts by name; EK_EFORMAT if two files have a tensor of the same name. */
static ek_status sort_tensors(ek_safetensors *s)
{
    if (s->n > 1)
        qsort(s->tensors, (size_t)s->n, sizeof(*s->tensors), by_name);
    for (int64_t i = 1; i < s->n; i++)
        EK_REQUIRE(strcmp(s->tensors[i - 1].name, s->tensors[i].name) != 0, EK_EFORMAT,
                   "tensor '%.200s' is both in %s and in %s", s->tensors[i].name,
                   s->tensors[i - 1].file, s->tensors[i].file);
    return EK_OK;
}

static ek_status open_one(const char *path, const void *memory, size_t bytes, ek_safetensors **out)
{
    ek_safetensors *s = NULL;
    ek_status st;

    EK_TRY_OUT(create_set(1, &s));
    EK_TRY_OUT(add_file(s, path, memory, (int64_t)bytes));
    EK_TRY_OUT(sort_tensors(s));
    *out = s;
    s = NULL;
out:
    ek_safetensors_close(&s);
    return st;
}

ek_status ek_safetensors_parse(const void *data, size_t bytes, const char *name,
                               ek_safetensors **out)
{
    return open_one(name, data, bytes, out);
}

/* --- sharded sets ----------------------------------------------------------------------------- */

static ek_status load_index(const char *path, json_t **root, json_t **map)
{
    EK_TRY(ek_json_read_as(EK_JSON_TENSORS, path, root));
    *map = json_object_get(*root, "weight_map");
    EK_REQUIRE(json_is_object(*map), EK_EFORMAT, "%s: weight_map is missing or not an object",
               path);
    EK_REQUIRE(json_object_size(*map) > 0, EK_EFORMAT, "%s: weight_map is empty", path);
    return EK_OK;
}

/* The path of the shard that weight_map gives for a tensor: a file name in the index's folder. */
static ek_status shard_path(const char *index, const char *folder, const char *tensor,
                            json_t *value, ek_path *out)
{
    const char *file = json_string_value(value);

    EK_REQUIRE(file != NULL, EK_EFORMAT, "%s: weight_map of '%.200s' is not a file name", index,
               tensor);
    EK_REQUIRE(file[0] != '\0' && file[0] != '.' && strchr(file, '/') == NULL, EK_EFORMAT,
               "%s: weight_map of '%.200s' leaves the folder: '%.200s'", index, tensor, file);
    return ek_path_set(out, "%s/%s", folder, file);
}

static int is_open(const ek_safetensors *s, const char *path)
{
    for (int64_t i = 0; i < s->n_files; i++)
        if (strcmp(s->files[i].path, path) == 0)
            return 1;
    return 0;
}

/* weight_map and the shards must agree. */
static ek_status check_index(const ek_safetensors *s, const char *index, const char *folder,
                             json_t *map)
{
    const char *tensor;
    json_t *value;
    ek_path path;

    json_object_foreach(map, tensor, value)
    {
        const ek_safetensor *t = ek_safetensors_find(s, tensor);

        EK_TRY(shard_path(index, folder, tensor, value, &path));
        EK_REQUIRE(t != NULL, EK_EFORMAT, "%s: tensor '%.200s' is not in its file %s", index,
                   tensor, path.s);
        EK_REQUIRE(strcmp(t->file, path.s) == 0, EK_EFORMAT,
                   "%s: tensor '%.200s' is in %s, not in %s", index, tensor, t->file, path.s);
    }
    for (int64_t i = 0; i < s->n; i++)
        EK_REQUIRE(json_object_get(map, s->tensors[i].name) != NULL, EK_EFORMAT,
                   "%s: weight_map lacks tensor '%.200s' of %s", index, s->tensors[i].name,
                   s->tensors[i].file);
    return EK_OK;
}

static ek_status open_index(const char *index, ek_safetensors **out)
{
    ek_safetensors *s = NULL;
    json_t *root = NULL, *map = NULL, *value;
    ek_path folder, path;
    const char *tensor;
    ek_status st;

    EK_TRY_OUT(ek_path_parent(index, &folder));
    EK_TRY_OUT(load_index(index, &root, &map));
    EK_TRY_OUT(create_set((int64_t)json_object_size(map), &s));
    json_object_foreach(map, tensor, value)
    {
        EK_TRY_OUT(shard_path(index, folder.s, tensor, value, &path));
        if (is_open(s, path.s))
            continue;
        EK_REQUIRE_OUT(ek_file_kind_of(path.s) != EK_FILE_NONE, EK_ENOENT,
                       "%s: the file %s of tensor '%.200s' is missing", index, path.s, tensor);
        EK_TRY_OUT(add_file(s, path.s, NULL, 0));
    }
    EK_TRY_OUT(sort_tensors(s));
    EK_TRY_OUT(check_index(s, index, folder.s, map));
    *out = s;
    s = NULL;
out:
    ek_safetensors_close(&s);
    json_decref(root);
    return st;
}

ek_status ek_safetensors_open(const char *path, ek_safetensors **out)
{
    static const char suffix[] = ".index.json";
    size_t n = strlen(path), m = sizeof(suffix) - 1;
    ek_path p;

    if (ek_file_kind_of(path) != EK_FILE_FOLDER) {
        if (n >= m && strcmp(path + n - m, suffix) == 0)
            return open_index(path, out);
        return open_one(path, NULL, 0, out);
    }
    EK_TRY(ek_path_set(&p, "%s/%s", path, MODEL_NAME));
    if (ek_file_kind_of(p.s) != EK_FILE_NONE)
        return open_one(p.s, NULL, 0, out);
    EK_TRY(ek_path_set(&p, "%s/%s", path, INDEX_NAME));
    if (ek_file_kind_of(p.s) != EK_FILE_NONE)
        return open_index(p.s, out);
    return EK_FAIL(EK_ENOENT, "folder %s holds neither %s nor %s", path, MODEL_NAME, INDEX_NAME);
}

/* --- lookup and reads ------------------------------------------------------------------------- */

int64_t ek_safetensors_count(const ek_safetensors *st)
{
    return st->n;
}

const ek_safetensor *ek_safetensors_get(const ek_safetensors *st, int64_t i)
{
    return i >= 0 && i < st->n ? &st->tensors[i] : NULL;
}

const ek_safetensor *ek_safetensors_find(const ek_safetensors *st, const char *name)
{
    ek_safetensor key = {.name = name};

    if (st->n == 0)
        return NULL;
    return bsearch(&key, st->tensors, (size_t)st->n, sizeof(key), by_name);
}

ek_status ek_tensor_file_read(const char *path, const void *memory, int fd, int64_t at, size_t n,
                              void *dst)
{
    char *to = dst;

    if (memory != NULL) {
        memcpy(dst, (const char *)memory + at, n);
        return EK_OK;
    }
    while (n > 0) {
        ssize_t got = pread(fd, to, n, at);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return ek_fail_errno(errno, "read", path);
        EK_REQUIRE(got > 0, EK_EFORMAT, "%s ends at byte %" PRId64 ": it was cut short", path, at);
        to += got;
        at += got;
        n -= (size_t)got;
    }
    return EK_OK;
}

/* Through a buffer on the stack. */
static ek_status read_blocks(const ek_safetensor *t, int64_t first, int64_t n, char *dst,
                             ek_dtype to)
{
    _Alignas(8) char block[BLOCK_BYTES];
    int64_t size = (int64_t)ek_dtype_size(t->dtype), most = BLOCK_BYTES / size;

    for (int64_t done = 0, some; done < n; done += some) {
        some = n - done < most ? n - done : most;
        EK_TRY(ek_tensor_file_read(t->file, t->memory, t->fd, t->at + (first + done) * size,
                                   (size_t)(some * size), block));
        ek_convert(some, block, t->dtype, dst + done * (int64_t)ek_dtype_size(to), to);
    }
    return EK_OK;
}

/* Elements that are not larger in the file: at the end of dst, and widened from there. */
static ek_status read_in_place(const ek_safetensor *t, int64_t first, int64_t n, char *dst,
                               ek_dtype to)
{
    int64_t size = (int64_t)ek_dtype_size(t->dtype);
    char *raw = dst + n * ((int64_t)ek_dtype_size(to) - size);

    EK_TRY(
        ek_tensor_file_read(t->file, NULL, t->fd, t->at + first * size, (size_t)(n * size), raw));
    if (t->dtype != to)
        ek_convert(n, raw, t->dtype, dst, to);
    return EK_OK;
}

ek_status ek_safetensor_read(const ek_safetensor *t, int64_t first, int64_t n, void *dst,
                             ek_dtype to)
{
    EK_REQUIRE(t->readable, EK_EFORMAT,
               "%s: tensor '%.200s' has elements of type %s, which cannot be read as weights "
               "(F64, F32, F16 and BF16 can)",
               t->file, t->name, t->type);
    EK_REQUIRE(first >= 0 && n >= 0 && first <= t->elements && n <= t->elements - first, EK_EINVAL,
               "%s: elements %" PRId64 " and %" PRId64 " more leave tensor '%.200s' of %" PRId64,
               t->file, first, n, t->name, t->elements);
    return t->memory != NULL || ek_dtype_size(t->dtype) > ek_dtype_size(to)
               ? read_blocks(t, first, n, dst, to)
               : read_in_place(t, first, n, dst, to);
}
