/* Writes --help, manual page and words of shell completion from a table of options. */
#include "evenkeel/version.h"

#include "base/option_field.h"
#include "base/option_value.h"
#include "base/options.h"

#include <stdio.h>
#include <string.h>

enum { COLUMN = 28, WIDTH = 100, TEXT_CAP = 256, HELP_CAP = 1024 };

/* Options of every table. */
static const ek_option common[] = {
    {"config", EK_OPTION_TEXT, .unit = "FILE",
     .help = "a JSON object with these options as keys; the command line wins"},
    {"help", EK_OPTION_FLAG, .help = "this text"},
};

enum { N_COMMON = sizeof(common) / sizeof(common[0]) };

static const char *value_word(const ek_option *option)
{
    switch (option->type) {
    case EK_OPTION_FLAG: return NULL;
    case EK_OPTION_INT:
    case EK_OPTION_UINT: return "N";
    case EK_OPTION_REAL: return "X";
    case EK_OPTION_TEXT: return option->unit != NULL ? option->unit : "TEXT";
    case EK_OPTION_CHOICE: return option->allowed;
    case EK_OPTION_SIZE: return option->unit != NULL ? option->unit : "SIZE|auto";
    case EK_OPTION_EVERY: return option->unit != NULL ? option->unit : "N";
    case EK_OPTION_LIST: return option->unit != NULL ? option->unit : "TEXT";
    }
    return NULL;
}

/* Writes the words of `text` from column `at`, with line breaks to COLUMN; returns the column. */
static size_t wrap_words(FILE *f, size_t at, const char *text)
{
    while (*text != '\0') {
        size_t n = strcspn(text, " ");

        if (n > 0 && at + 1 + n > WIDTH && at > COLUMN) {
            fprintf(f, "\n%*s", COLUMN - 1, "");
            at = COLUMN - 1;
        }
        if (n > 0) {
            fprintf(f, " %.*s", (int)n, text);
            at += n + 1;
        }
        text += n + (text[n] == ' ');
    }
    return at;
}

/* The help of an option; where all words of the positional argument are described (word NULL), it
 * begins with those that have the option: "gemm, step: ...". */
static void describe_option(const ek_option *option, const char *word, char *text, size_t cap)
{
    char words[TEXT_CAP] = "";
    int is_of_some = word == NULL && option->only != NULL;

    if (is_of_some)
        ek_option_list_words(option->only, ", ", words, sizeof(words));
    snprintf(text, cap, "%s%s%s", words, is_of_some ? ": " : "", option->help);
}

static void write_option(FILE *f, const ek_option_table *table, const ek_option *option,
                         const char *word_or_null)
{
    const char *word = value_word(option);
    const char *dots = option->type == EK_OPTION_LIST ? "..." : "";
    int number = option->type == EK_OPTION_INT || option->type == EK_OPTION_REAL;
    char text[TEXT_CAP], standard[TEXT_CAP - sizeof("(default: )")], help[HELP_CAP];
    size_t at;
    int n = fprintf(f, "  --%s%s%s%s", option->name, word != NULL ? " " : "",
                    word != NULL ? word : "", dots);

    at = n > 0 ? (size_t)n : 0;
    if (at < COLUMN - 1)
        fprintf(f, "%*s", (int)(COLUMN - 1 - at), "");
    else
        fprintf(f, "\n%*s", COLUMN - 1, "");
    describe_option(option, word_or_null, help, sizeof(help));
    at = wrap_words(f, COLUMN - 1, help);
    if (number && option->allowed != NULL) {
        ek_option_describe(option, text, sizeof(text));
        at = wrap_words(f, at, "-");
        at = wrap_words(f, at, text);
    }
    if (number && option->unit != NULL) {
        snprintf(text, sizeof(text), "[%s]", option->unit);
        at = wrap_words(f, at, text);
    }
    ek_option_show_default(table, option, standard, sizeof(standard));
    if (option->required)
        wrap_words(f, at, "(required)");
    else if (standard[0] != '\0') {
        snprintf(text, sizeof(text), "(default: %s)", standard);
        wrap_words(f, at, text);
    }
    fputc('\n', f);
}

static void write_text(FILE *f, const ek_option_table *table, const char *word_or_null)
{
    const char *argument = word_or_null != NULL ? word_or_null : table->positional;

    fprintf(f, "usage: evenkeel %s%s%s [options]\n\n%s\n\noptions:\n", table->command,
            argument != NULL ? " " : "", argument != NULL ? argument : "",
            word_or_null != NULL ? table->describe(word_or_null) : table->summary);
    for (size_t i = 0; i < table->n_options; i++)
        if (ek_option_is_of(&table->options[i], word_or_null))
            write_option(f, table, &table->options[i], word_or_null);
    for (size_t i = 0; i < N_COMMON; i++)
        write_option(f, table, &common[i], word_or_null);
    if (table->write_more != NULL && word_or_null == NULL) {
        fputc('\n', f);
        table->write_more(f);
    }
}

