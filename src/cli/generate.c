/* evenkeel generate: continues a prompt; text is printed as it is generated. */
#include "evenkeel/lm.h"

#include "base/clock.h"
#include "base/count_text.h"
#include "base/file.h"
#include "base/live_line.h"
#include "cli/cli.h"
#include "cli/model_options.h"
#include "supervisor/limits.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PROMPT_PIECE = 1 << 16, PROMPT_BYTES_MAX = 64 << 20 };

typedef struct {
    cli_model_settings opened;        /* first, as cli/model_options.h says */
    const char *prompt, *prompt_file; /* NULL: not given */
    ek_lm_generate_config text;
    int quiet;
} generate_settings;

static const ek_option own[] = {
    {"prompt", EK_OPTION_TEXT, .shown = "stdin, if that is not a terminal", .unit = "TEXT",
     .field = EK_FIELD_TEXT, .offset = offsetof(generate_settings, prompt),
     .help = "text to continue; - reads it from stdin"},
    {"prompt-file", EK_OPTION_TEXT, .unit = "FILE", .field = EK_FIELD_TEXT,
     .offset = offsetof(generate_settings, prompt_file),
     .help = "file with the text to continue; a trailing line break is removed"},
    {"tokens", EK_OPTION_INT, .fallback = "100", .unit = "tokens", .allowed = "[1,1000000]",
     .field = EK_FIELD_INT64, .offset = offsetof(generate_settings, text.tokens),
     .help =
         "maximum number of tokens to generate; generation also stops at the end-of-text token"},
    {"temperature", EK_OPTION_REAL, .fallback = "0.8", .allowed = "[0,)", .field = EK_FIELD_REAL,
     .offset = offsetof(generate_settings, text.temperature),
     .help = "sampling temperature; 0: greedy"},
    {"top-p", EK_OPTION_REAL, .fallback = "0.95", .allowed = "[0,1]", .field = EK_FIELD_REAL,
     .offset = offsetof(generate_settings, text.top_p),
     .help = "nucleus sampling: sample from the smallest set of most likely tokens with this total "
             "probability"},
    {"top-k", EK_OPTION_INT, .fallback = "0", .unit = "tokens", .allowed = "[0,)",
     .field = EK_FIELD_INT64, .offset = offsetof(generate_settings, text.top_k),
     .help = "sample from this many most likely tokens; 0: all"},
    {"min-p", EK_OPTION_REAL, .fallback = "0", .allowed = "[0,1]", .field = EK_FIELD_REAL,
     .offset = offsetof(generate_settings, text.min_p),
     .help = "sample from tokens whose probability is at least this fraction of the most likely "
             "token's"},
    {"repetition-penalty", EK_OPTION_REAL, .fallback = "1", .allowed = "(0,)",
     .field = EK_FIELD_REAL, .offset = offsetof(generate_settings, text.repetition_penalty),
     .help = "penalty for tokens that occur in the prompt or the generated text; 1: none"},
    {"stop", EK_OPTION_LIST, .shown = "none", .unit = "TEXT", .field = EK_FIELD_LIST,
     .offset = offsetof(generate_settings, text.stop),
     .help = "stop before the first occurrence of any of these strings, which is not printed"},
    {"seed", EK_OPTION_UINT, .fallback = "0", .field = EK_FIELD_UINT64,
     .offset = offsetof(generate_settings, text.seed), .help = "seed of the sampler"},
    {"expert-lookahead", EK_OPTION_CHOICE, .fallback = "off", .allowed = "on|off",
     .field = EK_FIELD_TEXT, .offset = offsetof(generate_settings, opened.lm.expert_lookahead),
     .help = "predict the next layer's experts for each new token and read them while the disk "
             "is idle"},
    {"quiet", EK_OPTION_FLAG, .field = EK_FIELD_INT, .offset = offsetof(generate_settings, quiet),
     .help = "print only the text; no speed on stderr"},
};

enum { OWN = sizeof(own) / sizeof(own[0]) };

/* Reads a prompt from a file or stdin, without a trailing line break; to be freed by the caller. */
static ek_status read_prompt(FILE *f, const char *name, char **out)
{
    size_t cap = 0, n = 0, got;
    char *text = NULL;
    ek_status st = EK_OK;

    do {
        if (n + PROMPT_PIECE + 1 > cap) {
            char *grown = realloc(text, 2 * cap + PROMPT_PIECE + 1);

            EK_REQUIRE_OUT(grown != NULL, EK_ENOMEM, "no memory for a prompt of %zu bytes", n);
            text = grown;
            cap = 2 * cap + PROMPT_PIECE + 1;
        }
        got = fread(text + n, 1, PROMPT_PIECE, f);
        n += got;
        EK_REQUIRE_OUT(n <= PROMPT_BYTES_MAX, EK_EFORMAT, "%s: the prompt is larger than %d MiB",
                       name, PROMPT_BYTES_MAX >> 20);
    } while (got > 0);
    if (ferror(f)) {
        st = ek_fail_errno(errno, "read", name);
        goto out;
    }
    EK_REQUIRE_OUT(memchr(text, '\0', n) == NULL, EK_EFORMAT, "%s: the prompt contains a NUL byte",
                   name);
    n -= n > 0 && text[n - 1] == '\n';
    n -= n > 0 && text[n - 1] == '\r';
    text[n] = '\0';
    *out = text;
    text = NULL;
out:
    free(text);
    return st;
}

