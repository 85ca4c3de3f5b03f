/* evenkeel export: writes a checkpoint (or any model folder) as a new Hugging Face folder. */
#include "evenkeel/lm.h"

#include "cli/cli.h"

static const ek_option options[] = {
    {"from", EK_OPTION_TEXT, .unit = "CHECKPOINT", .required = 1,
     .help = "checkpoint, folder of a run, or Hugging Face folder"},
    {"to", EK_OPTION_TEXT, .unit = "DIR", .required = 1, .help = "output folder; must not exist"},
    {"dtype", EK_OPTION_CHOICE, .shown = "the config's torch_dtype", .allowed = "bf16|fp32",
     .help = "type of the tensors written"},
};

static const ek_option_table table = {.command = "export",
                                      .summary = "Export a model as a Hugging Face folder.",
                                      .options = options,
                                      .n_options = sizeof(options) / sizeof(options[0])};

static ek_status run_export(const ek_options *o)
{
    const char *to = ek_options_text(o, "to");
    cli_text folder;

    ek_command_stop_writing();
    EK_TRY(ek_lm_export(ek_options_text(o, "from"), to, ek_options_text(o, "dtype")));
    printf("model: %s\n", cli_shown(&folder, to));
    return EK_OK;
}

int cli_export(int argc, char **argv)
{
    return ek_command_run(&table, argc, argv, run_export);
}
