/* Measures whether ranks share cores: what a rank gets of them while others wait.
 *
 * A limit on the processors of a container holds for all its processes together, and ranks beyond
 * the cores of a host run in turn.  A rank then computes faster while others wait.  So ranks
 * compute for a while in turn: all of them; those of the first node; the first rank alone.  Of each
 * the mean share of the wall time in which they ran, which the turbo of cores does not change.
 *
 * Such ranks run and are suspended in turn, for milliseconds, and do not have done as much work at
 * the same time: where they meet, some wait.  So ranks also compute for a while and then exchange a
 * few bytes, over and over: how much longer that takes than as much computation alone, in the mean
 * of the ranks, as that is what prices of kernels are, and as many exchanges alone, together. */
#include "base/clock.h"
#include "comm/agree.h"
#include "train/calibrate/calibrate_priv.h"

#include <math.h>
#include <stdlib.h>

typedef enum { ALL, NODE, RANK, TURNS } turn;

enum { ROUNDS = 2, LOOKS = 2000 /* additions between looks at the clock */, MEETINGS = 10 };

/* Of a turn: as long as the default period of limits on processors. */
#define TURN_S 0.1
/* CPU time between two meetings. */
#define BETWEEN_S 2e-3
/* Below it a rank lacks a core of its own. */
#define WHOLE 0.9
/* Less than this, a rank that is alone does not gain: its cores have other work. */
#define GAIN 1.1

static int takes_part(const ek_calibration *c, turn t)
{
    return t == ALL ||
           (t == RANK ? c->rank == 0 : ek_calibrate_node(c, c->rank) == ek_calibrate_node(c, 0));
}

/* What a rank has done: looks at the clock, which needs no system call, and time. */
typedef struct {
    double looks;
    ek_cpu_share took;
} work;

static double look(int64_t since)
{
    volatile double sum = 0;

    for (int i = 0; i < LOOKS; i++)
        sum = sum + 1;
    return ek_calibrate_since(since);
}

/* Share of the time in which the caller ran. */
static double compute(work *done)
{
    ek_stopwatch w = ek_stopwatch_start();
    ek_cpu_share share = {0};
    double looks = 1;

    while (look(w.passed_ns) < TURN_S)
        looks++;
    (void)ek_stopwatch_stop(&w, 1, &share);
    done->looks += looks;
    done->took.ran_s += share.ran_s;
    return share.ran_s / share.passed_s;
}

/* *share: of those who take part, in the mean; the same on all ranks. */
static ek_status take_turn(const ek_calibration *c, turn t, work *done, double *share)
{
    double sum[2] = {0};
    ek_coll *op;

    EK_TRY(ek_comm_barrier(c->world));
    if (takes_part(c, t)) {
        sum[0] = compute(done);
        sum[1] = 1;
    }
    EK_TRY(ek_comm_all_reduce(c->world, sum, 2, EK_SUM_F64, &op));
    EK_TRY(ek_coll_wait(&op));
    *share = sum[0] / sum[1];
    return EK_OK;
}

static double mean_of_rounds(const double *x)
{
    double sum = 0;

    for (int i = 0; i < ROUNDS; i++)
        sum += x[i];
    return sum / ROUNDS;
}

/* --- meetings --------------------------------------------------------------------------------- */

static ek_status meet(const ek_calibration *c, const int64_t *rows, unsigned char *bytes)
{
    ek_coll *op;

    EK_TRY(ek_comm_all_to_all(c->world, EK_A2A_LINEAR, rows, 1, bytes, bytes + c->ranks, &op));
    return ek_coll_wait(&op);
}

typedef enum {
    TOGETHER, /* computation, and a meeting after each part of it */
    APART,    /* the same computation alone */
    IDLE      /* as many meetings alone */
} meetings_kind;

/* Who sends a byte to whom: the ranks of a node to one another, or all. */
static void set_rows(const ek_calibration *c, ek_link link, int64_t *rows)
{
    for (int i = 0; i < c->ranks; i++)
        for (int j = 0; j < c->ranks; j++)
            rows[i * c->ranks + j] = i != j && (link == EK_LINK_NET ||
                                                ek_calibrate_node(c, i) == ek_calibrate_node(c, j));
}

