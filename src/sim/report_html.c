/* The page of a simulation: figures, where the step goes, a timeline, memory, traffic, what-ifs,
 * failures and sensitivity. */
#include "sim/report_html.h"

#include "base/count_text.h"
#include "cost/cost.h"
#include "sim/chart.h"
#include "sim/dialect.h"
#include "sim/failures_html.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- colours ---------------------------------------------------------------------------------- */

static const char *const colour_names[EK_HTML_COLOURS] = {
    [EK_HTML_EXPERTS] = "experts",
    [EK_HTML_ATTENTION] = "attention",
    [EK_HTML_COMPUTE] = "other computation",
    [EK_HTML_OPTIMIZER] = "optimizer, packing",
    [EK_HTML_OVERHEAD] = "processor, for messages",
    [EK_HTML_TRANSFER] = "exposed transfers",
    [EK_HTML_SKEW] = "waits for ranks of a group",
    [EK_HTML_BUBBLE] = "waits for stages (bubble)",
    [EK_HTML_END] = "other waits",
};

static ek_html_colour colour_of_group(ek_op_group g)
{
    switch (g) {
    case EK_OP_GROUP_EXPERTS:
    case EK_OP_GROUP_SWIGLU:
    case EK_OP_GROUP_SHARED_EXPERT: return EK_HTML_EXPERTS;
    case EK_OP_GROUP_PROJECTIONS:
    case EK_OP_GROUP_ATTENTION: return EK_HTML_ATTENTION;
    case EK_OP_GROUP_OPTIMIZER: return EK_HTML_OPTIMIZER;
    default: return EK_HTML_COMPUTE;
    }
}

/* The colour of the i-th part (ek_sim_part). */
static ek_html_colour colour_of_part(int i)
{
    static const ek_html_colour waits[] = {EK_HTML_SKEW, EK_HTML_BUBBLE, EK_HTML_END, EK_HTML_END};

    if (i < EK_OP_GROUPS)
        return colour_of_group((ek_op_group)i);
    i -= EK_OP_GROUPS;
    if (i == 0)
        return EK_HTML_OVERHEAD;
    return i <= EK_COLLECTIVES ? EK_HTML_TRANSFER : waits[i - 1 - EK_COLLECTIVES];
}

void ek_sim_colour_parts(const ek_sim_parts *p, ek_html_part *parts)
{
    char name[EK_SIM_PART_NAME];

    for (int i = 0; i < EK_HTML_COLOURS; i++)
        parts[i] = (ek_html_part){colour_names[i], 0, (ek_html_colour)i};
    for (int i = 0; i < EK_SIM_PARTS; i++)
        parts[colour_of_part(i)].value += ek_sim_part(p, i, name, sizeof(name));
}

/* --- head ------------------------------------------------------------------------------------- */

/* Adds to text [cap] what the step was simulated with. */
static void put_engine(const ek_sim_report *r, char *text, size_t cap)
{
    size_t n = strlen(text);
    char words[EK_DIALECT_TEXT], machine[EK_SIM_MACHINE];

    n += (size_t)snprintf(text + n, cap - n, " Machine %s.",
                          ek_sim_machine_text(r->cluster, machine));
    n += (size_t)snprintf(text + n, cap - n, " Engine: %s%s.", r->engine,
                          ek_sim_engine_note(r->engine));
    if (r->dialect != 0)
        (void)snprintf(text + n, cap - n, " As other programs: %s.",
                       ek_dialect_text(r->dialect, words, sizeof(words)));
}

