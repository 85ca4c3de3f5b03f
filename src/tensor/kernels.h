/* tensor/kernels.h - the table of compute kernels of a model.
 *
 * Every kernel has a plain reference implementation (tensor/ref: the oracle), and most have
 * optimised ones (tensor/cpu, tensor/cuda).  tensor/select first fills a table with the reference
 * kernels, and then overrides them by the optimised kernels that the processor supports.
 *
 * Two element types per table.
 *   R  real:    residual stream, norms, router, gradients, master weights.  float or double.
 *   C  compute: inputs of matrix products and saved activations.            R or bf16.
 *   mode fp64: R = C = double    fp32: R = C = float    bf16: R = float, C = bf16
 *
 * Arrays are row-major; ld* are row strides in elements; n, rows count tokens.
 * Buffers may not overlap unless a kernel says so; ws and packed forms are aligned to 64 bytes.
 * Kernels do not allocate: those that need scratch use a workspace `ws`, whose size in bytes the
 * table's ..._workspace returns.
 *
 * CPU kernels run on the OpenMP team of the calling thread and give the same bits for any number of
 * threads.  Accelerator kernels expect all arrays in the accelerator's memory (`memory`), except
 * groups and arrays marked "host"; their errors are returned by ek_kernels_wait. */
#ifndef TENSOR_KERNELS_H
#define TENSOR_KERNELS_H

#include "evenkeel/err.h"

#include "base/memory.h"
#include "tensor/dtype.h"

#include <stddef.h>
#include <stdint.h>

struct ek_undo_log;

/* A range of rows that are multiplied by one weight matrix: an expert's tokens, or (as one group)
 * all tokens.  Rows of different groups of a call do not overlap; groups may be empty. */
typedef struct {
    int64_t row, rows;
    const void *w; /* the packed form, or the master weight if packed_bytes is 0 */
    void *dw;      /* R [out, in], for linear_backward_weight */
} ek_group;

/* The product that a packed form is for: y = x W^T, or dx = dy W. */
typedef enum { EK_PACKED_FORWARD, EK_PACKED_BACKWARD } ek_form;

/* How a matrix product stores its result. */
typedef enum {
    EK_OUT_COMP, /* store as C */
    EK_OUT_REAL, /* store as R */
    EK_OUT_ADD   /* add to R */
} ek_out;

/* One call of attention: `batch` sequences of `seq` tokens.  A row of qkv holds
 * [heads * head_dim | kv_heads * head_dim | kv_heads * head_dim]; ld is its stride.
 * Query head i reads key head i / (heads / kv_heads).  Causal: query t of a sequence sees keys
 * starts[t] to t of it; NULL: 0 to t.  0 <= starts[t] <= t, and starts never decrease. */
typedef struct {
    int64_t batch, seq, heads, kv_heads, head_dim, ld;
    double scale;
    const int32_t *starts; /* [batch, seq], position where a token's document begins; or NULL */
} ek_attention;

/* AdamW: first p *= 1 - lr * decay; eps outside the bias-corrected root. */
typedef struct {
    double lr, decay, beta1, beta2, eps;
    double correction1, correction2; /* 1 - beta^t */
    double grad_scale;               /* clip factor */
} ek_adamw;

/* How gate weights follow from probabilities: k experts per token. */
typedef struct {
    int64_t experts, k;
    int normalise; /* divide by the sum over the token's chosen experts */
    int sigmoid;   /* probabilities are sigmoids of the logits, else their softmax */
    double scale;
} ek_weighing;

/* The slot of each expert: slot_of [experts], values from first to first + slots - 1 are local. */
typedef struct {
    const int32_t *slot_of; /* host */
    int64_t experts;
    int32_t first, slots;
} ek_sorting;

typedef struct ek_kernels ek_kernels;

