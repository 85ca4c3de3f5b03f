/* The page of a search: the best layouts, time against memory, and what each value costs. */
#include "search/report_html.h"

#include "base/count_text.h"
#include "cost/cost.h"
#include "search/report.h"
#include "sim/chart.h"
#include "sim/report_html.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const ek_search_layout *layout_of(const ek_search *s, int64_t index)
{
    return &s->layouts[index];
}

static const ek_search_layout *best_layout(const ek_search *s)
{
    return layout_of(s, s->best[0]);
}

/* What a layout's options are, in words if they are train's defaults. */
static const char *shown_words(const ek_search_layout *l, char *text, size_t cap)
{
    ek_search_words(l, text, cap);
    return text[0] != '\0' ? text : "(all as train has them by default)";
}

/* Options, of which a line ends after none but whole ones. */
static void put_words_cell(const ek_search_layout *l, FILE *f)
{
    char words[EK_SEARCH_WORDS];
    const char *from = shown_words(l, words, sizeof(words)), *next;

    fputs("<td><code class=\"copy\">", f);
    for (; from != NULL; from = next != NULL ? next + 1 : NULL) {
        next = strstr(from, " --");
        fputs("<span class=\"w\">", f);
        ek_html_format(f, "%.*s", (int)(next != NULL ? (size_t)(next - from) : strlen(from)), from);
        fputs(next != NULL ? "</span> " : "</span>", f);
    }
    fputs("</code></td>", f);
}

/* --- head ------------------------------------------------------------------------------------- */

static void put_head(const ek_search *s, FILE *f)
{
    const ek_sim_layout *m = &s->model;
    const char *model = s->cfg->train->model;
    char title[1024], sub[512 + EK_SIM_MACHINE], a[16], b[16], machine[EK_SIM_MACHINE];

    (void)snprintf(title, sizeof(title), "Layouts of %s on %d ranks of %s",
                   model != NULL ? model : "", s->cfg->ranks, s->cfg->cluster->name);
    (void)snprintf(sub, sizeof(sub),
                   "%s parameters, %s active for a token; %s. A step: %" PRId64
                   " sequences of %" PRId64 " tokens. Machine %s.",
                   ek_count_text(a, sizeof(a), (double)m->params),
                   ek_count_text(b, sizeof(b), (double)m->active_params), m->dtype, m->batch,
                   m->step_tokens / m->batch, ek_sim_machine_text(s->cfg->cluster, machine));
    ek_html_begin(f, title, sub);
}

static void put_tiles(const ek_search *s, FILE *f)
{
    const ek_search_layout *best = best_layout(s);
    char text[256], a[32];

    fputs("<dl class=\"tiles\">\n", f);
    ek_html_tile(f, "Shortest step", best->step_s, "s",
                 s->cfg->trace != NULL ? "with the loads of the trace"
                                       : "with even loads of experts");
    ek_html_tile(f, "Tokens per second", ek_search_tokens_per_s(s, best), "",
                 "of all ranks together");
    ek_html_tile(f, "MFU", 100 * ek_search_mfu(s, best), "%", NULL);
    (void)snprintf(text, sizeof(text), "%.0f %% of %s that a rank may need",
                   100 * ek_search_memory_share(s, best), ek_memory_text(a, sizeof(a), s->memory));
    ek_html_tile(f, "Memory", best->memory, "B", s->memory > 0 ? text : NULL);
    (void)snprintf(text, sizeof(text), "%" PRId64 " need more memory, %" PRId64 " cannot be better",
                   s->count[EK_OUTCOME_TOO_MUCH], s->count[EK_OUTCOME_BOUND]);
    ek_html_tile(f, "Layouts", (double)s->n, "", text);
    (void)snprintf(text, sizeof(text), "in %s", ek_cost_quantity(a, s->took_s, "s"));
    ek_html_tile(f, "Simulated", (double)s->count[EK_OUTCOME_SIMULATED], "", text);
    fputs("</dl>\n", f);
}

/* --- the best --------------------------------------------------------------------------------- */

static void put_command(const ek_search *s, FILE *f)
{
    const char *model = s->cfg->train->model;
    char words[EK_SEARCH_WORDS];

    fputs("<pre><code class=\"copy\">", f);
    ek_html_format(f,
                   "evenkeel train --model %s --ranks %d --batch %" PRId64 " --seq %" PRId64
                   " %s %s--data ...",
                   model != NULL ? model : "", s->cfg->ranks, s->model.batch,
                   s->model.step_tokens / s->model.batch,
                   ek_search_words(best_layout(s), words, sizeof(words)),
                   ek_search_elastic_words(s));
    fputs("</code></pre>\n", f);
}

