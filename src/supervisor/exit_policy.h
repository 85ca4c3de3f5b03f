/* supervisor/exit_policy.h - end of a start of workers: reports the reason and decides whether to
 * restart. */
#ifndef SUPERVISOR_EXIT_POLICY_H
#define SUPERVISOR_EXIT_POLICY_H

#include "supervisor/supervisor_priv.h"

#include <stdint.h>
#include <time.h>

/* Reports how the start ended and sets x->restart; returns the exit status. */
int ek_exit_policy(ek_supervisor *x);
/* Whether this --elastic command has continued from shared memory, or left state there. */
int ek_supervisor_has_state_in_memory(const ek_supervisor *x);
/* Completed steps by the last line of metrics.jsonl, if that was written since then; else 0. */
int64_t ek_supervisor_steps_written(const char *out, time_t since);

#endif
