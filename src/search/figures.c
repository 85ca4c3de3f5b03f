/* Figures of layouts. */
#include "search/figures.h"

#include <stdlib.h>

static double node_count(const ek_search *s)
{
    int64_t each = ek_cluster_node_ranks(s->cfg->cluster);

    return (double)((s->cfg->ranks + each - 1) / each);
}

static double node_seconds(const ek_search *s, const ek_search_layout *l)
{
    return l->failures != NULL ? l->failures->node_s : l->step_s * node_count(s);
}

double ek_search_value(const ek_search *s, const ek_search_layout *l)
{
    switch (s->cfg->objective) {
    case EK_OBJECTIVE_COST: return node_seconds(s, l);
    case EK_OBJECTIVE_GOODPUT: return l->failures != NULL ? l->failures->step_s : l->step_s;
    case EK_OBJECTIVE_STEP: break;
    }
    return l->step_s;
}

double ek_search_step_price(const ek_search *s, const ek_search_layout *l)
{
    return s->cfg->cluster->node_s_price * node_seconds(s, l);
}

double ek_search_tokens_per_s(const ek_search *s, const ek_search_layout *l)
{
    return l->step_s > 0 ? (double)s->model.step_tokens / l->step_s : 0;
}

double ek_search_mfu(const ek_search *s, const ek_search_layout *l)
{
    const char *what;
    double peak = ek_sim_peak(s->cfg->cluster, &what) * s->cfg->ranks * l->step_s;

    return peak > 0 ? l->flops / peak : 0;
}

double ek_search_sequences(const ek_search *s, const ek_search_layout *l)
{
    const int64_t *v = l->choice.value;

    return (double)(v[EK_CHOICE_MICRO_BATCH] * v[EK_CHOICE_PP] * v[EK_CHOICE_TP]) / s->cfg->ranks;
}

double ek_search_memory_share(const ek_search *s, const ek_search_layout *l)
{
    return s->memory > 0 ? l->memory / s->memory : 0;
}

void ek_search_find_near(ek_search *s, int64_t n)
{
    const ek_search_layout *best = &s->layouts[s->best[0]];
    double most = (1 + EK_SEARCH_ERROR) * ek_search_value(s, best);

    s->least_near = s->best[0];
    for (s->n_near = 0; s->n_near < n; s->n_near++) {
        const ek_search_layout *l = &s->layouts[s->best[s->n_near]];

        if (l->by_flow != best->by_flow || ek_search_value(s, l) > most)
            return;
        if (l->memory < s->layouts[s->least_near].memory)
            s->least_near = s->best[s->n_near];
    }
}

const char *ek_search_words(const ek_search_layout *l, char *text, size_t cap)
{
    return ek_layout_words(&l->choice, l->balance, text, cap);
}

static int grows_more(const void *a, const void *b)
{
    double x = ((const ek_search_part *)a)->seconds, y = ((const ek_search_part *)b)->seconds;

    return (x < y) - (x > y);
}

int ek_search_grown_parts(const ek_search *s, const ek_search_layout *l, ek_search_part *parts)
{
    const ek_search_layout *best = &s->layouts[s->best[0]];
    ek_search_part all[EK_SIM_PARTS];
    int n = 0, most = EK_SEARCH_GROWN;

    for (int i = 0; i < EK_SIM_PARTS; i++) {
        ek_search_part *p = &all[i];

        p->seconds = ek_sim_part(&l->parts, i, p->name, sizeof(p->name));
        p->seconds -= ek_sim_part(&best->parts, i, p->name, sizeof(p->name));
    }
    qsort(all, EK_SIM_PARTS, sizeof(all[0]), grows_more);
    if (2 * all[0].seconds >= l->step_s - best->step_s)
        most = 1;
    for (; n < most && all[n].seconds > 0.0005 * best->step_s; n++)
        parts[n] = all[n];
    return n;
}

double ek_search_seconds(const ek_search_layout *l)
{
    return l->failures != NULL ? l->failures->step_s : l->step_s;
}
