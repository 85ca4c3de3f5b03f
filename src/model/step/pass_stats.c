/* Statistics of a step: gathered from the layers, summed over the ranks, read. */
#include "exec/net.h"
#include "model/step/pass.h"
#include "moe/planning_speeds.h"
#include "moe/replica_weights.h"

#include <math.h>
#include <string.h>

/* Per rank: loss, vote, shared numbers, stall and step time; then values that are the same on all
 * ranks of a stage; then per layer: max over mean of its ranks with the initial placement and as
 * computed, replicas and moves, counts for the roofline, and the load of each expert; then, where
 * speeds of ranks are followed, per expert rank of each stage: seconds of products, and cost. */
enum {
    SUM_LOSS,
    SUM_VOTE,
    SUM_SHARED,
    SUM_STALL = SUM_SHARED + EK_PASS_SHARED,
    SUM_STEP,
    SUM_AUX,
    SUM_Z,
    SUM_DROPPED,
    SUM_PLANS,
    SUM_PLAN,
    SUMS_FIXED
};
enum { SPEED_SECONDS, SPEED_COST, SPEEDS };
enum {
    LAYER_PRIMARY,
    LAYER_PRIMARY_DEVIATION,
    LAYER_RANKS,
    LAYER_RANKS_DEVIATION,
    LAYER_COPIES,
    LAYER_COPIES_BYTES,
    LAYER_COPIES_AHEAD,
    LAYER_MOVED,
    LAYER_ROWS,
    LAYER_BUSIEST,
    LAYER_LINK,
    LAYER_REPLICAS,
    LAYER_SAVED_ROWS,
    LAYER_LOAD
};

void ek_pass_reserve_stats(ek_pass *p)
{
    const ek_model_spec *s = &p->model->spec;
    ek_arena *host = ek_arena_host(&p->arena);

    p->stats.speeds = SUMS_FIXED + s->layers * (LAYER_LOAD + s->experts);
    p->stats.n_sums = p->stats.speeds + (int64_t)SPEEDS * ek_pass_speed_ranks(p);
    p->stats.seconds = ek_arena_alloc(host, p->planning.speeds.ranks, sizeof(*p->stats.seconds));
    p->stats.rows = ek_arena_alloc(host, p->planning.speeds.ranks, sizeof(*p->stats.rows));
    p->stats.groups = ek_arena_alloc(host, p->planning.speeds.ranks, sizeof(*p->stats.groups));
    p->stats.sums = ek_arena_alloc(host, p->stats.n_sums, sizeof(*p->stats.sums));
}

static double *layer_sums(const ek_pass *p, int64_t layer)
{
    return p->stats.sums + SUMS_FIXED + layer * (LAYER_LOAD + p->model->spec.experts);
}

const double *ek_pass_load(const ek_pass *p, int64_t layer)
{
    return layer_sums(p, layer) + LAYER_LOAD;
}

ek_roofline_counts ek_pass_work(const ek_pass *p, int64_t layer)
{
    const double *sums = layer_sums(p, layer);

    return (ek_roofline_counts){.rows = sums[LAYER_ROWS],
                                .busiest = sums[LAYER_BUSIEST],
                                .link = sums[LAYER_LINK],
                                .replicas = sums[LAYER_REPLICAS]};
}

ek_layer_balance ek_pass_balance(const ek_pass *p, int64_t layer)
{
    const double *sums = layer_sums(p, layer);

    return (ek_layer_balance){
        .before = {sums[LAYER_PRIMARY], sums[LAYER_PRIMARY_DEVIATION]},
        .after = {sums[LAYER_RANKS], sums[LAYER_RANKS_DEVIATION]},
        .replicas = sums[LAYER_COPIES],
        .replicas_ahead = sums[LAYER_COPIES_AHEAD],
        .replica_bytes = sums[LAYER_COPIES_BYTES],
        .experts_moved = sums[LAYER_MOVED],
    };
}

/* --- speeds of expert ranks ------------------------------------------------------------------- */

int32_t ek_pass_speed_ranks(const ek_pass *p)
{
    return p->planning.speeds.ranks * p->model->cfg.mesh->pp;
}

/* The first expert rank of this stage. */
static int32_t first_speed_rank(const ek_pass *p)
{
    return p->model->cfg.mesh->pp_rank * p->planning.speeds.ranks;
}

static double *speed_sums(const ek_pass *p, int32_t rank)
{
    return p->stats.sums + p->stats.speeds + (int64_t)SPEEDS * rank;
}

double ek_pass_row_cost(const ek_pass *p, int32_t i)
{
    return speed_sums(p, i)[SPEED_COST];
}

/* Whether the products of a step were those of whole experts at the rows' ranks. */
static int counts_for_speeds(const ek_moe *m)
{
    return m->w->routed && ek_moe_is_distributed(m) && m->x.members == 1 && !m->x.local;
}

