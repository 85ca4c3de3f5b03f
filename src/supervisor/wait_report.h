/* supervisor/wait_report.h - "waiting for ..." messages. */
#ifndef SUPERVISOR_WAIT_REPORT_H
#define SUPERVISOR_WAIT_REPORT_H

#include "supervisor/supervisor_priv.h"

#include <stdint.h>
#include <stdio.h>

typedef enum {
    EK_WAIT_WORKERS,
    EK_WAIT_DISCOVER,
    EK_WAIT_ANSWERS, /* of probed hosts */
    EK_WAIT_CONNECTIVITY,
    EK_WAIT_HOSTS /* no host has responded */
} ek_wait_reason;

/* Prints "waiting for ... (2 s so far)" if due. */
void ek_wait_report(ek_supervisor *x, ek_wait_reason reason);
/* The same during a start. */
void ek_wait_report_workers(ek_supervisor *x, int64_t now);
/* Prints " on a, b", the hosts of which no worker has started (or joined); returns their number. */
int ek_wait_report_missing(const ek_supervisor *x, int joined, FILE *f);

#endif
