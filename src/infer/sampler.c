/* Sampling.  Nothing is sorted in full: a heap gives the largest logits until the cut-off token is
 * found, and the draw goes through the ids, comparing each with the cut-off token. */
#include "infer/sampler.h"

#include "base/random.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

struct ek_sampler {
    ek_sampler_config cfg;
    int64_t vocab;
    double *logit, *weight; /* [vocab] */
    char *excluded;         /* [vocab] */
    int32_t *heap;          /* [vocab]: a heap [0, left), then the popped ids, last pop first */
    int64_t left;
    unsigned char *noted; /* [vocab] */
};

ek_status ek_sampler_create(const ek_sampler_config *cfg, int64_t vocab, ek_sampler **out)
{
    ek_sampler *s = NULL;
    ek_status st = EK_OK;

    EK_REQUIRE(isfinite(cfg->temperature) && cfg->temperature >= 0, EK_EINVAL,
               "temperature is %g; it must be 0 (always the most probable token) or positive",
               cfg->temperature);
    EK_REQUIRE(cfg->top_p >= 0 && cfg->top_p <= 1, EK_EINVAL, "top-p is %g; it must be from 0 to 1",
               cfg->top_p);
    EK_REQUIRE(cfg->top_k >= 0, EK_EINVAL, "top-k is %lld; it must be 0 (off) or positive",
               (long long)cfg->top_k);
    EK_REQUIRE(cfg->min_p >= 0 && cfg->min_p <= 1, EK_EINVAL, "min-p is %g; it must be from 0 to 1",
               cfg->min_p);
    EK_REQUIRE(isfinite(cfg->repetition_penalty) && cfg->repetition_penalty >= 0, EK_EINVAL,
               "repetition-penalty is %g; it must be 1 (off) or another positive number",
               cfg->repetition_penalty);
    EK_REQUIRE(vocab >= 1 && vocab <= INT32_MAX, EK_EINVAL,
               "a sampler over %lld tokens; there must be from 1 to %d", (long long)vocab,
               INT32_MAX);
    s = calloc(1, sizeof(*s));
    EK_REQUIRE(s != NULL, EK_ENOMEM, "no memory for a sampler");
    s->cfg = *cfg;
    if (cfg->repetition_penalty == 0)
        s->cfg.repetition_penalty = 1;
    s->vocab = vocab;
    s->logit = calloc((size_t)vocab, sizeof(*s->logit));
    s->weight = calloc((size_t)vocab, sizeof(*s->weight));
    s->heap = calloc((size_t)vocab, sizeof(*s->heap));
    s->noted = calloc((size_t)vocab, sizeof(*s->noted));
    s->excluded = calloc((size_t)vocab, sizeof(*s->excluded));
    EK_REQUIRE_OUT(s->logit != NULL && s->weight != NULL && s->heap != NULL && s->noted != NULL &&
                       s->excluded != NULL,
                   EK_ENOMEM, "no memory to sample from %lld tokens", (long long)vocab);
    *out = s;
    s = NULL;
out:
    ek_sampler_destroy(&s);
    return st;
}

void ek_sampler_destroy(ek_sampler **ps)
{
    if (ps == NULL || *ps == NULL)
        return;
    free((*ps)->logit);
    free((*ps)->weight);
    free((*ps)->heap);
    free((*ps)->noted);
    free((*ps)->excluded);
    free(*ps);
    *ps = NULL;
}

void ek_sampler_count(ek_sampler *s, int32_t id)
{
    if (id >= 0 && id < s->vocab)
        s->noted[id] = 1;
}

void ek_sampler_exclude(ek_sampler *s, int32_t id)
{
    s->excluded[id] = 1;
}

/* Whether token a comes before b: the larger logit, or the lower id of equals. */
static int is_before(const ek_sampler *s, int32_t a, int32_t b)
{
    return s->logit[a] > s->logit[b] || (s->logit[a] == s->logit[b] && a < b);
}

static void sift_down(ek_sampler *s, int64_t root)
{
    int32_t x = s->heap[root];

    for (int64_t child; (child = 2 * root + 1) < s->left; root = child) {
        if (child + 1 < s->left && is_before(s, s->heap[child + 1], s->heap[child]))
            child++;
        if (!is_before(s, s->heap[child], x))
            break;
        s->heap[root] = s->heap[child];
    }
    s->heap[root] = x;
}

static void build_heap(ek_sampler *s)
{
    s->left = s->vocab;
    for (int64_t i = 0; i < s->vocab; i++)
        s->heap[i] = (int32_t)i;
    for (int64_t i = s->vocab / 2 - 1; i >= 0; i--)
        sift_down(s, i);
}

