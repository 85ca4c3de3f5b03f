/* The workloads, and the conversion of popularities to integer assignments. */
#include "balance/workload.h"

#include "base/random.h"
#include "placement/apportion.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double hot_tokens = 0.8;    /* fraction of the tokens that pick a hot expert */
static const double burst_tokens = 0.95; /* the same in a burst */
static const double hot_rank = 8;        /* weight of an expert of the hot rank */
static const double ragged = 16;         /* tokens of the largest over the smallest source */
static const double zipf_least = 1.0, zipf_more = 0.2, zipf_mild = 0.5;
static const double least = 0.01; /* minimum noise factor of an expert's tokens */
static const double half_pi = 1.57079632679489661923;

/* --- building blocks -------------------------------------------------------------------------- */

static uint64_t seed_of(const ek_workload_shape *s, const char *what)
{
    return s->seed ^ ek_random_stream(what);
}

/* Expert number `turn` of a random order of the layer. */
static int32_t expert_in_order(const ek_popularity *p, int64_t turn)
{
    uint64_t n = (uint64_t)p->s->experts;

    return (int32_t)ek_random_permute(seed_of(p->s, "order"), (uint64_t)p->layer, n,
                                      (uint64_t)turn % n);
}

static int32_t rank_of(const ek_workload_shape *s, int32_t expert)
{
    int32_t each = s->experts / s->sources, longer = s->experts % s->sources;
    int32_t first = longer * (each + 1);

    return expert < first ? expert / (each + 1) : longer + (expert - first) / each;
}

static void set_even(const ek_popularity *p)
{
    for (int32_t e = 0; e < p->s->experts; e++)
        p->popularity[e] = 1;
}

/* One expert is picked by this fraction of the tokens. */
static void set_hot_expert(const ek_popularity *p, int32_t hot, double tokens)
{
    double share = tokens / (double)p->s->top_k, others = (double)(p->s->experts - 1);

    set_even(p);
    if (others > 0 && share < 1)
        p->popularity[hot] = fmax(1, others * share / (1 - share));
}

/* Expert i of a random order has popularity 1 / (i + 1)^exponent. */
static void set_zipf(const ek_popularity *p, double exponent)
{
    for (int32_t i = 0; i < p->s->experts; i++)
        p->popularity[expert_in_order(p, i)] = pow(i + 1, -exponent);
}

/* The log-popularity of an expert in random draw number `draw`. */
static double log_popularity(const ek_popularity *p, int64_t draw, int32_t expert)
{
    uint64_t stream = (uint64_t)p->layer << 32 | (uint64_t)draw;

    return ek_random_normal(seed_of(p->s, "popularity"), stream, (uint64_t)expert);
}

static void draw_popularities(const ek_popularity *p, int64_t number)
{
    for (int32_t e = 0; e < p->s->experts; e++)
        p->popularity[e] = exp(log_popularity(p, number, e));
}

/* --- the workloads ---------------------------------------------------------------------------- */

static void one_hot(const ek_popularity *p)
{
    set_hot_expert(p, expert_in_order(p, 0), hot_tokens);
}

static void rank_hot(const ek_popularity *p)
{
    int32_t hot = rank_of(p->s, expert_in_order(p, 0));

    for (int32_t e = 0; e < p->s->experts; e++)
        p->popularity[e] = rank_of(p->s, e) == hot ? hot_rank : 1;
}

static void mild_zipf(const ek_popularity *p)
{
    set_zipf(p, zipf_mild);
}

/* Lengths are permuted anew in every iteration. */
static double ragged_tokens(const ek_popularity *p, int32_t source)
{
    int32_t n = p->s->sources;
    uint64_t place = ek_random_permute(seed_of(p->s, "lengths"), (uint64_t)p->iteration,
                                       (uint64_t)n, (uint64_t)source);

    return n > 1 ? pow(ragged, -(double)place / (n - 1)) : 1;
}

static void rank_empty(const ek_popularity *p)
{
    int32_t empty = rank_of(p->s, expert_in_order(p, 0));

    for (int32_t e = 0; e < p->s->experts; e++)
        p->popularity[e] = rank_of(p->s, e) != empty;
}

static double one_without_tokens(const ek_popularity *p, int32_t source)
{
    uint64_t empty = ek_random_bits(seed_of(p->s, "empty"), 0, 0) % (uint64_t)p->s->sources;

    return (uint64_t)source != empty;
}

static void rotating_hot_expert(const ek_popularity *p)
{
    set_hot_expert(p, expert_in_order(p, p->iteration / EK_WORKLOAD_ROTATION), hot_tokens);
}

