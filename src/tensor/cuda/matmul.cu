/* Matrix products without tensor cores: tiles of 64 x 64 by 256 threads of 4 x 4 each, sums in the
 * real type.  The oracle for faster kernels, and the fallback where those do not apply; bf16 uses
 * tensor cores (matmul_bf16.cu) if rows begin at multiples of 16 bytes. */
#include "tensor/cuda/device.h"
#include "tensor/cuda/fill.h"
#include "tensor/cuda/launch.h"
#include "tensor/cuda/products.h"

enum { TILE = 64, DEPTH = 16, EACH = 4, SIDE = TILE / EACH };
static_assert(SIDE * SIDE == EK_BLOCK, "a thread per 4 x 4 sums");

/* tile[t][i] = x[(i0 + i) * step_i + (t0 + t) * step_t], 0 past the ends; reads are coalesced. */
template <class R, class X>
__device__ static void load_tile(R tile[DEPTH][TILE + 1], const X *x, int64_t step_i,
                                 int64_t step_t, int64_t i0, int64_t end_i, int64_t t0,
                                 int64_t end_t)
{
    for (int at = (int)threadIdx.x; at < TILE * DEPTH; at += EK_BLOCK) {
        int i = step_i == 1 ? at % TILE : at / DEPTH, t = step_i == 1 ? at / TILE : at % DEPTH;
        int inside = i0 + i < end_i && t0 + t < end_t;

        tile[t][i] = inside ? to_real(x[(i0 + i) * step_i + (t0 + t) * step_t]) : 0;
    }
}

template <class R, class C>
__device__ static void store_sum(void *c, int64_t at, R sum, ek_out mode)
{
    switch (mode) {
    case EK_OUT_COMP: store_value((C *)c + at, sum); break;
    case EK_OUT_REAL: ((R *)c)[at] = sum; break;
    case EK_OUT_ADD: ((R *)c)[at] += sum; break;
    }
}

template <class R, class X, class C>
__global__ void multiply_tiles(const __grid_constant__ products<X> all, ek_out mode)
{
    __shared__ R ta[DEPTH][TILE + 1], tb[DEPTH][TILE + 1];
    int64_t i0, j0;
    const product<X> &p = product_of_tile(all, blockIdx.x, TILE, TILE, &i0, &j0);
    int row = (int)threadIdx.x / SIDE, column = (int)threadIdx.x % SIDE;
    R sum[EACH][EACH] = {};

    for (int64_t t0 = 0; t0 < p.k; t0 += DEPTH) {
        load_tile(ta, p.a, p.a_i, p.a_t, i0, p.m, t0, p.k);
        load_tile(tb, p.b, p.b_j, p.b_t, j0, p.n, t0, p.k);
        __syncthreads();
        for (int t = 0; t < DEPTH; t++)
            for (int i = 0; i < EACH; i++)
                for (int j = 0; j < EACH; j++)
                    sum[i][j] += ta[t][row + i * SIDE] * tb[t][column + j * SIDE];
        __syncthreads();
    }
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++) {
            int64_t y = i0 + row + i * SIDE, x = j0 + column + j * SIDE;

            if (y < p.m && x < p.n)
                store_sum<R, C>(p.c, y * p.ldc + x, sum[i][j], mode);
        }
}

template <class X> static int multiply_fast(const char *, products<X> *, ek_out)
{
    return 0;
}

static int multiply_fast(const char *name, products<ek_bf16> *all, ek_out mode)
{
    return ek_cuda_multiply_bf16(name, all, mode);
}

/* Collects products into launches of up to EK_PRODUCTS. */
template <class R, class X, class C> struct collector {
    const char *name;
    ek_out mode;
    products<X> all;

    void flush()
    {
        if (all.n > 0 && !multiply_fast(name, &all, mode)) {
            int64_t blocks = number_tiles(&all, TILE, TILE);

            launch(name, multiply_tiles<R, X, C>, blocks, EK_BLOCK, all, mode);
        }
        all.n = 0;
    }

    void add(const product<X> &p)
    {
        if (p.m == 0 || p.n == 0)
            return;
        all.of[all.n++] = p;
        if (all.n == EK_PRODUCTS)
            flush();
    }
};

/* --- table entries ---------------------------------------------------------------------------- */

/* Both forms are [out, in] in C; packed_bytes and linear_workspace are the reference's. */
static ek_status pack(const ek_kernels *k, int64_t out, int64_t in, ek_form form,
                      const void *master, void *packed)
{
    if (k->packed_bytes(k, out, in, form) > 0)
        k->to_comp(out, in, master, packed);
    return EK_OK;
}

template <class R, class C>
static ek_status linear_forward(const ek_kernels *k, const ek_group *g, int64_t n_groups,
                                int64_t out, int64_t in, const void *x, int64_t ldx, void *y,
                                int64_t ldy, ek_out mode, void *ws)
{
    size_t size = mode == EK_OUT_COMP ? sizeof(C) : sizeof(R);
    collector<R, C, C> c = {"linear_forward", mode, {}};

    (void)k;
    (void)ws;
    for (int64_t e = 0; e < n_groups; e++)
        c.add({g[e].rows, out, in, (const C *)x + g[e].row * ldx, ldx, 1, (const C *)g[e].w, 1, in,
               (char *)y + (size_t)(g[e].row * ldy) * size, ldy});
    c.flush();
    return EK_OK;
}

