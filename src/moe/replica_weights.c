/* The ops that fetch the weights of replicas and reduce their gradients. */
#include "moe/replica_weights.h"

#include "exec/net.h"
#include "moe/routing_plan.h"
#include "moe/serving_copies.h"
#include "placement/passing.h"

/* Kinds of flights; a layer has at most one of each in flight.  The first four are of transient
 * replicas, the others of persistent ones. */
enum { FETCH_FORWARD, FETCH_LATE, FETCH_BACKWARD, REDUCE, SHARE_REDUCE, SHARE_BROADCAST, FLIGHTS };

ek_status ek_replicas_check(const ek_mesh *mesh, int64_t spare_slots)
{
    EK_REQUIRE(mesh->ep * spare_slots <= EK_COMM_TAGS / 8, EK_EINVAL,
               "--spare-slots %lld on %d ranks are more than %d replicas", (long long)spare_slots,
               mesh->ep, EK_COMM_TAGS / 8);
    return EK_OK;
}

void ek_replicas_reserve_flights(ek_moe *m, ek_arena *a)
{
    if (m->w->waves != NULL)
        m->wave_flights = ek_arena_alloc(a, m->w->waves->most, sizeof(*m->wave_flights));
    m->flights = ek_arena_alloc(a, FLIGHTS, sizeof(*m->flights));
    for (int i = 0; i < FLIGHTS; i++) {
        ek_coll **coll = ek_arena_alloc(a, 2 * (int64_t)m->x.slots * m->x.shards, sizeof(*coll));

        if (m->flights != NULL)
            m->flights[i].coll = coll;
    }
}

void ek_replicas_begin_graph(ek_moe *m)
{
    ek_replicas *r = m->scratch->replicas;

    if (r != NULL)
        r->cleared[0] = r->cleared[1] = -1;
}

double ek_moe_replica_bytes(const ek_moe *m)
{
    const ek_kernels *k = m->k;
    int64_t d = m->spec->hidden, f = m->w->ff, weights[2], bytes;

    for (int backward = 0; backward < 2; backward++)
        weights[backward] = ek_replica_weight_bytes(k, 2 * f, d, backward) +
                            ek_replica_weight_bytes(k, d, f, backward);
    bytes = weights[0] + (ek_replicas_are_kept(m) ? 0 : weights[1]) +
            3 * f * d * (int64_t)ek_dtype_size(k->real);
    /* and those of persistent ones: gradients reduced and sent back */
    return (double)(m->stats.slices * bytes) + (double)(m->stats.unused * weights[0]) +
           (double)(m->stats.shared * m->mesh->etp * 3 * f * d) * (double)ek_dtype_size(k->real);
}

/* --- ranks of an expert's messages ------------------------------------------------------------ */

/* A route within this rank's expert-parallel group. */
typedef struct {
    ek_moe *m;
    const int32_t *expert_of; /* [ep * slots] */
    const int32_t *kept;      /* [ep * slots], persistent, if the messages are those of transient
                                 replicas; NULL: of persistent ones */
    const int32_t *primary;   /* [experts], slot among all groups */
    int sums;                 /* of persistent copies: gradients are summed, not distributed */
    int32_t slots, first;     /* slots of a rank; first slot of the group */
    int32_t micro;            /* of whose replicas the messages are */
} group_route;

static group_route group_route_of(ek_moe *m, const ek_op *op, int kind)
{
    int32_t first = m->mesh->edp_rank * m->mesh->ep * m->x.slots;
    const int32_t *kept = m->w->placement.expert_of + first;
    const ek_moe_route *route = ek_moe_route_of(m, op);
    const int32_t *held = kind == FETCH_LATE && route->sent ? route->late_of : route->expert_of;
    int transient = kind <= REDUCE;

    return (group_route){m,
                         transient ? held + first : kept,
                         transient ? kept : NULL,
                         m->x.serves + (int64_t)m->mesh->edp_rank * m->x.experts,
                         kind == SHARE_REDUCE,
                         m->x.slots,
                         first,
                         op->micro};
}