static void burst_of_hot_expert(const ek_popularity *p)
{
    int64_t at = p->iteration % EK_WORKLOAD_CALM;

    if (at >= EK_WORKLOAD_BURST && at < 2 * EK_WORKLOAD_BURST)
        set_hot_expert(p, expert_in_order(p, p->iteration / EK_WORKLOAD_CALM), burst_tokens);
    else
        set_even(p);
}

static void zipf_by_layer(const ek_popularity *p)
{
    double u = ek_random_uniform(seed_of(p->s, "exponent"), (uint64_t)p->layer, 0);

    set_zipf(p, zipf_least + zipf_more * u);
}

/* From one draw to the next on a circle, which keeps the variance. */
static void drifting_popularity(const ek_popularity *p)
{
    int64_t number = p->iteration / EK_WORKLOAD_DRIFT, at = p->iteration % EK_WORKLOAD_DRIFT;
    double angle = half_pi * (double)at / EK_WORKLOAD_DRIFT;

    for (int32_t e = 0; e < p->s->experts; e++)
        p->popularity[e] = exp(cos(angle) * log_popularity(p, number, e) +
                               sin(angle) * log_popularity(p, number + 1, e));
}

static void stable_popularity(const ek_popularity *p)
{
    draw_popularities(p, 0);
}

static void switching_popularity(const ek_popularity *p)
{
    draw_popularities(p, p->iteration / EK_WORKLOAD_SWITCHING);
}

const ek_workload ek_workloads[] = {
    {"W0", "uniform: all experts exactly equal, as under a perfect balance loss", set_even, NULL,
     1},
    {"W1", "hot expert: one is picked by 80 % of the tokens, as by an untrained or collapsed gate",
     one_hot, NULL, 0},
    {"W2", "hot rank: all experts of one rank are hot, as when a domain's experts are on one rank",
     rank_hot, NULL, 0},
    {"W3", "ragged sources: up to 16 times the tokens of others, as with texts of varying length",
     mild_zipf, ragged_tokens, 0},
    {"W4",
     "empty rank: one source has no tokens and one rank's experts get none, as at the end of "
     "a batch or with a mask",
     rank_empty, one_without_tokens, 0},
    {"W5",
     "rotating hot spot: the hot expert changes every 4 iterations, as when data comes "
     "sorted by kind",
     rotating_hot_expert, NULL, 0},
    {"W6",
     "burst: calm, but 4 of 16 iterations send 95 % of the tokens to one expert, as a "
     "repetitive document does",
     burst_of_hot_expert, NULL, 0},
    {"W7", "Zipf: exponent 1.0 to 1.2, in another order in each layer, as with words and topics",
     zipf_by_layer, NULL, 0},
    {"drifting", "log-normal popularities that drift slowly, as while a model trains",
     drifting_popularity, NULL, 0},
    {"stable", "constant log-normal popularities, as late in training or in serving",
     stable_popularity, NULL, 0},
    {"switching",
     "log-normal popularities, all redrawn every 20 iterations, as when the data changes",
     switching_popularity, NULL, 0},
    {"flat", "all experts equal but for sampling noise, as under a trained balance loss", set_even,
     NULL, 0},
};

const size_t ek_workload_count = sizeof(ek_workloads) / sizeof(ek_workloads[0]);

const ek_workload *ek_workload_find(const char *name)
{
    for (size_t i = 0; i < ek_workload_count; i++)
        if (strcmp(ek_workloads[i].name, name) == 0)
            return &ek_workloads[i];
    return NULL;
}

/* --- integers --------------------------------------------------------------------------------- */

struct ek_workload_maker {
    const ek_workload *w;
    ek_workload_shape s;
    ek_arena arena;
    ek_apportion_scratch scratch;
    double *popularity, *noisy; /* [experts] */
    double *length;             /* [sources] */
    int64_t *tokens;            /* [sources] */
    int64_t *weight, *share;    /* [experts or sources] */
};

static void reserve_arrays(ek_workload_maker *m)
{
    int64_t experts = m->s.experts, sources = m->s.sources;
    int64_t most = experts > sources ? experts : sources;

    ek_apportion_reserve(&m->scratch, &m->arena, most);
    m->popularity = ek_arena_alloc(&m->arena, experts, sizeof(double));
    m->noisy = ek_arena_alloc(&m->arena, experts, sizeof(double));
    m->length = ek_arena_alloc(&m->arena, sources, sizeof(double));
    m->tokens = ek_arena_alloc(&m->arena, sources, sizeof(int64_t));
    m->weight = ek_arena_alloc(&m->arena, most, sizeof(int64_t));
    m->share = ek_arena_alloc(&m->arena, most, sizeof(int64_t));
}

