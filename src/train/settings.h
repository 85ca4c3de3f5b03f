/* train/settings.h - the settings of a run by option name, and run.json, which stores them.
 *
 *   {"format": "evenkeel-run", "version": 1, "evenkeel": "0.1.0",
 *    "command": ["train", "--lr", "3e-3", ...], "directory": "/where/it/was/given",
 *    "settings": {"model": "tiny", "data": ["/data/texts"], "lr": 0.003, ...}}
 *
 * The rows of train/options.h that have a field are the settings.  A default that depends on
 * something else (the preset's batch, 1 % of the steps) is written as its value, except min-lr,
 * which follows lr.  Paths are written as absolute paths. */
#ifndef TRAIN_SETTINGS_H
#define TRAIN_SETTINGS_H

#include "evenkeel/train.h"

#include "base/file.h"

#include <jansson.h>

#define EK_RUN_FILE "run.json"

/* A new object of all settings of a configuration, except those whose value means "default". */
EK_CHECKED ek_status ek_train_settings_write(const ek_train_config *cfg, json_t **out);

/* Compares the stored settings of a run with those of its continuation.
 *
 *  @param[in]  override  1: settings that affect losses may differ, too
 *  @param[out] changes   "--steps 80 (it was 50), --keep 3 (it was 2)"; "" when nothing differs
 *  @return EK_EINVAL, which names the differing settings that affect losses */
EK_CHECKED ek_status ek_train_settings_compare(const json_t *stored, const json_t *now,
                                               int override, char *changes, size_t cap);

/* The text of run.json; the caller frees it. */
EK_CHECKED ek_status ek_run_file_text(const ek_train_config *cfg, const json_t *settings,
                                      char **out);

/* Finds run.json: in `out`, else in its newest checkpoint.  *path becomes "" if there is none, as
 * in runs of old versions. */
EK_CHECKED ek_status ek_run_file_find(const char *out, ek_path *path);

/* A new reference to the settings in a run.json. */
EK_CHECKED ek_status ek_run_file_read(const char *path, json_t **settings);

#endif
