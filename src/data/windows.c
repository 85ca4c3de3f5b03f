/* Windows of training and of evaluation. */
#include "data/windows.h"

#include "base/random.h"

ek_status ek_windows_init(ek_windows *s, const ek_tokens *tokens, int64_t batch, int64_t seq,
                          ek_data_order order, uint64_t seed)
{
    int64_t n = ek_tokens_get_info(tokens).n_tokens;

    EK_REQUIRE(batch > 0 && seq > 0, EK_EINVAL, "batch %lld and seq %lld must be positive",
               (long long)batch, (long long)seq);
    EK_REQUIRE((n - 1) / seq > 0, EK_EFORMAT,
               "the data has %lld tokens, less than the %lld of one sequence and its last target; "
               "give more --data or a --seq of at most %lld",
               (long long)n, (long long)seq + 1, (long long)(n > 1 ? n - 1 : 1));
    *s = (ek_windows){.tokens = tokens,
                      .batch = batch,
                      .seq = seq,
                      .order = order,
                      .seed = seed,
                      .windows = (n - 1) / seq};
    return EK_OK;
}

int64_t ek_windows_at(const ek_windows *s, int64_t step, int64_t row)
{
    uint64_t n = (uint64_t)s->windows;
    uint64_t i = (uint64_t)step * (uint64_t)s->batch + (uint64_t)row, epoch = i / n;

    if (s->order == EK_ORDER_SEQUENTIAL)
        return (int64_t)(i % n);
    return (int64_t)ek_random_permute(s->seed, ek_random_stream("epoch") + epoch, n, i % n);
}

/* n inputs from `at` on and the targets one later. */
static void read_window(const ek_tokens *t, int64_t at, int64_t n, int32_t *inputs,
                        int32_t *targets)
{
    ek_tokens_read(t, at, n, inputs);
    ek_tokens_read(t, at + 1, n, targets);
}

void ek_windows_row(const ek_windows *s, int64_t step, int64_t row, int32_t *inputs,
                    int32_t *targets)
{
    read_window(s->tokens, ek_windows_at(s, step, row) * s->seq, s->seq, inputs, targets);
}

int64_t ek_eval_windows(const ek_tokens *tokens, int64_t seq)
{
    int64_t n = ek_tokens_get_info(tokens).n_tokens;

    return n < 2 ? 0 : (n - 2) / seq + 1;
}

int64_t ek_eval_window(const ek_tokens *tokens, int64_t seq, int64_t window, int32_t *inputs,
                       int32_t *targets)
{
    int64_t left = ek_tokens_get_info(tokens).n_tokens - 1 - window * seq;
    int64_t n = left < seq ? left : seq;

    read_window(tokens, window * seq, n, inputs, targets);
    return n;
}