/* Pops the largest remaining logit. */
static int32_t pop_largest(ek_sampler *s)
{
    int32_t top = s->heap[0];

    s->heap[0] = s->heap[--s->left];
    s->heap[s->left] = top;
    if (s->left > 0)
        sift_down(s, 0);
    return top;
}

/* The last token, in order of logits, that top_k and top_p keep; -1: all stay. */
static int32_t last_kept_token(ek_sampler *s)
{
    int64_t v = s->vocab, most = s->cfg.top_k > 0 && s->cfg.top_k < v ? s->cfg.top_k : v;
    double total = 0, sum = 0;

    if (most == v && s->cfg.top_p == 1)
        return -1;
    build_heap(s);
    if (most < v) {
        for (int64_t i = 0; i < most; i++)
            total += s->weight[pop_largest(s)];
        if (s->cfg.top_p == 1)
            return s->heap[s->left];
    } else {
        for (int64_t i = 0; i < v; i++)
            total += s->weight[i];
    }
    for (int64_t i = 0; i < most; i++) {
        int32_t id = most < v ? s->heap[v - 1 - i] : pop_largest(s);

        sum += s->weight[id];
        if (sum >= s->cfg.top_p * total || i == most - 1)
            return id;
    }
    return -1;
}

static int token_stays(const ek_sampler *s, int32_t id, int32_t last)
{
    return s->weight[id] >= s->cfg.min_p && (last < 0 || !is_before(s, last, id));
}

static int32_t draw_token(const ek_sampler *s, int32_t last, int64_t position)
{
    double u = ek_random_uniform(s->cfg.seed, ek_random_stream("sample"), (uint64_t)position);
    double total = 0, sum = 0;
    int32_t id = -1;

    for (int32_t i = 0; i < s->vocab; i++)
        if (token_stays(s, i, last))
            total += s->weight[i];
    for (int32_t i = 0; i < s->vocab; i++) {
        if (s->weight[i] == 0 || !token_stays(s, i, last))
            continue;
        id = i; /* the last one, if u * total rounds up to the sum */
        sum += s->weight[i];
        if (sum > u * total)
            break;
    }
    return id;
}

/* The penalised logit; finite if the logit was. */
static double penalised_logit(double x, double penalty)
{
    double y = x > 0 ? x / penalty : x * penalty;

    return isinf(x) ? x : fmin(fmax(y, -DBL_MAX), DBL_MAX);
}

/* Copies the logits, checks them, and finds the largest. */
static ek_status load_logits(ek_sampler *s, ek_dtype type, const void *logits, int64_t position,
                             int32_t *best)
{
    *best = 0;
    for (int32_t i = 0; i < s->vocab; i++) {
        double x =
            type == EK_F64 ? ((const double *)logits)[i] : (double)((const float *)logits)[i];

        EK_REQUIRE(!isnan(x) && x != (double)INFINITY, EK_ENONFINITE,
                   "the logit of token %d at position %lld is %g: the weights hold or give numbers "
                   "that are not finite",
                   (int)i, (long long)position, x);
        if (s->excluded[i])
            x = -(double)INFINITY;
        else if (s->noted[i] && s->cfg.repetition_penalty != 1)
            x = penalised_logit(x, s->cfg.repetition_penalty);
        s->logit[i] = x;
        if (x > s->logit[*best])
            *best = i;
    }
    EK_REQUIRE(s->logit[*best] > -(double)INFINITY, EK_ENONFINITE,
               "all logits at position %lld are minus infinity: there is no token to choose",
               (long long)position);
    return EK_OK;
}

ek_status ek_sampler_next(ek_sampler *s, ek_dtype type, const void *logits, int64_t position,
                          int32_t *id)
{
    const ek_sampler_config *c = &s->cfg;
    int32_t best;

    EK_REQUIRE(type == EK_F32 || type == EK_F64, EK_EINVAL,
               "logits of element type %d; a sampler reads float or double", (int)type);
    EK_TRY(load_logits(s, type, logits, position, &best));
    if (c->temperature == 0 || c->top_p == 0 || c->top_k == 1) {
        *id = best;
        return EK_OK;
    }
    for (int64_t i = 0; i < s->vocab; i++)
        s->weight[i] = exp((s->logit[i] - s->logit[best]) / c->temperature);
    *id = draw_token(s, last_kept_token(s), position);
    return EK_OK;
}
