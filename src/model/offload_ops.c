/* Ops of steps with offloaded buckets: when each is read, updated, packed and written. */
#include "base/clock.h"
#include "base/count_text.h"
#include "exec/net.h"
#include "model/offload_priv.h"

#include <stdio.h>
#include <string.h>

void ek_offload_begin_plan(ek_model *m)
{
    ek_offload *o = m->offload;

    if (o == NULL)
        return;
    o->plan.n_uses = o->plan.used = o->plan.ready = o->plan.planned = o->plan.n_whole = 0;
    o->plan.reducing = o->plan.reduction = -1;
    o->loaded = -1; /* the plan will use entry 0 */
    for (int32_t i = 0; i < o->cfg.entries; i++) {
        ek_offload_entry *e = &o->entries[i];

        e->reserved = 0;
        e->used = e->sent = e->before = -1;
    }
    for (int32_t i = 0; i < o->cfg.forms; i++) {
        o->forms[i].reserved = 0;
        o->forms[i].used = o->forms[i].sent = -1;
    }
    for (int32_t r = 0; r < o->n; r++)
        o->records[r].written = -1;
}

/* --- ops -------------------------------------------------------------------------------------- */

static ek_record_use *use_of(const ek_model *m, const ek_op *op)
{
    return &m->offload->plan.uses[op->part];
}

/* The request of an op of the disk lane; *parts: which it moves; *reduced: gradients are summed
 * over ranks. */
static ek_disk_request *request_of(ek_record_use *use, ek_op_kind kind, unsigned *parts,
                                   int *reduced)
{
    *reduced = kind == EK_OP_READ_STATE ? use->reads_reduced : use->reduces;
    if (kind == EK_OP_READ_STATE) {
        *parts = use->reads;
        return &use->read;
    }
    *parts = kind == EK_OP_WRITE_STATE ? EK_PART_STATE : EK_PART_GRADIENT;
    return kind == EK_OP_WRITE_STATE ? &use->write : &use->keep;
}

/* Whether an op of a record that rests turns out to have nothing to transfer. */
static int skips_transfer(const ek_record_use *use, ek_op_kind kind)
{
    return use->idle || (kind == EK_OP_READ_STATE && use->reads == 0) ||
           (kind == EK_OP_WRITE_STATE && use->updates == 0);
}

/* Starts the op's request when first called, then tests it. */
static ek_status op_transfer(void *self, const ek_op *op)
{
    ek_model *m = self;
    ek_offload *o = m->offload;
    ek_record_use *use = use_of(m, op);
    unsigned parts;
    int reduced;
    ek_disk_request *q;

    if (*op->state == NULL && op->kind == EK_OP_READ_STATE && o->records[use->record].rests)
        ek_offload_decide_use(m, use);
    if (skips_transfer(use, op->kind))
        return EK_OK;
    q = request_of(use, op->kind, &parts, &reduced);
    if (*op->state == NULL) {
        *q = ek_offload_request(o, &o->records[use->record], op->kind != EK_OP_READ_STATE, parts,
                                reduced, o->entries[use->entry].base);
        if (q->bytes == 0) /* of a sharded bucket of which this rank keeps nothing */
            return EK_OK;
        EK_TRY(ek_disk_start(o->disk, q));
        *op->state = q;
    }
    return ek_disk_test(o->disk, q);
}

/* Adds the stall that has just ended to the sums.  Until the read had started, it waited for an
 * entry: for the products that used it, for the write of what it held, or until that was sent to
 * replicas. */
static void count_stall(ek_offload *o, const ek_record_use *use)
{
    int64_t stall = o->stats.stall_now, began = ek_clock_ns() - stall, entry = stall;
    int backward = use->use != EK_WAVE_FORWARD;

    if (use->read_op >= 0)
        entry = use->read.start_ns > began ? use->read.start_ns - began : 0;
    o->stats.stall_now = 0;
    o->stats.stall_ns += stall;
    o->stats.entry_stall_ns += entry < stall ? entry : stall;
    o->stats.layer_stall_ns[2 * o->records[use->record].bucket->module + backward] += stall;
}

/* Once the record is in memory: checks what was read, and points its weights there, and to its
 * forms. */
