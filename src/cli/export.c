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

int cli_export(int argc, char **argv)
{
    ek_options *o = NULL;
    cli_text folder;
    int status = ek_command_parse(&table, argc, argv, &o);
    ek_status st;

    if (status >= 0)
        return status;
    ek_command_stop_writing();
    st = ek_lm_export(ek_options_text(o, "from"), ek_options_text(o, "to"),
                      ek_options_text(o, "dtype"));
    if (st == EK_OK)
        printf("model: %s\n", cli_shown(&folder, ek_options_text(o, "to")));
    ek_options_destroy(o);
    return st < 0 ? ek_command_fail("export", st) : EK_EXIT_DONE;
}