struct ek_kernels {
    const char *name;     /* "ref fp64", "cpu bf16 avx512" */
    const char *products; /* implementation of the matrix products, for `evenkeel info` */
    ek_dtype real, comp;
    int threads;
    int one_form; /* a packed form is the master in comp, in the same order: one form serves both
                     directions, and consecutive matrices can be packed by one call */
    int wide;     /* the loss head's blocks are to fill an accelerator, and not a cache */
    void *state;  /* private to the back end; NULL for the reference */
    const ek_memory *memory; /* allocator for arrays; NULL: system memory */
    /* See ek_kernels_enter, which also sets the team size, and ek_kernels_wait; NULL: nothing. */
    void (*enter)(const ek_kernels *k);
    ek_status (*wait)(const ek_kernels *k);
    /* See ek_kernels_queue; NULL: nothing. */
    void (*queue)(const ek_kernels *k, int on);

    /* --- matrix products: y = x W^T with W [out, in]; see ek_group ---------------------------- */

    /* Bytes of one packed form; 0: kernels read the master weight itself. */
    size_t (*packed_bytes)(const ek_kernels *k, int64_t out, int64_t in, ek_form form);
    /* Rows [i panel_rows, ...) of a forward form begin packed_bytes(i panel_rows, in) after its
     * start and can be packed by themselves. */
    int64_t panel_rows;
    /* master R [out, in] -> packed form.  Called once after each optimizer step. */
    ek_status (*pack)(const ek_kernels *k, int64_t out, int64_t in, ek_form form,
                      const void *master, void *packed);
    /* values C [out, in] -> packed forward form: the bits that pack makes of the same values in R.
     * Nothing where there is no packed form; NULL: not supported. */
    ek_status (*pack_comp)(const ek_kernels *k, int64_t out, int64_t in, const void *values,
                           void *packed);
    /* packed forward form -> packed backward form: the bits that pack makes of the same master.
     * NULL: one form, or the master, serves both directions. */
    ek_status (*repack)(const ek_kernels *k, int64_t out, int64_t in, const void *forward,
                        void *backward);
    /* y [rows, out] = x C [rows, in] W^T. */
    ek_status (*linear_forward)(const ek_kernels *k, const ek_group *g, int64_t n_groups,
                                int64_t out, int64_t in, const void *x, int64_t ldx, void *y,
                                int64_t ldy, ek_out mode, void *ws);
    /* The same, in the same bits, of weights as files have them: ek_group.w is C [out, in], aligned
     * to its elements, and not packed before.  ws: values_workspace. */
    ek_status (*linear_forward_values)(const ek_kernels *k, const ek_group *g, int64_t n_groups,
                                       int64_t out, int64_t in, const void *x, int64_t ldx, void *y,
                                       int64_t ldy, ek_out mode, void *ws);
    size_t (*values_workspace)(const ek_kernels *k, int64_t in);
    /* dx [rows, in] = dy C [rows, out] W. */
    ek_status (*linear_backward_input)(const ek_kernels *k, const ek_group *g, int64_t n_groups,
                                       int64_t out, int64_t in, const void *dy, int64_t lddy,
                                       void *dx, int64_t lddx, ek_out mode, void *ws);
    /* dw R [out, in] += dy^T x, per group. */
    ek_status (*linear_backward_weight)(const ek_kernels *k, const ek_group *g, int64_t n_groups,
                                        int64_t out, int64_t in, const void *dy, int64_t lddy,
                                        const void *x, int64_t ldx, void *ws);
    /* Workspace of the three above for up to `rows` rows in all and `n_groups` groups. */
    size_t (*linear_workspace)(const ek_kernels *k, int64_t rows, int64_t n_groups, int64_t out,
                               int64_t in);
    /* c R [m, n] = (or +=, if add) op(a) op(b), all R; op transposes if ta, tb.  For the router:
     * one of m and n is small. */
    void (*matmul_real)(int ta, int tb, int64_t m, int64_t n, int64_t kk, const void *a,
                        int64_t lda, const void *b, int64_t ldb, int add, void *c, int64_t ldc);

    /* --- rows --------------------------------------------------------------------------------- */

