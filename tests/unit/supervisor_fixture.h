/* supervisor_fixture.h - feeds events to the supervisor's decision core and records its actions.
 *
 * Hosts are host0, host1, ...; a list is written as one character per host: its slots, or '-' if it
 * is not listed.  A host's number is its position if all were listed from the beginning. */
#ifndef SUPERVISOR_FIXTURE_H
#define SUPERVISOR_FIXTURE_H

#include "base/command.h"
#include "ek_test.h"
#include "supervisor/core.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { FIXTURE_ACTIONS = 4096, FIXTURE_HOSTS = 16, FIXTURE_STEPS = 1000 };

static struct {
    ek_core core;
    int64_t now;
    ek_core_action action[FIXTURE_ACTIONS]; /* [n], since forget(); without hosts */
    int hosts[FIXTURE_ACTIONS][FIXTURE_HOSTS];
    int n;
    int task[FIXTURE_HOSTS]; /* by number of a host: the task that runs */
    char listed[FIXTURE_HOSTS + 1];
    int64_t step, written; /* last completed step; steps in metrics.jsonl */
} sup;

static inline ek_core_config elastic_config(void)
{
    return (ek_core_config){.unit = 1, .elastic = 1, .listed = 1, .list_s = 1, .watchdog_s = 60};
}

/* --- actions ---------------------------------------------------------------------------------- */

static inline void forget(void)
{
    sup.n = 0;
}

static inline void record_actions(void)
{
    for (size_t i = 0; i < sup.core.actions.n && sup.n < FIXTURE_ACTIONS; i++) {
        const ek_core_action *a = &sup.core.actions.action[i];

        for (int k = 0; k < a->n && k < FIXTURE_HOSTS; k++)
            sup.hosts[sup.n][k] = a->hosts[k];
        if (a->kind == EK_CORE_RUN_TASK && a->host < FIXTURE_HOSTS)
            sup.task[a->host] = (int)a->task;
        if (a->kind == EK_CORE_CANCEL_TASK && a->host < FIXTURE_HOSTS)
            sup.task[a->host] = EK_TASK_NONE;
        sup.action[sup.n++] = *a;
    }
}

/* How often, since forget(). */
static inline int did(ek_core_action_kind kind)
{
    int n = 0;

    for (int i = 0; i < sup.n; i++)
        n += sup.action[i].kind == kind;
    return n;
}

static inline int did_task(ek_core_task task)
{
    int n = 0;

    for (int i = 0; i < sup.n; i++)
        n += sup.action[i].kind == EK_CORE_RUN_TASK && sup.action[i].task == task;
    return n;
}

static inline int did_report(ek_core_report report)
{
    int n = 0;

    for (int i = 0; i < sup.n; i++)
        n += sup.action[i].kind == EK_CORE_REPORT && sup.action[i].report == report;
    return n;
}

static inline int did_exit(ek_core_exit why)
{
    int n = 0;

    for (int i = 0; i < sup.n; i++)
        n += sup.action[i].kind == EK_CORE_EXIT && sup.action[i].exit == why;
    return n;
}

/* The last report of this kind; all 0 if there was none. */
static inline ek_core_action report_of(ek_core_report report)
{
    ek_core_action found = {.host = -2};

    for (int i = 0; i < sup.n; i++)
        if (sup.action[i].kind == EK_CORE_REPORT && sup.action[i].report == report)
            found = sup.action[i];
    return found;
}

/* --- events ----------------------------------------------------------------------------------- */

static inline void take(ek_core_event e)
{
    e.now = sup.now;
    CHECK_INT(ek_core_take(&sup.core, &e), EK_OK);
    record_actions();
}

/* As the supervisor does, goes on at once where there is nothing to wait for. */
static inline void skip_wait(void)
{
    if (sup.core.state == EK_CORE_BACKOFF && sup.core.search.until <= sup.now)
        take((ek_core_event){.kind = EK_CORE_TIME});
}

static inline void feed(ek_core_event e)
{
    take(e);
    skip_wait();
}

/* Time passes at once. */
static inline void leap(double s)
{
    sup.now += (int64_t)(s * 1e9);
    feed((ek_core_event){.kind = EK_CORE_TIME});
}

/* Time passes, and the supervisor runs. */
static inline void pass(double s)
{
    for (; s > 0.05; s -= 0.05)
        leap(0.05);
    leap(s);
}

/* The same, while rank 0 shows that it is alive. */
static inline void work(double s)
{
    for (; s > 0.5; s -= 0.5) {
        pass(0.5);
        feed((ek_core_event){.kind = EK_CORE_PHASE, .phase = -1});
    }
    pass(s);
}

static inline void begin(const ek_core_config *cfg)
{
    ek_core_fini(&sup.core);
    memset(&sup, 0, sizeof(sup));
    sup.now = 1000000000;
    CHECK_INT(ek_core_begin(&sup.core, cfg, sup.now), EK_OK);
    record_actions();
    skip_wait();
}

