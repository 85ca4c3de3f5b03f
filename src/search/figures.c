/* Figures of layouts. */
#include "search/figures.h"

#include "sim/report.h"

#include <stdio.h>

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

double ek_search_most_grown(const ek_search_layout *from, const ek_search_layout *to, char *name,
                            size_t cap)
{
    double most = 0;
    char text[EK_SIM_PART_NAME];

    name[0] = '\0';
    for (int i = 0; i < EK_SIM_PARTS; i++) {
        double grown = ek_sim_part(&to->parts, i, text, sizeof(text)) -
                       ek_sim_part(&from->parts, i, text, sizeof(text));

        if (grown > most) {
            most = grown;
            (void)snprintf(name, cap, "%s", text);
        }
    }
    return most;
}

double ek_search_seconds(const ek_search_layout *l)
{
    return l->failures != NULL ? l->failures->step_s : l->step_s;
}