    /* dst [n, bytes] = src, both at strides in bytes. */
    void (*copy_rows)(int64_t n, int64_t bytes, const void *src, int64_t lds, void *dst,
                      int64_t ldd);
    /* x [bytes] = 0. */
    void (*clear)(int64_t bytes, void *x);
    /* dst C [n, d] = src C [idx[i]]; a negative index gives a row of zeros. */
    void (*gather_comp)(int64_t n, int64_t d, const int32_t *idx, const void *src, int64_t lds,
                        void *dst, int64_t ldd);
    /* The same from src R, rounded to C. */
    void (*gather_real)(int64_t n, int64_t d, const int32_t *idx, const void *src, int64_t lds,
                        void *dst, int64_t ldd);
    /* x R [n, d] = (or +=, if add) sum over j < k of rows C [row_of[i * k + j]], at stride ld, in
     * the order of j; a negative row_of adds nothing. */
    void (*combine)(int64_t n, int64_t d, int64_t k, const int32_t *row_of, const void *rows,
                    int64_t ld, int add, void *x);
    /* y C [n, d] = x R [n, d]. */
    void (*to_comp)(int64_t n, int64_t d, const void *x, void *y);
    /* x R [n, d] = table R [v, d] at ids; a negative id gives a row of zeros. */
    void (*embed_forward)(int64_t n, int64_t d, const int32_t *ids, const void *table, void *x);
    /* dtable R [v, d] += dx R at ids, tokens in order; a negative id adds nothing. */
    void (*embed_backward)(int64_t n, int64_t d, const int32_t *ids, const void *dx, void *dtable);
    /* x C [n, d] += b R [d]; ld strides x. */
    void (*bias_forward)(int64_t n, int64_t d, const void *b, void *x, int64_t ld);
    /* db R [d] += column sums of dy C. */
    void (*bias_backward)(int64_t n, int64_t d, const void *dy, int64_t ld, void *db);

    /* --- norms -------------------------------------------------------------------------------- */

    /* y = x rstd w, rstd = 1 / sqrt(mean(x^2) + eps) R [n].  y C and y_real R may each be NULL. */
    void (*rmsnorm_forward)(int64_t n, int64_t d, double eps, const void *x, const void *w, void *y,
                            void *y_real, void *rstd);
    /* dx R += gradient of x; dw R [d] += gradient of w.  dy R. ws: rmsnorm_workspace. */
    void (*rmsnorm_backward)(int64_t n, int64_t d, const void *x, const void *w, const void *rstd,
                             const void *dy, void *dx, void *dw, void *ws);
    /* Norm of query or key heads, in place: each row of x C has `heads` segments of `width`,
     * ld is the row stride, w R [width].  raw C [n, heads * width] gets x as it was (NULL: not
     * kept), rstd R [n, heads]. */
    void (*headnorm_forward)(int64_t n, int64_t heads, int64_t width, double eps, const void *w,
                             void *x, int64_t ld, void *raw, void *rstd);
    /* dx C, in place of dy, at stride ld; dw R += . */
    void (*headnorm_backward)(int64_t n, int64_t heads, int64_t width, const void *w,
                              const void *raw, const void *rstd, void *dx, int64_t ld, void *dw,
                              void *ws);
    /* The same norm over one head of `whole` columns that are divided over ranks, `width` of them
     * on this rank.  _squares (forward) and _dots (backward) compute this rank's partial sums [n]
     * of squares and of w dy raw; _forward and _backward its columns of the result, from sums over
     * ranks. */
    void (*widenorm_squares)(int64_t n, int64_t width, const void *x, int64_t ld, double *sums);
    void (*widenorm_forward)(int64_t n, int64_t width, int64_t whole, double eps,
                             const double *sums, const void *w, void *x, int64_t ld, void *raw,
                             void *rstd);
    void (*widenorm_dots)(int64_t n, int64_t width, const void *w, const void *raw, const void *dy,
                          int64_t ld, double *sums);
    void (*widenorm_backward)(int64_t n, int64_t width, int64_t whole, const double *sums,
                              const void *w, const void *raw, const void *rstd, void *dx,
                              int64_t ld, void *dw);
    size_t (*rmsnorm_workspace)(const ek_kernels *k, int64_t d);

    /* --- attention ---------------------------------------------------------------------------- */