static void put_head(const ek_sim_report *r, FILE *f)
{
    const ek_sim_layout *l = r->layout;
    char title[1024], sub[1024 + EK_SIM_MACHINE], a[16], b[16], tokens[16];

    (void)snprintf(title, sizeof(title), "A step of %s on %d ranks of %s", r->model,
                   (int)r->graphs->ranks, r->cluster->name);
    (void)snprintf(sub, sizeof(sub),
                   "%s parameters, %s active for a token; %s. Layout: pp %d, dp %d, tp %d; experts "
                   "edp %d, ep %d, etp %d; zero %d. A step: %" PRId64 " sequences, %s tokens, "
                   "%" PRId64 " micro-batch%s.",
                   ek_count_text(a, sizeof(a), (double)l->params),
                   ek_count_text(b, sizeof(b), (double)l->active_params), l->dtype, l->pp, l->dp,
                   l->tp, l->edp, l->ep, l->etp, l->zero, l->batch,
                   ek_count_text(tokens, sizeof(tokens), (double)l->step_tokens), l->micros,
                   l->micros != 1 ? "es" : "");
    put_engine(r, sub, sizeof(sub));
    ek_html_begin(f, title, sub);
}

static void put_tiles(const ek_sim_report *r, FILE *f)
{
    const ek_sim_class *most = ek_sim_fullest(r);
    const char *what;
    double peak = ek_sim_peak(r->cluster, &what), sent = 0;
    char text[128], a[EK_COST_QUANTITY], b[32];

    for (int l = 0; l < r->cluster->n_levels; l++)
        sent += r->traffic.bytes[l];
    fputs("<dl class=\"tiles\">\n", f);
    text[0] = '\0';
    if (r->balance != NULL)
        (void)snprintf(text, sizeof(text), "80 %% of steps within %s and %s",
                       ek_cost_quantity(a, ek_sim_quantile(r, 0.1), "s"),
                       ek_cost_quantity(b, ek_sim_quantile(r, 0.9), "s"));
    ek_html_tile(f, "Step", r->result->step_s, "s",
                 r->balance != NULL ? text : "with even loads of experts");
    ek_html_tile(f, "Tokens per second", ek_sim_tokens_per_s(r), "", "of all ranks together");
    (void)snprintf(text, sizeof(text), "of %s a rank (%s)", ek_cost_quantity(a, peak, "FLOP/s"),
                   what);
    ek_html_tile(f, "MFU", 100 * ek_sim_mfu(r), "%", text);
    text[0] = '\0';
    if (r->cluster->memory > 0)
        (void)snprintf(text, sizeof(text), "on rank %d; a rank has %s%s", (int)most->ranks[0],
                       ek_memory_text(b, sizeof(b), r->cluster->memory),
                       most->memory > r->cluster->memory ? ": too little" : "");
    ek_html_tile(f, "Most memory", most->memory, "B", text);
    ek_html_tile(f, "Sent by a rank", sent, "B",
                 r->balance != NULL ? "a step, with even loads" : "a step");
    (void)snprintf(text, sizeof(text), "on %" PRId64 " node%s", ek_sim_node_count(r),
                   ek_sim_node_count(r) != 1 ? "s" : "");
    ek_html_tile(f, "Ranks", r->graphs->ranks, "", text);
    fputs("</dl>\n", f);
}

/* --- where the time goes ---------------------------------------------------------------------- */

/* Parts of at least a two-thousandth of the step, with a bar each. */
static void put_parts(const ek_sim_report *r, FILE *f)
{
    double step = r->result->step_s, most = 0;
    char name[EK_SIM_PART_NAME];

    for (int i = 0; i < EK_SIM_PARTS; i++)
        most = fmax(most, ek_sim_part(&r->result->parts, i, name, sizeof(name)));
    ek_html_table(f, "Mean of the ranks. What is below 0.05 % of the step is left out.",
                  "part of the step|>time|>share|");
    for (int i = 0; i < EK_SIM_PARTS; i++) {
        double s = ek_sim_part(&r->result->parts, i, name, sizeof(name));
        ek_html_part part = {name, s, colour_of_part(i)};

        if (s <= 0.0005 * step)
            continue;
        fputs("<tr><th scope=\"row\">", f);
        ek_html_text(f, name);
        fputs("</th>", f);
        ek_html_number_cell(f, s, "s");
        fprintf(f, "<td class=\"n\">%.1f %%</td><td class=\"wide\">", 100 * s / step);
        ek_html_put_bar(f, &(ek_html_bar){.parts = &part, .n = 1, .whole = most, .unit = "s"});
        fputs("</td></tr>\n", f);
    }
    ek_html_table_end(f);
}

