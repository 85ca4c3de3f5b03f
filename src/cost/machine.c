/* Names and types of a machine's costs. */
#include "cost/machine.h"

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
