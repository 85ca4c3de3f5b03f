/* The memory of a MoE layer: bounds of its numbers of rows, and the arrays reserved for them. */
#include "moe/memory.h"

#include "moe/cosine.h"
#include "moe/replica_weights.h"
#include "moe/reroute.h"
#include "moe/serving_copies.h"

/* Slots of an expert rank. */
static int32_t slots_of(const ek_model_spec *spec, const ek_mesh *mesh, int32_t spare_slots)
{
    return (int32_t)((spec->experts + mesh->ep - 1) / mesh->ep) + spare_slots;
}

/* Rows that a buffer is reserved for: the upper bound, and the expected number. */
typedef struct {
    int64_t most, likely;
} row_count;

/* Rows of this rank's tokens. */
static row_count sent_rows(const ek_model_spec *spec, const ek_mesh *mesh,
                           const ek_moe_limits *limits)
{
    int64_t copies = ek_mesh_distributes_experts(mesh) ? mesh->etp : 1;
    row_count c = {limits->tokens * copies * ek_moe_cols(spec),
                   limits->tokens * copies * spec->top_k};

    if (!ek_mesh_distributes_experts(mesh))
        c.likely = c.most;
    return c;
}

/* Rows that this rank computes; the bound is all rows of the micro-batch that its slots can get. */
static row_count served_rows(const ek_model_spec *spec, const ek_mesh *mesh,
                             const ek_moe_limits *limits)
{
    int64_t cols = ek_moe_cols(spec), slots = slots_of(spec, mesh, limits->spare_slots);
    int ranks = mesh->edp * mesh->ep;
    row_count c;

    if (!ek_mesh_distributes_experts(mesh))
        return sent_rows(spec, mesh, limits);
    c.most = limits->total * (slots < cols ? slots : cols);
    c.likely = (limits->total * spec->top_k + ranks - 1) / ranks;
    if (c.likely > c.most)
        c.likely = c.most;
    return c;
}

static void *reserve_rows(ek_arena *a, row_count rows, int64_t width, size_t size)
{
    return ek_arena_alloc_expected(a, rows.most * width, rows.likely * width, size);
}

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t workspace_bytes(const ek_kernels *k, const ek_model_spec *spec, const ek_mesh *mesh,
                              const ek_moe_limits *limits, int training)
{
    int64_t d = spec->hidden, ff = ek_range_length(spec->ff, mesh->etp, 0);
    int64_t rows = served_rows(spec, mesh, limits).most,
            groups = spec->experts + limits->spare_slots;
    size_t ws = max_size(k->linear_workspace(k, rows, groups, 2 * ff, d),
                         k->linear_workspace(k, rows, groups, d, ff));

    if (!training) /* experts that a store has as values */
        ws = max_size(ws, k->values_workspace(k, d > ff ? d : ff));
    return max_size(ws, ek_mlp_workspace(k, spec, mesh, limits->all));
}

/* Gate results for all tokens of the data parallel rank. */
static void reserve_whole(ek_moe_scratch *s, ek_arena *a, size_t real, const ek_model_spec *spec,
                          const ek_mesh *mesh, const ek_moe_limits *limits)
{
    int64_t cols = ek_moe_cols(spec), n = mesh->tp > 1 ? limits->all : 0;

    s->whole.probs = ek_arena_alloc(a, n * spec->experts, real);
    s->whole.lse = ek_arena_alloc(a, n, real);
    s->whole.weights = ek_arena_alloc(a, n * cols, real);
    s->whole.ids = ek_arena_alloc(a, n * cols, sizeof(*s->whole.ids));
    s->tp_first = ek_arena_alloc(ek_arena_host(a), mesh->tp + 1, sizeof(*s->tp_first));
}

static void reserve_dispatch(ek_moe_scratch *s, ek_arena *a, const ek_kernels *k,
                             const ek_model_spec *spec, const ek_mesh *mesh,
                             const ek_moe_limits *limits)
{
    size_t row = (size_t)spec->hidden * ek_dtype_size(k->comp) + ek_dtype_size(k->real);
    int64_t ranks = mesh->stage_size;

    s->each = ek_arena_alloc(ek_arena_host(a), ranks + 1, sizeof(*s->each));
    for (int64_t r = 0; r <= ranks && s->each != NULL; r++)
        s->each[r] = r;
    reserve_whole(s, a, ek_dtype_size(k->real), spec, mesh, limits);
    if (!ek_mesh_distributes_experts(mesh))
        return;
    s->matrix = ek_arena_alloc(ek_arena_host(a), ranks * ranks, sizeof(*s->matrix));
    s->send = reserve_rows(a, sent_rows(spec, mesh, limits), 1, row);
    s->recv = reserve_rows(a, served_rows(spec, mesh, limits), 1, row);
}

