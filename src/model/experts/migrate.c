/* Installing a persistent placement of a layer: slots, transfers of expert state, and their ops. */
#include "model/experts/migrate.h"

#include "exec/net.h"
#include "model/layout.h"
#include "model/param_buckets.h"

#include <string.h>

enum { TAG_STATE = 3, MATRICES = 2, MOMENTS = 2 };

int ek_model_can_migrate(const ek_model *m)
{
    return m->cfg.trained && (m->cfg.migrates || m->cfg.zero == 0 || m->cfg.mesh->edp == 1);
}

static ek_moe_weights *experts_of(const ek_migration *mg)
{
    return &mg->m->layers[mg->layer].experts;
}

int ek_migration_buf_idx(const ek_model *m, int32_t layer)
{
    int buf_idx = 0;

    for (int32_t l = 0; l < layer; l++)
        buf_idx ^= ek_model_has_moe_layer(m, l);
    return buf_idx;
}

void *ek_migration_reserve_staging(ek_arena *a, const ek_model *m)
{
    int64_t slots = ek_param_buckets_staging_slots(m);

    /* Expected use: policies that only move primary copies move few experts at once. */
    return ek_arena_alloc_expected(a, slots, m->cfg.persistent_slots ? (slots + 1) / 2 : 0,
                                   ek_param_buckets_staging_bytes(m));
}

/* Groups from and to which masters are sent. */
static int groups_of(const ek_model *m)
{
    return ek_param_buckets_sends_whole_masters(m) ? m->cfg.mesh->edp : 1;
}

void ek_migration_reserve(ek_migration *mg, ek_arena *a, ek_model *m, int32_t layer, void *staging)
{
    const ek_moe_weights *w = &m->layers[layer].experts;
    int64_t slots = w->placement.slots, all = m->cfg.mesh->ep * slots, groups = groups_of(m);
    int64_t received = slots * MATRICES * (groups + MOMENTS);
    int64_t sent = all * MATRICES * (groups + MOMENTS);

    *mg = (ek_migration){.m = m, .layer = layer, .op = -1};
    mg->in = ek_arena_alloc(a, slots, sizeof(*mg->in));
    mg->out = ek_arena_alloc(a, all * groups, sizeof(*mg->out));
    mg->coll = ek_arena_alloc(a, received + sent, sizeof(*mg->coll));
    mg->expert_of = ek_arena_alloc(a, all, sizeof(*mg->expert_of));
    mg->n_sends = ek_arena_alloc(a, m->cfg.mesh->ep, sizeof(*mg->n_sends));
    mg->staging = staging;
}

/* --- the new placement ------------------------------------------------------------------------ */

/* Number of slots with state, of a rank of the expert-parallel group. */
static int32_t persistent_slots(const ek_migration *mg, int32_t rank)
{
    const ek_model *m = mg->m;

    return m->cfg.persistent_slots
               ? ek_model_state_slots(m, experts_of(mg)->placement.slots)
               : (int32_t)ek_range_length(m->spec.experts, m->cfg.mesh->ep, rank);
}

/* Assigns a rank's slots: experts that stay keep theirs, arriving ones take the free ones. */
static ek_status fill_rank(ek_migration *mg, const ek_placement *to, int32_t rank)
{
    int32_t slots = to->slots, n = persistent_slots(mg, rank), free_slot = 0;
    const int32_t *was = experts_of(mg)->placement.expert_of + rank * slots;
    const int32_t *wanted = to->expert_of + rank * slots;
    int32_t *now = mg->expert_of + rank * slots;

    for (int32_t s = 0; s < slots; s++)
        now[s] = was[s] >= 0 && ek_slot_find(wanted, slots, was[s]) >= 0 ? was[s] : -1;
    for (int32_t s = 0; s < slots; s++) {
        if (wanted[s] < 0 || ek_slot_find(now, slots, wanted[s]) >= 0)
            continue;
        while (free_slot < n && now[free_slot] >= 0)
            free_slot++;
        EK_REQUIRE(free_slot < n, EK_EINVAL,
                   "layer %d: expert rank %d has no slot for the state of expert %d",
                   (int)mg->layer, (int)rank, (int)wanted[s]);
        now[free_slot] = wanted[s];
    }
    return EK_OK;
}

/* Stage rank of a place in a group, with the same etp shard as this rank. */
static int stage_rank_of(const ek_migration *mg, int32_t group, int32_t rank)
{
    const ek_mesh *mesh = mg->m->cfg.mesh;

    return (group * mesh->ep + rank) * mesh->etp + mesh->etp_rank;
}

