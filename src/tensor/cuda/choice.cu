/* The router: top-k, gate weights and their gradient, counts, and the sort of rows by slot. Results
 * for the host go through a pinned buffer (ek_cuda_results). */
#include "tensor/cuda/device.h"
#include "tensor/cuda/fill.h"
#include "tensor/cuda/launch.h"

/* --- top-k: a warp per token ------------------------------------------------------------------ */

/* A candidate in the order of choice: larger first, ties to the lower id.  NaN counts as -inf; no
 * candidate (id -1) comes last. */
template <class R> struct choice {
    R p;
    int32_t id;
};

template <class R> __device__ static bool is_before(choice<R> a, choice<R> b)
{
    return a.id >= 0 && (b.id < 0 || a.p > b.p || (a.p == b.p && a.id < b.id));
}

template <class R> __device__ static choice<R> choice_of(const R *p, int32_t id)
{
    choice<R> x = {p[id], id};

    if (!(x.p == x.p))
        x.p = (R)-INFINITY;
    return x;
}

template <class R> __device__ static choice<R> warp_first(choice<R> x)
{
    for (int o = EK_WARP / 2; o > 0; o /= 2) {
        choice<R> y;

        y.p = __shfl_xor_sync(ek_all_lanes, x.p, o);
        y.id = __shfl_xor_sync(ek_all_lanes, x.id, o);
        if (is_before(y, x))
            x = y;
    }
    return x;
}

/* The k first of p [e]: in each pass the first one after the previous choice. */
template <class R>
__device__ static void choose_top_k(int64_t e, int64_t k, const R *p, int32_t *ids)
{
    choice<R> last = {0, -1};

    for (int64_t j = 0; j < k; j++) {
        choice<R> best = {0, -1};

        for (int32_t c = lane_of(); c < (int32_t)e; c += EK_WARP) {
            choice<R> x = choice_of(p, c);

            if ((j == 0 || is_before(last, x)) && is_before(x, best))
                best = x;
        }
        last = warp_first(best);
        if (lane_of() == 0)
            ids[j] = last.id;
    }
}

template <class R>
__global__ void choose_experts(int64_t n, int64_t e, int64_t k, const R *logits, R *probs,
                               int32_t *ids, R *lse)
{
    int64_t i = (int64_t)blockIdx.x * EK_WARPS + warp_of();
    const R *x = logits + i * e;
    R *p = probs + i * e, top, total = 0;

    if (i >= n)
        return;
    top = x[0];
    for (int64_t c = lane_of(); c < e; c += EK_WARP)
        top = x[c] > top ? x[c] : top;
    top = warp_max(top);
    for (int64_t c = lane_of(); c < e; c += EK_WARP) {
        p[c] = real_exp(x[c] - top);
        total += p[c];
    }
    total = warp_sum(total);
    for (int64_t c = lane_of(); c < e; c += EK_WARP)
        p[c] /= total;
    if (lse != nullptr && lane_of() == 0)
        lse[i] = top + real_log(total);
    choose_top_k(e, k, p, ids + i * k); /* each lane reads only its own writes */
}

template <class R>
static void softmax_topk(int64_t n, int64_t e, int64_t k, const void *logits, void *probs,
                         int32_t *ids, void *lse)
{
    launch("softmax_topk", choose_experts<R>, (n + EK_WARPS - 1) / EK_WARPS, EK_BLOCK, n, e, k,
           (const R *)logits, (R *)probs, ids, (R *)lse);
}

/* --- weights: a thread per token -------------------------------------------------------------- */

template <class R>
__global__ void weigh_tokens(ek_weighing by, int64_t n, const R *probs, const int32_t *ids,
                             R *weights)
{
    for (int64_t t = thread_of_all(); t < n; t += threads_in_all()) {
        const R *p = probs + t * by.experts;
        R *w = weights + t * by.k, sum = 0;

        for (int64_t j = 0; j < by.k; j++) {
            int32_t e = ids[t * by.k + j];

            w[j] = e >= 0 ? p[e] : (R)0;
            sum += w[j];
        }
        if (!by.normalise || sum <= 0)
            sum = 1;
        for (int64_t j = 0; j < by.k; j++)
            w[j] = (R)by.scale * w[j] / sum;
    }
}

