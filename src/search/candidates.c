/* Lists layouts: one loop a choice, of its divisors or of what it is fixed to. */
#include "search/candidates.h"

#include "base/option_value.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char words[] = "off|attention|full";
static const char *const recomputes[] = {"off", "attention", "full"};

static const struct {
    const char *name;
    int64_t none; /* train's default; -1: always said */
} choices[EK_CHOICES] = {
    [EK_CHOICE_PP] = {"pp", 1},
    [EK_CHOICE_CHUNKS] = {"pp-chunks", 1},
    [EK_CHOICE_TP] = {"tp", 1},
    [EK_CHOICE_EP] = {"ep", 1},
    [EK_CHOICE_ETP] = {"etp", 1},
    [EK_CHOICE_ZERO] = {"zero", 0},
    [EK_CHOICE_MICRO_BATCH] = {"micro-batch", -1},
    [EK_CHOICE_RECOMPUTE] = {"recompute", 0},
};

const char *ek_choice_name(ek_choice c)
{
    return choices[c].name;
}

const char *ek_choice_text(ek_choice c, int64_t value, char *text, size_t cap)
{
    if (c == EK_CHOICE_RECOMPUTE)
        (void)snprintf(text, cap, "%s", recomputes[value]);
    else
        (void)snprintf(text, cap, "%lld", (long long)value);
    return text;
}

const char *ek_candidate_words(const ek_candidate *c, char *text, size_t cap)
{
    size_t used = 0;

    text[0] = '\0';
    for (int i = 0; i < EK_CHOICES && used < cap; i++) {
        char value[32];

        if (c->value[i] != choices[i].none)
            used += (size_t)snprintf(
                text + used, cap - used, "%s--%s %s", used > 0 ? " " : "", choices[i].name,
                ek_choice_text((ek_choice)i, c->value[i], value, sizeof(value)));
    }
    return text;
}

void ek_candidate_apply(const ek_candidate *c, ek_train_config *cfg)
{
    cfg->pp = (int)c->value[EK_CHOICE_PP];
    cfg->chunks = (int)c->value[EK_CHOICE_CHUNKS];
    cfg->tp = (int)c->value[EK_CHOICE_TP];
    cfg->ep = (int)c->value[EK_CHOICE_EP];
    cfg->etp = (int)c->value[EK_CHOICE_ETP];
    cfg->zero = (int)c->value[EK_CHOICE_ZERO];
    cfg->micro_batch = c->value[EK_CHOICE_MICRO_BATCH];
    cfg->recompute = recomputes[c->value[EK_CHOICE_RECOMPUTE]];
}

int ek_candidate_is_beside(const ek_candidate *a, const ek_candidate *b)
{
    for (int i = EK_CHOICE_PP; i <= EK_CHOICE_ETP; i++)
        if (a->value[i] != b->value[i])
            return 0;
    return 1;
}

/* --- fixed choices ---------------------------------------------------------------------------- */

static int choice_named(const char *name, size_t length)
{
    for (int i = 0; i < EK_CHOICES; i++)
        if (strlen(choices[i].name) == length && strncmp(choices[i].name, name, length) == 0)
            return i;
    return -1;
}

