/* Plans of steps with experts on disk: random uses of random records by random numbers of entries.
 * A simulation takes the planned ops in random orders that lanes and dependencies allow, with
 * transfers that begin and end, and follows which version of which record every part of the file
 * and of memory has: each op must find the right ones, and nothing may change what a transfer or a
 * product still needs.  Experts have rows at random, in several chunks: some records rest. */
#include "base/random.h"
#include "ek_test.h"
#include "model/offload_priv.h"
#include "tensor/select/select.h"

enum {
    PLANS = 250,      /* drawn cases, */
    GRAPHS = 6,       /* the graphs of each, one after the other, */
    ORDERS = 3,       /* and orders in which each is run */
    RECORDS_MAX = 40, /* of a model, with */
    MICROS_MAX = 3,   /* micro-batches, */
    CHUNKS_MAX = 3,   /* each in so many chunks, */
    PRODUCTS_MAX = 160,
    LAYERS_MAX = 4,   /* layers, */
    SLOTS_MAX = 10,   /* and experts of a layer */
    FORMS_MAX = 80,   /* of these, in both directions */
    NOTHING = -1,     /* no record */
    IN_TRANSFER = -2, /* memory that a read fills, or a reduction */
    /* versions of whole gradients, which are zero with NOTHING */
    ADDED = 1,
    REDUCED = 2
};

static uint64_t draws, seed;
static int64_t rested, reduced; /* records, and gradients, over all graphs */

static int32_t draw(int32_t n)
{
    return (int32_t)(ek_random_bits(seed, 5, draws++) % (uint64_t)n);
}

/* --- the simulated memory and file ------------------------------------------------------------ */

/* What a part holds: which record's, and how often it was updated or added to. */
typedef struct {
    int32_t record;
    int64_t version;
} content;

typedef struct {
    content part[EK_PARTS], whole;
} entry_content;

typedef struct {
    content of;
    int direction;
} form_content;

typedef struct {
    content file[RECORDS_MAX][EK_PARTS];
    entry_content entry[RECORDS_MAX];
    form_content form[FORMS_MAX];
    content whole_gradients[EK_WHOLE_GRADIENTS];
    int reduced[RECORDS_MAX];                            /* gradients in the file are */
    int64_t updates[RECORDS_MAX], gradient[RECORDS_MAX]; /* versions that are right now */
    int64_t steps;                                       /* updates that there are */
} world;

/* What a graph changes in the model while it is run. */
typedef struct {
    ek_record records[RECORDS_MAX];
    ek_record_use uses[PRODUCTS_MAX * SLOTS_MAX];
    ek_offload_entry entry;
    ek_form_buffer form;
    int observed;
} run_state;

/* First rows of the slots, of the micro-batches of a graph. */
static int64_t offsets[MICROS_MAX + 1][LAYERS_MAX][SLOTS_MAX + 1];
static int32_t chunks; /* of the graph's rows */

static int64_t rows_of_slots(const void *owner, int32_t micro, int32_t chunk, int32_t first,
                             int32_t end)
{
    const int64_t *offset = owner;
    int64_t rows = 0;

    (void)micro;
    for (int32_t s = first; s < end; s++) /* a slot's rows are in one chunk */
        rows += chunk < 0 || s % chunks == chunk ? offset[s + 1] - offset[s] : 0;
    return rows;
}

/* A graph that is run. */
typedef struct {
    ek_model *m;
    const ek_graph *g;
    world *w;
    char *state;                /* [n_ops]: of RUN_* */
    content (*moved)[EK_PARTS]; /* [n_ops]: by transfers in flight */
    const char *text;
    int bad;
} simulation;

enum { RUN_WAITS, RUN_STARTED, RUN_DONE };

static void report(simulation *s, int32_t op, const char *what)
{
    if (s->bad++ == 0)
        EK_T_FAIL("%s: op %d (%s, use %d): %s", s->text, (int)op, ek_op_name(s->g->ops[op].kind),
                  (int)s->g->ops[op].part, what);
}

