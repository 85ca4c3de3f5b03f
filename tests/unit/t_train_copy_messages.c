/* With several copies of experts, what the engine of messages has ranks send is what that of flow
 * counts: by rank, level and direction, of all-to-alls of rows, sums of copies and what these have
 * come to, in drawn clusters, loads and layouts. */
#include "base/random.h"
#include "ek_test.h"
#include "sim/price_net.h"
#include "toy_machine.h"
#include "train/net_calls.h"

enum { EXPERTS = 8, EP_MOST = 4, MOST = 16, ITERATIONS = 2, DRAWS = 60, ROW_BYTES = 24 };
enum { LARGE = 3 * 4000000, SMALL = 3 * 4000 }; /* gradients of an expert */

/* What a draw is of. */
typedef struct {
    ek_cluster cluster;
    ek_sim_loads_config cfg;
    ek_trace trace;
    int edp;
    double gradient;
} drawn;

static int64_t counts[ITERATIONS * EP_MOST][EXPERTS];

static int draw(uint64_t seed, int what, int n)
{
    return (int)(ek_random_uniform(9, seed, (uint64_t)what) * n);
}

/* --- loads ------------------------------------------------------------------------------------ */

/* Two levels, the first that of nodes or not; groups lie alike on them. */
static void draw_cluster(uint64_t seed, ek_cluster *c)
{
    *c = (ek_cluster){.n_levels = 2, .machine = toy_machine("fp32", 1e9, 1e12)};
    c->level[0] =
        (ek_cluster_level){.name = "node", .ranks = 1 << draw(seed, 0, 3), .bytes_s = 1e12};
    c->level[1] = (ek_cluster_level){.name = "net", .ranks = 64, .bytes_s = 1e12};
    if (draw(seed, 1, 2) > 0)
        snprintf(c->level[0].name, sizeof(c->level[0].name), "leaf");
}

static void draw_loads(uint64_t seed, const ek_model_spec *spec, drawn *d)
{
    static const ek_planner *const planners[] = {&ek_planner_replicate, &ek_planner_eplb,
                                                 &ek_planner_auto_replicas};
    int ep = 2 << draw(seed, 2, 2);

    draw_cluster(seed, &d->cluster);
    for (int i = 0; i < ITERATIONS * ep; i++) /* iterations are alike; some experts have most */
        for (int e = 0; e < EXPERTS; e++)
            counts[i][e] = 20 + 100 * draw(seed, 100 + i % ep * EXPERTS + e, 8) * (e < 3);
    d->trace = (ek_trace){.data = (const unsigned char *)counts,
                          .width = 8,
                          .iterations = ITERATIONS,
                          .layers = 1,
                          .sources = ep,
                          .experts = EXPERTS};
    d->edp = 1 + draw(seed, 3, 2);
    d->gradient = draw(seed, 4, 2) > 0 ? LARGE : SMALL;
    d->cfg = (ek_sim_loads_config){.trace = &d->trace,
                                   .dtype = "fp32",
                                   .planner = planners[draw(seed, 5, 3)],
                                   .spec = spec,
                                   .cluster = &d->cluster,
                                   .ep = ep,
                                   .etp = 1 + draw(seed, 6, 2),
                                   .spare_slots = 2 + draw(seed, 7, 3),
                                   .replicas_min = 1 + draw(seed, 8, 2),
                                   .all_serve = draw(seed, 9, 2),
                                   .rows = 1e4,
                                   .counted = 1,
                                   .horizon = 100,
                                   .batches = 1,
                                   .steps = 1,
                                   .by_level = 1,
                                   .by_rank = 1};
    d->cfg.ranks = d->edp * ep * d->cfg.etp;
}

/* --- calls ------------------------------------------------------------------------------------ */

static void count_messages(ek_net_calls *calls, const drawn *d, ek_net_traffic *sent,
                           ek_net_traffic *got)
{
    ek_recorder *r = ek_net_calls_recorder(calls);
    int left = d->cfg.ranks, moved = 1;
    ek_recorded m;

    while (moved) {
        for (moved = 0; ek_record_take(r, &m); moved = 1) {
            int l = ek_cluster_level_between(&d->cluster, m.from, m.to);

            sent[m.from].bytes[l] += (double)m.bytes;
            got[m.to].bytes[l] += (double)m.bytes;
            ek_record_left(r, m.id);
            ek_record_arrived(r, m.id);
        }
        for (int32_t i = 0; i < d->cfg.ranks; i++) {
            int32_t call = -1;

            do {
                CHECK_INT(ek_net_calls_finished(calls, i, &call), EK_OK);
                left -= call >= 0;
                moved |= call >= 0;
            } while (call >= 0);
        }
    }
    CHECK_INT(left, 0);
}

/* The bytes of a rank in the engine of flow. */
static void count_flow(const drawn *d, const ek_sim_loads *l, const ek_op *op, int rank, int down,
                       double *bytes)
{
    int column = rank / d->cfg.etp % d->cfg.ep;
    const ek_level_rows *rows = ek_sim_loads_exchange(l, op);
    ek_net_traffic t = ek_net_traffic_of(&d->cluster, &op->work.net, rank);
    double gradient;
    const ek_copy_traffic *sums = ek_sim_loads_copies(l, op, &gradient);

    if (sums != NULL)
        t = ek_copy_messages_traffic(&(down ? sums->got : sums->sent)[column], gradient);
    for (int i = 0; i < d->cluster.n_levels; i++)
        bytes[i] = sums != NULL ? t.bytes[i]
                                : t.bytes[i] * (down ? rows[column].got : rows[column].sent)[i];
}

