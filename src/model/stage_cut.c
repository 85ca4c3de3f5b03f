/* Cuts layers into pipeline stages: dynamic programming over (stages, layers). */
#include "model/stage_cut.h"

#include <float.h>
#include <stdlib.h>

/* The best cut of the first `l` layers into `s` stages is at [s * (layers + 1) + l]. */
typedef struct {
    double most;    /* cost of the costliest stage, 0 if within the bound; DBL_MAX: there is none */
    double squares; /* sum of the squared costs */
    int32_t last;   /* layers of the last stage */
} best_cut;

static const best_cut none = {DBL_MAX, DBL_MAX, 0};

static int is_better(const best_cut *a, const best_cut *b)
{
    return a->most < b->most || (a->most <= b->most && a->squares < b->squares);
}

/* The best cut of l layers into s stages; fewer: of fewer layers into s - 1; sum: costs of the
 * first layers; extra: what the last stage has beside its layers. */
static best_cut find_best(const best_cut *fewer, const double *sum, int32_t s, int32_t l,
                          double extra, double bound)
{
    best_cut best = none;

    for (int32_t last = 1; last <= l - s + 1; last++) {
        const best_cut *rest = &fewer[l - last];
        double cost = sum[l] - sum[l - last] + extra, counts = cost > bound ? cost : 0;
        best_cut c = {rest->most > counts ? rest->most : counts, rest->squares + cost * cost, last};

        if (rest->most < DBL_MAX && is_better(&c, &best))
            best = c;
    }
    return best;
}

/* Cuts in which no stage costs more than the bound are compared by their squares alone. */
static void fill(best_cut *at, const double *sum, int32_t layers, double before, double after,
                 int32_t n, double bound)
{
    for (int32_t l = 0; l <= layers; l++)
        at[l] = l == 0 ? (best_cut){0} : none;
    for (int32_t s = 1; s <= n; s++) {
        double extra = (s == 1 ? before : 0) + (s == n ? after : 0);
        const best_cut *fewer = at + (int64_t)(s - 1) * (layers + 1);
        best_cut *row = at + (int64_t)s * (layers + 1);

        for (int32_t l = 0; l <= layers; l++)
            row[l] = find_best(fewer, sum, s, l, extra, bound);
    }
}

ek_status ek_stage_cut(const double *cost, int32_t layers, double before, double after, int32_t n,
                       int32_t *part)
{
    size_t width = (size_t)layers + 1;
    best_cut *at = calloc((size_t)(n + 1) * width, sizeof(*at));
    double *sum = calloc(width, sizeof(*sum));
    ek_status st = EK_OK;

    EK_REQUIRE_OUT(at != NULL && sum != NULL, EK_ENOMEM,
                   "no memory to cut %d layers into %d stages", (int)layers, (int)n);
    for (int32_t l = 0; l < layers; l++)
        sum[l + 1] = sum[l] + cost[l];
    fill(at, sum, layers, before, after, n, 0); /* the least maximum, which is the bound */
    fill(at, sum, layers, before, after, n, at[(size_t)n * width + (size_t)layers].most);
    for (int32_t s = n, l = layers; s > 0; l -= part[--s])
        part[s - 1] = at[(size_t)s * width + (size_t)l].last;
out:
    free(sum);
    free(at);
    return st;
}

double ek_stage_cut_most(const double *cost, double before, double after, int32_t n,
                         const int32_t *part)
{
    double most = 0;
    int32_t l = 0;

    for (int32_t s = 0; s < n; s++) {
        double stage = (s == 0 ? before : 0) + (s == n - 1 ? after : 0);

        for (int32_t i = 0; i < part[s]; i++)
            stage += cost[l++];
        most = stage > most ? stage : most;
    }
    return most;
}

double ek_stage_cut_evenness(const double *cost, double before, double after, int32_t n,
                             const int32_t *part)
{
    double all = before + after, most = ek_stage_cut_most(cost, before, after, n, part);
    int32_t l = 0;

    for (int32_t s = 0; s < n; s++)
        for (int32_t i = 0; i < part[s]; i++)
            all += cost[l++];
    return most > 0 ? all / (n * most) : 1;
}