template <class R, class C>
static ek_status linear_backward_input(const ek_kernels *k, const ek_group *g, int64_t n_groups,
                                       int64_t out, int64_t in, const void *dy, int64_t lddy,
                                       void *dx, int64_t lddx, ek_out mode, void *ws)
{
    size_t size = mode == EK_OUT_COMP ? sizeof(C) : sizeof(R);
    collector<R, C, C> c = {"linear_backward_input", mode, {}};

    (void)k;
    (void)ws;
    for (int64_t e = 0; e < n_groups; e++)
        c.add({g[e].rows, in, out, (const C *)dy + g[e].row * lddy, lddy, 1, (const C *)g[e].w, in,
               1, (char *)dx + (size_t)(g[e].row * lddx) * size, lddx});
    c.flush();
    return EK_OK;
}

template <class R, class C>
static ek_status linear_backward_weight(const ek_kernels *k, const ek_group *g, int64_t n_groups,
                                        int64_t out, int64_t in, const void *dy, int64_t lddy,
                                        const void *x, int64_t ldx, void *ws)
{
    collector<R, C, C> c = {"linear_backward_weight", EK_OUT_ADD, {}};

    (void)k;
    (void)ws;
    for (int64_t e = 0; e < n_groups; e++)
        if (g[e].rows > 0)
            c.add({out, in, g[e].rows, (const C *)dy + g[e].row * lddy, 1, lddy,
                   (const C *)x + g[e].row * ldx, ldx, 1, g[e].dw, in});
    c.flush();
    return EK_OK;
}

/* --- products with few tiles and many terms --------------------------------------------------- */

/* Tiles of BROAD x SLIM, so that there are blocks for all multiprocessors; the warps of a block
 * divide the terms among them, DEEP at a time, and add their sums in order. */
enum { BROAD = 64, SLIM = 16, DEEP = 64, OF_BROAD = 8, OF_SLIM = 4 };
static_assert(BROAD / OF_BROAD * (SLIM / OF_SLIM) == EK_WARP, "a lane per 8 x 4 sums");

/* Elements of a tile that a thread carries from global to shared memory, in groups along the index
 * that is contiguous in memory.  Lanes are arranged so that neither reads of 16 bytes (ALIGNED) nor
 * writes of an element have bank conflicts, with tile rows of an odd length. */
template <bool ALIGNED, class R, int SIDE_OF> struct carried {
    enum { GROUPS = SIDE_OF * DEEP / EK_VEC / EK_BLOCK };
    const R *x;
    int64_t step_i, step_t;
    vec<R> v[GROUPS];

    /* Where a group begins: along rows of LENGTH elements in memory, and across them. */
    template <int LENGTH> __device__ static void spread(int group, int *along, int *across)
    {
        constexpr int LANES = LENGTH / EK_VEC < 8 ? LENGTH / EK_VEC : 8; /* along a row */
        constexpr int PARTS = LENGTH / EK_VEC / LANES;
        int w = warp_of() + group * EK_WARPS;

        *along = (w % PARTS * LANES + lane_of() % LANES) * EK_VEC;
        *across = w / PARTS * (EK_WARP / LANES) + lane_of() / LANES;
    }

    __device__ void place(int group, int *i, int *t) const
    {
        if (step_i == 1)
            spread<SIDE_OF>(group, i, t);
        else
            spread<DEEP>(group, t, i);
    }

    __device__ void load(int64_t i0, int64_t end_i, int64_t t0, int64_t end_t)
    {
#pragma unroll
        for (int group = 0; group < GROUPS; group++) {
            int i, t;

            place(group, &i, &t);
            v[group] = {};
            if (i0 + i < end_i && t0 + t < end_t)
                v[group] = step_i == 1 ? load_vec<ALIGNED>(x + (t0 + t) * step_t, i0 + i, end_i)
                                       : load_vec<ALIGNED>(x + (i0 + i) * step_i, t0 + t, end_t);
        }
    }

    __device__ void store(R tile[DEEP][SIDE_OF + 1]) const
    {
#pragma unroll
        for (int group = 0; group < GROUPS; group++) {
            int i, t;

            place(group, &i, &t);
            for (int e = 0; e < EK_VEC; e++)
                *(step_i == 1 ? &tile[t][i + e] : &tile[t + e][i]) = v[group].x[e];
        }
    }
};

