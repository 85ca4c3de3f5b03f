/* Operations on parameter buckets - gather, pack, add reduced gradients - and the ops of a step
 * graph that run them.  The builders plan the whole step: which module's weights each shared buffer
 * holds is known while the graph is built, so the ops themselves decide nothing. */
#include "exec/net.h"
#include "model/param_buckets.h"

#include <string.h>

static size_t real_size(const ek_model *m)
{
    return ek_dtype_size(m->k->real);
}

static ek_reduce sum_of(const ek_model *m)
{
    return m->k->real == EK_F64 ? EK_SUM_F64 : EK_SUM_F32;
}

/* --- buckets ---------------------------------------------------------------------------------- */

/* Starts the all-gather of a sharded bucket's masters into u->p.  Collective over u->group. */
static ek_status gather_bucket(const ek_model *m, const ek_param_bucket *u, ek_coll **op)
{
    size_t real = real_size(m);
    char *mine = (char *)u->p + u->kept_first * (int64_t)real;

    if (u->p_kept != mine)
        memcpy(mine, u->p_kept, (size_t)u->kept * real);
    return ek_comm_all_gather(u->group, u->p, u->first, real, op);
}

static int has_form(const ek_weight *w, const void *form)
{
    return form != NULL && form != w->p;
}

static int one_form(const ek_weight *w)
{
    return has_form(w, w->forward) && w->backward == w->forward;
}

static const char *master_of(const ek_model *m, const ek_param_bucket *u, const ek_param *p)
{
    return (const char *)u->p + p->offset * (int64_t)real_size(m);
}

ek_status ek_param_pack(const ek_model *m, const ek_weight *w, const void *master, int uses)
{
    const ek_kernels *k = m->k;

    if ((uses & EK_USE_FORWARD) && has_form(w, w->forward))
        EK_TRY(k->pack(k, w->out, w->in, EK_PACKED_FORWARD, master, w->forward));
    if ((uses & EK_USE_FORWARD) && one_form(w))
        return EK_OK;
    if ((uses & EK_USE_BACKWARD) && has_form(w, w->backward))
        EK_TRY(k->pack(k, w->out, w->in, EK_PACKED_BACKWARD, master, w->backward));
    return EK_OK;
}

/* The end of the range of weights from `first` on that have one packed form and are contiguous, as
 * are their forms, so that one call packs them; *n: their elements. */
static int32_t pack_together(const ek_model *m, const ek_param_bucket *u, int32_t first, int64_t *n)
{
    const ek_param *a = &m->params[u->params[first]];
    int64_t comp = (int64_t)ek_dtype_size(m->k->comp);
    int32_t end = first + 1;

    *n = ek_weight_elements(a->w);
    for (; end < u->n_params; end++) {
        const ek_param *b = &m->params[u->params[end]];

        if (!one_form(b->w) || b->offset != a->offset + *n ||
            (char *)b->w->forward != (char *)a->w->forward + *n * comp)
            break;
        *n += ek_weight_elements(b->w);
    }
    return end;
}

ek_status ek_param_bucket_pack(const ek_model *m, const ek_param_bucket *u, int uses)
{
    const ek_kernels *k = m->k;

    for (int32_t i = 0, end; i < u->n_params; i = end) {
        const ek_param *p = &m->params[u->params[i]];
        const ek_weight *w = p->w;
        int64_t n;

        if ((uses & EK_USE_FORWARD) && one_form(w)) {
            end = pack_together(m, u, i, &n);
            EK_TRY(k->pack(k, 1, n, EK_PACKED_FORWARD, master_of(m, u, p), w->forward));
        } else {
            end = i + 1;
            EK_TRY(ek_param_pack(m, w, master_of(m, u, p), uses));
        }
    }
    return EK_OK;
}

double ek_param_bucket_pack_bytes(const ek_model *m, const ek_param_bucket *u)
{
    size_t each = real_size(m) + ek_dtype_size(m->k->comp);
    double bytes = 0;

    for (int32_t i = 0; i < u->n_params; i++) {
        const ek_weight *w = m->params[u->params[i]].w;
        int forms = has_form(w, w->forward) + has_form(w, w->backward) - one_form(w);

        bytes += (double)forms * (double)each * (double)ek_weight_elements(w);
    }
    return bytes;
}

