/* The work of compute ops (schedule/work.h) is what the kernels are asked to do: products,
 * attention and some row kernels, of ranks that are threads and take steps.  Layouts are drawn by
 * seed.
 *
 * Products of experts are those of an even spread: what all ranks do together is compared, where
 * the gate spreads rows evenly. */
#include "watched_ops.h"

static ek_kernels as_made; /* the table of the layout's mode, the same on all ranks */
static int64_t products, attentions, rows;
static double even_predicted, even_done; /* FLOPs of experts */

static int is_expert_product(const ek_op *op)
{
    return ek_op_info_of(op->kind)->group == EK_OP_GROUP_EXPERTS;
}

/* Adds a product to what the running op has done, and finds its shape in the op's work. */
static void count_product(double n, int64_t out, int64_t in, int32_t pass)
{
    const ek_product_work *w;
    int found = 0;

    if (running == NULL)
        return;
    w = &running->work.products;
    compare("the kind of work", running->work.kind, EK_WORK_PRODUCTS);
    for (int32_t i = 0; i < w->n; i++)
        found |= w->product[i].out == out && w->product[i].in == in &&
                 (w->product[i].passes & pass) != 0;
    if (!is_expert_product(running) || layout->etp == 1) /* of several shards there are slices */
        compare("a product of this shape", found, 1);
    ((watched_op *)running->self)->calls++;
    ((watched_op *)running->self)->bytes += 2 * n * (double)out * (double)in;
}

static double rows_of(const ek_group *g, int64_t n_groups)
{
    double n = 0;

    for (int64_t i = 0; i < n_groups; i++)
        n += (double)g[i].rows;
    return n;
}

static ek_status see_forward(const ek_kernels *k, const ek_group *g, int64_t n_groups, int64_t out,
                             int64_t in, const void *x, int64_t ldx, void *y, int64_t ldy,
                             ek_out mode, void *ws)
{
    count_product(rows_of(g, n_groups), out, in, EK_PRODUCT_FORWARD);
    return as_made.linear_forward(k, g, n_groups, out, in, x, ldx, y, ldy, mode, ws);
}

static ek_status see_backward_input(const ek_kernels *k, const ek_group *g, int64_t n_groups,
                                    int64_t out, int64_t in, const void *dy, int64_t lddy, void *dx,
                                    int64_t lddx, ek_out mode, void *ws)
{
    count_product(rows_of(g, n_groups), out, in, EK_PRODUCT_INPUT);
    return as_made.linear_backward_input(k, g, n_groups, out, in, dy, lddy, dx, lddx, mode, ws);
}

static ek_status see_backward_weight(const ek_kernels *k, const ek_group *g, int64_t n_groups,
                                     int64_t out, int64_t in, const void *dy, int64_t lddy,
                                     const void *x, int64_t ldx, void *ws)
{
    count_product(rows_of(g, n_groups), out, in, EK_PRODUCT_WEIGHT);
    return as_made.linear_backward_weight(k, g, n_groups, out, in, dy, lddy, x, ldx, ws);
}

/* Products of the router; the gate of a shared expert has one column, and is not counted. */
static void see_matmul_real(int ta, int tb, int64_t m, int64_t n, int64_t kk, const void *a,
                            int64_t lda, const void *b, int64_t ldb, int add, void *c, int64_t ldc)
{
    int router = running != NULL &&
                 (running->kind == EK_OP_ROUTER || running->kind == EK_OP_ROUTER_BACKWARD);

    if (router && ta)
        count_product((double)kk, m, n, EK_PRODUCT_WEIGHT);
    else if (router)
        count_product((double)m, tb ? n : kk, tb ? kk : n,
                      tb ? EK_PRODUCT_FORWARD : EK_PRODUCT_INPUT);
    as_made.matmul_real(ta, tb, m, n, kk, a, lda, b, ldb, add, c, ldc);
}

static void count_attention(const ek_attention *a, int backward)
{
    const ek_attention_work *w = &running->work.attention;
    double n = (double)(a->batch * a->seq), pairs = n * (double)(a->seq + 1) / 2;

    for (int64_t i = 0; a->starts != NULL && i < a->batch * a->seq; i++)
        pairs -= (double)a->starts[i];
    compare("the kind of work", running->work.kind, EK_WORK_ATTENTION);
    compare("heads", w->heads, (double)a->heads);
    compare("key heads", w->kv_heads, (double)a->kv_heads);
    compare("the head's size", w->head_dim, (double)a->head_dim);
    compare("queries", w->queries, n);
    compare("pairs", w->pairs, pairs);
    compare("backward", w->backward, backward);
    ((watched_op *)running->self)->calls++;
    ((watched_op *)running->self)->bytes +=
        (backward ? 8.0 : 4.0) * (double)(a->heads * a->head_dim) * pairs;
}

static void see_attention_forward(const ek_attention *a, const void *qkv, void *o, void *lse,
                                  void *ws)
{
    count_attention(a, 0);
    as_made.attention_forward(a, qkv, o, lse, ws);
}