enum { ROWS = 32 };

/* Of classes at most ROWS are shown, evenly many of all: the i-th. */
static int shown_classes(const ek_sim_report *r)
{
    return r->graphs->n_classes < ROWS ? r->graphs->n_classes : ROWS;
}

static int32_t class_at(const ek_sim_report *r, int i)
{
    int n = shown_classes(r);

    return n > 1 ? (int32_t)((int64_t)i * (r->graphs->n_classes - 1) / (n - 1)) : 0;
}

static void put_class_cells(const ek_sim_report *r, int32_t k, FILE *f)
{
    const ek_sim_class *c = &r->graphs->classes[k];

    fprintf(f, "<tr><th scope=\"row\" class=\"n\">%d</th><td class=\"n\">%d</td>", (int)c->stage,
            (int)c->n_ranks);
}

static const char *class_caption(const ek_sim_report *r, const char *what, char *text, size_t cap)
{
    if (shown_classes(r) < r->graphs->n_classes)
        (void)snprintf(text, cap, "%s. %d of %d classes of ranks are shown.", what,
                       shown_classes(r), (int)r->graphs->n_classes);
    else
        (void)snprintf(text, cap, "%s.", what);
    return text;
}

static void put_stages(const ek_sim_report *r, FILE *f)
{
    ek_html_part parts[EK_HTML_COLOURS];
    char text[256];

    ek_sim_colour_parts(&r->result->parts, parts);
    ek_html_legend(f, parts, EK_HTML_COLOURS);
    ek_html_table(f,
                  class_caption(r, "The step of a rank of each pipeline stage", text, sizeof(text)),
                  ">stage|>ranks|the step|>busy");
    for (int i = 0; i < shown_classes(r); i++) {
        int32_t k = class_at(r, i);
        double busy = 0;

        ek_sim_colour_parts(&r->result->of_class[k], parts);
        for (int c = 0; c <= EK_HTML_OVERHEAD; c++)
            busy += parts[c].value;
        put_class_cells(r, k, f);
        fputs("<td style=\"width:72%\">", f);
        ek_html_put_bar(
            f, &(ek_html_bar){
                   .parts = parts, .n = EK_HTML_COLOURS, .whole = r->result->step_s, .unit = "s"});
        fprintf(f, "</td><td class=\"n\">%.1f %%</td></tr>\n", 100 * busy / r->result->step_s);
    }
    ek_html_table_end(f);
}

static void put_where(const ek_sim_report *r, FILE *f)
{
    ek_html_section(f, "Where the time goes");
    ek_html_paragraph(f, "What the compute lane of a rank does in a step, and what it waits for. A "
                         "transfer is exposed while computation waits for it and bytes move; a "
                         "wait for ranks of a group lasts until the last of them has started a "
                         "collective.");
    put_stages(r, f);
    put_parts(r, f);
    ek_html_section_end(f);
}

/* --- timeline --------------------------------------------------------------------------------- */

/* Pixels of a strip, each with the colour that takes most of it. */
enum { PIXELS = 900, STRIP_LEFT = 96, LANE = 20, NET = 10, MICRO = 14, STRIP = 62, NOTHING = -1 };

typedef struct {
    double seconds[PIXELS][EK_HTML_COLOURS]; /* of each pixel that is of a colour */
    int colour[PIXELS];
} strip;

/* Counts [from, to] seconds of a step as a colour. */
static void fill_strip(strip *s, double step, double from, double to, ek_html_colour colour)
{
    double pixel = step / PIXELS;

    for (int i = (int)(from / pixel); i < PIXELS && i * pixel < to; i++)
        s->seconds[i][colour] += fmin(to, (i + 1) * pixel) - fmax(from, i * pixel);
}

/* A receive is not: it ends when the rank takes what may have come long before. */
static int is_sending(const ek_op *op)
{
    return op->work.kind == EK_WORK_NET && op->work.net.collective != EK_COLLECTIVE_RECEIVE;
}