ek_status ek_param_bucket_reduce(const ek_model *m, const ek_param_bucket *u, ek_coll **op)
{
    if (u->sharded)
        return ek_comm_reduce_scatter(u->group, u->g, u->first, sum_of(m), op);
    return ek_comm_all_reduce(u->group, u->g, u->n, sum_of(m), op);
}

void ek_param_bucket_collect(const ek_model *m, const ek_param_bucket *u)
{
    if (m->k->real == EK_F64) {
        const double *from = (const double *)u->g + u->kept_first;
        double *to = u->g_kept;

#pragma omp parallel for simd schedule(static)
        for (int64_t i = 0; i < u->kept; i++)
            to[i] += from[i];
    } else {
        const float *from = (const float *)u->g + u->kept_first;
        float *to = u->g_kept;

#pragma omp parallel for simd schedule(static)
        for (int64_t i = 0; i < u->kept; i++)
            to[i] += from[i];
    }
    memset(u->g, 0, (size_t)u->n * real_size(m));
}

ek_status ek_model_pack(ek_model *m)
{
    for (int32_t i = 0; i < m->buckets->n; i++) {
        const ek_param_bucket *u = &m->buckets->bucket[i];

        if (u->offloaded >= 0 || (u->sharded && m->cfg.zero == 3))
            continue; /* brought on use */
        if (u->p == NULL)
            continue; /* filled as packed forms */
        if (u->sharded) {
            ek_coll *op = NULL;

            EK_TRY(gather_bucket(m, u, &op));
            EK_TRY(ek_coll_wait(&op));
        }
        EK_TRY(ek_param_bucket_pack(m, u, EK_USE_FORWARD | EK_USE_BACKWARD));
    }
    return EK_OK;
}

/* --- ops -------------------------------------------------------------------------------------- */

static const ek_param_bucket *bucket_of(const ek_model *m, const ek_op *op)
{
    return &m->buckets->bucket[op->part];
}

static ek_status op_gather(void *self, const ek_op *op)
{
    const ek_model *m = self;

    if (!ek_net_started(op))
        EK_TRY(gather_bucket(m, bucket_of(m, op), ek_net_cell(op)));
    return ek_net_test(op);
}

static ek_status op_pack(void *self, const ek_op *op)
{
    const ek_model *m = self;

    return ek_param_bucket_pack(m, bucket_of(m, op), EK_USE_FORWARD | EK_USE_BACKWARD);
}

/* Packs the sharded buckets of module op->part. */
static ek_status pack_module(const ek_model *m, const ek_op *op, int use)
{
    int32_t first, end;

    ek_param_buckets_of(m, op->part, &first, &end);
    for (int32_t i = first; i < end; i++)
        if (m->buckets->bucket[i].sharded && m->buckets->bucket[i].offloaded < 0)
            EK_TRY(ek_param_bucket_pack(m, &m->buckets->bucket[i], use));
    return EK_OK;
}

static ek_status op_pack_forward(void *self, const ek_op *op)
{
    return pack_module(self, op, EK_USE_FORWARD);
}

static ek_status op_pack_backward(void *self, const ek_op *op)
{
    return pack_module(self, op, EK_USE_BACKWARD);
}

static ek_status op_reduce(void *self, const ek_op *op)
{
    const ek_model *m = self;

    if (!ek_net_started(op))
        EK_TRY(ek_param_bucket_reduce(m, bucket_of(m, op), ek_net_cell(op)));
    return ek_net_test(op);
}

/* Sums the gradients of both copies of a tied embedding, each already summed over its group. */
static ek_status op_reduce_ends(void *self, const ek_op *op)
{
    const ek_model *m = self;
    const ek_param_bucket *u = bucket_of(m, op);

    if (!ek_net_started(op))
        EK_TRY(
            ek_comm_all_reduce(m->cfg.mesh->ends, u->g_kept, u->kept, sum_of(m), ek_net_cell(op)));
    return ek_net_test(op);
}

static ek_status op_collect(void *self, const ek_op *op)
{
    const ek_model *m = self;
    int32_t first, end;

    ek_param_buckets_of(m, op->part, &first, &end);
    for (int32_t i = first; i < end; i++)
        if (m->buckets->bucket[i].g_set != NULL)
            ek_param_bucket_collect(m, &m->buckets->bucket[i]);
    return EK_OK;
}

static ek_status op_nothing(void *self, const ek_op *op)
{
    (void)self;
    (void)op;
    return EK_OK;
}

/* --- builders --------------------------------------------------------------------------------- */

