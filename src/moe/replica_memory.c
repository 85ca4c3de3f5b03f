/* Where the weights and gradients of replicas lie. */
#include "moe/replica_memory.h"

/* --- sizes ------------------------------------------------------------------------------------ */

static int32_t count_slots(const ek_model_spec *spec, const ek_mesh *mesh, ek_replica_slots slots)
{
    return (int32_t)((spec->experts + mesh->ep - 1) / mesh->ep) + slots.spare;
}

/* Slices in a rank's slots that are not persistent; -1: there can be none.  Of a persistent copy
 * the rank has one. */
static int32_t transient_slices(const ek_model_spec *spec, const ek_mesh *mesh,
                                ek_replica_slots slots, int members)
{
    int64_t all = (int64_t)count_slots(spec, mesh, slots) * members;
    int64_t kept = slots.transient >= 0 ? count_slots(spec, mesh, slots) - slots.transient
                                        : ek_range_length(spec->experts, mesh->ep, mesh->ep_rank);

    return slots.transient == 0 && all == kept ? -1 : (int32_t)(all - kept);
}

int64_t ek_replica_weight_bytes(const ek_kernels *k, int64_t out, int64_t in, int backward)
{
    size_t packed = k->packed_bytes(k, out, in, backward ? EK_PACKED_BACKWARD : EK_PACKED_FORWARD);

    return packed > 0 ? (int64_t)packed : out * in * (int64_t)ek_dtype_size(k->real);
}

/* --- memory ----------------------------------------------------------------------------------- */

/* Packed weights of the widest slice, for the forms of one pass or of both. */
static ek_replica_weights reserve_weights(ek_arena *a, const ek_kernels *k,
                                          const ek_model_spec *spec, const ek_mesh *mesh,
                                          int forward, int backward)
{
    int64_t d = spec->hidden, f = ek_range_length(spec->ff, mesh->etp, 0), up = 0, down = 0;

    for (int pass = !forward; pass <= backward; pass++) {
        int64_t u = ek_replica_weight_bytes(k, 2 * f, d, pass),
                v = ek_replica_weight_bytes(k, d, f, pass);

        up = u > up ? u : up;
        down = v > down ? v : down;
    }
    return (ek_replica_weights){ek_arena_alloc(a, up, 1), ek_arena_alloc(a, down, 1)};
}

ek_replicas *ek_replicas_reserve(ek_arena *a, const ek_kernels *k, const ek_model_spec *spec,
                                 const ek_mesh *mesh, ek_replica_slots slots, int members, int sets,
                                 int training)
{
    ek_arena *host = ek_arena_host(a);
    ek_replicas *r = ek_arena_alloc(host, 1, sizeof(*r)), measured;
    ek_replicas *at = r != NULL ? r : &measured;
    int64_t d = spec->hidden, f = ek_range_length(spec->ff, mesh->etp, 0); /* the widest */
    int each = sets == EK_REPLICA_SETS_EACH, shared = !each ? sets : k->repack != NULL;
    size_t real = ek_dtype_size(k->real);

    at->n = transient_slices(spec, mesh, slots, members);
    at->first = slots.transient >= 0 ? count_slots(spec, mesh, slots) - slots.transient : -1;
    at->sets = sets;
    at->calls = 0;
    at->number = ek_arena_alloc(host, spec->experts, sizeof(*at->number));
    at->ranks = ek_arena_alloc(host, (int64_t)mesh->ep * mesh->etp, sizeof(*at->ranks));
    at->order = ek_arena_alloc(host, 2 * (int64_t)mesh->ep, sizeof(*at->order));
    at->slot = ek_arena_alloc(host, at->n > 0 ? at->n : 0, sizeof(*at->slot));
    for (int32_t i = 0; i < at->n; i++) {
        ek_replica none, *slot = at->slot != NULL ? &at->slot[i] : &none;

        for (int set = 0; set < shared; set++)
            slot->set[set] = reserve_weights(a, k, spec, mesh, !each, training);
        for (int buffer = 0; buffer < 2 && training; buffer++) {
            slot->up_grad[buffer] = ek_arena_alloc(a, 2 * f * d, real);
            slot->down_grad[buffer] = ek_arena_alloc(a, d * f, real);
        }
    }
    return r;
}

void ek_replicas_reserve_layer(ek_moe *m, ek_arena *a, ek_replica_slots slots, int act_slots)
{
    int32_t n = transient_slices(m->spec, m->mesh, slots, 1);

    n = n > 0 ? n * act_slots : 0;
    m->replica_weights = ek_arena_alloc(ek_arena_host(a), n, sizeof(*m->replica_weights));
    for (int32_t i = 0; i < n; i++) {
        ek_replica_weights w = reserve_weights(a, m->k, m->spec, m->mesh, 1, 0);

        if (m->replica_weights != NULL)
            m->replica_weights[i] = w;
    }
}

/* --- contents of a slot ----------------------------------------------------------------------- */

int ek_replicas_gradient_buffer(const ek_moe *m)
{
    return m->w->turn % 2;
}

