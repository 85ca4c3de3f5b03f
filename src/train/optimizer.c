/* The norm over all ranks; then for each parameter bucket update, all-gather and packing; at last
 * feedback. */
#include "train/optimizer.h"

#include "exec/net.h"
#include "model/offload.h"
#include "model/param_buckets.h"

#include <math.h>
#include <string.h>

/* Learning rate of step `step`, from 0. */
static double learning_rate(const ek_optimizer_config *cfg, int64_t step)
{
    const double pi = 3.14159265358979323846;
    int64_t span = cfg->steps - 1 - cfg->warmup, at = step - cfg->warmup;

    if (step < cfg->warmup)
        return cfg->lr * (double)(step + 1) / (double)cfg->warmup;
    if (!cfg->cosine || span <= 0)
        return cfg->lr;
    if (at > span)
        at = span;
    return cfg->min_lr + (cfg->lr - cfg->min_lr) * 0.5 * (1 + cos(pi * (double)at / (double)span));
}

/* Arrays whose squares are summed by one call. */
enum { NORM_BATCH = 512 };

/* Adds the sums of squares of up to NORM_BATCH parameters from `first` on; returns the next. */
static int64_t sum_batch(const ek_model *m, int64_t first, double *sum)
{
    int64_t real = (int64_t)ek_dtype_size(m->k->real), count = 0, n[NORM_BATCH] = {0};
    const void *g[NORM_BATCH] = {NULL};
    double sums[NORM_BATCH], on_disk[NORM_BATCH];

    for (; first < m->n_params && count < NORM_BATCH; first++) {
        const ek_param *p = &m->params[first];

        if (!p->trained || p->w->own == 0)
            continue;
        on_disk[count] = -1;
        if (ek_offload_has_sum(m, first, &on_disk[count])) {
            count++;
            continue;
        }
        n[count] = p->w->own;
        g[count++] = (const char *)p->g_kept + (p->w->own_first - p->w->kept_first) * real;
    }
    m->k->sum_squares_each(m->k, count, n, g, sums);
    for (int64_t i = 0; i < count; i++)
        *sum += on_disk[i] >= 0 || isnan(on_disk[i]) ? on_disk[i] : sums[i];
    return first;
}

/* Sum of squares of the gradients that this rank counts, in the order of parameters. */
static ek_status op_norm(void *self, const ek_op *op)
{
    ek_optimizer *o = self;
    double sum = 0;

    (void)op;
    for (int64_t i = 0; i < o->model->n_params;)
        i = sum_batch(o->model, i, &sum);
    o->sums[0] = sum;
    if (o->set_feedback != NULL)
        o->set_feedback(o->context);
    if (o->journal != NULL) /* every rank does this before the sum over ranks */
        ek_journal_reduced(o->journal, o->steps_done);
    return EK_OK;
}

/* The gradients of the copies have arrived. */
static ek_status op_copies_reduced(void *self, const ek_op *op)
{
    const ek_optimizer *o = self;

    (void)op;
    ek_rank_copies_reduced(o->copies, o->steps_done);
    return EK_OK;
}

static ek_status op_sum_ranks(void *self, const ek_op *op)
{
    ek_optimizer *o = self;

    if (!ek_net_started(op))
        EK_TRY(ek_comm_all_reduce(o->model->cfg.mesh->world, o->sums, o->n_sums, EK_SUM_F64,
                                  ek_net_cell(op)));
    return ek_net_test(op);
}

/* Computes this step's update parameters from the sum over ranks. */
static ek_status op_clip(void *self, const ek_op *op)
{
    ek_optimizer *o = self;
    const ek_optimizer_config *c = &o->cfg;
    double t = (double)(o->steps_done + 1);
    ek_adamw *now = &o->past[o->steps_done % EK_OFFLOAD_DEFERRED_MAX];

    (void)op;
    o->grad_norm = sqrt(o->sums[0]);
    EK_REQUIRE(isfinite(o->grad_norm), EK_ENONFINITE,
               "the gradient is not finite; lower --lr, or look at the data");
    o->lr = learning_rate(c, o->steps_done);
    *now = (ek_adamw){o->lr,
                      c->decay,
                      c->beta1,
                      c->beta2,
                      c->eps,
                      1 - pow(c->beta1, t),
                      1 - pow(c->beta2, t),
                      c->clip > 0 ? fmin(1.0, c->clip / (o->grad_norm + 1e-6)) : 1.0};
    if (o->journal != NULL) {
        o->record.adamw = *now;
        o->fill_record(o->context, &o->record);
        ek_journal_record(o->journal, o->steps_done, &o->record, sizeof(o->record));
        if (o->copies != NULL)
            ek_rank_copies_record(o->copies, o->steps_done, &o->record, sizeof(o->record));
    }
    o->steps_done++;
    ek_offload_set_pending(o->model);
    return EK_OK;
}