static ek_status mean_of_ranks(const ek_calibration *c, double *x)
{
    ek_coll *op;

    EK_TRY(ek_comm_all_reduce(c->world, x, 1, EK_SUM_F64, &op));
    EK_TRY(ek_coll_wait(&op));
    *x /= c->ranks;
    return EK_OK;
}

/* *seconds := of computation alone in the mean of the ranks, else on the slowest one. */
static ek_status time_meetings(const ek_calibration *c, meetings_kind kind, double looks,
                               const int64_t *rows, unsigned char *bytes, double *seconds)
{
    int64_t start;

    EK_TRY(ek_comm_barrier(c->world));
    start = ek_clock_ns();
    for (int i = 0; i < MEETINGS; i++) {
        for (double n = 0; kind != IDLE && n < looks; n++)
            (void)look(start);
        if (kind != APART)
            EK_TRY(meet(c, rows, bytes));
    }
    *seconds = ek_calibrate_since(start);
    return kind == APART ? mean_of_ranks(c, seconds) : ek_calibrate_largest(c, seconds, 1);
}

/* late [EK_LINKS] += how much longer a meeting takes because computation came before it.  What is
 * compared follows at once, as the share of the cores that ranks get changes. */
static ek_status measure_meetings(const ek_calibration *c, double looks, int64_t *rows,
                                  unsigned char *bytes, double *late)
{
    double apart = 0;

    EK_TRY(time_meetings(c, APART, looks, rows, bytes, &apart));
    for (int k = 0; k < EK_LINKS; k++) {
        double together = 0, idle = 0;

        if (c->m->link[k].message.n == 0)
            continue;
        set_rows(c, (ek_link)k, rows);
        EK_TRY(time_meetings(c, TOGETHER, looks, rows, bytes, &together));
        EK_TRY(time_meetings(c, IDLE, looks, rows, bytes, &idle));
        late[k] += (together - apart - idle) / MEETINGS;
    }
    return EK_OK;
}

static ek_status measure_all_meetings(ek_calibration *c, const work *done)
{
    int64_t *rows = calloc((size_t)c->ranks * (size_t)c->ranks, sizeof(*rows));
    unsigned char *bytes = calloc(2 * (size_t)c->ranks, 1);
    double looks = BETWEEN_S * done->looks / fmax(done->took.ran_s, 1e-9), late[EK_LINKS] = {0};
    ek_status st = EK_OK;

    if (rows == NULL || bytes == NULL)
        st = EK_FAIL(EK_ENOMEM, "no memory for %d ranks", c->ranks);
    EK_TRY_OUT(ek_agree(c->world, "measure meetings", st));
    for (int i = 0; i < ROUNDS; i++)
        EK_TRY_OUT(measure_meetings(c, looks, rows, bytes, late));
    for (int k = 0; k < EK_LINKS; k++)
        c->m->link[k].arrival_skew_s = ek_cost_round(fmax(late[k] / ROUNDS, 0));
out:
    free(rows);
    free(bytes);
    return st;
}

ek_status ek_calibrate_cores(ek_calibration *c)
{
    double share[TURNS][ROUNDS], all, node, rank;
    work done = {0};
    double other = c->cfg->k->threads > 1 || c->cfg->k->memory != NULL;

    if (c->ranks == 1)
        return EK_OK;
    EK_TRY(ek_calibrate_largest(c, &other, 1)); /* hosts may differ in threads */
    if (other > 0)
        return EK_OK;
    for (int i = 0; i < ROUNDS; i++)
        for (turn t = ALL; t < TURNS; t++) {
            if (t == NODE && c->a_node == 1) /* as RANK */
                continue;
            EK_TRY(take_turn(c, t, &done, &share[t][i]));
            if (share[ALL][0] >= WHOLE)
                return EK_OK;
        }
    all = c->busy_share = mean_of_rounds(share[ALL]);
    EK_TRY(measure_all_meetings(c, &done));
    node = fmax(mean_of_rounds(share[c->a_node == 1 ? RANK : NODE]) / all, 1);
    rank = fmax(mean_of_rounds(share[RANK]) / all, node);
    if (rank < GAIN)
        return EK_OK;
    c->m->node_alone = ek_cost_round(node);
    c->m->rank_alone = ek_cost_round(rank);
    return EK_OK;
}