void ek_moe_reserve_planning(ek_moe_planning *d, ek_arena *a, const ek_model_spec *spec,
                             const ek_mesh *mesh, const ek_moe_config *cfg,
                             const ek_moe_limits *limits)
{
    if (ek_mesh_distributes_experts(mesh))
        ek_routing_plan_reserve(d, ek_arena_host(a), cfg, mesh, spec->layers,
                                (int32_t)spec->experts, slots_of(spec, mesh, limits->spare_slots));
}

static int replica_sets(const ek_model_spec *spec, const ek_moe_config *cfg, int training)
{
    int64_t routed = 0;
    int sets = training ? ek_moe_replica_sets(cfg) : 1;

    for (int64_t l = 0; l < spec->layers; l++)
        routed += !spec->dense[l];
    return sets == 2 && routed < 2 ? 1 : sets;
}

static ek_replica_slots replica_slots(const ek_model_spec *spec, const ek_mesh *mesh,
                                      const ek_moe_config *cfg, const ek_moe_limits *limits)
{
    ek_replica_slots slots = {.spare = limits->spare_slots,
                              .transient =
                                  ek_moe_transient_slots(cfg, spec, mesh, limits->spare_slots)};

    if (cfg->planner != NULL && !ek_moe_may_plan_transient(cfg))
        slots.transient = 0;
    return slots;
}

/* Memory of replicas. */
static void reserve_replicas(ek_moe_scratch *s, ek_arena *a, const ek_kernels *k,
                             const ek_model_spec *spec, const ek_mesh *mesh,
                             const ek_moe_config *cfg, const ek_moe_limits *limits, int training)
{
    if (ek_mesh_distributes_experts(mesh) &&
        (cfg->planner != NULL || cfg->gather != 0 || cfg->gather_most != 0))
        s->replicas = ek_replicas_reserve(a, k, spec, mesh, replica_slots(spec, mesh, cfg, limits),
                                          ek_moe_max_members(cfg, mesh),
                                          replica_sets(spec, cfg, training), training);
}

void ek_moe_reserve_replicas(ek_moe *m, ek_arena *a, const ek_moe_limits *limits, int slots,
                             int training)
{
    m->replica_weights = NULL;
    if (ek_moe_is_distributed(m) && m->w->routed && m->cfg->planner != NULL &&
        replica_sets(m->spec, m->cfg, training) == EK_REPLICA_SETS_EACH)
        ek_replicas_reserve_layer(m, a, replica_slots(m->spec, m->mesh, m->cfg, limits), slots);
}

void ek_moe_reserve_scratch(ek_moe_scratch *s, ek_arena *a, const ek_kernels *k,
                            const ek_model_spec *spec, const ek_mesh *mesh,
                            const ek_moe_config *cfg, const ek_moe_limits *limits, int training)
{
    int64_t d = spec->hidden, n = limits->tokens, cols = ek_moe_cols(spec);
    int64_t ff = ek_range_length(spec->ff, mesh->etp, 0), shared;
    int gathers = ek_moe_max_members(cfg, mesh);
    size_t real = ek_dtype_size(k->real), comp = ek_dtype_size(k->comp);
    row_count rows = served_rows(spec, mesh, limits);
    row_count hidden = {ff * gathers * rows.most, ff * rows.likely};

    if (rows.most < n) /* the shared expert uses these buffers too */
        rows.most = n;
    if (rows.likely < n)
        rows.likely = n;
    shared = ek_mlp_hidden(spec, mesh, limits->all);
    if (hidden.most < shared)
        hidden.most = shared;
    if (hidden.likely < shared)
        hidden.likely = shared;
    if (gathers > 1) /* they hold R instead of C */
        rows.most *= 2;
    s->rows = reserve_rows(a, rows, d, comp);
    s->rows2 = reserve_rows(a, rows, d, comp);
    s->hidden = reserve_rows(a, hidden, 1, comp);
    s->ws = ek_arena_alloc(a, (int64_t)workspace_bytes(k, spec, mesh, limits, training), 1);
    s->y_real = ek_arena_alloc(a, n * d, real);
    if (training) {
        s->dy = ek_arena_alloc(a, n * d, real);
        s->dlogits = ek_arena_alloc(a, n * spec->experts, real);
        s->dweights = ek_arena_alloc(a, n * cols, real);
        s->drow = reserve_rows(a, rows, 1, real);
        if (gathers > 1)
            s->drow_add = reserve_rows(a, rows, 1, real);
    }
    s->mlp = (ek_mlp_scratch){.rows = s->rows,
                              .hidden = s->hidden,
                              .drow = s->drow,
                              .y_real = s->y_real,
                              .dx = s->dx,
                              .dy = s->dy,
                              .ws = s->ws,
                              .tp = s->tp};
    ek_cosine_reserve(&s->cosine, a, k, spec, n, training);
    reserve_dispatch(s, a, k, spec, mesh, limits);
    reserve_replicas(s, a, k, spec, mesh, cfg, limits, training);
}