static void expect(simulation *s, int32_t op, content got, int32_t record, int64_t version,
                   const char *what)
{
    char text[160];

    if (got.record == record && got.version == version)
        return;
    snprintf(text, sizeof(text), "%s: record %d version %lld, not record %d version %lld", what,
             (int)got.record, (long long)got.version, (int)record, (long long)version);
    report(s, op, text);
}

static int64_t right_version(const world *w, int32_t record, int part)
{
    return part == EK_PARTS - 1 ? w->gradient[record] : w->updates[record];
}

/* --- ops -------------------------------------------------------------------------------------- */

static unsigned moved_parts(const ek_record *r, const ek_record_use *use, ek_op_kind kind)
{
    unsigned parts = kind == EK_OP_READ_STATE    ? use->reads
                     : kind == EK_OP_WRITE_STATE ? EK_PART_STATE
                                                 : EK_PART_GRADIENT;
    ek_part_range range = ek_offload_range(r, parts, use->reads_reduced);
    unsigned all = 0;

    for (int i = 0; i < EK_PARTS; i++) /* those between the first and the last, too */
        if ((size_t)i * r->part_bytes >= range.first &&
            (size_t)i * r->part_bytes < range.first + range.bytes)
            all |= 1u << i;
    return all;
}

/* Whether another transfer of this record's parts in the file is in flight, and one of them
 * writes. */
static int overlaps(const simulation *s, int32_t op)
{
    const ek_offload *o = s->m->offload;
    const ek_op *a = &s->g->ops[op];
    int32_t record = o->plan.uses[a->part].record;
    unsigned parts = moved_parts(&o->records[record], &o->plan.uses[a->part], a->kind);

    for (int32_t i = 0; i < s->g->n_ops; i++) {
        const ek_op *b = &s->g->ops[i];

        if (i != op && s->state[i] == RUN_STARTED && b->lane == EK_LANE_DISK &&
            o->plan.uses[b->part].record == record &&
            (parts & moved_parts(&o->records[record], &o->plan.uses[b->part], b->kind)) &&
            (a->kind != EK_OP_READ_STATE || b->kind != EK_OP_READ_STATE))
            return 1;
    }
    return 0;
}

/* Whether a part holds nothing that a transfer in flight still takes from there. */
static void check_free(simulation *s, int32_t op, int32_t entry, int part)
{
    const ek_offload *o = s->m->offload;

    for (int32_t i = 0; i < s->g->n_ops; i++) {
        const ek_op *b = &s->g->ops[i];
        const ek_record_use *use = &o->plan.uses[b->part];

        if (i == op || s->state[i] != RUN_STARTED || use->entry != entry)
            continue;
        if (b->kind == EK_OP_REDUCE_GRADIENTS && use->whole < 0 && part == EK_PARTS - 1)
            report(s, op, "changes gradients while they are reduced");
        if (b->kind == EK_OP_GATHER_WEIGHTS && part == 2)
            report(s, op, "changes masters while they are gathered");
        if (b->lane == EK_LANE_DISK &&
            (moved_parts(&o->records[use->record], use, b->kind) >> part & 1u))
            report(s, op, "changes memory of a transfer in flight");
    }
}

/* Sets a part of memory. */
static void put(simulation *s, int32_t op, int32_t entry, int part, content c)
{
    check_free(s, op, entry, part);
    s->w->entry[entry].part[part] = c;
}

/* Whether an op of the disk lane has nothing to do; of a record that rests this is known now. */
static int has_nothing_to_do(simulation *s, ek_record_use *use, ek_op_kind kind)
{
    if (kind == EK_OP_READ_STATE && s->m->offload->records[use->record].rests)
        ek_offload_decide_use(s->m, use);
    return use->idle || (kind == EK_OP_READ_STATE && use->reads == 0) ||
           (kind == EK_OP_WRITE_STATE && use->updates == 0);
}