static ek_status op_attach(void *self, const ek_op *op)
{
    ek_model *m = self;
    ek_offload *o = m->offload;
    const ek_record_use *use = use_of(m, op);
    const ek_record *r = &o->records[use->record];
    const ek_offload_entry *e = use->entry >= 0 ? &o->entries[use->entry] : NULL;

    count_stall(o, use);
    ek_offload_note_rows(o, use);
    if (use->idle)
        return EK_OK;
    if (e != NULL)
        EK_TRY(ek_offload_check(m, r, e, use->reads, use->reads_reduced));
    ek_offload_attach(m, r, e, use->form, use->whole);
    if (use->begins)
        memset(r->bucket->g_kept, 0, r->gradient_bytes);
    return EK_OK;
}

static ek_status op_reduce(void *self, const ek_op *op)
{
    const ek_model *m = self;
    const ek_record *r = &m->offload->records[use_of(m, op)->record];

    if (!ek_net_started(op))
        EK_TRY(ek_param_bucket_reduce(m, r->bucket, ek_net_cell(op)));
    return ek_net_test(op);
}

/* Brings what a bucket's reduction has given to u->g_kept. */
static void collect_gradients(const ek_model *m, const ek_param_bucket *u)
{
    size_t real = ek_dtype_size(m->k->real);

    if (ek_offload_has_whole(m, u))
        ek_param_bucket_collect(m, u);
    else if (u->sharded)
        memmove(u->g_kept, (char *)u->g + (size_t)u->kept_first * real, (size_t)u->kept * real);
}

/* After products that added to gradients which will be written; when they are complete, their
 * squares are summed. */
static ek_status op_sum_gradients(void *self, const ek_op *op)
{
    ek_model *m = self;
    ek_offload *o = m->offload;
    const ek_record_use *use = use_of(m, op);
    ek_record *r = &o->records[use->record];

    if (use->idle)
        return EK_OK;
    if (use->reduces)
        collect_gradients(m, r->bucket);
    ek_offload_sum(r, &o->entries[use->entry], EK_PART_GRADIENT, use->reduces);
    if (op->part != r->last_adding && !r->rests) /* which of its uses are idle is not known */
        return EK_OK;
    for (int32_t i = 0; i < r->bucket->n_params; i++) {
        const ek_param *p = &m->params[r->bucket->params[i]];
        int64_t at = p->w->own_first - p->w->kept_first;
        const void *g = (const char *)p->g_kept + at * (int64_t)ek_dtype_size(m->k->real);

        if (p->w->own > 0)
            m->k->sum_squares_each(m->k, 1, &p->w->own, &g, &o->squares[r->bucket->params[i]]);
    }
    return EK_OK;
}

static ek_status op_update(void *self, const ek_op *op)
{
    ek_model *m = self;
    ek_offload *o = m->offload;
    const ek_record_use *use = use_of(m, op);
    ek_record *r = &o->records[use->record];

    if (use->updates == 0)
        return EK_OK;
    o->update(o->context, r->bucket, use->updates);
    r->generation++;
    ek_offload_sum(r, &o->entries[use->entry], EK_PART_STATE, /*reduced*/ 0);
    o->stats.updates++;
    return EK_OK;
}

/* Gathers the masters of all ranks of the bucket's group. */
static ek_status op_gather(void *self, const ek_op *op)
{
    const ek_model *m = self;
    const ek_offload *o = m->offload;
    const ek_record_use *use = use_of(m, op);
    const ek_record *r = &o->records[use->record];
    const ek_param_bucket *u = r->bucket;
    unsigned char *base = o->entries[use->entry].base, *whole = base + o->whole_at;
    size_t real = ek_dtype_size(m->k->real);

    if (!ek_net_started(op)) {
        memcpy(whole + (size_t)u->kept_first * real, base + 2 * r->part_bytes,
               (size_t)u->kept * real);
        EK_TRY(ek_comm_all_gather(u->group, whole, u->first, real, ek_net_cell(op)));
    }
    return ek_net_test(op);
}

static ek_status op_pack(void *self, const ek_op *op)
{
    const ek_model *m = self;
    const ek_record_use *use = use_of(m, op);
    const ek_record *r = &m->offload->records[use->record];

    if (use->packs == 0)
        return EK_OK;
    return ek_param_bucket_pack(m, r->bucket,
                                op->kind == EK_OP_PACK_FORWARD ? EK_USE_FORWARD : EK_USE_BACKWARD);
}