template <class R>
static void weigh(const ek_weighing *by, int64_t n, const void *probs, const int32_t *ids,
                  void *weights)
{
    launch("weigh", weigh_tokens<R>, blocks_for(n, EK_BLOCK), EK_BLOCK, *by, n, (const R *)probs,
           ids, (R *)weights);
}

/* --- gradient: a warp per token --------------------------------------------------------------- */

/* Gradient of the probability of an assigned expert; lane j holds it for assignment j, 32 at a
 * time. */
template <class R> struct chosen {
    int32_t e; /* -1: none */
    R add;
};

template <class R>
__device__ static chosen<R> chosen_of(const ek_weighing &by, int64_t j, const int32_t *ids,
                                      const R *dw, R sum, R inner)
{
    int32_t id = j < by.k ? ids[j] : -1;
    R d = id != -1 ? (R)by.scale * dw[j] : (R)0;

    return {id >= -1 ? id : -2 - id, by.normalise && sum > 0 ? (d - inner) / sum : d};
}

/* Sums over a token's assignments: of probabilities, and of dw w. */
template <class R>
__device__ static void sums_of(const ek_weighing &by, const R *p, const int32_t *ids, const R *w,
                               const R *dw, R *sum, R *inner)
{
    R s = 0, i = 0;

    for (int64_t j = lane_of(); j < by.k; j += EK_WARP) {
        int32_t id = ids[j];

        s += id != -1 ? p[id >= 0 ? id : -2 - id] : (R)0;
        i += id != -1 ? dw[j] * w[j] : (R)0;
    }
    *sum = warp_sum(s);
    *inner = warp_sum(i);
}

/* Lane l handles experts l, l + 32, ... and searches all assignments for them. */
template <class R>
__global__ void weigh_back(ek_weighing by, int64_t n, const R *probs, const R *lse,
                           const int32_t *ids, const R *weights, const R *dweights,
                           const double *balance, R z, R *dlogits)
{
    int64_t t = (int64_t)blockIdx.x * EK_WARPS + warp_of();
    const R *p = probs + t * by.experts, *dw = dweights + t * by.k;
    const int32_t *id = ids + t * by.k;
    R *dl = dlogits + t * by.experts, sum, in_weights, inner = 0;

    if (t >= n)
        return;
    sums_of(by, p, id, weights + t * by.k, dw, &sum, &in_weights);
    for (int64_t e = lane_of(); e < by.experts; e += EK_WARP)
        dl[e] = (R)balance[e];
    for (int64_t j0 = 0; j0 < by.k; j0 += EK_WARP) {
        chosen<R> mine = chosen_of(by, j0 + lane_of(), id, dw, sum, in_weights);

        for (int64_t j = j0; j < by.k && j < j0 + EK_WARP; j++) {
            int32_t e = __shfl_sync(ek_all_lanes, mine.e, (int)(j - j0));
            R add = __shfl_sync(ek_all_lanes, mine.add, (int)(j - j0));

            if (e >= 0 && e % EK_WARP == lane_of())
                dl[e] += add;
        }
    }
    for (int64_t e = lane_of(); e < by.experts; e += EK_WARP)
        inner += dl[e] * p[e];
    inner = warp_sum(inner);
    for (int64_t e = lane_of(); e < by.experts; e += EK_WARP)
        dl[e] = by.sigmoid ? dl[e] * (p[e] * ((R)1 - p[e])) : p[e] * (dl[e] - inner + z * lse[t]);
}