static int same_node(const ek_migration *mg, int32_t group, int32_t a, int32_t b)
{
    const ek_comm *stage = mg->m->cfg.mesh->stage;

    return ek_comm_node(stage, stage_rank_of(mg, group, a)) ==
           ek_comm_node(stage, stage_rank_of(mg, group, b));
}

/* The place in a group that sends an expert's state to place `to`: a near one, then the one with
 * the fewest sends, then the one with the primary copy. */
static int32_t sender_of(const ek_migration *mg, int32_t group, int32_t expert, int32_t to)
{
    const ek_placement *p = &experts_of(mg)->placement;
    int32_t best = p->primary[expert] / p->slots;

    for (int32_t r = 0; r < mg->m->cfg.mesh->ep && mg->m->cfg.persistent_slots; r++) {
        int nearer = same_node(mg, group, r, to) - same_node(mg, group, best, to);

        if (ek_slot_find(p->expert_of + r * p->slots, p->slots, expert) >= 0 &&
            (nearer > 0 || (nearer == 0 && mg->n_sends[r] < mg->n_sends[best])))
            best = r;
    }
    return best;
}

/* Adds the transfer of an expert to a slot of place `to` of a group. */
static void list_move(ek_migration *mg, int32_t group, int32_t expert, int32_t to, int32_t slot)
{
    const ek_placement *p = &experts_of(mg)->placement;
    const ek_mesh *mesh = mg->m->cfg.mesh;
    int32_t me = mesh->ep_rank, from = sender_of(mg, group, expert, to);
    int32_t here = ek_slot_find(p->expert_of + me * p->slots, p->slots, expert);

    mg->n_sends[from]++;
    if (from == me)
        mg->out[mg->n_out++] = (ek_move){expert, here, to, group};
    if (group != mesh->edp_rank)
        return;
    mg->experts_moved++;
    mg->crossed += !same_node(mg, group, from, to);
    if (to == me)
        mg->in[mg->n_in++] = (ek_move){expert, slot, from, group};
}

/* Lists this rank's transfers for a group, in the order of experts. */
static void list_group_moves(ek_migration *mg, int32_t group)
{
    const ek_placement *p = &experts_of(mg)->placement;
    int32_t slots = p->slots;

    memset(mg->n_sends, 0, (size_t)mg->m->cfg.mesh->ep * sizeof(*mg->n_sends));
    for (int32_t e = 0; e < p->experts; e++)
        for (int32_t r = 0; r < mg->m->cfg.mesh->ep; r++) {
            int32_t slot = ek_slot_find(mg->expert_of + r * slots, slots, e);

            if (slot >= 0 && ek_slot_find(p->expert_of + r * slots, slots, e) < 0)
                list_move(mg, group, e, r, slot);
        }
}

/* Lists this rank's transfers. */
static void list_moves(ek_migration *mg)
{
    const ek_placement *p = &experts_of(mg)->placement;
    const ek_mesh *mesh = mg->m->cfg.mesh;

    mg->n_in = mg->n_out = 0;
    mg->experts_moved = mg->crossed = 0;
    mg->changes = 0;
    if (mg->m->cfg.state != NULL) /* slots that are only emptied have to be reported, too */
        mg->changes = memcmp(mg->expert_of, p->expert_of,
                             (size_t)(mesh->ep * p->slots) * sizeof(*p->expert_of)) != 0;
    if (experts_of(mg)->ff ==
        0) /* this rank has no slice, nor have the ranks that it would exchange with */
        return;
    for (int32_t group = 0; group < mesh->edp; group++)
        if (group == mesh->edp_rank || groups_of(mg->m) > 1)
            list_group_moves(mg, group);
    mg->changes |= mg->experts_moved > 0;
}

/* Assigns the memory of a slot to another expert, in the model's weights and parameter list. */
static void reassign_slot(ek_migration *mg, int32_t slot, int32_t was, int32_t now)
{
    ek_moe_weights *w = experts_of(mg);
    ek_weight *up = was >= 0 ? &w->up[was] : &w->empty[2 * slot];
    ek_weight *down = was >= 0 ? &w->down[was] : &w->empty[2 * slot + 1];
    ek_weight *up_now = now >= 0 ? &w->up[now] : &w->empty[2 * slot];
    ek_weight *down_now = now >= 0 ? &w->down[now] : &w->empty[2 * slot + 1];
    ek_param *p = &mg->m->params[w->param_of[slot]];

    *up_now = *up;
    *down_now = *down;
    memset(up, 0, sizeof(*up));
    memset(down, 0, sizeof(*down));
    p[0].w = up_now;
    p[1].w = down_now;
    p[0].expert = p[1].expert = now;
}