    /* Rotates `heads` heads of head_dim at the start of each row of x C, in place: pairs
     * (i, i + head_dim / 2).  cos_sin R [positions, head_dim]: head_dim / 2 cosines, then as many
     * sines.  Row r is at position pos0 + r % seq.  inverse: the transpose, for gradients. */
    void (*rope)(int64_t n, int64_t seq, int64_t pos0, int64_t heads, int64_t head_dim,
                 const void *cos_sin, int inverse, void *x, int64_t ld);
    /* o C [batch * seq, heads * head_dim]; lse R [batch, heads, seq]: log of the sum of
     * exponentials of the scaled scores. */
    void (*attention_forward)(const ek_attention *a, const void *qkv, void *o, void *lse, void *ws);
    /* dqkv C, laid out as qkv, is set. */
    void (*attention_backward)(const ek_attention *a, const void *qkv, const void *o,
                               const void *lse, const void *d_o, void *dqkv, void *ws);
    size_t (*attention_workspace)(const ek_kernels *k, const ek_attention *a);
    /* One sequence with a cache: m new tokens at positions pos0 ..; q at the start of each row
     * of qkv (stride ld), keys and values of positions 0 .. pos0 + m - 1 in caches
     * C [positions, kv_heads * head_dim].  o C [m, heads * head_dim].
     * a->starts is ignored.  ws: attention_workspace of `a`, and at least R [threads, pos0 + m]. */
    void (*attention_cached)(const ek_attention *a, int64_t m, int64_t pos0, const void *qkv,
                             const void *k_cache, const void *v_cache, void *o, void *ws);

    /* --- router, experts, loss, optimizer ----------------------------------------------------- */

    /* probs R [n, e] = softmax of logits R [n, e]; ids [n, k]: the k largest, largest first, ties
     * to the lower id; lse R [n] of the logits (NULL: not wanted).  probs may be logits. */
    void (*softmax_topk)(int64_t n, int64_t e, int64_t k, const void *logits, void *probs,
                         int32_t *ids, void *lse);
    /* ids below: -1 is no expert, -2 - e is an assignment to expert e dropped over capacity. */

    /* weights R [n, k] = probability of each id (probs R [n, experts]; 0 for negative ids) times
     * scale; with `normalise`, divided by the token's sum of them if that is above 0. */
    void (*weigh)(const ek_weighing *by, int64_t n, const void *probs, const int32_t *ids,
                  void *weights);
    /* Sets dlogits R [n, experts] from dweights R [n, k], from balance [experts] (host), a gradient
     * added to all probabilities, and, for softmax, from z times lse R [n] (z-loss).  Dropped
     * assignments count in the normalisation, as in weigh. */
    void (*weigh_backward)(const ek_weighing *by, int64_t n, const void *probs, const void *lse,
                           const int32_t *ids, const void *weights, const void *dweights,
                           const double *balance, double z, void *dlogits);
    /* counts [2 experts] (host): how often each expert is in ids [n], then how often dropped. */
    void (*count_choices)(int64_t n, int64_t experts, const int32_t *ids, int64_t *counts);
    /* sums [d] (host) = column sums of x R [n, d]. */
    void (*sum_columns)(int64_t n, int64_t d, const void *x, double *sums);
    /* A stable counting sort of assignments by slot, so that the rows of a slot are contiguous, in
     * token order: ids [n, k] -> row_of [n, k] (-1: not local), token_of [rows],
     * offset [slots + 1] (host).  Returns the number of rows. */
    int64_t (*sort_choices)(const ek_sorting *by, int64_t n, int64_t k, const int32_t *ids,
                            int32_t *row_of, int32_t *token_of, int64_t *offset);
    /* to[i] = from[idx[i]], 0 if idx[i] < 0; the reverse, to[idx[i]] = from[i]; i < n, all R. */
    void (*gather_numbers)(int64_t n, const int32_t *idx, const void *from, void *to);
    void (*scatter_numbers)(int64_t n, const int32_t *idx, const void *from, void *to);

