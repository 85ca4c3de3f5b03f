/* Emulation of tensor cores and asynchronous copies (src/tensor/cuda/tensor_core.h).  Lanes
 * exchange their registers through arrays that the whole warp can read. */
#include "cuda/emulated.h"
#include "tensor/cuda/tensor_core.h"
#include "tensor/cuda/warpgroup.h"
#include "tensor/dtype.h"

#include <deque>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { WARP = 32, THREADS_MAX = 1024 };

int64_t emulated_multiplications, emulated_warpgroup_products;

/* --- copies: a thread's groups, the newest last ----------------------------------------------- */

struct copy {
    void *to;
    const void *from;
    int bytes;
};

static std::deque<std::deque<copy>> groups_of[THREADS_MAX];
static std::deque<copy> begun_by[THREADS_MAX];

void copy_begin(void *shared, const void *from, int bytes)
{
    if ((uintptr_t)shared % 16 != 0 || (uintptr_t)from % 16 != 0 || bytes < 0 || bytes > 16) {
        fprintf(stderr, "emulated CUDA: a copy of %d bytes from %p to %p\n", bytes, from, shared);
        abort();
    }
    memset(shared, 0xff, 16);
    begun_by[threadIdx.x].push_back({shared, from, bytes});
}

void copy_group(void)
{
    groups_of[threadIdx.x].push_back(begun_by[threadIdx.x]);
    begun_by[threadIdx.x].clear();
}

void emulated_copy_wait(int groups)
{
    std::deque<std::deque<copy>> &all = groups_of[threadIdx.x];

    for (; (int)all.size() > groups; all.pop_front())
        for (const copy &c : all.front()) {
            memset(c.to, 0, 16);
            memcpy(c.to, c.from, (size_t)c.bytes);
        }
}

/* --- matrices --------------------------------------------------------------------------------- */

static const void *rows_of[THREADS_MAX];
static unsigned words_of[THREADS_MAX][6];

static void sync_warp(void)
{
    (void)emulated_exchange(0, 0);
}

static ek_bf16 half_of(unsigned word, int which)
{
    return (ek_bf16)(word >> (16 * which));
}

void emulated_matrices_load(unsigned r[4], const void *row, int transposed)
{
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x - lane;

    if ((uintptr_t)row % 16 != 0)
        abort();
    rows_of[threadIdx.x] = row;
    sync_warp();
    for (int m = 0; m < 4; m++) {
        r[m] = 0;
        for (int i = 0; i < 2; i++) {
            int y = transposed ? lane % 4 * 2 + i : lane / 4;
            int x = transposed ? lane / 4 : lane % 4 * 2 + i;

            r[m] |= (unsigned)((const ek_bf16 *)rows_of[warp + m * 8 + y])[x] << (16 * i);
        }
    }
    sync_warp();
}

/* Element (i, t) of a, which lane (i % 8) * 4 + t % 8 / 2 has; (t, j) of b likewise. */
static float a_of(int warp, int i, int t)
{
    unsigned word = words_of[warp + i % 8 * 4 + t % 8 / 2][i / 8 + t / 8 * 2];

    return ek_bf16_to_float(half_of(word, t % 2));
}

static float b_of(int warp, int t, int j)
{
    unsigned word = words_of[warp + j * 4 + t % 8 / 2][4 + t / 8];

    return ek_bf16_to_float(half_of(word, t % 2));
}

void matrices_multiply(float c[4], const unsigned a[4], const unsigned b[2])
{
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x - lane;

    memcpy(words_of[threadIdx.x], a, 4 * sizeof(*a));
    memcpy(words_of[threadIdx.x] + 4, b, 2 * sizeof(*b));
    sync_warp();
    for (int at = 0; at < 4; at++)
        for (int t = 0; t < 16; t++)
            c[at] += a_of(warp, lane / 4 + at / 2 * 8, t) * b_of(warp, t, lane % 4 * 2 + at % 2);
    emulated_multiplications += lane == 0;
    sync_warp();
}

float exp2_fast(float x)
{
    float y = exp2f(x);

    return y < FLT_MIN ? 0 : y;
}

/* --- products by warpgroups: a thread's groups, the newest last ------------------------------- */

enum { SHARED = 227 << 10, GROUP = 128, LINE = 128, EIGHT_LINES = 8 * LINE, TERMS = 16 };

struct warpgroup_product {
    float (*sum)[4];
    int across;
    matrix_in_shared a, b;
    bool a_along, b_along;
};

static std::deque<std::deque<warpgroup_product>> product_groups_of[THREADS_MAX];
static std::deque<warpgroup_product> products_of[THREADS_MAX];

void *shared_of_launch(void)
{
    static struct alignas(1024) {
        char bytes[SHARED];
    } all;

    return all.bytes;
}

void copies_to_products(void)
{
}

/* Element i (a row of a, a column of b) of term t. */
static float element_of(matrix_in_shared m, bool along, int i, int t)
{
    int line = along ? i : t, element = along ? t : i;
    uintptr_t at = (uintptr_t)m.at + (uintptr_t)(line / 8 * EIGHT_LINES + line % 8 * LINE);

    at += (uintptr_t)(element / 64 * m.apart + element % 64 * 2);
    at ^= (at / LINE % 8) * 16; /* swizzled chunks */
    return ek_bf16_to_float(*(const ek_bf16 *)at);
}

void emulated_products_add(float (*sum)[4], int across, matrix_in_shared a, bool a_along,
                           matrix_in_shared b, bool b_along)
{
    products_of[threadIdx.x].push_back({sum, across, a, b, a_along, b_along});
}

void products_group(void)
{
    product_groups_of[threadIdx.x].push_back(products_of[threadIdx.x]);
    products_of[threadIdx.x].clear();
}

static void compute(const warpgroup_product &p)
{
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x % GROUP / WARP;
    float a[2][TERMS];

    for (int t = 0; t < TERMS; t++)
        for (int half = 0; half < 2; half++)
            a[half][t] = element_of(p.a, p.a_along, warp * 16 + lane / 4 + half * 8, t);
    for (int x = 0; x < p.across; x++)
        for (int which = 0; which < 2; which++)
            for (int t = 0; t < TERMS; t++) {
                float b = element_of(p.b, p.b_along, x * 8 + lane % 4 * 2 + which, t);

                p.sum[x][which] += a[0][t] * b;
                p.sum[x][which + 2] += a[1][t] * b;
            }
    emulated_warpgroup_products += threadIdx.x == 0;
}

void emulated_products_wait(int groups)
{
    std::deque<std::deque<warpgroup_product>> &all = product_groups_of[threadIdx.x];

    for (; (int)all.size() > groups; all.pop_front())
        for (const warpgroup_product &p : all.front())
            compute(p);
}
