/* train/settings.h - the settings of a run by the names of their options, and run.json, which
 * keeps them.
 *
 *   {"format": "evenkeel-run", "version": 1, "evenkeel": "0.1.0",
 *    "command": ["train", "--lr", "3e-3", ...], "directory": "/where/it/was/given",
 *    "settings": {"model": "tiny", "data": ["/data/texts"], "lr": 0.003, ...}}
 *
 * One table has a row for each setting: its name, the field of ek_train_config, and whether it
 * decides about losses.  Settings are read into a configuration, written from one, and compared by
 * that table alone.  What has a default that depends on something else (the preset's batch, 1 % of
 * the steps) is written as what it came to, except min-lr, which follows lr.  Paths are written
 * from the root. */
#ifndef TRAIN_SETTINGS_H
#define TRAIN_SETTINGS_H

#include "evenkeel/train.h"

#include "base/file.h"

#include <jansson.h>

#define EK_RUN_FILE "run.json"

/* Fills the fields of *cfg that `settings` names.  Texts are borrowed from `settings`; lists are
 * new, and ek_train_settings_release frees them.  Names that are no field are passed over. */
EK_CHECKED ek_status ek_train_settings_read(const json_t *settings, ek_train_config *cfg);
void ek_train_settings_release(ek_train_config *cfg);

/* A new object of all settings of a configuration.  Those that stand at "take the default" are left
 * out. */
EK_CHECKED ek_status ek_train_settings_write(const ek_train_config *cfg, json_t **out);

/* Compares the settings that a run has stored with those that it is to go on with.
 *
 *  @param[in]  override  settings that decide about losses may differ, too
 *  @param[out] changes   "--steps 80 (it was 50), --keep 3 (it was 2)"; "" when nothing differs
 *  @return EK_EINVAL, which names those that differ and decide about losses */
EK_CHECKED ek_status ek_train_settings_compare(const json_t *stored, const json_t *now,
                                               int override, char *changes, size_t cap);

/* The text of run.json; the caller frees it. */
EK_CHECKED ek_status ek_run_file_text(const ek_train_config *cfg, const json_t *settings,
                                      char **out);

/* Finds run.json: in `out`, else in its newest checkpoint.  *path becomes "" where there is none,
 * as in runs of versions that wrote none. */
EK_CHECKED ek_status ek_run_file_find(const char *out, ek_path *path);

/* A new reference to the settings that stand in a run.json. */
EK_CHECKED ek_status ek_run_file_read(const char *path, json_t **settings);

#endif