static void put_layout_row(const ek_search *s, const ek_search_layout *l, int64_t number, FILE *f)
{
    char text[16];

    fprintf(f, "<tr%s><th scope=\"row\" class=\"n\">%" PRId64 "</th>",
            l == best_layout(s) ? " class=\"best\"" : "", number);
    ek_html_number_cell(f, l->step_s, "s");
    ek_html_number_cell(f, ek_search_tokens_per_s(s, l), "");
    fprintf(f, "<td class=\"n\">%.1f %%</td>", 100 * ek_search_mfu(s, l));
    if (s->n_failures > 0) {
        ek_html_number_cell(f, l->failures->step_s, "s");
        fprintf(f, "<td class=\"n\">%.4f</td><td>%s</td>", l->failures->of.result.goodput,
                ek_search_after_loss(l->failures));
    }
    if (s->cfg->objective == EK_OBJECTIVE_COST)
        fprintf(f, "<td class=\"n\">%s</td>",
                ek_number_text(text, sizeof(text), ek_search_step_price(s, l)));
    ek_html_number_cell(f, l->memory, "B");
    if (s->memory > 0)
        fprintf(f, "<td class=\"n\">%.0f %%</td>", 100 * ek_search_memory_share(s, l));
    fprintf(f, "<td class=\"n\">%s</td>",
            ek_number_text(text, sizeof(text), ek_search_sequences(s, l)));
    put_words_cell(l, f);
    fputs("</tr>\n", f);
}

static void put_layouts(const ek_search *s, const char *caption, const int64_t *index, int64_t n,
                        FILE *f)
{
    char heads[200];

    (void)snprintf(heads, sizeof(heads),
                   ">|>step|>tokens/s|>MFU%s%s|>memory%s|>sequences a rank|options of train (a "
                   "click selects)",
                   s->n_failures > 0 ? "|>completed step|>goodput|a loss" : "",
                   s->cfg->objective == EK_OBJECTIVE_COST ? "|>price of a step" : "",
                   s->memory > 0 ? "|>of limit" : "");
    ek_html_table(f, caption, heads);
    for (int64_t i = 0; i < n; i++)
        put_layout_row(s, layout_of(s, index[i]), i + 1, f);
    ek_html_table_end(f);
}

/* Where the steps of the best go, all on the scale of the longest. */
static void put_breakdown(const ek_search *s, FILE *f)
{
    ek_html_part parts[EK_HTML_COLOURS];
    double longest = 0;

    for (int64_t i = 0; i < s->n_best; i++)
        longest = fmax(longest, layout_of(s, s->best[i])->step_s);
    ek_sim_colour_parts(&best_layout(s)->parts, parts);
    ek_html_legend(f, parts, EK_HTML_COLOURS);
    ek_html_table(f, "Where their steps go, mean of the ranks.", ">|>step|");
    for (int64_t i = 0; i < s->n_best; i++) {
        const ek_search_layout *l = layout_of(s, s->best[i]);

        ek_sim_colour_parts(&l->parts, parts);
        fprintf(f, "<tr><th scope=\"row\" class=\"n\">%" PRId64 "</th>", i + 1);
        ek_html_number_cell(f, l->step_s, "s");
        fputs("<td style=\"width:82%\">", f);
        ek_html_put_bar(
            f, &(ek_html_bar){.parts = parts, .n = EK_HTML_COLOURS, .whole = longest, .unit = "s"});
        fputs("</td></tr>\n", f);
    }
    ek_html_table_end(f);
}

static void put_best(const ek_search *s, FILE *f)
{
    static const char *const titles[] = {
        "The shortest steps", "The most completed steps under failures", "The cheapest steps"};
    char near[EK_SEARCH_NEAR], loads[EK_SEARCH_LOADS];

    ek_html_section(f, titles[s->cfg->objective]);
    ek_html_paragraph(f, "To train with the best, beside what else was given to the search:");
    put_command(s, f);
    if (ek_search_is_for_others(s))
        ek_html_paragraph(f, EK_SEARCH_FOR_OTHERS(" "));
    if (s->even_s > 0) {
        fputs("<p>Loads: ", f);
        ek_html_text(f, ek_search_loads_text(s, loads));
        fputs(".</p>\n", f);
    }
    put_layouts(s, NULL, s->best, s->n_best, f);
    ek_html_paragraph(f, ek_search_near_text(s, " ", near));
    put_breakdown(s, f);
    ek_html_section_end(f);
}

