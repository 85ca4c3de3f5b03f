/* supervisor/run_steps.h - how far a run has come, by its metrics. */
#ifndef SUPERVISOR_RUN_STEPS_H
#define SUPERVISOR_RUN_STEPS_H

#include <stdint.h>
#include <time.h>

/* Completed steps by the last line of OUT/metrics.jsonl, if that was written since then; else, and
 * where out is NULL, 0. */
int64_t ek_run_steps(const char *out, time_t since);

#endif
