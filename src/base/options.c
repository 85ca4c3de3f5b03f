/* Tables of options: command line, config file, getters. */
#include "base/options.h"

#include "base/json.h"
#include "base/nearest.h"
#include "base/option_field.h"
#include "base/option_value.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WHERE_CAP = 512 };

struct ek_options {
    const ek_option_table *table;
    json_t **values;     /* [n_options]; NULL: no value */
    const char ***lists; /* [n_options] made by ek_options_store; NULL: none */
    char *given;         /* [n_options]: BY_*, the source of the value */
    json_t *positional;
    json_t *stored;     /* settings of an earlier run; NULL: none */
    const char *config; /* borrowed from argv */
    ek_help help;
    const char *help_word; /* borrowed from argv; NULL: none */
};

enum { BY_DEFAULT, BY_STORED, BY_FILE, BY_LINE };

static int is_text(const char *text, const char *s, size_t n)
{
    return strlen(text) == n && memcmp(text, s, n) == 0;
}

static ptrdiff_t row_of(const ek_option_table *t, const char *name, size_t n)
{
    for (size_t i = 0; i < t->n_options; i++)
        if (is_text(t->options[i].name, name, n))
            return (ptrdiff_t)i;
    for (const ek_option_alias *a = t->aliases; a != NULL && a->was != NULL; a++)
        if (is_text(a->was, name, n))
            return row_of(t, a->name, strlen(a->name));
    return -1;
}

static const char *nearest_option(const ek_option_table *t, const char *name, size_t n)
{
    ek_spelling search = {.name = name, .n = n};

    ek_spelling_try(&search, "help");
    ek_spelling_try(&search, "config");
    ek_spelling_try_rows(&search, t->options, t->n_options, sizeof(t->options[0]));
    return search.best;
}

/* Stores a value in its row; takes over the reference. */
static ek_status set_value(ek_options *o, size_t row, char by, json_t *value)
{
    const ek_option *option = &o->table->options[row];

    if (option->type == EK_OPTION_LIST && json_is_string(value)) {
        if (o->given[row] == by && o->values[row] != NULL) {
            EK_REQUIRE(json_array_append_new(o->values[row], value) == 0, EK_ENOMEM,
                       "no memory for `--%s`", option->name);
            return EK_OK;
        }
        value = json_pack("[o]", value);
        EK_REQUIRE(value != NULL, EK_ENOMEM, "no memory for `--%s`", option->name);
    }
    json_decref(o->values[row]);
    o->values[row] = value;
    o->given[row] = by;
    return EK_OK;
}

static ek_status set_text(ek_options *o, size_t row, char by, const char *text)
{
    char where[WHERE_CAP];
    json_t *value;

    snprintf(where, sizeof(where), "`--%s`", o->table->options[row].name);
    EK_TRY(ek_option_from_text(&o->table->options[row], where, text, &value));
    return set_value(o, row, by, value);
}

/* The options of a JSON object; `from` is for messages. */
static ek_status read_object(ek_options *o, const json_t *root, const char *from)
{
    const ek_option_table *t = o->table;
    char where[WHERE_CAP];
    const char *key;
    json_t *value, *kept;

    EK_REQUIRE(json_is_object(root), EK_EFORMAT, "%s: expected an object of options, found %s",
               from, ek_json_type_name(root));
    json_object_foreach((json_t *)root, key, value)
    {
        ptrdiff_t row = row_of(t, key, strlen(key));

        EK_REQUIRE(row >= 0, EK_EINVAL,
                   "%s: `%s` has no option `%.80s`; the nearest is `%s` (see --help)", from,
                   t->command, key, nearest_option(t, key, strlen(key)));
        if (o->given[row] == BY_LINE)
            continue;
        snprintf(where, sizeof(where), "%s: key `%s`", from, key);
        EK_TRY(ek_option_from_json(&t->options[row], where, value, &kept));
        EK_TRY(set_value(o, (size_t)row, BY_FILE, kept));
    }
    return EK_OK;
}

static ek_status read_config(ek_options *o, const char *path)
{
    json_t *root;
    ek_status st;

    EK_TRY(ek_json_read(path, &root));
    st = read_object(o, root, path);
    json_decref(root);
    return st;
}