static int32_t primary_rank(const group_route *r, int32_t expert)
{
    return (r->primary[expert] - r->first) / r->slots;
}

/* The expert rank from which a rank that holds an expert gets what it lacks of it: itself if it has
 * a persistent copy, of which its shards gather each other's slices; else the primary's. */
static int32_t source_rank(const group_route *r, int32_t expert, int32_t rank)
{
    return r->kept != NULL && ek_slot_find(r->kept + rank * r->slots, r->slots, expert) >= 0
               ? rank
               : primary_rank(r, expert);
}

/* Whether a rank that holds an expert takes part in its messages: where no slices are gathered,
 * persistent replicas neither fetch nor send anything; and copies that served no rows have nothing
 * to add to the sum of gradients. */
static int takes_part(const group_route *r, int32_t expert, int32_t rank)
{
    if (r->kept == NULL)
        return !r->sums || ek_serving_copies_find(r->m, r->m->mesh->edp_rank, expert, rank);
    return r->m->x.members > 1 || source_rank(r, expert, rank) == primary_rank(r, expert);
}

enum { ALL_WAVES = -1 };

/* The wave in which an expert's weights are in its primary rank's memory. */
static int32_t wave_of(const group_route *r, int32_t expert)
{
    return (r->primary[expert] - r->first) % r->slots / r->m->w->waves->each;
}

/* Numbers the experts whose gradients are summed, which several copies have served, or of which the
 * sum is distributed.  Returns how many there are. */
static int32_t number_copies(const group_route *r, ek_replicas *own)
{
    int32_t n = 0;

    ek_serving_copies_count(r->m, r->m->mesh->edp_rank);
    for (int32_t e = 0; e < r->m->x.experts; e++) {
        int32_t serving = r->m->serving[e];

        own->number[e] = (r->sums ? serving > 1 : serving > 0 && r->m->copies[e] > 1) ? n++ : -1;
    }
    return n;
}

/* Numbers the experts that are sent with a wave: those with replicas, or all where slices are
 * gathered.  Returns how many there are. */
static int32_t number_replicas(const group_route *r, ek_replicas *own, int32_t wave)
{
    int all = r->m->x.members > 1;
    int32_t n = all ? r->m->x.experts : 0;

    for (int32_t e = 0; e < r->m->x.experts; e++)
        own->number[e] = all ? e : -1;
    for (int32_t s = 0; s < r->m->mesh->ep * r->slots; s++) {
        int32_t e = r->expert_of[s];

        if (e >= 0 && own->number[e] < 0 && primary_rank(r, e) != s / r->slots &&
            takes_part(r, e, s / r->slots) && (wave == ALL_WAVES || wave_of(r, e) == wave))
            own->number[e] = n++;
    }
    return n;
}

static int32_t number_experts(const group_route *r, ek_replicas *own, int32_t wave)
{
    if (r->kept == NULL)
        return number_copies(r, own);
    return number_replicas(r, own, wave);
}

/* The rank of the stage of an expert rank of this rank's group, and a shard of it. */
static int stage_rank(const ek_mesh *mesh, int32_t rank, int shard)
{
    return (mesh->edp_rank * mesh->ep + rank) * mesh->etp + shard;
}

/* The ranks of the stage whose persistent copies of a slice are summed, or receive the sum: that
 * which gets it comes first. */
static int list_copies(const group_route *r, int32_t expert, int slice, int *ranks)
{
    const ek_mesh *mesh = r->m->mesh;
    int shard = mesh->etp_rank / r->m->x.members * r->m->x.members + slice, n = 0;
    int32_t root = ek_serving_copies_root(r->m, mesh->edp_rank, expert);

    ranks[n++] = stage_rank(mesh, root, shard);
    for (int32_t rank = 0; rank < mesh->ep; rank++)
        if (rank != root && ek_slot_find(r->expert_of + rank * r->slots, r->slots, expert) >= 0 &&
            takes_part(r, expert, rank))
            ranks[n++] = stage_rank(mesh, rank, shard);
    return n;
}

