/* Which losses of hosts, and of racks, the current placement of the model tolerates, and what the
 * others cost. */
#include "placement/survivability.h"

#include "base/log.h"
#include "comm/agree.h"
#include "placement/partners.h"
#include "train/run/state.h"

#include <string.h>

/* Workspace.  The hosts of each part are first collected as bit masks, as a stage knows its own
 * layers only.  Parts: experts, [layers][experts][etp]; then the other weights, [pp][tp]; then what
 * partners have copies of: with --elastic --zero what each rank keeps of the buckets of its groups,
 * [KINDS][ranks]; with --elastic --embed-columns, columns, which are those of the first kind. */
typedef struct {
    ek_arena arena;
    ek_replica_sets replica_sets;
    int64_t *masks;                        /* [rows][words] */
    int64_t rows, expert_rows, range_rows; /* all; of experts; of what has partners */
    int32_t *domain_of;                    /* [ranks] */
    int *host_of;                          /* [ranks] */
    int32_t *partner, *scratch;            /* [ranks], [4 * ranks] */
    const int32_t *copied_to; /* [ranks]: the rank with a copy of all that each keeps (partners.h);
                                 -1: none.  NULL: there are none */
} survivability_work;

/* Groups of ranks that shard buckets: data parallel, of the stage, expert data parallel. */
enum { KINDS = 3 };

/* Whether ranks have a part of the model's state alone. */
static int shards_state(const ek_run *r)
{
    return r->cfg->zero > 0 || r->cfg->embed_columns;
}

static void layout_work(survivability_work *j, const ek_run *r, int32_t domains)
{
    j->expert_rows = r->source.spec.layers * r->source.spec.experts * r->mesh->etp;
    j->range_rows = r->cfg->elastic && shards_state(r) ? KINDS * (int64_t)r->ranks : 0;
    j->rows = j->expert_rows + r->mesh->pp * r->mesh->tp + j->range_rows;
    j->copied_to = r->partners.partner;
    ek_replica_sets_reserve(&j->replica_sets, &j->arena, domains, j->rows);
    j->domain_of = ek_arena_alloc(&j->arena, r->ranks, sizeof(*j->domain_of));
    j->host_of = ek_arena_alloc(&j->arena, r->ranks, sizeof(*j->host_of));
    j->partner = ek_arena_alloc(&j->arena, r->ranks, sizeof(*j->partner));
    j->scratch = ek_arena_alloc(&j->arena, 4 * (int64_t)r->ranks, sizeof(*j->scratch));
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

int ek_run_count_hosts(const ek_run *r)
{
    return number_domains(r, 0, NULL);
}

static void mark_domain(survivability_work *j, int64_t row, int32_t domain)
{
    j->masks[row * j->replica_sets.words + domain / 64] |= (int64_t)(UINT64_C(1) << (domain % 64));
}

/* Marks the domain that holds a part, with the rank, and with the copy of what that keeps. */
static void mark_part(survivability_work *j, int64_t row, int rank)
{
    mark_domain(j, row, j->domain_of[rank]);
    if (j->copied_to != NULL && j->copied_to[rank] >= 0)
        mark_domain(j, row, j->domain_of[j->copied_to[rank]]);
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

            mark_part(j, (layer * p->experts + p->expert_of[s]) * mesh->etp + i, rank);
        }
}

/* Marks the domains that hold the other weights: in a stage, ranks that are equal modulo --tp hold
 * the same shard. */
static void mark_shards(survivability_work *j, const ek_run *r)
{
    const ek_mesh *mesh = r->mesh;

    for (int rank = 0; rank < r->ranks; rank++)
        mark_part(j,
                  j->expert_rows + rank / mesh->stage_size * mesh->tp +
                      rank % mesh->stage_size % mesh->tp,
                  rank);
}

/* Whether rank i has alone what the ranks of a kind of group, of n, shard: with --zero its range of
 * their buckets; else its columns of the embedding, which the first stage has. */
static int has_range(const ek_run *r, int kind, int n, int i)
{
    return n > 1 && (r->cfg->zero > 0 || (kind == 0 && i < r->mesh->stage_size));
}

/* Marks the domains that hold what each rank keeps of sharded buckets and of the embedding: its
 * own, and that of its partner. */
static void mark_ranges(survivability_work *j, const ek_run *r)
{
    const ek_mesh *mesh = r->mesh;
    const ek_ranks groups[KINDS] = {
        {0, mesh->tp, mesh->dp}, {0, 1, mesh->stage_size}, {0, mesh->ep * mesh->etp, mesh->edp}};
    int64_t row = j->rows - j->range_rows;

    for (int i = 0; i < r->ranks; i++)
        j->host_of[i] = ek_comm_node(r->world, i);
    for (int k = 0; k < KINDS; k++) {
        ek_partners_choose_groups(r->ranks, groups[k].stride, groups[k].n, j->host_of,
                                  r->options.rack_of, j->partner, j->scratch);
        for (int i = 0; i < r->ranks; i++, row++) {
            if (!has_range(r, k, groups[k].n, i))
                continue;
            mark_part(j, row, i);
            if (j->partner[i] >= 0)
                mark_domain(j, row, j->domain_of[j->partner[i]]);
        }
    }
}