static inline void tell_list(const char *slots)
{
    ek_host list[FIXTURE_HOSTS] = {0};
    int n = 0;

    if (slots != sup.listed)
        snprintf(sup.listed, sizeof(sup.listed), "%s", slots);
    for (int i = 0; slots[i] != '\0'; i++)
        if (slots[i] != '-') {
            snprintf(list[n].name, sizeof(list[n].name), "host%d", i);
            list[n++].slots = slots[i] - '0';
        }
    feed((ek_core_event){.kind = EK_CORE_LIST, .list = list, .n_list = n});
}

static inline void end_task(int host, int result, double took_s)
{
    sup.task[host] = EK_TASK_NONE;
    feed((ek_core_event){
        .kind = EK_CORE_TASK_ENDED, .host = host, .result = result, .took_s = took_s});
}

/* All tasks that run end with this result, and the list that is being read stays as it is. */
static inline void answer_all(int result)
{
    if (sup.core.search.reading)
        tell_list(sup.listed);
    for (int i = 0; i < FIXTURE_HOSTS; i++)
        if (sup.task[i] != EK_TASK_NONE)
            end_task(i, result, 0.1);
}

static inline void worker_event(ek_core_event_kind kind, int rank)
{
    feed((ek_core_event){.kind = kind, .rank = rank});
}

static inline void enter_phase(ek_phase phase)
{
    feed((ek_core_event){.kind = EK_CORE_PHASE, .phase = (int)phase});
}

static inline void join_all(void)
{
    int n = sup.core.ranks + sup.core.n_draining;

    for (int i = 0; i < n; i++)
        worker_event(EK_CORE_WORKER_STARTED, i);
    for (int i = 0; i < n; i++)
        worker_event(EK_CORE_WORKER_JOINED, i);
}

static inline void take_step(void)
{
    pass(0.1);
    sup.written = ++sup.step;
    feed((ek_core_event){.kind = EK_CORE_STEP, .step = sup.step, .all = FIXTURE_STEPS});
}

static inline void end_mpiexec(int code)
{
    feed((ek_core_event){.kind = EK_CORE_MPIEXEC_ENDED, .result = code});
}

/* mpiexec and its output end. */
static inline void end_generation(int code)
{
    end_mpiexec(code);
    feed((ek_core_event){.kind = EK_CORE_OUTPUT_ENDED, .step = sup.written});
}

/* A worker dies, whereupon the generation is lost. */
static inline void lose_generation(void)
{
    worker_event(EK_CORE_WORKER_CLOSED, 0);
    pass(0.3);
    end_generation(-1);
}

static inline void fail_worker(int rank, int status, int lost)
{
    feed((ek_core_event){
        .kind = EK_CORE_WORKER_FAILED, .rank = rank, .status = status, .lost = lost});
}

static inline void interrupt_once(void)
{
    feed((ek_core_event){.kind = EK_CORE_INTERRUPT});
}

/* --- the way to a state ----------------------------------------------------------------------- */

/* The first list is read; hosts are being probed. */
static inline void begin_on(const ek_core_config *cfg, const char *slots)
{
    begin(cfg);
    tell_list(slots);
}

/* A generation was started on all hosts. */
static inline void start_on(const ek_core_config *cfg, const char *slots)
{
    begin_on(cfg, slots);
    answer_all(0);
    CHECK_INT(sup.core.state, EK_CORE_RUNNING);
}

/* Its workers have joined, and take steps. */
static inline void step_on(const ek_core_config *cfg, const char *slots, int steps)
{
    start_on(cfg, slots);
    join_all();
    enter_phase(EK_PHASE_STEP);
    for (int i = 0; i < steps; i++)
        take_step();
}

/* The next generation, after a loss, is probed, started, and takes one step. */
static inline void resume(void)
{
    answer_all(0);
    CHECK_INT(sup.core.state, EK_CORE_RUNNING);
    join_all();
    enter_phase(EK_PHASE_STEP);
    take_step();
}

/* All 0 if it is not known. */
static inline ek_core_host host_of(int number)
{
    int i = ek_core_hosts_index(&sup.core.hosts, number);

    return i >= 0 ? sup.core.hosts.host[i] : (ek_core_host){.number = -1};
}

/* A third host was listed in a generation with two, with the layout of these sizes in use, and has
 * responded. */
static inline void list_third_host_for(const ek_core_config *cfg, ek_mesh_sizes in_use,
                                       int sizes_known)
{
    step_on(cfg, "11", 3);
    feed((ek_core_event){.kind = EK_CORE_SIZES, .result = sizes_known});
    feed((ek_core_event){.kind = EK_CORE_LAYOUT, .sizes = in_use});
    pass(1.1);
    forget();
    tell_list("111");
    pass(0.2);
    CHECK_INT(did_task(EK_TASK_PROBE), 1);
    CHECK_INT(did_task(EK_TASK_PREALLOC), 0);
    end_task(2, 0, 0.1);
}

static inline void list_third_host(int sizes_known)
{
    ek_core_config cfg = elastic_config();

    list_third_host_for(&cfg, cfg.sizes, sizes_known);
}

static inline void step_on_two(void)
{
    ek_core_config cfg = elastic_config();

    step_on(&cfg, "11", 2);
    forget();
}

/* Whether the last assignment of ranks changed this for the host. */
static inline int changed_to(int number, ek_host_change change)
{
    return host_of(number).change == change;
}

static inline void end_fixture(void)
{
    ek_core_fini(&sup.core);
}

#endif