/* What the compute lane does, and, as EK_HTML_TRANSFER, what is in flight. */
static void fill_strips(const ek_sim_record *rec, double step, strip *s)
{
    memset(s, 0, sizeof(*s));
    for (int32_t i = 0; i < rec->n; i++) {
        const ek_op *op = ek_graph_op(rec->graph, i);
        const ek_sim_span *at = &rec->spans[i];

        if (is_sending(op))
            fill_strip(s, step, at->begun, at->end, EK_HTML_TRANSFER);
        else if (op->lane == EK_LANE_COMPUTE)
            fill_strip(s, step, at->start, at->end,
                       colour_of_group(ek_op_info_of(op->kind)->group));
    }
    for (int i = 0; i < PIXELS; i++) {
        double all = 0, most = 0;

        s->colour[i] = NOTHING;
        for (int c = 0; c < EK_HTML_OVERHEAD; c++) {
            all += s->seconds[i][c];
            if (s->seconds[i][c] > most) {
                most = s->seconds[i][c];
                s->colour[i] = c;
            }
        }
        if (all < 0.5 * step / PIXELS)
            s->colour[i] = NOTHING;
    }
}

/* As high as the share of a pixel in which something is in flight. */
static void put_flights(FILE *f, const strip *s, double step, int bottom)
{
    double pixel = step / PIXELS;

    fprintf(f, "<path class=\"c%d\" d=\"M%d %d", EK_HTML_TRANSFER, STRIP_LEFT, bottom);
    for (int i = 0, last = 0; i <= PIXELS; i++) {
        double share = i < PIXELS ? fmin(1, s->seconds[i][EK_HTML_TRANSFER] / pixel) : 0;
        int height = (int)ceil(share * NET - 0.01);

        if (height != last || i == PIXELS)
            fprintf(f, "H%dV%d", STRIP_LEFT + i, bottom - height);
        last = height;
    }
    fputs("z\"/>\n", f);
}

/* One path a colour. */
static void put_strip(FILE *f, const strip *s, int y)
{
    for (int c = 0; c < EK_HTML_COLOURS; c++) {
        int any = 0;

        for (int i = 0, from; i < PIXELS; i++) {
            if (s->colour[i] != c)
                continue;
            for (from = i; i < PIXELS && s->colour[i] == c; i++)
                ;
            if (!any)
                fprintf(f, "<path class=\"c%d\" d=\"", c);
            any = 1;
            fprintf(f, "M%d %dh%dv%dh-%dz", STRIP_LEFT + from, y, i - from, LANE, i - from);
        }
        if (any)
            fputs("\"/>\n", f);
    }
}

/* Which micro-batch a rank computes, alternating in shade, with numbers where there is room. */
static void put_micros(FILE *f, const ek_sim_record *rec, double step, int y)
{
    double from = 0, to = 0, scale = PIXELS / step;
    int32_t micro = -1;

    for (int32_t i = 0; i <= rec->n; i++) {
        const ek_op *op = i < rec->n ? ek_graph_op(rec->graph, i) : NULL;
        double wide = (to - from) * scale;

        if (op != NULL && op->lane != EK_LANE_COMPUTE)
            continue;
        if (op != NULL && ek_graph_micro(rec->graph, i) == micro) {
            to = rec->spans[i].end;
            continue;
        }
        if (micro >= 0 && wide > 0.2)
            fprintf(f, "<rect class=\"c%d\" x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\"/>",
                    micro % 2 ? EK_HTML_END : EK_HTML_BUBBLE, STRIP_LEFT + from * scale, y, wide,
                    MICRO - 3);
        if (micro >= 0 && wide > 13)
            fprintf(f, "<text class=\"on\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%d</text>\n",
                    STRIP_LEFT + (from + to) / 2 * scale, y + 9, (int)micro);
        if (op == NULL)
            break;
        micro = ek_graph_micro(rec->graph, i);
        from = rec->spans[i].start;
        to = rec->spans[i].end;
    }
}