static ek_op op_of(ek_model *m, ek_op_kind kind, ek_op_fn run, int32_t module, int32_t part)
{
    return (ek_op){.kind = kind,
                   .run = run,
                   .self = m,
                   .lane = EK_LANE_COMPUTE,
                   .layer = module >= 0 ? module : -1,
                   .micro = -1,
                   .part = part};
}

/* An op that packs; bytes: read and written. */
static ek_op pack_op_of(ek_model *m, ek_op_kind kind, ek_op_fn run, int32_t module, int32_t part,
                        double bytes)
{
    ek_op op = op_of(m, kind, run, module, part);
    double element = (double)(real_size(m) + ek_dtype_size(m->k->comp));

    op.bytes = bytes;
    op.work = ek_work_of_rows(bytes / element, 1);
    return op;
}

/* A network op of a bucket. */
static ek_op net_op_of(ek_model *m, ek_op_kind kind, ek_op_fn run, int32_t module, int32_t bucket,
                       ek_work work)
{
    ek_op op = ek_net_op(kind, run, m, work);

    op.layer = module >= 0 ? module : -1;
    op.part = bucket;
    return op;
}

static ek_work work_of(const ek_model *m, const ek_param_bucket *u, ek_collective collective)
{
    return ek_net_work_of(m->cfg.mesh, u->mesh_group, collective,
                          (double)u->n * (double)real_size(m), real_size(m));
}

ek_work ek_param_bucket_reduce_work(const ek_model *m, const ek_param_bucket *u)
{
    return work_of(m, u, u->sharded ? EK_COLLECTIVE_REDUCE_SCATTER : EK_COLLECTIVE_ALL_REDUCE);
}

ek_work ek_param_bucket_gather_work(const ek_model *m, const ek_param_bucket *u)
{
    return work_of(m, u, EK_COLLECTIVE_ALL_GATHER);
}

void ek_param_buckets_begin_step(ek_model *m)
{
    ek_param_buckets *us = m->buckets;

    for (int32_t i = 0; i < us->n; i++) {
        us->bucket[i].graph.reduced = us->bucket[i].graph.fetched = -1;
        us->bucket[i].graph.pending = 0;
    }
    for (int kind = 0; kind < EK_BUFFER_KINDS; kind++)
        for (int i = 0; i < EK_BUFFERS; i++) {
            us->sets[kind][i].holds = EK_MODULE_NONE;
            us->sets[kind][i].packed = 0;
        }
}

int32_t ek_param_buckets_build_gather(ek_model *m, ek_graph *g, int32_t u, int32_t dep)
{
    const ek_param_bucket *bucket = &m->buckets->bucket[u];
    ek_op op = net_op_of(m, EK_OP_GATHER_WEIGHTS, op_gather, bucket->module, u,
                         ek_param_bucket_gather_work(m, bucket));

    return ek_graph_after(g, &op, dep);
}

int32_t ek_param_buckets_build_pack(ek_model *m, ek_graph *g, int32_t u, int32_t dep)
{
    const ek_param_bucket *bucket = &m->buckets->bucket[u];
    ek_op op = pack_op_of(m, EK_OP_PACK, op_pack, bucket->module, u,
                          ek_param_bucket_pack_bytes(m, bucket));

    return ek_graph_after(g, &op, dep);
}

/* Appends the all-gathers of a module's buckets that use the shared buffer of this kind. */
static void build_fetch(ek_model *m, ek_graph *g, int32_t module, ek_module_buffer_kind kind)
{
    ek_param_buckets *us = m->buckets;
    ek_module_buffer *s = ek_param_buckets_buffer(m, kind, module);
    int32_t first, end, n = 0;

    if (s->holds == module)
        return;
    us->deps[n++] = ek_graph_last_of(g, EK_LANE_COMPUTE);
    if (s->holds != EK_MODULE_NONE) { /* gathered before and never used */
        ek_param_buckets_of(m, s->holds, &first, &end);
        for (int32_t i = first; i < end; i++)
            if (us->bucket[i].p_set == s)
                us->deps[n++] = us->bucket[i].graph.fetched;
    }
    ek_param_buckets_of(m, module, &first, &end);
    for (int32_t i = first; i < end; i++) {
        ek_param_bucket *u = &us->bucket[i];
        ek_op op = net_op_of(m, EK_OP_GATHER_WEIGHTS, op_gather, module, i,
                             ek_param_bucket_gather_work(m, u));

        if (u->p_set == s)
            u->graph.fetched = ek_graph_add(g, &op, us->deps, n);
    }
    s->holds = module;
}

