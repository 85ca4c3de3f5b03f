/* evenkeel eval: mean loss, perplexity, and how the experts were used. */
#include "cli/loaded.h"
#include "data/tokens.h"
#include "train/evaluate.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH_TOKENS = 4096, DATA_MAX = 4096 };

static const ek_option options[] = {
    {"model", EK_OPTION_TEXT, NULL, NULL, "DIR", NULL, 1,
     "a Hugging Face folder, a checkpoint, or a run's folder"},
    {"data", EK_OPTION_LIST, NULL, NULL, "PATH...", NULL, 1,
     "text files and folders (read recursively), or .bin token files"},
    {"token-bytes", EK_OPTION_CHOICE, "2", NULL, "bytes", "2|4", 0,
     "size of a token in .bin files (little endian)"},
    {"tokenizer", EK_OPTION_TEXT, NULL, "the model's, or bytes", "FILE", NULL, 0,
     "bytes, or a Hugging Face tokenizer.json"},
    {"seq", EK_OPTION_INT, "256", NULL, "tokens", "[1,10000000]", 0, "tokens a window"},
    {"dtype", EK_OPTION_CHOICE, NULL, "bf16 where the CPU is fast at it, else fp32", NULL,
     "bf16|fp32|fp64", 0, "of matrix products"},
    {"threads", EK_OPTION_INT, NULL, "all cores", "threads", "[1,1024]", 0, "compute threads"},
    {"json", EK_OPTION_FLAG, NULL, NULL, NULL, NULL, 0, "print JSON"},
};

static const ek_option_table table = {"eval",  "Loss and perplexity of a model over data.",
                                      options, sizeof(options) / sizeof(options[0]),
                                      NULL,    0};

static ek_status open_tokens(const ek_options *o, cli_loaded *l, ek_tokens **out)
{
    const char *paths[DATA_MAX];
    const char *cache = getenv("TMPDIR");
    ek_tokens_config tc = {.paths = paths,
                           .n_paths = (int64_t)ek_options_count(o, "data"),
                           .token_bytes = ek_options_choice(o, "token-bytes") == 1 ? 4 : 2,
                           .vocab = l->model->spec.vocab,
                           .cache_dir = cache != NULL ? cache : "/tmp"};

    EK_REQUIRE(tc.n_paths <= DATA_MAX, EK_EINVAL, "more than %d paths in --data; give their folder",
               DATA_MAX);
    for (size_t i = 0; i < (size_t)tc.n_paths; i++)
        paths[i] = ek_options_list(o, "data", i);
    if (l->tokenizer == NULL)
        EK_TRY(ek_tokenizer_open("bytes", &l->tokenizer));
    tc.tokenizer = l->tokenizer;
    return ek_tokens_open(&tc, out);
}

static void print_json(const ek_evaluation *e, const ek_model_spec *s)
{
    printf("{\"loss\": %.17g, \"perplexity\": %.17g, \"tokens\": %" PRId64 ", \"expert_load\": [",
           e->loss, exp(e->loss), e->tokens);
    for (int64_t l = 0; l < s->layers; l++) {
        printf("%s[", l > 0 ? ", " : "");
        for (int64_t x = 0; x < s->experts; x++)
            printf("%s%" PRId64, x > 0 ? ", " : "", e->load[l * s->experts + x]);
        printf("]");
    }
    printf("]}\n");
}

static void print_text(const ek_evaluation *e, const ek_model_spec *s)
{
    printf("loss %.6f nats a token, perplexity %.4f, %" PRId64 " tokens\n", e->loss, exp(e->loss),
           e->tokens);
    for (int64_t l = 0; l < s->layers; l++) {
        const int64_t *load = e->load + l * s->experts;
        int64_t total = 0, most = 0;

        for (int64_t x = 0; x < s->experts; x++) {
            total += load[x];
            most = load[x] > most ? load[x] : most;
        }
        if (total == 0)
            continue;
        printf("layer %2" PRId64 "  busiest expert %.2f of the mean, shares:", l,
               (double)(most * s->experts) / (double)total);
        for (int64_t x = 0; x < s->experts; x++)
            printf(" %.1f%%", 100.0 * (double)load[x] / (double)total);
        printf("\n");
    }
}

static ek_status run(const ek_options *o)
{
    ek_evaluate_config cfg = {.seq = ek_options_int(o, "seq")};
    ek_evaluation e = {0};
    ek_tokens *tokens = NULL;
    cli_loaded l;
    ek_status st = EK_OK;

    memset(&l, 0, sizeof(l));
    EK_TRY_OUT(cli_load(ek_options_text(o, "model"), ek_options_text(o, "tokenizer"), cli_mode(o),
                        cli_threads(o), &l));
    EK_TRY_OUT(open_tokens(o, &l, &tokens));
    EK_REQUIRE_OUT(cfg.seq <= l.model->spec.max_positions, EK_EINVAL,
                   "--seq %lld is over the model's %lld positions", (long long)cfg.seq,
                   (long long)l.model->spec.max_positions);
    EK_REQUIRE_OUT(l.model->spec.sliding_window == 0 || cfg.seq <= l.model->spec.sliding_window,
                   EK_EUNSUPPORTED, "--seq %lld is over the config's sliding_window %lld",
                   (long long)cfg.seq, (long long)l.model->spec.sliding_window);
    cfg.batch = BATCH_TOKENS / cfg.seq > 0 ? BATCH_TOKENS / cfg.seq : 1;
    EK_TRY_OUT(ek_evaluate(l.model, tokens, &cfg, &e));
    if (ek_options_flag(o, "json"))
        print_json(&e, &l.model->spec);
    else
        print_text(&e, &l.model->spec);
out:
    free(e.load);
    ek_tokens_close(&tokens);
    cli_unload(&l);
    return st;
}

int cli_eval(int argc, char **argv)
{
    ek_options *o = NULL;
    int status = cli_parse(&table, argc, argv, &o);
    ek_status st;

    if (status >= 0)
        return status;
    st = run(o);
    ek_options_destroy(o);
    return st < 0 ? cli_fail("eval", st) : CLI_DONE;
}
