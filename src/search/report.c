/* Tables and JSON of a search. */
#include "search/report.h"

#include "base/count_text.h"
#include "base/file.h"
#include "base/printable.h"
#include "cost/cost.h"
#include "sim/report.h"

#include <stdlib.h>
#include <string.h>

static const ek_search_layout *best_of(const ek_search *s)
{
    return &s->layouts[s->best[0]];
}

/* --- JSON ------------------------------------------------------------------------------------- */

static json_t *options_json(const ek_search_layout *l)
{
    json_t *o = json_object();
    char text[32];

    for (int i = 0; i < EK_CHOICES; i++) {
        ek_choice c = (ek_choice)i;
        int64_t value = l->choice.value[i];

        json_object_set_new(o, ek_choice_name(c),
                            c == EK_CHOICE_RECOMPUTE
                                ? json_string(ek_choice_text(c, value, text, sizeof(text)))
                                : json_integer(value));
    }
    if (l->balance != NULL)
        json_object_set_new(o, "balance", json_string(l->balance));
    return o;
}

/* As in a pool file. */
static json_t *pool_layout_json(const ek_search *s, const ek_search_layout *l)
{
    json_t *o = json_pack("{s:o, s:f, s:f, s:f, s:f}", "options", options_json(l), "step_ms",
                          l->step_s * 1e3, "tokens_per_s", ek_search_tokens_per_s(s, l), "mfu",
                          ek_search_mfu(s, l), "memory_mb", l->memory / 1e6);

    ek_search_add_json(s, l, o);
    return o;
}

/* As in an answer. */
static json_t *layout_json(const ek_search *s, const ek_search_layout *l)
{
    json_t *o = pool_layout_json(s, l);

    json_object_set_new(o, "sequences_a_rank", json_real(ek_search_sequences(s, l)));
    if (s->memory > 0)
        json_object_set_new(o, "memory_share", json_real(ek_search_memory_share(s, l)));
    return o;
}

static json_t *layouts_json(const ek_search *s, const int64_t *index, int64_t n)
{
    json_t *all = json_array();

    for (int64_t i = 0; i < n; i++)
        json_array_append_new(all, layout_json(s, &s->layouts[index[i]]));
    return all;
}

/* Of the smallest layout with a value. */
static void add_need(json_t *o, const ek_search_layout *l)
{
    json_object_set_new(o, "needs_mb", json_real(l->memory / 1e6));
    if (l->copies > 0)
        json_object_set_new(o, "copies_mb", json_real(l->copies / 1e6));
}

static json_t *near_json(const ek_search *s)
{
    return json_pack("{s:f, s:I, s:o}", "error", EK_SEARCH_ERROR, "layouts", (json_int_t)s->n_near,
                     "least_memory", layout_json(s, &s->layouts[s->least_near]));
}

static json_t *corner_json(const ek_search *s, const ek_search_corner *c)
{
    char text[EK_SIM_PART_NAME];
    const char *value = ek_choice_text(c->choice, c->value, text, sizeof(text));
    json_t *o =
        json_pack("{s:s, s:o}", "choice", ek_choice_name(c->choice), "value",
                  c->choice == EK_CHOICE_RECOMPUTE ? json_string(value) : json_integer(c->value));

    if (c->best < 0 && c->least >= 0)
        add_need(o, &s->layouts[c->least]);
    if (c->best >= 0) {
        const ek_search_layout *l = &s->layouts[c->best];
        static const char *const names[] = {"most_grown", "also_grown"};
        static const char *const times[] = {"grown_ms", "also_grown_ms"};
        ek_search_part parts[EK_SEARCH_GROWN];
        int n = ek_search_grown_parts(s, l, parts);

        json_object_set_new(o, "layout", layout_json(s, l));
        for (int i = 0; i < n; i++) {
            json_object_set_new(o, names[i], json_string(parts[i].name));
            json_object_set_new(o, times[i], json_real(parts[i].seconds * 1e3));
        }
    }
    return o;
}