static void fill_speeds(ek_pass *p)
{
    const ek_mesh *mesh = p->model->cfg.mesh;
    int32_t own = first_speed_rank(p) + mesh->edp_rank * mesh->ep + mesh->ep_rank;

    if (p->planning.speeds.ranks == 0)
        return;
    for (int64_t l = 0; l < p->model->spec.layers; l++)
        if (ek_model_has_layer(p->model, l) && counts_for_speeds(&p->moe[l]))
            speed_sums(p, own)[SPEED_SECONDS] += (double)p->moe[l].stats.product_ns * 1e-9;
    for (int32_t r = 0; mesh->at == 0 && r < p->planning.speeds.ranks; r++)
        speed_sums(p, first_speed_rank(p) + r)[SPEED_COST] =
            (double)p->planning.speeds.cost[r] / EK_ROW_COST_ONE;
}

int ek_pass_follow_speeds(ek_pass *p)
{
    int32_t ranks = p->planning.speeds.ranks;
    double *seconds = p->stats.seconds, *rows = p->stats.rows, *groups = p->stats.groups;

    if (ranks == 0)
        return 0;
    memset(rows, 0, (size_t)ranks * sizeof(*rows));
    memset(groups, 0, (size_t)ranks * sizeof(*groups));
    for (int64_t l = 0; l < p->model->spec.layers; l++) {
        const ek_moe_stats *s = &p->moe[l].stats;

        if (!ek_model_has_layer(p->model, l) || !counts_for_speeds(&p->moe[l]))
            continue;
        for (int32_t r = 0; r < ranks; r++) {
            rows[r] += (double)s->rank_rows[r];
            groups[r] += (double)s->rank_groups[r];
        }
    }
    for (int32_t r = 0; r < ranks; r++)
        seconds[r] = speed_sums(p, first_speed_rank(p) + r)[SPEED_SECONDS];
    return ek_planning_speeds_add(&p->planning, seconds, rows, groups);
}

void ek_pass_set_step_time(ek_pass *p, double seconds)
{
    p->stats.last_step_s = seconds;
}

void ek_pass_set_vote(ek_pass *p, double vote)
{
    p->stats.vote = vote;
}

double ek_pass_votes(const ek_pass *p)
{
    return p->stats.sums[SUM_VOTE];
}

void ek_pass_share(ek_pass *p, const double numbers[EK_PASS_SHARED])
{
    memcpy(p->stats.shared, numbers, sizeof(p->stats.shared));
}

const double *ek_pass_shared(const ek_pass *p)
{
    return p->stats.sums + SUM_SHARED;
}

void ek_pass_sum(ek_pass *p)
{
    const ek_model_spec *s = &p->model->spec;

    memset(p->stats.sums, 0, (size_t)p->stats.n_sums * sizeof(*p->stats.sums));
    p->stats.sums[SUM_LOSS] = p->backward.loss.sum;
    p->stats.sums[SUM_VOTE] = p->stats.vote;
    memcpy(p->stats.sums + SUM_SHARED, p->stats.shared, sizeof(p->stats.shared));
    p->stats.sums[SUM_STEP] = p->stats.last_step_s;
    for (int64_t l = 0; l < s->layers; l++)
        p->stats.sums[SUM_STALL] += (double)p->moe[l].stats.stall_ns * 1e-9;
    fill_speeds(p);
    if (p->model->cfg.mesh->at != 0) /* the rest is replicated over the stage */
        return;
    for (int64_t l = 0; l < s->layers; l++) {
        const ek_moe *m = &p->moe[l];
        double *sums = layer_sums(p, l);
        ek_rank_balance of;

        if (!ek_model_has_layer(p->model, l) || !m->w->routed)
            continue;
        p->stats.sums[SUM_AUX] += m->stats.aux_loss;
        p->stats.sums[SUM_Z] += m->stats.z_loss;
        p->stats.sums[SUM_DROPPED] += (double)m->stats.dropped;
        p->stats.sums[SUM_PLANS] += (double)m->stats.plans;
        p->stats.sums[SUM_PLAN] += m->stats.plan_s;
        of = ek_moe_primary_balance(&m->stats, &m->x);
        sums[LAYER_PRIMARY] = of.max_over_mean;
        sums[LAYER_PRIMARY_DEVIATION] = of.deviation;
        of = ek_moe_rank_balance(&m->stats, &m->x);
        sums[LAYER_RANKS] = of.max_over_mean;
        sums[LAYER_RANKS_DEVIATION] = of.deviation;
        sums[LAYER_COPIES] = (double)m->stats.replicas;
        sums[LAYER_COPIES_BYTES] = ek_moe_replica_bytes(m);
        sums[LAYER_COPIES_AHEAD] = (double)m->stats.ahead;
        sums[LAYER_MOVED] = (double)(p->rebalance.moved[l] * p->model->cfg.mesh->edp);
        sums[LAYER_ROWS] = m->stats.work.rows;
        sums[LAYER_BUSIEST] = m->stats.work.busiest;
        sums[LAYER_LINK] = m->stats.work.link;
        sums[LAYER_REPLICAS] = m->stats.work.replicas;
        sums[LAYER_SAVED_ROWS] = m->stats.saved_rows;
        for (int64_t e = 0; e < s->experts; e++)
            sums[LAYER_LOAD + e] = (double)m->stats.load[e];
    }
}

