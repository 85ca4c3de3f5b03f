/* Which losses of hosts, and of racks, the current placement of experts tolerates. */
#include "placement/survivability.h"

#include "base/log.h"
#include "comm/agree.h"
#include "train/run/state.h"

#include <string.h>

/* Workspace.  The hosts of each expert are first collected as bit masks, as a stage knows its own
 * layers only. */
typedef struct {
    ek_arena arena;
    ek_replica_sets replica_sets;
    int64_t *masks; /* [layers][experts][shards][words], masks */
    int64_t rows;
    int32_t *domain_of; /* [ranks] */
} survivability_work;

static void layout_work(survivability_work *j, const ek_run *r, int32_t domains)
{
    j->rows = r->source.spec.layers * r->source.spec.experts * r->mesh->etp;
    ek_replica_sets_reserve(&j->replica_sets, &j->arena, domains, j->rows);
    j->domain_of = ek_arena_alloc(&j->arena, r->ranks, sizeof(*j->domain_of));
    j->masks = ek_arena_alloc(&j->arena, j->rows * j->replica_sets.words, sizeof(*j->masks));
}

static ek_status reserve_work(survivability_work *j, const ek_run *r, int32_t domains)
{
    ek_arena_measure(&j->arena);
    layout_work(j, r, domains);
    EK_TRY(ek_arena_reserve(&j->arena, "the survivability of experts"));
    layout_work(j, r, domains);
    return ek_arena_check(&j->arena, "the survivability of experts");
}

/* Whether two ranks are on the same host, or rack. */
static int same_domain(const ek_run *r, int racks, int a, int b)
{
    return racks ? r->options.rack_of[a] == r->options.rack_of[b]
                 : ek_comm_node(r->world, a) == ek_comm_node(r->world, b);
}

/* Numbers hosts, or racks, by their first ranks: domain_of [ranks], or NULL.  Returns how many. */
static int32_t number_domains(const ek_run *r, int racks, int32_t *domain_of)
{
    int32_t n = 0;

    for (int i = 0; i < r->ranks; i++) {
        int first = 0;

        while (!same_domain(r, racks, first, i))
            first++;
        if (domain_of != NULL)
            domain_of[i] = first < i ? domain_of[first] : n;
        n += first == i;
    }
    return n;
}

/* Marks the domains that hold each expert of a layer, for each of its etp shards, as all of them
 * are needed. */
static void mark_layer(survivability_work *j, const ek_run *r, int64_t layer)
{
    const ek_placement *p = &r->model->layers[layer].experts.placement;
    const ek_mesh *mesh = r->mesh;

    for (int32_t s = 0; s < p->ranks * p->slots; s++)
        for (int i = 0; i < mesh->etp && p->expert_of[s] >= 0; i++) {
            int rank = mesh->pp_rank * mesh->stage_size + s / p->slots * mesh->etp + i;
            int32_t domain = j->domain_of[rank];
            int64_t row = (layer * p->experts + p->expert_of[s]) * mesh->etp + i;

            j->masks[row * j->replica_sets.words + domain / 64] |=
                (int64_t)(UINT64_C(1) << (domain % 64));
        }
}

/* Marks all layers; one rank of each stage contributes its layers.  Collective. */
static ek_status mark_all_layers(survivability_work *j, const ek_run *r)
{
    ek_coll *op = NULL;

    for (int64_t l = 0; l < r->source.spec.layers; l++)
        if (ek_model_has_moe_layer(r->model, l) && (r->mesh->pp == 1 || r->mesh->at == 0))
            mark_layer(j, r, l);
    if (r->mesh->pp == 1)
        return EK_OK;
    EK_TRY(
        ek_comm_all_reduce(r->world, j->masks, j->rows * j->replica_sets.words, EK_SUM_I64, &op));
    return ek_coll_wait(&op);
}

static void add_replica_sets(survivability_work *j, const ek_run *r)
{
    int64_t of_layer = j->rows / r->source.spec.layers;

    for (int64_t i = 0; i < j->rows; i++)
        if (!r->source.spec.dense[i / of_layer])
            ek_replica_sets_add(&j->replica_sets,
                                (const uint64_t *)j->masks + i * j->replica_sets.words);
}

/* Collects the replica sets of all experts, by hosts or by racks.  Collective. */
static ek_status collect_replica_sets(survivability_work *j, const ek_run *r, int racks)
{
    EK_TRY(ek_agree(r->world, "compute survivability",
                    reserve_work(j, r, number_domains(r, racks, NULL))));
    number_domains(r, racks, j->domain_of);
    EK_TRY(mark_all_layers(j, r));
    add_replica_sets(j, r);
    return EK_OK;
}

static void fill_host_result(const ek_replica_sets *h, ek_train_balance *b)
{
    b->hosts = h->domains;
    b->survives = ek_replica_sets_survive(h);
    for (int k = 1; k <= EK_TRAIN_LOST && k <= b->hosts; k++)
        b->survivability[k - 1] = ek_replica_sets_survivability(h, k).p;
    ek_replica_sets_text(h, "host", b->survivability_text, sizeof(b->survivability_text));
}

ek_status ek_run_evaluate_survivability(ek_run *r)
{
    const ek_planner *p = r->training.moe.planner;
    ek_train_balance *b = &r->out->balance;
    ek_status st = EK_OK;

    if (p == NULL || !p->enforces_replicas_min || r->cfg->replicas_min <= 1)
        return EK_OK;
    for (int racks = 0; racks <= (r->options.rack_of != NULL) && st == EK_OK; racks++) {
        survivability_work j = {0};

        st = collect_replica_sets(&j, r, racks);
        if (st == EK_OK && !racks)
            fill_host_result(&j.replica_sets, b);
        else if (st == EK_OK)
            ek_replica_sets_text(&j.replica_sets, "rack", b->racks_text, sizeof(b->racks_text));
        ek_arena_fini(&j.arena);
    }
    return st;
}
