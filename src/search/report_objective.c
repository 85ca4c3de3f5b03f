/* Failures, money and numbers of ranks in the answer of a search. */
#include "search/report_objective.h"

#include "base/count_text.h"
#include "cost/cost.h"
#include "search/figures.h"

#include <inttypes.h>

static const char *const words_of_failure[] = {"recover", "groups", "restart"};

static const ek_search_layout *best_of(const ek_search *s)
{
    return &s->layouts[s->best[0]];
}

static int with_failures(const ek_search *s)
{
    return s->n_failures > 0;
}

static int with_price(const ek_search *s)
{
    return s->cfg->objective == EK_OBJECTIVE_COST;
}

const char *ek_search_best_title(const ek_search *s)
{
    switch (s->cfg->objective) {
    case EK_OBJECTIVE_GOODPUT: return "the most completed steps under failures";
    case EK_OBJECTIVE_COST: return "the cheapest steps";
    case EK_OBJECTIVE_STEP: break;
    }
    return "the shortest steps";
}

/* --- columns ---------------------------------------------------------------------------------- */

const char *ek_search_after_loss(const ek_search_failures *f)
{
    return f->of.recovers ? "recovers" : "restarts";
}

void ek_search_put_heads(const ek_search *s, FILE *out)
{
    if (with_failures(s))
        fprintf(out, "  completed  goodput  a loss  ");
    if (with_price(s))
        fprintf(out, "      price");
}

void ek_search_put_columns(const ek_search *s, const ek_search_layout *l, FILE *out)
{
    char step[EK_COST_QUANTITY], price[16];

    if (with_failures(s) && l->failures != NULL)
        fprintf(out, "   %8s   %6.4f  %s", ek_cost_quantity(step, l->failures->step_s, "s"),
                l->failures->of.result.goodput, ek_search_after_loss(l->failures));
    else if (with_failures(s))
        fprintf(out, "  %29s", "");
    if (with_price(s))
        fprintf(out, "  %9s", ek_number_text(price, sizeof(price), ek_search_step_price(s, l)));
}

/* --- failures --------------------------------------------------------------------------------- */

/* Copies of experts that a run keeps by default, or only if it is told. */
static void put_copies(const ek_search_failures *f, FILE *out)
{
    if (!f->of.recovers)
        return;
    if (f->of.copies > 1)
        fprintf(out, "; every expert is on %d nodes%s", (int)f->of.copies,
                f->elastic == 1 ? " with --elastic" : "");
    else if (f->of.copies_lengthen > 0)
        fprintf(out, "; two copies of experts would lengthen a step by %.*f %%",
                ek_decimals(100 * f->of.copies_lengthen), 100 * f->of.copies_lengthen);
}

const char *ek_search_elastic_words(const ek_search *s)
{
    const ek_search_failures *f = best_of(s)->failures;

    if (f == NULL || !f->of.recovers)
        return s->cfg->train->elastic ? "--elastic " : "";
    return f->of.copies_lengthen > 0 ? "--elastic --replicas-min 1 " : "--elastic ";
}

static void put_run(const ek_search_layout *l, FILE *out)
{
    const ek_sim_failures *f = &l->failures->of;
    const ek_failures_result *r = &f->result;
    char step[EK_COST_QUANTITY], recoveries[16], restarts[16], lost[16];

    if (f->recovers)
        fputs(f->survival, out);
    else
        fputs("every loss restarts", out);
    put_copies(l->failures, out);
    fprintf(out, "\n%12s%s recover%s and %s restart%s in a run, %s step%s lost, a save every ", "",
            ek_number_text(recoveries, sizeof(recoveries), r->recoveries),
            r->recoveries == 1 ? "y" : "ies",
            ek_number_text(restarts, sizeof(restarts), r->restarts), r->restarts == 1 ? "" : "s",
            ek_number_text(lost, sizeof(lost), r->lost_steps), r->lost_steps == 1 ? "" : "s");
    if (f->save_every > 0)
        fprintf(out, "%" PRId64 " step%s", f->save_every, f->save_every == 1 ? "" : "s");
    else
        fputs("run (none is made)", out);
    fprintf(out, ": %s for each completed step\n",
            ek_cost_quantity(step, l->failures->step_s, "s"));
}

