/* Axes, lines and dots. */
#include "sim/chart.h"

#include "cost/cost.h"

#include <math.h>

/* Margins of the plot, for labels. */
enum { LEFT = 62, RIGHT = 18, TOP = 12, BOTTOM = 46, TICKS = 16 };

/* Where values of an axis are: `from` at pixel a, `to` at pixel b. */
typedef struct {
    const ek_chart_axis *axis;
    double from, to, a, b;
    double scale;       /* shown numbers are values over it, */
    const char *prefix; /* of its unit */
    int n;
    double tick[TICKS];
} scale_of;

static double place_of(const scale_of *s, double x)
{
    double share = s->axis->logarithmic ? log(x / s->from) / log(s->to / s->from)
                                        : (x - s->from) / (s->to - s->from);

    return s->a + share * (s->b - s->a);
}

/* 1, 2 or 5 times a power of ten, at least x. */
static double round_step(double x)
{
    double power = pow(10, floor(log10(x))), m = x / power;

    return power * (m <= 1.0001 ? 1 : m <= 2.0001 ? 2 : m <= 5.0001 ? 5 : 10);
}

static void add_tick(scale_of *s, double x)
{
    if (s->n < TICKS)
        s->tick[s->n++] = x;
}

static void choose_ticks(scale_of *s, int wanted)
{
    double step;

    if (s->axis->ticks != NULL) {
        for (int i = 0; i < s->axis->n_ticks; i++)
            add_tick(s, s->axis->ticks[i]);
    } else if (s->axis->logarithmic && s->to / s->from >= 8) {
        static const double of_ten[] = {1, 2, 5};

        for (double p = pow(10, floor(log10(s->from))); p <= s->to; p *= 10)
            for (int i = 0; i < 3; i++)
                if (of_ten[i] * p >= s->from * 0.9999 && of_ten[i] * p <= s->to * 1.0001)
                    add_tick(s, of_ten[i] * p);
    } else {
        step = round_step((s->to - s->from) / wanted);
        if (!s->axis->logarithmic) {
            s->from = floor(s->from / step * 1.0001) * step;
            s->to = ceil(s->to / step * 0.9999) * step;
        }
        for (double k = ceil(s->from / step * 0.9999); k * step <= s->to * 1.0001; k++)
            add_tick(s, k * step);
    }
}

/* The prefix that gives the largest number one to three digits before the point. */
static void choose_prefix(scale_of *s)
{
    static const char *const prefixes[] = {"n", "\xc2\xb5", "m", "", "k", "M", "G", "T", "P"};
    int i = 3;

    s->scale = 1;
    for (; s->axis->unit[0] != '\0' && s->to / s->scale < 1 && i > 0; i--)
        s->scale /= 1000;
    for (; s->axis->unit[0] != '\0' && s->to / s->scale >= 1000 && i < 8; i++)
        s->scale *= 1000;
    s->prefix = prefixes[i];
}

static void include(scale_of *s, double x)
{
    s->from = s->from > x ? x : s->from;
    s->to = s->to < x ? x : s->to;
}

static scale_of make_scale(const ek_chart *c, const ek_chart_axis *axis, int is_y)
{
    scale_of s = {.axis = axis, .from = HUGE_VAL, .to = -HUGE_VAL};

    for (int k = 0; k < c->n_series; k++)
        for (int i = 0; i < c->series[k].n; i++)
            include(&s, is_y ? c->series[k].points[i].y : c->series[k].points[i].x);
    if (!is_y && c->limit > 0)
        include(&s, c->limit);
    if (axis->from_zero)
        include(&s, 0);
    if (s.to - s.from < 0.02 * fabs(s.to)) { /* nearly one value */
        s.from -= 0.05 * fabs(s.from);
        s.to += s.to != 0 ? 0.05 * fabs(s.to) : 1;
    }
    if (axis->logarithmic && axis->ticks == NULL) {
        s.from /= 1.06;
        s.to *= 1.06;
    }
    s.a = is_y ? c->height - BOTTOM : LEFT;
    s.b = is_y ? TOP : c->width - RIGHT;
    choose_ticks(&s, is_y ? 5 : c->width / 90);
    choose_prefix(&s);
    return s;
}

static void put_tick_label(FILE *f, const scale_of *s, double x)
{
    if (s->axis->ticks != NULL)
        fprintf(f, "\xc3\x97%g", x);
    else
        fprintf(f, "%.4g", x / s->scale + 0.0);
}

static void put_axis_label(FILE *f, const scale_of *s)
{
    ek_html_text(f, s->axis->label);
    if (s->axis->unit[0] != '\0') {
        fputs(" (", f);
        fputs(s->prefix, f);
        ek_html_text(f, s->axis->unit);
        fputs(")", f);
    }
}