/* Bytes moved by packing the forward forms of a module's sharded buckets; -1: none is sharded. */
static double cut_forms(const ek_model *m, int32_t module)
{
    size_t comp = ek_dtype_size(m->k->comp);
    double bytes = -1;
    int32_t first, end;

    ek_param_buckets_of(m, module, &first, &end);
    for (int32_t i = first; i < end; i++) {
        const ek_param_bucket *u = &m->buckets->bucket[i];

        if (!u->sharded || u->offloaded >= 0)
            continue;
        bytes = bytes < 0 ? 0 : bytes;
        for (int32_t j = 0; j < u->n_params; j++) {
            const ek_weight *w = m->params[u->params[j]].w;

            if (w->forward != NULL && w->forward != w->p)
                bytes += (double)ek_weight_elements(w) * (double)(real_size(m) + comp);
        }
    }
    return bytes;
}

/* Appends the packing of a module's forms for `use`, if they are missing. */
static int32_t build_forms(ek_model *m, ek_graph *g, int32_t module, int missing, int use,
                           double bytes, const int32_t *deps, int32_t n)
{
    ek_op op = pack_op_of(m, use == EK_USE_FORWARD ? EK_OP_PACK_FORWARD : EK_OP_PACK_BACKWARD,
                          use == EK_USE_FORWARD ? op_pack_forward : op_pack_backward, module,
                          module, bytes);

    return missing & use ? ek_graph_add(g, &op, deps, n) : -1;
}

/* Gathers the weights of a module and packs the missing forms of `uses`. */
static int32_t build_ready(ek_model *m, ek_graph *g, int32_t module, int uses, int32_t dep)
{
    ek_param_buckets *us = m->buckets;
    ek_module_buffer *forms = ek_param_buckets_buffer(m, EK_BUFFER_PACKED, module);
    double bytes = cut_forms(m, module);
    int had = forms->holds == module ? forms->packed : 0, missing = bytes > 0 ? uses & ~had : 0;
    ek_op wait = op_of(m, EK_OP_WAIT_WEIGHTS, op_nothing, module, module);
    int32_t first, end, n = 0;

    if (bytes < 0)
        return dep;
    build_fetch(m, g, module, EK_BUFFER_MASTER);
    if (missing)
        build_fetch(m, g, module, EK_BUFFER_STAGED);
    ek_param_buckets_of(m, module, &first, &end);
    us->deps[n++] = dep;
    for (int32_t i = first; i < end; i++)
        us->deps[n++] = us->bucket[i].graph.fetched;
    if (!missing)
        return ek_graph_add(g, &wait, us->deps, n);
    forms->packed = had | missing;
    forms->holds = module;
    dep = build_forms(m, g, module, missing, EK_USE_FORWARD, bytes, us->deps, n);
    us->deps[n++] = dep;
    dep = build_forms(m, g, module, missing, EK_USE_BACKWARD, bytes, us->deps, n);
    return dep >= 0 ? dep : us->deps[n - 1];
}

/* Appends the addition of reduced gradients in a module's buffers to the kept ranges. */
static int32_t build_collect(ek_model *m, ek_graph *g, int32_t module, int32_t dep)
{
    ek_param_buckets *us = m->buckets;
    ek_op op = op_of(m, EK_OP_COLLECT_GRADIENTS, op_collect, module, module);
    int32_t first, end, n = 0;

    op.work = ek_work_of_rows(0, 1);
    us->deps[n++] = dep;
    ek_param_buckets_of(m, module, &first, &end);
    for (int32_t i = first; i < end; i++) {
        ek_param_bucket *u = &us->bucket[i];

        if (!u->graph.pending)
            continue;
        us->deps[n++] = u->graph.reduced;
        op.bytes += (double)(u->n + 3 * u->kept) * (double)real_size(m);
        op.work.rows.rows += (double)u->kept;
        u->graph.pending = 0;
    }
    return n > 1 ? ek_graph_add(g, &op, us->deps, n) : dep;
}

static int32_t use_module(ek_model *m, ek_graph *g, int32_t module, int uses, int32_t dep)
{
    ek_module_buffer *s = ek_param_buckets_buffer(m, EK_BUFFER_GRADIENT, module);

    if ((uses & EK_USE_BACKWARD) && s->holds != EK_MODULE_NONE)
        dep = build_collect(m, g, s->holds, dep);
    return m->cfg.zero == 3 ? build_ready(m, g, module, uses, dep) : dep;
}