/* Of each stage; the most of them. */
static double slowest_over_fastest(const ek_pass *p)
{
    int32_t ranks = p->planning.speeds.ranks;
    double worst = 1;

    for (int32_t first = 0; first < ek_pass_speed_ranks(p); first += ranks) {
        double least = ek_pass_row_cost(p, first), most = least;

        for (int32_t r = first; r < first + ranks; r++) {
            least = fmin(least, ek_pass_row_cost(p, r));
            most = fmax(most, ek_pass_row_cost(p, r));
        }
        worst = least > 0 ? fmax(worst, most / least) : worst;
    }
    return worst;
}

static void add_worst(ek_rank_balance *worst, const ek_rank_balance *of)
{
    worst->max_over_mean = fmax(worst->max_over_mean, of->max_over_mean);
    worst->deviation = fmax(worst->deviation, of->deviation);
}

/* Time of an assignment on a rank: as measured in the step's products, mean of the ranks, where
 * that is followed, else as calibrated. */
static double seconds_a_row(const ek_pass *p)
{
    const ek_mesh *mesh = p->model->cfg.mesh;
    double seconds = 0, rows = 0;

    for (int32_t r = 0; r < ek_pass_speed_ranks(p); r++)
        seconds += speed_sums(p, r)[SPEED_SECONDS];
    for (int64_t l = 0; l < p->model->spec.layers; l++)
        rows += layer_sums(p, l)[LAYER_ROWS];
    if (seconds > 0 && rows > 0)
        return seconds / (rows * mesh->etp); /* each shard computes all rows of its rank */
    return p->planning.limits.costs.compute_s_per_row / mesh->etp;
}

void ek_pass_losses(const ek_pass *p, ek_losses *out)
{
    const ek_model_spec *s = &p->model->spec;
    const double *sums = p->stats.sums;
    double saved_rows = 0;

    memset(out, 0, sizeof(*out));
    out->loss = p->backward.loss.tokens > 0 ? sums[SUM_LOSS] / p->backward.loss.tokens : 0;
    out->masked = p->backward.loss.masked;
    out->loss_tokens = p->backward.loss.tokens;
    out->aux_loss = sums[SUM_AUX];
    out->z_loss = sums[SUM_Z];
    out->dropped = (int64_t)sums[SUM_DROPPED];
    out->plans = (int64_t)sums[SUM_PLANS];
    out->plan_s = sums[SUM_PLAN];
    out->step_s = sums[SUM_STEP] / p->model->cfg.mesh->size;
    out->replica_wait_s = sums[SUM_STALL] / p->model->cfg.mesh->size;
    out->slowest_rank = slowest_over_fastest(p);
    for (int64_t l = 0; l < s->layers; l++) {
        const double *load = ek_pass_load(p, l);
        ek_layer_balance of = ek_pass_balance(p, l);
        double total = 0, most = 0;

        if (s->dense[l])
            continue;
        for (int64_t e = 0; e < s->experts; e++) {
            total += load[e];
            most = load[e] > most ? load[e] : most;
        }
        out->expert_max_over_mean =
            fmax(out->expert_max_over_mean, total > 0 ? most * (double)s->experts / total : 1);
        add_worst(&out->ranks, &of.after);
        add_worst(&out->primaries, &of.before);
        out->replicas += (int64_t)of.replicas;
        out->replicas_ahead += (int64_t)of.replicas_ahead;
        out->replica_bytes += of.replica_bytes;
        out->experts_moved += (int64_t)of.experts_moved;
        saved_rows += layer_sums(p, l)[LAYER_SAVED_ROWS];
    }
    out->saved_s = saved_rows * seconds_a_row(p) / p->model->cfg.mesh->pp;
}

static ek_status op_sum_losses(void *self, const ek_op *op)
{
    ek_pass *p = self;

    if (!ek_net_started(op))
        EK_TRY(ek_comm_all_reduce(p->model->cfg.mesh->world, p->stats.sums, p->stats.n_sums,
                                  EK_SUM_F64, ek_net_cell(op)));
    return ek_net_test(op);
}

int32_t ek_pass_build_sum(ek_pass *p, ek_graph *g)
{
    ek_op op = ek_net_op(EK_OP_SUM_LOSSES, op_sum_losses, p,
                         ek_net_work_of(p->model->cfg.mesh, EK_MESH_WORLD, EK_COLLECTIVE_ALL_REDUCE,
                                        (double)p->stats.n_sums * sizeof(double), sizeof(double)));

    return p->model->cfg.mesh->size > 1 ? ek_graph_after(g, &op, g->n_ops - 1) : -1;
}
