/* Choices of experts for a block of tokens from a source's recorded loads. */
#include "moe/replay_gate.h"

#include "comm/mesh.h"

void ek_replay_reserve(ek_replay_scratch *r, ek_arena *a, int64_t experts)
{
    r->weight = ek_arena_alloc(a, experts, sizeof(*r->weight));
    r->end = ek_arena_alloc(a, experts, sizeof(*r->end));
    ek_apportion_reserve(&r->scratch, a, experts);
}

/* The tokens of the micro-batch that stand for one source of the trace. */
typedef struct {
    int64_t first, n;
    int64_t stride; /* of positions, from token to token */
} block;

static int64_t common_divisor(int64_t a, int64_t b)
{
    while (b != 0) {
        int64_t rest = a % b;

        a = b;
        b = rest;
    }
    return a;
}

/* About 0.618 n (the golden ratio, which spreads every range of tokens well), coprime to n. */
static int64_t stride_of(int64_t n)
{
    int64_t stride = (int64_t)(0.6180339887498949 * (double)n);

    stride = stride > 0 ? stride : 1;
    while (common_divisor(stride, n) != 1)
        stride++;
    return stride;
}

static block block_of(const ek_replay_of *of, int source)
{
    int sources = (int)of->trace->sources;
    block b = {ek_range_first(of->total, sources, source),
               ek_range_length(of->total, sources, source), 0};

    b.stride = b.n > 0 ? stride_of(b.n) : 0;
    return b;
}

/* Sets r->weight to the loads of a source, or of all sources if that one has none. */
static void read_loads(const ek_replay_scratch *r, const ek_replay_of *of, int source)
{
    const ek_trace *t = of->trace;
    int64_t experts = t->experts, sum = 0;
    int64_t at = (of->iteration % t->iterations * t->layers + of->layer) * t->sources;

    for (int64_t e = 0; e < experts; e++)
        sum += r->weight[e] = ek_trace_number(t, (at + source) * experts + e);
    for (int64_t i = 0; sum == 0 && i < t->sources * experts; i++)
        r->weight[i % experts] += ek_trace_number(t, at * experts + i);
}

/* The expert of choice number `choice` of a block. */
static int32_t expert_at(const ek_replay_scratch *r, int64_t experts, int64_t choice)
{
    int64_t low = 0, high = experts - 1;

    while (low < high) {
        int64_t middle = (low + high) / 2;

        if (r->end[middle] > choice)
            high = middle;
        else
            low = middle + 1;
    }
    return (int32_t)low;
}

/* Fills ids of the requested tokens that are in the block. */
static void choose_in_block(const ek_replay_scratch *r, const ek_replay_of *of, const block *b,
                            int64_t cols, int32_t *ids)
{
    int64_t end = b->first + b->n < of->first + of->n ? b->first + b->n : of->first + of->n;
    int64_t begin = b->first > of->first ? b->first : of->first;

    for (int64_t t = begin; t < end; t++) {
        int64_t position = (t - b->first) * b->stride % b->n;

        for (int64_t j = 0; j < of->top_k; j++)
            ids[(t - of->first) * cols + j] = expert_at(r, of->trace->experts, position + j * b->n);
    }
}

void ek_replay_choose(const ek_replay_scratch *r, const ek_replay_of *of, int64_t cols,
                      int32_t *ids)
{
    int64_t experts = of->trace->experts;

    for (int s = 0; s < (int)of->trace->sources; s++) {
        block b = block_of(of, s);

        if (b.n == 0 || b.first >= of->first + of->n || b.first + b.n <= of->first)
            continue;
        read_loads(r, of, s);
        ek_apportion(&r->scratch, r->weight, (int32_t)experts, b.n * of->top_k, b.n, r->end);
        for (int64_t e = 1; e < experts; e++)
            r->end[e] += r->end[e - 1];
        choose_in_block(r, of, &b, cols, ids);
    }
}