    /* h C [n, f] = scale * silu(gate) * up; gu C [n, 2 f] holds gate, then up.  scale R [n] or
     * NULL for 1. */
    void (*swiglu_forward)(int64_t n, int64_t f, const void *gu, const void *scale, void *h);
    /* Sets dgu C [n, 2 f] (may be gu itself), h C [n, f] to the recomputed forward result (NULL:
     * not wanted; may be dh itself), and dscale R [n] (NULL if scale is). */
    void (*swiglu_backward)(int64_t n, int64_t f, const void *gu, const void *scale, const void *dh,
                            void *dgu, void *h, void *dscale);
    /* loss[i] = cross entropy of row i in nats; dlogits C [n, v] = scale (softmax - one-hot), or
     * NULL.  logits R may be overwritten.  A negative target: loss 0, gradient 0. */
    void (*cross_entropy)(int64_t n, int64_t v, void *logits, int64_t ld, const int32_t *target,
                          double scale, double *loss, void *dlogits, int64_t ldd);
    /* Vocabulary-parallel cross entropy, over this rank's v columns.  logits R [n, v] become
     * exp(logit - top), 0 at the target; top is the row's maximum (-inf if v is 0).
     * stats [n, 3]: top, the sum of the exponentials without the target's, and the target's logit.
     * A negative target belongs to another rank, or to none: its logit is 0. */
    void (*vocab_exponentials)(int64_t n, int64_t v, void *logits, int64_t ld,
                               const int32_t *target, double *stats);
    /* Its gradient: dlogits C [n, v] = factor[i] times the exponentials; hit[i] at the target. */
    void (*vocab_gradient)(int64_t n, int64_t v, const void *exponentials, int64_t ld,
                           const int32_t *target, const double *factor, const double *hit,
                           void *dlogits, int64_t ldd);
    /* Sum of squares of g R [n], in an order that depends only on n. */
    double (*sum_squares)(int64_t n, const void *g);
    /* sums [count] (host): sum_squares of each g[i] R [n[i]], with the same bits. */
    void (*sum_squares_each)(const ek_kernels *k, int64_t count, const int64_t *n,
                             const void *const *g, double *sums);
    /* Updates p, m, v and zeroes g; all R [n]. */
    void (*adamw)(const ek_adamw *h, int64_t n, void *p, void *g, void *m, void *v);
    /* The same with the same bits, resumable after a kill (base/undo_log.h): the elements are
     * divided into `lanes`, with one undo log each; undo_logs are either all at 0, or as an
     * interrupted call with the same n and lanes left them.  NULL: not supported. */
    void (*adamw_resumable)(const ek_adamw *h, int64_t n, void *p, void *g, void *m, void *v,
                            int lanes, struct ek_undo_log *undo_logs);
};

typedef enum { EK_MODE_FP64, EK_MODE_FP32, EK_MODE_BF16 } ek_mode;

/* "bf16", "fp32" or "fp64"; static. */
const char *ek_mode_name(ek_mode mode);

/* Instruction sets, in order: a CPU that has one has those before it.  SLOW_BF16: the bf16 dot
 * products are slower than float multiply-adds, and matrix products do not use them.  AMX: matrix
 * units, which oneDNN's products use, where they are faster than dot products. */
typedef enum {
    EK_ISA_REF,
    EK_ISA_AVX2,
    EK_ISA_AVX512,
    EK_ISA_AVX512_SLOW_BF16,
    EK_ISA_AVX512_BF16,
    EK_ISA_AMX_BF16
} ek_isa;

/* For a user, "AVX-512"; static. */
const char *ek_isa_name(ek_isa isa);

/* Sets the calling thread's OpenMP team size, and its accelerator, to this table's: to be called
 * before a thread calls kernels, if it or another table may have changed them. */
void ek_kernels_enter(const ek_kernels *k);
/* on: kernels of an accelerator are only enqueued, and their results are valid after
 * ek_kernels_wait; off (the default): when the call returns. */
void ek_kernels_queue(const ek_kernels *k, int on);
/* Waits for all enqueued kernels; returns the first error of any (EK_EDEVICE, EK_ENOMEM). */
EK_CHECKED ek_status ek_kernels_wait(const ek_kernels *k);

#endif
