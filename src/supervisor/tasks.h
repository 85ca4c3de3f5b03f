/* supervisor/tasks.h - the commands that run for the decision core: tasks on hosts and link jobs
 * (core_action.h), each an mpiexec of its own. */
#ifndef SUPERVISOR_TASKS_H
#define SUPERVISOR_TASKS_H

#include "evenkeel/err.h"

#include "supervisor/subprocess.h"

/* Key of a task: the number of its host.  Of a link job: */
#define EK_LINK_JOB_KEY(job) (-1 - (job))

typedef struct {
    int key;
    ek_subprocess run;
} ek_running_task;

typedef struct {
    ek_running_task *task; /* [n] */
    int n, cap;
} ek_tasks;

/* The entry to start a command in; the caller removes it again if that fails.  EK_ENOMEM. */
EK_CHECKED ek_status ek_tasks_add(ek_tasks *t, int key, ek_subprocess **run);
/* Ends a task, if it runs, and forgets it. */
void ek_tasks_remove(ek_tasks *t, int key);
/* Takes out one task that has ended: its key, result (0, exit status, EK_SUBPROCESS_ value) and
 * duration in seconds; returns 0 if there is none. */
int ek_tasks_next_ended(ek_tasks *t, int *key, int *result, double *took_s);
void ek_tasks_fini(ek_tasks *t);

#endif
