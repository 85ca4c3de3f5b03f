/* Windows of training and of evaluation. */
#include "data/windows.h"

#include "base/random.h"

static ek_status add_source(ek_windows *s, const ek_tokens *tokens, uint64_t share)
{
    int64_t n = ek_tokens_get_info(tokens).n_tokens, windows = (n - 1) / s->seq;

    EK_REQUIRE(windows > 0, EK_EFORMAT,
               "the data has %lld tokens, less than the %lld of one sequence and its last target; "
               "give more --data or a --seq of at most %lld",
               (long long)n, (long long)s->seq + 1, (long long)(n > 1 ? n - 1 : 1));
    s->sources[s->n_sources++] = (ek_window_source){tokens, windows, share};
    return EK_OK;
}

ek_status ek_windows_init_sources(ek_windows *s, const ek_sources *sources, int64_t batch,
                                  int64_t seq, ek_data_order order, uint64_t seed)
{
    EK_REQUIRE(batch > 0 && seq > 0, EK_EINVAL, "batch %lld and seq %lld must be positive",
               (long long)batch, (long long)seq);
    *s = (ek_windows){.batch = batch, .seq = seq, .order = order, .seed = seed};
    for (int64_t i = 0; i < sources->n; i++)
        EK_TRY(add_source(s, sources->tokens[i], sources->share[i]));
    return EK_OK;
}

ek_status ek_windows_init(ek_windows *s, const ek_tokens *tokens, int64_t batch, int64_t seq,
                          ek_data_order order, uint64_t seed)
{
    ek_sources one = {.tokens = {(ek_tokens *)(uintptr_t)tokens}, .share = {1}, .n = 1};

    return ek_windows_init_sources(s, &one, batch, seq, order, seed);
}

/* floor(n * share / total), exactly; both are below 2^32. */
static uint64_t share_of(uint64_t n, uint64_t share, uint64_t total)
{
    return n / total * share + n % total * share / total;
}

/* The source of draw i, and the number of its draws before. */
static int64_t source_of_draw(const ek_windows *s, uint64_t i, uint64_t *before)
{
    uint64_t from = i, to = i + 1, left = 0;
    int64_t source = 0;

    for (int64_t j = 0; j < s->n_sources; j++)
        left += s->sources[j].share;
    for (; source < s->n_sources - 1; source++) {
        uint64_t share = s->sources[source].share;
        uint64_t a = share_of(from, share, left), b = share_of(to, share, left);

        if (b > a) {
            from = a;
            break;
        }
        from -= a;
        to -= b;
        left -= share;
    }
    *before = from;
    return source;
}

/* Each source has its own random stream. */
static uint64_t source_stream(int64_t source)
{
    return (uint64_t)source << 40;
}

int64_t ek_windows_at(const ek_windows *s, int64_t step, int64_t row, int64_t *source)
{
    uint64_t batch = (uint64_t)s->batch, r = (uint64_t)row, i, n, epoch;
    int64_t j = 0;

    if (s->n_sources > 1)
        r = ek_random_permute(s->seed, ek_random_stream("mixture") + (uint64_t)step, batch, r);
    i = (uint64_t)step * batch + r;
    if (s->n_sources > 1)
        j = source_of_draw(s, i, &i);
    if (source != NULL)
        *source = j;
    n = (uint64_t)s->sources[j].windows;
    epoch = i / n;
    if (s->order == EK_ORDER_SEQUENTIAL)
        return (int64_t)(i % n);
    return (int64_t)ek_random_permute(s->seed, ek_random_stream("epoch") + epoch + source_stream(j),
                                      n, i % n);
}

/* n inputs from `at` on, and the targets shifted by one. */
static ek_status read_window(const ek_tokens *t, int64_t at, int64_t n, int32_t *inputs,
                             int32_t *targets)
{
    EK_TRY(ek_tokens_read(t, at, n, inputs));
    return ek_tokens_read(t, at + 1, n, targets);
}

ek_status ek_windows_row(const ek_windows *s, int64_t step, int64_t row, int32_t *inputs,
                         int32_t *targets)
{
    int64_t source, window = ek_windows_at(s, step, row, &source);

    return read_window(s->sources[source].tokens, window * s->seq, s->seq, inputs, targets);
}

int64_t ek_eval_windows(const ek_tokens *tokens, int64_t seq)
{
    int64_t n = ek_tokens_get_info(tokens).n_tokens;

    return n < 2 ? 0 : (n - 2) / seq + 1;
}

ek_status ek_eval_window(const ek_tokens *tokens, int64_t seq, int64_t window, int32_t *inputs,
                         int32_t *targets, int64_t *n)
{
    int64_t left = ek_tokens_get_info(tokens).n_tokens - 1 - window * seq;

    *n = left < seq ? left : seq;
    return read_window(tokens, window * seq, *n, inputs, targets);
}