/* Reads the option at argv[*at] with its values; *at becomes the last argument used. */
static ek_status read_option(ek_options *o, int argc, char *const *argv, int *at)
{
    const char *name = argv[*at] + 2, *equals = strchr(name, '=');
    size_t n = equals != NULL ? (size_t)(equals - name) : strlen(name);
    const char *text = equals != NULL ? equals + 1 : NULL;
    int config = n == 6 && memcmp(name, "config", n) == 0;
    ptrdiff_t row = row_of(o->table, name, n);
    const ek_option *option;

    EK_REQUIRE(row >= 0 || config, EK_EINVAL,
               "`%s` has no option `--%.*s`; the nearest is `--%s` (see --help)", o->table->command,
               n < 80 ? (int)n : 80, name, nearest_option(o->table, name, n));
    option = config ? NULL : &o->table->options[row];
    if (option != NULL && option->type == EK_OPTION_FLAG && text == NULL)
        return set_text(o, (size_t)row, BY_LINE, "true");
    if (text == NULL) {
        EK_REQUIRE(*at + 1 < argc && strncmp(argv[*at + 1], "--", 2) != 0, EK_EINVAL,
                   "`--%.*s` needs a value", (int)n, name);
        text = argv[++*at];
        if (option != NULL && option->type == EK_OPTION_LIST)
            while (*at + 1 < argc && strncmp(argv[*at + 1], "--", 2) != 0) {
                EK_TRY(set_text(o, (size_t)row, BY_LINE, text));
                text = argv[++*at];
            }
    }
    if (config) {
        o->config = text;
        return EK_OK;
    }
    return set_text(o, (size_t)row, BY_LINE, text);
}

static ek_status read_line(ek_options *o, int argc, char *const *argv)
{
    const ek_option_table *t = o->table;
    int only_positional = 0;

    for (int i = 0; i < argc; i++) {
        if (!only_positional && strcmp(argv[i], "--") == 0) {
            only_positional = 1;
        } else if (!only_positional && strncmp(argv[i], "--", 2) == 0) {
            EK_TRY(read_option(o, argc, argv, &i));
        } else {
            EK_REQUIRE(json_array_size(o->positional) < t->positional_max, EK_EINVAL,
                       "`%s` does not know what to do with the argument `%.80s` (see --help)",
                       t->command, argv[i]);
            EK_REQUIRE(json_array_append_new(o->positional, json_string_nocheck(argv[i])) == 0,
                       EK_ENOMEM, "no memory for the argument `%.80s`", argv[i]);
        }
    }
    return EK_OK;
}

/* Refuses an option that the word of the positional argument, such as the name of a benchmark, does
 * not have: it would be ignored. */
static ek_status check_options_of_word(const ek_options *o)
{
    const ek_option_table *t = o->table;
    const char *word = json_string_value(json_array_get(o->positional, 0));
    char having[WHERE_CAP];

    if (t->describe == NULL || word == NULL || ek_option_choice_index(t->positional, word) < 0)
        return EK_OK;
    for (size_t i = 0; i < t->n_options; i++) {
        const ek_option *row = &t->options[i];
        int by_file = o->given[i] == BY_FILE;

        if (o->given[i] == BY_DEFAULT || ek_option_is_of(row, word))
            continue;
        ek_option_list_words(row->only, " and ", having, sizeof(having));
        return EK_FAIL(
            EK_EINVAL,
            "%s%s`%s %s` has no option `%s%s`, which is an option of %s %s (see `evenkeel %s "
            "%s --help`)",
            by_file ? o->config : "", by_file ? ": " : "", t->command, word, by_file ? "" : "--",
            row->name, t->command, having, t->command, word);
    }
    return EK_OK;
}

static ek_status fill_defaults(ek_options *o)
{
    for (size_t i = 0; i < o->table->n_options; i++) {
        const ek_option *option = &o->table->options[i];

        EK_REQUIRE(o->values[i] != NULL || !option->required, EK_EINVAL, "`%s` needs `--%s`: %s",
                   o->table->command, option->name, option->help);
        if (o->values[i] == NULL && option->fallback != NULL)
            EK_TRY(set_text(o, i, BY_DEFAULT, option->fallback));
        else if (o->values[i] == NULL)
            o->values[i] = ek_option_field_default(o->table, option);
    }
    return EK_OK;
}

