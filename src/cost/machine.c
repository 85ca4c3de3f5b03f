/* Names and types of a machine's costs. */
#include "cost/machine.h"

#include <math.h>
#include <string.h>

const char *ek_cost_product_name(ek_cost_product p)
{
    static const char *const names[EK_COST_PRODUCTS] = {"forward", "backward_input",
                                                        "backward_weight"};

    return names[p];
}

const char *ek_link_name(ek_link link)
{
    static const char *const names[EK_LINKS] = {"node", "net"};

    return names[link];
}

int ek_machine_comp_bytes(const ek_machine *m)
{
    return strcmp(m->dtype, "bf16") == 0 ? 2 : strcmp(m->dtype, "fp32") == 0 ? 4 : 8;
}

int ek_machine_real_bytes(const ek_machine *m)
{
    return strcmp(m->dtype, "fp64") == 0 ? 8 : 4;
}

/* Larger messages than an all-to-all was measured with. */
static void extend_messages(ek_link_cost *l)
{
    ek_cost_table *t = &l->message;
    const ek_cost_table *hop = &l->hop;

    for (int32_t i = 0; i < hop->n && t->n > 0 && t->n < EK_COST_POINTS; i++)
        if (hop->x[i] > t->x[t->n - 1]) {
            t->x[t->n] = hop->x[i];
            t->y[t->n] = fmax(t->y[t->n - 1], hop->y[i] * (double)l->ranks_a_node);
            t->n++;
        }
}

void ek_machine_in_training(const ek_machine *m, ek_machine *out)
{
    const ek_training_rates *t = &m->training;

    *out = *m;
    extend_messages(&out->link[EK_LINK_NET]);
    if (t->rows == 0)
        return;
    for (int p = 0; p < EK_COST_PRODUCTS; p++)
        out->rate[p] = (ek_cost_table){1, {(double)t->rows}, {t->flops_per_s}};
    out->copy = t->adamw;
}
