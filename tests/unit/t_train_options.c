/* The table of training options: each default stands in EK_TRAIN_CONFIG_INIT alone, --help shows
 * that value, and a command line without the option gives it. */
#include "evenkeel/train.h"

#include "base/option_field.h"
#include "base/option_value.h"
#include "ek_test.h"
#include "train/settings/options.h"

static const ek_train_config init = EK_TRAIN_CONFIG_INIT;

enum { TEXT_CAP = 2048 };

/* Copies the words of `from` up to `end`, with single spaces. */
static void copy_words(const char *from, const char *end, char *to)
{
    size_t n = 0;

    for (; from < end && n + 2 < TEXT_CAP; from++)
        if (*from != ' ' && *from != '\n')
            to[n++] = *from;
        else if (n > 0 && to[n - 1] != ' ')
            to[n++] = ' ';
    to[n] = '\0';
}

/* The default of a row in the text of --help; "": none is shown. */
static void shown_default(const char *help, const ek_option *row, char *out)
{
    static const char before[] = " (default: ";
    char start[64], words[TEXT_CAP];
    const char *at, *end;

    out[0] = '\0';
    snprintf(start, sizeof(start), "\n  --%s", row->name);
    for (at = strstr(help, start); at != NULL; at = strstr(at + 1, start))
        if (strchr(" \n", at[strlen(start)]) != NULL)
            break;
    end = at != NULL ? strstr(at + 1, "\n  --") : NULL;
    CHECK(end != NULL);
    if (end == NULL)
        return;
    copy_words(at, end, words);
    for (at = strstr(words, before); at != NULL; at = strstr(at + 1, before))
        snprintf(out, TEXT_CAP, "%.*s", (int)strlen(at + strlen(before)) - 1, at + strlen(before));
}

static void help_shows_the_default_of_the_initialiser(void)
{
    char *help = ek_options_help(&ek_train_options, EK_HELP_TEXT, NULL), shown[TEXT_CAP];
    int values = 0;

    CHECK(help != NULL);
    for (size_t i = 0; help != NULL && i < ek_train_options.n_options; i++) {
        const ek_option *row = &ek_train_options.options[i];
        json_t *want = ek_option_field_get(row, &init), *got = NULL;

        shown_default(help, row, shown);
        if (row->field == EK_FIELD_NONE || row->type == EK_OPTION_FLAG || row->shown != NULL) {
            const char *said = row->shown != NULL ? row->shown : row->fallback;

            CHECK(strcmp(shown, said != NULL ? said : "") == 0);
        } else if (want != NULL) {
            CHECK(ek_option_from_text(row, row->name, shown, &got) == EK_OK);
            if (!json_equal(got, want))
                EK_T_FAIL("--%s: --help shows %s, which is not the default", row->name, shown);
            values++;
        } else {
            CHECK(shown[0] == '\0');
        }
        json_decref(want);
        json_decref(got);
    }
    CHECK(values > 30);
    free(help);
}

static void options_not_given_are_those_of_the_initialiser(void)
{
    const char *line[] = {"--data", "a", "b", "--out", "c"};
    ek_train_config got = {0};
    ek_options *o = NULL;
    char *argv[5];

    for (int i = 0; i < 5; i++)
        argv[i] = (char *)(uintptr_t)line[i];
    CHECK_INT(ek_options_parse(&ek_train_options, 5, argv, &o), EK_OK);
    CHECK(o != NULL && ek_options_store(o, &got) == EK_OK);
    for (size_t i = 0; o != NULL && i < ek_train_options.n_options; i++) {
        const ek_option *row = &ek_train_options.options[i];
        json_t *a = ek_option_field_get(row, &got), *b = ek_option_field_get(row, &init);

        if (row->shown == NULL && row->type != EK_OPTION_LIST && !(a == NULL && b == NULL) &&
            !json_equal(a, b))
            EK_T_FAIL("--%s differs from the initialiser", row->name);
        json_decref(a);
        json_decref(b);
    }
    CHECK_INT(got.n_data, 2);
    CHECK(got.n_data == 2 && strcmp(got.data[1], "b") == 0);
    CHECK(got.out != NULL && strcmp(got.out, "c") == 0);
    ek_options_destroy(o);
}

static void each_field_has_one_row(void)
{
    const ek_option *rows = ek_train_options.options;

    for (size_t i = 0; i < ek_train_options.n_options; i++) {
        CHECK(rows[i].offset < sizeof(ek_train_config));
        CHECK((rows[i].field == EK_FIELD_EVERY) == (rows[i].type == EK_OPTION_EVERY));
        CHECK((rows[i].field == EK_FIELD_SIZE) == (rows[i].type == EK_OPTION_SIZE));
        CHECK((rows[i].field == EK_FIELD_LIST) == (rows[i].type == EK_OPTION_LIST));
        CHECK((rows[i].field == EK_FIELD_REAL) == (rows[i].type == EK_OPTION_REAL));
        for (size_t j = 0; j < i; j++)
            if (rows[i].field != EK_FIELD_NONE && rows[j].field != EK_FIELD_NONE &&
                rows[i].offset == rows[j].offset)
                EK_T_FAIL("--%s and --%s have the same field", rows[j].name, rows[i].name);
    }
}

/* clang-format off */
static const ek_case cases[] = {
    EK_CASE(help_shows_the_default_of_the_initialiser),
    EK_CASE(options_not_given_are_those_of_the_initialiser),
    EK_CASE(each_field_has_one_row),
};
/* clang-format on */
EK_TEST_MAIN(cases)
