/* Opening a model with weights for eval and generate. */
#include "cli/loaded.h"

#include <string.h>

ek_status cli_load(const char *name, const char *tokenizer, ek_mode mode, int threads,
                   cli_loaded *out)
{
    memset(out, 0, sizeof(*out));
    EK_TRY(ek_model_source_open(name, &out->source));
    EK_REQUIRE(out->source.weights.s[0] != '\0', EK_ENOENT,
               "%s has no weights (model.safetensors); give a checkpoint or a Hugging Face folder",
               name);
    if (tokenizer == NULL && out->source.tokenizer.s[0] != '\0')
        tokenizer = out->source.tokenizer.s;
    if (tokenizer != NULL)
        EK_TRY(ek_tokenizer_open(tokenizer, &out->tokenizer));
    EK_TRY(ek_kernels_create(mode, ek_cpu_isa(), threads, &out->kernels));
    EK_TRY(ek_model_create(&out->source.spec, out->kernels, 0, &out->model));
    EK_TRY(ek_model_load_path(out->model, out->source.weights.s));
    return ek_model_pack(out->model);
}

void cli_unload(cli_loaded *l)
{
    ek_model_destroy(&l->model);
    ek_kernels_destroy(&l->kernels);
    ek_tokenizer_destroy(&l->tokenizer);
}