static void start_transfer(simulation *s, int32_t op, const ek_record_use *use, ek_op_kind kind)
{
    const ek_record *r = &s->m->offload->records[use->record];
    unsigned parts = moved_parts(r, use, kind);
    entry_content *e = &s->w->entry[use->entry];

    if (overlaps(s, op))
        report(s, op, "is not ordered with another transfer of the record");
    for (int i = 0; i < EK_PARTS; i++) {
        if (!(parts >> i & 1u))
            continue;
        if (kind != EK_OP_READ_STATE) {
            s->moved[op][i] = e->part[i];
            expect(s, op, e->part[i], use->record, right_version(s->w, use->record, i),
                   "what it writes");
            continue;
        }
        if (i == EK_PARTS - 1 && use->reads_reduced != s->w->reduced[use->record])
            report(s, op, "takes gradients for reduced that are not, or the other way round");
        s->moved[op][i] = s->w->file[use->record][i];
        put(s, op, use->entry, i, (content){IN_TRANSFER, 0});
    }
}

static void end_transfer(simulation *s, int32_t op, const ek_record_use *use, ek_op_kind kind)
{
    unsigned parts = moved_parts(&s->m->offload->records[use->record], use, kind);

    for (int i = 0; i < EK_PARTS; i++) {
        if (!(parts >> i & 1u))
            continue;
        if (kind == EK_OP_WRITE_GRADIENTS)
            s->w->reduced[use->record] = use->reduces;
        if (kind != EK_OP_READ_STATE)
            s->w->file[use->record][i] = s->moved[op][i];
        else
            s->w->entry[use->entry].part[i] = s->moved[op][i];
    }
}

/* The masters that packing and products read. */
static void check_masters(simulation *s, int32_t op, const ek_record_use *use)
{
    const entry_content *e = &s->w->entry[use->entry];
    int sharded = s->m->offload->records[use->record].bucket->sharded;

    expect(s, op, sharded ? e->whole : e->part[2], use->record, s->w->updates[use->record],
           sharded ? "gathered masters" : "masters");
}

static void run_wait(simulation *s, int32_t op, const ek_record_use *use)
{
    world *w = s->w;
    const entry_content *e;

    ek_offload_note_rows(s->m->offload, use);
    if (use->entry < 0 || use->idle) /* forms alone, or nothing */
        return;
    e = &w->entry[use->entry];
    if (use->reads != moved_parts(&s->m->offload->records[use->record], use, EK_OP_READ_STATE))
        report(s, op, "checks other parts than were read");
    for (int i = 0; i < EK_PARTS; i++)
        if (use->reads >> i & 1u)
            expect(s, op, e->part[i], use->record, right_version(w, use->record, i),
                   "what was read");
    if (use->begins)
        put(s, op, use->entry, EK_PARTS - 1, (content){use->record, ++w->gradient[use->record]});
}

static void run_update(simulation *s, int32_t op, const ek_record_use *use)
{
    const ek_offload *o = s->m->offload;
    world *w = s->w;

    if (use->updates == 0)
        return;
    if (w->updates[use->record] + use->updates != w->steps)
        report(s, op, "applies other updates than it has missed");
    for (int i = 0; i < EK_PARTS - 1 + o->cfg.gradients; i++)
        expect(s, op, w->entry[use->entry].part[i], use->record, right_version(w, use->record, i),
               "what it updates");
    w->updates[use->record] += use->updates;
    w->gradient[use->record]++;
    for (int i = 0; i < EK_PARTS - 1 + o->cfg.gradients; i++)
        put(s, op, use->entry, i, (content){use->record, right_version(w, use->record, i)});
}

/* The weights that products read, and that are sent to replicas. */
static void check_weights(simulation *s, int32_t op, const ek_record_use *use)
{
    const world *w = s->w;
    const form_content *form = use->direction < 0 ? NULL : &w->form[use->form[use->direction]];

    if (use->idle)
        return;
    if (use->use != EK_WAVE_WEIGHT_GRADIENT && w->updates[use->record] != w->steps)
        report(s, op, "weights miss an update");
    if (form != NULL)
        expect(s, op, form->of, use->record, w->updates[use->record], "packed weights");
    if (form != NULL && form->direction != use->direction)
        report(s, op, "packed weights are those of the other direction");
    if (ek_offload_reads_masters(s->m, use))
        check_masters(s, op, use);
}

