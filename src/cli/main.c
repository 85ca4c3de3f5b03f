/* evenkeel: selects and runs the subcommand. */
#include "base/command_list.h"
#include "base/command_startup.h"
#include "cli/cli.h"
#include "supervisor/internal_command.h"
#include "supervisor/worker.h"

#include <signal.h>

static const ek_command_row commands[] = {
    {"train", cli_train, "train a model on text or token files"},
    {"eval", cli_eval, "compute loss and perplexity of a model"},
    {"generate", cli_generate, "generate text from a prompt"},
    {"export", cli_export, "export a checkpoint as a Hugging Face folder"},
    {"check", cli_check, "verify a checkpoint and describe it"},
    {"clean", cli_clean, "list or remove shared memory left by train --elastic"},
    {"plan", cli_plan, "replay a routing trace through a planner"},
    {"simulate", cli_simulate, "predict the step time of a layout on a cluster"},
    {"search", cli_search, "find the layout with the shortest step on a cluster"},
    {"workload", cli_workload, "generate a synthetic routing trace"},
    {"fit", cli_fit, "show which memory a model needs, and what fits"},
    {"bench", cli_bench, "measure evenkeel and the limits of this machine"},
    {"info", cli_info, "show build, CPU features and kernels"},
};

int main(int argc, char **argv)
{
    int status;

    if (!ek_command_ensure_stack(argv))
        return EK_EXIT_FAILED;
    ek_command_set_openmp(argv, ek_worker_has_peers());
    signal(SIGPIPE, SIG_IGN); /* a closed pipe is a failed write, not a fatal signal */
    signal(SIGXFSZ, SIG_IGN); /* so is exceeding the file size limit */
    if (ek_internal_command(argc, argv, &status))
        return ek_command_flush(status);
    return ek_command_list_run(commands, sizeof(commands) / sizeof(commands[0]), argc, argv);
}