/* --- manual page ----------------------------------------------------------------------------- */

/* Writes text with the characters escaped that roff would interpret. */
static void put_roff(FILE *f, const char *text)
{
    for (const char *c = text; *c != '\0'; c++) {
        if (*c == '\\')
            fputs("\\e", f);
        else if (*c == '-')
            fputs("\\-", f);
        else if ((*c == '.' || *c == '\'') && (c == text || c[-1] == '\n'))
            fprintf(f, "\\&%c", *c);
        else
            fputc(*c, f);
    }
}

static void put_roff_option(FILE *f, const ek_option_table *table, const ek_option *option)
{
    const char *word = value_word(option);
    char range[TEXT_CAP], standard[TEXT_CAP], help[HELP_CAP];

    fputs(".TP\n\\fB\\-\\-", f);
    put_roff(f, option->name);
    fputs("\\fR", f);
    if (word != NULL) {
        fputs(" \\fI", f);
        put_roff(f, word);
        fputs(option->type == EK_OPTION_LIST ? "...\\fR" : "\\fR", f);
    }
    fputc('\n', f);
    describe_option(option, NULL, help, sizeof(help));
    put_roff(f, help);
    if ((option->type == EK_OPTION_INT || option->type == EK_OPTION_REAL) &&
        option->allowed != NULL) {
        ek_option_describe(option, range, sizeof(range));
        fputs(" \\- ", f);
        put_roff(f, range);
        if (option->unit != NULL) {
            fputs(" [", f);
            put_roff(f, option->unit);
            fputc(']', f);
        }
    }
    ek_option_show_default(table, option, standard, sizeof(standard));
    if (option->required)
        fputs(" (required)", f);
    else if (standard[0] != '\0') {
        fputs(" (default: ", f);
        put_roff(f, standard);
        fputc(')', f);
    }
    fputc('\n', f);
}

static void write_man(FILE *f, const ek_option_table *table)
{
    fprintf(f, ".TH EVENKEEL\\-%s 1 \"\" \"evenkeel " EK_VERSION "\" \"evenkeel manual\"\n",
            table->command);
    fprintf(f, ".SH NAME\nevenkeel\\-%s \\- ", table->command);
    for (const char *c = table->summary; *c != '\0' && *c != '.' && *c != '\n'; c++)
        fputc(c == table->summary && *c >= 'A' && *c <= 'Z' ? *c - 'A' + 'a' : *c, f);
    fprintf(f, "\n.SH SYNOPSIS\n\\fBevenkeel %s\\fR", table->command);
    if (table->positional != NULL) {
        fputs(" \\fI", f);
        put_roff(f, table->positional);
        fputs("\\fR", f);
    }
    fputs(" [\\fIoptions\\fR]\n.SH DESCRIPTION\n", f);
    put_roff(f, table->summary);
    fputs("\n.SH OPTIONS\n", f);
    for (size_t i = 0; i < table->n_options; i++)
        put_roff_option(f, table, &table->options[i]);
    for (size_t i = 0; i < N_COMMON; i++)
        put_roff_option(f, table, &common[i]);
    if (table->write_more != NULL) {
        fputs(".SH NOTES\n.nf\n", f);
        table->write_more(f);
        fputs(".fi\n", f);
    }
    fputs(".SH EXIT STATUS\n0 done; 1 failed while running; 2 wrong usage; 3 bad input; 130 "
          "interrupted\n.SH SEE ALSO\n\\fBevenkeel\\fR(1)\n",
          f);
}

/* --- shell completion ------------------------------------------------------------------------ */

static void write_words(FILE *f, const ek_option *option)
{
    const char *unit = option->unit != NULL ? option->unit : "";
    const char *kind = "value";

    if (option->type == EK_OPTION_FLAG)
        kind = "flag";
    else if (option->type == EK_OPTION_CHOICE)
        kind = option->allowed;
    else if (strstr(unit, "FILE") != NULL || strstr(unit, "DIR") != NULL ||
             strstr(unit, "PATH") != NULL || strstr(unit, "MODEL") != NULL)
        kind = "file";
    fprintf(f, "--%s\t%s\n", option->name, kind);
}

static void write_list(FILE *f, const ek_option_table *table, const char *word_or_null)
{
    for (size_t i = 0; i < table->n_options; i++)
        if (ek_option_is_of(&table->options[i], word_or_null))
            write_words(f, &table->options[i]);
    for (size_t i = 0; i < N_COMMON; i++)
        write_words(f, &common[i]);
}

char *ek_options_help(const ek_option_table *table, ek_help form, const char *word)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);

    if (f == NULL)
        return NULL;
    if (form == EK_HELP_MAN)
        write_man(f, table);
    else if (form == EK_HELP_OPTIONS)
        write_list(f, table, word);
    else
        write_text(f, table, word);
    return fclose(f) == 0 ? text : NULL;
}