static json_t *counts_json(const ek_search *s)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "all", (json_int_t)s->n, "refused",
                     (json_int_t)s->count[EK_OUTCOME_REFUSED], "too_large",
                     (json_int_t)s->count[EK_OUTCOME_TOO_MUCH], "too_large_for_copies",
                     (json_int_t)s->n_no_room_for_copies, "dropped",
                     (json_int_t)s->count[EK_OUTCOME_BOUND], "simulated",
                     (json_int_t)s->count[EK_OUTCOME_SIMULATED], "simulated_with_trace",
                     (json_int_t)s->n_loaded, "simulated_by_flow", (json_int_t)s->n_flow);
}

static const char *policy_of(const ek_search *s, const ek_search_layout *l)
{
    return l->balance != NULL ? l->balance : s->cfg->train->balance;
}

static json_t *loads_json(const ek_search *s)
{
    const ek_search_layout *best = best_of(s);

    return json_pack("{s:I, s:s, s:s, s:f, s:f, s:f, s:f}", "steps", (json_int_t)best->trace_steps,
                     "policy", s->cfg->train->balance, "best_policy", policy_of(s, best),
                     "max_over_mean_before", best->primary_max, "max_over_mean", best->planned_max,
                     "even_step_ms", s->even_s * 1e3, "off_step_ms", s->off_s * 1e3);
}

static const char *const objectives[] = {"step", "goodput", "cost"};

/* What all layouts share. */
static json_t *setting_json(const ek_search *s)
{
    json_t *o = json_pack("{s:s, s:i, s:I, s:I, s:s, s:I, s:I}", "cluster", s->cfg->cluster->name,
                          "ranks", s->cfg->ranks, "batch", (json_int_t)s->model.batch, "seq",
                          (json_int_t)(s->model.step_tokens / s->model.batch), "dtype",
                          s->model.dtype, "params", (json_int_t)s->model.params, "active_params",
                          (json_int_t)s->model.active_params);

    json_object_set_new(o, "objective", json_string(objectives[s->cfg->objective]));
    if (s->memory > 0)
        json_object_set_new(o, "memory_limit_mb", json_real(s->memory / 1e6));
    return o;
}

/* The best layout of each number of ranks. */
static json_t *ranks_json(const ek_search_ranks *at, int64_t n)
{
    json_t *all = json_array();

    for (int64_t i = 0; i < n; i++) {
        json_t *o = json_pack("{s:i}", "ranks", at[i].ranks);

        if (at[i].search != NULL)
            json_object_set_new(o, "layout", layout_json(at[i].search, best_of(at[i].search)));
        else
            json_object_set_new(o, "refusal", json_string(at[i].refusal));
        json_array_append_new(all, o);
    }
    return all;
}

void ek_search_write_json(const ek_search_ranks *at, int64_t n, FILE *out)
{
    const ek_search *s = at[ek_search_best_ranks(at, n)].search;
    json_t *o = setting_json(s), *corners = json_array();

    for (int i = 0; i < s->n_corners; i++)
        json_array_append_new(corners, corner_json(s, &s->corners[i]));
    json_object_update_new(o, json_pack("{s:o, s:o, s:o, s:o, s:f}", "layouts", counts_json(s),
                                        "best", layouts_json(s, s->best, s->n_best), "corners",
                                        corners, "pool", layouts_json(s, s->pool, s->n_pool),
                                        "took_s", s->took_s));
    json_object_set_new(o, "machine", ek_sim_machine_json(s->cfg->cluster));
    json_object_set_new(o, "near", near_json(s));
    if (s->even_s > 0)
        json_object_set_new(o, "loads", loads_json(s));
    if (n > 1)
        json_object_set_new(o, "by_ranks", ranks_json(at, n));
    json_dumpf(o, out, 0);
    fputc('\n', out);
    json_decref(o);
}

ek_status ek_search_pool_text(const ek_search *s, char **text)
{
    json_t *o = json_pack("{s:i}", "evenkeel_pool", 1), *layouts = json_array();

    json_object_update_new(o, setting_json(s));
    for (int64_t i = 0; i < s->n_pool_for_runs; i++)
        json_array_append_new(layouts, pool_layout_json(s, &s->layouts[s->pool_for_runs[i]]));
    json_object_set_new(o, "layouts", layouts);
    *text = json_dumps(o, JSON_INDENT(1));
    json_decref(o);
    EK_REQUIRE(*text != NULL, EK_ENOMEM, "no memory for a pool of layouts");
    return EK_OK;
}

