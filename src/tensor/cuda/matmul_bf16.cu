/* Matrix products of bf16 on tensor cores: which kernel computes them. */
#include "tensor/cuda/products.h"
#include "tensor/cuda/stream.h"
#include "tensor/cuda/tiles.h"

enum { SIZE_MOST = INT32_MAX - 256 };

static int is_layout(const product<ek_bf16> &p, bool a_k_major, bool b_k_major)
{
    return (a_k_major ? p.a_t : p.a_i) == 1 && (b_k_major ? p.b_t : p.b_j) == 1 &&
           has_chunks(p.a, a_k_major ? p.a_i : p.a_t) && has_chunks(p.b, b_k_major ? p.b_j : p.b_t);
}

static ek_product_layout layout_of(const product<ek_bf16> &p)
{
    if (p.m > SIZE_MOST || p.n > SIZE_MOST || p.k > SIZE_MOST)
        return EK_LAYOUT_OTHER;
    return is_layout(p, true, true)     ? EK_BOTH_K_MAJOR
           : is_layout(p, true, false)  ? EK_A_K_MAJOR
           : is_layout(p, false, false) ? EK_BOTH_MN_MAJOR
                                        : EK_LAYOUT_OTHER;
}

/* Products with the longest sums first: the last blocks to start are then the shortest. */
static void order_by_terms(products<ek_bf16> *all)
{
    for (int i = 1; i < all->n; i++) {
        product<ek_bf16> p = all->of[i];
        int at = i;

        for (; at > 0 && all->of[at - 1].k < p.k; at--)
            all->of[at] = all->of[at - 1];
        all->of[at] = p;
    }
}

int ek_cuda_multiply_bf16(const char *name, products<ek_bf16> *all, ek_out mode)
{
    ek_product_layout layout = layout_of(all->of[0]);

    for (int i = 1; i < all->n; i++)
        if (layout_of(all->of[i]) != layout)
            layout = EK_LAYOUT_OTHER;
    if (layout == EK_LAYOUT_OTHER)
        return 0;
    order_by_terms(all);
    if (ek_cuda_has_wgmma())
        ek_cuda_multiply_wgmma(name, all, layout, mode);
    else
        ek_cuda_multiply_mma(name, all, layout, mode);
    return 1;
}
