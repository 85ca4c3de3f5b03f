/* Hooks of ek_train() that tell the supervisor about the run. */
#include "supervisor/train_reports.h"

#include "base/clock.h"
#include "supervisor/worker.h"

#include <stdio.h>
#include <string.h>

enum { TOKENISING_NS = 1000000000 }; /* interval of its reports */

static void report_lacking(int64_t step)
{
    ek_worker_report(&(ek_worker_message){.kind = EK_MESSAGE_LACKING, .lacking = {step}});
}

static void report_no_room(void)
{
    ek_worker_report(&(ek_worker_message){.kind = EK_MESSAGE_NO_ROOM});
}

static void report_memory(const ek_supervised *s)
{
    ek_worker_message memory = {.kind = EK_MESSAGE_MEMORY};

    memory.memory.run = s->run;
    (void)snprintf(memory.memory.blocks, sizeof(memory.memory.blocks), "%s",
                   s->blocks[0] != '\0' ? s->blocks : EK_MESSAGE_NO_BLOCKS);
    if (s->run != 0) /* with --elastic */
        ek_worker_report(&memory);
}

/* Where the state of this run comes from, and what a rank has in memory. */
static void report_state(const ek_supervised *s, const ek_train_info *i)
{
    ek_worker_message recovered = {.kind = EK_MESSAGE_RECOVERED,
                                   .recovered = {.taken = (int64_t)i->memory_taken,
                                                 .copied = (int64_t)i->memory_copied,
                                                 .received = (int64_t)i->memory_received,
                                                 .prealloc = (int64_t)i->memory_prealloc}};

    if (i->from_memory)
        ek_worker_report(&recovered);
    report_memory(s);
    if (i->memory_lacks)
        report_lacking(i->first_step);
}

static void started(void *context, const ek_train_info *info)
{
    const ek_train_reports *r = context;

    report_state(&r->supervised, info);
    if (r->user.started != NULL)
        r->user.started(r->user.context, info);
}

static void step(void *context, const ek_train_progress *p)
{
    const ek_train_hooks *user = &((ek_train_reports *)context)->user;

    ek_worker_report(&(ek_worker_message){.kind = EK_MESSAGE_STEP, .step = {p->step, p->steps}});
    if (user->step != NULL)
        user->step(user->context, p);
}

static void tokenising(void *context, int64_t bytes_done, int64_t bytes_total)
{
    ek_train_reports *r = context;
    int64_t now = ek_clock_ns();

    if (now - r->reported_ns > TOKENISING_NS) {
        ek_worker_report(&(ek_worker_message){.kind = EK_MESSAGE_PHASE, .phase = {"tokenising"}});
        r->reported_ns = now;
    }
    if (r->user.tokenising != NULL)
        r->user.tokenising(r->user.context, bytes_done, bytes_total);
}

static void phase(void *context, const char *name)
{
    const ek_train_hooks *user = &((ek_train_reports *)context)->user;

    ek_worker_enter_phase(name);
    if (user->phase != NULL)
        user->phase(user->context, name);
}

static int stop(void *context)
{
    const ek_train_reports *r = context;

    return (r->is_interrupted != NULL && r->is_interrupted()) ||
           (r->user.stop != NULL && r->user.stop(r->user.context));
}

static void layer(void *context, const ek_train_layer *l)
{
    const ek_train_hooks *user = &((ek_train_reports *)context)->user;

    user->layer(user->context, l);
}

static void cost(void *context, const ek_train_cost *c)
{
    const ek_train_hooks *user = &((ek_train_reports *)context)->user;

    user->cost(user->context, c);
}

static void evaluating(void *context, int64_t windows_done, int64_t windows)
{
    const ek_train_hooks *user = &((ek_train_reports *)context)->user;

    user->evaluating(user->context, windows_done, windows);
}

static void warning(void *context, const char *message)
{
    const ek_train_hooks *user = &((ek_train_reports *)context)->user;

    user->warning(user->context, message);
}

void ek_train_reports_init(ek_train_reports *r, const ek_train_hooks *user,
                           int (*is_interrupted)(void))
{
    *r = (ek_train_reports){.user = user != NULL ? *user : (ek_train_hooks){0},
                            .is_interrupted = is_interrupted,
                            .supervised = {.supervisor_id = ek_worker_supervisor_id(),
                                           .n_draining = ek_worker_n_draining(),
                                           .least_step = ek_worker_least_step(),
                                           .lacking = report_lacking,
                                           .no_room = report_no_room,
                                           .changed = report_memory}};
    r->supervised.lost_hosts = ek_worker_lost_hosts(&r->supervised.host_s);
    r->hooks = (ek_train_hooks){.context = r,
                                .started = started,
                                .step = step,
                                .tokenising = tokenising,
                                .stop = stop,
                                .layer = r->user.layer != NULL ? layer : NULL,
                                .cost = r->user.cost != NULL ? cost : NULL,
                                .phase = phase,
                                .evaluating = r->user.evaluating != NULL ? evaluating : NULL,
                                .warning = r->user.warning != NULL ? warning : NULL};
}

ek_supervised *ek_train_reports_supervised(ek_train_reports *r)
{
    return r->supervised.supervisor_id != 0 ? &r->supervised : NULL;
}