/* Whether short vectors may go to several ranks at once: then bytes of all ranks are alike. */
static int is_tree(const drawn *d, const ek_op *op)
{
    return d->gradient == SMALL && d->cfg.ep > 2 && op->kind == EK_OP_SHARE_GRADIENTS;
}

static double compare(const drawn *d, const ek_sim_loads *l, const ek_op *op,
                      const ek_net_traffic *sent, const ek_net_traffic *got)
{
    double all[2] = {0};

    for (int r = 0; r < d->cfg.ranks; r++)
        for (int down = 0; down < 2; down++) {
            const ek_net_traffic *is = down ? &got[r] : &sent[r];
            double bytes[EK_CLUSTER_LEVELS];

            count_flow(d, l, op, r, down, bytes);
            for (int i = 0; i < d->cluster.n_levels; i++) {
                all[0] += down ? 0 : bytes[i];
                all[1] += down ? 0 : is->bytes[i];
                if (!is_tree(d, op) && fabs(is->bytes[i] - bytes[i]) > 1e-6)
                    EK_T_FAIL("%s %s, ep %d etp %d edp %d, nodes of %d: rank %d %s %.1f bytes by "
                              "level %d, flow %.1f",
                              d->cfg.planner->name, ek_op_name(op->kind), d->cfg.ep, d->cfg.etp,
                              d->edp, (int)d->cluster.level[0].ranks, r, down ? "gets" : "sends",
                              is->bytes[i], i, bytes[i]);
            }
        }
    CHECK(fabs(all[0] - all[1]) < 1e-6);
    return all[1];
}

/* Returns the bytes that all ranks send. */
static double run_op(const drawn *d, const ek_sim_loads *l, ek_net_calls *calls, ek_op_kind kind,
                     ek_collective collective)
{
    static ek_net_traffic sent[MOST], got[MOST];
    int span = d->cfg.ep * d->cfg.etp, sums = collective >= EK_COLLECTIVE_MULTICASTS;
    int slots = EXPERTS / d->cfg.ep + d->cfg.spare_slots;
    double rows = 0;
    ek_op op = {.kind = kind,
                .lane = sums ? EK_LANE_SUMS : EK_LANE_NET,
                .work = {.kind = EK_WORK_NET,
                         .net = {.collective = collective,
                                 .group = {0, 1, d->cfg.ranks},
                                 .span = span,
                                 .peer = -1,
                                 .element = 4}}};

    memset(sent, 0, sizeof(sent));
    memset(got, 0, sizeof(got));
    for (int s = 0; s < d->cfg.ep; s++)
        for (int e = 0; e < EXPERTS; e++)
            rows += (double)counts[s][e] / d->cfg.ep / d->cfg.ep; /* from each to each */
    op.work.net.bytes = sums ? d->gradient * slots : rows * ROW_BYTES * (span - 1);
    for (int r = 0; r < d->cfg.ranks; r++)
        CHECK_INT(ek_net_calls_start_op(calls, r, &op, &op.work.net, 0, kind), EK_OK);
    count_messages(calls, d, sent, got);
    return compare(d, l, &op, sent, got);
}

static void ranks_send_what_flow_counts(void)
{
    ek_model_spec spec;
    int summed = 0, spread = 0;

    ek_model_default(&spec);
    spec.layers = 1;
    spec.hidden = spec.ff = 64;
    spec.experts = EXPERTS;
    spec.top_k = 1;
    for (uint64_t seed = 0; seed < DRAWS; seed++) {
        ek_net_calls *calls = NULL;
        ek_sim_loads *l = NULL;
        int *node_of = NULL;
        drawn d;

        draw_loads(seed, &spec, &d);
        CHECK_INT(ek_sim_loads_open(&d.cfg, &l), EK_OK);
        CHECK_INT(ek_cluster_nodes(&d.cluster, d.cfg.ranks, &node_of), EK_OK);
        CHECK_INT(ek_net_calls_open(d.cfg.ranks, node_of, &calls), EK_OK);
        ek_net_calls_set_loads(calls, l, EXPERTS, d.cfg.ep, d.cfg.etp);
        for (int i = 0; i < 2; i++) { /* again: with other tags */
            (void)run_op(&d, l, calls, EK_OP_DISPATCH_A2A, EK_COLLECTIVE_A2A_LINEAR);
            (void)run_op(&d, l, calls, EK_OP_COMBINE_A2A, EK_COLLECTIVE_A2A_PAIRWISE);
            summed += run_op(&d, l, calls, EK_OP_REPLICA_GRADIENTS, EK_COLLECTIVE_MULTIREDUCES) > 0;
            spread += run_op(&d, l, calls, EK_OP_SHARE_GRADIENTS, EK_COLLECTIVE_MULTICASTS) > 0;
        }
        ek_net_calls_close(&calls);
        ek_sim_loads_close(&l);
        free(node_of);
    }
    CHECK(summed > DRAWS && spread > DRAWS); /* of twice as many */
}

static const ek_case cases[] = {
    EK_CASE(ranks_send_what_flow_counts),
};
EK_TEST_MAIN(cases)
