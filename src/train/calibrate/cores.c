/* Measures whether ranks share cores: what a rank gets of them while others wait.
 *
 * A limit on the processors of a container holds for all its processes together, and ranks beyond
 * the cores of a host run in turn.  A rank then computes faster while others wait.  So ranks
 * compute for a while in turn: all of them; those of the first node; the first rank alone.  Of each
 * the mean share of the wall time in which they ran, which the turbo of cores does not change. */
#include "train/calibrate/calibrate_priv.h"

#include <math.h>
#include <stdlib.h>

typedef enum { ALL, NODE, RANK, TURNS } turn;

enum { ROUNDS = 3, LOOKS = 2000 /* additions between looks at the clock */ };

/* Of a turn: as long as the default period of limits on processors. */
#define TURN_S 0.1
/* Below it a rank lacks a core of its own. */
#define WHOLE 0.9
/* Less than this, a rank that is alone does not gain: its cores have other work. */
#define GAIN 1.1

static int takes_part(const ek_calibration *c, turn t)
{
    return t == ALL ||
           (t == RANK ? c->rank == 0 : ek_calibrate_node(c, c->rank) == ek_calibrate_node(c, 0));
}

/* Share of the time in which the caller ran.  Looking at the clock needs no system call. */
static double compute(void)
{
    ek_stopwatch w = ek_stopwatch_start();
    ek_cpu_share share = {0};
    volatile double sum = 0;

    while (ek_calibrate_since(w.passed_ns) < TURN_S)
        for (int i = 0; i < LOOKS; i++)
            sum = sum + 1;
    (void)ek_stopwatch_stop(&w, 1, &share);
    return share.ran_s / share.passed_s;
}

/* *share: of those who take part, in the mean; the same on all ranks. */
static ek_status take_turn(const ek_calibration *c, turn t, double *share)
{
    double sum[2] = {0};
    ek_coll *op;

    EK_TRY(ek_comm_barrier(c->world));
    if (takes_part(c, t)) {
        sum[0] = compute();
        sum[1] = 1;
    }
    EK_TRY(ek_comm_all_reduce(c->world, sum, 2, EK_SUM_F64, &op));
    EK_TRY(ek_coll_wait(&op));
    *share = sum[0] / sum[1];
    return EK_OK;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *x)
{
    qsort(x, ROUNDS, sizeof(x[0]), compare);
    return x[ROUNDS / 2];
}

ek_status ek_calibrate_cores(ek_calibration *c)
{
    double share[TURNS][ROUNDS], all, node, rank;
    double other = c->cfg->k->threads > 1 || c->cfg->k->memory != NULL;

    if (c->ranks == 1)
        return EK_OK;
    EK_TRY(ek_calibrate_largest(c, &other, 1)); /* hosts may differ in threads */
    if (other > 0)
        return EK_OK;
    for (int i = 0; i < ROUNDS; i++)
        for (turn t = ALL; t < TURNS; t++) {
            EK_TRY(take_turn(c, t, &share[t][i]));
            if (share[ALL][0] >= WHOLE)
                return EK_OK;
        }
    all = median(share[ALL]);
    node = fmax(median(share[NODE]) / all, 1);
    rank = fmax(median(share[RANK]) / all, node);
    if (rank < GAIN)
        return EK_OK;
    c->m->node_alone = ek_cost_round(node);
    c->m->rank_alone = ek_cost_round(rank);
    return EK_OK;
}