/* --- time against memory ---------------------------------------------------------------------- */

enum { DOTS = 800, SLOWEST = 3 };

typedef struct {
    ek_chart_point *dots, *pool;
    char (*words)[EK_SEARCH_WORDS]; /* names of dots, then of the pool */
    char (*labels)[24];             /* of the pool */
    int n_dots, n_left_out;
} chart_points;

/* Simulated as the best was, by flow or under failures too, and shown: not far worse than what is
 * of interest. */
static int is_shown(const ek_search *s, const ek_search_layout *l)
{
    double worst = ek_search_value(s, layout_of(s, s->pool[s->n_pool - 1]));

    return l->outcome == EK_OUTCOME_SIMULATED && l->step_s > 0 &&
           l->by_flow == best_layout(s)->by_flow && (s->n_failures == 0 || l->failures != NULL) &&
           ek_search_value(s, l) <= fmax(worst, SLOWEST * ek_search_value(s, best_layout(s)));
}

static void add_dots(const ek_search *s, chart_points *p)
{
    int64_t all = 0, seen = 0;

    for (int64_t i = 0; i < s->n; i++)
        all += is_shown(s, layout_of(s, i));
    for (int64_t i = 0; i < s->n; i++) {
        const ek_search_layout *l = layout_of(s, i);

        if (!is_shown(s, l))
            continue;
        if (all <= DOTS || seen * DOTS / all != (seen + 1) * DOTS / all) {
            ek_search_words(l, p->words[p->n_dots], EK_SEARCH_WORDS);
            p->dots[p->n_dots] =
                (ek_chart_point){l->memory, ek_search_value(s, l), p->words[p->n_dots], NULL};
            p->n_dots++;
        }
        seen++;
    }
    p->n_left_out = (int)(s->count[EK_OUTCOME_SIMULATED] - p->n_dots);
}

static void add_pool(const ek_search *s, chart_points *p)
{
    for (int64_t i = 0; i < s->n_pool; i++) {
        const ek_search_layout *l = layout_of(s, s->pool[i]);

        ek_search_words(l, p->words[DOTS + i], EK_SEARCH_WORDS);
        (void)snprintf(p->labels[i], sizeof(p->labels[i]), "%" PRId64, i + 1);
        p->pool[i] =
            (ek_chart_point){l->memory, ek_search_value(s, l), p->words[DOTS + i], p->labels[i]};
    }
}

static int spans_much(double most, double least)
{
    return most >= 8 * least;
}

static void put_pool_chart(const ek_search *s, const chart_points *p, FILE *f)
{
    ek_chart_series series[] = {{"simulated", EK_HTML_BUBBLE, EK_CHART_DOTS, 1, p->dots, p->n_dots},
                                {"no other is better in both", EK_HTML_EXPERTS, EK_CHART_STAIRS, 0,
                                 p->pool, (int)s->n_pool}};
    static const char *const labels[] = {"step time", "time for a completed step",
                                         "node seconds of a step"};
    double most = 0, least = HUGE_VAL, slowest = 0;
    ek_chart chart = {.summary = "Step time against memory of the simulated layouts; those that no "
                                 "other beats in both are joined by a line and listed below",
                      .width = 960,
                      .height = 420,
                      .x = {.label = "memory of the rank with most", .unit = "B"},
                      .y = {.label = labels[s->cfg->objective], .unit = "s"},
                      .series = series,
                      .n_series = 2,
                      .limit_name = "memory that a rank may need"};

    for (int i = 0; i < p->n_dots; i++) {
        most = fmax(most, p->dots[i].x);
        least = fmin(least, p->dots[i].x);
        slowest = fmax(slowest, p->dots[i].y);
    }
    if (s->memory > 0 && s->memory < 1.5 * most)
        chart.limit = s->memory;
    chart.x.logarithmic = spans_much(most, least);
    chart.y.logarithmic = spans_much(slowest, ek_search_value(s, best_layout(s)));
    ek_chart_put(f, &chart);
}

static void put_chart_and_table(const ek_search *s, chart_points *p, FILE *f)
{
    char text[256];

    add_dots(s, p);
    add_pool(s, p);
    put_pool_chart(s, p, f);
    if (p->n_left_out > 0) {
        (void)snprintf(text, sizeof(text),
                       "%d simulated layouts are not shown: they are worse than %d times the "
                       "best, were not simulated by flow, with the trace or under failures, or "
                       "are too many.",
                       p->n_left_out, SLOWEST);
        ek_html_paragraph(f, text);
    }
    put_layouts(s, "The layouts of the line: the best, and the best with less memory.", s->pool,
                s->n_pool, f);
}

