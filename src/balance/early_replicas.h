/* balance/early_replicas.h - replicas that are sent before the gate, as a plan from the counts of
 * an earlier micro-batch wants them, or those that are planned after it and waited for: which of
 * both ways a layer goes, and the plan that it serves.
 *
 * In every micro-batch both plans are made for the counts as they are (late_replicas.h), and their
 * times are added to fading means; the way that took less in these is that of the next micro-batch.
 * Training and the simulation of a trace (balance/replay.h) decide by the same functions. */
#ifndef BALANCE_EARLY_REPLICAS_H
#define BALANCE_EARLY_REPLICAS_H

#include "balance/late_replicas.h"

/* A layer's predicted times; begins as zeros. */
typedef struct {
    double before_s, after_s;         /* with replicas sent before the gate, and after it: fading
                                         means over `judged` micro-batches */
    double now_before_s, now_after_s; /* of the one at work, summed over its groups */
    int judged;
} ek_early_times;

/* Whether the next replicas are better sent before the gate. */
int ek_early_pays(const ek_early_times *t);

/* Adds the micro-batch at work to the means, in which recent ones count most. */
void ek_early_judge(ek_early_times *t);

/* Whether a plan's slots [n] still have the persistent copies of now [n] (experts, or -1). */
int ek_early_is_current(const int32_t *now, const int32_t *planned, int64_t n);

/* What a choice of a group is between. */
typedef struct {
    ek_late_replicas *late;
    const ek_plan_limits *limits;
    const int64_t *counts;     /* [ranks][experts], as they are */
    const int32_t *persistent; /* [ranks * slots], experts, or -1 */
    const ek_plan *made;       /* from earlier counts: what was sent before the gate, or would have
                                  been, with the primaries as they are */
    int sent;                  /* whether it was */
    /* Makes a plan from the counts as they are, of the persistent copies; *p has their placement.
     */
    ek_status (*plan)(void *context, ek_plan *p);
    void *context;
    int32_t *expert_of; /* [ranks * slots] scratch: the plan that is not used, */
    int64_t *quota;     /* and its quotas */
} ek_early_choice;

/* Completes a plan that begins with the placement of c->made: quotas for the counts, late replicas
 * where they pay.  Replicas that were sent stay in their slots.  Of c, neither plan nor scratch are
 * used. */
void ek_early_complete(const ek_early_choice *c, ek_plan *p);

/* Makes both plans, and adds their times to those of the micro-batch at work.  *p: in: the
 * placement of c->made if that was sent, else the persistent copies; out: the plan to serve.  A
 * failure of c->plan. */
EK_CHECKED ek_status ek_early_choose(const ek_early_choice *c, ek_early_times *t, ek_plan *p);

#endif
