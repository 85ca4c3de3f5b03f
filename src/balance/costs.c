/* Planner costs from the tables of a measured machine. */
#include "balance/costs.h"

#include <math.h>

/* Memory traffic of a row on the serving rank, in rows of hidden and of ff elements: unpack and
 * repack, forward and backward, and swiglu both ways; reads and writes count separately. */
enum { COPIES_HIDDEN = 8, COPIES_FF = 9, EXCHANGES = 4 };

typedef struct {
    const ek_machine *m;
    const ek_plan_setting *s;
    double weights; /* elements per expert */
    double comp, real;
    double experts; /* of the layer */
    ek_cost_reason *reason;
} conversion;

/* Products and copies of one row under even load. */
static double row_seconds(const conversion *c)
{
    static const char *const names[EK_COST_PRODUCTS] = {"forward", "backward input",
                                                        "backward weight"};
    const ek_model_spec *spec = c->s->spec;
    double here = fmax(1, c->experts / c->s->ranks),
           rows = c->s->rows > 0 ? c->s->rows : 1e6 * here;
    double seconds[EK_COST_PRODUCTS], sum = 0, copies, bytes;
    char flops[EK_COST_QUANTITY], rate[EK_COST_QUANTITY];

    bytes = (COPIES_HIDDEN * (double)spec->hidden + COPIES_FF * (double)spec->ff) * c->comp;
    copies = ek_cost_copies(c->m, bytes);
    for (int p = 0; p < EK_COST_PRODUCTS; p++) {
        seconds[p] =
            ek_cost_products(c->m, (ek_cost_product)p, spec->hidden, spec->ff, rows, here) / rows;
        sum += seconds[p];
    }
    ek_cost_add_line(c->reason, 0, "expert row", sum + copies, "s",
                     "products and copies, %.0f rows an expert%s", rows / here,
                     c->m->hidden != spec->hidden || c->m->ff != spec->ff
                         ? "; measured with experts of another size"
                         : "");
    for (int p = 0; p < EK_COST_PRODUCTS; p++)
        ek_cost_add_line(
            c->reason, 1, names[p], seconds[p], "s", "6 x %lld x %lld = %s at %s",
            (long long)spec->hidden, (long long)spec->ff,
            ek_cost_quantity(flops, ek_cost_row_flops(spec->hidden, spec->ff), "FLOP"),
            ek_cost_quantity(rate, ek_cost_rate_at(&c->m->rate[p], rows / here), "FLOP/s"));
    ek_cost_add_line(c->reason, 1, "copies", copies, "s", "(%d x %lld + %d x %lld) x %g B at %s",
                     COPIES_HIDDEN, (long long)spec->hidden, COPIES_FF, (long long)spec->ff,
                     c->comp, ek_cost_quantity(rate, c->m->copy, "B/s"));
    return sum + copies;
}

/* Four all-to-alls of `rows` rows: out with their gate weights, the results back, and the gradients
 * of both. */
static double exchange_seconds(const conversion *c, double rows, ek_cost_reason *reason)
{
    double row = EXCHANGES * (double)c->s->spec->hidden * c->comp + 2 * c->real;

    return EXCHANGES *
           ek_cost_all_to_all(c->m, c->s->ranks, c->s->nodes, rows * row / EXCHANGES, reason, 1);
}

/* What each of the rows that leave a rank under even load adds to the exchanges; *fixed: the rest,
 * which stays whatever the loads are, as the latency of short messages does. */
static double send_seconds(const conversion *c, double *fixed)
{
    double away = (double)(c->s->ranks - 1) / c->s->ranks;
    double rows = (c->s->rows > 0 ? c->s->rows : 1e6) * away, even, row;
    int at = c->reason != NULL ? c->reason->n : 0;

    *fixed = 0;
    if (c->s->ranks == 1)
        return 0;
    ek_cost_add_line(c->reason, 0, "row sent", 0, "s",
                     "what %.0f more rows add to %d all-to-alls of %.0f, / %.0f; a row is %d x "
                     "%lld x %g + 2 x %g B in all",
                     rows, EXCHANGES, rows, rows, EXCHANGES, (long long)c->s->spec->hidden, c->comp,
                     c->real);
    even = exchange_seconds(c, rows, c->reason);
    row = fmin(fmax(0, exchange_seconds(c, 2 * rows, NULL) - even), even) / rows;
    *fixed = even - row * rows;
    if (c->reason != NULL && at < c->reason->n)
        c->reason->line[at].value = row;
    return row;
}