/* A number of at least 1 (zero: 0 to 3), or a word of --recompute; -1: neither. */
static int64_t parse_value(int choice, const char *text, size_t length)
{
    char copy[32], *end;
    long long n;

    if (length == 0 || length >= sizeof(copy))
        return -1;
    memcpy(copy, text, length);
    copy[length] = '\0';
    if (choice == EK_CHOICE_RECOMPUTE)
        return ek_option_choice_index(words, copy);
    errno = 0;
    n = strtoll(copy, &end, 10);
    if (copy[0] < '0' || copy[0] > '9' || *end != '\0' || errno != 0 || n > 1000000)
        return -1;
    if (choice == EK_CHOICE_ZERO)
        return n <= 3 ? n : -1;
    return n >= 1 ? n : -1;
}

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
        int choice = choice_named(at, name);
        ek_choice_values *v;
        int64_t value;

        EK_REQUIRE(choice >= 0, EK_EINVAL,
                   "--fix %s: %.*s is none of pp, pp-chunks, tp, ep, etp, zero, micro-batch and "
                   "recompute",
                   text, (int)name, at);
        value = name < length ? parse_value(choice, at + name + 1, length - name - 1) : -1;
        EK_REQUIRE(value >= 0, EK_EINVAL, "--fix %s: %.*s needs %s, as in %s=%s", text, (int)name,
                   at,
                   choice == EK_CHOICE_RECOMPUTE ? "off, attention or full"
                   : choice == EK_CHOICE_ZERO    ? "a number from 0 to 3"
                                                 : "a number of at least 1",
                   choices[choice].name, choice == EK_CHOICE_RECOMPUTE ? "full" : "2");
        v = &s->fixed[choice];
        EK_REQUIRE(v->n < EK_CHOICE_VALUES, EK_EINVAL, "--fix %s: more than %d values of %s", text,
                   EK_CHOICE_VALUES, choices[choice].name);
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
    ek_candidate *list;
    int64_t n, cap;
} candidate_list;

static ek_status add_candidate(candidate_list *l, const ek_candidate *c)
{
    if (l->n == l->cap) {
        int64_t cap = l->cap > 0 ? 2 * l->cap : 1024;
        ek_candidate *more = realloc(l->list, (size_t)cap * sizeof(*more));

        EK_REQUIRE(more != NULL, EK_ENOMEM, "no memory for %lld layouts", (long long)cap);
        l->list = more;
        l->cap = cap;
    }
    l->list[l->n++] = *c;
    return EK_OK;
}

/* With one rank a stage there is nothing to shard. */
static ek_status add_beside(const ek_candidate_space *s, ek_candidate c, candidate_list *l)
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

/* All of a number of stages, each of `stage` ranks. */
static ek_status add_stages(const ek_candidate_space *s, ek_candidate c, candidate_list *l)
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
                EK_TRY(add_beside(s, c, l));
            }
        }
    return EK_OK;
}

static ek_status list_all(const ek_candidate_space *s, candidate_list *l)
{
    ek_choice_values pp = divisors(s, EK_CHOICE_PP, s->ranks, s->layers);

    for (int p = 0; p < pp.n; p++) {
        int64_t most = pp.value[p] > 1 ? s->layers / pp.value[p] : 1;
        int limited = most > 4 && s->fixed[EK_CHOICE_CHUNKS].n == 0;
        ek_choice_values chunks = powers(s, EK_CHOICE_CHUNKS, 1, limited ? 4 : most);

        for (int i = 0; i < chunks.n && pp.value[p] <= s->layers; i++) {
            ek_candidate c = {{0}};

            c.value[EK_CHOICE_PP] = pp.value[p];
            c.value[EK_CHOICE_CHUNKS] = chunks.value[i];
            EK_TRY(add_stages(s, c, l));
        }
    }
    EK_REQUIRE(l->n > 0, EK_EINVAL,
               "no layout of %d ranks: pp divides them and is at most the %lld layers, tp, ep and "
               "etp divide the ranks of a stage, and each of its ranks / tp needs a sequence of "
               "the batch of %lld%s",
               s->ranks, (long long)s->layers, (long long)s->batch,
               "; give a larger --batch, fewer --ranks, or less to --fix");
    return EK_OK;
}

ek_status ek_candidates_list(const ek_candidate_space *s, ek_candidate **list, int64_t *n)
{
    candidate_list l = {0};
    ek_status st = list_all(s, &l);

    if (st < 0)
        free(l.list);
    *list = st < 0 ? NULL : l.list;
    *n = st < 0 ? 0 : l.n;
    return st;
}