/* The ranks of the stage whose messages for a slice of this rank's group this rank takes part in:
 * those that compute with the slice and have the same source, which comes first; the others in this
 * order (placement/passing.h). */
static int list_ranks(const group_route *r, const int32_t *order, int32_t expert, int slice,
                      int *ranks)
{
    const ek_mesh *mesh = r->m->mesh;
    int members = r->m->x.members, first = mesh->etp_rank / members * members;
    int32_t source = source_rank(r, expert, mesh->ep_rank);
    int n = 0;

    ranks[n++] = stage_rank(mesh, source, first + slice);
    for (int32_t at = 0; at < mesh->ep; at++) {
        int32_t rank = order[at];

        if (ek_slot_find(r->expert_of + rank * r->slots, r->slots, expert) < 0 ||
            source_rank(r, expert, rank) != source)
            continue;
        for (int i = 0; i < members; i++)
            if (rank != source || i != slice)
                ranks[n++] = stage_rank(mesh, rank, first + i);
    }
    return n;
}

/* --- ops of the network lane ------------------------------------------------------------------ */

/* Messages of persistent copies start in the order of a lane of their own, so that ranks would not
 * number those of both lanes alike; they have the upper half of all tags. */
enum { TAGS = EK_COMM_TAGS / 2 };

static int tag_of(int kind, unsigned call)
{
    return (int)(call % TAGS) + (kind > REDUCE ? TAGS : 0);
}

/* The messages for one slice of an expert. */
typedef struct {
    ek_moe *m;
    ek_replica_flight *flight;
    const int *ranks;
    int n_ranks, kind;
    int tag[2]; /* of the two matrices */
    int64_t f;  /* width of the slice */
    ek_slot_weights w;
} transfer;

/* Sends both matrices from the primary to all ranks that hold the expert. */
static ek_status multicast_matrices(const transfer *t, void *up, int64_t up_bytes, void *down,
                                    int64_t down_bytes)
{
    ek_comm *stage = t->m->mesh->stage;
    ek_coll **coll = t->flight->coll + t->flight->n;

    EK_TRY(ek_comm_multicast(stage, up, up_bytes, t->ranks, t->n_ranks, t->tag[0], &coll[0]));
    t->flight->n++;
    EK_TRY(ek_comm_multicast(stage, down, down_bytes, t->ranks, t->n_ranks, t->tag[1], &coll[1]));
    t->flight->n++;
    return EK_OK;
}

static ek_status send_weights(const transfer *t)
{
    const ek_moe *m = t->m;
    int64_t d = m->spec->hidden;
    int backward = t->kind == FETCH_BACKWARD;

    return multicast_matrices(t, t->w.up, ek_replica_weight_bytes(m->k, 2 * t->f, d, backward),
                              t->w.down, ek_replica_weight_bytes(m->k, d, t->f, backward));
}

static ek_status share_gradients(const transfer *t)
{
    const ek_moe *m = t->m;
    int64_t size = m->spec->hidden * t->f * (int64_t)ek_dtype_size(m->k->real);

    return multicast_matrices(t, t->w.up_grad, 2 * size, t->w.down_grad, size);
}

static ek_status sum_gradients(const transfer *t)
{
    const ek_moe *m = t->m;
    int64_t d = m->spec->hidden;
    ek_reduce how = m->k->real == EK_F64 ? EK_SUM_F64 : EK_SUM_F32;
    ek_coll **coll = t->flight->coll + t->flight->n;

    EK_TRY(ek_comm_multireduce(m->mesh->stage, t->w.up_grad, 2 * t->f * d, how, t->ranks,
                               t->n_ranks, t->tag[0], &coll[0]));
    t->flight->n++;
    EK_TRY(ek_comm_multireduce(m->mesh->stage, t->w.down_grad, d * t->f, how, t->ranks, t->n_ranks,
                               t->tag[1], &coll[1]));
    t->flight->n++;
    return EK_OK;
}

