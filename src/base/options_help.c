/* The text of --help, written from the table. */
#include "base/option_value.h"
#include "base/options.h"

#include <stdio.h>
#include <string.h>

enum { COLUMN = 28, WIDTH = 100, PIECE_CAP = 256 };

static const char *value_word(const ek_option *option)
{
    switch (option->type) {
    case EK_OPTION_FLAG: return NULL;
    case EK_OPTION_INT:
    case EK_OPTION_UINT: return "N";
    case EK_OPTION_REAL: return "X";
    case EK_OPTION_TEXT: return option->unit != NULL ? option->unit : "TEXT";
    case EK_OPTION_CHOICE: return option->allowed;
    case EK_OPTION_EVERY: return option->unit != NULL ? option->unit : "N";
    case EK_OPTION_LIST: return option->unit != NULL ? option->unit : "TEXT";
    }
    return NULL;
}

/* Writes words of `text` from column `at`, going on at COLUMN where a line is full. */
static size_t wrap(FILE *f, size_t at, const char *text)
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

static void write_option(FILE *f, const ek_option *option)
{
    const char *word = value_word(option);
    const char *dots = option->type == EK_OPTION_LIST ? "..." : "";
    const char *standard = option->fallback != NULL ? option->fallback : option->shown;
    int number = option->type == EK_OPTION_INT || option->type == EK_OPTION_REAL;
    char piece[PIECE_CAP];
    size_t at;
    int n = fprintf(f, "  --%s%s%s%s", option->name, word != NULL ? " " : "",
                    word != NULL ? word : "", dots);

    at = n > 0 ? (size_t)n : 0;
    if (at < COLUMN - 1)
        fprintf(f, "%*s", (int)(COLUMN - 1 - at), "");
    else
        fprintf(f, "\n%*s", COLUMN - 1, "");
    at = wrap(f, COLUMN - 1, option->help);
    if (number && option->allowed != NULL) {
        ek_option_describe(option, piece, sizeof(piece));
        at = wrap(f, at, "-");
        at = wrap(f, at, piece);
    }
    if (number && option->unit != NULL) {
        snprintf(piece, sizeof(piece), "[%s]", option->unit);
        at = wrap(f, at, piece);
    }
    if (option->required)
        wrap(f, at, "(required)");
    else if (standard != NULL && option->type != EK_OPTION_FLAG) {
        snprintf(piece, sizeof(piece), "(default: %s)", standard);
        wrap(f, at, piece);
    }
    fputc('\n', f);
}

char *ek_options_help(const ek_option_table *table)
{
    static const ek_option common[] = {
        {"config", EK_OPTION_TEXT, NULL, NULL, "FILE", NULL, 0,
         "a JSON object with these options as keys; the command line wins"},
        {"help", EK_OPTION_FLAG, NULL, NULL, NULL, NULL, 0, "this text"},
    };
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);

    if (f == NULL)
        return NULL;
    fprintf(f, "usage: evenkeel %s%s%s [options]\n\n%s\n\noptions:\n", table->command,
            table->positional != NULL ? " " : "",
            table->positional != NULL ? table->positional : "", table->summary);
    for (size_t i = 0; i < table->n_options; i++)
        write_option(f, &table->options[i]);
    for (size_t i = 0; i < sizeof(common) / sizeof(common[0]); i++)
        write_option(f, &common[i]);
    return fclose(f) == 0 ? text : NULL;
}