ek_status ek_search_write_pool(const ek_search *s, const char *path)
{
    char *text = NULL;
    ek_status st = ek_search_pool_text(s, &text);

    if (st == EK_OK)
        st = ek_file_replace(NULL, path, text, strlen(text));
    free(text);
    return st;
}

/* --- text ------------------------------------------------------------------------------------- */

static void put_head(const ek_search *s, FILE *out)
{
    const ek_sim_layout *m = &s->model;
    int64_t each = ek_cluster_node_ranks(s->cfg->cluster),
            nodes = (s->cfg->ranks + each - 1) / each;
    char a[32], b[16], name[EK_PRINTABLE_GROWTH * EK_CLUSTER_NAME];
    char machine[EK_SIM_MACHINE];

    fprintf(out, "cluster   %s: %d ranks on %lld node%s",
            ek_printable(name, sizeof(name), s->cfg->cluster->name), s->cfg->ranks,
            (long long)nodes, nodes > 1 ? "s" : "");
    if (s->memory > 0)
        fprintf(out, "; %s of memory a rank", ek_memory_text(a, sizeof(a), s->memory));
    fprintf(out, "\nmachine   %s\n", ek_sim_machine_text(s->cfg->cluster, machine));
    fprintf(out, "model     %s parameters, %s active for a token; %s\n",
            ek_count_text(a, sizeof(a), (double)m->params),
            ek_count_text(b, sizeof(b), (double)m->active_params), m->dtype);
    fprintf(out, "step      %lld sequences of %lld tokens\n", (long long)m->batch,
            (long long)(m->step_tokens / m->batch));
}

/* Where no column has it. */
static void put_price(const ek_search *s, FILE *out)
{
    double node_s = s->cfg->cluster->node_s_price;
    char step[16], hour[16];

    if (node_s > 0 && s->cfg->objective != EK_OBJECTIVE_COST)
        fprintf(out, "price     %s a step with the best, at %s for a node and hour\n",
                ek_number_text(step, sizeof(step), ek_search_step_price(s, best_of(s))),
                ek_number_text(hour, sizeof(hour), 3600 * node_s));
}

static void put_counts(const ek_search *s, FILE *out)
{
    char took[EK_COST_QUANTITY];

    fprintf(out, "layouts   %lld looked at in %s:", (long long)s->n,
            ek_cost_quantity(took, s->took_s, "s"));
    if (s->count[EK_OUTCOME_REFUSED] > 0)
        fprintf(out, " %lld are refused by train,", (long long)s->count[EK_OUTCOME_REFUSED]);
    fprintf(out, " %lld need more memory", (long long)s->count[EK_OUTCOME_TOO_MUCH]);
    if (s->n_no_room_for_copies > 0)
        fprintf(out, " (%lld for copies of what one host alone has)",
                (long long)s->n_no_room_for_copies);
    fprintf(out, ", %lld cannot be better than others,\n          %lld were simulated",
            (long long)s->count[EK_OUTCOME_BOUND], (long long)s->count[EK_OUTCOME_SIMULATED]);
    if (s->n_loaded > 0)
        fprintf(out, ", %lld times with the loads of the trace", (long long)s->n_loaded);
    if (s->n_flow > 0)
        fprintf(out, ", %lld by flow", (long long)s->n_flow);
    fprintf(out, "\n");
}

const char *ek_search_loads_text(const ek_search *s, char *text)
{
    const ek_search_layout *best = best_of(s);
    char step[EK_COST_QUANTITY], other[EK_COST_QUANTITY];
    size_t n;

    n = (size_t)snprintf(
        text, EK_SEARCH_LOADS,
        "%lld step%s of the trace, with --balance %s where a layout has no other; ",
        (long long)best->trace_steps, best->trace_steps == 1 ? "" : "s", s->cfg->train->balance);
    if (best->primary_max > 0)
        n += (size_t)snprintf(text + n, EK_SEARCH_LOADS - n,
                              "the best: ranks have max/mean %.3f rows with primary copies only, "
                              "%.3f as planned by %s; ",
                              best->primary_max, best->planned_max, policy_of(s, best));
    n += (size_t)snprintf(text + n, EK_SEARCH_LOADS - n, "its step takes %s, with even loads %s",
                          ek_cost_quantity(step, best->step_s, "s"),
                          ek_cost_quantity(other, s->even_s, "s"));
    if (strcmp(policy_of(s, best), "off") != 0 && s->off_s > 0)
        (void)snprintf(text + n, EK_SEARCH_LOADS - n, ", with --balance off %s",
                       ek_cost_quantity(other, s->off_s, "s"));
    return text;
}

