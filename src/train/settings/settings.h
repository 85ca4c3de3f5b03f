/* train/settings/settings.h - the settings of a run by option name, as run.json stores them
 * (train/output/run_file.h).
 *
 * The rows of train/settings/options.h that have a field are the settings.  A default that depends
 * on something else (the preset's batch, 1 % of the steps) is written as its value, except min-lr,
 * which follows lr.  Paths are written as absolute paths. */
#ifndef TRAIN_SETTINGS_SETTINGS_H
#define TRAIN_SETTINGS_SETTINGS_H

#include "evenkeel/train.h"

#include <jansson.h>

/* A new object of all settings of a configuration, except those whose value means "default". */
EK_CHECKED ek_status ek_train_settings_write(const ek_train_config *cfg, json_t **out);

/* Compares the stored settings of a run with those of its continuation.
 *
 *  @param[in]  override  1: settings that affect losses may differ, too
 *  @param[out] changes   "--steps 80 (it was 50), --keep 3 (it was 2)"; "" when nothing differs
 *  @return EK_EINVAL, which names the differing settings that affect losses */
EK_CHECKED ek_status ek_train_settings_compare(const json_t *stored, const json_t *now,
                                               int override, char *changes, size_t cap);

#endif