/* Uses the settings of an earlier run for options that were not given.  An unknown setting is an
 * error: ignoring it would silently change the run. */
static ek_status read_stored(ek_options *o)
{
    const ek_option_table *t = o->table;
    char where[WHERE_CAP], from[WHERE_CAP / 2] = "", message[2 * WHERE_CAP];
    const char *key;
    json_t *value, *kept;
    ek_status st;

    if (t->stored == NULL)
        return EK_OK;
    EK_TRY(t->stored(o, &o->stored, from, sizeof(from)));
    json_object_foreach(o->stored, key, value)
    {
        ptrdiff_t row = row_of(t, key, strlen(key));

        EK_REQUIRE(
            row >= 0, EK_EUNSUPPORTED,
            "%s has the setting `%.80s`, which this evenkeel does not know: the run was made "
            "by another version",
            from, key);
        if (o->given[row] != BY_DEFAULT)
            continue;
        snprintf(where, sizeof(where), "%s: setting `%s`", from, key);
        st = ek_option_from_json(&t->options[row], where, value, &kept);
        if (st == EK_EINVAL) { /* the file is wrong, not the command line */
            snprintf(message, sizeof(message), "%s", ek_err_message());
            return EK_FAIL(EK_EFORMAT, "%s", message);
        }
        EK_TRY(st);
        EK_TRY(set_value(o, (size_t)row, BY_STORED, kept));
    }
    return EK_OK;
}

static ek_help asks_for_help(int argc, char *const *argv)
{
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return EK_HELP_TEXT;
        if (strcmp(argv[i], "--help=man") == 0)
            return EK_HELP_MAN;
        if (strcmp(argv[i], "--help=options") == 0)
            return EK_HELP_OPTIONS;
    }
    return EK_HELP_NONE;
}

/* Whether an argument is an option whose value is the next one. */
static int takes_next(const ek_option_table *table, const char *argument)
{
    ptrdiff_t row =
        strncmp(argument, "--", 2) == 0 ? row_of(table, argument + 2, strlen(argument + 2)) : -1;

    return row >= 0 && table->options[row].type != EK_OPTION_FLAG;
}

/* The first argument that is a word of the positional argument, such as the name of a benchmark. */
static const char *find_help_word(const ek_option_table *table, int argc, char *const *argv)
{
    for (int i = 0; i < argc && table->describe != NULL; i++)
        if ((i == 0 || !takes_next(table, argv[i - 1])) &&
            ek_option_choice_index(table->positional, argv[i]) >= 0)
            return argv[i];
    return NULL;
}

/* The caller destroys *out, also after a failure. */
static ek_status create(const ek_option_table *table, ek_options **out)
{
    ek_options *o = *out = calloc(1, sizeof(*o));

    EK_REQUIRE(o != NULL, EK_ENOMEM, "no memory for the options of `%s`", table->command);
    o->table = table;
    o->values = calloc(table->n_options + 1, sizeof(json_t *));
    o->lists = calloc(table->n_options + 1, sizeof(*o->lists));
    o->given = calloc(table->n_options + 1, 1);
    o->positional = json_array();
    EK_REQUIRE(o->values != NULL && o->lists != NULL && o->given != NULL && o->positional != NULL,
               EK_ENOMEM, "no memory for the options of `%s`", table->command);
    return EK_OK;
}

static void destroy_out(ek_options **out)
{
    ek_options_destroy(*out);
    *out = NULL;
}

ek_status ek_options_parse(const ek_option_table *table, int argc, char *const *argv,
                           ek_options **out)
{
    ek_status st;

    EK_TRY_OUT(create(table, out));
    (*out)->help = asks_for_help(argc, argv);
    if ((*out)->help != EK_HELP_NONE) {
        (*out)->help_word = find_help_word(table, argc, argv);
        return EK_OK;
    }
    EK_TRY_OUT(read_line(*out, argc, argv));
    if ((*out)->config != NULL)
        EK_TRY_OUT(read_config(*out, (*out)->config));
    EK_TRY_OUT(check_options_of_word(*out));
    EK_TRY_OUT(read_stored(*out));
    EK_TRY_OUT(fill_defaults(*out));
    return EK_OK;
out:
    destroy_out(out);
    return st;
}