/* Starts the messages for the slices of the expert in a slot; number: ek_replicas.number of it. */
static ek_status start_slot_messages(const group_route *r, const int32_t *held, int32_t slot,
                                     int32_t number, int kind, ek_replica_flight *flight)
{
    static ek_status (*const begin[])(const transfer *t) = {
        [FETCH_FORWARD] = send_weights,  [FETCH_LATE] = send_weights,
        [FETCH_BACKWARD] = send_weights, [REDUCE] = sum_gradients,
        [SHARE_REDUCE] = sum_gradients,  [SHARE_BROADCAST] = share_gradients};
    ek_moe *m = r->m;
    ek_replicas *own = m->scratch->replicas;
    int members = m->x.members;

    for (int i = 0; i < members; i++) {
        unsigned call = flight->calls + 2 * (unsigned)(number * members + i);
        transfer t = {.m = m,
                      .flight = flight,
                      .ranks = own->ranks,
                      .kind = kind,
                      .tag = {tag_of(kind, call), tag_of(kind, call + 1)},
                      .f = ek_slice_width(m, i)};

        if (r->kept == NULL && i != ek_replicas_own_slice(m))
            continue; /* of persistent copies a shard has one slice */
        t.n_ranks = r->kept == NULL ? list_copies(r, held[slot], i, own->ranks)
                                    : list_ranks(r, own->order, held[slot], i, own->ranks);
        ek_slot_weights_of(m, r->micro, held, slot, i, kind == FETCH_BACKWARD, &t.w);
        EK_TRY(begin[kind](&t));
    }
    return EK_OK;
}

/* Takes the tags of the messages of a wave, in the order of ops, which is the same on all ranks. */
static void take_tags(ek_moe *m, const ek_op *op, int kind, int32_t wave, ek_replica_flight *flight)
{
    ek_replicas *own = m->scratch->replicas;
    group_route r = group_route_of(m, op, kind);
    unsigned *calls = kind > REDUCE ? &own->sums : &own->calls;

    flight->n = 0;
    flight->calls = *calls;
    *calls += 2 * (unsigned)(number_experts(&r, own, wave) * m->x.members);
}

/* Starts the messages of a wave for all experts that this rank and others hold. */
static ek_status start_messages(ek_moe *m, const ek_op *op, int kind, int32_t wave,
                                ek_replica_flight *flight)
{
    ek_replicas *own = m->scratch->replicas;
    group_route r = group_route_of(m, op, kind);
    const int32_t *held = r.expert_of + m->mesh->ep_rank * m->x.slots;

    (void)number_experts(&r, own, wave);
    ek_passing_order(r.expert_of, r.primary, m->mesh->ep, r.slots, r.first, own->order);
    for (int32_t s = 0; s < m->x.slots; s++) {
        int32_t e = held[s], number = e >= 0 ? own->number[e] : -1;

        if (number < 0 || !takes_part(&r, e, m->mesh->ep_rank))
            continue;
        own->number[e] = -1; /* once, even if two slots hold it */
        EK_TRY(start_slot_messages(&r, held, s, number, kind, flight));
    }
    return EK_OK;
}

static ek_status test_messages(ek_replica_flight *f)
{
    return ek_net_test_all(f->coll, f->n);
}

/* Whether this step may have transient replicas or gathered slices: there is memory for them, and
 * the planner leaves slots. */
static int has_replicas(const ek_moe *m)
{
    const ek_planner *p = m->planning->planner;

    return m->scratch->replicas != NULL && m->scratch->replicas->n >= 0 &&
           (p == NULL || p->plan_transient != NULL || m->x.members > 1) &&
           (m->cfg->planner != NULL || m->x.members > 1 || m->x.local);
}

/* Where the messages of an op are in flight; those of all waves of a pass lie one after the other,
 * as the ops start in that order. */
static ek_replica_flight *flight_of(const ek_moe *m, const ek_op *op, int kind)
{
    ek_replica_flight *f;

    if (op->part < 0)
        return &m->flights[kind];
    f = &m->wave_flights[op->part];
    f->coll = op->part == 0 ? m->flights[kind].coll : f[-1].coll + f[-1].n;
    return f;
}

