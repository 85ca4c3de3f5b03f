/* The options of eval and generate that open a model. */
#include "cli/model_options.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

static const ek_option model_options[] = {
    {"model", EK_OPTION_TEXT, .unit = "DIR", .required = 1, .field = EK_FIELD_TEXT,
     .offset = offsetof(cli_model_settings, model),
     .help = "Hugging Face folder, checkpoint, or folder of a run"},
    {"tokenizer", EK_OPTION_TEXT, .shown = "the model's", .unit = "FILE", .field = EK_FIELD_TEXT,
     .offset = offsetof(cli_model_settings, lm.tokenizer),
     .help = "\"bytes\", or a Hugging Face tokenizer.json (BPE)"},
    {"dtype", EK_OPTION_CHOICE, .shown = "bf16 with AVX2 or more, else fp32",
     .allowed = "bf16|fp32|fp64", .field = EK_FIELD_TEXT,
     .offset = offsetof(cli_model_settings, lm.dtype), .help = "type of matrix products"},
    {"device", EK_OPTION_CHOICE, .fallback = "cpu", .allowed = "cpu|cuda", .field = EK_FIELD_TEXT,
     .offset = offsetof(cli_model_settings, lm.device), .help = "compute device"},
    {"threads", EK_OPTION_INT, .shown = "all cores", .unit = "threads", .allowed = "[1,1024]",
     .field = EK_FIELD_INT, .offset = offsetof(cli_model_settings, lm.threads),
     .help = "compute threads"},
    {"expert-store", EK_OPTION_CHOICE, .fallback = "auto", .allowed = "auto|memory|cache|ring|mmap",
     .field = EK_FIELD_TEXT, .offset = offsetof(cli_model_settings, lm.expert_store),
     .help =
         "where experts' weights are: memory: all in memory; cache: in the model's files, and "
         "some of them in memory, read when needed; ring: in the files, read layer by layer in a "
         "circle, for long prompts; mmap: in mapped files, of which the kernel keeps what it "
         "wants, "
         "for comparisons; auto: memory if the model fits, else cache"},
    {"expert-slots", EK_OPTION_INT, .shown = "what --memory-limit leaves", .unit = "experts",
     .allowed = "[1,)", .field = EK_FIELD_INT64,
     .offset = offsetof(cli_model_settings, lm.expert_slots),
     .help = "experts of all layers that a cache has in memory at a time"},
    {"ring", EK_OPTION_INT, .shown = "what --memory-limit leaves", .unit = "layers",
     .allowed = "[2,)", .field = EK_FIELD_INT64, .offset = offsetof(cli_model_settings, lm.ring),
     .help =
         "layers of a ring: one computes, one is read, the experts of the others stay in memory "
         "(with an --expert-eviction none stay)"},
    {"expert-eviction", EK_OPTION_CHOICE, .fallback = "auto", .allowed = "auto|lru|lfu",
     .field = EK_FIELD_TEXT, .offset = offsetof(cli_model_settings, lm.expert_eviction),
     .help = "expert that gives way to another: lru: used longest ago; lfu: used least often; "
             "auto: whichever would have had more hits lately"},
    {"memory-limit", EK_OPTION_SIZE, .fallback = "auto", .unit = "SIZE|auto",
     .field = EK_FIELD_SIZE, .offset = offsetof(cli_model_settings, lm.memory_limit),
     .help = "most memory of the process, page cache of the model's files included: 8G, 512M, "
             "1.5GiB; auto: what its cgroups allow, else what is free. A model that needs more is "
             "not read"},
};

static_assert(sizeof(model_options) / sizeof(model_options[0]) == CLI_MODEL_OPTIONS,
              "rows of model_options");

size_t cli_model_options(const ek_option *own, size_t n, ek_option *rows)
{
    rows[0] = model_options[0];
    memcpy(rows + 1, own, n * sizeof(*own));
    memcpy(rows + 1 + n, model_options + 1, sizeof(model_options) - sizeof(model_options[0]));
    return n + CLI_MODEL_OPTIONS;
}
