/* evenkeel export: a checkpoint (or any model folder) as a fresh Hugging Face folder. */
#include "cli/loaded.h"
#include "model/hf_config.h"
#include "model/hf_io.h"

#include <stdlib.h>
#include <string.h>

static const ek_option options[] = {
    {"from", EK_OPTION_TEXT, NULL, NULL, "CHECKPOINT", NULL, 1,
     "a checkpoint, a run's folder, or a Hugging Face folder"},
    {"to", EK_OPTION_TEXT, NULL, NULL, "DIR", NULL, 1, "the folder to make"},
    {"dtype", EK_OPTION_CHOICE, NULL, "the config's torch_dtype", NULL, "bf16|fp32", 0,
     "element type of the tensors written"},
};

static const ek_option_table table = {"export", "Write a model as a Hugging Face folder.",
                                      options,  sizeof(options) / sizeof(options[0]),
                                      NULL,     0};

/* Writes the three files into a temporary folder, which then takes the name. */
static ek_status write_folder(cli_loaded *l, ek_dtype dtype, const char *folder)
{
    ek_path path;
    char *config = NULL;
    ek_status st;

    EK_TRY(ek_folder_make(NULL, folder));
    EK_TRY(ek_path_set(&path, "%s/config.json", folder));
    EK_TRY(ek_hf_config_text(&l->model->spec, &config));
    st = ek_file_write(NULL, path.s, config, strlen(config));
    free(config);
    EK_TRY(st);
    EK_TRY(ek_path_set(&path, "%s/model.safetensors", folder));
    EK_TRY(ek_model_save(l->model, EK_PART_MASTER, dtype, NULL, path.s, EK_WRITE_DIRECT, NULL));
    if (l->tokenizer == NULL)
        return EK_OK;
    EK_TRY(ek_path_set(&path, "%s/tokenizer.json", folder));
    return ek_tokenizer_save(l->tokenizer, path.s);
}

static ek_status run(const ek_options *o)
{
    const char *to = ek_options_text(o, "to"), *dtype = ek_options_text(o, "dtype");
    int bf16;
    ek_path temporary = {""};
    cli_loaded l;
    ek_status st = EK_OK;

    memset(&l, 0, sizeof(l));
    EK_REQUIRE_OUT(ek_file_kind_of(to) == EK_FILE_NONE, EK_EINVAL,
                   "%s exists already; name a folder that does not", to);
    /* fp64 masters hold any stored type exactly */
    EK_TRY_OUT(cli_load(ek_options_text(o, "from"), NULL, EK_MODE_FP64, 1, &l));
    bf16 = dtype != NULL ? strcmp(dtype, "bf16") == 0
                         : strcmp(l.model->spec.torch_dtype, "bfloat16") == 0;
    memcpy(l.model->spec.torch_dtype, bf16 ? "bfloat16" : "float32", bf16 ? 9 : 8);
    EK_TRY_OUT(ek_path_set(&temporary, "%s.tmp", to));
    EK_TRY_OUT(ek_folder_remove(NULL, temporary.s));
    EK_TRY_OUT(write_folder(&l, bf16 ? EK_BF16 : EK_F32, temporary.s));
    EK_TRY_OUT(ek_file_rename(NULL, temporary.s, to));
    temporary.s[0] = '\0';
out:
    if (temporary.s[0] != '\0')
        ek_folder_discard(NULL, temporary.s);
    cli_unload(&l);
    return st;
}

int cli_export(int argc, char **argv)
{
    ek_options *o = NULL;
    int status = cli_parse(&table, argc, argv, &o);
    ek_status st;

    if (status >= 0)
        return status;
    st = run(o);
    ek_options_destroy(o);
    return st < 0 ? cli_fail("export", st) : CLI_DONE;
}