/* What products, or messages of replicas, add to: gradients of the record, or whole ones. */
static void check_gradients(simulation *s, int32_t op, const ek_record_use *use)
{
    if (use->idle)
        return;
    if (use->whole >= 0)
        expect(s, op, s->w->whole_gradients[use->whole], use->record, ADDED, "whole gradients");
    else
        expect(s, op, s->w->entry[use->entry].part[EK_PARTS - 1], use->record,
               s->w->gradient[use->record], "gradients");
}

static void add_gradients(simulation *s, int32_t op, const ek_record_use *use)
{
    world *w = s->w;

    if (use->idle)
        return;
    if (use->whole >= 0) {
        if (s->g->ops[op].kind == EK_OP_REPLICA_GRADIENTS)
            check_gradients(s, op, use);
        else
            expect(s, op, w->whole_gradients[use->whole], NOTHING, 0, "zero whole gradients");
        w->whole_gradients[use->whole] = (content){use->record, ADDED};
        return;
    }
    expect(s, op, w->entry[use->entry].part[EK_PARTS - 1], use->record, w->gradient[use->record],
           "gradients");
    put(s, op, use->entry, EK_PARTS - 1, (content){use->record, ++w->gradient[use->record]});
}

/* The sum over ranks takes what products have added, in place. */
static void start_reduction(simulation *s, int32_t op, const ek_record_use *use)
{
    check_gradients(s, op, use);
    if (!use->reduces)
        report(s, op, "is not expected");
    if (use->whole >= 0)
        s->w->whole_gradients[use->whole].record = IN_TRANSFER;
    else
        s->w->entry[use->entry].part[EK_PARTS - 1].record = IN_TRANSFER;
}

static void end_reduction(simulation *s, const ek_record_use *use)
{
    if (use->whole >= 0)
        s->w->whole_gradients[use->whole] = (content){use->record, REDUCED};
    else
        s->w->entry[use->entry].part[EK_PARTS - 1] =
            (content){use->record, ++s->w->gradient[use->record]};
    reduced++;
}

/* The gradients that are written next: whole ones are added to them, and cleared. */
static void sum_gradients(simulation *s, int32_t op, const ek_record_use *use)
{
    world *w = s->w;

    if (use->idle)
        return;
    expect(s, op, w->entry[use->entry].part[EK_PARTS - 1], use->record, w->gradient[use->record],
           "gradients");
    if (use->whole < 0)
        return;
    expect(s, op, w->whole_gradients[use->whole], use->record, REDUCED, "whole gradients");
    put(s, op, use->entry, EK_PARTS - 1, (content){use->record, ++w->gradient[use->record]});
    w->whole_gradients[use->whole] = (content){NOTHING, 0};
}

static void run_products(simulation *s, int32_t op, const ek_record_use *use)
{
    check_weights(s, op, use);
    if (use->adds)
        add_gradients(s, op, use);
}

/* An op of the compute lane. */
static void run_op(simulation *s, int32_t op)
{
    const ek_op *x = &s->g->ops[op];
    const ek_record_use *use = &s->m->offload->plan.uses[x->part];
    int direction = x->kind == EK_OP_PACK_BACKWARD;

    if (x->kind == EK_OP_WAIT_STATE)
        run_wait(s, op, use);
    else if (x->kind == EK_OP_ADAMW)
        run_update(s, op, use);
    else if (x->kind == EK_OP_PACK_FORWARD || x->kind == EK_OP_PACK_BACKWARD) {
        if (use->packs == 0)
            return;
        check_masters(s, op, use);
        s->w->form[use->form[direction]] =
            (form_content){{use->record, s->w->updates[use->record]}, direction};
    } else if (x->kind == EK_OP_SUM_GRADIENTS)
        sum_gradients(s, op, use);
    else if (x->kind == EK_OP_EXPERT_UP)
        run_products(s, op, use);
}

