/* recover/supervised.h - what the supervisor of an elastic run asks of a process, and what that
 * tells it: behind ek_train_config.supervised.
 *
 * The accessors accept NULL: a process without a supervisor. */
#ifndef RECOVER_SUPERVISED_H
#define RECOVER_SUPERVISED_H

#include "elastic/prealloc.h"

#include <stdint.h>

typedef struct ek_supervised {
    /* from the supervisor */
    uint64_t supervisor_id; /* processes of its earlier starts that still run are killed */
    int n_draining; /* the last n_draining ranks of the world hand their state over to the others,
                       as their hosts are to be released; no step is taken.  0: none */
    int64_t least_step; /* a start that would continue from an earlier step fails, as hosts that
                           have not responded may hold later state.  0: it does not */
    int64_t lost_hosts; /* losses of hosts that this command has seen, */
    double host_s;      /* and seconds of all hosts in which it has seen them; 0: none */
    void (*lacking)(int64_t step); /* before that failure, on rank 0: the step that it would
                                      continue from.  Not NULL if least_step > 0 */
    void (*no_room)(void); /* before a failure, on rank 0: the shared memory of a host is too small
                              for the state of its ranks; or NULL */

    void (*changed)(const struct ek_supervised *e); /* after a change of the layout, with what the
                                                       following says of it; or NULL */

    /* to the supervisor, before the first step, and that after a change of the layout */
    uint64_t run;                  /* id of the run */
    char blocks[EK_PREALLOC_TEXT]; /* a rank's block sizes, which a joining host preallocates; "":
                                      too many sizes */
} ek_supervised;

static inline uint64_t ek_supervised_by(const ek_supervised *e)
{
    return e != NULL ? e->supervisor_id : 0;
}

static inline int64_t ek_supervised_least_step(const ek_supervised *e)
{
    return e != NULL ? e->least_step : 0;
}

static inline int ek_supervised_draining(const ek_supervised *e)
{
    return e != NULL ? e->n_draining : 0;
}

static inline void ek_supervised_changed(const ek_supervised *e)
{
    if (e != NULL && e->changed != NULL)
        e->changed(e);
}

#endif
