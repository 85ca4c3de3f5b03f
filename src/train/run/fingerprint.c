/* Fingerprints of a run's inputs: of their contents, independent of paths, ranks, batch, order and
 * seed. */
#include "base/random.h"
#include "train/run/state.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum {
    SAMPLES = 256, /* samples of a stream, evenly spaced */
    LENGTH = 256   /* tokens of a sample */
};

static uint64_t add_bytes(uint64_t sum, const void *data, size_t bytes)
{
    const char *at = data;

    for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
        size_t n = bytes - i < sizeof(uint64_t) ? bytes - i : sizeof(uint64_t);
        uint64_t word = 0;

        memcpy(&word, at + i, n);
        sum = ek_random_bits(sum, i, word);
    }
    return ek_random_bits(sum, bytes, 0);
}

/* All of a short stream. */
static ek_status add_stream(const ek_tokens *tokens, uint64_t *sum)
{
    int64_t n = ek_tokens_get_info(tokens).n_tokens, last = n - LENGTH;
    int all = n <= (int64_t)SAMPLES * LENGTH;
    int64_t samples = all ? (n + LENGTH - 1) / LENGTH : SAMPLES;
    int32_t ids[LENGTH];

    *sum = add_bytes(*sum, &n, sizeof(n));
    for (int64_t i = 0; i < samples; i++) {
        int64_t at = all ? i * LENGTH : (int64_t)((double)last * (double)i / (SAMPLES - 1));
        int64_t length = n - at < LENGTH ? n - at : LENGTH;

        EK_TRY(ek_tokens_read(tokens, at, length, ids));
        *sum = add_bytes(*sum, ids, (size_t)length * sizeof(*ids));
    }
    return EK_OK;
}

ek_status ek_run_data_fingerprint(const ek_run *r, uint64_t *out)
{
    uint64_t sum = 0;

    for (int64_t i = 0; i < r->data.sources.n; i++)
        EK_TRY(add_stream(r->data.sources.tokens[i], &sum));
    *out = sum;
    return EK_OK;
}

ek_status ek_run_held_out_fingerprint(const ek_run *r, uint64_t *out)
{
    *out = 0;
    return r->eval.held_out != NULL ? add_stream(r->eval.held_out, out) : EK_OK;
}

uint64_t ek_run_replay_fingerprint(const ek_run *r)
{
    const ek_trace *t = &r->options.replay;
    const int64_t sizes[] = {t->iterations, t->layers, t->sources};
    uint64_t sum = add_bytes(0, sizes, sizeof(sizes));

    for (int64_t i = 0; t->data != NULL && i < ek_trace_numbers(t); i++) {
        int64_t x = (int64_t)ek_trace_number(t, i);

        sum = add_bytes(sum, &x, sizeof(x));
    }
    return sum;
}

static ek_status add_setting(ek_run *r, const char *name, uint64_t sum)
{
    char hex[20];

    snprintf(hex, sizeof(hex), "%016" PRIx64, sum);
    EK_REQUIRE(json_object_set_new(r->options.settings, name, json_string(hex)) == 0, EK_ENOMEM,
               "no memory for the settings");
    return EK_OK;
}

/* That of tokenizer.json; "bytes" has none. */
static ek_status add_tokenizer(ek_run *r)
{
    const char *name, *text;
    size_t bytes;

    if (r->data.tokenizer == NULL)
        return EK_OK;
    EK_TRY(ek_model_source_tokenizer(&r->source, r->cfg->tokenizer, &name));
    if (strcmp(name, "bytes") == 0)
        return EK_OK;
    text = ek_tokenizer_json(r->data.tokenizer, &bytes);
    return add_setting(r, EK_TOKENIZER_FINGERPRINT, add_bytes(0, text, bytes));
}

ek_status ek_run_add_fingerprints(ek_run *r)
{
    uint64_t data = 0;

    EK_TRY(add_tokenizer(r));
    EK_TRY(ek_run_data_fingerprint(r, &data));
    EK_TRY(add_setting(r, EK_DATA_FINGERPRINT, data));
    if (r->options.replay.data != NULL)
        EK_TRY(add_setting(r, EK_REPLAY_FINGERPRINT, ek_run_replay_fingerprint(r)));
    return EK_OK;
}