static void start_op(simulation *s, int32_t op)
{
    const ek_op *x = &s->g->ops[op];
    ek_record_use *use = &s->m->offload->plan.uses[x->part];

    if (x->lane == EK_LANE_COMPUTE)
        run_op(s, op);
    else if (x->lane == EK_LANE_DISK && has_nothing_to_do(s, use, x->kind)) {
        s->state[op] = RUN_DONE;
        return;
    } else if (x->lane == EK_LANE_DISK)
        start_transfer(s, op, use, x->kind);
    else if (x->kind == EK_OP_REPLICAS)
        check_weights(s, op, use);
    else if (x->kind == EK_OP_REPLICA_GRADIENTS)
        check_gradients(s, op, use);
    else if (x->kind == EK_OP_REDUCE_GRADIENTS)
        start_reduction(s, op, use);
    else if (x->kind == EK_OP_GATHER_WEIGHTS) { /* it reads the masters until it ends */
        expect(s, op, s->w->entry[use->entry].part[2], use->record, s->w->updates[use->record],
               "masters");
        s->w->entry[use->entry].whole.record = IN_TRANSFER;
    }
    s->state[op] = x->lane == EK_LANE_COMPUTE ? RUN_DONE : RUN_STARTED;
}

static void end_op(simulation *s, int32_t op)
{
    const ek_op *x = &s->g->ops[op];
    const ek_record_use *use = &s->m->offload->plan.uses[x->part];

    s->state[op] = RUN_DONE;
    if (x->lane == EK_LANE_DISK)
        end_transfer(s, op, use, x->kind);
    else if (x->kind == EK_OP_REPLICAS)
        check_weights(s, op, use);
    else if (x->kind == EK_OP_REPLICA_GRADIENTS)
        add_gradients(s, op, use);
    else if (x->kind == EK_OP_REDUCE_GRADIENTS)
        end_reduction(s, use);
    else
        s->w->entry[use->entry].whole = (content){use->record, s->w->updates[use->record]};
}

/* --- running ---------------------------------------------------------------------------------- */

static int can_start(const simulation *s, int32_t op)
{
    const ek_op *x = &s->g->ops[op];

    for (int32_t i = 0; i < x->n_deps; i++)
        if (s->state[s->g->deps[x->dep + i]] != RUN_DONE)
            return 0;
    return 1;
}

/* The next op of a lane; n_ops: none is left. */
static int32_t next_of(const simulation *s, ek_lane lane)
{
    int32_t i = 0;

    while (i < s->g->n_ops && (s->g->ops[i].lane != lane || s->state[i] != RUN_WAITS))
        i++;
    return i;
}

/* Starts or ends an op, drawn of those that may; 0: none may. */
static int take_turn(simulation *s)
{
    int32_t can[64], n = 0, op;

    for (int lane = 0; lane < EK_LANE_COUNT; lane++) {
        op = next_of(s, (ek_lane)lane);
        if (op < s->g->n_ops && can_start(s, op))
            can[n++] = op;
    }
    for (op = 0; op < s->g->n_ops && n < 64; op++)
        if (s->state[op] == RUN_STARTED)
            can[n++] = op;
    if (n == 0)
        return 0;
    op = can[draw(n)];
    if (s->state[op] == RUN_STARTED)
        end_op(s, op);
    else
        start_op(s, op);
    return 1;
}

/* Sets `to` to what is to be run, or the model to that. */
static void copy_state(ek_model *m, run_state *to, int back)
{
    ek_offload *o = m->offload;
    size_t records = (size_t)o->n * sizeof(*o->records);
    size_t uses = (size_t)o->plan.n_uses * sizeof(*o->plan.uses);

    CHECK(o->plan.n_uses <= PRODUCTS_MAX * SLOTS_MAX);
    memcpy(back ? o->records : to->records, back ? to->records : o->records, records);
    if (uses > 0)
        memcpy(back ? o->plan.uses : to->uses, back ? to->uses : o->plan.uses, uses);
    if (back) {
        o->entries[0] = to->entry;
        o->forms[0] = to->form;
        o->observed = to->observed;
    } else {
        to->entry = o->entries[0];
        to->form = o->forms[0];
        to->observed = o->observed;
    }
}