void ek_moe_reserve_weights(ek_moe_weights *w, ek_arena *a, const ek_model_spec *spec,
                            const ek_mesh *mesh, int32_t spare_slots, int layer,
                            const ek_placement *shared)
{
    w->layer = layer;
    w->routed = !spec->dense[layer];
    w->turn = 0;
    for (int l = 0; l < layer; l++)
        w->turn += !spec->dense[l];
    w->ff = ek_range_length(spec->ff, mesh->etp, mesh->etp_rank);
    ek_mlp_set_sizes(&w->mlp, spec, mesh, layer);
    if (shared != NULL) {
        w->placement = *shared;
        return;
    }
    ek_placement_reserve(&w->placement, a, (int32_t)spec->experts, mesh->edp * mesh->ep,
                         slots_of(spec, mesh, spare_slots));
    if (w->placement.primary != NULL)
        ek_placement_block(&w->placement, mesh->edp);
}

static void reserve_next_plans(ek_moe *m, ek_arena *a)
{
    int n = 0;

    while (ek_moe_planner_at(m->cfg, n) != NULL)
        n++;
    m->next_plan = ek_arena_alloc(a, n, sizeof(*m->next_plan));
    for (int i = 0; i < n; i++) {
        const ek_planner *p = ek_moe_planner_at(m->cfg, i);
        ek_moe_next_plan measured, *at = m->next_plan != NULL ? &m->next_plan[i] : &measured;

        *at = (ek_moe_next_plan){0};
        if (!p->uses_previous_counts && !p->may_use_previous_counts)
            continue;
        at->expert_of = ek_arena_alloc(a, m->x.all_slots, sizeof(*at->expert_of));
        at->quota = ek_arena_alloc(a, m->x.all_slots, sizeof(*at->quota));
        at->made = ek_arena_alloc(a, m->x.ep_groups, sizeof(*at->made));
    }
}

/* Routes of the micro-batches in flight, inputs of planners, and the flights of replicas. */
static void reserve_routes(ek_moe *m, ek_arena *a, int slots)
{
    int64_t sources = (int64_t)m->x.token_chunks * m->x.ranks;

    if (!ek_moe_is_distributed(m))
        return;
    for (int i = 0; i < slots; i++) {
        ek_moe_route measured, *r = m->handles != NULL ? &m->handles[i].route : &measured;

        r->expert_of = ek_arena_alloc(a, m->x.all_slots, sizeof(*r->expert_of));
        r->late_of = ek_moe_may_use_previous(m->cfg)
                         ? ek_arena_alloc(a, m->x.all_slots, sizeof(*r->late_of))
                         : NULL;
        r->row_counts = ek_arena_alloc(a, sources * m->x.all_slots, sizeof(*r->row_counts));
    }
    if (ek_moe_may_place(m->cfg)) {
        ek_plan_history_reserve(&m->history, a, &m->planning->limits);
        m->persistent_quota =
            ek_arena_alloc(a, (int64_t)m->mesh->ep * m->x.slots, sizeof(*m->persistent_quota));
        ek_serving_copies_reserve(m, a);
    }
    reserve_next_plans(m, a);
    ek_replicas_reserve_flights(m, a);
}

