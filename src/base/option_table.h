/* base/option_table.h - the rows of an options table: what a command accepts (base/options.h). */
#ifndef BASE_OPTION_TABLE_H
#define BASE_OPTION_TABLE_H

#include "evenkeel/err.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef enum {
    EK_OPTION_FLAG,   /* --name, --name=true or --name=false */
    EK_OPTION_INT,    /* 64-bit integer */
    EK_OPTION_UINT,   /* 0 to 2^64 - 1 (a seed); in JSON a string from 2^63 on */
    EK_OPTION_EVERY,  /* 64-bit integer, or a time as text: 90s, 10m, 2h; or auto, if `unit` has it
                       */
    EK_OPTION_SIZE,   /* bytes as text: 8G, 512M, 1.5GiB, 8GB; or auto */
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
    EK_FIELD_SIZE,   /* int64_t: bytes; auto: 0 */
    EK_FIELD_EVERY   /* int64_t (auto: -1), and at `seconds_offset` another one: one of them is 0 */
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
    const char *only;     /* words of the table's positional argument that have it, "gemm|step", the
                             others refuse it; or NULL: all of them */
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
    const char *(*describe)(const char *word); /* one line on a word of `positional`; or NULL */
    ek_options_stored_fn stored;               /* NULL: no stored settings */
    const void *defaults;        /* a struct of settings with the defaults of rows; NULL: none */
    void (*write_more)(FILE *f); /* lines below the options, for people; NULL: none */
} ek_option_table;

#endif
