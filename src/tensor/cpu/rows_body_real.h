/* rows_body_real.h - row kernels on R = float only, and copies without a type.
 *
 * Included by rows_body.h for the instruction set of the including file.  Threads divide rows,
 * columns or blocks that depend only on the shape, and every element is summed in one order, so
 * that the bits are the same for any number of threads. */
#include "base/undo_log.h"
#include "tensor/cpu/rows.h"
#include "tensor/cpu/vec.h"

#include <math.h>
#include <omp.h>
#include <string.h>

/* Below this many elements one thread is faster than starting a team. */
#define ROWS_SERIAL 16384
/* Outputs of at least this many bytes use non-temporal stores: lines are not read before they are
 * overwritten, and such outputs would not stay in cache until they are read. */
#define ROWS_STREAM_BYTES (4 << 20)

/* Whether an output of n rows should and can be streamed; ld in bytes. */
static inline int rows_stream(const void *p, int64_t ld, int64_t n)
{
    return ld * n >= ROWS_STREAM_BYTES && (uintptr_t)p % 64 == 0 && ld % 64 == 0;
}

/* Columns [from, to) of d that this thread of the team works on. */
static inline void rows_columns(int64_t d, int64_t *from, int64_t *to)
{
    const int64_t strips = (d + 31) / 32, n = omp_get_num_threads(), t = omp_get_thread_num();

    *from = 32 * (strips * t / n);
    *to = 32 * (strips * (t + 1) / n);
    *to = *to < d ? *to : d;
}

/* --- copies ----------------------------------------------------------------------------------- */

/* One row of bytes; src NULL: zeros. */
static inline void copy_row(char *dst, const char *src, int64_t bytes, int stream)
{
    const int64_t step = 4 * VF, whole = stream ? bytes - bytes % step : 0;
    const size_t rest = (size_t)(bytes - whole);

    for (int64_t i = 0; i < whole; i += step)
        vf_store((void *)(dst + i), src ? vf_load((const void *)(src + i), VF) : vf_set(0), VF, 1);
    if (src == NULL)
        memset(dst + whole, 0, rest);
    else
        memcpy(dst + whole, src + whole, rest);
}

/* dst[i] = src[idx[i]] for rows of bytes; a negative index gives zeros. */
static void gather_bytes(int64_t n, int64_t bytes, const int32_t *idx, const char *src, int64_t lds,
                         char *dst, int64_t ldd)
{
    const int stream = rows_stream(dst, ldd, n);

#pragma omp parallel if (n * bytes >= 4 * ROWS_SERIAL)
    {
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < n; i++)
            copy_row(dst + i * ldd, idx[i] < 0 ? NULL : src + idx[i] * lds, bytes, stream);
        vf_fence();
    }
}

static void embed_forward(int64_t n, int64_t d, const int32_t *ids, const void *table, void *x)
{
    gather_bytes(n, d * 4, ids, table, d * 4, x, d * 4);
}

/* Threads share the columns, so that every sum runs over the tokens in order. */
static void embed_backward(int64_t n, int64_t d, const int32_t *ids, const void *dx, void *dtable)
{
#pragma omp parallel if (n * d >= ROWS_SERIAL)
    {
        int64_t from, to;

        rows_columns(d, &from, &to);
        for (int64_t i = 0; i < n; i++) {
            if (ids[i] < 0)
                continue;
            const float *g = (const float *)dx + i * d;
            float *t = (float *)dtable + ids[i] * d;

            for (int64_t c = from; c < to; c += VF)
                vf_store(t + c, vf_load(t + c, to - c) + vf_load(g + c, to - c), to - c, 0);
        }
    }
}

/* --- norm ------------------------------------------------------------------------------------- */

/* Two partial sums, to hide the latency of additions. */
static inline float sum_squares_row(int64_t d, const float *x)
{
    vf a = vf_set(0), b = vf_set(0);
    int64_t c = 0;

    for (; c + 2 * VF <= d; c += 2 * VF) {
        const vf u = vf_load(x + c, VF), v = vf_load(x + c + VF, VF);

        a = vf_fma(u, u, a);
        b = vf_fma(v, v, b);
    }
    for (; c < d; c += VF) {
        const vf u = vf_load(x + c, d - c);

        a = vf_fma(u, u, a);
    }
    return vf_sum(a + b);
}