/* Clears gradients outside of the kept range, which reduce_scatter leaves behind. */
static void clear_unkept_gradients(const ek_model *m, const ek_param_bucket *u)
{
    size_t real = ek_dtype_size(m->k->real);
    int64_t end = u->kept_first + u->kept;

    memset(u->g, 0, (size_t)u->kept_first * real);
    memset((char *)u->g + end * (int64_t)real, 0, (size_t)(u->n - end) * real);
}

static ek_adamw adamw_of(const ek_adamw *by, int decays)
{
    ek_adamw h = *by;

    if (!decays)
        h.decay = 0;
    return h;
}

/* Adds feedback to numbers [first, end), and clears it. */
static void add_feedback(const ek_kernels *k, int64_t first, int64_t end, void *p, void *g)
{
    size_t real = ek_dtype_size(k->real);

    for (int64_t i = first; i < end; i++)
        if (k->real == EK_F64)
            ((double *)p)[i] += ((const double *)g)[i];
        else
            ((float *)p)[i] += ((const float *)g)[i];
    memset((char *)g + (size_t)first * real, 0, (size_t)(end - first) * real);
}

/* The same for the n numbers of a lane, with its undo log. */
static void add_feedback_resumable(const ek_kernels *k, int64_t n, void *const a[EK_UNDO_ARRAYS],
                                   ek_undo_log *undo_log)
{
    size_t real = ek_dtype_size(k->real);

    for (int64_t i = ek_undo_restore(undo_log, real, a); i < n; i += EK_UNDO_BLOCK) {
        const int64_t end = n - i < EK_UNDO_BLOCK ? n : i + EK_UNDO_BLOCK;

        for (int j = 0; j < EK_UNDO_ARRAYS; j++)
            memcpy(ek_undo_copy(undo_log, i, j), (const char *)a[j] + (size_t)i * real,
                   (size_t)(end - i) * real);
        ek_undo_mark(undo_log, end);
        add_feedback(k, i, end, a[0], a[1]);
    }
}

static void add_feedback_by_lanes(const ek_kernels *k, int64_t n,
                                  void *const arrays[EK_JOURNAL_ARRAYS], int lanes,
                                  ek_undo_log *undo_logs)
{
    for (int lane = 0; lane < lanes; lane++) {
        int64_t first = ek_undo_lane_first(n, lanes, lane);
        void *a[EK_UNDO_ARRAYS];

        for (int j = 0; j < EK_UNDO_ARRAYS; j++)
            a[j] = (char *)arrays[j] + (size_t)first * ek_dtype_size(k->real);
        add_feedback_resumable(k, ek_undo_lane_first(n, lanes, lane + 1) - first, a,
                               &undo_logs[lane]);
    }
}

static void update_extent(void *context, const void *record, const ek_journal_extent *extent,
                          void *const a[EK_JOURNAL_ARRAYS], int lanes, ek_undo_log *undo_logs)
{
    const ek_kernels *k = context;
    ek_step_record of_step;
    ek_adamw h;

    if (extent->kind == EK_EXTENT_FEEDBACK) {
        add_feedback_by_lanes(k, extent->n, a, lanes, undo_logs);
        return;
    }
    memcpy(&of_step, record, sizeof(of_step)); /* bytes of any alignment */
    h = adamw_of(&of_step.adamw, extent->kind == EK_EXTENT_DECAYED);
    k->adamw_resumable(&h, extent->n, a[0], a[1], a[2], a[3], lanes, undo_logs);
}

ek_journal_rule ek_optimizer_rule(const ek_kernels *k)
{
    return (ek_journal_rule){update_extent, (void *)(uintptr_t)k};
}

static int is_contiguous(const ek_model *m, const void *a, int64_t n, const void *b)
{
    return (const char *)b == (const char *)a + n * (int64_t)ek_dtype_size(m->k->real);
}

/* Parameters of a bucket from `first` on that are contiguous and have the same decay, and so need
 * one kernel call: returns their end; *n: their numbers. */
static int32_t merge_params(const ek_model *m, const ek_param_bucket *u, int32_t first, int64_t *n)
{
    const ek_param *a = &m->params[u->params[first]];
    int32_t end = first + 1;

    *n = a->w->kept;
    for (; end < u->n_params; end++) {
        const ek_param *b = &m->params[u->params[end]];

        if (b->decay != a->decay || !is_contiguous(m, a->w->p_kept, *n, b->w->p_kept) ||
            !is_contiguous(m, a->g_kept, *n, b->g_kept) ||
            !is_contiguous(m, a->w->m, *n, b->w->m) || !is_contiguous(m, a->w->v, *n, b->w->v))
            break;
        *n += b->w->kept;
    }
    return end;
}

