/* train/output/run_file.h - run.json, the settings and the command line of a run.
 *
 *   {"format": "evenkeel-run", "version": 1, "evenkeel": "0.1.0",
 *    "command": ["train", "--lr", "3e-3", ...], "directory": "/where/it/was/given",
 *    "settings": {"model": "tiny", "data": ["/data/texts"], "lr": 0.003, ...}} */
#ifndef TRAIN_OUTPUT_RUN_FILE_H
#define TRAIN_OUTPUT_RUN_FILE_H

#include "evenkeel/train.h"

#include "base/file.h"

#include <jansson.h>

#define EK_RUN_FILE "run.json"

/* The text of run.json; the caller frees it. */
EK_CHECKED ek_status ek_run_file_text(const ek_train_config *cfg, const json_t *settings,
                                      char **out);

/* Finds run.json: in `out`, else in its newest checkpoint.  *path becomes "" if there is none, as
 * in runs of old versions. */
EK_CHECKED ek_status ek_run_file_find(const char *out, ek_path *path);

/* A new reference to the settings in a run.json. */
EK_CHECKED ek_status ek_run_file_read(const char *path, json_t **settings);

#endif