static void put_axes(FILE *f, const ek_chart *c, const scale_of *x, const scale_of *y)
{
    for (int i = 0; i < y->n; i++) {
        double at = place_of(y, y->tick[i]);

        fprintf(f,
                "<path class=\"grid\" d=\"M%d %.1fH%d\"/><text x=\"%d\" y=\"%.1f\" "
                "text-anchor=\"end\">",
                LEFT, at, c->width - RIGHT, LEFT - 7, at + 4);
        put_tick_label(f, y, y->tick[i]);
        fputs("</text>\n", f);
    }
    for (int i = 0; i < x->n; i++) {
        double at = place_of(x, x->tick[i]);

        fprintf(f,
                "<path class=\"axis\" d=\"M%.1f %dv5\"/><text x=\"%.1f\" y=\"%d\" "
                "text-anchor=\"middle\">",
                at, c->height - BOTTOM, at, c->height - BOTTOM + 19);
        put_tick_label(f, x, x->tick[i]);
        fputs("</text>\n", f);
    }
    fprintf(f,
            "<path class=\"axis\" d=\"M%d %dH%d\"/><text class=\"strong\" x=\"%d\" y=\"%d\" "
            "text-anchor=\"middle\">",
            LEFT, c->height - BOTTOM, c->width - RIGHT, (LEFT + c->width - RIGHT) / 2,
            c->height - 7);
    put_axis_label(f, x);
    fprintf(f,
            "</text>\n<text class=\"strong\" transform=\"translate(15 %d) rotate(-90)\" "
            "text-anchor=\"middle\">",
            (TOP + c->height - BOTTOM) / 2);
    put_axis_label(f, y);
    fputs("</text>\n", f);
}

static void put_limit(FILE *f, const ek_chart *c, const scale_of *x)
{
    double at;
    int left;

    if (c->limit <= 0)
        return;
    at = place_of(x, c->limit);
    left = at > c->width / 2.0;
    fprintf(f,
            "<path class=\"limit\" d=\"M%.1f %dV%d\"/><text x=\"%.1f\" y=\"%d\" "
            "text-anchor=\"%s\">",
            at, TOP, c->height - BOTTOM, at + (left ? -6 : 6), TOP + 12, left ? "end" : "start");
    ek_html_text(f, c->limit_name);
    fputs("</text>\n", f);
}

static void put_curve(FILE *f, const ek_chart_series *s, const scale_of *x, const scale_of *y)
{
    fprintf(f, "<path class=\"curve l%d\" d=\"", (int)s->colour);
    for (int i = 0; i < s->n; i++) {
        double px = place_of(x, s->points[i].x), py = place_of(y, s->points[i].y);

        if (i == 0)
            fprintf(f, "M%.1f %.1f", px, py);
        else if (s->kind == EK_CHART_STAIRS) /* a step is as long until the next has less */
            fprintf(f, "V%.1fH%.1f", py, px);
        else
            fprintf(f, "L%.1f %.1f", px, py);
    }
    fputs("\"/>\n", f);
}

static void put_dot(FILE *f, const ek_chart_series *s, const ek_chart_point *p, const scale_of *x,
                    const scale_of *y)
{
    char at_x[EK_COST_QUANTITY], at_y[EK_COST_QUANTITY];

    fprintf(f, "<circle class=\"c%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"%g\"><title>", (int)s->colour,
            place_of(x, p->x), place_of(y, p->y), s->small ? 2 : 4.5);
    if (p->name != NULL)
        ek_html_format(f, "%s: ", p->name);
    ek_html_format(f, "%s, %s", ek_cost_quantity(at_x, p->x, x->axis->unit),
                   ek_cost_quantity(at_y, p->y, y->axis->unit));
    fputs("</title></circle>\n", f);
}

/* Labels of points, unless one would touch the label before. */
static void put_labels(FILE *f, const ek_chart_series *s, const scale_of *x, const scale_of *y)
{
    double last_x = -HUGE_VAL, last_y = 0;

    for (int i = 0; i < s->n; i++) {
        double px = place_of(x, s->points[i].x), py = place_of(y, s->points[i].y);

        if (s->points[i].label == NULL || (fabs(px - last_x) < 18 && fabs(py - last_y) < 14))
            continue;
        fprintf(f, "<text class=\"strong\" x=\"%.1f\" y=\"%.1f\">", px + 7, py - 6);
        ek_html_text(f, s->points[i].label);
        fputs("</text>\n", f);
        last_x = px;
        last_y = py;
    }
}

void ek_chart_put(FILE *f, const ek_chart *c)
{
    scale_of x = make_scale(c, &c->x, 0), y = make_scale(c, &c->y, 1);
    ek_html_part names[EK_HTML_COLOURS];
    int n = c->n_series < EK_HTML_COLOURS ? c->n_series : EK_HTML_COLOURS;

    fputs("<figure>", f);
    if (c->title != NULL) {
        fputs("<figcaption>", f);
        ek_html_text(f, c->title);
        fputs("</figcaption>", f);
    }
    for (int k = 0; k < n; k++)
        names[k] = (ek_html_part){c->series[k].name, 0, c->series[k].colour};
    ek_html_legend(f, names, n);
    fprintf(f, "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"", c->width, c->height);
    ek_html_text(f, c->summary);
    fputs("\">\n", f);
    put_axes(f, c, &x, &y);
    put_limit(f, c, &x);
    for (int k = 0; k < c->n_series; k++) {
        const ek_chart_series *s = &c->series[k];

        if (s->kind != EK_CHART_DOTS)
            put_curve(f, s, &x, &y);
        for (int i = 0; i < s->n; i++)
            put_dot(f, s, &s->points[i], &x, &y);
        put_labels(f, s, &x, &y);
    }
    fputs("</svg></figure>\n", f);
}