/* With s = sum over the row of dy w x: dx += rstd (dy w - x s rstd^2 / d), dw += dy x rstd. */
static inline void rmsnorm_backward_row(int64_t d, const float *x, const float *w, float rstd,
                                        const float *dy, float *dx, float *dw)
{
    const vf r = vf_set(rstd);
    vf sum = vf_set(0), slope;

    for (int64_t c = 0; c < d; c += VF)
        sum = vf_fma(vf_load(dy + c, d - c) * vf_load(w + c, d - c), vf_load(x + c, d - c), sum);
    slope = vf_set(-vf_sum(sum) * rstd * rstd / (float)d);
    for (int64_t c = 0; c < d; c += VF) {
        const int64_t m = d - c;
        const vf vx = vf_load(x + c, m), g = vf_load(dy + c, m);
        const vf t = vf_fma(vx, slope, g * vf_load(w + c, m));

        vf_store(dx + c, vf_fma(r, t, vf_load(dx + c, m)), m, 0);
        vf_store(dw + c, vf_fma(g * vx, r, vf_load(dw + c, m)), m, 0);
    }
}

/* dw is summed per block of rows in ws; then the blocks are added in order. */
static void rmsnorm_backward(int64_t n, int64_t d, const void *x, const void *w, const void *rstd,
                             const void *dy, void *dx, void *dw, void *ws)
{
    const int64_t rows = n > 16 * EK_CPU_NORM_BLOCKS ? (n - 1) / EK_CPU_NORM_BLOCKS + 1 : 16;
    const int64_t blocks = (n + rows - 1) / rows;

#pragma omp parallel if (n * d >= ROWS_SERIAL)
    {
#pragma omp for schedule(static)
        for (int64_t b = 0; b < blocks; b++) {
            const int64_t end = (b + 1) * rows < n ? (b + 1) * rows : n;
            float *part = (float *)ws + b * d;

            memset(part, 0, (size_t)d * sizeof(float));
            for (int64_t i = b * rows; i < end; i++)
                rmsnorm_backward_row(d, (const float *)x + i * d, w, ((const float *)rstd)[i],
                                     (const float *)dy + i * d, (float *)dx + i * d, part);
        }
#pragma omp for schedule(static)
        for (int64_t c = 0; c < d; c += VF) {
            vf sum = vf_load((float *)dw + c, d - c);

            for (int64_t b = 0; b < blocks; b++)
                sum = sum + vf_load((float *)ws + b * d + c, d - c);
            vf_store((float *)dw + c, sum, d - c, 0);
        }
    }
}

/* --- router ----------------------------------------------------------------------------------- */

/* Sets p to the softmax of x and returns its log of the sum of exponentials. */
static inline float softmax_row(int64_t e, const float *x, float *p)
{
    const vf low = vf_set(-INFINITY);
    vf max = low, sum = vf_set(0), scale;
    float top, total;

    for (int64_t c = 0; c < e; c += VF)
        max = vf_max(vf_load_fill(x + c, e - c, low), max);
    top = vf_top(max);
    for (int64_t c = 0; c < e; c += VF) {
        const vf y = vf_exp(vf_load_fill(x + c, e - c, low) - vf_set(top));

        sum = sum + y;
        vf_store(p + c, y, e - c, 0);
    }
    total = vf_sum(sum);
    scale = vf_set(1 / total);
    for (int64_t c = 0; c < e; c += VF)
        vf_store(p + c, vf_load(p + c, e - c) * scale, e - c, 0);
    return top + logf(total);
}

/* The k largest of p >= 0 in the order (value falling, id rising).  Each pass finds the first
 * that comes after the last one found; ids are exact as floats up to 2^24 experts.  For NaNs the
 * ids are 0 to k - 1. */
