/* train/settings/options.h - the options of `evenkeel train`: the one table of its settings.
 *
 * A row with a field is a setting of ek_train: its name in run.json, its type and range, its field
 * of ek_train_config, whose EK_TRAIN_CONFIG_INIT holds the default, and how it is kept in run.json.
 * Rows without a field tell the command how to start the ranks and what to print. */
#ifndef TRAIN_SETTINGS_OPTIONS_H
#define TRAIN_SETTINGS_OPTIONS_H

#include "base/options.h"

/* Flags of a row. */
enum {
    EK_SETTING_LOSSES = 1,    /* affects losses: a resumed run keeps it */
    EK_SETTING_OMIT_0 = 2,    /* 0, false, or an empty list, means the default: not in run.json */
    EK_SETTING_OMIT_LESS = 4, /* likewise numbers below 0 */
    EK_SETTING_PATH = 8,      /* written as an absolute path if the file exists */
    EK_SETTING_BYTES = 16,    /* but for the word "bytes", which never names a file */
    EK_SETTING_NOT_KEPT = 32  /* holds for one start: not in run.json */
};

/* Options that are not given have the settings of the run that continues in --out (--resume,
 * --elastic), if there is one; the default of --out is chosen. */
extern const ek_option_table ek_train_options;

/* Copies the rows with these names, "model|batch|...", for a command that simulates a run on a
 * cluster, whose machine says the dtype.  Returns how many. */
size_t ek_train_options_pick(const char *names, ek_option *rows);

#endif
