/* Document boundaries from tokens. */
#include "data/documents.h"

#include "base/log.h"

ek_status ek_documents_end(const ek_tokenizer *tokenizer, int64_t eos, int32_t *end)
{
    int64_t id = tokenizer != NULL ? ek_tokenizer_end(tokenizer) : -1;

    if (id < 0)
        id = eos;
    EK_REQUIRE(id >= 0, EK_EFORMAT,
               "--document-mask needs a token that ends documents, and neither the tokenizer nor "
               "the model's config (eos_token_id) names one; give a --tokenizer that has one, or "
               "add eos_token_id to config.json");
    *end = (int32_t)id;
    return EK_OK;
}

/* Whether the first EK_DOCUMENTS_SEARCHED tokens of a stream contain a token. */
static ek_status find_token(const ek_tokens *t, int32_t id, int *found)
{
    enum { PART = 4096 };
    int32_t part[PART];
    int64_t n = ek_tokens_get_info(t).n_tokens;

    n = n < EK_DOCUMENTS_SEARCHED ? n : EK_DOCUMENTS_SEARCHED;
    *found = 0;
    for (int64_t at = 0; at < n && !*found; at += PART) {
        int64_t here = n - at < PART ? n - at : PART;

        EK_TRY(ek_tokens_read(t, at, here, part));
        for (int64_t i = 0; i < here; i++)
            *found |= part[i] == id;
    }
    return EK_OK;
}

ek_status ek_documents_check(ek_tokens *const *streams, int64_t n, int32_t end)
{
    int64_t without = 0;

    for (int64_t i = 0; i < n; i++) {
        int found;

        EK_TRY(find_token(streams[i], end, &found));
        without += !found;
    }
    if (without > 0)
        ek_log("data", EK_LOG_WARN,
               "--document-mask: %lld of %lld data sources hold no end token (id %d) among their "
               "first %d tokens, so sequences there are one document each",
               (long long)without, (long long)n, (int)end, EK_DOCUMENTS_SEARCHED);
    return EK_OK;
}

void ek_documents_mark(int64_t n, int32_t end, const int32_t *inputs, int32_t *targets,
                       int32_t *starts)
{
    int32_t first = 0;

    for (int64_t i = 0; i < n; i++) {
        starts[i] = first;
        if (inputs[i] != end)
            continue;
        targets[i] = -1;
        first = (int32_t)(i + 1);
    }
}
