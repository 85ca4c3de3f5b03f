/* Finding what a model's name stands for. */
#include "model/source.h"

#include "model/hf_config.h"
#include "model/hf_io.h"
#include "store/checkpoint.h"

#include <stdio.h>
#include <string.h>

/* Sets *out to folder/name if there is such a file, else to "". */
static ek_status look_for(const char *folder, const char *name, ek_path *out)
{
    EK_TRY(ek_path_set(out, "%s/%s", folder, name));
    if (ek_file_kind_of(out->s) != EK_FILE_REGULAR)
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

ek_status ek_model_load_path(ek_model *m, const char *path)
{
    ek_boxes *files = NULL;
    ek_status status;

    EK_TRY(ek_boxes_open(path, &files));
    status = ek_model_load(m, files, EK_PART_MASTER);
    ek_boxes_close(&files);
    return status;
}
