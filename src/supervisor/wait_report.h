/* supervisor/wait_report.h - "waiting for ..." messages. */
#ifndef SUPERVISOR_WAIT_REPORT_H
#define SUPERVISOR_WAIT_REPORT_H

#include "supervisor/state.h"

#include <stdint.h>
#include <stdio.h>

/* Prints "waiting for ... (2 s so far)" if due, by the core's state. */
void ek_wait_report(ek_supervisor *x, int64_t now);
/* Prints " on a, b", the hosts of which no worker has started (or joined); returns their number. */
int ek_wait_report_missing(const ek_supervisor *x, int joined, FILE *f);

#endif