/* Marks all parts; one rank of each stage contributes its layers.  Collective. */
static ek_status mark_all_parts(survivability_work *j, const ek_run *r)
{
    ek_coll *op = NULL;

    for (int64_t l = 0; l < r->source.spec.layers; l++)
        if (ek_model_has_moe_layer(r->model, l) && (r->mesh->pp == 1 || r->mesh->at == 0))
            mark_layer(j, r, l);
    if (r->mesh->pp == 1 || r->rank == 0) {
        mark_shards(j, r);
        if (j->range_rows > 0)
            mark_ranges(j, r);
    }
    if (r->mesh->pp == 1)
        return EK_OK;
    EK_TRY(
        ek_comm_all_reduce(r->world, j->masks, j->rows * j->replica_sets.words, EK_SUM_I64, &op));
    return ek_coll_wait(&op);
}

/* Domains that hold a part. */
static int count_domains(const survivability_work *j, int64_t row)
{
    int n = 0;

    for (int32_t w = 0; w < j->replica_sets.words; w++)
        n += __builtin_popcountll((uint64_t)j->masks[row * j->replica_sets.words + w]);
    return n;
}

/* Whether a row is a part of the model: dense layers have no experts, and groups of one rank no
 * ranges. */
static int is_part(const survivability_work *j, const ek_run *r, int64_t row)
{
    if (row >= j->rows - j->range_rows)
        return count_domains(j, row) > 0;
    return row >= j->expert_rows ||
           !r->source.spec.dense[row / (j->expert_rows / r->source.spec.layers)];
}

static void add_replica_sets(survivability_work *j, const ek_run *r)
{
    for (int64_t i = 0; i < j->rows; i++)
        if (is_part(j, r, i))
            ek_replica_sets_add(&j->replica_sets,
                                (const uint64_t *)j->masks + i * j->replica_sets.words);
}

/* Collects the replica sets of all parts, by hosts or by racks.  Collective. */
static ek_status collect_replica_sets(survivability_work *j, const ek_run *r, int racks)
{
    EK_TRY(ek_agree(r->world, "compute survivability",
                    reserve_work(j, r, number_domains(r, racks, NULL))));
    number_domains(r, racks, j->domain_of);
    EK_TRY(mark_all_parts(j, r));
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

int ek_run_has_copies(const ek_run *r)
{
    const ek_planner *p = r->training.moe.planner;

    if (p != NULL && p->enforces_replicas_min && r->options.replicas_min > 1)
        return 1;
    if (ek_run_has_partners(&r->partners))
        return 1;
    if (r->mesh == NULL || !r->cfg->elastic || !shards_state(r))
        return 0;
    return ek_run_count_hosts(r) > 1;
}

ek_status ek_run_evaluate_survivability(ek_run *r)
{
    ek_train_balance *b = &r->out->balance;
    const ek_copies_costs *copies;
    ek_status st = EK_OK;

    if (!ek_run_has_copies(r) && (!r->cfg->elastic || r->mesh == NULL || ek_run_count_hosts(r) < 2))
        return EK_OK;
    copies = r->partners.costs.lengthen > 0 ? &r->partners.costs : &r->options.copies;
    b->copies_lengthen = copies->lengthen;
    b->losses_cost = copies->losses;
    b->copies_left_out = copies->left_out;
    b->copies_kept = copies->kept || ek_run_has_partners(&r->partners);
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

/* Whether one host alone holds a part. */
static int is_alone(const survivability_work *j, int64_t row)
{
    return count_domains(j, row) == 1;
}

/* Counts experts, and those of which one host alone holds a shard. */
static void count_alone(const survivability_work *j, const ek_run *r, ek_loss_risk *out)
{
    int etp = r->mesh->etp;

    for (int64_t i = 0; i < j->expert_rows; i += etp) {
        int alone = 0;

        for (int shard = 0; shard < etp; shard++)
            alone |= is_alone(j, i + shard);
        out->experts += is_part(j, r, i);
        out->alone += is_part(j, r, i) && alone;
    }
    for (int64_t i = j->expert_rows; i < j->rows; i++)
        out->shard_alone |= is_alone(j, i);
}

ek_status ek_run_find_risk(ek_run *r, ek_loss_risk *out)
{
    survivability_work j = {0};
    ek_status st = EK_OK;

    *out = (ek_loss_risk){.hosts = 1, .p1 = 1, .p2 = 1};
    if (r->mesh == NULL)
        return EK_OK;
    EK_TRY_OUT(collect_replica_sets(&j, r, 0));
    out->hosts = j.replica_sets.domains;
    out->p1 = 1 - ek_replica_sets_survivability(&j.replica_sets, 1).p;
    if (out->hosts > 1)
        out->p2 = 1 - ek_replica_sets_survivability(&j.replica_sets, 2).p;
    count_alone(&j, r, out);
out:
    ek_arena_fini(&j.arena);
    return st;
}
