/* evenkeel: finds the subcommand and hands over. */
#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
} command;

static const command commands[] = {
    {"train", cli_train, "train a model on text or token files"},
    {"eval", cli_eval, "loss and perplexity of a model on text or token files"},
    {"export", cli_export, "write a checkpoint as a Hugging Face folder"},
    {"info", cli_info, "build, CPU, kernels"},
};

static void usage(FILE *f)
{
    fprintf(f,
            "evenkeel %s - Mixture-of-Experts training and inference\n\n"
            "usage: evenkeel COMMAND [options]\n\n",
            EK_VERSION);
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        fprintf(f, "  %-10s %s\n", commands[i].name, commands[i].summary);
    fprintf(f, "\n`evenkeel COMMAND --help` lists a command's options.\n");
}

int main(int argc, char **argv)
{
    /* Idle OpenMP threads sleep instead of spinning: cores are shared. */
    setenv("OMP_WAIT_POLICY", "passive", 0);
    if (argc < 2) {
        usage(stderr);
        return CLI_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "help") == 0) {
        usage(stdout);
        return CLI_DONE;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("evenkeel %s\n", EK_VERSION);
        return CLI_DONE;
    }
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    fprintf(stderr, "evenkeel: there is no command %s\n", argv[1]);
    usage(stderr);
    return CLI_USAGE;
}