/* The ranks that are on another node, of all others, as a share. */
static double far_share(const conversion *c)
{
    double a_node = ceil((double)c->s->ranks / (double)c->s->nodes);

    return c->s->ranks > 1 ? (c->s->ranks - a_node) / (c->s->ranks - 1) : 0;
}

/* A hop to another rank, the mean over all of them. */
static double hop_seconds(const conversion *c, double bytes)
{
    double far = far_share(c), seconds = 0;

    if (far > 0)
        seconds += far * ek_cost_multicast(c->m, EK_LINK_NET, 2, bytes);
    if (far < 1 && c->s->ranks > 1)
        seconds += (1 - far) * ek_cost_multicast(c->m, EK_LINK_NODE, 2, bytes);
    return seconds;
}

static int weights_sent(const conversion *c)
{
    return c->s->sends_twice ? 2 : 1;
}

/* Weights out, and gradients back. */
static double replica_seconds(const conversion *c)
{
    double out = hop_seconds(c, c->weights * c->comp);
    double back = hop_seconds(c, c->weights * c->real);
    char a[EK_COST_QUANTITY], b[EK_COST_QUANTITY];

    if (c->s->ranks == 1)
        return 0;
    ek_cost_add_line(c->reason, 0, "replica", weights_sent(c) * out + back, "s",
                     "a hop each, %.0f %% of them between nodes", 100 * far_share(c));
    ek_cost_add_line(c->reason, 1, c->s->sends_twice ? "weights out, twice" : "weights out", out,
                     "s", c->s->sends_twice ? "%s each" : "%s",
                     ek_cost_quantity(a, c->weights * c->comp, "B"));
    ek_cost_add_line(c->reason, 1, "gradients back", back, "s", "%s",
                     ek_cost_quantity(b, c->weights * c->real, "B"));
    return weights_sent(c) * out + back;
}

/* Ranks of a node share its link to others. */
static double gradient_seconds(const conversion *c)
{
    double bytes = c->weights * c->real;

    if (c->s->ranks == 1)
        return 0;
    return c->s->nodes > 1 ? ceil((double)c->s->ranks / (double)c->s->nodes) *
                                 ek_cost_multicast(c->m, EK_LINK_NET, 2, bytes)
                           : ek_cost_multicast(c->m, EK_LINK_NODE, 2, bytes);
}

ek_status ek_plan_costs_of(const ek_machine *m, const ek_plan_setting *s, ek_plan_costs *out,
                           ek_cost_reason *reason)
{
    conversion c = {.m = m, .s = s, .reason = reason};

    EK_REQUIRE(s->ranks >= 1 && s->nodes >= 1 && s->rows >= 0, EK_EINVAL,
               "costs of %d ranks on %d nodes and %g rows", (int)s->ranks, (int)s->nodes, s->rows);
    EK_REQUIRE(s->ranks == 1 || ek_cost_has_links(m), EK_EINVAL,
               "the machine \"%s\" was measured with one rank, without links; "
               "measure it with several ranks",
               m->name);
    c.weights = 3.0 * (double)s->spec->hidden * (double)s->spec->ff;
    c.comp = ek_machine_comp_bytes(m);
    c.real = ek_machine_real_bytes(m);
    c.experts = (double)(s->experts > 0 ? s->experts : s->spec->experts);
    out->compute_s_per_row = row_seconds(&c); /* calls in the order of the reason lines */
    out->comm_s_per_row = send_seconds(&c, &out->exchange_s);
    out->replica_s = replica_seconds(&c);
    out->exposed_s = hop_seconds(&c, c.weights * c.comp);
    out->gradient_s = gradient_seconds(&c);
    out->replica_bytes = c.weights * (weights_sent(&c) * c.comp + c.real);
    out->migrate_s_per_expert =
        hop_seconds(&c, 3 * c.weights * c.real); /* master weights and two moments */
    out->state_bytes = c.weights * 3 * c.real;
    ek_cost_add_line(reason, 0, "replica bytes", out->replica_bytes, "B",
                     "3 x %lld x %lld x (%d x %g + %g) B", (long long)s->spec->hidden,
                     (long long)s->spec->ff, weights_sent(&c), c.comp, c.real);
    ek_cost_add_line(reason, 0, "state bytes", out->state_bytes, "B", "3 x %lld x %lld x 3 x %g B",
                     (long long)s->spec->hidden, (long long)s->spec->ff, c.real);
    return EK_OK;
}
