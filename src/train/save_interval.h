/* train/save_interval.h - how many steps to take between checkpoints, from what a save
 * costs and how often one is needed.
 *
 * Source       J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart
 *              dumps, FGCS 22 (2006); its first term is that of Young (1974).
 * Formula      With a save of c seconds and one need for a checkpoint every M seconds, the time
 *              between saves that wastes least is
 *                t = sqrt(2 c M) (1 + x / 3 + x^2 / 9) - c,  x = sqrt(c / 2 M),  if c < 2 M
 *                t = M                                                           otherwise.
 *              At least the time that a save takes to be complete, and a step.
 * Hosts        are lost at a rate that is the mean of a gamma distribution: as if one had been lost
 *              in the prior's time before the run, (1 + lost) / (prior + time of all hosts).
 * Need         A run goes back to a checkpoint when no host has a copy of some part of the model.
 *              With p1 and p2 the probabilities that the loss of one and of two random hosts does
 *              that, each loss of one of n hosts does it with probability
 *                p = p1 + (1 - p1) min(1, EK_LOSS_COMMON + (n - 1) rate EK_LOSS_WINDOW_S p2):
 *              a second host may be lost before the copies are replaced, and some causes take
 *              several hosts at once.  M = 1 / (n rate p).
 *
 * Pure; the same inputs give the same interval. */
#ifndef TRAIN_SAVE_INTERVAL_H
#define TRAIN_SAVE_INTERVAL_H

#include <stddef.h>
#include <stdint.h>

#define EK_LOSS_COMMON                                                                             \
    0.01                      /* of losses: those that take more hosts than any placement survives \
                               */
#define EK_LOSS_WINDOW_S 60.0 /* from a loss until its copies are replaced */

/* What was measured over the whole run, on rank 0.  Numbers, as they are shared like sums; zeros at
 * the beginning. */
typedef struct {
    double lost;    /* hosts */
    double host_s;  /* seconds of all hosts together */
    double save_s;  /* a save prolongs the run by this: fading mean */
    double write_s; /* until a save is complete: fading mean */
    double step_s;  /* a step without a save: fading mean; 0: unknown */
    double saves;   /* in save_s and write_s */
    double hosts;   /* now */
} ek_save_history;

/* Whether it can have been measured: memory of earlier processes may be damaged. */
int ek_save_history_is_valid(const ek_save_history *h);
/* Adds the time of a step that no save prolonged. */
void ek_save_history_add_step(ek_save_history *h, double seconds);
void ek_save_history_add_save(ek_save_history *h, double seconds, double write_s);

/* What losses of hosts cost, by the placement of the model's parts. */
typedef struct {
    int hosts;
    double p1, p2;   /* see above */
    int64_t experts; /* of all MoE layers together; of them, */
    int64_t alone;   /* those of which one host holds some part alone */
    int shard_alone; /* 1: so it is with a part of the other weights */
} ek_loss_risk;

typedef struct {
    int64_t steps;      /* 0: not known yet, as no step was timed */
    double seconds;     /* of these steps */
    double save_s;      /* cost of a save, */
    int assumed;        /* 1: not measured yet */
    double host_mtbf_s; /* mean time between losses, of one host, */
    double mtbf_s;      /* and between needs for a checkpoint */
} ek_save_interval;

/* t of the formula, in seconds. */
double ek_save_interval_optimum(double save_s, double mtbf_s);

/* prior_s: mean time between losses of a host, where none was seen.  bytes: of a checkpoint that
 * one rank writes, for the cost as long as none was measured. */
ek_save_interval ek_save_interval_find(const ek_save_history *h, const ek_loss_risk *risk,
                                       double prior_s, double bytes);

/* Part of a run's time that saves and the steps repeated after a need for a checkpoint are expected
 * to take, with saves of c seconds every t: c / t + t / 2 M, at most 1 (the first terms of the
 * formula's waste).  every_s: t; 0: the optimum, at least write_s.  never: nothing is saved in a
 * run of every_s.  The rest as above. */
double ek_save_waste(const ek_save_history *h, const ek_loss_risk *risk, double prior_s,
                     double bytes, double every_s, int never);

/* Writes a line such as "every 40 steps (12 s), as a save costs 0.2 s, ..."; returns text [cap]. */
const char *ek_save_interval_text(const ek_save_interval *i, const ek_save_history *h,
                                  const ek_loss_risk *risk, char *text, size_t cap);

#endif