static void put_loads(const ek_search *s, FILE *out)
{
    char text[EK_SEARCH_LOADS], *from = text, *next;

    if (s->even_s <= 0)
        return;
    ek_search_loads_text(s, text);
    fputs("loads     ", out);
    for (; (next = strstr(from, "; ")) != NULL; from = next + 2)
        fprintf(out, "%.*s;\n          ", (int)(next - from), from);
    fprintf(out, "%s\n", from);
}

static void put_layout(const ek_search *s, const ek_search_layout *l, FILE *out)
{
    char step[EK_COST_QUANTITY], tokens[16], mfu[16], memory[16], sequences[16];
    char words[EK_SEARCH_WORDS];

    fprintf(out, "  %8s %10s %6s %8sB", ek_cost_quantity(step, l->step_s, "s"),
            ek_number_text(tokens, sizeof(tokens), ek_search_tokens_per_s(s, l)),
            ek_number_text(mfu, sizeof(mfu), ek_search_mfu(s, l)),
            ek_count_text(memory, sizeof(memory), l->memory));
    if (s->memory > 0)
        fprintf(out, "  %6.0f %%", 100 * ek_search_memory_share(s, l));
    ek_search_put_columns(s, l, out);
    fprintf(out, "  %9s  %s\n",
            ek_number_text(sequences, sizeof(sequences), ek_search_sequences(s, l)),
            ek_search_words(l, words, sizeof(words)));
}

static void put_table(const ek_search *s, const char *title, const int64_t *index, int64_t n,
                      FILE *out)
{
    fprintf(out, "\n%s\n      step   tokens/s    MFU    memory%s", title,
            s->memory > 0 ? "  of limit" : "");
    ek_search_put_heads(s, out);
    fprintf(out, "  seqs/rank  options of train\n");
    for (int64_t i = 0; i < n; i++)
        put_layout(s, &s->layouts[index[i]], out);
}

/* Of the smallest layout with a value. */
static void put_need(const ek_search *s, const ek_search_layout *l, FILE *out)
{
    char a[16], b[32], c[16];

    fprintf(out, " needs %sB of %s", ek_count_text(a, sizeof(a), l->memory),
            ek_memory_text(b, sizeof(b), s->memory));
    if (l->copies > 0)
        fprintf(out, ", %sB for copies of what one host alone has",
                ek_count_text(c, sizeof(c), l->copies));
    fprintf(out, "\n");
}

const char *ek_search_near_text(const ek_search *s, const char *between, char *text)
{
    const ek_search_layout *l = &s->layouts[s->least_near];
    int64_t others = s->n_near - 1;
    char words[EK_SEARCH_WORDS], memory[16], step[EK_COST_QUANTITY];
    size_t n;

    if (others < 1) {
        (void)snprintf(text, EK_SEARCH_NEAR,
                       "No other is within %g %% of the best, the mean error of simulated steps.",
                       100 * EK_SEARCH_ERROR);
        return text;
    }
    n = (size_t)snprintf(text, EK_SEARCH_NEAR,
                         "The best and %lld other%s are within %g %%, the mean error of simulated "
                         "steps: they cannot be told apart.%s",
                         (long long)others, others > 1 ? "s" : "", 100 * EK_SEARCH_ERROR, between);
    if (l == best_of(s))
        (void)snprintf(text + n, EK_SEARCH_NEAR - n, "Of these the best has least memory.");
    else
        (void)snprintf(text + n, EK_SEARCH_NEAR - n, "Of these %s has least memory: %sB, with %s.",
                       ek_search_words(l, words, sizeof(words))[0] != '\0' ? words
                                                                           : "train's default",
                       ek_count_text(memory, sizeof(memory), l->memory),
                       ek_cost_quantity(step, ek_search_seconds(l), "s"));
    return text;
}

