/* supervisor/report.h - what the supervisor prints about hosts, losses and its exit, and records in
 * generations.jsonl. */
#ifndef SUPERVISOR_REPORT_H
#define SUPERVISOR_REPORT_H

#include "supervisor/state.h"

/* Performs an action EK_CORE_REPORT. */
void ek_report(ek_supervisor *x, const ek_core_action *a);

/* Says why the supervisor exits, unless that was said; returns its exit status. */
int ek_report_exit(ek_supervisor *x, ek_core_exit why);

/* report_resumption.c: the first step of a generation: prints the time since the loss by phase,
 * warns if completed steps are repeated, and appends to generations.jsonl. */
void ek_report_resumption(ek_supervisor *x);

#endif
