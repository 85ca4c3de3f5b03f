/* Generation at batch size 1, relative to the bytes that have to be read per token.
 *
 * Times what `evenkeel generate` does: sample a token from the logits, feed it.  Weights are
 * random, so the experts change from token to token.  The bytes per token are those that the
 * session needs at that position. */
#include "base/clock.h"
#include "bench/bench_priv.h"
#include "infer/sampler.h"
#include "infer/session.h"
#include "model/hf/init.h"

#include <stdlib.h>

typedef struct {
    ek_model *model;
    ek_session *session;
    ek_sampler *sampler;
    int32_t *prompt;
    bench_samples tokens, bytes; /* per second */
    double active_bytes;         /* per token, mean */
} generation;

static ek_status generation_create(const bench *b, generation *g)
{
    ek_session_config sc = {.capacity = b->cfg->prompt + b->cfg->tokens};
    ek_sampler_config how = {.temperature = 0.8, .top_p = 0.95};

    EK_TRY(ek_model_create(&b->spec, b->k, &(ek_model_config){.trained = 0}, &g->model));
    EK_TRY(ek_model_init(g->model, 0));
    EK_TRY(ek_model_pack(g->model));
    EK_TRY(ek_session_create(g->model, &sc, &g->session));
    EK_TRY(ek_sampler_create(&how, b->spec.vocab, &g->sampler));
    g->prompt = calloc((size_t)b->cfg->prompt, sizeof(*g->prompt));
    EK_REQUIRE(g->prompt != NULL, EK_ENOMEM, "no memory for a prompt of %lld tokens",
               (long long)b->cfg->prompt);
    bench_fill_tokens(b->spec.vocab, 0, b->cfg->prompt, g->prompt);
    for (int64_t i = 0; i < b->cfg->tokens; i++)
        g->active_bytes +=
            ek_session_active_bytes(g->session, b->cfg->prompt + i) / (double)b->cfg->tokens;
    return EK_OK;
}

static void generation_destroy(generation *g)
{
    ek_sampler_destroy(&g->sampler);
    ek_session_destroy(&g->session);
    ek_model_destroy(&g->model);
    free(g->prompt);
}

/* Processes the prompt, then samples and feeds b->cfg->tokens tokens. */
static ek_status generate(const bench *b, generation *g, double *seconds)
{
    int64_t start;

    ek_session_reset(g->session);
    EK_TRY(ek_session_feed(g->session, g->prompt, b->cfg->prompt));
    start = ek_clock_ns();
    for (int64_t i = 0; i < b->cfg->tokens; i++) {
        int32_t id;

        EK_TRY(ek_sampler_next(g->sampler, b->k->real, ek_session_logits(g->session),
                               ek_session_position(g->session), &id));
        EK_TRY(ek_session_feed(g->session, &id, 1));
    }
    *seconds = (double)(ek_clock_ns() - start) * 1e-9;
    return EK_OK;
}

static ek_status run(bench *b, generation *g)
{
    double seconds;

    EK_TRY(generate(b, g, &seconds)); /* warm-up */
    for (int64_t i = 0; i < b->cfg->repeats; i++) {
        EK_TRY(bench_measure_ceilings(b));
        EK_TRY(generate(b, g, &seconds));
        bench_add(&g->tokens, (double)b->cfg->tokens / seconds);
        bench_add(&g->bytes, g->active_bytes * (double)b->cfg->tokens / seconds);
    }
    return bench_measure_ceilings(b);
}

static void put_ratios(bench *b, double rate)
{
    double ratio = rate / bench_copy_ceiling(b);
    double of_read = rate / bench_stat_of(&b->ceilings.read).median;

    bench_say(b, "  %8.3f of copy bandwidth, %.3f of memory read alone\n", ratio, of_read);
    bench_put(b, "ratio", json_real(ratio));
    bench_put(b, "ratio_read", json_real(of_read));
}

static void put(bench *b, const generation *g)
{
    bench_stat t = bench_stat_of(&g->tokens), y = bench_stat_of(&g->bytes);
    char text[BENCH_RANGE];

    bench_say(b, "%lld times %lld tokens after a prompt of %lld, %s active a token\n",
              (long long)b->cfg->repeats, (long long)b->cfg->tokens, (long long)b->cfg->prompt,
              ek_cost_quantity(text, g->active_bytes, "B"));
    bench_say(b, "median (min .. max)\n");
    bench_say(b, "  %s\n", bench_tokens(text, t));
    bench_say(b, "  %s\n", bench_range(text, y, "B/s", 0));
    if (b->on_cpu)
        put_ratios(b, y.median);
    bench_put(b, "repeats", json_integer(b->cfg->repeats));
    bench_put(b, "prompt", json_integer(b->cfg->prompt));
    bench_put(b, "tokens", json_integer(b->cfg->tokens));
    bench_put(b, "active_mb_per_token", json_real(g->active_bytes / 1e6));
    bench_put(b, "tokens_per_s", bench_stat_json(&g->tokens, 1));
    bench_put(b, "gbs", bench_stat_json(&g->bytes, 1e-9));
}

ek_status bench_generate(bench *b)
{
    generation *g = calloc(1, sizeof(*g));
    ek_status st = EK_OK;

    EK_REQUIRE(g != NULL, EK_ENOMEM, "no memory for a benchmark");
    EK_TRY_OUT(generation_create(b, g));
    EK_TRY_OUT(run(b, g));
    put(b, g);
out:
    generation_destroy(g);
    free(g);
    return st;
}
