/* Maps of files, and values from them. */
#include "model/hf/file_maps.h"

#include "store/convert.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

typedef struct {
    int fd;
    unsigned char *data;
    size_t bytes;
} file_map;

struct ek_file_maps {
    ek_hf_values *values;
    ek_value_source files; /* for tensors in pieces */
    file_map *maps;
    int64_t n;
};

static const file_map *find_map(const ek_file_maps *m, int fd)
{
    for (int64_t i = 0; i < m->n; i++)
        if (m->maps[i].fd == fd)
            return &m->maps[i];
    return NULL;
}

static ek_status map_file(ek_file_maps *m, const ek_safetensor *t)
{
    struct stat s;
    void *data;

    if (t->fd < 0 || find_map(m, t->fd) != NULL)
        return EK_OK;
    if (fstat(t->fd, &s) != 0)
        return ek_fail_errno(errno, "look at", t->file);
    data = mmap(NULL, (size_t)s.st_size, PROT_READ, MAP_SHARED, t->fd, 0);
    if (data == MAP_FAILED)
        return ek_fail_errno(errno, "map", t->file);
    m->maps[m->n++] = (file_map){t->fd, data, (size_t)s.st_size};
    return EK_OK;
}

ek_status ek_file_maps_create(ek_hf_values *values, ek_file_maps **out)
{
    int64_t count = ek_slice_set_count(values->files);
    ek_file_maps *m = calloc(1, sizeof(*m));
    ek_status st = EK_OK;

    EK_REQUIRE(m != NULL, EK_ENOMEM, "no memory for maps of files");
    m->values = values;
    m->files = ek_hf_value_source(values);
    m->maps = calloc((size_t)count + 1, sizeof(*m->maps));
    EK_REQUIRE_OUT(m->maps != NULL, EK_ENOMEM, "no memory for maps of files");
    for (int64_t i = 0; i < count; i++) {
        const ek_sliced_tensor *t = ek_slice_set_get(values->files, i);

        if (t->n == 1)
            EK_TRY_OUT(map_file(m, t->slices[0].t));
    }
    *out = m;
    m = NULL;
out:
    ek_file_maps_destroy(&m);
    return st;
}

void ek_file_maps_destroy(ek_file_maps **pm)
{
    ek_file_maps *m = *pm;

    if (m == NULL)
        return;
    for (int64_t i = 0; i < m->n; i++)
        munmap(m->maps[i].data, m->maps[i].bytes);
    free(m->maps);
    free(m);
    *pm = NULL;
}

/* Whether the file is still as long as its map. */
static ek_status check_length(const file_map *map, const ek_safetensor *t)
{
    struct stat s;

    if (fstat(map->fd, &s) != 0)
        return ek_fail_errno(errno, "look at", t->file);
    EK_REQUIRE((size_t)s.st_size >= map->bytes, EK_EFORMAT,
               "%s ends at byte %lld of %zu: the file was cut short; copy or make it again",
               t->file, (long long)s.st_size, map->bytes);
    return EK_OK;
}

static ek_status read_mapped(void *context, const ek_hf_tensor *t, const ek_weight_array *a,
                             const ek_tensor_slice *slice, const ek_file_batch *in, ek_dtype type,
                             void *dst, int64_t ld)
{
    const ek_file_maps *m = context;
    const file_map *map;
    ek_tensor_range at;

    if (ld != slice->cols || !ek_hf_range(m->values, t, slice, &at) ||
        (map = find_map(m, at.t->fd)) == NULL)
        return m->files.read(m->files.context, t, a, slice, in, type, dst, ld);
    EK_TRY(check_length(map, at.t));
    ek_convert(slice->rows * slice->cols, map->data + at.at, at.t->dtype, dst, type);
    return EK_OK;
}

ek_value_source ek_file_maps_source(ek_file_maps *m)
{
    return (ek_value_source){.read = read_mapped, .context = m};
}
