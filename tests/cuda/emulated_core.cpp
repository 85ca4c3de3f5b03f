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
#include <sys/mman.h>

enum { WARP = 32, THREADS_MAX = 1024 };

int64_t emulated_multiplications, emulated_warpgroup_products[2];

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

enum {
    SHARED = 228 << 10,
    PAGE = 4096,
    GROUP = 128,
    LINE = 128,
    EIGHT_LINES = 8 * LINE,
    TERMS = 16
};

struct warpgroup_product {
    float (*sum)[4];
    int across;
    smem_descriptor a, b;
    bool a_k_major, b_k_major;
};

static std::deque<std::deque<warpgroup_product>> product_groups_of[THREADS_MAX];
static std::deque<warpgroup_product> products_of[THREADS_MAX];

size_t emulated_shared_bytes;

/* Ends where memory ends that may be touched.  1024 bytes are for its alignment. */
void *shared_of_launch(void)
{
    static char *end;

    if (end == NULL) {
        char *all = (char *)mmap(NULL, SHARED + PAGE, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

        if (all == MAP_FAILED || mprotect(all + SHARED, PAGE, PROT_NONE) != 0)
            abort();
        end = all + SHARED;
    }
    if (emulated_shared_bytes < 1024 || emulated_shared_bytes > SHARED)
        abort();
    return end - (emulated_shared_bytes - 1024) / 1024 * 1024;
}

void fence_async_proxy(void)
{
}

/* Element i (a row of a, a column of b) of term t. */
static float element_of(smem_descriptor m, bool k_major, int i, int t)
{
    int line = k_major ? i : t, element = k_major ? t : i;
    uintptr_t at = (uintptr_t)m.at + (uintptr_t)(line / 8 * EIGHT_LINES + line % 8 * LINE);

    at += (uintptr_t)(element / 64 * m.stride + element % 64 * 2);
    at ^= (at / LINE % 8) * 16; /* swizzled chunks */
    return ek_bf16_to_float(*(const ek_bf16 *)at);
}

void emulated_wgmma(float (*sum)[4], int across, smem_descriptor a, bool a_k_major,
                    smem_descriptor b, bool b_k_major)
{
    products_of[threadIdx.x].push_back({sum, across, a, b, a_k_major, b_k_major});
}

void wgmma_commit(void)
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
            a[half][t] = element_of(p.a, p.a_k_major, warp * 16 + lane / 4 + half * 8, t);
    for (int x = 0; x < p.across; x++)
        for (int which = 0; which < 2; which++)
            for (int t = 0; t < TERMS; t++) {
                float b = element_of(p.b, p.b_k_major, x * 8 + lane % 4 * 2 + which, t);

                p.sum[x][which] += a[0][t] * b;
                p.sum[x][which + 2] += a[1][t] * b;
            }
    emulated_warpgroup_products[p.across > 16] += threadIdx.x == 0;
}

void emulated_wgmma_wait(int groups)
{
    std::deque<std::deque<warpgroup_product>> &all = product_groups_of[threadIdx.x];

    for (; (int)all.size() > groups; all.pop_front())
        for (const warpgroup_product &p : all.front())
            compute(p);
}