static inline void topk_row(int64_t e, int64_t k, const float *p, int32_t *ids)
{
    const vf none = vf_set(-1), far = vf_set(0x1p24f);
    float last = INFINITY, last_id = -1;

    for (int64_t j = 0; j < k; j++) {
        const vf value = vf_set(last), id = vf_set(last_id);
        vf best = none, best_id = far, first;

        for (int64_t c = 0; c < e; c += VF) {
            const vf y = vf_load_fill(p + c, e - c, none), i = vf_index() + vf_set((float)c);
            const vm after = vm_or(vf_less(y, value), vm_and(vf_equal(y, value), vf_less(id, i)));
            const vm take = vm_and(after, vf_less(best, y));

            best = vf_select(take, y, best);
            best_id = vf_select(take, i, best_id);
        }
        last = vf_top(best);
        first = vf_select(vf_equal(best, vf_set(last)), best_id, far);
        last_id = -vf_top(-first);
        ids[j] = last < 0 ? (int32_t)j : (int32_t)last_id;
    }
}

static void softmax_topk(int64_t n, int64_t e, int64_t k, const void *logits, void *probs,
                         int32_t *ids, void *lse)
{
#pragma omp parallel for schedule(static) if (n * e >= ROWS_SERIAL)
    for (int64_t i = 0; i < n; i++) {
        float *p = (float *)probs + i * e;
        const float l = softmax_row(e, (const float *)logits + i * e, p);

        if (lse != NULL)
            ((float *)lse)[i] = l;
        topk_row(e, k, p, ids + i * k);
    }
}

/* --- loss ------------------------------------------------------------------------------------- */

/* Sets x to exp(x - top) and returns the sum: in float over short chunks, whose sums are added in
 * double. */
static inline double exponentials(int64_t v, float *x, float top)
{
    const vf low = vf_set(-INFINITY), shift = vf_set(top);
    vd sum = vd_zero();

    for (int64_t first = 0; first < v; first += 16 * VF) {
        const int64_t end = first + 16 * VF < v ? first + 16 * VF : v;
        vf part = vf_set(0);

        for (int64_t c = first; c < end; c += VF) {
            const vf y = vf_exp(vf_load_fill(x + c, v - c, low) - shift);

            part = part + y;
            vf_store(x + c, y, v - c, 0);
        }
        sum = vd_add(sum, part);
    }
    return vd_sum(sum);
}

static void vocab_exponentials(int64_t n, int64_t v, void *logits, int64_t ld,
                               const int32_t *target, double *stats)
{
#pragma omp parallel for schedule(static) if (n * v >= ROWS_SERIAL)
    for (int64_t i = 0; i < n; i++) {
        const vf low = vf_set(-INFINITY);
        float *x = (float *)logits + i * ld, at = 0;
        vf max = low;
        float top;

        for (int64_t c = 0; c < v; c += VF)
            max = vf_max(vf_load_fill(x + c, v - c, low), max);
        top = vf_top(max);
        if (target[i] >= 0) {
            at = x[target[i]];
            x[target[i]] = -INFINITY;
        }
        stats[3 * i] = (double)top;
        stats[3 * i + 1] = exponentials(v, x, top);
        stats[3 * i + 2] = (double)at;
    }
}

/* --- optimizer -------------------------------------------------------------------------------- */

/* In at most 256 chunks, whose sums are added in order. */
static double sum_squares(int64_t n, const void *g)
{
    enum { CHUNKS = 256 };
    const int64_t chunk = n > 4096 * CHUNKS ? ((n - 1) / CHUNKS / 64 + 1) * 64 : 4096;
    const int64_t chunks = (n + chunk - 1) / chunk;
    double part[CHUNKS], total = 0;

#pragma omp parallel for schedule(static) if (n >= ROWS_SERIAL)
    for (int64_t b = 0; b < chunks; b++) {
        const int64_t end = (b + 1) * chunk < n ? (b + 1) * chunk : n;
        vd a = vd_zero(), z = vd_zero();

        for (int64_t i = b * chunk; i < end; i += 2 * VF) {
            a = vd_add_square(a, vf_load((const float *)g + i, end - i));
            if (end - i > VF)
                z = vd_add_square(z, vf_load((const float *)g + i + VF, end - i - VF));
        }
        part[b] = vd_sum(a) + vd_sum(z);
    }
    for (int64_t b = 0; b < chunks; b++)
        total += part[b];
    return total;
}

