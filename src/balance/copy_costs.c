/* The cost of persistent copies, from the tables of a measured machine. */
#include "balance/copy_costs.h"

#include <math.h>

/* Of an update: master, gradient and two moments, read and written. */
enum { UPDATE_ELEMENTS = 8, PACKED_FORMS = 2 };

/* Elements of an expert. */
static double expert_elements(const ek_copy_setting *s)
{
    return 3.0 * (double)s->layer.spec->hidden * (double)s->layer.spec->ff;
}

/* Primary copies of a layer on a rank. */
static double experts_of_rank(const ek_copy_setting *s)
{
    int64_t experts = s->layer.experts > 0 ? s->layer.experts : s->layer.spec->experts;

    return ceil((double)experts / (double)s->layer.ranks);
}

/* Further copies on a rank, in all layers. */
static double further_copies(const ek_copy_setting *s)
{
    return (double)s->layers * experts_of_rank(s) * (s->copies - 1);
}

static double ranks_of_node(const ek_copy_setting *s)
{
    return ceil((double)s->layer.ranks / (double)s->layer.nodes);
}

/* A kernel that moves so many bytes. */
static double kernel_seconds(const ek_machine *m, ek_cost_kernel kernel, double bytes)
{
    double rate = ek_kernel_rate(&m->kernels, kernel, (const int32_t[EK_KERNEL_SIZES]){0}, bytes);

    return rate > 0 ? bytes / rate : ek_cost_copies(m, bytes);
}

/* AdamW of experts of a rank, and their packed forms. */
static double update_seconds(const ek_machine *m, const ek_copy_setting *s, double experts)
{
    double n = experts * expert_elements(s), seconds;
    int real = ek_machine_real_bytes(m), comp = ek_machine_comp_bytes(m);

    seconds = kernel_seconds(m, EK_KERNEL_ADAMW, n * UPDATE_ELEMENTS * real);
    if (comp != real)
        seconds += kernel_seconds(m, EK_KERNEL_PACK, n * PACKED_FORMS * (real + comp));
    return seconds;
}

/* Backward products of a layer in one micro-batch: all but the forward ones. */
static double backward_seconds(const ek_machine *m, const ek_copy_setting *s)
{
    const ek_model_spec *spec = s->layer.spec;
    double sum = 0;

    for (int p = 0; p < EK_COST_PRODUCTS; p++)
        if (p != EK_COST_FORWARD)
            sum += ek_cost_products(m, (ek_cost_product)p, spec->hidden, spec->ff, s->layer.rows,
                                    experts_of_rank(s));
    return sum;
}

static void add_reasons(const ek_copy_setting *s, const ek_copy_costs *c, double hop, double bytes,
                        ek_cost_reason *reason)
{
    char a[EK_COST_QUANTITY], b[EK_COST_QUANTITY];

    ek_cost_add_line(reason, 0, "copies", c->added_s, "s",
                     "what a step takes longer with %d copies of each expert", (int)s->copies);
    ek_cost_add_line(reason, 1, "sums exposed", c->exposed_s, "s",
                     "of %d layers, each under %s of products of the layer before", (int)s->layers,
                     ek_cost_quantity(a, c->window_s, "s"));
    ek_cost_add_line(reason, 2, "sums of gradients", c->sums_s, "s",
                     "%g ranks of a node x %g copies x (1 + %.2f) x %s, a hop with %s",
                     ranks_of_node(s), further_copies(s), s->split, ek_cost_quantity(a, hop, "s"),
                     ek_cost_quantity(b, bytes, "B"));
    ek_cost_add_line(reason, 1, "update", c->update_s, "s", "AdamW of %g copies",
                     further_copies(s));
}

ek_status ek_copy_costs_of(const ek_machine *m, const ek_copy_setting *s, ek_copy_costs *out,
                           ek_cost_reason *reason)
{
    double gradient = expert_elements(s) * ek_machine_real_bytes(m), hop, each;
    ek_plan_costs of_layer;

    EK_REQUIRE(s->layers >= 1 && s->batches >= 1 && s->copies >= 1 && s->split >= 0 &&
                   s->split <= 1,
               EK_EINVAL,
               "costs of %d copies of the experts of %d layers, %d micro-batches a step, %g of "
               "them summed",
               (int)s->copies, (int)s->layers, (int)s->batches, s->split);
    EK_TRY(ek_plan_costs_of(m, &s->layer, &of_layer, NULL));
    hop = s->layer.ranks > 1 ? ek_cost_multicast(m, EK_LINK_NET, 2, gradient) : 0;
    out->bytes = further_copies(s) * (1 + s->split) * gradient;
    out->sums_s = ranks_of_node(s) * further_copies(s) * (1 + s->split) * hop;
    out->window_s = s->overlap * backward_seconds(m, s);
    each = out->sums_s / s->layers;
    out->exposed_s = each + (s->layers - 1) * fmax(0, each - out->window_s);
    out->update_s = update_seconds(m, s, further_copies(s));
    out->added_s = out->exposed_s + out->update_s;
    out->step_s =
        (double)s->layers * (double)s->batches *
            (s->layer.rows * (of_layer.compute_s_per_row +
                              of_layer.comm_s_per_row * (s->layer.ranks - 1) / s->layer.ranks) +
             of_layer.exchange_s) +
        update_seconds(m, s, (double)s->layers * experts_of_rank(s));
    add_reasons(s, out, hop, gradient, reason);
    return EK_OK;
}