/* The prompt given by the options; to be freed by the caller. */
static ek_status find_prompt(const generate_settings *s, char **out)
{
    const char *text = s->prompt, *file = s->prompt_file;
    ek_status st;
    FILE *f;

    EK_REQUIRE(text == NULL || file == NULL, EK_EINVAL,
               "--prompt and --prompt-file are both given; give one");
    if (file != NULL) {
        f = fopen(file, "rb");
        if (f == NULL)
            return ek_fail_errno(errno, "open", file);
        st = read_prompt(f, file, out);
        fclose(f);
        return st;
    }
    if (text != NULL && strcmp(text, "-") != 0) {
        *out = strdup(text);
        EK_REQUIRE(*out != NULL, EK_ENOMEM, "no memory for the prompt");
        return EK_OK;
    }
    EK_REQUIRE(text != NULL || !isatty(STDIN_FILENO), EK_EINVAL,
               "no prompt: give --prompt TEXT, --prompt-file FILE, or text on stdin");
    return read_prompt(stdin, "stdin", out);
}

/* Files and pipes get the bytes unchanged; on a terminal, control characters are escaped, as a
 * model may generate escape sequences. */
static int put_text(void *context, const char *text, size_t bytes)
{
    const int *on_terminal = context;

    if (*on_terminal)
        ek_printable_write(stdout, text, bytes, "\n\t");
    else
        fwrite(text, 1, bytes, stdout);
    return fflush(stdout) != 0; /* stop if the reader has gone */
}

static void print_experts(const ek_lm_expert_stats *x)
{
    char hits[16], read[16], prompt[16], waited[32];

    fprintf(
        stderr,
        "experts: %s %% of %lld uses were in memory; %s read (%s of them for the prompt), waited "
        "%s",
        ek_number_text(hits, sizeof(hits), 100.0 * (double)x->hits / (double)x->uses),
        (long long)x->uses, ek_bytes_text(read, sizeof(read), (double)x->read_bytes),
        ek_bytes_text(prompt, sizeof(prompt), (double)x->prompt_bytes),
        ek_time_text(waited, sizeof(waited), x->read_s));
    if (x->wasted_bytes > 0)
        fprintf(stderr, "; %s read in vain",
                ek_bytes_text(read, sizeof(read), (double)x->wasted_bytes));
    if (x->predicted > 0)
        fprintf(stderr, "; %s %% of predictions right",
                ek_number_text(hits, sizeof(hits),
                               100.0 * (double)x->confirmed / (double)x->predicted));
    fputc('\n', stderr);
}

static ek_status generate(generate_settings *s, const char *prompt)
{
    double rate, prompt_rate;
    int on_terminal = isatty(STDOUT_FILENO);
    ek_lm_generate_times times = {0};
    ek_lm_expert_stats experts = {.size = sizeof(experts)};
    int64_t made = 0, shown = ek_clock_ns();
    ek_lm *lm = NULL;
    ek_status st;

    if (!s->quiet && isatty(STDERR_FILENO)) {
        s->opened.lm.progress = cli_show_progress;
        s->opened.lm.context = &shown;
    }
    st = ek_lm_open(s->opened.model, &s->opened.lm, &lm);
    fputs(ek_live_line_end(), stderr);
    EK_TRY(st);
    s->text.times = &times;
    put_text(&on_terminal, prompt, strlen(prompt));
    st = ek_lm_generate(lm, prompt, &s->text, put_text, &on_terminal, &made);
    fputc('\n', stdout);
    fflush(stdout); /* before the figures on stderr */
    if (st == EK_OK)
        st = ek_lm_get_expert_stats(lm, &experts);
    ek_lm_close(&lm);
    EK_TRY(st);
    rate = (double)made / times.tokens_s;
    prompt_rate = (double)times.prompt_tokens / times.prompt_s;
    if (!s->quiet && made > 1)
        fprintf(stderr, "%lld tokens, %.*f tokens/s; prompt: %lld token%s, %.*f tokens/s\n",
                (long long)made, ek_decimals(rate), rate, (long long)times.prompt_tokens,
                times.prompt_tokens == 1 ? "" : "s", ek_decimals(prompt_rate), prompt_rate);
    if (!s->quiet && experts.slots > 0 && experts.uses > 0)
        print_experts(&experts);
    return EK_OK;
}

/* All arguments are checked before the model is opened. */
static ek_status run_generate(const ek_options *o)
{
    generate_settings s = {.opened.lm = {.size = sizeof(s.opened.lm), .needs_tokenizer = 1},
                           .text = {.size = sizeof(s.text)}};
    char *prompt = NULL;
    ek_status st;

    EK_TRY(ek_options_store(o, &s));
    EK_TRY(ek_limits_check_threads(s.opened.lm.threads, 1));
    EK_TRY(find_prompt(&s, &prompt));
    s.opened.lm.positions = s.text.tokens;
    st = generate(&s, prompt);
    free(prompt);
    return st;
}

int cli_generate(int argc, char **argv)
{
    ek_option rows[CLI_MODEL_OPTIONS + OWN];
    ek_option_table table = {.command = "generate",
                             .summary = "Generate text from a prompt.",
                             .options = rows,
                             .n_options = cli_model_options(own, OWN, rows)};

    return ek_command_run(&table, argc, argv, run_generate);
}