/* Runs a graph in one order from `before`; returns what it leaves. */
static world run_order(ek_model *m, const ek_graph *g, const world *before, const char *text)
{
    world w = *before;
    simulation s = {.m = m, .g = g, .w = &w, .text = text};

    s.state = calloc((size_t)g->n_ops + 1, 1);
    s.moved = calloc((size_t)g->n_ops + 1, sizeof(*s.moved));
    while (take_turn(&s))
        continue;
    for (int32_t i = 0; i < g->n_ops && s.bad == 0; i++)
        if (s.state[i] != RUN_DONE)
            report(&s, i, "never runs");
    free(s.moved);
    free(s.state);
    return w;
}

/* --- plans ------------------------------------------------------------------------------------ */

/* Appends the messages of a wave's replicas: they send its weights, or add to its gradients. */
static int32_t build_messages(ek_graph *g, ek_op_kind kind, int32_t at, int32_t dep, int32_t dep2)
{
    ek_op op = {.kind = kind, .lane = EK_LANE_NET, .part = at};

    return ek_graph_add(g, &op, (int32_t[]){dep, dep2}, 2);
}

static int32_t last_of_compute(const ek_graph *g)
{
    int32_t i = g->n_ops - 1;

    while (i >= 0 && g->ops[i].lane != EK_LANE_COMPUTE)
        i--;
    return i;
}

/* A layer's products of a chunk of a micro-batch, wave by wave, perhaps with replicas on other
 * ranks, whose messages have arrived when the layer's products end. */
static void build_layer(ek_model *m, ek_graph *g, int32_t micro, int32_t layer, int32_t chunk,
                        ek_wave_use use)
{
    const ek_expert_waves *waves = &m->offload->waves[layer];
    int distributed = ek_mesh_distributes_experts(m->cfg.mesh);
    int sends = chunk <= 0 && distributed && draw(2);
    ek_op op = {.kind = EK_OP_EXPERT_UP, .lane = EK_LANE_COMPUTE, .layer = layer};
    ek_op wait = {.kind = EK_OP_WAIT_REPLICAS, .lane = EK_LANE_COMPUTE, .layer = layer};
    int32_t all[RECORDS_MAX], last = last_of_compute(g);

    for (int32_t i = 0; i < waves->n; i++) {
        int32_t wave = ek_wave_at(use, chunk, i, waves->n), dep, sent = -1;
        ek_wave_call call = {.g = g,
                             .layer = layer,
                             .chunk = chunk,
                             .wave = wave,
                             .use = use,
                             .rows = rows_of_slots,
                             .owner = offsets[micro][layer]};
        int32_t at = m->offload->plan.used;

        all[i] = -1;
        dep = waves->begin(waves->context, &call, -1);
        if (use == EK_WAVE_WEIGHT_GRADIENT && !(distributed && m->offload->cfg.gradients))
            continue; /* no use of weights: gradients are in memory, or were added to before */
        op.part = at;
        if (sends && use != EK_WAVE_WEIGHT_GRADIENT)
            sent = build_messages(g, EK_OP_REPLICAS, at, last, dep);
        last = dep = ek_graph_after(g, &op, dep);
        if (sends && use == EK_WAVE_WEIGHT_GRADIENT)
            sent = build_messages(g, EK_OP_REPLICA_GRADIENTS, at, -1, dep);
        last = waves->end(waves->context, &call, dep, sent);
        all[i] = sent;
    }
    ek_graph_add(g, &wait, all, waves->n);
}

/* The products of a step, or of an evaluation. */
typedef struct {
    int32_t micro[PRODUCTS_MAX], layer[PRODUCTS_MAX], chunk[PRODUCTS_MAX];
    ek_wave_use use[PRODUCTS_MAX];
    int n;
} products;