static void put_near(const ek_search *s, FILE *out)
{
    char text[EK_SEARCH_NEAR];

    fprintf(out, "\n%s\n", ek_search_near_text(s, "\n", text));
}

static void put_corner(const ek_search *s, const ek_search_corner *c, FILE *out)
{
    const ek_search_layout *best = best_of(s), *l = &s->layouts[c->best < 0 ? 0 : c->best];
    char value[32], name[64], a[32], b[32], words[EK_SEARCH_WORDS];
    ek_search_part parts[EK_SEARCH_GROWN];

    (void)snprintf(name, sizeof(name), "%s %s", ek_choice_name(c->choice),
                   ek_choice_text(c->choice, c->value, value, sizeof(value)));
    fprintf(out, "  %-20s", name);
    if (c->best < 0 && c->least < 0) {
        fprintf(out, " train accepts no layout with it\n");
    } else if (c->best < 0) {
        put_need(s, &s->layouts[c->least], out);
    } else if (l == best) {
        fprintf(out, " %8s          the best\n", ek_cost_quantity(a, ek_search_seconds(l), "s"));
    } else {
        int n = ek_search_grown_parts(s, l, parts);

        fprintf(out, " %8s %+7.1f %%", ek_cost_quantity(a, ek_search_seconds(l), "s"),
                100 * (ek_search_value(s, l) / ek_search_value(s, best) - 1));
        for (int i = 0; i < n; i++)
            fprintf(out, "%s%s +%s", i > 0 ? " and " : "  ", parts[i].name,
                    ek_cost_quantity(b, parts[i].seconds, "s"));
        fprintf(out, "\n%*s%s\n", 42, "", ek_search_words(l, words, sizeof(words)));
    }
}

static void put_corners(const ek_search *s, FILE *out)
{
    fprintf(out, "\nthe best layout with each value%s, and the parts of its step that grew most\n",
            s->n_failures > 0 ? ", time for each completed step" : "");
    for (int i = 0; i < s->n_corners; i++)
        put_corner(s, &s->corners[i], out);
}

int ek_search_is_for_others(const ek_search *s)
{
    return strcmp(s->cfg->cluster->device, "cuda") == 0 && s->cfg->ranks > 1;
}

static void put_end(const ek_search *s, FILE *out)
{
    const ek_search_config *c = s->cfg;
    char model[1024], words[EK_SEARCH_WORDS], text[16];

    fprintf(out, "\n%sTo train with the best, beside what else was given here:\n\n",
            c->trace == NULL ? "Loads of experts are even; --trace gives real ones. " : "");
    fprintf(out,
            "    evenkeel train --model %s --ranks %d --batch %lld --seq %lld %s %s--data ...\n",
            ek_printable(model, sizeof(model), c->train->model != NULL ? c->train->model : ""),
            c->ranks, (long long)s->model.batch, (long long)(s->model.step_tokens / s->model.batch),
            ek_search_words(best_of(s), words, sizeof(words)), ek_search_elastic_words(s));
    fprintf(out,
            "\n--micro-batch counts the sequences of all data-parallel ranks, here %s a rank. "
            "`evenkeel simulate` with the\nsame options says where the time goes.\n",
            ek_number_text(text, sizeof(text), ek_search_sequences(s, best_of(s))));
    if (ek_search_is_for_others(s))
        fputs("\n" EK_SEARCH_FOR_OTHERS("\n") "\n", out);
}

void ek_search_write_text(const ek_search_ranks *at, int64_t n, FILE *out)
{
    const ek_search *s = at[ek_search_best_ranks(at, n)].search;
    int64_t shown = s->pool[0] == s->best[0]; /* already */

    ek_search_put_ranks(at, n, out);
    put_head(s, out);
    put_loads(s, out);
    put_price(s, out);
    put_counts(s, out);
    put_table(s, ek_search_best_title(s), s->best, s->n_best, out);
    put_near(s, out);
    ek_search_put_failures(s, out);
    put_corners(s, out);
    if (s->n_pool > shown)
        put_table(s, "the best with less memory", s->pool + shown, s->n_pool - shown, out);
    put_end(s, out);
}
