/* machine_fixture.h - a machine whose times can be worked out by hand. */
#ifndef MACHINE_FIXTURE_H
#define MACHINE_FIXTURE_H

#include "cost/machine.h"
#include "ek_test.h"
#include "spec/model.h"

#include <stdio.h>

static inline int is_near(double got, double want)
{
    return fabs(got - want) <= 1e-12 * fabs(want);
}

#define CHECK_NEAR(got, want)                                                                      \
    (is_near((got), (want))                                                                        \
         ? (void)0                                                                                 \
         : EK_T_FAIL("%s is %.17g, expected %.17g", #got, (double)(got), (double)(want)))

static inline ek_cost_table table_of(int32_t n, const double *x, const double *y)
{
    ek_cost_table t = {.n = n};

    for (int32_t i = 0; i < n; i++) {
        t.x[i] = x[i];
        t.y[i] = y[i];
    }
    return t;
}

/* bf16; 1, 2 and 0.5 TFLOP/s from 16 rows an expert on, half as much with 4; 20 GB/s of copies.
 * Messages inside a node: 10 us up to 10 kB, from there 1 GB/s; between nodes 100 us and 0.1 GB/s,
 * with 2 ranks a node. */
static inline ek_machine by_hand(void)
{
    const double rows[] = {4, 16}, bytes[] = {1e4, 1e6};
    const double near[] = {10e-6, 1e-3}, far[] = {100e-6, 10e-3};
    const double best[EK_COST_PRODUCTS] = {1e12, 2e12, 0.5e12};
    ek_machine m = {.dtype = "bf16",
                    .ranks = 4,
                    .nodes = 2,
                    .threads = 1,
                    .hidden = 64,
                    .ff = 100,
                    .experts = 2,
                    .took_s = 1.25,
                    .copy = 20e9};

    snprintf(m.name, sizeof(m.name), "made up");
    for (int p = 0; p < EK_COST_PRODUCTS; p++) {
        const double rate[] = {best[p] / 2, best[p]};

        m.rate[p] = table_of(2, rows, rate);
    }
    m.link[EK_LINK_NODE] =
        (ek_link_cost){2, table_of(2, bytes, near), table_of(2, bytes, near), 0, 0, 0};
    m.link[EK_LINK_NET] =
        (ek_link_cost){2, table_of(2, bytes, far), table_of(2, bytes, far), 0, 0, 0};
    return m;
}

/* The same machine, with kernels: products of 200 x 64 at 3, 4 and 5 TFLOP/s and attention of two
 * heads at 7 from 16 rows or tokens on, half as much with 4; norms at 30 GB/s, updates at 60,
 * packing at 15. */
static inline ek_machine by_hand_with_kernels(void)
{
    static const struct {
        ek_cost_kernel kernel;
        int32_t size[EK_KERNEL_SIZES];
        double rate;
    } of[] = {{EK_KERNEL_PRODUCT, {200, 64}, 3e12},
              {EK_KERNEL_PRODUCT_INPUT, {200, 64}, 4e12},
              {EK_KERNEL_PRODUCT_WEIGHT, {200, 64}, 5e12},
              {EK_KERNEL_ATTENTION, {2, 1, 8}, 7e12},
              {EK_KERNEL_NORM, {0}, 30e9},
              {EK_KERNEL_ADAMW, {0}, 60e9},
              {EK_KERNEL_PACK, {0}, 15e9}};
    const double at[] = {4, 16};
    ek_machine m = by_hand();

    m.op_s = 1e-6;
    for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++) {
        const double rate[] = {of[i].rate / 2, of[i].rate};
        ek_kernel_cost *k = &m.kernels.cost[m.kernels.n++];

        k->kernel = of[i].kernel;
        memcpy(k->size, of[i].size, sizeof(k->size));
        k->rate = table_of(2, at, rate);
    }
    return m;
}

/* A layer of 8 experts of 64 x 100, of which a token takes two. */
static inline ek_model_spec small_moe(void)
{
    ek_model_spec s;

    ek_model_default(&s);
    s.hidden = 64;
    s.ff = 100;
    s.experts = 8;
    s.top_k = 2;
    return s;
}

#endif