/* Marks the weights of this rank's slots that it does not own. */
static void mark_idle_slots(ek_migration *mg)
{
    const ek_moe_weights *w = experts_of(mg);
    int32_t first = mg->m->cfg.mesh->ep_rank * w->placement.slots;

    for (int32_t s = 0; s < w->placement.slots; s++) {
        int32_t e = w->placement.expert_of[first + s], param = w->param_of[s];

        for (int i = 0; i < 2 && param >= 0; i++)
            ek_param_buckets_set_idle(mg->m, param + i,
                                      e < 0 || w->placement.primary[e] != first + s);
    }
}

static void adopt_placement(ek_migration *mg, const ek_placement *to)
{
    const ek_mesh *mesh = mg->m->cfg.mesh;
    ek_moe_weights *w = experts_of(mg);
    ek_placement *p = &w->placement;
    int32_t all = mesh->ep * p->slots, first = mesh->ep_rank * p->slots;

    for (int32_t s = 0; s < p->slots; s++) {
        int32_t was = p->expert_of[first + s], now = mg->expert_of[first + s];

        if (was != now && w->param_of[s] >= 0)
            reassign_slot(mg, s, was, now);
    }
    for (int group = 0; group < mesh->edp; group++)
        memcpy(p->expert_of + group * all, mg->expert_of, (size_t)all * sizeof(*p->expert_of));
    for (int32_t e = 0; e < p->experts; e++) {
        int32_t rank = to->primary[e] / p->slots;

        p->primary[e] =
            rank * p->slots + ek_slot_find(mg->expert_of + rank * p->slots, p->slots, e);
    }
    mark_idle_slots(mg);
}

/* Reorders quotas from the slots of `to` to the slots that the experts were assigned. */
static void move_quotas(const ek_migration *mg, const ek_placement *to, const int64_t *from,
                        int64_t *quota)
{
    int32_t slots = to->slots;

    memset(quota, 0, (size_t)(to->ranks * slots) * sizeof(*quota));
    for (int32_t s = 0; s < to->ranks * slots; s++) {
        int32_t first = s / slots * slots;

        if (to->expert_of[s] >= 0)
            quota[first + ek_slot_find(mg->expert_of + first, slots, to->expert_of[s])] += from[s];
    }
}

ek_status ek_migrate_to(ek_migration *mg, const ek_placement *to, const int64_t *from,
                        int64_t *quota)
{
    for (int32_t r = 0; r < to->ranks; r++)
        EK_TRY(fill_rank(mg, to, r));
    list_moves(mg);
    adopt_placement(mg, to);
    move_quotas(mg, to, from, quota);
    return EK_OK;
}

static void report_held(const ek_migration *mg, int32_t slot, int32_t expert)
{
    const ek_model_memory *state = mg->m->cfg.state;

    if (state != NULL && experts_of(mg)->ff > 0)
        state->holds(state->context, mg->layer, slot, expert);
}

/* Reports the experts in this rank's slots, whose state outlives the process. */
static void report_slots(const ek_migration *mg)
{
    const ek_placement *now = &experts_of(mg)->placement;

    for (int32_t s = 0; s < now->slots; s++)
        if (experts_of(mg)->param_of[s] >= 0)
            report_held(mg, s, now->expert_of[mg->m->cfg.mesh->ep_rank * now->slots + s]);
}

ek_status ek_migrate_assume(ek_migration *mg, const ek_placement *to, const int64_t *from,
                            int64_t *quota)
{
    EK_TRY(ek_migrate_to(mg, to, from, quota));
    mg->n_in = mg->n_out = 0;
    mg->experts_moved = 0;
    mg->changes = 0;
    report_slots(mg);
    return EK_OK;
}

/* --- transfers -------------------------------------------------------------------------------- */

static int64_t real_size(const ek_migration *mg)
{
    return (int64_t)ek_dtype_size(mg->m->k->real);
}

/* The parameters of a slot's two matrices. */
static const ek_param *params_of(const ek_migration *mg, int32_t slot)
{
    return &mg->m->params[experts_of(mg)->param_of[slot]];
}

/* A matrix in a staging entry: its masters, then both moments, of the range that this rank keeps;
 * masters are whole where they come from all groups. */
typedef struct {
    const ek_param_bucket *bucket;
    int64_t masters, kept_first, kept; /* numbers; of the kept range, its first among masters */
    char *at[1 + MOMENTS];
} staged_matrix;