static void put_time_axis(FILE *f, double step, int y)
{
    double power = pow(10, floor(log10(step / 8))), m = step / 8 / power;
    double tick = power * (m < 2 ? 2 : m < 5 ? 5 : 10);
    char text[EK_COST_QUANTITY];

    fprintf(f, "<path class=\"axis\" d=\"M%d %dh%d\"/>", STRIP_LEFT, y, PIXELS);
    for (double t = 0; t <= step; t += tick) {
        double x = STRIP_LEFT + t / step * PIXELS;

        fprintf(f,
                "<path class=\"axis\" d=\"M%.1f %dv4\"/><text x=\"%.1f\" y=\"%d\" "
                "text-anchor=\"middle\">",
                x, y, x, y + 17);
        ek_html_text(f, t > 0 ? ek_cost_quantity(text, t, "s") : "0");
        fputs("</text>\n", f);
    }
}

static int32_t stage_of(const ek_sim_report *r, int32_t rank)
{
    for (int32_t k = 0; k < r->graphs->n_classes; k++)
        for (int32_t i = 0; i < r->graphs->classes[k].n_ranks; i++)
            if (r->graphs->classes[k].ranks[i] == rank)
                return r->graphs->classes[k].stage;
    return 0;
}

static void put_record(const ek_sim_report *r, const ek_sim_record *rec, strip *s, int y, FILE *f)
{
    fprintf(f,
            "<text class=\"strong\" x=\"0\" y=\"%d\">rank %d</text><text x=\"0\" y=\"%d\">"
            "stage %d</text>",
            y + 13, (int)rec->rank, y + 29, (int)stage_of(r, rec->rank));
    fprintf(f,
            "<rect class=\"track\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>"
            "<rect class=\"track\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>\n",
            STRIP_LEFT, y, PIXELS, LANE, STRIP_LEFT, y + LANE + 2, PIXELS, NET);
    fill_strips(rec, r->result->step_s, s);
    put_strip(f, s, y);
    put_flights(f, s, r->result->step_s, y + LANE + 2 + NET);
    put_micros(f, rec, r->result->step_s, y + LANE + NET + 5);
}

static void put_timeline(const ek_sim_report *r, FILE *f)
{
    ek_html_part parts[EK_HTML_COLOURS];
    strip *s = malloc(sizeof(*s));
    int n = r->n_strips, first = r->result->n_records - n, height = n * STRIP + 26;

    if (s == NULL || n == 0 || r->result->step_s <= 0) {
        free(s);
        return;
    }
    ek_sim_colour_parts(&r->result->parts, parts);
    ek_html_section(f, "Timeline");
    ek_html_paragraph(f, "The step of some ranks: the compute lane, below it when "
                         "what the rank sends is in flight, and the micro-batch that it computes. "
                         "--timeline writes every op of a rank for Perfetto.");
    parts[EK_HTML_OVERHEAD] =
        (ek_html_part){"sends and collectives in flight", 0, EK_HTML_TRANSFER};
    ek_html_legend(f, parts, EK_HTML_OVERHEAD + 1);
    fprintf(f,
            "<figure><svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"Timeline of a step, "
            "of %d ranks\">\n",
            STRIP_LEFT + PIXELS + 24, height, n);
    for (int i = 0; i < n; i++)
        put_record(r, &r->result->records[first + i], s, i * STRIP, f);
    put_time_axis(f, r->result->step_s, n * STRIP);
    fputs("</svg></figure>\n", f);
    ek_html_section_end(f);
    free(s);
}

/* --- memory and traffic ----------------------------------------------------------------------- */

