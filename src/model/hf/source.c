/* Resolving a model's name. */
#include "model/hf/source.h"

#include "model/hf/config.h"
#include "model/hf/io.h"
#include "store/checkpoint.h"

#include <stdio.h>
#include <string.h>

/* Sets *out to folder/name if such an entry exists, else to "". Entries that are not files count:
 * their reader reports them, where "none" would mean random weights or another tokenizer. */
static ek_status look_for(const char *folder, const char *name, ek_path *out)
{
    EK_TRY(ek_path_set(out, "%s/%s", folder, name));
    if (!ek_file_exists(out->s))
        out->s[0] = '\0';
    return EK_OK;
}

static ek_status open_folder(const char *name, ek_model_source *out)
{
    ek_path config;

    EK_TRY(ek_path_set(&out->folder, "%s", name));
    EK_TRY(look_for(name, "config.json", &config));
    if (config.s[0] == '\0') {
        ek_checkpoint_found found;
        ek_status st = ek_checkpoint_latest(name, EK_CHECK_SIZES, &found);

        EK_REQUIRE(st != EK_ENOENT, EK_ENOENT,
                   "%s has neither a config.json nor a complete checkpoint", name);
        EK_TRY(st);
        EK_TRY(ek_path_set(&out->folder, "%s", found.path.s));
        EK_TRY(ek_path_set(&config, "%s/config.json", found.path.s));
    }
    EK_TRY(ek_hf_config_read(config.s, &out->spec));
    EK_TRY(look_for(out->folder.s, "model.safetensors", &out->weights));
    if (out->weights.s[0] == '\0')
        EK_TRY(look_for(out->folder.s, "model.safetensors.index.json", &out->weights));
    return look_for(out->folder.s, "tokenizer.json", &out->tokenizer);
}

ek_status ek_model_source_open(const char *name, ek_model_source *out)
{
    ek_file_kind kind = ek_file_kind_of(name);

    memset(out, 0, sizeof(*out));
    if (kind == EK_FILE_FOLDER)
        return open_folder(name, out);
    if (kind == EK_FILE_REGULAR)
        return ek_hf_config_read(name, &out->spec);
    EK_REQUIRE(ek_model_preset(name, &out->spec) == EK_OK, EK_ENOENT,
               "no model %s: it is neither a file, nor a folder, nor a preset (tiny, small, base)",
               name);
    snprintf(out->preset, sizeof(out->preset), "%s", name);
    return EK_OK;
}

/* Tokenizer files that are not read; each can be converted to tokenizer.json. */
static ek_status refuse_other_tokenizer(const char *folder)
{
    static const char *const others[] = {"tokenizer.model", "spiece.model", "tekken.json",
                                         "vocab.json", "vocab.txt"};
    ek_path path;

    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        EK_TRY(look_for(folder, others[i], &path));
        EK_REQUIRE(
            path.s[0] == '\0', EK_ENOENT,
            "%s has a tokenizer in %s, which is not read, and no tokenizer.json: convert it "
            "with transformers, AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER), "
            "or give --tokenizer (bytes, or a tokenizer.json)",
            folder, others[i]);
    }
    return EK_OK;
}

ek_status ek_model_source_tokenizer(const ek_model_source *s, const char *named, const char **out)
{
    ek_file_kind kind = ek_file_kind_of(s->tokenizer.s);

    *out = named;
    if (named != NULL)
        return EK_OK;
    *out = "bytes";
    if (s->preset[0] != '\0')
        return EK_OK;
    EK_REQUIRE(s->folder.s[0] != '\0', EK_ENOENT,
               "a config.json names no tokenizer: give --tokenizer (bytes, or a tokenizer.json)");
    if (s->tokenizer.s[0] == '\0') {
        EK_TRY(refuse_other_tokenizer(s->folder.s));
        return EK_FAIL(EK_ENOENT,
                       "%s has no tokenizer.json: give --tokenizer (bytes, or a tokenizer.json)",
                       s->folder.s);
    }
    EK_REQUIRE(kind != EK_FILE_NONE, EK_ENOENT,
               "%s is a link to a file that is not there: restore the file, or give --tokenizer",
               s->tokenizer.s);
    EK_REQUIRE(kind == EK_FILE_REGULAR, EK_EFORMAT,
               "%s is not a regular file: put the model's tokenizer there, or give --tokenizer",
               s->tokenizer.s);
    *out = s->tokenizer.s;
    return EK_OK;
}

static int has_ending(const char *name, const char *ending)
{
    size_t n = strlen(name), e = strlen(ending);

    return n >= e && strcmp(name + n - e, ending) == 0;
}

/* pytorch_model.bin, a shard without its index, consolidated.00.pth, ... */
static int looks_like_weights(const char *name)
{
    static const char *const begins[] = {"model", "pytorch_model", "consolidated"};
    static const char *const ends[] = {".safetensors", ".bin", ".pth", ".pt", ".gguf", ".msgpack"};
    int begin = 0, end = 0;

    for (size_t i = 0; i < sizeof(begins) / sizeof(begins[0]); i++)
        begin |= strncmp(name, begins[i], strlen(begins[i])) == 0;
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
        end |= has_ending(name, ends[i]);
    return (begin && end) || has_ending(name, ".gguf");
}

ek_status ek_model_source_no_weights(const ek_model_source *s)
{
    ek_names names = {0};
    ek_status st;

    if (s->folder.s[0] == '\0')
        return EK_OK;
    EK_TRY_OUT(ek_folder_entries(s->folder.s, &names));
    for (int64_t i = 0; i < names.n; i++)
        EK_REQUIRE_OUT(!looks_like_weights(names.names[i]), EK_EUNSUPPORTED,
                       "%s has weights in %s, which is not read, and neither model.safetensors nor "
                       "model.safetensors.index.json: convert them, or give --init, or the "
                       "config.json alone to begin with random weights",
                       s->folder.s, names.names[i]);
out:
    ek_names_free(&names);
    return st;
}

ek_status ek_model_load_path(ek_model *m, const char *path, const ek_load_options *how)
{
    ek_slice_set *files = NULL;
    ek_status status;

    EK_TRY(ek_slice_set_open(path, &files));
    status = ek_model_load(m, files, EK_ARRAYS_MASTER, how);
    ek_slice_set_close(&files);
    return status;
}
