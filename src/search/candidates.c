/* Lists layouts: one loop a choice, of its divisors or of what it is fixed to. */
#include "search/candidates.h"

#include "train/batch.h"

#include <stdlib.h>
#include <string.h>

int ek_candidate_is_beside(const ek_layout *a, const ek_layout *b)
{
    static const ek_choice same[] = {EK_CHOICE_PP, EK_CHOICE_TP, EK_CHOICE_EP, EK_CHOICE_ETP};

    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++)
        if (a->value[same[i]] != b->value[same[i]])
            return 0;
    return 1;
}

int ek_candidate_is_laid_out_alike(const ek_layout *a, const ek_layout *b)
{
    return ek_candidate_is_beside(a, b) &&
           a->value[EK_CHOICE_CHUNKS] == b->value[EK_CHOICE_CHUNKS] &&
           a->value[EK_CHOICE_ZERO] == b->value[EK_CHOICE_ZERO];
}

int ek_candidate_recomputes(const ek_layout *a, const ek_layout *b)
{
    return ek_candidate_is_laid_out_alike(a, b) &&
           a->value[EK_CHOICE_MICRO_BATCH] == b->value[EK_CHOICE_MICRO_BATCH];
}

/* --- fixed choices ---------------------------------------------------------------------------- */

static int has_value(const ek_choice_values *v, int64_t value)
{
    for (int i = 0; i < v->n; i++)
        if (v->value[i] == value)
            return 1;
    return 0;
}

ek_status ek_candidates_fix(ek_candidate_space *s, const char *text)
{
    for (const char *at = text; *at != '\0';) {
        size_t length = strcspn(at, ","), name = strcspn(at, "=,");
        int choice = ek_choice_named(at, name);
        ek_choice_values *v;
        int64_t value;

        EK_REQUIRE(choice >= 0, EK_EINVAL,
                   "--fix %s: %.*s is none of pp, pp-chunks, tp, ep, etp, zero, micro-batch and "
                   "recompute",
                   text, (int)name, at);
        value = name < length ? ek_choice_value((ek_choice)choice, at + name + 1, length - name - 1)
                              : -1;
        EK_REQUIRE(value >= 0, EK_EINVAL, "--fix %s: %.*s needs %s, as in %s=%s", text, (int)name,
                   at,
                   choice == EK_CHOICE_RECOMPUTE ? "off, attention or full"
                   : choice == EK_CHOICE_ZERO    ? "a number from 0 to 3"
                                                 : "a number of at least 1",
                   ek_choice_name((ek_choice)choice), choice == EK_CHOICE_RECOMPUTE ? "full" : "2");
        v = &s->fixed[choice];
        EK_REQUIRE(v->n < EK_CHOICE_VALUES, EK_EINVAL, "--fix %s: more than %d values of %s", text,
                   EK_CHOICE_VALUES, ek_choice_name((ek_choice)choice));
        if (!has_value(v, value))
            v->value[v->n++] = value;
        at += length + (at[length] == ',');
    }
    return EK_OK;
}

/* --- the list --------------------------------------------------------------------------------- */

/* The values to look at: divisors of `of` up to `most`, or, if the choice is fixed, those. */
static ek_choice_values divisors(const ek_candidate_space *s, ek_choice c, int64_t of, int64_t most)
{
    const ek_choice_values *fixed = &s->fixed[c];
    ek_choice_values v = {0};

    for (int i = 0; i < fixed->n; i++)
        if (of % fixed->value[i] == 0)
            v.value[v.n++] = fixed->value[i];
    for (int64_t d = 1; d <= of && d <= most && fixed->n == 0 && v.n < EK_CHOICE_VALUES; d++)
        if (of % d == 0)
            v.value[v.n++] = d;
    return v;
}

/* Likewise `first` times powers of two up to `most`. */
static ek_choice_values powers(const ek_candidate_space *s, ek_choice c, int64_t first,
                               int64_t most)
{
    const ek_choice_values *fixed = &s->fixed[c];
    ek_choice_values v = {0};

    for (int i = 0; i < fixed->n; i++)
        if (fixed->value[i] >= first && fixed->value[i] <= most)
            v.value[v.n++] = fixed->value[i];
    for (int64_t x = first; x <= most && fixed->n == 0 && v.n < EK_CHOICE_VALUES; x *= 2)
        v.value[v.n++] = x;
    return v;
}

/* Likewise from 0 to `most`. */
static ek_choice_values count_to(const ek_candidate_space *s, ek_choice c, int64_t most)
{
    ek_choice_values v = s->fixed[c];

    for (int64_t x = 0; x <= most && s->fixed[c].n == 0; x++)
        v.value[v.n++] = x;
    return v;
}

typedef struct {
    ek_layout *list;
    int64_t n, cap;
} candidate_list;

