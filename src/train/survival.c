/* Which losses of hosts the experts of a run outlive, as they lie. */
#include "balance/survive.h"
#include "base/log.h"
#include "train/agree.h"
#include "train/run_impl.h"

#include <string.h>

/* What is worked on: holders are first noted expert by expert, as a stage knows but its own layers.
 */
typedef struct {
    ek_arena arena;
    ek_holders holders;
    int64_t *noted; /* [layers][experts][shards][words], masks */
    int64_t rows;
} judging;

static void lay(judging *j, const ek_run *r, int32_t hosts)
{
    j->rows = r->source.spec.layers * r->source.spec.experts * r->mesh->etp;
    ek_holders_take(&j->holders, &j->arena, hosts, j->rows);
    j->noted = ek_arena_take(&j->arena, j->rows * j->holders.words, sizeof(*j->noted));
}

static ek_status reserve(judging *j, const ek_run *r, int32_t hosts)
{
    ek_arena measured;

    ek_arena_measure(&j->arena);
    lay(j, r, hosts);
    measured = j->arena;
    EK_TRY(ek_arena_init_as(&j->arena, &measured, "where experts lie"));
    lay(j, r, hosts);
    return ek_arena_check(&j->arena, "where experts lie");
}

static int32_t count_hosts(const ek_run *r)
{
    int32_t n = 0;

    for (int i = 0; i < r->ranks; i++)
        n = ek_comm_node(r->world, i) >= n ? ek_comm_node(r->world, i) + 1 : n;
    return n;
}

/* Of a layer of this stage, each shard of an expert by itself: none can be done without. */
static void note_layer(judging *j, const ek_run *r, int64_t layer)
{
    const ek_placement *p = &r->model->layers[layer].experts.placement;
    const ek_mesh *mesh = r->mesh;

    for (int32_t s = 0; s < p->ranks * p->slots; s++)
        for (int i = 0; i < mesh->etp && p->expert_of[s] >= 0; i++) {
            int rank = mesh->pp_rank * mesh->stage_size + s / p->slots * mesh->etp + i;
            int host = ek_comm_node(r->world, rank);
            int64_t row = (layer * p->experts + p->expert_of[s]) * mesh->etp + i;

            j->noted[row * j->holders.words + host / 64] |= (int64_t)(UINT64_C(1) << (host % 64));
        }
}

static int has_experts(const ek_run *r, int64_t layer)
{
    return ek_model_has_layer(r->model, layer) && !r->source.spec.dense[layer];
}

/* One rank of each stage speaks for it. */
static ek_status note_all(judging *j, const ek_run *r)
{
    ek_coll *op = NULL;

    for (int64_t l = 0; l < r->source.spec.layers; l++)
        if (has_experts(r, l) && (r->mesh->pp == 1 || r->mesh->at == 0))
            note_layer(j, r, l);
    if (r->mesh->pp == 1)
        return EK_OK;
    EK_TRY(ek_comm_all_reduce(r->world, j->noted, j->rows * j->holders.words, EK_SUM_I64, &op));
    return ek_coll_wait(&op);
}

static void add_noted(judging *j, const ek_run *r)
{
    int64_t of_layer = j->rows / r->source.spec.layers;

    for (int64_t i = 0; i < j->rows; i++)
        if (!r->source.spec.dense[i / of_layer])
            ek_holders_add(&j->holders, (const uint64_t *)j->noted + i * j->holders.words);
}

ek_status ek_run_judge_survival(ek_run *r)
{
    const ek_planner *p = r->training.moe.planner;
    ek_train_balance *b = &r->out->balance;
    judging j = {0};
    ek_status st = EK_OK;

    if (p == NULL || !ek_planner_keeps(p) || r->cfg->replicas_min <= 1)
        return EK_OK;
    EK_TRY_OUT(ek_agree(r->world, "judge where experts lie", reserve(&j, r, count_hosts(r))));
    EK_TRY_OUT(note_all(&j, r));
    add_noted(&j, r);
    b->hosts = j.holders.domains;
    b->survives = ek_holders_survive(&j.holders);
    for (int k = 1; k <= EK_TRAIN_LOST && k <= b->hosts; k++)
        b->survival[k - 1] = ek_holders_survival(&j.holders, k).p;
    ek_holders_text(&j.holders, "host", b->survival_text, sizeof(b->survival_text));
out:
    ek_arena_fini(&j.arena);
    return st;
}