static void put_memory(const ek_sim_report *r, FILE *f)
{
    const double limit = r->cluster->memory;
    double whole = ek_sim_fullest(r)->memory;
    ek_html_part parts[] = {{"weights, gradients, optimizer state", 0, EK_HTML_EXPERTS},
                            {"activations and buffers", 0, EK_HTML_TRANSFER}};
    char text[256];

    if (limit > 0 && limit < 3 * whole)
        whole = fmax(whole, limit);
    ek_html_section(f, "Memory");
    ek_html_legend(f, parts, 2);
    (void)class_caption(r, "Of a rank of each pipeline stage, without the process itself", text,
                        sizeof(text));
    ek_html_table(f, text, ">stage|>ranks|memory|>state|>activations|>all");
    for (int i = 0; i < shown_classes(r); i++) {
        const ek_sim_class *c = &r->graphs->classes[class_at(r, i)];

        parts[0].value = c->weights;
        parts[1].value = c->memory - c->weights;
        put_class_cells(r, class_at(r, i), f);
        fputs("<td class=\"wide\">", f);
        ek_html_put_bar(f, &(ek_html_bar){parts, 2, whole, limit, "memory of a rank", "B"});
        fputs("</td>", f);
        ek_html_number_cell(f, parts[0].value, "B");
        ek_html_number_cell(f, parts[1].value, "B");
        ek_html_number_cell(f, c->memory, "B");
        fputs("</tr>\n", f);
    }
    ek_html_table_end(f);
    if (limit > 0) {
        char a[EK_COST_QUANTITY];

        ek_cost_quantity(a, limit, "B");
        (void)snprintf(text, sizeof(text), "A rank has %s%s.", a,
                       limit <= whole ? ": the line across the bars" : ", beyond the scale");
        ek_html_paragraph(f, text);
    }
    ek_html_section_end(f);
}

static void put_traffic(const ek_sim_report *r, FILE *f)
{
    double most = 0;

    for (int l = 0; l < r->cluster->n_levels; l++)
        most = fmax(most, r->traffic.bytes[l]);
    if (most == 0)
        return;
    ek_html_section(f, "Network");
    ek_html_table(f,
                  r->balance != NULL
                      ? "What a rank sends in a step, by the level that it passes, with even loads."
                      : "What a rank sends in a step, by the level that it passes.",
                  "level|>ranks below a switch|>bandwidth|>latency|sent|>bytes|>messages");
    for (int l = 0; l < r->cluster->n_levels; l++) {
        const ek_cluster_level *level = &r->cluster->level[l];
        ek_html_part part = {level->name, r->traffic.bytes[l], EK_HTML_TRANSFER};

        fputs("<tr><th scope=\"row\">", f);
        ek_html_text(f, level->name);
        fprintf(f, "</th><td class=\"n\">%" PRId64 "</td>", level->ranks);
        ek_html_number_cell(f, level->bytes_s, "B/s");
        ek_html_number_cell(f, level->latency_s, "s");
        fputs("<td style=\"width:30%\">", f);
        ek_html_put_bar(f, &(ek_html_bar){.parts = &part, .n = 1, .whole = most, .unit = "B"});
        fputs("</td>", f);
        ek_html_number_cell(f, r->traffic.bytes[l], "B");
        ek_html_number_cell(f, r->traffic.messages[l], "");
        fputs("</tr>\n", f);
    }
    ek_html_table_end(f);
    ek_html_section_end(f);
}

/* --- sensitivity ------------------------------------------------------------------------------ */

static void put_percent_cell(FILE *f, double s, double step)
{
    fputs("<td class=\"n\">", f);
    ek_html_quantity(f, s, "s");
    if (fabs(s / step - 1) >= 0.0005)
        fprintf(f, "<br/><small>%+.1f %%</small>", 100 * (s / step - 1));
    fputs("</td>", f);
}

static void put_sweep_table(const ek_sim_report *r, FILE *f)
{
    const ek_sim_sensitivity *s = r->sensitivity;

    ek_html_table(f, "The step with each change of the cluster.",
                  "what changes|>\xc3\x97"
                  "0.25|>\xc3\x97"
                  "0.5|>as it is|>\xc3\x97"
                  "2|>\xc3\x97"
                  "4");
    for (int k = 0; k < s->n_sweeps; k++) {
        fputs("<tr><th scope=\"row\">", f);
        ek_html_text(f, s->sweep[k].change);
        fputs("</th>", f);
        for (int i = 0; i < EK_SIM_FACTORS; i++)
            put_percent_cell(f, s->sweep[k].step_s[i], r->result->step_s);
        fputs("</tr>\n", f);
    }
    ek_html_table_end(f);
}

