/* Sums of predicted and measured times by op. */
#include "cost/compare.h"

#include "cost/cost.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void ek_compare_begin(ek_compare *c)
{
    memset(c, 0, sizeof(*c));
}

static ek_compare_row *row_of(ek_compare *c, int key, const char *name)
{
    ek_compare_row *r;

    for (int i = 0; i < c->n; i++)
        if (c->row[i].key == key)
            return &c->row[i];
    if (c->n == EK_COMPARE_ROWS)
        return NULL;
    r = &c->row[c->n++];
    *r = (ek_compare_row){.key = key, .name = name, .predicted = 1};
    return r;
}

void ek_compare_add_sum(ek_compare *c, int key, const char *name, int64_t count, double predicted_s,
                        double measured_s)
{
    ek_compare_row *r = row_of(c, key, name);

    c->measured_s += measured_s;
    if (r == NULL) {
        c->lost += count;
        return;
    }
    r->count += count;
    r->measured_s += measured_s;
    if (predicted_s < 0)
        r->predicted = 0;
    else
        r->predicted_s += predicted_s;
}

void ek_compare_add(ek_compare *c, int key, const char *name, double predicted_s, double measured_s)
{
    ek_compare_add_sum(c, key, name, 1, predicted_s, measured_s);
}

static int longest_first(const void *a, const void *b)
{
    const ek_compare_row *x = a, *y = b;

    if (x->measured_s != y->measured_s)
        return x->measured_s < y->measured_s ? 1 : -1;
    return strcmp(x->name, y->name);
}

void ek_compare_sort(ek_compare *c)
{
    qsort(c->row, (size_t)c->n, sizeof(c->row[0]), longest_first);
}

double ek_compare_ratio(const ek_compare_row *r)
{
    return r->predicted && r->predicted_s > 0 ? r->measured_s / r->predicted_s : 0;
}

/* Absolute difference of the two times; 0 if not predicted. */
static double difference_s(const ek_compare_row *r)
{
    return r->predicted ? fabs(r->measured_s - r->predicted_s) : 0;
}

int ek_compare_parts(const ek_compare *c, const ek_compare_row *r)
{
    double larger = fmax(r->measured_s, r->predicted_s);

    return difference_s(r) > EK_COMPARE_PART * r->predicted_s &&
           larger > EK_COMPARE_LEAST * c->measured_s;
}

int ek_compare_parted(const ek_compare *c, const ek_compare_row **worst)
{
    int n = 0;

    *worst = NULL;
    for (int i = 0; i < c->n; i++) {
        const ek_compare_row *r = &c->row[i];

        if (!ek_compare_parts(c, r))
            continue;
        n++;
        if (*worst == NULL || difference_s(r) > difference_s(*worst))
            *worst = r;
    }
    return n;
}

const char *ek_compare_warning(const ek_compare *c, char *text, size_t cap)
{
    char predicted[EK_COST_QUANTITY], measured[EK_COST_QUANTITY];
    const ek_compare_row *worst;
    int n = ek_compare_parted(c, &worst);

    if (cap > 0)
        text[0] = '\0';
    if (n > 0)
        snprintf(text, cap,
                 "predicted and measured times differ by more than %.0f %% in %d op%s, most in %s: "
                 "%s predicted, %s measured",
                 100 * EK_COMPARE_PART, n, n > 1 ? "s" : "", worst->name,
                 ek_cost_quantity(predicted, worst->predicted_s, "s"),
                 ek_cost_quantity(measured, worst->measured_s, "s"));
    return text;
}

const char ek_compare_head[] =
    "op                         count  predicted   measured  measured/predicted";

const char *ek_compare_row_text(const ek_compare *c, const ek_compare_row *r, char *text,
                                size_t cap)
{
    char predicted[EK_COST_QUANTITY] = "-", measured[EK_COST_QUANTITY], ratio[32] = "-";

    if (r->predicted) {
        ek_cost_quantity(predicted, r->predicted_s, "s");
        if (r->predicted_s > 0)
            snprintf(ratio, sizeof(ratio), "%.2f%s", ek_compare_ratio(r),
                     ek_compare_parts(c, r) ? " !" : "");
    }
    snprintf(text, cap, "%-24s %7lld %10s %10s  %s", r->name, (long long)r->count, predicted,
             ek_cost_quantity(measured, r->measured_s, "s"), ratio);
    return text;
}
