/* A machine for tests of costs: one rank, products at one rate whatever their shape. */
#ifndef UNIT_TOY_MACHINE_H
#define UNIT_TOY_MACHINE_H

#include "cost/machine.h"

#include <stdio.h>

static inline ek_machine toy_machine(const char *dtype, double flops_s, double copy_bytes_s)
{
    ek_machine m = {.ranks = 1,
                    .nodes = 1,
                    .threads = 1,
                    .hidden = 1,
                    .ff = 1,
                    .experts = 1,
                    .copy = copy_bytes_s};

    (void)snprintf(m.dtype, sizeof(m.dtype), "%s", dtype);
    for (int p = 0; p < EK_COST_PRODUCTS; p++)
        m.rate[p] = (ek_cost_table){.n = 1, .x = {1}, .y = {flops_s}};
    return m;
}

#endif
