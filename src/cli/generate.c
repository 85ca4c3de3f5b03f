/* evenkeel generate: continue a text, printed as it comes. */
#include "evenkeel/lm.h"

#include "base/clock.h"
#include "cli/cli.h"

#include <stdio.h>

static const ek_option options[] = {
    {"model", EK_OPTION_TEXT, NULL, NULL, "DIR", NULL, 1,
     "a Hugging Face folder, a checkpoint, or a run's folder"},
    {"prompt", EK_OPTION_TEXT, NULL, NULL, "TEXT", NULL, 1, "the text to continue"},
    {"tokens", EK_OPTION_INT, "100", NULL, "tokens", "[1,1000000]", 0,
     "how many to add, at most; the end token stops before"},
    {"temperature", EK_OPTION_REAL, "0.8", NULL, NULL, "[0,)", 0,
     "0 takes the likeliest token each time"},
    {"top-p", EK_OPTION_REAL, "0.95", NULL, NULL, "[0,1]", 0,
     "draw from the likeliest tokens that hold this share"},
    {"top-k", EK_OPTION_INT, "0", NULL, "tokens", "[0,)", 0,
     "draw from this many of the likeliest; 0: all"},
    {"seed", EK_OPTION_INT, "0", NULL, NULL, "[0,)", 0, "of the draws"},
    {"tokenizer", EK_OPTION_TEXT, NULL, "the model's, or bytes", "FILE", NULL, 0,
     "bytes, or a Hugging Face tokenizer.json"},
    {"dtype", EK_OPTION_CHOICE, NULL, "bf16 where the device is fast at it, else fp32", NULL,
     "bf16|fp32|fp64", 0, "of matrix products"},
    {"device", EK_OPTION_CHOICE, "cpu", NULL, NULL, "cpu|cuda", 0, "where to compute"},
    {"threads", EK_OPTION_INT, NULL, "all cores", "threads", "[1,1024]", 0, "compute threads"},
    {"quiet", EK_OPTION_FLAG, NULL, NULL, NULL, NULL, 0, "the text alone, no speed on stderr"},
};

static const ek_option_table table = {
    "generate", "Continue a text.", options, sizeof(options) / sizeof(options[0]), NULL, 0};

static int put_text(void *context, const char *text, size_t bytes)
{
    (void)context;
    fwrite(text, 1, bytes, stdout);
    return fflush(stdout) != 0; /* nobody reads any more */
}

static ek_status run(const ek_options *o)
{
    const char *prompt = ek_options_text(o, "prompt");
    ek_lm_config lc = {sizeof(lc), ek_options_text(o, "tokenizer"), ek_options_text(o, "dtype"),
                       (int)ek_options_int(o, "threads"), ek_options_text(o, "device")};
    ek_lm_generate_config gc = {.size = sizeof(gc),
                                .tokens = ek_options_int(o, "tokens"),
                                .temperature = ek_options_real(o, "temperature"),
                                .top_p = ek_options_real(o, "top-p"),
                                .top_k = ek_options_int(o, "top-k"),
                                .seed = (uint64_t)ek_options_int(o, "seed")};
    int64_t made = 0, start;
    ek_lm *lm = NULL;
    ek_status st;

    EK_TRY(ek_lm_open(ek_options_text(o, "model"), &lc, &lm));
    start = ek_clock_ns();
    fputs(prompt, stdout);
    fflush(stdout);
    st = ek_lm_generate(lm, prompt, &gc, put_text, NULL, &made);
    fputc('\n', stdout);
    ek_lm_close(&lm);
    EK_TRY(st);
    if (!ek_options_flag(o, "quiet") && made > 1)
        fprintf(stderr, "%lld tokens, %.1f tokens/s\n", (long long)made,
                (double)made / ((double)(ek_clock_ns() - start) / 1e9));
    return EK_OK;
}

int cli_generate(int argc, char **argv)
{
    ek_options *o = NULL;
    int status = cli_parse(&table, argc, argv, &o);
    ek_status st;

    if (status >= 0)
        return status;
    st = run(o);
    ek_options_destroy(o);
    return st < 0 ? cli_fail("generate", st) : CLI_DONE;
}