/* The layout with the shortest step, if it is another. */
static void put_shortest(const ek_search *s, FILE *out)
{
    const ek_search_layout *l = &s->layouts[s->shortest];
    char words[EK_SEARCH_WORDS];

    if (s->shortest == s->best[0]) {
        fprintf(out, "  it also has the shortest step without failures\n");
        return;
    }
    fprintf(out, "  the shortest step without failures has %s\n%12s",
            ek_search_words(l, words, sizeof(words)), "");
    if (l->failures != NULL)
        put_run(l, out);
    else
        fprintf(out, "with failures it is refused: training refuses what fewer nodes would do, or "
                     "copies of its experts need more memory\n");
}

void ek_search_put_failures(const ek_search *s, FILE *out)
{
    const ek_sim_failures *f;
    char a[32], b[32];

    if (!with_failures(s))
        return;
    f = &best_of(s)->failures->of;
    fprintf(out, "\nfailures %sof a node every %s, runs of %s\n",
            f->recorded > 0 ? "as recorded, " : "", ek_time_text(a, sizeof(a), f->config.mtbf_s),
            ek_time_text(b, sizeof(b), f->config.seconds));
    fputs("  the best:  ", out);
    put_run(best_of(s), out);
    put_shortest(s, out);
}

/* --- numbers of ranks ------------------------------------------------------------------------- */

int64_t ek_search_best_ranks(const ek_search_ranks *at, int64_t n)
{
    int64_t best = -1;

    for (int64_t i = 0; i < n; i++)
        if (at[i].search != NULL &&
            (best < 0 || ek_search_value(at[i].search, best_of(at[i].search)) <
                             ek_search_value(at[best].search, best_of(at[best].search))))
            best = i;
    return best;
}

static void put_of_ranks(const ek_search_ranks *at, FILE *out)
{
    const ek_search *s = at->search;
    const ek_search_layout *l;
    char step[EK_COST_QUANTITY], tokens[16], words[EK_SEARCH_WORDS];

    if (s == NULL) {
        fprintf(out, "  %6d  %s\n", at->ranks, at->refusal);
        return;
    }
    l = best_of(s);
    fprintf(out, "  %6d %8s %10s", at->ranks, ek_cost_quantity(step, l->step_s, "s"),
            ek_count_text(tokens, sizeof(tokens), ek_search_tokens_per_s(s, l)));
    ek_search_put_columns(s, l, out);
    fprintf(out, "  %s\n", ek_search_words(l, words, sizeof(words)));
}

void ek_search_put_ranks(const ek_search_ranks *at, int64_t n, FILE *out)
{
    int64_t best = ek_search_best_ranks(at, n);

    if (n < 2)
        return;
    fprintf(out, "the best layout of each number of ranks\n   ranks     step   tokens/s");
    ek_search_put_heads(at[best].search, out);
    fprintf(out, "  options of train\n");
    for (int64_t i = 0; i < n; i++)
        put_of_ranks(&at[i], out);
    fprintf(out, "\nof %d ranks, the best of these:\n\n", at[best].ranks);
}

/* --- JSON ------------------------------------------------------------------------------------- */

static json_t *failures_json(const ek_search_failures *f)
{
    const ek_failures_result *r = &f->of.result;

    return json_pack("{s:s, s:b, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:s}", "on_failure",
                     words_of_failure[f->what], "recovers", f->of.recovers, "copies", f->of.copies,
                     "copies_would_lengthen", f->of.copies_lengthen, "completed_step_ms",
                     f->step_s * 1e3, "goodput", r->goodput, "ettr", r->ettr, "recoveries",
                     r->recoveries, "restarts", r->restarts, "lost_steps", r->lost_steps,
                     "save_every", (json_int_t)f->of.save_every, "survival", f->of.survival);
}

void ek_search_add_json(const ek_search *s, const ek_search_layout *l, json_t *layout)
{
    if (l->failures != NULL)
        json_object_set_new(layout, "failures", failures_json(l->failures));
    if (s->cfg->cluster->node_s_price > 0)
        json_object_set_new(layout, "step_price", json_real(ek_search_step_price(s, l)));
}