/* Applies the last n updates to `numbers` elements of a parameter, from `first` on. */
static void update_range(const ek_optimizer *o, const ek_param *p, int64_t first, int64_t numbers,
                         int n)
{
    const ek_kernels *k = o->model->k;
    int64_t at = first * (int64_t)ek_dtype_size(k->real);

    for (int i = n; i > 0; i--) {
        ek_adamw h = adamw_of(&o->past[(o->steps_done - i) % EK_OFFLOAD_DEFERRED_MAX], p->decay);

        k->adamw(&h, numbers, (char *)p->w->p_kept + at, (char *)p->g_kept + at,
                 (char *)p->w->m + at, (char *)p->w->v + at);
    }
}

/* Applies the last n updates; several of them to a block at a time, which stays in the cache. */
static void update_bucket(const ek_optimizer *o, const ek_param_bucket *u, int n)
{
    enum { BLOCK = 1 << 15 };
    const ek_model *m = o->model;

    for (int32_t i = 0, end; i < u->n_params; i = end) {
        const ek_param *p = &m->params[u->params[i]];
        int64_t numbers, block;

        end = merge_params(m, u, i, &numbers);
        block = n > 1 ? BLOCK : numbers;
        for (int64_t first = 0; first < numbers; first += block)
            update_range(o, p, first, first + block < numbers ? block : numbers - first, n);
    }
}

static void update_offloaded(void *context, const ek_param_bucket *u, int n)
{
    const ek_optimizer *o = context;

    update_bucket(o, u, n);
    if (u->sharded && u->g_set == NULL && !ek_param_bucket_has_gradients_on_disk(o->model, u))
        clear_unkept_gradients(o->model, u);
}

void ek_optimizer_init(ek_optimizer *o, ek_model *m, const ek_optimizer_config *cfg)
{
    *o = (ek_optimizer){.model = m, .cfg = *cfg};
    o->sums = &o->sum_squares;
    o->n_sums = 1;
    o->record_dep = -1;
    ek_offload_set_update(m, update_offloaded, o);
}

/* Updates this rank's part of bucket op->part, and zeroes its gradient. */
static ek_status op_update(void *self, const ek_op *op)
{
    ek_optimizer *o = self;
    const ek_model *m = o->model;
    const ek_param_bucket *u = &m->buckets->bucket[op->part];
    ek_journal_rule rule = ek_optimizer_rule(m->k);

    if (o->journal == NULL)
        update_bucket(o, u, 1);
    else
        ek_journal_update(o->journal, &rule, o->extents_of[op->part], o->extents_of[op->part + 1]);
    if (u->sharded && u->g_set == NULL)
        clear_unkept_gradients(m, u);
    return u->sharded ? EK_OK : ek_param_bucket_pack(m, u, EK_USE_FORWARD | EK_USE_BACKWARD);
}

/* Updates copy op->part. */
static ek_status op_update_copy(void *self, const ek_op *op)
{
    const ek_optimizer *o = self;
    ek_journal_rule rule = ek_optimizer_rule(o->model->k);

    ek_rank_copies_update(o->copies, op->part, &rule);
    return EK_OK;
}

/* Bytes that an update reads and writes: masters, gradients, moments, */
static double numbers_bytes(const ek_model *m, double numbers)
{
    return 8 * (double)ek_dtype_size(m->k->real) * numbers;
}

/* and packed forms. */
static double update_bytes(const ek_model *m, const ek_param_bucket *u)
{
    double bytes = numbers_bytes(m, (double)(u->kept + u->copies.n));

    return u->sharded ? bytes : bytes + ek_param_bucket_pack_bytes(m, u);
}

/* Appends an op over so many numbers, after two others (negative: none). */
static int32_t append_op(ek_optimizer *o, ek_graph *g, ek_op_kind kind, ek_op_fn run,
                         double numbers, double bytes, int32_t dep, int32_t also)
{
    ek_op op = {.kind = kind,
                .run = run,
                .self = o,
                .lane = EK_LANE_COMPUTE,
                .layer = -1,
                .micro = -1,
                .part = -1,
                .bytes = bytes,
                .work = ek_work_of_rows(numbers, 1)};

    return ek_graph_add(g, &op, (int32_t[]){dep, also}, 2);
}

