/* supervisor/train_reports.h - a worker that trains tells its supervisor what it needs to know: the
 * phase, completed steps, where the state came from, and what a rank has in memory. */
#ifndef SUPERVISOR_TRAIN_REPORTS_H
#define SUPERVISOR_TRAIN_REPORTS_H

#include "evenkeel/train.h"

#include "recover/supervised.h"

#include <stdint.h>

/* Hooks of ek_train() that report and then call `user`.  Not moved while they are in use. */
typedef struct {
    ek_train_hooks user;
    int (*is_interrupted)(void);
    ek_supervised supervised; /* by which the run tells what a rank has in memory */
    int64_t reported_ns;      /* last report of tokenising, ek_clock_ns() */
    ek_train_hooks hooks;
} ek_train_reports;

/* user: copied; NULL: none.  is_interrupted: asked besides user's hook `stop`; or NULL. */
void ek_train_reports_init(ek_train_reports *r, const ek_train_hooks *user,
                           int (*is_interrupted)(void));

/* For ek_train_config.supervised; NULL: there is no supervisor.  Borrowed from r. */
ek_supervised *ek_train_reports_supervised(ek_train_reports *r);

#endif