static void see_attention_backward(const ek_attention *a, const void *qkv, const void *o,
                                   const void *lse, const void *d_o, void *dqkv, void *ws)
{
    count_attention(a, 1);
    as_made.attention_backward(a, qkv, o, lse, d_o, dqkv, ws);
}

/* A row kernel that is all that its op does. */
static void count_rows(int64_t n, int64_t width)
{
    if (running->work.kind == EK_WORK_PRODUCTS) /* a part of the head's ops */
        return;
    compare("the kind of work", running->work.kind, EK_WORK_ROWS);
    compare("rows", running->work.rows.rows, (double)n);
    compare("the width", running->work.rows.width, (double)width);
    pthread_mutex_lock(&mutex);
    rows++;
    pthread_mutex_unlock(&mutex);
}

static void see_rmsnorm_forward(int64_t n, int64_t d, double eps, const void *x, const void *w,
                                void *y, void *y_real, void *rstd)
{
    count_rows(n, d);
    as_made.rmsnorm_forward(n, d, eps, x, w, y, y_real, rstd);
}

static void see_rmsnorm_backward(int64_t n, int64_t d, const void *x, const void *w,
                                 const void *rstd, const void *dy, void *dx, void *dw, void *ws)
{
    count_rows(n, d);
    as_made.rmsnorm_backward(n, d, x, w, rstd, dy, dx, dw, ws);
}

static void see_cross_entropy(int64_t n, int64_t v, void *logits, int64_t ld, const int32_t *target,
                              double scale, double *loss, void *dlogits, int64_t ldd)
{
    count_rows(n, v);
    as_made.cross_entropy(n, v, logits, ld, target, scale, loss, dlogits, ldd);
}

ek_status __real_ek_kernels_create(ek_mode mode, ek_isa isa, int threads, ek_kernels **out);
ek_status __wrap_ek_kernels_create(ek_mode mode, ek_isa isa, int threads, ek_kernels **out);

ek_status __wrap_ek_kernels_create(ek_mode mode, ek_isa isa, int threads, ek_kernels **out)
{
    ek_status st = __real_ek_kernels_create(mode, isa, threads, out);
    ek_kernels *k = *out;

    if (st < 0)
        return st;
    pthread_mutex_lock(&mutex);
    as_made = *k;
    pthread_mutex_unlock(&mutex);
    k->linear_forward = see_forward;
    k->linear_backward_input = see_backward_input;
    k->linear_backward_weight = see_backward_weight;
    k->matmul_real = see_matmul_real;
    k->attention_forward = see_attention_forward;
    k->attention_backward = see_attention_backward;
    k->rmsnorm_forward = see_rmsnorm_forward;
    k->rmsnorm_backward = see_rmsnorm_backward;
    k->cross_entropy = see_cross_entropy;
    return EK_OK;
}

/* Whether an op of this kind has nothing to describe. */
static int may_have_none(ek_op_kind kind)
{
    return kind == EK_OP_WAIT_REPLICAS || kind == EK_OP_WAIT_WEIGHTS ||
           kind == EK_OP_WAIT_GRADIENTS || kind == EK_OP_WAIT_STATE;
}

static void compare_op(const ek_op *op, const watched_op *w)
{
    pthread_mutex_lock(&mutex);
    products += op->work.kind == EK_WORK_PRODUCTS && w->calls > 0;
    attentions += op->work.kind == EK_WORK_ATTENTION && w->calls > 0;
    if (is_expert_product(op) && has_even_loads(layout)) {
        even_predicted += op->flops;
        even_done += w->bytes;
    }
    pthread_mutex_unlock(&mutex);
    if (op->flops != ek_work_flops(&op->work))
        fail_call(op, "FLOPs", ek_work_flops(&op->work), op->flops);
    if ((op->work.kind == EK_WORK_NONE) != may_have_none(op->kind))
        fail_call(op, "the kind of work", op->work.kind, op->kind);
    if (op->lane == EK_LANE_DISK && op->work.kind != EK_WORK_DISK)
        fail_call(op, "the kind of work", op->work.kind, EK_WORK_DISK);
    if (!is_expert_product(op) && op->flops != w->bytes)
        fail_call(op, "FLOPs", op->flops, w->bytes);
}

static void kernels_do_what_the_work_says(void)
{
    watched_end = compare_op;
    for (int ranks = 1; ranks <= EQUAL_RANKS_MAX; ranks++)
        for (int i = 0; i < layouts() / 2; i++) {
            equal_layout l = fake_draw(ranks, i);

            run_layout(&l);
        }
    CHECK(products > 10000);
    CHECK(attentions > 1000);
    CHECK(rows > 1000);
}

static void experts_of_even_loads_do_what_is_predicted(void)
{
    equal_layout l = even_layout();

    watched_end = compare_op;
    even_predicted = even_done = 0;
    run_layout(&l);
    CHECK(even_predicted > 0);
    if (fabs(even_done / even_predicted - 1) > 1e-9)
        EK_T_FAIL("%g FLOPs are predicted, and %g done", even_predicted, even_done);
}

static const ek_case cases[] = {
    EK_CASE(kernels_do_what_the_work_says),
    EK_CASE(experts_of_even_loads_do_what_is_predicted),
};
EK_TEST_MAIN(cases)