/* A sweep as a line with points [EK_SIM_FACTORS]. */
static ek_chart_series line_of_sweep(const ek_sim_sweep *s, int index, ek_chart_point *points)
{
    static const ek_html_colour colours[] = {EK_HTML_EXPERTS,  EK_HTML_TRANSFER, EK_HTML_COMPUTE,
                                             EK_HTML_SKEW,     EK_HTML_OVERHEAD, EK_HTML_ATTENTION,
                                             EK_HTML_OPTIMIZER};
    const int n_colours = sizeof(colours) / sizeof(colours[0]);

    for (int i = 0; i < EK_SIM_FACTORS; i++)
        points[i] = (ek_chart_point){ek_sim_factors[i], s->step_s[i], s->change, NULL};
    return (ek_chart_series){.name = s->change,
                             .colour = colours[index % n_colours],
                             .kind = EK_CHART_LINE,
                             .points = points,
                             .n = EK_SIM_FACTORS};
}

/* Sweeps [from, to) over factors. */
static void put_sweep_chart(const ek_sim_report *r, int from, int to, const char *title,
                            const char *label, FILE *f)
{
    ek_chart_series series[EK_SIM_SWEEPS];
    ek_chart_point points[EK_SIM_SWEEPS][EK_SIM_FACTORS];
    ek_chart chart = {.title = title,
                      .summary = title,
                      .width = 480,
                      .height = 290,
                      .x = {label, "", 0, 1, ek_sim_factors, EK_SIM_FACTORS},
                      .y = {.label = "step time", .unit = "s"},
                      .series = series,
                      .n_series = to - from};

    for (int k = from; k < to; k++)
        series[k - from] = line_of_sweep(&r->sensitivity->sweep[k], k - from, points[k - from]);
    ek_chart_put(f, &chart);
}

static void put_sweeps(const ek_sim_report *r, FILE *f)
{
    int n = r->sensitivity->n_sweeps;

    ek_html_section(f, "Sensitivity to the cluster");
    ek_html_paragraph(f, "The step if one thing of the cluster were slower or faster, and all else "
                         "as it is. A flat line: it does not matter here.");
    fputs("<div class=\"pair\">", f);
    if (n > 1)
        put_sweep_chart(r, 0, n - 1, "Links", "factor on bandwidth or latency", f);
    put_sweep_chart(r, n - 1, n, "Computation", "factor on the speed of a rank", f);
    fputs("</div>\n", f);
    put_sweep_table(r, f);
    ek_html_section_end(f);
}

static void put_skew_table(const ek_sim_report *r, FILE *f)
{
    const ek_sim_sensitivity *s = r->sensitivity;

    ek_html_table(
        f, "Largest over mean rows of a rank, and the step.",
        ">of these loads|>max/mean|>step, balance off|>max/mean as planned|>step, planned");
    for (int i = 0; i < s->n_skews; i++) {
        const ek_sim_skew *k = &s->skew[i];

        fprintf(f, "<tr><th scope=\"row\" class=\"n\">%.0f %%</th><td class=\"n\">%.3f</td>",
                100 * k->share, k->before);
        ek_html_number_cell(f, k->off_s, "s");
        fprintf(f, "<td class=\"n\">%.3f</td>", k->after);
        ek_html_number_cell(f, k->planned_s, "s");
        fputs("</tr>\n", f);
    }
    ek_html_table_end(f);
}

static void put_skews(const ek_sim_report *r, FILE *f)
{
    const ek_sim_sensitivity *s = r->sensitivity;
    ek_chart_point points[2][EK_SIM_SKEWS];
    char text[512], planned[128];
    ek_chart_series series[] = {
        {"balance off", EK_HTML_TRANSFER, EK_CHART_LINE, 0, points[0], s->n_skews},
        {planned, EK_HTML_EXPERTS, EK_CHART_LINE, 0, points[1], s->n_skews}};
    ek_chart chart = {
        .summary = "Step time against the imbalance of loads",
        .width = 960,
        .height = 300,
        .x = {.label = "largest over mean rows of a rank, before balancing", .unit = ""},
        .y = {.label = "step time", .unit = "s"},
        .series = series,
        .n_series = 2};

    ek_html_section(f, "Sensitivity to imbalance of experts");
    if (s->n_skews == 0) {
        ek_html_paragraph(f, "Without expert parallelism all ranks have the same experts: loads of "
                             "experts do not change what a rank does.");
        ek_html_section_end(f);
        return;
    }
    (void)snprintf(planned, sizeof(planned), "balance %s", s->policy);
    for (int i = 0; i < s->n_skews; i++) {
        points[0][i] = (ek_chart_point){s->skew[i].before, s->skew[i].off_s, "balance off", NULL};
        points[1][i] = (ek_chart_point){s->skew[i].before, s->skew[i].planned_s, planned, NULL};
    }
    (void)snprintf(text, sizeof(text),
                   "Loads of experts between even ones and those of %s: the busiest rank is what "
                   "the others wait for. Replicas are charged where a policy sends them.",
                   s->loads);
    ek_html_paragraph(f, text);
    ek_chart_put(f, &chart);
    put_skew_table(r, f);
    ek_html_section_end(f);
}

