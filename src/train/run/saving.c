/* When a run saves: at a given interval, or at one that it chooses itself with --elastic
 * (train/save_interval.h).
 *
 * Rank 0 measures and decides; the others learn of it with the sums of each step, and all keep what
 * was measured in the warm state, so that the next generation goes on from it whoever is lost. */
#include "base/clock.h"
#include "base/log.h"
#include "train/run/layouts.h"

#include <math.h>
#include <string.h>

_Static_assert(sizeof(ek_save_history) <= EK_PASS_SHARED * sizeof(double) &&
                   sizeof(ek_save_history) % sizeof(double) == 0,
               "the history is shared as numbers");

/* An interval that has changed by less is not logged again. */
static const double logged_ratio = 2;

int ek_run_saves_by_itself(const ek_run *r)
{
    return r->cfg->elastic && r->cfg->save_every < 0 && r->cfg->save_seconds == 0;
}

int ek_run_saves_often(const ek_run *r)
{
    return r->cfg->save_every > 0 || r->cfg->save_seconds > 0 || ek_run_saves_by_itself(r);
}

/* The prior's time between losses of a host. */
static double prior_s(const ek_run *r)
{
    return r->cfg->host_mtbf * 3600;
}

/* Hosts of the generation before that left no state, by its ranks that are missing. */
static double count_lost_hosts(const ek_run *r, const ek_save_history *h)
{
    const ek_recovery *found = &r->memory.recovery;
    int32_t ranks = 0, there = 0;

    for (int32_t i = 0; i < found->n_survivors; i++)
        if (found->survivors[i].survivor.generation == found->decision.generation) {
            ranks = found->survivors[i].ranks;
            there++;
        }
    if (there >= ranks)
        return 0;
    return ceil((double)(ranks - there) * fmax(h->hosts, 1) / (double)ranks);
}

void ek_run_recall_saves(ek_run *r)
{
    ek_save_history h = {0};

    memcpy(&h, ek_trainer_shared(r->trainer), sizeof(h));
    if (!ek_save_history_is_valid(&h))
        h = (ek_save_history){0};
    h.lost += count_lost_hosts(r, &h);
    r->saves.history = h;
}

/* Finds the interval, and logs one that is new. */
static void find_interval(ek_run *r)
{
    ek_run_saves *s = &r->saves;
    ek_train_checkpoints *out = &r->out->checkpoints;

    s->interval = ek_save_interval_find(&s->history, &s->risk, prior_s(r),
                                        (double)ek_train_save_bytes(r->model));
    if (s->interval.steps == 0)
        return;
    *out = (ek_train_checkpoints){.automatic = 1,
                                  .interval_steps = s->interval.steps,
                                  .interval_s = s->interval.seconds,
                                  .save_s = s->interval.save_s,
                                  .mtbf_s = s->interval.mtbf_s,
                                  .hosts_lost = (int64_t)s->history.lost,
                                  .saved = s->n_paid,
                                  .paid_s = s->paid_s};
    ek_save_interval_text(&s->interval, &s->history, &s->risk, out->reason, sizeof(out->reason));
    if (s->logged_s > 0 && s->interval.seconds < logged_ratio * s->logged_s &&
        s->logged_s < logged_ratio * s->interval.seconds)
        return;
    s->logged_s = s->interval.seconds;
    ek_log("train", EK_LOG_INFO, "--save-every auto: %s", out->reason);
}

ek_status ek_run_begin_saves(ek_run *r)
{
    r->saves.saving_step = r->saves.checkpoint_step;
    if (!r->cfg->elastic)
        return EK_OK;
    if (r->layouts->changes > 0)
        r->saves.history = r->layouts->saves;
    EK_TRY(ek_run_find_risk(r, &r->saves.risk));
    r->saves.history.hosts = r->saves.risk.hosts;
    return EK_OK;
}

int ek_run_is_save_due(const ek_run *r, int64_t done)
{
    const ek_run_saves *s = &r->saves;
    double passed = (double)(ek_clock_ns() - s->began_ns) / 1e9;

    if (r->cfg->save_seconds > 0)
        return passed >= (double)r->cfg->save_seconds;
    return ek_run_saves_by_itself(r) && s->interval.steps > 0 && s->current == NULL &&
           done - s->saving_step >= s->interval.steps;
}

void ek_run_share_saves(ek_run *r)
{
    double numbers[EK_PASS_SHARED] = {0};

    if (!ek_run_saves_by_itself(r))
        return;
    if (r->rank == 0)
        memcpy(numbers, &r->saves.history, sizeof(r->saves.history));
    ek_trainer_share(r->trainer, numbers);
}

/* Adds the time of a step: it prolongs the save under way, or is one without. */
static void time_step(ek_run *r, double seconds)
{
    ek_run_saves *s = &r->saves;

    if (!s->timed) {
        ek_save_history_add_step(&s->history, seconds);
        return;
    }
    s->excess_s += seconds - s->history.step_s;
    if (s->current != NULL)
        return;
    s->timed = 0;
    if (s->history.step_s <= 0) /* nothing to compare with */
        return;
    s->excess_s = fmax(s->excess_s, s->blocked_s);
    ek_save_history_add_save(&s->history, s->excess_s, s->write_s);
    s->paid_s += s->excess_s;
    s->n_paid++;
}

/* How often the placement is looked at again: copies are replaced in the first steps after a loss,
 * later placements keep them. */
static int is_power_of_two(int64_t n)
{
    return (n & (n - 1)) == 0;
}

ek_status ek_run_time_step(ek_run *r, double seconds)
{
    ek_run_saves *s = &r->saves;
    int64_t taken = ek_trainer_steps_done(r->trainer) - r->first_step;

    if (!ek_run_saves_by_itself(r))
        return EK_OK;
    if (is_power_of_two(taken))
        EK_TRY(ek_run_find_risk(r, &s->risk));
    s->history.host_s += seconds * s->risk.hosts;
    if (taken > 1) /* the first one is slower */
        time_step(r, fmax(seconds - s->other_s, 0));
    s->other_s = 0;
    if (r->rank == 0)
        find_interval(r);
    return EK_OK;
}
