/* supervisor/core_priv.h - between the files of the decision core. */
#ifndef SUPERVISOR_CORE_PRIV_H
#define SUPERVISOR_CORE_PRIV_H

#include "supervisor/core.h"

/* Appends a REPORT. */
void ek_core_report_on(ek_core *c, ek_core_report report, int host, double seconds);
/* Says why the supervisor exits, and frees what hosts have preallocated. */
void ek_core_exit_for(ek_core *c, ek_core_exit why, int64_t now);

/* core_search.c: finds hosts for a generation, and starts it; after OUTPUT_ENDED from the next
 * event on: until then the state shows how the last one ended. */
void ek_core_search_begin(ek_core *c, int64_t now);
EK_CHECKED ek_status ek_core_search_take(ek_core *c, const ek_core_event *e);
void ek_core_read_list(ek_core *c, int64_t now);

/* core_run.c: a generation runs. */
EK_CHECKED ek_status ek_core_run_begin(ek_core *c, int64_t now);
void ek_core_run_take(ek_core *c, const ek_core_event *e);

/* core_wait.c: hosts that were late and may hold state of the run.  Sets c->least_step, once hosts
 * are assigned to the next generation; whether the generation has failed because of it; then begins
 * to wait for these hosts. */
void ek_core_set_least_step(ek_core *c, int64_t now);
int ek_core_lacks_state(const ek_core *c);
void ek_core_wait_for_late(ek_core *c, int64_t now);

/* core_end.c: a generation has ended; sets c->restart and c->status.  written: see OUTPUT_ENDED. */
void ek_core_end(ek_core *c, int64_t written, int64_t now);

#endif