/* Appends the sum of the squares, and what else is summed, over all ranks. */
static int32_t append_sum(ek_optimizer *o, ek_graph *g, int32_t dep)
{
    const ek_mesh *mesh = o->model->cfg.mesh;
    ek_op op = ek_net_op(EK_OP_SUM_OVER_RANKS, op_sum_ranks, o,
                         ek_net_work_of(mesh, EK_MESH_WORLD, EK_COLLECTIVE_ALL_REDUCE,
                                        (double)o->n_sums * sizeof(double), sizeof(double)));

    return mesh->size > 1 ? ek_graph_after(g, &op, dep) : dep;
}

/* Bucket by bucket.  If masters are gathered after the update (ZeRO 1 and 2), a bucket is packed
 * after the update of the next one, which hides the all-gather. */
static int32_t build_updates(ek_optimizer *o, ek_graph *g, int32_t dep)
{
    ek_model *m = o->model;
    int32_t gathering = -1, gathered = -1;

    for (int32_t i = 0; i < m->buckets->n; i++) {
        const ek_param_bucket *u = &m->buckets->bucket[i];
        int32_t before = gathering, op = gathered;

        if (!u->trained || ek_param_bucket_is_offloaded(u)) /* updated at its next use */
            continue;
        dep = append_op(o, g, EK_OP_ADAMW, op_update, (double)(u->kept + u->copies.n),
                        update_bytes(m, u), dep, -1);
        if (dep >= 0) {
            g->ops[dep].part = i;
            g->ops[dep].async = o->journal == NULL && !u->sharded;
            g->ops[dep].layer = u->module >= 0 ? u->module : -1;
        }
        if (!u->sharded || m->cfg.zero == 3)
            continue;
        gathered = ek_param_buckets_build_gather(m, g, i, dep);
        gathering = i;
        if (before >= 0)
            dep = ek_param_buckets_build_pack(m, g, before, op);
    }
    return gathering >= 0 ? ek_param_buckets_build_pack(m, g, gathering, gathered) : dep;
}

/* The messages to the copies of this rank's state, and what is done when those of others are here.
 */
static int32_t build_copying(ek_optimizer *o, ek_graph *g, int32_t dep)
{
    if (o->copies == NULL)
        return dep;
    dep = ek_rank_copies_build_send(o->copies, g, dep);
    return o->copies->n > 0
               ? append_op(o, g, EK_OP_WAIT_GRADIENTS, op_copies_reduced, 0, 0, dep, -1)
               : dep;
}

static int32_t build_updates_of_copies(ek_optimizer *o, ek_graph *g, int32_t dep)
{
    for (int32_t i = 0; o->copies != NULL && i < o->copies->n; i++) {
        double numbers = ek_rank_copy_numbers(&o->copies->copy[i]);

        dep = append_op(o, g, EK_OP_ADAMW, op_update_copy, numbers,
                        numbers_bytes(o->model, numbers), dep, -1);
        if (dep >= 0)
            g->ops[dep].part = i;
    }
    return dep;
}

_Static_assert(sizeof(ek_step_record) <= EK_JOURNAL_RECORD, "the record fits a step journal");

int32_t ek_optimizer_build(ek_optimizer *o, ek_graph *g, int32_t dep)
{
    ek_model *m = o->model;

    dep = ek_offload_build_finish(m, g, dep);
    dep = ek_param_buckets_build_finish(m, g, dep);
    dep = append_op(o, g, EK_OP_GRADIENT_NORM, op_norm, (double)m->n_elements,
                    (double)ek_dtype_size(m->k->real) * (double)m->n_elements, dep, -1);
    if (dep >= 0)
        g->ops[dep].async = 1;
    dep = build_copying(o, g, dep);
    dep = append_sum(o, g, dep);
    dep = append_op(o, g, EK_OP_CLIP, op_clip, (double)o->n_sums,
                    (double)o->n_sums * (double)sizeof(double), dep, o->record_dep);
    dep = build_updates(o, g, dep);
    return build_updates_of_copies(o, g, dep);
}

void ek_optimizer_add_feedback(ek_optimizer *o)
{
    const ek_model *m = o->model;
    ek_journal_rule rule = ek_optimizer_rule(m->k);

    if (o->journal != NULL) {
        ek_journal_update(o->journal, &rule, o->extents_of[m->buckets->n],
                          o->extents_of[m->buckets->n + 1]);
        if (o->copies != NULL)
            ek_rank_copies_add_feedback(o->copies, &rule);
        return;
    }
    for (int64_t i = 0; i < m->n_params; i++) {
        const ek_param *p = &m->params[i];

        if (!p->trained)
            add_feedback(m->k, 0, p->w->kept, p->w->p_kept, p->g_kept);
    }
}