/* Chunk by chunk, but weight gradients with all rows. */
static void add_products(products *p, int32_t micro, int32_t layer, ek_wave_use use)
{
    int32_t c = use == EK_WAVE_WEIGHT_GRADIENT ? -1 : 0;

    do {
        p->micro[p->n] = micro;
        p->layer[p->n] = layer;
        p->chunk[p->n] = c;
        p->use[p->n++] = use;
    } while (c >= 0 && ++c < chunks);
}

/* Micro-batches go forward and backward in a random order in which the backward of each follows its
 * forward, as in pipelines; perhaps layers are used once more at the end. */
static products draw_products(const ek_model *m, int trains)
{
    products p = {.n = 0};
    int micros = 1 + draw(MICROS_MAX), left = micros, begun = 0, recomputes = draw(2);
    int32_t layers = (int32_t)m->spec.layers;

    chunks = ek_mesh_distributes_experts(m->cfg.mesh) ? 1 + draw(CHUNKS_MAX) : 1;
    while (left > 0) {
        int forward = begun < micros && (begun == micros - left || draw(2));

        if (forward)
            for (int32_t l = 0; l < layers; l++)
                add_products(&p, begun, l, EK_WAVE_FORWARD);
        begun += forward;
        if (forward && trains)
            continue;
        left--;
        for (int32_t l = layers - 1, i = micros - left - 1; l >= 0 && trains; l--) {
            if (recomputes)
                add_products(&p, i, l, EK_WAVE_FORWARD);
            add_products(&p, i, l, EK_WAVE_BACKWARD);
            add_products(&p, i, l, EK_WAVE_WEIGHT_GRADIENT);
        }
    }
    for (int32_t l = draw(2) * layers - 1; l >= 0; l--)
        add_products(&p, MICROS_MAX, l, EK_WAVE_FORWARD);
    return p;
}

/* Half of the experts have rows often, the others seldom. */
static void draw_rows(const ek_model *m)
{
    for (int i = 0; i <= MICROS_MAX; i++)
        for (int64_t l = 0; l < m->spec.layers; l++)
            for (int64_t e = 0; e < m->spec.experts; e++)
                offsets[i][l][e + 1] = offsets[i][l][e] + (draw(e % 2 ? 3 : 8) == 0);
}

/* Plans and builds a graph of a drawn kind. */
static void build_graph(ek_model *m, ek_graph *g)
{
    int kind = draw(4); /* 0: pending updates alone; 1: an evaluation; else a step */
    products p = draw_products(m, kind > 1);

    ek_graph_reset(g);
    draw_rows(m);
    if (kind == 0) {
        CHECK(ek_offload_build_flush(m, g) == EK_OK);
        if (draw(2))
            ek_offload_forget(m);
        return;
    }
    ek_offload_begin_plan(m);
    for (int i = 0; i < p.n; i++)
        CHECK(ek_offload_plan_layer(m, p.layer[i], p.chunk[i], p.use[i]) == EK_OK);
    ek_offload_end_plan(m, g);
    for (int i = 0; i < p.n; i++)
        build_layer(m, g, p.micro[i], p.layer[i], p.chunk[i], p.use[i]);
    ek_offload_build_finish(m, g, -1);
    CHECK(ek_graph_check(g) == EK_OK);
    CHECK_INT(m->offload->plan.used, m->offload->plan.n_uses);
}

static world first_world(const ek_model *m)
{
    world w = {0};

    for (int32_t r = 0; r < m->offload->n; r++)
        for (int i = 0; i < EK_PARTS; i++)
            w.file[r][i] = (content){r, 0};
    for (int32_t e = 0; e < RECORDS_MAX; e++) {
        for (int i = 0; i < EK_PARTS; i++)
            w.entry[e].part[i].record = NOTHING;
        w.entry[e].whole.record = NOTHING;
    }
    for (int i = 0; i < EK_WHOLE_GRADIENTS; i++)
        w.whole_gradients[i].record = NOTHING;
    for (int32_t f = 0; f < FORMS_MAX; f++)
        w.form[f].of.record = NOTHING;
    return w;
}