void ek_moe_reserve_state(ek_moe *m, ek_arena *a, int64_t max_seq, int slots)
{
    const ek_placement *p = &m->w->placement;

    m->cols = ek_moe_cols(m->spec);
    m->handles = ek_arena_alloc(a, slots, sizeof(*m->handles));
    m->mlp = (ek_mlp){.k = m->k,
                      .w = &m->w->mlp,
                      .scratch = &m->scratch->mlp,
                      .d = m->spec->hidden,
                      .layer = m->w->layer,
                      .adds_dy = m->w->routed,
                      .activations = ek_arena_alloc(a, slots, sizeof(*m->mlp.activations))};
    ek_dispatch_layout_reserve(&m->x, a, m->mesh, p, m->cfg->degree, m->cfg->smart_group);
    m->groups.up = ek_arena_alloc(a, p->slots, sizeof(*m->groups.up));
    m->groups.down = ek_arena_alloc(a, p->slots, sizeof(*m->groups.down));
    m->ids.out = ek_arena_alloc(a, m->x.chunks, sizeof(*m->ids.out));
    m->ids.back = ek_arena_alloc(a, m->x.chunks, sizeof(*m->ids.back));
    if (m->w->waves != NULL)
        m->ids.sent = ek_arena_alloc(a, m->w->waves->most, sizeof(*m->ids.sent));
    m->gate.order = ek_arena_alloc(a, max_seq * m->cols, sizeof(*m->gate.order));
    m->gate.counts = ek_arena_alloc(a, 2 * m->spec->experts, sizeof(*m->gate.counts));
    m->gate.sums = ek_arena_alloc(a, m->spec->experts, sizeof(*m->gate.sums));
    if (m->cfg->replay != NULL)
        ek_replay_reserve(&m->gate.replay, a, m->spec->experts);
    ek_reroute_reserve(m, a);
    ek_moe_stats_reserve(&m->stats, a, m->spec->experts, p->ranks);
    reserve_routes(m, a, slots);
}

/* Activations of the routed experts. */
static void reserve_routed(const ek_moe *m, ek_moe_activations *s, ek_arena *a,
                           const ek_moe_limits *limits)
{
    const ek_model_spec *spec = m->spec;
    size_t real = ek_dtype_size(m->k->real), comp = ek_dtype_size(m->k->comp);
    int64_t n = limits->tokens, chunks = m->x.chunks, slots = m->x.slots;
    ek_arena *host = ek_arena_host(a);
    row_count sent = sent_rows(spec, m->mesh, limits), rows = served_rows(spec, m->mesh, limits);

    s->probs = ek_arena_alloc(a, n * spec->experts, real);
    s->lse = ek_arena_alloc(a, n, real);
    s->weights = ek_arena_alloc(a, n * m->cols, real);
    s->ids = ek_arena_alloc(a, n * m->cols, sizeof(*s->ids));
    s->row_of = ek_arena_alloc(a, sent.most, sizeof(*s->row_of));
    s->token_of = reserve_rows(a, sent, 1, sizeof(*s->token_of));
    s->row_weight = reserve_rows(a, rows, 1, real);
    s->offset = ek_arena_alloc(host, chunks * (slots + 1), sizeof(*s->offset));
    s->gate_stats = ek_arena_alloc(host, m->x.ranks * m->x.words, sizeof(*s->gate_stats));
    s->fraction = ek_arena_alloc(host, spec->experts, sizeof(*s->fraction));
    rows.most *= ek_moe_max_members(m->cfg, m->mesh);
    s->gu = reserve_rows(a, rows, 2 * ek_range_length(spec->ff, m->mesh->etp, 0), comp);
    rows.most /= ek_moe_max_members(m->cfg, m->mesh);
    if (!ek_moe_is_distributed(m))
        return;
    s->rows = reserve_rows(a, rows, spec->hidden, comp);
    s->from_recv = reserve_rows(a, rows, 1, sizeof(*s->from_recv));
    s->from_experts = reserve_rows(a, rows, 1, sizeof(*s->from_experts));
    s->send_first = ek_arena_alloc(host, chunks + 1, sizeof(*s->send_first));
}

void ek_moe_reserve_activations(ek_moe *m, int slot, ek_arena *a, const ek_moe_limits *limits,
                                int any)
{
    ek_mlp_activations measured_mlp;
    ek_moe_activations measured;

    ek_mlp_reserve_activations(
        &m->mlp, m->mlp.activations != NULL ? &m->mlp.activations[slot] : &measured_mlp, a, m->spec,
        m->mesh, limits->all, any);
    if (any || m->w->routed)
        reserve_routed(m, m->handles != NULL ? &m->handles[slot].activations : &measured, a,
                       limits);
}

void ek_moe_share_activations(ek_moe *m, int slot, const ek_moe *other)
{
    if (m->handles == NULL || m->mlp.activations == NULL) /* while the arena measures */
        return;
    m->handles[slot].activations = other->handles[0].activations;
    m->mlp.activations[slot] = other->mlp.activations[0];
}

void ek_moe_set_tokens(ek_moe *m, int slot, void *x, void *y)
{
    if (m->handles == NULL || m->mlp.activations == NULL)
        return;
    m->handles[slot].activations.x = m->mlp.activations[slot].x = x;
    m->handles[slot].activations.y = m->mlp.activations[slot].y = y;
}