/* The matrix at *at, which is moved to its end. */
static staged_matrix stage_matrix(const ek_migration *mg, const ek_param *p, char **at)
{
    const ek_weight *w = p->w;
    staged_matrix x = {
        .bucket = &mg->m->buckets->bucket[p->bucket], .masters = w->kept, .kept = w->kept};

    if (groups_of(mg->m) > 1) {
        x.masters = ek_weight_elements(w);
        x.kept_first = w->kept_first;
    }
    x.at[0] = *at;
    x.at[1] = x.at[0] + x.masters * real_size(mg);
    x.at[2] = x.at[1] + x.kept * real_size(mg);
    *at = x.at[2] + x.kept * real_size(mg);
    return x;
}

static char *staging_entry(const ek_migration *mg, int32_t i)
{
    return (char *)mg->staging + i * (int64_t)ek_param_buckets_staging_bytes(mg->m);
}

static ek_status recv_numbers(ek_migration *mg, void *to, int64_t n, int peer)
{
    return n == 0 ? EK_OK
                  : ek_comm_recv(mg->m->cfg.mesh->stage, to, n * real_size(mg), peer, TAG_STATE,
                                 &mg->coll[mg->n_coll++]);
}

static ek_status send_numbers(ek_migration *mg, void *from, int64_t n, int peer)
{
    return n == 0 ? EK_OK
                  : ek_comm_send(mg->m->cfg.mesh->stage, from, n * real_size(mg), peer, TAG_STATE,
                                 &mg->coll[mg->n_coll++]);
}

/* Between two ranks, messages start in the order of experts, matrices, arrays. */
static ek_status recv_matrix(ek_migration *mg, const ek_move *move, const ek_param *p, char **at)
{
    const ek_mesh *mesh = mg->m->cfg.mesh;
    staged_matrix x = stage_matrix(mg, p, at);
    int peer = stage_rank_of(mg, mesh->edp_rank, move->rank);

    for (int32_t group = 0; group < mesh->edp && groups_of(mg->m) > 1; group++) {
        int64_t first, n = ek_param_owned_by(x.bucket, p, group, &first);

        if (group != mesh->edp_rank)
            EK_TRY(recv_numbers(mg, x.at[0] + first * real_size(mg), n,
                                stage_rank_of(mg, group, move->rank)));
    }
    EK_TRY(recv_numbers(mg, x.at[0] + x.kept_first * real_size(mg), x.kept, peer));
    for (int i = 1; i <= MOMENTS; i++)
        EK_TRY(recv_numbers(mg, x.at[i], x.kept, peer));
    return EK_OK;
}

static ek_status send_matrix(ek_migration *mg, const ek_move *move, const ek_param *p)
{
    const ek_weight *w = p->w;
    int peer = stage_rank_of(mg, move->group, move->rank);

    EK_TRY(send_numbers(mg, w->p_kept, w->kept, peer));
    if (move->group != mg->m->cfg.mesh->edp_rank)
        return EK_OK;
    EK_TRY(send_numbers(mg, w->m, w->kept, peer));
    return send_numbers(mg, w->v, w->kept, peer);
}

static ek_status start_transfers(ek_migration *mg)
{
    mg->n_coll = 0;
    for (int32_t i = 0; i < mg->n_in; i++) {
        char *at = staging_entry(mg, i);

        for (int j = 0; j < MATRICES; j++)
            EK_TRY(recv_matrix(mg, &mg->in[i], &params_of(mg, mg->in[i].slot)[j], &at));
    }
    for (int32_t i = 0; i < mg->n_out; i++)
        for (int j = 0; j < MATRICES; j++)
            EK_TRY(send_matrix(mg, &mg->out[i], &params_of(mg, mg->out[i].slot)[j]));
    return EK_OK;
}

static ek_status op_transfer_state(void *self, const ek_op *op)
{
    ek_migration *mg = self;
    ek_status all;

    if (*op->state == NULL) {
        *op->state = mg;
        EK_TRY(start_transfers(mg));
    }
    all = ek_net_test_all(mg->coll, mg->n_coll);
    for (int32_t i = 0; i < mg->n_in && all == EK_OK; i++)
        report_held(mg, -1 - i, mg->in[i].expert);
    return all;
}

/* Barrier: all ranks of the stage have received their experts. */
static ek_status op_wait_all(void *self, const ek_op *op)
{
    ek_migration *mg = self;

    if (!ek_net_started(op)) {
        mg->barrier = 1;
        EK_TRY(ek_comm_all_reduce(mg->m->cfg.mesh->stage, &mg->barrier, 1, EK_SUM_F64,
                                  ek_net_cell(op)));
    }
    return ek_net_test(op);
}