/* --- what if, balance ------------------------------------------------------------------------- */

static void put_changes(const ek_sim_report *r, FILE *f)
{
    double step = r->result->step_s, most = step;

    if (r->n_changes == 0)
        return;
    for (int i = 0; i < r->n_changes; i++)
        most = fmax(most, r->changes[i].step_s);
    ek_html_section(f, "What if");
    ek_html_table(f, "The step with each change.", "change|>step|>times as fast|");
    for (int i = -1; i < r->n_changes; i++) {
        double s = i < 0 ? step : r->changes[i].step_s;
        ek_html_part part = {"step", s, i < 0 ? EK_HTML_END : EK_HTML_EXPERTS};

        fputs("<tr><th scope=\"row\">", f);
        ek_html_text(f, i < 0 ? "as it is" : r->changes[i].change);
        fputs("</th>", f);
        ek_html_number_cell(f, s, "s");
        fprintf(f, "<td class=\"n\">%.3f</td><td class=\"wide\">", step / s);
        ek_html_put_bar(f, &(ek_html_bar){.parts = &part, .n = 1, .whole = most, .unit = "s"});
        fputs("</td></tr>\n", f);
    }
    ek_html_table_end(f);
    ek_html_section_end(f);
}

static void put_balance(const ek_sim_report *r, FILE *f)
{
    const ek_sim_balance *b = r->balance;
    char text[512], plan[EK_COST_QUANTITY], replicas[16], step[16], ahead[16], bytes[16];

    if (b == NULL)
        return;
    ek_html_section(f, "Balance");
    (void)snprintf(text, sizeof(text),
                   "Policy %s, over %" PRId64 " steps of the trace: the largest over mean rows of "
                   "a rank is %.3f with primary copies only, and %.3f as planned, with %s "
                   "replicas a layer. Per step these are %s, of which %s are sent before the gate, "
                   "and they move %s. A plan takes %s.",
                   r->layout->planner != NULL ? r->layout->planner->name : "off", r->n_steps,
                   b->before, b->after, ek_number_text(replicas, sizeof(replicas), b->replicas),
                   ek_number_text(step, sizeof(step), b->step_replicas),
                   ek_number_text(ahead, sizeof(ahead), b->step_ahead),
                   ek_bytes_text(bytes, sizeof(bytes), b->step_bytes),
                   ek_cost_quantity(plan, b->plan_s, "s"));
    ek_html_paragraph(f, text);
    ek_html_section_end(f);
}

/* --- the page --------------------------------------------------------------------------------- */

void ek_sim_write_html(const ek_sim_report *r, FILE *out)
{
    put_head(r, out);
    put_tiles(r, out);
    put_where(r, out);
    put_timeline(r, out);
    put_memory(r, out);
    put_traffic(r, out);
    put_balance(r, out);
    put_changes(r, out);
    ek_sim_failures_html(r, out);
    if (r->sensitivity != NULL) {
        put_sweeps(r, out);
        put_skews(r, out);
    }
    ek_html_end(out,
                "Predicted by evenkeel simulate from the step graphs that training builds and the "
                "rates of the cluster file; docs/simulate.md says how far predictions were from "
                "measurements, and what is left out.");
}
