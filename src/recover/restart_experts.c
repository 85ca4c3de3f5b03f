/* Initial expert placement of a run that continues from memory: where memory holds the experts. */
#include "recover/restart_experts.h"

#include "elastic/restart_placement.h"
#include "model/hf/names.h"
#include "recover/rank_state.h"

#include <stdlib.h>

enum { EXPERT_MATRICES = 3 };

/* Input and result of the placement of a layer. */
typedef struct {
    ek_restart_placement x;
    int32_t *survivor_host, *host;
    int32_t *domain; /* [ranks] failure domain: host, or rack */
    unsigned char *has, *scratch;
    ek_placement to;               /* slots with state only */
    ek_placement wide;             /* the same among all slots */
    int64_t *quota;                /* of these */
    int32_t *layer_of, *expert_of; /* [tensors]; expert_of -1: not an expert's */
} workspace;

static void free_workspace(workspace *m)
{
    free(m->survivor_host);
    free(m->host);
    free(m->domain);
    free(m->has);
    free(m->scratch);
    free(m->to.expert_of);
    free(m->to.primary);
    free(m->wide.expert_of);
    free(m->wide.primary);
    free(m->quota);
    free(m->layer_of);
    free(m->expert_of);
}

static void alloc_placement(ek_placement *p, size_t experts, size_t ranks, int32_t slots)
{
    *p = (ek_placement){.experts = (int32_t)experts, .ranks = (int32_t)ranks, .slots = slots};
    p->expert_of = calloc(ranks * (size_t)slots, sizeof(*p->expert_of));
    p->primary = calloc(experts, sizeof(*p->primary));
}

static ek_status alloc_workspace(const ek_restart_experts *x, int32_t slots, workspace *m)
{
    const ek_model_spec *spec = &x->model->spec;
    size_t survivors = (size_t)x->recovery->n_tables, ranks = (size_t)x->model->cfg.mesh->ep;
    size_t experts = (size_t)spec->experts;
    int32_t all = slots + x->model->cfg.transient_slots;
    size_t tensors = (size_t)ek_hf_count(spec);

    m->survivor_host = calloc(survivors + 1, sizeof(*m->survivor_host));
    m->host = calloc(ranks, sizeof(*m->host));
    m->domain = calloc(ranks, sizeof(*m->domain));
    m->has = calloc(survivors + 1, experts);
    m->scratch = calloc(ranks, experts + 1);
    alloc_placement(&m->to, experts, ranks, slots);
    alloc_placement(&m->wide, experts, ranks, all);
    m->quota = calloc(ranks * (size_t)all, sizeof(*m->quota));
    m->layer_of = calloc(tensors, sizeof(*m->layer_of));
    m->expert_of = calloc(tensors, sizeof(*m->expert_of));
    EK_REQUIRE(m->survivor_host != NULL && m->host != NULL && m->domain != NULL && m->has != NULL &&
                   m->scratch != NULL && m->to.expert_of != NULL && m->to.primary != NULL &&
                   m->wide.expert_of != NULL && m->wide.primary != NULL && m->quota != NULL &&
                   m->layer_of != NULL && m->expert_of != NULL,
               EK_ENOMEM, "no memory for the placement of experts");
    return EK_OK;
}

static void set_placement_input(const ek_restart_experts *x, workspace *m)
{
    const ek_recovery *found = x->recovery;
    const ek_model_spec *spec = &x->model->spec;
    const ek_mesh *mesh = x->model->cfg.mesh;

    for (int32_t i = 0; i < found->n_tables; i++)
        m->survivor_host[i] = found->tables[i].host;
    for (int32_t i = 0; i < mesh->ep; i++) { /* one group: the ranks of the stage, in order */
        int rank = mesh->pp_rank * mesh->stage_size + i;

        m->host[i] = ek_comm_node(mesh->world, rank);
        m->domain[i] = x->rack_of != NULL ? x->rack_of[rank] : m->host[i];
    }
    for (int64_t i = 0; i < ek_hf_count(spec); i++) {
        ek_hf_tensor t;

        ek_hf_tensor_at(spec, i, &t);
        m->layer_of[i] = (int32_t)t.layer;
        m->expert_of[i] = t.role == EK_ROLE_EXPERT_GATE || t.role == EK_ROLE_EXPERT_UP ||
                                  t.role == EK_ROLE_EXPERT_DOWN
                              ? (int32_t)t.expert
                              : -1;
    }
    m->x = (ek_restart_placement){.experts = (int32_t)spec->experts,
                                  .n_survivors = found->n_tables,
                                  .survivor_host = m->survivor_host,
                                  .has = m->has,
                                  .ranks = mesh->ep,
                                  .slots = m->to.slots,
                                  .host = m->host};
}