static void describe_transfer(void *self, const ek_op *op, char *text, size_t cap)
{
    const ek_migration *mg = self;

    if (*op->state != NULL)
        ek_net_describe_all(mg->coll, mg->n_coll, text, cap);
}

/* Copies a received matrix into its slot and packs it. */
static ek_status install_matrix(const ek_migration *mg, const ek_param *p, char **at)
{
    const ek_model *m = mg->m;
    const ek_weight *w = p->w;
    size_t real = (size_t)real_size(mg);
    staged_matrix x = stage_matrix(mg, p, at);

    if (groups_of(m) > 1 && w->p != NULL) /* the kept range is a part of it */
        memcpy(w->p, x.at[0], (size_t)x.masters * real);
    else
        memcpy(w->p_kept, x.at[0] + (size_t)x.kept_first * real, (size_t)x.kept * real);
    memcpy(w->m, x.at[1], (size_t)x.kept * real);
    memcpy(w->v, x.at[2], (size_t)x.kept * real);
    if (x.bucket->sharded && m->cfg.zero == 3)
        return EK_OK; /* gathered and packed when the layer needs it */
    return ek_param_pack(m, w, x.at[0], EK_USE_FORWARD | EK_USE_BACKWARD);
}

static ek_status op_install(void *self, const ek_op *op)
{
    const ek_migration *mg = self;

    (void)op;
    for (int32_t i = 0; i < mg->n_in; i++)
        report_held(mg, mg->in[i].slot, -1);
    for (int32_t i = 0; i < mg->n_in; i++) {
        char *at = staging_entry(mg, i);

        for (int j = 0; j < MATRICES; j++)
            EK_TRY(install_matrix(mg, &params_of(mg, mg->in[i].slot)[j], &at));
    }
    report_slots(mg);
    for (int32_t i = 0; i < mg->n_in; i++)
        report_held(mg, -1 - i, -1);
    return EK_OK;
}

/* Bytes that this rank sends; that it receives. */
static double bytes_out(const ek_migration *mg)
{
    double numbers = 0;

    for (int32_t i = 0; i < mg->n_out; i++)
        for (int j = 0; j < MATRICES; j++)
            numbers += (double)params_of(mg, mg->out[i].slot)[j].w->kept *
                       (mg->out[i].group == mg->m->cfg.mesh->edp_rank ? 1 + MOMENTS : 1);
    return numbers * (double)real_size(mg);
}

static double bytes_in(const ek_migration *mg)
{
    return (double)mg->n_in * (double)ek_param_buckets_staging_bytes(mg->m);
}

static ek_op migration_op(ek_migration *mg, ek_op_kind kind, ek_op_fn run, ek_collective collective,
                          double bytes, size_t element)
{
    ek_op op = ek_net_op(
        kind, run, mg, ek_net_work_of(mg->m->cfg.mesh, EK_MESH_STAGE, collective, bytes, element));

    op.layer = mg->layer;
    return op;
}

void ek_migrate_build_start(ek_migration *mg, ek_graph *g, int32_t dep)
{
    ek_op op;

    if (!mg->changes || mg->started)
        return;
    mg->started = 1;
    op = migration_op(mg, EK_OP_MOVE_EXPERTS, op_transfer_state, EK_COLLECTIVE_TRANSFERS,
                      bytes_out(mg), 1);
    op.describe = describe_transfer;
    mg->op = ek_graph_after(g, &op, dep);
    if (mg->m->cfg.state == NULL)
        return;
    op = migration_op(mg, EK_OP_WAIT_EXPERTS, op_wait_all, EK_COLLECTIVE_ALL_REDUCE,
                      sizeof(mg->barrier), sizeof(mg->barrier));
    mg->op = ek_graph_after(g, &op, mg->op);
}

int32_t ek_migrate_build_end(ek_migration *mg, ek_graph *g, int32_t dep)
{
    ek_op op = {.kind = EK_OP_INSTALL_EXPERTS,
                .run = op_install,
                .self = mg,
                .lane = EK_LANE_COMPUTE,
                .layer = mg->layer,
                .micro = -1,
                .part = -1,
                .bytes = bytes_in(mg),
                .work = ek_work_of_rows(bytes_in(mg) / (double)real_size(mg), 1)};

    if (!mg->changes)
        return dep;
    mg->changes = 0;
    mg->experts_moved = 0;
    mg->started = 0;
    return ek_graph_add(g, &op, (int32_t[]){dep, mg->op}, 2);
}