static ek_status add_candidate(candidate_list *l, const ek_layout *c)
{
    if (l->n == l->cap) {
        int64_t cap = l->cap > 0 ? 2 * l->cap : 1024;
        ek_layout *more = realloc(l->list, (size_t)cap * sizeof(*more));

        EK_REQUIRE(more != NULL, EK_ENOMEM, "no memory for %lld layouts", (long long)cap);
        l->list = more;
        l->cap = cap;
    }
    l->list[l->n++] = *c;
    return EK_OK;
}

/* With one rank a stage there is nothing to shard. */
static ek_status add_beside(const ek_candidate_space *s, ek_layout c, candidate_list *l)
{
    int64_t stage = s->ranks / c.value[EK_CHOICE_PP];
    ek_choice_values zero = count_to(s, EK_CHOICE_ZERO, stage > 1 ? 3 : 0);
    ek_choice_values micro =
        powers(s, EK_CHOICE_MICRO_BATCH, stage / c.value[EK_CHOICE_TP], s->batch);
    ek_choice_values recompute = count_to(s, EK_CHOICE_RECOMPUTE, 2);

    for (int z = 0; z < zero.n; z++)
        for (int m = 0; m < micro.n; m++)
            for (int r = 0; r < recompute.n; r++) {
                c.value[EK_CHOICE_ZERO] = zero.value[z];
                c.value[EK_CHOICE_MICRO_BATCH] = micro.value[m];
                c.value[EK_CHOICE_RECOMPUTE] = recompute.value[r];
                EK_TRY(add_candidate(l, &c));
            }
    return EK_OK;
}

/* Likewise of as many layers of a virtual stage as there are; one stage is not cut. */
static ek_choice_values chunks_of(const ek_candidate_space *s, int64_t pp)
{
    int64_t most = pp > 1 ? s->layers / pp : 1;
    int limited = most > 4 && s->fixed[EK_CHOICE_CHUNKS].n == 0;

    return powers(s, EK_CHOICE_CHUNKS, 1, limited ? 4 : most);
}

static ek_status add_chunks(const ek_candidate_space *s, ek_layout c, candidate_list *l)
{
    ek_choice_values chunks = chunks_of(s, c.value[EK_CHOICE_PP]);

    for (int i = 0; i < chunks.n; i++) {
        c.value[EK_CHOICE_CHUNKS] = chunks.value[i];
        EK_TRY(add_beside(s, c, l));
    }
    return EK_OK;
}

/* All of a number of stages. */
static ek_status add_stages(const ek_candidate_space *s, ek_layout c, candidate_list *l)
{
    int64_t stage = s->ranks / c.value[EK_CHOICE_PP];
    int64_t tp_most = s->node_ranks < s->kv_heads ? s->node_ranks : s->kv_heads;
    ek_choice_values tp = divisors(s, EK_CHOICE_TP, stage, tp_most);
    ek_choice_values etp = divisors(s, EK_CHOICE_ETP, stage, s->node_ranks);

    for (int t = 0; t < tp.n; t++)
        for (int e = 0; e < etp.n; e++) {
            ek_choice_values ep = divisors(s, EK_CHOICE_EP, stage / etp.value[e], s->experts);

            for (int i = 0; i < ep.n; i++) {
                c.value[EK_CHOICE_TP] = tp.value[t];
                c.value[EK_CHOICE_ETP] = etp.value[e];
                c.value[EK_CHOICE_EP] = ep.value[i];
                EK_TRY(add_chunks(s, c, l));
            }
        }
    return EK_OK;
}

static ek_status list_all(const ek_candidate_space *s, candidate_list *l)
{
    const ek_choice_values *micro = &s->fixed[EK_CHOICE_MICRO_BATCH];
    ek_choice_values pp = divisors(s, EK_CHOICE_PP, s->ranks, s->layers);

    for (int i = 0; i < micro->n; i++)
        EK_TRY(ek_batch_check(s->batch, micro->value[i]));
    for (int i = 0; i < pp.n && pp.value[i] <= s->layers; i++) {
        ek_layout c = {{0}};

        c.value[EK_CHOICE_PP] = pp.value[i];
        EK_TRY(add_stages(s, c, l));
    }
    EK_REQUIRE(l->n > 0, EK_EINVAL,
               "no layout of %d ranks: pp divides them and is at most the %lld layers, tp, ep and "
               "etp divide the ranks of a stage, and each of its ranks / tp needs a sequence of "
               "the batch of %lld%s",
               s->ranks, (long long)s->layers, (long long)s->batch,
               "; give a larger --batch, fewer --ranks, or less to --fix");
    return EK_OK;
}

ek_status ek_candidates_list(const ek_candidate_space *s, ek_layout **list, int64_t *n)
{
    candidate_list l = {0};
    ek_status st = list_all(s, &l);

    if (st < 0)
        free(l.list);
    *list = st < 0 ? NULL : l.list;
    *n = st < 0 ? 0 : l.n;
    return st;
}
