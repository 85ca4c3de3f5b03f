/* Initial expert placement of a run that continues from memory: where memory holds the experts. */
#include "elastic/restart_placement.h"
#include "model/hf/names.h"
#include "train/run_priv.h"

#include <stdlib.h>

enum { EXPERT_MATRICES = 3 };

/* Whether this applies: persistent replicas, unsharded experts, one expert-parallel group a stage.
 */
static int is_applicable(const ek_run *r)
{
    const ek_planner *p = r->training.moe.planner;

    return p != NULL && p->plan_persistent != NULL && p->plan_transient == NULL &&
           r->cfg->plan_every > 0 && r->mesh != NULL && r->mesh->ep > 1 && r->mesh->edp == 1 &&
           r->mesh->etp == 1;
}

/* Input and result of the placement of a layer. */
typedef struct {
    ek_restart_placement x;
    int32_t *survivor_host, *host;
    int32_t *domain; /* [ranks] failure domain: host, or rack */
    unsigned char *has, *scratch;
    ek_placement to;
    int64_t *quota;
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
    free(m->quota);
    free(m->layer_of);
    free(m->expert_of);
}

static ek_status alloc_workspace(const ek_run *r, int32_t slots, workspace *m)
{
    size_t survivors = (size_t)r->recovery.n_tables, ranks = (size_t)r->mesh->ep;
    size_t experts = (size_t)r->source.spec.experts, all = ranks * (size_t)slots;
    size_t tensors = (size_t)ek_hf_count(&r->source.spec);

    m->survivor_host = calloc(survivors + 1, sizeof(*m->survivor_host));
    m->host = calloc(ranks, sizeof(*m->host));
    m->domain = calloc(ranks, sizeof(*m->domain));
    m->has = calloc(survivors + 1, experts);
    m->scratch = calloc(ranks, experts + 1);
    m->to = (ek_placement){.experts = (int32_t)experts, .ranks = (int32_t)ranks, .slots = slots};
    m->to.expert_of = calloc(all, sizeof(*m->to.expert_of));
    m->to.primary = calloc(experts, sizeof(*m->to.primary));
    m->quota = calloc(all, sizeof(*m->quota));
    m->layer_of = calloc(tensors, sizeof(*m->layer_of));
    m->expert_of = calloc(tensors, sizeof(*m->expert_of));
    EK_REQUIRE(m->survivor_host != NULL && m->host != NULL && m->domain != NULL && m->has != NULL &&
                   m->scratch != NULL && m->to.expert_of != NULL && m->to.primary != NULL &&
                   m->quota != NULL && m->layer_of != NULL && m->expert_of != NULL,
               EK_ENOMEM, "no memory for the placement of experts");
    return EK_OK;
}

static void set_placement_input(const ek_run *r, workspace *m)
{
    const ek_recovery *found = &r->recovery;

    for (int32_t i = 0; i < found->n_tables; i++)
        m->survivor_host[i] = found->tables[i].host;
    for (int32_t i = 0; i < r->mesh->ep; i++) { /* one group: the ranks of the stage, in order */
        int rank = r->mesh->pp_rank * r->mesh->stage_size + i;

        m->host[i] = ek_comm_node(r->world, rank);
        m->domain[i] = r->rack_of != NULL ? r->rack_of[rank] : m->host[i];
    }
    for (int64_t i = 0; i < ek_hf_count(&r->source.spec); i++) {
        ek_hf_tensor t;

        ek_hf_tensor_at(&r->source.spec, i, &t);
        m->layer_of[i] = (int32_t)t.layer;
        m->expert_of[i] = t.role == EK_ROLE_EXPERT_GATE || t.role == EK_ROLE_EXPERT_UP ||
                                  t.role == EK_ROLE_EXPERT_DOWN
                              ? (int32_t)t.expert
                              : -1;
    }
    m->x = (ek_restart_placement){.experts = (int32_t)r->source.spec.experts,
                                  .n_survivors = found->n_tables,
                                  .survivor_host = m->survivor_host,
                                  .has = m->has,
                                  .ranks = r->mesh->ep,
                                  .slots = m->to.slots,
                                  .host = m->host};
}

/* Which survivor holds which experts of a layer: all three matrices of them. */
static void find_expert_holders(const ek_run *r, int64_t layer, workspace *m)
{
    int64_t experts = m->x.experts;

    for (int32_t i = 0; i < m->x.n_survivors; i++) {
        const ek_shard_table *t = &r->recovery.tables[i].shards;
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

static int32_t slots_per_rank(const ek_run *r, int64_t *first_layer)
{
    for (*first_layer = 0; *first_layer < r->source.spec.layers; ++*first_layer)
        if (ek_model_has_layer(r->model, *first_layer) && !r->source.spec.dense[*first_layer])
            return r->model->layers[*first_layer].experts.placement.slots;
    return 0;
}

/* Whether all ranks of the earlier generation survive and none is new. */
static int has_same_ranks(const ek_run *r)
{
    const ek_recovery *found = &r->recovery;

    return found->n_tables == r->ranks &&
           found->survivors[found->table_survivor[0]].ranks == r->ranks;
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

/* Whether min(--replicas-min, domains) hosts, or racks, hold every expert of a layer.  They may
 * not: the earlier generation may have lost a host just before. */
static int has_replicas(const ek_run *r, const workspace *m)
{
    int32_t domains = count_domains(m, -1), want = r->cfg->replicas_min;

    for (int32_t e = 0; e < m->to.experts; e++)
        if (count_domains(m, e) < (want < domains ? want : domains))
            return 0;
    return 1;
}

ek_status ek_run_restart_experts(ek_run *r)
{
    workspace m = {0};
    int64_t first;
    int32_t slots;
    int whole = has_same_ranks(r);
    ek_status st = EK_OK;

    if (!is_applicable(r) || (slots = slots_per_rank(r, &first)) == 0)
        return EK_OK;
    EK_TRY_OUT(alloc_workspace(r, slots, &m));
    set_placement_input(r, &m);
    for (int64_t l = first; l < r->source.spec.layers; l++) {
        if (!ek_model_has_layer(r->model, l) || r->source.spec.dense[l])
            continue;
        find_expert_holders(r, l, &m);
        ek_restart_placement_layer(&m.x, m.scratch, m.to.expert_of, m.to.primary);
        for (int32_t s = 0; s < m.to.ranks * slots; s++)
            m.quota[s] = m.to.expert_of[s] >= 0;
        EK_TRY_OUT(ek_trainer_assume(r->trainer, l, &m.to, m.quota));
        whole = whole && has_replicas(r, &m);
    }
    if (whole)
        ek_trainer_keep_placements(r->trainer, r->memory_step);
out:
    free_workspace(&m);
    return st;
}