/* c = a b, its element (i, j) at i * c_i + j * c_j; m <= n (the caller transposes otherwise). */
template <bool ALIGNED, class R>
__global__ void __launch_bounds__(EK_BLOCK, sizeof(R) == 4 ? 2 : 1)
    multiply_slim(const __grid_constant__ product<R> p, int64_t c_i, int64_t c_j, int add)
{
    __shared__ R ta[DEEP][BROAD + 1], tb[DEEP][SLIM + 1];
    int64_t down = (p.m + BROAD - 1) / BROAD;
    int64_t i0 = blockIdx.x % down * BROAD, j0 = blockIdx.x / down * SLIM;
    int row = lane_of() % (BROAD / OF_BROAD), column = lane_of() / (BROAD / OF_BROAD);
    carried<ALIGNED, R, BROAD> a = {p.a, p.a_i, p.a_t, {}};
    carried<ALIGNED, R, SLIM> b = {p.b, p.b_j, p.b_t, {}};
    R sum[OF_BROAD][OF_SLIM] = {};

    a.load(i0, p.m, 0, p.k);
    b.load(j0, p.n, 0, p.k);
    for (int64_t t0 = 0; t0 < p.k; t0 += DEEP) {
        a.store(ta);
        b.store(tb);
        __syncthreads();
        a.load(i0, p.m, t0 + DEEP, p.k);
        b.load(j0, p.n, t0 + DEEP, p.k);
#pragma unroll 2
        for (int step = 0; step < DEEP / EK_WARPS; step++) {
            int t = warp_of() + step * EK_WARPS;

            for (int i = 0; i < OF_BROAD; i++)
                for (int j = 0; j < OF_SLIM; j++)
                    sum[i][j] +=
                        ta[t][row + i * (BROAD / OF_BROAD)] * tb[t][column + j * (SLIM / OF_SLIM)];
        }
        __syncthreads();
    }
    for (int w = 0; w < EK_WARPS; w++) { /* ta becomes the sums, SLIM x BROAD */
        for (int at = 0; at < OF_BROAD * OF_SLIM && w == warp_of(); at++) {
            R *to = &ta[column + at % OF_SLIM * (SLIM / OF_SLIM)]
                       [row + at / OF_SLIM * (BROAD / OF_BROAD)];

            *to = (w == 0 ? 0 : *to) + sum[at / OF_SLIM][at % OF_SLIM];
        }
        __syncthreads();
    }
    for (int at = (int)threadIdx.x; at < BROAD * SLIM; at += EK_BLOCK) {
        int i = c_i == 1 ? at % BROAD : at / SLIM, j = c_i == 1 ? at / BROAD : at % SLIM;
        R *to = (R *)p.c + (i0 + i) * c_i + (j0 + j) * c_j;

        if (i0 + i < p.m && j0 + j < p.n)
            *to = add ? *to + ta[j][i] : ta[j][i];
    }
}

/* For few tiles of many terms: with larger tiles most multiprocessors would be idle. */
static bool is_slim(int64_t m, int64_t n, int64_t k)
{
    return tiles_of(m, TILE) * tiles_of(n, TILE) <= 512 && k >= 4 * DEEP;
}

template <class R> static void multiply_slim_side(const product<R> &p, int add)
{
    product<R> turned = {p.n, p.m, p.k, p.b, p.b_j, p.b_t, p.a, p.a_t, p.a_i, p.c, p.ldc};
    bool turn = p.m > p.n;
    const product<R> &q = turn ? turned : p;
    bool whole = (q.a_i == 1 ? is_vec_aligned(q.a, q.m, q.a_t) : is_vec_aligned(q.a, q.k, q.a_i)) &&
                 (q.b_j == 1 ? is_vec_aligned(q.b, q.n, q.b_t) : is_vec_aligned(q.b, q.k, q.b_j));

    launch("matmul_real", whole ? multiply_slim<true, R> : multiply_slim<false, R>,
           tiles_of(q.m, BROAD) * tiles_of(q.n, SLIM), EK_BLOCK, q, turn ? (int64_t)1 : p.ldc,
           turn ? p.ldc : (int64_t)1, add);
}

template <class R>
static void matmul_real(int ta, int tb, int64_t m, int64_t n, int64_t kk, const void *a,
                        int64_t lda, const void *b, int64_t ldb, int add, void *c, int64_t ldc)
{
    collector<R, R, R> all = {"matmul_real", add ? EK_OUT_ADD : EK_OUT_REAL, {}};
    product<R> p = {m,
                    n,
                    kk,
                    (const R *)a,
                    ta ? 1 : lda,
                    ta ? lda : 1,
                    (const R *)b,
                    tb ? 1 : ldb,
                    tb ? ldb : 1,
                    c,
                    ldc};

    if (is_slim(m, n, kk)) {
        multiply_slim_side(p, add);
        return;
    }
    all.add(p);
    all.flush();
}

template <class R, class C> static void fill(ek_kernels *k)
{
    k->products = sizeof(C) != sizeof(ek_bf16) ? "plain tiles"
                  : ek_cuda_has_wgmma()        ? "tensor cores (wgmma)"
                                               : "tensor cores (mma)";
    k->one_form = 1;
    k->pack = pack;
    k->linear_forward = linear_forward<R, C>;
    k->linear_forward_values = linear_forward<R, C>;
    k->linear_backward_input = linear_backward_input<R, C>;
    k->linear_backward_weight = linear_backward_weight<R, C>;
    k->matmul_real = matmul_real<R>;
}

EK_CUDA_FILL(ek_cuda_fill_matmul, fill)