static void put_pool(const ek_search *s, FILE *f)
{
    size_t pool = (size_t)s->n_pool;
    chart_points p = {.dots = calloc(DOTS, sizeof(*p.dots)),
                      .pool = calloc(pool, sizeof(*p.pool)),
                      .words = calloc(DOTS + pool, sizeof(*p.words)),
                      .labels = calloc(pool, sizeof(*p.labels))};

    ek_html_section(f, "Time against memory");
    if (p.dots != NULL && p.pool != NULL && p.words != NULL && p.labels != NULL)
        put_chart_and_table(s, &p, f);
    else
        ek_html_paragraph(f, "There was no memory for this chart.");
    ek_html_section_end(f);
    free(p.dots);
    free(p.pool);
    free(p.words);
    free(p.labels);
}

/* --- values ----------------------------------------------------------------------------------- */

/* Why the best layout with a value is not the best. */
static void put_reason(const ek_search *s, const ek_search_layout *l, FILE *f)
{
    ek_search_part parts[EK_SEARCH_GROWN];
    int n = ek_search_grown_parts(s, l, parts);

    fputs("<td>", f);
    if (l == best_layout(s))
        fputs("the best", f);
    for (int i = 0; i < n; i++) {
        ek_html_format(f, "%s%s +", i > 0 ? " and " : "", parts[i].name);
        ek_html_quantity(f, parts[i].seconds, "s");
    }
    fputs("</td>", f);
}

static void put_corner_row(const ek_search *s, const ek_search_corner *c, double longest, FILE *f)
{
    const ek_search_layout *best = best_layout(s), *l;
    ek_html_part part = {"step", 0, EK_HTML_ATTENTION};
    char value[32];

    fprintf(f, "<tr%s><th scope=\"row\"><code>--",
            c->best >= 0 && layout_of(s, c->best) == best ? " class=\"best\"" : "");
    ek_html_format(f, "%s %s", ek_choice_name(c->choice),
                   ek_choice_text(c->choice, c->value, value, sizeof(value)));
    fputs("</code></th>", f);
    if (c->best < 0) {
        fputs("<td class=\"n\"></td><td></td><td>", f);
        if (c->least >= 0) {
            fputs("the smallest needs ", f);
            ek_html_quantity(f, layout_of(s, c->least)->memory, "B");
        } else {
            fputs("train accepts no layout with it", f);
        }
        fputs("</td><td></td></tr>\n", f);
        return;
    }
    l = layout_of(s, c->best);
    part.value = ek_search_seconds(l);
    part.colour = l == best ? EK_HTML_EXPERTS : EK_HTML_ATTENTION;
    ek_html_number_cell(f, ek_search_seconds(l), "s");
    fputs("<td style=\"width:17%\">", f);
    ek_html_put_bar(f, &(ek_html_bar){.parts = &part, .n = 1, .whole = longest, .unit = "s"});
    if (l != best)
        fprintf(f, "<small>%+.1f %%</small>",
                100 * (ek_search_value(s, l) / ek_search_value(s, best) - 1));
    fputs("</td>", f);
    put_reason(s, l, f);
    put_words_cell(l, f);
    fputs("</tr>\n", f);
}

static void put_corners(const ek_search *s, FILE *f)
{
    double longest = 0;

    for (int i = 0; i < s->n_corners; i++)
        if (s->corners[i].best >= 0)
            longest = fmax(longest, ek_search_seconds(layout_of(s, s->corners[i].best)));
    ek_html_section(f, "What each value costs");
    ek_html_paragraph(f, "The best layout with each value of an option, and the part of its step "
                         "that is longer by most than in the best of all, or two of them where one "
                         "is less than half of the difference.");
    ek_html_table(f, NULL,
                  s->n_failures > 0
                      ? "value|>completed step||why it is not the best|options of train"
                      : "value|>step||why it is not the best|options of train");
    for (int i = 0; i < s->n_corners; i++)
        put_corner_row(s, &s->corners[i], longest, f);
    ek_html_table_end(f);
    ek_html_section_end(f);
}

/* --- the page --------------------------------------------------------------------------------- */

void ek_search_write_html(const ek_search *s, FILE *out)
{
    put_head(s, out);
    put_tiles(s, out);
    put_best(s, out);
    put_pool(s, out);
    put_corners(s, out);
    ek_html_end(out, "Found by evenkeel search (docs/search.md). evenkeel simulate --report with "
                     "the same options shows where the time of a layout goes. Small differences "
                     "between layouts mean little: measure the best few.");
}