ek_status ek_options_from_json(const ek_option_table *table, const json_t *settings,
                               const char *from, ek_options **out)
{
    ek_status st;

    EK_TRY_OUT(create(table, out));
    EK_TRY_OUT(read_object(*out, settings, from));
    EK_TRY_OUT(fill_defaults(*out));
    return EK_OK;
out:
    destroy_out(out);
    return st;
}

void ek_options_destroy(ek_options *o)
{
    if (o == NULL)
        return;
    for (size_t i = 0; o->values != NULL && i < o->table->n_options; i++)
        json_decref(o->values[i]);
    for (size_t i = 0; o->lists != NULL && i < o->table->n_options; i++)
        free(o->lists[i]);
    json_decref(o->positional);
    json_decref(o->stored);
    free(o->values);
    free(o->lists);
    free(o->given);
    free(o);
}

ek_help ek_options_help_wanted(const ek_options *o)
{
    return o->help;
}

const char *ek_options_help_word(const ek_options *o)
{
    return o->help_word;
}

/* The list of row `i` in the form of its field. */
static ek_status store_list(const ek_options *o, size_t i, ek_option_list *out)
{
    size_t n = json_array_size(o->values[i]);

    if (o->lists[i] == NULL)
        o->lists[i] = calloc(n + 1, sizeof(**o->lists));
    EK_REQUIRE(o->lists[i] != NULL, EK_ENOMEM, "no memory for `--%s`", o->table->options[i].name);
    for (size_t at = 0; at < n; at++)
        o->lists[i][at] = json_string_value(json_array_get(o->values[i], at));
    *out = (ek_option_list){o->lists[i], (int64_t)n};
    return EK_OK;
}

ek_status ek_options_store(const ek_options *o, void *settings)
{
    for (size_t i = 0; i < o->table->n_options; i++) {
        const ek_option *row = &o->table->options[i];

        if (o->values[i] != NULL && row->field == EK_FIELD_LIST)
            EK_TRY(store_list(o, i, (void *)((char *)settings + row->offset)));
        else if (o->values[i] != NULL)
            ek_option_field_set(row, o->values[i], settings);
    }
    return EK_OK;
}

static const json_t *value_of(const ek_options *o, const char *name)
{
    ptrdiff_t row = row_of(o->table, name, strlen(name));

    return row >= 0 ? o->values[row] : NULL;
}

int ek_options_flag(const ek_options *o, const char *name)
{
    return json_is_true(value_of(o, name));
}

int64_t ek_options_int(const ek_options *o, const char *name)
{
    return json_integer_value(value_of(o, name));
}

double ek_options_real(const ek_options *o, const char *name)
{
    return json_real_value(value_of(o, name));
}

const char *ek_options_text(const ek_options *o, const char *name)
{
    return json_string_value(value_of(o, name));
}

size_t ek_options_count(const ek_options *o, const char *name)
{
    return json_array_size(name != NULL ? value_of(o, name) : o->positional);
}

const char *ek_options_list(const ek_options *o, const char *name, size_t i)
{
    return json_string_value(json_array_get(name != NULL ? value_of(o, name) : o->positional, i));
}

int ek_options_given(const ek_options *o, const char *name)
{
    ptrdiff_t row = row_of(o->table, name, strlen(name));

    return row >= 0 && o->given[row] != BY_DEFAULT;
}

int ek_options_is_stored(const ek_options *o, const char *name)
{
    ptrdiff_t row = row_of(o->table, name, strlen(name));

    return row >= 0 && o->given[row] == BY_STORED;
}

json_t *ek_options_dump(const ek_options *o)
{
    json_t *all = json_object();

    for (size_t i = 0; all != NULL && i < o->table->n_options; i++)
        if (o->values[i] != NULL && json_object_set_new(all, o->table->options[i].name,
                                                        json_deep_copy(o->values[i])) != 0) {
            json_decref(all);
            all = NULL;
        }
    return all;
}