int ek_replicas_overlap(const ek_moe *m)
{
    return m->scratch->replicas != NULL && m->scratch->replicas->sets != 1;
}

int ek_replicas_are_kept(const ek_moe *m)
{
    return m->scratch->replicas != NULL && m->scratch->replicas->sets == EK_REPLICA_SETS_EACH;
}

int ek_replicas_own_slice(const ek_moe *m)
{
    return m->mesh->etp_rank % m->x.members;
}

/* The memory of a transient slice in one of this rank's slots. */
static int32_t memory_of(const ek_moe *m, int32_t slot, int slice)
{
    const int32_t *persistent = m->w->placement.expert_of + m->x.first_slot;
    int32_t i = slot * m->x.members + slice, first = m->scratch->replicas->first;

    for (int32_t s = 0; s < slot; s++)
        i -= first >= 0 ? s < first : persistent[s] >= 0;
    return i - (persistent[slot] >= 0 && slice > ek_replicas_own_slice(m));
}

/* Whether this rank has a persistent copy of an expert. */
static int is_persistent_here(const ek_moe *m, int32_t expert)
{
    return ek_slot_find(m->w->placement.expert_of + m->x.first_slot, m->x.slots, expert) >= 0;
}

const int32_t *ek_moe_experts_held(const ek_moe *m, const ek_op *op)
{
    const int32_t *all =
        ek_moe_is_distributed(m) ? ek_moe_route_of(m, op)->expert_of : m->w->placement.expert_of;

    return all + m->x.first_slot;
}

int32_t ek_replicas_find(const ek_moe *m, const int32_t *held, int32_t slot, int slice)
{
    if (slice == ek_replicas_own_slice(m) && is_persistent_here(m, held[slot]))
        return -1;
    return memory_of(m, ek_slot_find(held, slot + 1, held[slot]), slice);
}

/* The packed weights of transient slice i for a pass. */
static ek_replica_weights *weights_of(const ek_moe *m, int32_t micro, int32_t i, int backward)
{
    const ek_replicas *r = m->scratch->replicas;
    const ek_op op = {.micro = micro};

    if (r->sets == EK_REPLICA_SETS_EACH && !(backward && m->k->repack != NULL))
        return &m->replica_weights[ek_moe_act_slot(m, &op) * r->n + i];
    return &r->slot[i].set[r->sets == 2 ? (m->w->turn + (backward != 0)) % 2 : 0];
}

int ek_slot_weights_of(const ek_moe *m, int32_t micro, const int32_t *held, int32_t slot, int slice,
                       int backward, ek_slot_weights *out)
{
    int32_t e = held[slot], i;
    int buffer = ek_replicas_gradient_buffer(m);
    const ek_replica_weights *w;
    const ek_replica *r;

    if (e < 0)
        return 0;
    i = ek_replicas_find(m, held, slot, slice);
    if (i < 0) {
        const ek_weight *up = &m->w->up[e], *down = &m->w->down[e];

        *out = (ek_slot_weights){backward ? up->backward : up->forward,
                                 backward ? down->backward : down->forward, up->g, down->g};
        return 1;
    }
    w = weights_of(m, micro, i, backward);
    r = &m->scratch->replicas->slot[i];
    *out = (ek_slot_weights){w->up, w->down, r->up_grad[buffer], r->down_grad[buffer]};
    return 1;
}

/* --- the form for backward -------------------------------------------------------------------- */

static int64_t rows_of(const ek_moe *m, const ek_op *op, int32_t slot)
{
    const ek_moe_activations *kept = ek_moe_activations_of(m, op);
    int64_t n = 0;

    for (int c = 0; c < m->x.chunks; c++)
        n += ek_moe_offset(m, kept, c)[slot + 1] - ek_moe_offset(m, kept, c)[slot];
    return n;
}

/* Replicas without rows are not read. */
static ek_status op_pack(void *self, const ek_op *op)
{
    const ek_moe *m = self;
    const int32_t *held = ek_moe_experts_held(m, op);
    int64_t d = m->spec->hidden, f = m->w->ff;

    for (int32_t s = 0; s < m->x.slots; s++) {
        const ek_replica_weights *from, *to;
        int32_t i = held[s] >= 0 && rows_of(m, op, s) > 0 ? ek_replicas_find(m, held, s, 0) : -1;

        if (i < 0)
            continue;
        from = weights_of(m, op->micro, i, 0);
        to = weights_of(m, op->micro, i, 1);
        EK_TRY(m->k->repack(m->k, 2 * f, d, from->up, to->up));
        EK_TRY(m->k->repack(m->k, d, f, from->down, to->down));
    }
    return EK_OK;
}

int32_t ek_replicas_build_pack(const ek_moe_builder *b, double slices, int32_t dep)
{
    const ek_moe *m = b->m;
    double elements = 3 * slices * (double)(m->spec->hidden * m->w->ff);

    if (m->k->repack == NULL)
        return dep;
    return ek_moe_add(b, EK_OP_PACK_REPLICAS, op_pack, -1, ek_work_of_rows(elements, 1),
                      2 * elements * (double)ek_dtype_size(m->k->comp), dep);
}
