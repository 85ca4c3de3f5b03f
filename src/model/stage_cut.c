/* Cuts layers into pipeline stages: dynamic programming over (stages, layers). */
#include "model/stage_cut.h"

#include <float.h>
#include <stdlib.h>

/* The best cut of the first `l` layers into `s` stages is at [s * (layers + 1) + l]. */
typedef struct {
    double most;    /* time of the longest stage, 0 if within the bound; DBL_MAX: there is none */
    double squares; /* sum of the squared times */
    int32_t last;   /* layers of the last stage */
} best_cut;

static const best_cut none = {DBL_MAX, DBL_MAX, 0};

static int is_better(const best_cut *a, const best_cut *b)
{
    return a->most < b->most || (a->most <= b->most && a->squares < b->squares);
}

static double speed_of(const ek_stage_costs *c, int32_t stage)
{
    return c->speed != NULL ? c->speed[stage] : 1;
}

/* What stage s has beside its layers. */
static double extra_of(const ek_stage_costs *c, int32_t s)
{
    return (s == 0 ? c->before : 0) + (s == c->n - 1 ? c->after : 0);
}

/* The best cut of l layers into s stages; fewer: of fewer layers into s - 1; sum: costs of the
 * first layers. */
static best_cut find_best(const ek_stage_costs *c, const best_cut *fewer, const double *sum,
                          int32_t s, int32_t l, double bound)
{
    double extra = extra_of(c, s - 1), speed = speed_of(c, s - 1);
    best_cut best = none;

    for (int32_t last = 1; last <= l - s + 1; last++) {
        const best_cut *rest = &fewer[l - last];
        double time = (sum[l] - sum[l - last] + extra) / speed, counts = time > bound ? time : 0;
        best_cut cut = {rest->most > counts ? rest->most : counts, rest->squares + time * time,
                        last};

        if (rest->most < DBL_MAX && is_better(&cut, &best))
            best = cut;
    }
    return best;
}

/* Cuts in which no stage takes longer than the bound are compared by their squares alone. */
static void fill(best_cut *at, const ek_stage_costs *c, const double *sum, double bound)
{
    for (int32_t l = 0; l <= c->layers; l++)
        at[l] = l == 0 ? (best_cut){0} : none;
    for (int32_t s = 1; s <= c->n; s++) {
        const best_cut *fewer = at + (int64_t)(s - 1) * (c->layers + 1);
        best_cut *row = at + (int64_t)s * (c->layers + 1);

        for (int32_t l = 0; l <= c->layers; l++)
            row[l] = find_best(c, fewer, sum, s, l, bound);
    }
}

ek_status ek_stage_cut(const ek_stage_costs *c, int32_t *part)
{
    size_t width = (size_t)c->layers + 1;
    best_cut *at = calloc((size_t)(c->n + 1) * width, sizeof(*at));
    double *sum = calloc(width, sizeof(*sum));
    ek_status st = EK_OK;

    EK_REQUIRE_OUT(at != NULL && sum != NULL, EK_ENOMEM,
                   "no memory to cut %d layers into %d stages", (int)c->layers, (int)c->n);
    for (int32_t l = 0; l < c->layers; l++)
        sum[l + 1] = sum[l] + c->layer[l];
    fill(at, c, sum, 0); /* the least maximum, which is the bound */
    fill(at, c, sum, at[(size_t)c->n * width + (size_t)c->layers].most);
    for (int32_t s = c->n, l = c->layers; s > 0; l -= part[--s])
        part[s - 1] = at[(size_t)s * width + (size_t)l].last;
out:
    free(sum);
    free(at);
    return st;
}

double ek_stage_cut_most(const ek_stage_costs *c, const int32_t *part)
{
    double most = 0;
    int32_t l = 0;

    for (int32_t s = 0; s < c->n; s++) {
        double time = extra_of(c, s);

        for (int32_t i = 0; i < part[s]; i++)
            time += c->layer[l++];
        time /= speed_of(c, s);
        most = time > most ? time : most;
    }
    return most;
}

double ek_stage_cut_evenness(const ek_stage_costs *c, const int32_t *part)
{
    double all = c->before + c->after, most = ek_stage_cut_most(c, part), speed = 0;

    for (int32_t l = 0; l < c->layers; l++)
        all += c->layer[l];
    for (int32_t s = 0; s < c->n; s++)
        speed += speed_of(c, s);
    return most > 0 ? all / (speed * most) : 1;
}