int32_t ek_param_buckets_build_use(ek_model *m, ek_graph *g, int32_t module, int32_t next, int uses,
                                   int32_t dep)
{
    if (m->cfg.zero < 2)
        return dep;
    if (module == EK_MODULE_HEAD && m->spec.tie_embeddings && ek_model_has_embed(m))
        dep = use_module(m, g, EK_MODULE_EMBED, uses, dep);
    dep = use_module(m, g, module, uses, dep);
    if (m->cfg.zero < 3 || next == EK_MODULE_NONE)
        return dep;
    if (ek_param_buckets_buffer(m, EK_BUFFER_MASTER, next) !=
        ek_param_buckets_buffer(m, EK_BUFFER_MASTER, module))
        build_fetch(m, g, next, EK_BUFFER_MASTER);
    build_fetch(m, g, next, EK_BUFFER_STAGED);
    return dep;
}

void ek_param_buckets_build_reduce(ek_model *m, ek_graph *g, int32_t module, int32_t micro,
                                   int last, int32_t also, int32_t dep)
{
    ek_module_buffer *s = ek_param_buckets_buffer(m, EK_BUFFER_GRADIENT, module);
    int32_t first, end, deps[] = {dep, ek_graph_last_of(g, EK_LANE_COMPUTE), -1};

    if (m->cfg.zero < 2 && !last)
        return;
    ek_param_buckets_of(m, module, &first, &end);
    for (int32_t i = first; i < end; i++) {
        ek_param_bucket *u = &m->buckets->bucket[i];
        ek_op op;

        /* Only experts have replicas: other buckets need not wait for these. */
        deps[2] = u->share == EK_SHARE_EDP ? also : -1;
        if (u->trained && last && u->share == EK_SHARE_EDP)
            u->graph.reduced = also;
        if (u->size == 1 || !u->trained || (!u->sharded && !last))
            continue;
        if (ek_param_bucket_has_gradients_on_disk(m, u))
            continue; /* with its products */
        op = net_op_of(m, EK_OP_REDUCE_GRADIENTS, op_reduce, module, i,
                       ek_param_bucket_reduce_work(m, u));
        op.micro = micro;
        u->graph.reduced = ek_graph_add(g, &op, deps, 3);
        u->graph.pending = u->g_set != NULL;
        s->holds = module;
    }
}

/* The bucket with this rank's copy of an embedding tied between two stages; -1: none. */
static int32_t tied_bucket(const ek_model *m)
{
    const ek_mesh *mesh = m->cfg.mesh;
    int32_t first, end;

    if (!m->spec.tie_embeddings || mesh->ends == NULL)
        return -1;
    ek_param_buckets_of(m, mesh->pp_rank == 0 ? EK_MODULE_EMBED : EK_MODULE_HEAD, &first, &end);
    for (int32_t i = first; i < end; i++)
        if (m->buckets->bucket[i].share == EK_SHARE_DP)
            return i;
    return -1;
}

int32_t ek_param_buckets_build_finish(ek_model *m, ek_graph *g, int32_t dep)
{
    ek_param_buckets *us = m->buckets;
    int32_t tied = tied_bucket(m), n = 0;
    ek_op op = op_of(m, EK_OP_WAIT_GRADIENTS, op_nothing, -1, -1);

    for (int i = 0; i < EK_BUFFERS; i++)
        if (us->sets[EK_BUFFER_GRADIENT][i].holds != EK_MODULE_NONE)
            dep = build_collect(m, g, us->sets[EK_BUFFER_GRADIENT][i].holds, dep);
    us->deps[n++] = dep;
    for (int32_t i = 0; i < us->n; i++)
        if (us->bucket[i].graph.reduced >= 0)
            us->deps[n++] = us->bucket[i].graph.reduced;
    if (n > 1)
        dep = ek_graph_add(g, &op, us->deps, n);
    if (tied >= 0 && us->bucket[tied].kept > 0) {
        op = net_op_of(m, EK_OP_REDUCE_TIED_GRADIENTS, op_reduce_ends, -1, tied,
                       ek_net_work_of(m->cfg.mesh, EK_MESH_ENDS, EK_COLLECTIVE_ALL_REDUCE,
                                      (double)us->bucket[tied].kept * (double)real_size(m),
                                      real_size(m)));
        dep = ek_graph_after(g, &op, dep);
    }
    return ek_param_buckets_build_copies(m, g, dep);
}