template <class R>
static void weigh_backward(const ek_weighing *by, int64_t n, const void *probs, const void *lse,
                           const int32_t *ids, const void *weights, const void *dweights,
                           const double *balance, double z, void *dlogits)
{
    const void *uploaded = ek_cuda_upload(balance, (size_t)by->experts * sizeof(*balance));

    if (uploaded != nullptr)
        launch("weigh_backward", weigh_back<R>, (n + EK_WARPS - 1) / EK_WARPS, EK_BLOCK, *by, n,
               (const R *)probs, (const R *)lse, ids, (const R *)weights, (const R *)dweights,
               (const double *)uploaded, (R)z, (R *)dlogits);
}

/* --- counts: a block per expert --------------------------------------------------------------- */

__global__ void count_of_expert(int64_t n, int64_t experts, const int32_t *ids, double *counts)
{
    __shared__ int64_t scratch[EK_WARPS];
    int32_t e = (int32_t)blockIdx.x;
    int64_t kept = 0, dropped = 0;

    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
        kept += ids[i] == e;
        dropped += ids[i] == -2 - e;
    }
    kept = block_sum(kept, scratch);
    dropped = block_sum(dropped, scratch);
    if (threadIdx.x == 0) {
        counts[e] = (double)kept;
        counts[experts + e] = (double)dropped;
    }
}

static void count_choices(int64_t n, int64_t experts, const int32_t *ids, int64_t *counts)
{
    double *scratch = ek_cuda_results((int)(2 * experts));

    for (int64_t i = 0; i < 2 * experts; i++)
        counts[i] = 0;
    if (scratch == nullptr)
        return; /* ek_kernels_wait returns the error */
    launch("count_choices", count_of_expert, experts, EK_BLOCK, n, experts, ids, scratch);
    ek_cuda_synchronize();
    for (int64_t i = 0; i < 2 * experts; i++)
        counts[i] = (int64_t)scratch[i];
}

/* --- column sums: a block per 32 columns and range of rows ------------------------------------ */

enum { RANGES_MAX = 64, RANGE_MIN = 64 };

template <class R>
__global__ void sum_range(int64_t n, int64_t d, int64_t ranges, const R *x, double *sums)
{
    __shared__ double part[EK_WARPS][EK_WARP];
    int64_t range = blockIdx.x % ranges, c = blockIdx.x / ranges * EK_WARP + lane_of();
    int64_t per = (n + ranges - 1) / ranges, end = (range + 1) * per < n ? (range + 1) * per : n;
    double sum = 0;

    for (int64_t i = range * per + warp_of(); i < end && c < d; i += EK_WARPS)
        sum += (double)x[i * d + c];
    part[warp_of()][lane_of()] = sum;
    __syncthreads();
    if (warp_of() > 0 || c >= d)
        return;
    for (int w = 1; w < EK_WARPS; w++)
        sum += part[w][lane_of()];
    sums[range * d + c] = sum;
}

template <class R> static void sum_columns(int64_t n, int64_t d, const void *x, double *sums)
{
    int64_t ranges = n / RANGE_MIN + 1 < RANGES_MAX ? n / RANGE_MIN + 1 : (int64_t)RANGES_MAX;
    double *scratch = ek_cuda_results((int)(ranges * d));

    for (int64_t c = 0; c < d; c++)
        sums[c] = 0;
    if (scratch == nullptr)
        return;
    launch("sum_columns", sum_range<R>, blocks_of_columns(d) * ranges, EK_BLOCK, n, d, ranges,
           (const R *)x, scratch);
    ek_cuda_synchronize();
    for (int64_t i = 0; i < ranges * d; i++)
        sums[i % d] += scratch[i];
}

/* --- sort of rows: a block per slot ----------------------------------------------------------- */

/* The slot of an assignment; -1: none. */
__device__ static int32_t slot_of_id(const int32_t *slot_of, int32_t first, int32_t id)
{
    return id >= 0 ? slot_of[id] - first : -1;
}