/* The wave of an op, whose part is the wave's place in the order of its pass; -1: of all. */
static int32_t wave_of_op(const ek_moe *m, const ek_op *op, int kind)
{
    if (op->part < 0)
        return ALL_WAVES;
    return kind == FETCH_FORWARD ? op->part : m->w->waves->most - 1 - op->part;
}

static ek_status exchange_replicas(ek_moe *m, const ek_op *op, int kind)
{
    ek_replica_flight *f = *op->state;
    int32_t wave = wave_of_op(m, op, kind);

    if (f == NULL) {
        *op->state = f = flight_of(m, op, kind);
        f->waiting = 1;
        take_tags(m, op, kind, wave, f);
    }
    if (f->waiting && kind == FETCH_LATE && ek_moe_route_of(m, op)->overwrites) {
        ek_status before = test_messages(&m->flights[FETCH_FORWARD]);

        if (before != EK_OK)
            return before;
    }
    if (f->waiting) {
        f->waiting = 0;
        EK_TRY(start_messages(m, op, kind, wave, f));
    }
    return test_messages(f);
}

ek_status ek_replicas_fetch_forward(void *self, const ek_op *op)
{
    return exchange_replicas(self, op, FETCH_FORWARD);
}

/* After the gate: all replicas, or those that were not sent before it. */
static ek_status op_fetch_late(void *self, const ek_op *op)
{
    return exchange_replicas(self, op, FETCH_LATE);
}

static ek_status op_fetch_backward(void *self, const ek_op *op)
{
    return exchange_replicas(self, op, FETCH_BACKWARD);
}

static ek_status op_reduce(void *self, const ek_op *op)
{
    return exchange_replicas(self, op, REDUCE);
}

static ek_status op_share_reduce(void *self, const ek_op *op)
{
    ek_moe *m = self;

    if (*op->state == NULL)
        m->stats.shared += ek_serving_copies_messages(m);
    return exchange_replicas(self, op, SHARE_REDUCE);
}

static ek_status op_share(void *self, const ek_op *op)
{
    return exchange_replicas(self, op, SHARE_BROADCAST);
}

/* Describes the first message that is not complete, of these or of those that they wait for. */
static void describe(void *self, const ek_op *op, char *text, size_t cap)
{
    const ek_moe *m = self;
    const ek_replica_flight *f = *op->state;

    if (f != NULL && f->waiting)
        f = &m->flights[FETCH_FORWARD];
    if (f != NULL)
        ek_net_describe_all(f->coll, f->n, text, cap);
}

/* --- ops of the compute lane ------------------------------------------------------------------ */

static ek_status op_clear(void *self, const ek_op *op)
{
    ek_moe *m = self;
    const int32_t *held = ek_moe_experts_held(m, op);
    size_t column = (size_t)m->spec->hidden * ek_dtype_size(m->k->real);
    int buffer = ek_replicas_gradient_buffer(m);

    for (int32_t s = 0; s < m->x.slots; s++)
        for (int i = 0; i < m->x.members; i++) {
            int32_t at = held[s] >= 0 ? ek_replicas_find(m, held, s, i) : -1;
            const ek_replica *r;

            if (at < 0)
                continue;
            r = &m->scratch->replicas->slot[at];
            memset(r->up_grad[buffer], 0, 2 * column * (size_t)ek_slice_width(m, i));
            memset(r->down_grad[buffer], 0, column * (size_t)ek_slice_width(m, i));
        }
    return EK_OK;
}

/* --- builders --------------------------------------------------------------------------------- */

/* Slices that a rank may fetch in this step. */
static double slices_of(const ek_moe *m)
{
    int64_t here = ek_range_length(m->spec->experts, m->mesh->ep, m->mesh->ep_rank);

    return (double)((int64_t)m->x.slots * m->x.members -
                    (m->scratch->replicas->first >= 0 ? m->scratch->replicas->first : here));
}