static ek_model *draw_model(ek_kernels *k, ek_mesh *mesh)
{
    ek_offload_config o = {
        .dir = "/nonexistent", .entries = 3 + draw(8), .forms = draw(40), .gradients = draw(2)};
    int one = draw(6) == 0; /* record alone */
    ek_model_config mc = {.trained = 1,
                          .bucket_bytes = draw(2) && !one ? 1 : 5000,
                          .offload = &o,
                          .never_touched = 1};
    ek_model_spec spec;
    ek_model *m;

    CHECK(ek_model_preset("tiny", &spec) == EK_OK);
    spec.vocab = 11;
    spec.eos_id = -1;
    spec.hidden = spec.ff = 8;
    spec.heads = spec.kv_heads = 1;
    spec.head_dim = 8;
    spec.layers = one ? 1 : 1 + draw(LAYERS_MAX);
    spec.experts = one ? 2 : 2 + draw(SLOTS_MAX - 2);
    spec.top_k = 1;
    if (ek_model_create(&spec, k, &mc, &m) < 0) {
        EK_T_FAIL("no model: %s", ek_err_text());
        return NULL;
    }
    *mesh = *m->cfg.mesh;
    mesh->ep += draw(2); /* its weight gradients are uses of their own */
    m->cfg.mesh = mesh;
    m->cfg.zero = draw(3);
    for (int32_t i = 0, several = draw(2); i < m->buckets->n; i++) {
        m->buckets->bucket[i].size = 1 + several;
        m->buckets->bucket[i].sharded = several && m->cfg.zero > 0;
    }
    CHECK(m->offload->n <= RECORDS_MAX);
    return m;
}

static void check_plan(ek_kernels *k, int plan)
{
    ek_mesh mesh;
    ek_model *m = draw_model(k, &mesh);
    static run_state before;
    world w = {0}, left;
    ek_graph g;
    char text[200];

    if (m == NULL)
        return;
    w = left = first_world(m);
    ek_graph_init(&g);
    for (int i = 0; i < GRAPHS && ek_t.failed == 0; i++) {
        build_graph(m, &g);
        snprintf(text, sizeof(text),
                 "case %d, graph %d: %d records, of which %d rest, %d entries, gradients on disk "
                 "%d, ep %d, ranks of a bucket %d, zero %d",
                 plan, i, (int)m->offload->n, (int)m->offload->plan.resting,
                 (int)m->offload->cfg.entries, m->offload->cfg.gradients, mesh.ep,
                 m->offload->records[0].bucket->size, m->cfg.zero);
        copy_state(m, &before, 0);
        for (int j = 0; j < ORDERS; j++) {
            copy_state(m, &before, 1);
            left = run_order(m, &g, &w, text);
        }
        w = left;
        rested += m->offload->plan.resting;
        if (m->offload->plan.trains) {
            ek_offload_set_pending(m);
            w.steps++;
        }
    }
    for (int32_t r = 0; r < m->offload->n && ek_t.failed == 0; r++)
        for (int i = 0; i < EK_PARTS - 1; i++)
            CHECK_INT(w.file[r][i].version, w.updates[r]);
    ek_graph_fini(&g);
    ek_model_destroy(&m);
}

static void check_mode(ek_mode mode, uint64_t of)
{
    ek_kernels *k;

    CHECK(ek_kernels_create(mode, EK_ISA_REF, 1, &k) == EK_OK);
    seed = of;
    for (int i = 0; i < PLANS && ek_t.failed == 0; i++)
        check_plan(k, i);
    CHECK(rested > PLANS / 2 && reduced > PLANS);
    ek_kernels_destroy(&k);
}

static void masters_that_products_read(void)
{
    check_mode(EK_MODE_FP64, 1);
}

static void masters_that_are_packed(void)
{
    check_mode(EK_MODE_BF16, 2);
}

static const ek_case cases[] = {
    EK_CASE(masters_that_products_read),
    EK_CASE(masters_that_are_packed),
};

EK_TEST_MAIN(cases)
