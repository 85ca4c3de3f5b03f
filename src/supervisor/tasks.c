/* Commands that run for the decision core. */
#include "supervisor/tasks.h"

#include <stdlib.h>

ek_status ek_tasks_add(ek_tasks *t, int key, ek_subprocess **run)
{
    if (t->n == t->cap) {
        int cap = 2 * t->cap + 8;
        ek_running_task *grown = realloc(t->task, (size_t)cap * sizeof(*grown));

        EK_REQUIRE(grown != NULL, EK_ENOMEM, "no memory for %d commands", cap);
        t->task = grown;
        t->cap = cap;
    }
    t->task[t->n] = (ek_running_task){.key = key, .run = {.out = -1}};
    *run = &t->task[t->n++].run;
    return EK_OK;
}

static void forget(ek_tasks *t, int i)
{
    t->task[i] = t->task[--t->n];
}

void ek_tasks_remove(ek_tasks *t, int key)
{
    for (int i = 0; i < t->n; i++)
        if (t->task[i].key == key) {
            ek_subprocess_end(&t->task[i].run);
            forget(t, i);
            return;
        }
}

int ek_tasks_next_ended(ek_tasks *t, int *key, int *result, double *took_s)
{
    for (int i = 0; i < t->n; i++) {
        ek_running_task *x = &t->task[i];

        *result = ek_subprocess_poll(&x->run);
        if (*result == EK_SUBPROCESS_RUNNING)
            continue;
        *key = x->key;
        *took_s = x->run.took;
        forget(t, i);
        return 1;
    }
    return 0;
}

void ek_tasks_fini(ek_tasks *t)
{
    for (int i = 0; i < t->n; i++)
        ek_subprocess_end(&t->task[i].run);
    free(t->task);
    *t = (ek_tasks){0};
}