static void describe_request(void *self, const ek_op *op, char *text, size_t cap)
{
    const ek_model *m = self;
    unsigned parts;
    int reduced;
    char bytes[16];
    const ek_disk_request *q = request_of(use_of(m, op), op->kind, &parts, &reduced);

    snprintf(text, cap, "%s of the scratch file in %s are being %s",
             ek_bytes_text(bytes, sizeof(bytes), (double)q->bytes), m->offload->cfg.dir,
             q->write ? "written" : "read");
}

/* --- builders --------------------------------------------------------------------------------- */

/* The op of a use, without its lane. */
static ek_op op_of(ek_model *m, ek_op_kind kind, ek_op_fn run, int32_t use)
{
    return (ek_op){.kind = kind,
                   .run = run,
                   .self = m,
                   .layer = m->offload->records[m->offload->plan.uses[use].record].bucket->module,
                   .micro = -1,
                   .part = use};
}

/* Appends an op of the compute lane over so many numbers; -1: it waits for its dependencies. */
static int32_t append(ek_model *m, ek_graph *g, ek_op_kind kind, ek_op_fn run, int32_t use,
                      double numbers, double bytes, const int32_t *deps, int32_t n)
{
    ek_op op = op_of(m, kind, run, use);

    op.lane = EK_LANE_COMPUTE;
    op.bytes = bytes;
    if (numbers >= 0)
        op.work = ek_work_of_rows(numbers, 1);
    op.stall_ns = kind == EK_OP_WAIT_STATE ? &m->offload->stats.stall_now : NULL;
    return ek_graph_add(g, &op, deps, n);
}

/* Appends a read or write of the use's record. */
static int32_t append_transfer(ek_model *m, ek_graph *g, ek_op_kind kind, int32_t use, double bytes,
                               const int32_t *deps, int32_t n)
{
    ek_op op = op_of(m, kind, op_transfer, use);

    op.lane = EK_LANE_DISK;
    op.bytes = bytes;
    op.work.kind = EK_WORK_DISK;
    op.describe = describe_request;
    return ek_graph_add(g, &op, deps, n);
}

static int32_t append_net(ek_model *m, ek_graph *g, ek_op_kind kind, ek_op_fn run, int32_t use,
                          ek_work work, const int32_t *deps, int32_t n)
{
    ek_op op = ek_net_op(kind, run, m, work);

    op.layer = op_of(m, kind, run, use).layer;
    op.part = use;
    return ek_graph_add(g, &op, deps, n);
}

/* Plans uses as far as there is memory for them, and appends their reads. */
static void plan_ahead(ek_model *m, ek_graph *g)
{
    ek_offload *o = m->offload;
    ek_record_use *use;

    while ((use = ek_offload_plan_use(m)) != NULL) {
        const ek_record *r = &o->records[use->record];

        if (use->reads != 0)
            use->read_op =
                append_transfer(m, g, EK_OP_READ_STATE, o->plan.planned - 1,
                                (double)ek_offload_range(r, use->reads, use->reads_reduced).bytes,
                                (int32_t[]){o->entries[use->entry].used,
                                            o->entries[use->entry].sent, use->before, r->written},
                                4);
    }
}

void ek_offload_end_plan(ek_model *m, ek_graph *g)
{
    if (m->offload == NULL)
        return;
    ek_offload_link_uses(m);
    ek_offload_set_resting(m, 1);
    plan_ahead(m, g);
}

/* Appends the update of the record of a use, and its write. */
static int32_t build_update(ek_model *m, ek_graph *g, int32_t at, int32_t dep)
{
    ek_offload *o = m->offload;
    ek_record *r = &o->records[o->plan.uses[at].record];
    ek_offload_entry *e = &o->entries[o->plan.uses[at].entry];
    double real = (double)ek_dtype_size(m->k->real);

    dep = append(m, g, EK_OP_ADAMW, op_update, at, (double)r->bucket->kept,
                 8 * real * (double)r->bucket->kept, &dep, 1);
    r->written = append_transfer(m, g, EK_OP_WRITE_STATE, at,
                                 (double)ek_offload_range(r, EK_PART_STATE, 0).bytes,
                                 (int32_t[]){dep, r->written}, 2);
    e->gathered = 0;
    return dep;
}

/* Appends the gather of a sharded record, if products read the masters or a form is to be packed
 * from them. */