ek_status ek_workload_open(const ek_workload *w, const ek_workload_shape *s,
                           ek_workload_maker **out)
{
    ek_workload_maker *m = NULL;
    ek_status st = EK_OK;

    EK_REQUIRE(s->iterations > 0 && s->layers > 0 && s->sources > 0 && s->experts > 0 &&
                   s->tokens >= 0 && s->top_k > 0,
               EK_EINVAL,
               "a workload needs iterations, layers, ranks, experts and top-k of at least 1");
    EK_REQUIRE(s->top_k <= s->experts, EK_EINVAL, "a token cannot pick %lld of %d experts",
               (long long)s->top_k, (int)s->experts);
    EK_REQUIRE(s->tokens <= INT32_MAX / s->sources, EK_EINVAL,
               "%lld tokens a rank on %d ranks are too many", (long long)s->tokens,
               (int)s->sources);
    m = calloc(1, sizeof(*m));
    EK_REQUIRE(m != NULL, EK_ENOMEM, "no memory for a workload");
    m->w = w;
    m->s = *s;
    ek_arena_measure(&m->arena);
    reserve_arrays(m);
    EK_TRY_OUT(ek_arena_reserve(&m->arena, "a workload"));
    reserve_arrays(m);
    EK_TRY_OUT(ek_arena_check(&m->arena, "a workload"));
    *out = m;
    m = NULL;
out:
    ek_workload_close(&m);
    return st;
}

void ek_workload_close(ek_workload_maker **m)
{
    if (*m == NULL)
        return;
    ek_arena_fini(&(*m)->arena);
    free(*m);
    *m = NULL;
}

/* m->share [n]: total in proportion to x. */
static void apportion_by(ek_workload_maker *m, const double *x, int32_t n, int64_t total,
                         int64_t most)
{
    const double one = (double)((int64_t)1 << 40);
    double sum = 0;

    for (int32_t i = 0; i < n; i++)
        sum += x[i];
    for (int32_t i = 0; i < n; i++)
        m->weight[i] = sum > 0 ? llround(x[i] / sum * one) : 0;
    ek_apportion(&m->scratch, m->weight, n, total, most, m->share);
}

static void count_tokens(ek_workload_maker *m, const ek_popularity *p)
{
    int64_t total = m->s.sources * m->s.tokens;

    for (int32_t r = 0; r < m->s.sources; r++)
        m->length[r] = m->w->tokens != NULL ? m->w->tokens(p, r) : 1;
    apportion_by(m, m->length, m->s.sources, total, total);
    memcpy(m->tokens, m->share, (size_t)m->s.sources * sizeof(*m->tokens));
}

/* Popularities with sampling noise of n tokens: an expert picked with probability q gets n q +-
 * sqrt(n q (1 - q)), at least a fraction of n q. */
static void add_noise(ek_workload_maker *m, const ek_popularity *p, int32_t source)
{
    double n = (double)m->tokens[source], sum = 0;
    uint64_t stream = (uint64_t)(p->iteration * m->s.layers + p->layer);
    uint64_t seed = seed_of(&m->s, "chance"), first = (uint64_t)source * (uint64_t)m->s.experts;

    for (int32_t e = 0; e < m->s.experts; e++)
        sum += m->popularity[e];
    for (int32_t e = 0; e < m->s.experts; e++) {
        double x = m->popularity[e], q = fmin(1, (double)m->s.top_k * x / sum);
        double chance = ek_random_normal(seed, stream, first + (uint64_t)e);

        m->noisy[e] = q > 0 && n > 0 ? x * fmax(least, 1 + chance * sqrt((1 - q) / (n * q))) : x;
    }
}

void ek_workload_counts(ek_workload_maker *m, int64_t iteration, int64_t layer, uint32_t *counts)
{
    ek_popularity p = {m->popularity, &m->s, iteration, layer};
    int64_t experts = m->s.experts, before = 0;

    m->w->popularity(&p);
    count_tokens(m, &p);
    for (int32_t r = 0; r < m->s.sources; r++) {
        if (!m->w->exact)
            add_noise(m, &p, r);
        apportion_by(m, m->w->exact ? m->popularity : m->noisy, m->s.experts,
                     m->tokens[r] * m->s.top_k, m->tokens[r]);
        for (int64_t e = 0; e < experts; e++)
            counts[r * experts + (e + before) % experts] = (uint32_t)m->share[e];
        before += m->w->exact ? m->tokens[r] * m->s.top_k : 0; /* rotated, so that all sources
                                                                  together are even */
    }
}
