/* Builds the index of a sharded set from the headers of its files. */
#include "store/safetensors.h"

#include <jansson.h>
#include <stdlib.h>

/* Adds the tensors of one file, and their bytes. */
static ek_status add_file(const char *folder, const char *name, json_t *map, json_int_t *bytes)
{
    ek_safetensors *s = NULL;
    ek_path path;
    ek_status st;

    EK_TRY_OUT(ek_path_set(&path, "%s/%s", folder, name));
    EK_TRY_OUT(ek_safetensors_open(path.s, &s));
    for (int64_t i = 0; i < ek_safetensors_count(s); i++) {
        const ek_safetensor *t = ek_safetensors_get(s, i);
        const char *other = json_string_value(json_object_get(map, t->name));

        EK_REQUIRE_OUT(other == NULL, EK_EFORMAT, "tensor '%.200s' is both in %s and in %s",
                       t->name, name, other);
        EK_REQUIRE_OUT(json_object_set_new(map, t->name, json_string(name)) == 0, EK_ENOMEM,
                       "no memory for the index of %s", folder);
        *bytes += (json_int_t)t->bytes;
    }
out:
    ek_safetensors_close(&s);
    return st;
}

ek_status ek_safetensors_index_text(const char *folder, const char *const *names, int64_t n,
                                    char **text)
{
    json_t *map = json_object(), *root = NULL;
    json_int_t bytes = 0;
    ek_status st = EK_OK;

    EK_REQUIRE_OUT(map != NULL, EK_ENOMEM, "no memory for the index of %s", folder);
    for (int64_t i = 0; i < n; i++)
        EK_TRY_OUT(add_file(folder, names[i], map, &bytes));
    root = json_pack("{s:{s:I}, s:O}", "metadata", "total_size", bytes, "weight_map", map);
    *text = root != NULL ? json_dumps(root, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
    EK_REQUIRE_OUT(*text != NULL, EK_ENOMEM, "no memory for the index of %s", folder);
out:
    json_decref(map);
    json_decref(root);
    return st;
}