static int32_t build_gather(ek_model *m, ek_graph *g, int32_t at, int32_t dep)
{
    ek_offload *o = m->offload;
    const ek_record_use *use = &o->plan.uses[at];
    const ek_param_bucket *u = o->records[use->record].bucket;

    if (!u->sharded || (use->packs == 0 && !ek_offload_reads_masters(m, use)) ||
        o->entries[use->entry].gathered)
        return dep;
    o->entries[use->entry].gathered = 1;
    return append_net(m, g, EK_OP_GATHER_WEIGHTS, op_gather, at, ek_param_bucket_gather_work(m, u),
                      &dep, 1);
}

/* Appends the packing of one form. */
static int32_t build_form(ek_model *m, ek_graph *g, int32_t at, int direction, int32_t dep)
{
    ek_offload *o = m->offload;
    const ek_record_use *use = &o->plan.uses[at];
    double element = (double)(ek_dtype_size(m->k->real) + ek_dtype_size(m->k->comp));
    ek_op_kind kind = direction == EK_PACKED_FORWARD ? EK_OP_PACK_FORWARD : EK_OP_PACK_BACKWARD;
    double numbers = (double)o->records[use->record].bucket->n;
    const ek_form_buffer *f = &o->forms[use->form[direction]];

    return append(m, g, kind, op_pack, at, numbers, numbers * element,
                  (int32_t[]){dep, f->used, f->sent}, 3);
}

/* Appends the packing of forms for a use, and for later ones. */
static int32_t build_forms(ek_model *m, ek_graph *g, int32_t at, int32_t dep)
{
    ek_offload *o = m->offload;
    const ek_record_use *use = &o->plan.uses[at];

    for (int d = 0; d < 2; d++) {
        if (!(use->packs >> d & 1u))
            continue;
        dep = build_form(m, g, at, d, dep);
        if (d != use->direction)
            ek_offload_release_form(o, use->form[d], dep, -1);
    }
    return dep;
}

/* Whether the products themselves need the entry. */
static int products_need_entry(const ek_model *m, const ek_record_use *use)
{
    return use->adds || ek_offload_reads_masters(m, use);
}

/* Appends the wait for the record of the next use, and its update. */
static int32_t build_state(ek_model *m, ek_graph *g, int32_t dep)
{
    ek_offload *o = m->offload;
    int32_t at = o->plan.ready++;
    ek_record_use *use = &o->plan.uses[at];
    /* gradients that are still being written do not change */
    const int32_t deps[] = {dep, use->read_op, use->before,
                            use->adds && !use->begins ? o->records[use->record].written : -1};

    if (use->adds && ek_offload_has_whole(m, o->records[use->record].bucket))
        use->whole = o->plan.n_whole++ % EK_WHOLE_GRADIENTS;
    o->stats.uses++;
    dep = append(m, g, EK_OP_WAIT_STATE, op_attach, at, -1, 0, deps, 4);
    return use->updates ? build_update(m, g, at, dep) : dep;
}

/* Appends what makes the record of the next use ready, but for packing. */
static void build_ready(ek_model *m, ek_graph *g, int32_t dep)
{
    int32_t at = m->offload->plan.ready;

    dep = build_state(m, g, dep);
    m->offload->plan.uses[at].dep = build_gather(m, g, at, dep);
}

/* Appends what brings a record that rests into memory for the next use, if that has rows. */
static int32_t build_demand(ek_model *m, ek_graph *g, int32_t dep)
{
    ek_offload *o = m->offload;
    int32_t at = o->plan.ready++, read;
    const ek_record_use *use = &o->plan.uses[at];
    const ek_record *r = &o->records[use->record];
    ek_offload_entry *e = &o->entries[0];

    read = append_transfer(m, g, EK_OP_READ_STATE, at,
                           (double)ek_offload_range(r, EK_PART_STATE, 0).bytes,
                           (int32_t[]){dep, e->used, e->sent, e->before, r->written}, 5);
    o->plan.uses[at].read_op = read;
    dep = append(m, g, EK_OP_WAIT_STATE, op_attach, at, -1, 0, (int32_t[]){dep, read}, 2);
    if (use->use == EK_WAVE_FORWARD) {
        dep = build_update(m, g, at, dep);
        e->before = r->written;
    }
    return use->direction >= 0 ? build_form(m, g, at, use->direction, dep) : dep;
}

