/* evenkeel generate: continues a prompt; text is printed as it is generated. */
#include "evenkeel/lm.h"

#include "base/file.h"
#include "cli/cli.h"
#include "supervisor/limits.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PROMPT_PIECE = 1 << 16, PROMPT_BYTES_MAX = 64 << 20 };

static const ek_option options[] = {
    {"model", EK_OPTION_TEXT, NULL, NULL, "DIR", NULL, 1,
     "Hugging Face folder, checkpoint, or folder of a run"},
    {"prompt", EK_OPTION_TEXT, NULL, "stdin, if that is not a terminal", "TEXT", NULL, 0,
     "text to continue; - reads it from stdin"},
    {"prompt-file", EK_OPTION_TEXT, NULL, NULL, "FILE", NULL, 0,
     "file with the text to continue; a trailing line break is removed"},
    {"tokens", EK_OPTION_INT, "100", NULL, "tokens", "[1,1000000]", 0,
     "maximum number of tokens to generate; generation also stops at the end-of-text token"},
    {"temperature", EK_OPTION_REAL, "0.8", NULL, NULL, "[0,)", 0,
     "sampling temperature; 0: greedy"},
    {"top-p", EK_OPTION_REAL, "0.95", NULL, NULL, "[0,1]", 0,
     "nucleus sampling: sample from the smallest set of most likely tokens with this total "
     "probability"},
    {"top-k", EK_OPTION_INT, "0", NULL, "tokens", "[0,)", 0,
     "sample from this many most likely tokens; 0: all"},
    {"min-p", EK_OPTION_REAL, "0", NULL, NULL, "[0,1]", 0,
     "sample from tokens whose probability is at least this fraction of the most likely token's"},
    {"repetition-penalty", EK_OPTION_REAL, "1", NULL, NULL, "(0,)", 0,
     "penalty for tokens that occur in the prompt or the generated text; 1: none"},
    {"stop", EK_OPTION_LIST, NULL, "none", "TEXT", NULL, 0,
     "stop before the first occurrence of any of these strings, which is not printed"},
    {"seed", EK_OPTION_UINT, "0", NULL, NULL, NULL, 0, "seed of the sampler"},
    {"tokenizer", EK_OPTION_TEXT, NULL, "the model's", "FILE", NULL, 0,
     "\"bytes\", or a Hugging Face tokenizer.json (BPE)"},
    {"dtype", EK_OPTION_CHOICE, NULL, "bf16 with AVX2 or more, else fp32", NULL, "bf16|fp32|fp64",
     0, "type of matrix products"},
    {"device", EK_OPTION_CHOICE, "cpu", NULL, NULL, "cpu|cuda", 0, "compute device"},
    {"threads", EK_OPTION_INT, NULL, "all cores", "threads", "[1,1024]", 0, "compute threads"},
    {"quiet", EK_OPTION_FLAG, NULL, NULL, NULL, NULL, 0, "print only the text; no speed on stderr"},
};

static const ek_option_table table = {.command = "generate",
                                      .summary = "Generate text from a prompt.",
                                      .options = options,
                                      .n_options = sizeof(options) / sizeof(options[0])};

/* Reads a prompt from a file or stdin, without a trailing line break; to be freed by the caller. */
static ek_status read_prompt(FILE *f, const char *name, char **out)
{
    size_t room = 0, n = 0, got;
    char *text = NULL;
    ek_status st = EK_OK;

    do {
        if (n + PROMPT_PIECE + 1 > room) {
            char *grown = realloc(text, 2 * room + PROMPT_PIECE + 1);

            EK_REQUIRE_OUT(grown != NULL, EK_ENOMEM, "no memory for a prompt of %zu bytes", n);
            text = grown;
            room = 2 * room + PROMPT_PIECE + 1;
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
static ek_status find_prompt(const ek_options *o, char **out)
{
    const char *text = ek_options_text(o, "prompt"), *file = ek_options_text(o, "prompt-file");
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

/* List of the stop strings (borrowed); the list is to be freed by the caller. */
static ek_status list_stops(const ek_options *o, ek_lm_generate_config *gc, const char ***list)
{
    size_t n = ek_options_count(o, "stop");

    *list = calloc(n + 1, sizeof(**list));
    EK_REQUIRE(*list != NULL, EK_ENOMEM, "no memory for %zu stop strings", n);
    for (size_t i = 0; i < n; i++)
        (*list)[i] = ek_options_list(o, "stop", i);
    gc->stop = *list;
    gc->n_stop = (int64_t)n;
    return EK_OK;
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

static ek_status run(const ek_options *o, const char *prompt, ek_lm_generate_config *gc)
{
    ek_lm_config lc = {sizeof(lc),
                       ek_options_text(o, "tokenizer"),
                       ek_options_text(o, "dtype"),
                       (int)ek_options_int(o, "threads"),
                       ek_options_text(o, "device"),
                       1};
    int on_terminal = isatty(STDOUT_FILENO);
    ek_lm_generate_times times = {0};
    int64_t made = 0;
    ek_lm *lm = NULL;
    ek_status st;

    EK_TRY(ek_lm_open(ek_options_text(o, "model"), &lc, &lm));
    gc->times = &times;
    put_text(&on_terminal, prompt, strlen(prompt));
    st = ek_lm_generate(lm, prompt, gc, put_text, &on_terminal, &made);
    fputc('\n', stdout);
    ek_lm_close(&lm);
    EK_TRY(st);
    if (!ek_options_flag(o, "quiet") && made > 1)
        fprintf(stderr, "%lld tokens, %.1f tokens/s; prompt: %lld tokens, %.1f tokens/s\n",
                (long long)made, (double)made / times.tokens_s, (long long)times.prompt_tokens,
                (double)times.prompt_tokens / times.prompt_s);
    return EK_OK;
}

/* All arguments are checked before the model is opened. */
static ek_status prepare_and_run(const ek_options *o)
{
    ek_lm_generate_config gc = {.size = sizeof(gc),
                                .tokens = ek_options_int(o, "tokens"),
                                .temperature = ek_options_real(o, "temperature"),
                                .top_p = ek_options_real(o, "top-p"),
                                .top_k = ek_options_int(o, "top-k"),
                                .seed = ek_options_uint(o, "seed"),
                                .min_p = ek_options_real(o, "min-p"),
                                .repetition_penalty = ek_options_real(o, "repetition-penalty")};
    const char **stop = NULL;
    char *prompt = NULL;
    ek_status st = EK_OK;

    EK_TRY_OUT(ek_limits_check_threads(ek_options_int(o, "threads"), 1));
    EK_TRY_OUT(list_stops(o, &gc, &stop));
    EK_TRY_OUT(find_prompt(o, &prompt));
    EK_TRY_OUT(run(o, prompt, &gc));
out:
    free(prompt);
    free(stop);
    return st;
}

int cli_generate(int argc, char **argv)
{
    ek_options *o = NULL;
    int status = ek_command_parse(&table, argc, argv, &o);
    ek_status st;

    if (status >= 0)
        return status;
    st = prepare_and_run(o);
    ek_options_destroy(o);
    return st < 0 ? ek_command_fail("generate", st) : EK_EXIT_DONE;
}
