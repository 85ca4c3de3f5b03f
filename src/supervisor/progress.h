/* supervisor/progress.h - progress of a job by the messages of rank 0: duration of each phase, and
 * hang detection.  Pure: the caller passes the time. */
#ifndef SUPERVISOR_PROGRESS_H
#define SUPERVISOR_PROGRESS_H

#include <stdint.h>

/* Phases of a start.  launch: until all workers have sent "start"; connect: until all have sent
 * "rank"; the others as rank 0 reports them: plan: reads data and inspects state left in memory;
 * transfer: restores its state. */
typedef enum {
    EK_PHASE_LAUNCH,
    EK_PHASE_CONNECT,
    EK_PHASE_PLAN,
    EK_PHASE_TRANSFER,
    EK_PHASE_STEP,
    EK_PHASE_EVALUATE,
    EK_PHASE_CHECKPOINT,
    EK_PHASE_END,
    EK_PHASES
} ek_phase;

enum { EK_STEPS_KEPT = 32 };
enum { EK_STALL_NS = 500000000 }; /* longer gaps between polls (0.1 s): it did not run */

typedef struct {
    double watchdog_s; /* 0: no limit */
    double longest_s[EK_PHASES], last_s[EK_STEPS_KEPT];
    int64_t n; /* steps measured, over all starts */

    /* of one start */
    ek_phase phase;
    int64_t since, heard; /* start of the phase; last message, later stalls not counted */
    int64_t looked;       /* last time that the supervisor itself was seen to run */
    int64_t steps;
    double took_s[EK_PHASES], first_step_s;
} ek_job_progress;

const char *ek_phase_name(ek_phase phase);
/* The phase of this name; -1: none. */
int ek_phase_of(const char *name);
/* now: ek_clock_ns(). */
void ek_job_progress_begin(ek_job_progress *p, int64_t now);
void ek_job_progress_enter(ek_job_progress *p, ek_phase phase, int64_t now);
/* A message of rank 0 has shown that it is alive. */
void ek_job_progress_alive(ek_job_progress *p, int64_t now);
void ek_job_progress_step(ek_job_progress *p, int64_t now);
double ek_job_progress_median_s(const ek_job_progress *p); /* of a step; 0: not known */
/* Timeout of the current phase without a message, 0: none; whether it is exceeded. */
double ek_job_progress_timeout_s(const ek_job_progress *p);
int ek_job_progress_hangs(const ek_job_progress *p, int64_t now);
/* Call at each poll: if the supervisor itself was stalled (EK_STALL_NS; a busy or suspended
 * machine), so were workers on this machine, and that time does not count against the timeout. */
void ek_job_progress_look(ek_job_progress *p, int64_t now);

#endif
