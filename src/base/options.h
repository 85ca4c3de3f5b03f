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

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
    EK_OPTION_FLAG,   /* --name, --name=true or --name=false */
    EK_OPTION_INT,    /* 64-bit integer */
    EK_OPTION_UINT,   /* 0 to 2^64 - 1 (a seed); in JSON a string from 2^63 on */
    EK_OPTION_EVERY,  /* 64-bit integer, or a time as text: 90s, 10m, 2h */
    EK_OPTION_REAL,   /* finite number */
    EK_OPTION_TEXT,   /* any text that is not empty */
    EK_OPTION_CHOICE, /* one word of `allowed` */
    EK_OPTION_LIST    /* one or more texts: all arguments up to the next option */
} ek_option_type;

/* The type of a row's field in a struct of settings. */
typedef enum {
    EK_FIELD_NONE,   /* no field: the command asks for the value by name */
    EK_FIELD_INT,    /* int: an integer, a flag, or the number that a choice names ("auto": 0) */
    EK_FIELD_INT64,  /* int64_t */
    EK_FIELD_UINT64, /* uint64_t */
    EK_FIELD_REAL,   /* double */
    EK_FIELD_TEXT,   /* const char *: a text, or the word of a choice */
    EK_FIELD_INDEX,  /* int, or an enumeration: the index of a choice in `allowed` */
    EK_FIELD_LIST,   /* const char *const *, directly followed by its int64_t length */
    EK_FIELD_EVERY   /* int64_t, and at `seconds_offset` another one: one of them is 0 */
} ek_field_type;

/* A row; its default stands in one place: in `fallback`, or in the field of the table's defaults if
 * there is one and `shown` is NULL. */
typedef struct {
    const char *name; /* without dashes; the same in JSON */
    ek_option_type type;
    const char *fallback; /* the default as text; NULL: none (int 0, text NULL, flag off) */
    const char *shown;    /* what --help says of a default that depends on something; or NULL */
    const char *unit;     /* "tokens", "seconds", or a placeholder such as "FILE"; or NULL */
    const char *allowed;  /* numbers: an interval "[1,)", "(0,1]", ...; choices: "a|b|c"; or NULL */
    int required;         /* an error when neither file nor command line gives it */
    ek_field_type field;
    size_t offset, seconds_offset; /* of the field */
    unsigned flags;                /* for the owner of the table */
    const char *help;
} ek_option;

/* An option's name in earlier versions: still accepted, not shown by --help. */
typedef struct {
    const char *was, *name;
} ek_option_alias;

typedef struct ek_options ek_options;

/* Returns the settings stored by an earlier run, used for options that were not given: *settings
 * becomes a new object with option names as keys, or stays NULL if there are none.  `given` holds
 * the values of the command line and the config file, without defaults.  Writes the source's name
 * for messages to `from`. */
typedef ek_status (*ek_options_stored_fn)(const ek_options *given, json_t **settings, char *from,
                                          size_t from_cap);

typedef struct {
    const char *command; /* "train" */
    const char *summary; /* one line */
    const ek_option *options;
    size_t n_options;
    const ek_option_alias *aliases; /* ends with {NULL, NULL}; NULL: none */
    const char *positional; /* their name in --help: "gemm|kernels|step", "FILE"; NULL: none */
    size_t positional_max;
    ek_options_stored_fn stored; /* NULL: no stored settings */
    const void *defaults;        /* a struct of settings with the defaults of rows; NULL: none */
} ek_option_table;

/* Reads the arguments after the command's name; ek_options_destroy frees *out.  EK_EINVAL (the
 * message names the option, the value and the allowed values, or the nearest known option),
 * EK_ENOENT or EK_EFORMAT for the config file.  With --help among the arguments nothing is checked:
 * see ek_options_help_wanted. */
EK_CHECKED ek_status ek_options_parse(const ek_option_table *table, int argc, char *const *argv,
                                      ek_options **out);
void ek_options_destroy(ek_options *o);

/* In which form the command line asks for help: --help, --help=man, --help=options. */
typedef enum { EK_HELP_NONE, EK_HELP_TEXT, EK_HELP_MAN, EK_HELP_OPTIONS } ek_help;

ek_help ek_options_help_wanted(const ek_options *o);

/* Sets the fields of all rows that have a value, by default or given, in the struct of settings.
 * Texts and lists are borrowed from `o`. */
EK_CHECKED ek_status ek_options_store(const ek_options *o, void *settings);

int ek_options_flag(const ek_options *o, const char *name);
int64_t ek_options_int(const ek_options *o, const char *name);
uint64_t ek_options_uint(const ek_options *o, const char *name);
double ek_options_real(const ek_options *o, const char *name);
const char *ek_options_text(const ek_options *o, const char *name); /* TEXT and CHOICE */

/* Index of a choice in `allowed`, from 0; -1: not set. */
int ek_options_choice(const ek_options *o, const char *name);

/* Length and elements of a list, or of the positional arguments if name is NULL. */
size_t ek_options_count(const ek_options *o, const char *name);
const char *ek_options_list(const ek_options *o, const char *name, size_t i);

/* Whether the command line, the config file or stored settings set it, not its default. */
int ek_options_given(const ek_options *o, const char *name);

/* Whether its value is the stored one. */
int ek_options_is_stored(const ek_options *o, const char *name);

/* The stored settings, or NULL; borrowed. */
const json_t *ek_options_stored(const ek_options *o);

/* A new object of all settings in effect, without options that have no value; NULL: no memory.
 * The caller releases it; written to a file, it is a --config that repeats the run. */
json_t *ek_options_dump(const ek_options *o);

/* The text of --help, the manual page (roff), or the options for shell completion, one per line:
 * "--name", a tab, and "flag", "value", "file" or the words of a choice.  NULL: no memory; the
 * caller frees it. */
char *ek_options_help(const ek_option_table *table, ek_help form);

#endif
