/* base/options.h - one table of options per command.
 *
 * The table drives the parser of the command line (`--name value`, `--name=value`, flags,
 * `--data PATH...`) and of `--config FILE` (a JSON object with the same keys), the checks and their
 * messages, the text of `--help`, the dump of the settings in effect, and where a value goes in the
 * struct of settings that the command fills.
 * Precedence: default < settings stored by an earlier run < config file < command line.  The last
 * of a repeated option counts; repeated lists are joined.  `--` ends the options; `--help` and
 * `--config` belong to every table.
 *
 * Ownership    values are borrowed from the ek_options.  Getters return 0 or NULL for a name that
 *              the table does not have, or of another type: a bug of the caller. */
#ifndef BASE_OPTIONS_H
#define BASE_OPTIONS_H

#include "evenkeel/err.h"

#include "base/option_table.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* Reads the arguments after the command's name; ek_options_destroy frees *out.  EK_EINVAL (the
 * message names the option, the value and the allowed values, the nearest known option, or the
 * words of the positional argument that have the option),
 * EK_ENOENT or EK_EFORMAT for the config file.  With --help among the arguments nothing is checked:
 * see ek_options_help_wanted. */
EK_CHECKED ek_status ek_options_parse(const ek_option_table *table, int argc, char *const *argv,
                                      ek_options **out);
/* The same from an object with options as keys, like that of a config file; stored settings are not
 * looked for.  `from` is the object's name in messages.  EK_EINVAL, EK_EFORMAT. */
EK_CHECKED ek_status ek_options_from_json(const ek_option_table *table, const json_t *settings,
                                          const char *from, ek_options **out);
void ek_options_destroy(ek_options *o);

/* In which form the command line asks for help: --help, --help=man, --help=options. */
typedef enum { EK_HELP_NONE, EK_HELP_TEXT, EK_HELP_MAN, EK_HELP_OPTIONS } ek_help;

/* The form that the command line asks for; EK_HELP_NONE: no --help. */
ek_help ek_options_help_wanted(const ek_options *o);

/* The word of the table's positional argument, of those in `positional`, that stands beside --help;
 * NULL: none. */
const char *ek_options_help_word(const ek_options *o);

/* Sets the fields of all rows that have a value, by default or given, in the struct of settings.
 * Texts and lists are borrowed from `o`. */
EK_CHECKED ek_status ek_options_store(const ek_options *o, void *settings);

/* The value of an option of this type; ek_options_text also for a choice. */
int ek_options_flag(const ek_options *o, const char *name);
int64_t ek_options_int(const ek_options *o, const char *name);
double ek_options_real(const ek_options *o, const char *name);
const char *ek_options_text(const ek_options *o, const char *name);

/* Length and elements of a list, or of the positional arguments if name is NULL. */
size_t ek_options_count(const ek_options *o, const char *name);
const char *ek_options_list(const ek_options *o, const char *name, size_t i);

/* Whether the command line, the config file or stored settings set it, not its default. */
int ek_options_given(const ek_options *o, const char *name);

/* Whether its value is the stored one. */
int ek_options_is_stored(const ek_options *o, const char *name);

/* A new object of all settings in effect, without options that have no value; NULL: no memory.
 * The caller releases it; written to a file, it is a --config that repeats the run. */
json_t *ek_options_dump(const ek_options *o);

/* The text of --help, the manual page (roff), or the options for shell completion, one per line:
 * "--name", a tab, and "flag", "value", "file" or the words of a choice.  word: the text has only
 * the options of this word of the positional argument; NULL: all.  NULL: no memory; the caller
 * frees it. */
char *ek_options_help(const ek_option_table *table, ek_help form, const char *word);

#endif