__global__ void count_of_slot(int64_t n, int32_t first, const int32_t *slot_of, const int32_t *ids,
                              double *counts)
{
    __shared__ int64_t scratch[EK_WARPS];
    int32_t slot = (int32_t)blockIdx.x;
    int64_t count = 0;

    for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
        count += slot_of_id(slot_of, first, ids[i]) == slot;
    count = block_sum(count, scratch);
    if (threadIdx.x == 0)
        counts[slot] = (double)count;
}

/* Each warp has a range of the assignments: it counts those of the slot, then assigns rows to them,
 * after those of the warps before it.  One more block marks assignments without a local slot. */
__global__ void place_slot(int64_t n, int64_t k, int32_t first, int32_t slots,
                           const int32_t *slot_of, const int64_t *offset, const int32_t *ids,
                           int32_t *row_of, int32_t *token_of)
{
    __shared__ int64_t before[EK_WARPS];
    int32_t slot = blockIdx.x < (unsigned)slots ? (int32_t)blockIdx.x : -1;
    int64_t per = (n + EK_WARPS - 1) / EK_WARPS, begin = warp_of() * per;
    int64_t end = begin + per < n ? begin + per : n, row = 0;

    for (int64_t i = begin + lane_of(); i < end; i += EK_WARP)
        row += slot_of_id(slot_of, first, ids[i]) == slot;
    row = warp_sum(row);
    if (lane_of() == 0)
        before[warp_of()] = row;
    __syncthreads();
    row = slot >= 0 ? offset[slot] : 0;
    for (int w = 0; w < warp_of(); w++)
        row += before[w];
    for (int64_t i0 = begin; i0 < end; i0 += EK_WARP) {
        int64_t i = i0 + lane_of();
        int mine = i < end && slot_of_id(slot_of, first, ids[i < end ? i : begin]) == slot;
        unsigned all = __ballot_sync(ek_all_lanes, mine);

        if (mine && slot < 0) {
            row_of[i] = -1;
        } else if (mine) {
            int64_t at = row + __popc(all & ((1u << lane_of()) - 1));

            row_of[i] = (int32_t)at;
            token_of[at] = (int32_t)(i / k);
        }
        row += __popc(all);
    }
}

/* offset [slots + 1] from the counts of slots. */
static void sum_counts(int32_t slots, const double *counts, int64_t *offset)
{
    offset[0] = 0;
    for (int32_t s = 0; s < slots; s++)
        offset[s + 1] = offset[s] + (int64_t)counts[s];
}

static int64_t sort_choices(const ek_sorting *by, int64_t n, int64_t k, const int32_t *ids,
                            int32_t *row_of, int32_t *token_of, int64_t *offset)
{
    const int32_t *slot_of =
        (const int32_t *)ek_cuda_upload(by->slot_of, (size_t)by->experts * sizeof(*by->slot_of));
    double *counts = ek_cuda_results(by->slots);
    const int64_t *begins;

    for (int32_t s = 0; s <= by->slots; s++)
        offset[s] = 0;
    if (counts == nullptr || slot_of == nullptr)
        return 0;
    launch("sort_choices", count_of_slot, by->slots, EK_BLOCK, n * k, by->first, slot_of, ids,
           counts);
    ek_cuda_synchronize();
    sum_counts(by->slots, counts, offset);
    begins = (const int64_t *)ek_cuda_upload(offset, (size_t)by->slots * sizeof(*offset));
    if (begins == nullptr)
        return 0;
    launch("sort_choices", place_slot, (int64_t)by->slots + 1, EK_BLOCK, n * k, k, by->first,
           by->slots, slot_of, begins, ids, row_of, token_of);
    return offset[by->slots];
}

template <class R, class C> static void fill(ek_kernels *k)
{
    k->softmax_topk = softmax_topk<R>;
    k->weigh = weigh<R>;
    k->weigh_backward = weigh_backward<R>;
    k->count_choices = count_choices;
    k->sum_columns = sum_columns<R>;
    k->sort_choices = sort_choices;
}

EK_CUDA_FILL(ek_cuda_fill_choice, fill)