typedef struct {
    vf keep, step, root, eps, b1, c1, b2, c2, scale;
} adamw_by;

static inline adamw_by adamw_coefficients(const ek_adamw *h)
{
    return (adamw_by){.keep = vf_set((float)(1 - h->lr * h->decay)),
                      .step = vf_set((float)(-h->lr / h->correction1)),
                      .root = vf_set((float)(1 / sqrt(h->correction2))),
                      .eps = vf_set((float)h->eps),
                      .b1 = vf_set((float)h->beta1),
                      .c1 = vf_set((float)(1 - h->beta1)),
                      .b2 = vf_set((float)h->beta2),
                      .c2 = vf_set((float)(1 - h->beta2)),
                      .scale = vf_set((float)h->grad_scale)};
}

static inline void adamw_vector(const adamw_by *by, int64_t left, float *p, float *g, float *m,
                                float *v)
{
    const vf grad = vf_load(g, left) * by->scale;
    const vf m1 = vf_fma(by->b1, vf_load(m, left), by->c1 * grad);
    const vf v1 = vf_fma(by->b2, vf_load(v, left), by->c2 * grad * grad);
    const vf d = vf_fma(vf_sqrt(v1), by->root, by->eps);

    vf_store(p, vf_fma(by->step, m1 / d, vf_load(p, left) * by->keep), left, 0);
    vf_store(m, m1, left, 0);
    vf_store(v, v1, left, 0);
    vf_store(g, vf_set(0), left, 0);
}

static void adamw(const ek_adamw *h, int64_t n, void *p, void *g, void *m, void *v)
{
    const adamw_by by = adamw_coefficients(h);

#pragma omp parallel for schedule(static) if (n >= ROWS_SERIAL)
    for (int64_t i = 0; i < n; i += VF)
        adamw_vector(&by, n - i, (float *)p + i, (float *)g + i, (float *)m + i, (float *)v + i);
}

/* Updates the n elements of a lane. */
static void adamw_lane(const adamw_by *by, int64_t n, float *const a[EK_UNDO_ARRAYS],
                       ek_undo_log *undo_log)
{
    void *const arrays[EK_UNDO_ARRAYS] = {a[0], a[1], a[2], a[3]};

    for (int64_t i = ek_undo_restore(undo_log, sizeof(float), arrays); i < n; i += EK_UNDO_BLOCK) {
        const int64_t block = n - i < EK_UNDO_BLOCK ? n - i : EK_UNDO_BLOCK;

        for (int j = 0; j < EK_UNDO_ARRAYS; j++) {
            float *kept = ek_undo_copy(undo_log, i, j);

            for (int64_t b = 0; b < block; b += VF)
                vf_store(kept + b, vf_load(a[j] + i + b, block - b), block - b, 0);
        }
        ek_undo_mark(undo_log, i + block);
        for (int64_t b = 0; b < block; b += VF)
            adamw_vector(by, block - b, a[0] + i + b, a[1] + i + b, a[2] + i + b, a[3] + i + b);
    }
}

static void adamw_resumable(const ek_adamw *h, int64_t n, void *p, void *g, void *m, void *v,
                            int lanes, ek_undo_log *undo_logs)
{
    const adamw_by by = adamw_coefficients(h);

#pragma omp parallel for schedule(static) if (n >= ROWS_SERIAL)
    for (int lane = 0; lane < lanes; lane++) {
        const int64_t at = ek_undo_lane_first(n, lanes, lane);

        adamw_lane(
            &by, ek_undo_lane_first(n, lanes, lane + 1) - at,
            (float *const[]){(float *)p + at, (float *)g + at, (float *)m + at, (float *)v + at},
            &undo_logs[lane]);
    }
}