/* Bytes of the gradients of the widest slice of an expert. */
static double gradient_bytes(const ek_moe *m)
{
    int64_t f = ek_range_length(m->spec->ff, m->mesh->etp, 0);

    return 3.0 * (double)(m->spec->hidden * f) * (double)ek_dtype_size(m->k->real);
}

/* Bytes of the weights of the widest slice. */
static double slice_bytes(const ek_moe *m, int backward)
{
    int64_t d = m->spec->hidden, f = ek_range_length(m->spec->ff, m->mesh->etp, 0);

    return (double)(ek_replica_weight_bytes(m->k, 2 * f, d, backward) +
                    ek_replica_weight_bytes(m->k, d, f, backward));
}

static int32_t add_net(const ek_moe_builder *b, ek_op_kind kind, ek_collective collective,
                       ek_op_fn run_op, int32_t part, double bytes, int32_t dep, int32_t dep2)
{
    const ek_mesh *mesh = b->m->mesh;
    size_t element = collective == EK_COLLECTIVE_MULTIREDUCES ? ek_dtype_size(b->m->k->real) : 1;
    ek_work work = ek_net_work_of(mesh, EK_MESH_STAGE, collective, bytes, element);
    int32_t id;

    work.net.span = mesh->ep * mesh->etp; /* replicas are of the expert-parallel group */
    id = ek_moe_add_net(b, kind, run_op, part, work, dep, dep2);

    if (id >= 0)
        b->g->ops[id].describe = describe;
    return id;
}

int32_t ek_replicas_add_prefetch(const ek_moe_builder *b, ek_op_fn run, int32_t dep)
{
    return add_net(b, EK_OP_EARLY_REPLICAS, EK_COLLECTIVE_MULTICASTS, run, -1,
                   slices_of(b->m) * slice_bytes(b->m, 0), dep, -1);
}

ek_replica_fetch ek_replicas_build_fetch(const ek_moe_builder *b, int backward, int32_t dep)
{
    int32_t *sent = backward ? &b->m->ids.backward_fetch : &b->m->ids.forward_fetch;
    ek_replica_fetch f = {*sent, -1};

    if (!has_replicas(b->m) || b->m->w->waves != NULL ||
        (ek_replicas_are_kept(b->m) && (backward || b->recompute)))
        return (ek_replica_fetch){-1, -1};
    *sent = -1;
    if (f.before < 0 || (!backward && ek_routing_plan_compares_previous(b->m)))
        f.after = add_net(b, f.before < 0 ? EK_OP_REPLICAS : EK_OP_LATE_REPLICAS,
                          EK_COLLECTIVE_MULTICASTS,
                          backward       ? op_fetch_backward
                          : f.before < 0 ? ek_replicas_fetch_forward
                                         : op_fetch_late,
                          -1, slices_of(b->m) * slice_bytes(b->m, backward), dep, -1);
    return f;
}

int32_t ek_replicas_build_forms(const ek_moe_builder *b, int32_t dep)
{
    if (!has_replicas(b->m) || !ek_replicas_are_kept(b->m))
        return dep;
    return ek_replicas_build_pack(b, slices_of(b->m), dep);
}

int ek_replicas_in_waves(const ek_moe *m)
{
    return m->w->waves != NULL && has_replicas(m);
}

int32_t ek_replicas_of_slots(const ek_moe *m, const ek_op *op, int32_t first, int32_t end)
{
    const int32_t *all, *held;
    int32_t n = 0;

    if (!ek_replicas_in_waves(m))
        return 0;
    all = ek_moe_route_of(m, op)->expert_of + m->mesh->edp_rank * m->mesh->ep * m->x.slots;
    held = ek_moe_experts_held(m, op);
    for (int32_t s = 0; s < m->mesh->ep * m->x.slots; s++)
        n += all[s] >= 0 && s / m->x.slots != m->mesh->ep_rank &&
             ek_slot_find(held + first, end - first, all[s]) >= 0;
    return n;
}