/* Which survivor holds which experts of a layer: all three matrices of them. */
static void find_expert_holders(const ek_recovery *r, int64_t layer, workspace *m)
{
    int64_t experts = m->x.experts;

    for (int32_t i = 0; i < m->x.n_survivors; i++) {
        const ek_shard_table *t = &r->tables[i].shards;
        unsigned char *has = m->has + i * experts;

        for (int64_t e = 0; e < experts; e++)
            has[e] = 0;
        for (int64_t k = 0; k < t->n; k++) {
            int32_t tensor = t->shard[k].tensor;

            if (tensor >= 0 && m->expert_of[tensor] >= 0 && m->layer_of[tensor] == layer)
                has[m->expert_of[tensor]]++;
        }
        for (int64_t e = 0; e < experts; e++)
            has[e] = has[e] >= EXPERT_MATRICES;
    }
}

/* Whether all ranks of the earlier generation survive and none is new. */
static int has_same_ranks(const ek_restart_experts *x)
{
    const ek_recovery *found = x->recovery;
    int ranks = x->model->cfg.mesh->size;

    return found->n_tables == ranks && found->survivors[found->table_survivor[0]].ranks == ranks;
}

static int rank_holds(const workspace *m, int32_t rank, int32_t expert)
{
    return ek_slot_find(m->to.expert_of + rank * m->to.slots, m->to.slots, expert) >= 0;
}

/* The number of failure domains, or (expert >= 0) of those that hold the expert. */
static int32_t count_domains(const workspace *m, int32_t expert)
{
    int32_t n = 0;

    for (int32_t r = 0; r < m->to.ranks; r++) {
        int counts = expert < 0 || rank_holds(m, r, expert);

        for (int32_t before = 0; before < r && counts; before++)
            counts = m->domain[before] != m->domain[r] ||
                     (expert >= 0 && !rank_holds(m, before, expert));
        n += counts;
    }
    return n;
}

/* Whether min(replicas_min, domains) hosts, or racks, hold every expert of a layer.  They may not:
 * the earlier generation may have lost a host just before. */
static int has_replicas(const workspace *m, int32_t replicas_min)
{
    int32_t domains = count_domains(m, -1);

    for (int32_t e = 0; e < m->to.experts; e++)
        if (count_domains(m, e) < (replicas_min < domains ? replicas_min : domains))
            return 0;
    return 1;
}

ek_status ek_restart_experts_place(const ek_restart_experts *x, ek_assume_fn assume, void *context,
                                   int *whole)
{
    const ek_model *model = x->model;
    const ek_mesh *mesh = model->cfg.mesh;
    int32_t slots = ek_state_slots(model);
    workspace m = {0};
    ek_status st = EK_OK;

    *whole = 0;
    if (mesh->ep <= 1 || mesh->edp != 1 || mesh->etp != 1 || slots == 0)
        return EK_OK;
    EK_TRY_OUT(alloc_workspace(x, slots, &m));
    set_placement_input(x, &m);
    *whole = has_same_ranks(x);
    for (int32_t l = ek_model_next_moe(model, -1); l < model->spec.layers;
         l = ek_model_next_moe(model, l)) {
        find_expert_holders(x->recovery, l, &m);
        ek_restart_placement_layer(&m.x, m.scratch, m.to.expert_of, m.to.primary);
        ek_placement_resize(&m.wide, &m.to);
        for (int32_t s = 0; s < m.wide.ranks * m.wide.slots; s++)
            m.quota[s] = m.wide.expert_of[s] >= 0;
        EK_TRY_OUT(assume(context, l, &m.wide, m.quota));
        *whole = *whole && has_replicas(&m, x->replicas_min);
    }
out:
    free_workspace(&m);
    return st;
}
