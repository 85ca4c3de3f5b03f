/* evenkeel eval: loss, perplexity and expert load. */
#include "evenkeel/lm.h"

#include "base/clock.h"
#include "base/live_line.h"
#include "cli/cli.h"
#include "cli/model_options.h"
#include "data/tokens.h"
#include "supervisor/limits.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { DATA_MAX = 4096 };

typedef struct {
    cli_model_settings opened; /* first, as cli/model_options.h says */
    ek_lm_eval_config eval;
    int json;
} eval_settings;

static const ek_option own[] = {
    {"data", EK_OPTION_LIST, .unit = "PATH", .required = 1, .field = EK_FIELD_LIST,
     .offset = offsetof(eval_settings, eval.data),
     .help = "text, .jsonl and .ndjson files (also compressed: .gz, .zst), folders of them "
             "(searched recursively), or .bin token files"},
    {"text-field", EK_OPTION_TEXT, .fallback = "text", .unit = "KEY", .field = EK_FIELD_TEXT,
     .offset = offsetof(eval_settings, eval.text_field),
     .help = "JSON key that holds the text of a line in .jsonl and .ndjson files"},
    {"document-mask", EK_OPTION_FLAG, .field = EK_FIELD_INT,
     .offset = offsetof(eval_settings, eval.document_mask),
     .help = "restrict attention to the document of each token, as train --document-mask does"},
    {"token-bytes", EK_OPTION_CHOICE, .fallback = "2", .unit = "bytes", .allowed = "2|4",
     .field = EK_FIELD_INT, .offset = offsetof(eval_settings, eval.token_bytes),
     .help = "token size in .bin files (little endian)"},
    {"seq", EK_OPTION_INT, .shown = "256, or the model's maximum if that is less", .unit = "tokens",
     .allowed = "[1,10000000]", .field = EK_FIELD_INT64,
     .offset = offsetof(eval_settings, eval.seq), .help = "window length"},
    {"json", EK_OPTION_FLAG, .field = EK_FIELD_INT, .offset = offsetof(eval_settings, json),
     .help = "print JSON on stdout"},
};

enum { OWN = sizeof(own) / sizeof(own[0]) };

static void print_json(const ek_lm_eval_result *e)
{
    char perplexity[32] = "null"; /* JSON has no infinity */

    if (isfinite(exp(e->loss)))
        snprintf(perplexity, sizeof(perplexity), "%.17g", exp(e->loss));
    printf("{\"loss\": %.17g, \"perplexity\": %s, \"tokens\": %" PRId64 ", \"expert_load\": [",
           e->loss, perplexity, e->tokens);
    for (int64_t l = 0; l < e->layers; l++) {
        printf("%s[", l > 0 ? ", " : "");
        for (int64_t x = 0; x < e->experts; x++)
            printf("%s%" PRId64, x > 0 ? ", " : "", e->load[l * e->experts + x]);
        printf("]");
    }
    printf("]}\n");
}

static void print_text(const ek_lm_eval_result *e)
{
    printf("loss %.6f nats a token, perplexity %.7g, %" PRId64 " tokens\n", e->loss, exp(e->loss),
           e->tokens);
    for (int64_t l = 0; l < e->layers; l++) {
        const int64_t *load = e->load + l * e->experts;
        int64_t total = 0, most = 0;

        for (int64_t x = 0; x < e->experts; x++) {
            total += load[x];
            most = load[x] > most ? load[x] : most;
        }
        if (total == 0)
            continue;
        printf("layer %2" PRId64 "  busiest expert %.2f of the mean, shares:", l,
               (double)(most * e->experts) / (double)total);
        for (int64_t x = 0; x < e->experts; x++)
            printf(" %.1f%%", 100.0 * (double)load[x] / (double)total);
        printf("\n");
    }
}

static ek_status run_eval(const ek_options *o)
{
    int64_t shown = ek_clock_ns();
    /* tokens are kept in an unnamed file, which disappears when interrupted */
    const char *temporary = getenv("TMPDIR");
    eval_settings s = {
        .opened.lm = {.size = sizeof(s.opened.lm)},
        .eval = {.size = sizeof(s.eval),
                 .scratch_dir = temporary != NULL && temporary[0] == '/' ? temporary : "/tmp",
                 .context = &shown,
                 .progress = isatty(STDERR_FILENO) ? cli_show_progress : NULL}};
    ek_lm_eval_result e = {0};
    ek_lm *lm = NULL;
    ek_status st;

    EK_TRY(ek_options_store(o, &s));
    EK_REQUIRE(s.eval.n_data <= DATA_MAX, EK_EINVAL,
               "more than %d paths in --data; give their folder", DATA_MAX);
    s.opened.lm.progress = s.eval.progress;
    s.opened.lm.context = s.eval.context;
    s.opened.lm.needs_tokenizer = !ek_tokens_is_file(s.eval.data[0]);
    EK_TRY(ek_limits_check_threads(s.opened.lm.threads, 1));
    EK_TRY(ek_lm_open(s.opened.model, &s.opened.lm, &lm));
    st = ek_lm_eval(lm, &s.eval, &e);
    fputs(ek_live_line_end(), stderr);
    ek_lm_close(&lm);
    EK_TRY(st);
    if (s.json)
        print_json(&e);
    else
        print_text(&e);
    free(e.load);
    return EK_OK;
}

int cli_eval(int argc, char **argv)
{
    ek_option rows[CLI_MODEL_OPTIONS + OWN];
    ek_option_table table = {.command = "eval",
                             .summary =
                                 "Compute loss, perplexity and expert load of a model on data.",
                             .options = rows,
                             .n_options = cli_model_options(own, OWN, rows)};

    return ek_command_run(&table, argc, argv, run_eval);
}