int32_t ek_replicas_build_wave(const ek_moe_builder *b, ek_wave_use use, int32_t place, int32_t dep,
                               int32_t dep2)
{
    static const ek_op_fn run[] = {[EK_WAVE_FORWARD] = ek_replicas_fetch_forward,
                                   [EK_WAVE_BACKWARD] = op_fetch_backward,
                                   [EK_WAVE_WEIGHT_GRADIENT] = op_reduce};
    int reduces = use == EK_WAVE_WEIGHT_GRADIENT;
    double each = reduces ? gradient_bytes(b->m) : slice_bytes(b->m, use == EK_WAVE_BACKWARD);

    return add_net(b, reduces ? EK_OP_REPLICA_GRADIENTS : EK_OP_REPLICAS,
                   reduces ? EK_COLLECTIVE_MULTIREDUCES : EK_COLLECTIVE_MULTICASTS, run[use], place,
                   slices_of(b->m) * each / b->m->w->waves->most, dep, dep2);
}

int32_t ek_replicas_build_clear(const ek_moe_builder *b, int32_t dep)
{
    ek_moe *m = b->m;
    ek_replicas *own = m->scratch->replicas;
    ek_op op = {.kind = EK_OP_CLEAR_REPLICAS,
                .run = op_clear,
                .self = m,
                .lane = EK_LANE_COMPUTE,
                .layer = m->w->layer,
                .micro = b->micro,
                .part = -1,
                .stall_ns = &m->stats.stall_ns};

    if (!has_replicas(m))
        return dep;
    op.bytes = slices_of(m) * gradient_bytes(m);
    op.work = ek_work_of_rows(op.bytes / (double)ek_dtype_size(m->k->real), 1);
    return ek_graph_add(
        b->g, &op, (int32_t[]){dep, m->ids.reduce, own->cleared[ek_replicas_gradient_buffer(m)]},
        3);
}

void ek_replicas_build_reduce(const ek_moe_builder *b, int32_t dep)
{
    ek_moe *m = b->m;

    if (!has_replicas(m) || (m->w->waves != NULL && m->w->waves->gradients))
        return;
    m->ids.reduce = add_net(b, EK_OP_REPLICA_GRADIENTS, EK_COLLECTIVE_MULTIREDUCES, op_reduce, -1,
                            slices_of(m) * gradient_bytes(m), dep, -1);
    m->scratch->replicas->cleared[ek_replicas_gradient_buffer(m)] = m->ids.reduce;
}

/* A network op of the lane of sums, which holds up no other network op.  bytes: the most that it
 * can send. */
static int32_t add_sum(const ek_moe_builder *b, ek_op_kind kind, ek_collective collective,
                       ek_op_fn run_op, double bytes, int32_t dep, int32_t dep2)
{
    int32_t id = add_net(b, kind, collective, run_op, -1, bytes, dep, dep2);

    if (id >= 0)
        b->g->ops[id].lane = EK_LANE_SUMS;
    return id;
}

void ek_moe_build_share(ek_moe *m, ek_graph *g, int32_t micro, int each_micro)
{
    ek_moe_builder b = {.m = m, .g = g, .micro = micro};
    double bytes = 0;
    int32_t sum;

    if (m->persistent == 0)
        return;
    if (each_micro || ek_moe_group_tokens(m, 0) > 0) /* no other micro-batch has more sequences */
        bytes = m->x.slots * gradient_bytes(m);
    if (each_micro)
        ek_serving_copies_assume_all(m);
    /* The primary's has those of the last micro-batch's transient replicas by then. */
    sum = add_sum(&b, EK_OP_REPLICA_GRADIENTS, EK_COLLECTIVE_MULTIREDUCES, op_share_reduce, bytes,
                  m->ids.gradients, m->ids.reduce);
    m->ids.reduce =
        add_sum(&b, EK_OP_SHARE_GRADIENTS, EK_COLLECTIVE_MULTICASTS, op_share, bytes, sum, -1);
}