/* Appends, after products that added to gradients on disk, and what else did, their write. */
static int32_t build_keep(ek_model *m, ek_graph *g, int32_t at, int32_t dep, int32_t also)
{
    const ek_record_use *use = &m->offload->plan.uses[at];
    ek_record *r = &m->offload->records[use->record];
    double bytes = (double)ek_offload_part_bytes(r, EK_PARTS - 1, use->reduces);

    dep = append(m, g, EK_OP_SUM_GRADIENTS, op_sum_gradients, at,
                 bytes / (double)ek_dtype_size(m->k->real), bytes, (int32_t[]){dep, also}, 2);
    r->written =
        append_transfer(m, g, EK_OP_WRITE_GRADIENTS, at, bytes, (int32_t[]){dep, r->written}, 2);
    if (r->rests)
        m->offload->entries[0].before = r->written;
    return dep;
}

/* Appends, once the gradients that are being summed over ranks are, their write. */
static int32_t build_reduced(ek_model *m, ek_graph *g, int32_t dep)
{
    ek_offload *o = m->offload;
    int32_t at = o->plan.reducing;

    if (at < 0)
        return dep;
    dep = build_keep(m, g, at, dep, o->plan.reduction);
    o->plan.reducing = -1;
    ek_offload_release_entry(o, &o->plan.uses[at], dep, -1);
    return dep;
}

/* Starts to sum the gradients of the use over ranks; they are written after the products of the
 * next use, as those of the one before are now. */
static int32_t build_reduction(ek_model *m, ek_graph *g, int32_t at, int32_t dep, int32_t also)
{
    ek_offload *o = m->offload;
    ek_work work = ek_param_bucket_reduce_work(m, o->records[o->plan.uses[at].record].bucket);
    int32_t op =
        append_net(m, g, EK_OP_REDUCE_GRADIENTS, op_reduce, at, work, (int32_t[]){dep, also}, 2);

    dep = build_reduced(m, g, dep);
    o->plan.reducing = at;
    o->plan.reduction = op;
    return dep;
}

/* Whether a use adds to gradients of the same record as another (-1: none). */
static int adds_after(const ek_offload *o, int32_t at, int32_t other)
{
    return other >= 0 && o->plan.uses[at].adds &&
           o->plan.uses[at].record == o->plan.uses[other].record;
}

/* Whether the use after the next one is made ready before the products of that: where records are
 * gathered, so that the gather overlaps with them. */
static int is_ready_early(const ek_offload *o, int32_t at)
{
    return at < o->plan.planned && o->records[o->plan.uses[at].record].bucket->sharded &&
           !adds_after(o, at, at - 1) && !adds_after(o, at, o->plan.reducing);
}

/* Appends what makes the next use ready. */
static int32_t build_use(ek_model *m, ek_graph *g, int32_t dep)
{
    ek_offload *o = m->offload;
    int32_t at = o->plan.used;

    if (o->records[o->plan.uses[at].record].rests)
        return build_demand(m, g, dep);
    if (adds_after(o, at, o->plan.reducing))
        dep = build_reduced(m, g, dep);
    if (o->plan.ready == at)
        build_ready(m, g, dep);
    if (is_ready_early(o, at + 1))
        build_ready(m, g, dep);
    dep = build_forms(m, g, at, o->plan.uses[at].dep);
    if (o->plan.uses[at].entry >= 0 && !products_need_entry(m, &o->plan.uses[at])) {
        ek_offload_release_entry(o, &o->plan.uses[at], dep, -1);
        plan_ahead(m, g);
    }
    return dep;
}

/* After the products of the next use, and op sent: its memory may give way, to uses whose reads are
 * then appended. */
static void release(ek_model *m, ek_graph *g, int32_t dep, int32_t sent)
{
    ek_offload *o = m->offload;
    const ek_record_use *use = &o->plan.uses[o->plan.used++];

    if (o->records[use->record].rests) {
        o->entries[0].used = o->forms[0].used = dep;
        o->entries[0].sent = o->forms[0].sent = sent;
        plan_ahead(m, g);
        return;
    }
    if (use->entry >= 0 && products_need_entry(m, use) && o->plan.reducing != o->plan.used - 1)
        ek_offload_release_entry(o, use, dep, sent);
    if (use->direction >= 0)
        ek_offload_release_form(o, use->form[use->direction], dep, sent);
    plan_ahead(m, g);
}

