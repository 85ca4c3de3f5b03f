/* cli/train_display.h - what `evenkeel train` prints: progress, and the summary at the end. */
#ifndef CLI_TRAIN_DISPLAY_H
#define CLI_TRAIN_DISPLAY_H

#include "evenkeel/train.h"

#include "base/options.h"
#include "supervisor/command_job.h"

#include <jansson.h>

/* Progress output: one live line on a terminal, otherwise a line every few steps; and results that
 * are collected for the summary. */
typedef struct {
    const ek_command_job *job;
    const char *out;
    int quiet, live, json;
    int64_t last_ns, every;
    json_t *layers; /* objects, or lines of text; NULL: none */
    json_t *costs;  /* objects */
} cli_train_display;

/* Also takes the log of the library.  Only rank 0 shows progress; the others print errors. */
cli_train_display cli_train_display_open(const ek_options *o, const ek_command_job *job);
void cli_train_display_close(cli_train_display *d);

/* Hooks of ek_train() that show its progress on `d`; `stop` is left to the caller. */
ek_train_hooks cli_train_display_hooks(cli_train_display *d);

/* Terminates the live line, if one is drawn. */
void cli_train_display_end_line(void);

/* Prints the summary of the run on stdout, or of --dry-run its plan. */
void cli_train_display_summary(const cli_train_display *d, const ek_train_summary *s,
                               const ek_train_config *cfg);

#endif