/* A layer's products that the plan does not have would use memory that is not theirs. */
static int is_planned(const ek_offload *o, int32_t record, const ek_wave_call *call)
{
    return o->plan.used < o->plan.planned && o->plan.uses[o->plan.used].record == record &&
           o->plan.uses[o->plan.used].use == call->use;
}

static int32_t begin_wave(void *self, const ek_wave_call *call, int32_t dep)
{
    ek_model *m = self;
    ek_offload *o = m->offload;
    int32_t record = o->first_record[call->layer] + call->wave;

    if (!ek_offload_is_use(m, call->use))
        return dep;
    if (!is_planned(o, record, call)) {
        call->g->failed = EK_FAIL(EK_EINTERNAL, "products of wave %d of layer %d are not planned",
                                  (int)call->wave, (int)call->layer);
        return dep;
    }
    o->plan.uses[o->plan.used].rows = call->rows;
    o->plan.uses[o->plan.used].owner = call->owner;
    o->plan.uses[o->plan.used].micro = call->micro;
    o->plan.uses[o->plan.used].chunk = call->chunk;
    return build_use(m, call->g, dep);
}

static int32_t end_wave(void *self, const ek_wave_call *call, int32_t dep, int32_t sent)
{
    ek_model *m = self;
    ek_offload *o = m->offload;

    if (!ek_offload_is_use(m, call->use) || call->g->failed < 0)
        return dep;
    if (o->plan.uses[o->plan.used].reduces) {
        dep = build_reduction(m, call->g, o->plan.used, dep, sent);
    } else {
        dep = build_reduced(m, call->g, dep);
        if (o->plan.uses[o->plan.used].adds)
            dep = build_keep(m, call->g, o->plan.used, dep, sent);
    }
    release(m, call->g, dep, sent);
    return dep;
}

int32_t ek_offload_build_finish(ek_model *m, ek_graph *g, int32_t dep)
{
    return m->offload != NULL ? build_reduced(m, g, dep) : dep;
}

void ek_offload_set_waves(ek_model *m)
{
    for (int64_t l = 0; l < m->spec.layers; l++) {
        m->offload->waves[l].begin = begin_wave;
        m->offload->waves[l].end = end_wave;
        m->offload->waves[l].context = m;
    }
}

int ek_offload_has_sum(const ek_model *m, int64_t param, double *sum)
{
    const ek_offload *o = m->offload;

    if (o == NULL || o->squares == NULL ||
        !ek_param_bucket_is_offloaded(&m->buckets->bucket[m->params[param].bucket]))
        return 0;
    *sum = o->squares[param];
    return 1;
}

/* --- pending updates -------------------------------------------------------------------------- */

void ek_offload_set_pending(ek_model *m)
{
    ek_offload *o = m->offload;

    if (o == NULL)
        return;
    for (int32_t r = 0; r < o->n; r++) {
        o->records[r].pending++;
        o->stats.deferred += o->records[r].rests && !o->records[r].routed;
    }
    o->steps++;
}

int ek_offload_is_pending(const ek_model *m)
{
    int pending = 0;

    for (int32_t r = 0; m->offload != NULL && r < m->offload->n; r++)
        pending |= m->offload->records[r].pending > 0;
    return pending;
}

ek_status ek_offload_build_flush(ek_model *m, ek_graph *g)
{
    ek_offload *o = m->offload;
    int32_t dep = -1;

    ek_offload_begin_plan(m);
    for (int32_t r = 0; r < o->n; r++)
        if (o->records[r].pending > 0)
            EK_TRY(ek_offload_add_use(m, r, EK_WAVE_FORWARD, /*forms*/ 0));
    ek_offload_link_uses(m);
    ek_offload_set_resting(m, 0);
    plan_ahead(m, g);
    while (o->plan.used < o->plan.n_uses) {
        dep = build_state(m, g, dep);
        ek_offload_release_entry(o, &o->plan.uses[o->plan.used++], dep, -1);
        plan_ahead(m, g);
    }
    return ek_graph_check(g);
}

void ek_offload_forget(ek_model *m)
{
    ek_offload *o = m->offload;

    for (int32_t i = 0; o != NULL && i < o->cfg.entries; i++)
        ek_offload_empty(o, &o->entries[i]);
    for (int32_t r = 0; o != NULL && r < o->n; r++)
        ek_offload_drop_forms(o, &o->records[r]);
}
