/* supervisor_world.h - a world for the supervisor's decision core: hosts, commands on them, mpiexec
 * and workers, driven by bytes.  It performs the core's actions, answers them at times and in ways
 * that the bytes choose, and checks after each event what must always hold:
 *
 *   - one generation at a time: START only after the output of the last one has ended
 *   - one task per host at a time, one job per link job; only what runs is cancelled
 *   - ranks: a multiple of the unit, at most those wanted, on hosts that are listed, respond, do
 *     not leave and are not suspect, each within its slots; draining ranks behind them, one a host
 *   - a completed step is repeated only if the report of the first step says how many are
 *   - a generation without late hosts is kept from going back no longer than the watchdog's limit
 *   - mpiexec is killed at most once per generation, and only while it runs
 *   - exactly one exit, when no generation runs; no action after the end
 *
 * After the bytes the world either answers everything (healthy) or nothing (dead); in both the core
 * has to come to its end within a bounded time: it ends or makes progress. */
#ifndef SUPERVISOR_WORLD_H
#define SUPERVISOR_WORLD_H

#include "base/command.h"
#include "supervisor/core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORLD_HOSTS = 6, WORLD_NUMBERS = 4096, WORLD_STEPS = 12 };

typedef struct {
    const uint8_t *data; /* the bytes left */
    size_t size;
    int64_t now;
    ek_core core;
    int tasks[WORLD_NUMBERS]; /* by number of a host: its task */
    int link_jobs[WORLD_HOSTS];
    int silent; /* index of a host that does not respond now; -1: none */
    int reading;
    int runs, ended, kills, forwarded, exits;
    int generations, joined, first_reported;
    int lacks;          /* state that a late host holds */
    int refused;        /* this generation has failed, as it would have gone back */
    int64_t forgiven;   /* stalls so far */
    int64_t wait_until; /* without stalls: one may go back from then on; 0: none was kept from it */
    int64_t step, memory; /* of this generation; the last that is in memory */
    int64_t done;         /* completed steps, as last reported */
    int64_t progress;     /* steps over all generations */
    int exit_why;
    int healthy;
    int links_fail; /* link job 0 fails, and job 1 is late */
    struct {
        unsigned state, task, action, report, exit;
    } seen;          /* bit k: kind k occurred */
    char fault[160]; /* "" while all holds */
} world;

static void world_fault(world *w, const char *what)
{
    if (w->fault[0] == '\0')
        snprintf(w->fault, sizeof(w->fault), "%s (state %d, generation %d)", what,
                 (int)w->core.state, w->generations);
}

static int world_byte(world *w)
{
    if (w->size == 0)
        return 0;
    w->size--;
    return *w->data++;
}

static void world_take(world *w, ek_core_event e);

/* --- checks ----------------------------------------------------------------------------------- */

static void world_check_start(world *w)
{
    const ek_core *c = &w->core;
    int64_t ranks = 0;
    int draining = 0;

    if (w->runs)
        world_fault(w, "a second generation was started");
    if (c->ranks < 1 || c->ranks % c->cfg.unit != 0 ||
        (c->cfg.ranks > 0 && c->ranks > c->cfg.ranks))
        world_fault(w, "number of ranks");
    for (int i = 0; i < c->hosts.n; i++) {
        const ek_core_host *x = &c->hosts.host[i];

        if (x->draining) {
            if (x->first != c->ranks + draining++)
                world_fault(w, "first rank of a draining host");
            continue;
        }
        if (x->used == 0)
            continue;
        if (!x->listed || x->leaving || x->suspect || x->health.answer != 0 ||
            w->tasks[x->number] != EK_TASK_NONE || x->used > x->host.slots || x->first != ranks)
            world_fault(w, "ranks on a host that cannot have them");
        ranks += x->used;
    }
    if (c->cfg.listed && (ranks != c->ranks || draining != c->n_draining))
        world_fault(w, "ranks of the hosts do not add up");
}

/* The report of a first step says how many completed steps are repeated. */
static void world_check_first(world *w)
{
    int64_t first = w->step - 1;

    if (w->first_reported++ > 0)
        world_fault(w, "a first step reported twice");
    if (first < w->done && w->core.resumption.repeated != w->done - first)
        world_fault(w, "completed steps repeated without a word");
}

/* --- actions ---------------------------------------------------------------------------------- */

static void world_run_task(world *w, const ek_core_action *a)
{
    int i = ek_core_hosts_index(&w->core.hosts, a->host);

    if (a->host < 0 || a->host >= WORLD_NUMBERS || i < 0)
        world_fault(w, "a task on an unknown host");
    else if (w->tasks[a->host] != EK_TASK_NONE)
        world_fault(w, "a second task on a host");
    else
        w->tasks[a->host] = (int)a->task;
}

static void world_run_link_job(world *w, const ek_core_action *a)
{
    if (a->job < 0 || a->job >= WORLD_HOSTS || w->link_jobs[a->job] || a->n < 2)
        world_fault(w, "link job");
    else
        w->link_jobs[a->job] = 1;
}

/* A late host may hold the only copy of some state.  It stays away if one may go back without it.
 */
static void world_lose_state(world *w)
{
    if (w->core.least_step > 0)
        w->lacks = world_byte(w) % 4 == 0;
    else if (w->lacks && world_byte(w) % 2 == 0)
        w->memory /= 2;
    w->lacks = w->lacks && w->core.least_step > 0;
}

static void world_start(world *w)
{
    world_check_start(w);
    world_lose_state(w);
    w->runs = 1;
    w->generations++;
    w->ended = w->kills = w->forwarded = w->joined = w->first_reported = w->refused = 0;
    if (w->core.least_step > 0 && w->wait_until > 0 && w->now - w->forgiven > w->wait_until)
        world_fault(w, "kept from going back for too long");
    w->step = 0;
}

static void world_perform(world *w, const ek_core_action *a)
{
    if (w->exits > 0 && a->kind != EK_CORE_CANCEL_TASK && a->kind != EK_CORE_CANCEL_LINK_JOB &&
        !(a->kind == EK_CORE_RUN_TASK && a->task == EK_TASK_FREE))
        world_fault(w, "an action after the exit");
    w->seen.action |= 1u << a->kind;
    w->seen.task |= a->kind == EK_CORE_RUN_TASK ? 1u << a->task : 0;
    w->seen.report |= a->kind == EK_CORE_REPORT ? 1u << a->report : 0;
    w->seen.exit |= a->kind == EK_CORE_EXIT ? 1u << a->exit : 0;
    switch (a->kind) {
    case EK_CORE_READ_LIST:
        if (w->reading++ > 0)
            world_fault(w, "the list is read twice at a time");
        break;
    case EK_CORE_RUN_TASK: world_run_task(w, a); break;
    case EK_CORE_CANCEL_TASK:
        if (a->host < 0 || a->host >= WORLD_NUMBERS || w->tasks[a->host] == EK_TASK_NONE)
            world_fault(w, "cancels a task that does not run");
        else
            w->tasks[a->host] = EK_TASK_NONE;
        break;
    case EK_CORE_RUN_LINK_JOB: world_run_link_job(w, a); break;
    case EK_CORE_CANCEL_LINK_JOB:
        if (a->job < 0 || a->job >= WORLD_HOSTS || !w->link_jobs[a->job])
            world_fault(w, "cancels a link job that does not run");
        else
            w->link_jobs[a->job] = 0;
        break;
    case EK_CORE_START: world_start(w); break;
    case EK_CORE_KILL:
        if (!w->runs || w->ended || w->kills++ > 0)
            world_fault(w, "kills what does not run");
        break;
    case EK_CORE_FORWARD_INTERRUPT:
        if (!w->runs || w->core.interrupts == 0 || w->forwarded++ > 0)
            world_fault(w, "forwards an interrupt");
        break;
    case EK_CORE_REPORT:
        if (a->report == EK_REPORT_FIRST_STEP)
            world_check_first(w);
        if (a->report == EK_REPORT_FIRST_STEP)
            w->wait_until = 0;
        if (a->report == EK_REPORT_INCOMPLETE && w->wait_until == 0)
            w->wait_until = w->now - w->forgiven + (int64_t)(w->core.cfg.watchdog_s * 1e9);
        break;
    case EK_CORE_EXIT:
        if (w->runs || w->exits++ > 0)
            world_fault(w, "exit");
        w->exit_why = (int)a->exit;
        break;
    }
}

static void world_take(world *w, ek_core_event e)
{
    int was_done = w->core.state == EK_CORE_DONE;

    e.now = w->now;
    w->forgiven += w->now - w->core.seen > EK_STALL_NS ? w->now - w->core.seen : 0;
    if (e.kind == EK_CORE_OUTPUT_ENDED)
        w->runs = 0;
    if (ek_core_take(&w->core, &e) != EK_OK) {
        world_fault(w, "no memory");
        return;
    }
    if (was_done && w->core.actions.n > 0)
        world_fault(w, "an action after the end");
    for (size_t i = 0; i < w->core.actions.n; i++)
        world_perform(w, &w->core.actions.action[i]);
    w->seen.state |= 1u << w->core.state;
    if (w->core.state == EK_CORE_DONE && w->exits == 0)
        world_fault(w, "the end without an exit");
}

/* --- what happens ----------------------------------------------------------------------------- */

/* A list of up to WORLD_HOSTS hosts; slots 1 to 4, some hosts missing. */
static void world_list(world *w, int mask, int slots)
{
    ek_host list[WORLD_HOSTS];
    int n = 0;

    memset(list, 0, sizeof(list));
    for (int i = 0; i < WORLD_HOSTS; i++)
        if (mask >> i & 1) {
            snprintf(list[n].name, sizeof(list[n].name), "host%d", i);
            list[n++].slots = 1 + (slots >> i & 3);
        }
    w->reading = 0;
    world_take(w, (ek_core_event){.kind = EK_CORE_LIST, .list = list, .n_list = n});
}

static void world_end_task(world *w, int which, int result)
{
    int n = w->core.hosts.n;

    for (int i = 0; i < n; i++) {
        int number = w->core.hosts.host[(which + i) % n].number;

        if (number >= WORLD_NUMBERS || w->tasks[number] == EK_TASK_NONE ||
            (which + i) % n == w->silent)
            continue;
        w->tasks[number] = EK_TASK_NONE;
        world_take(
            w, (ek_core_event){
                   .kind = EK_CORE_TASK_ENDED, .host = number, .result = result, .took_s = 0.2});
        return;
    }
}

static void world_end_link_job(world *w, int which, int result)
{
    for (int i = 0; i < WORLD_HOSTS; i++) {
        int job = (which + i) % WORLD_HOSTS;

        if (!w->link_jobs[job])
            continue;
        w->link_jobs[job] = 0;
        world_take(w,
                   (ek_core_event){.kind = EK_CORE_LINK_JOB_ENDED, .job = job, .result = result});
        return;
    }
}

static void world_join(world *w)
{
    int n = w->core.ranks + w->core.n_draining;

    for (int i = 0; i < 2 * n; i++)
        world_take(w,
                   (ek_core_event){.kind = i < n ? EK_CORE_WORKER_STARTED : EK_CORE_WORKER_JOINED,
                                   .rank = i % n});
    w->joined = 1;
    w->step = w->memory;
    if (w->lacks || w->memory < w->core.least_step) {
        w->refused = 1;
        world_take(w, (ek_core_event){.kind = EK_CORE_INCOMPLETE,
                                      .step = w->lacks ? w->memory / 2 : w->memory});
        world_take(w, (ek_core_event){.kind = EK_CORE_WORKER_FAILED, .status = 1, .lost = 1});
        return;
    }
    if (w->memory > 0)
        world_take(w, (ek_core_event){.kind = EK_CORE_RECOVERED});
    world_take(w, (ek_core_event){.kind = EK_CORE_SIZES, .result = 1});
    world_take(w, (ek_core_event){.kind = EK_CORE_PHASE, .phase = EK_PHASE_STEP});
}

static void world_mpiexec_ends(world *w, int code)
{
    w->ended = 1;
    world_take(w, (ek_core_event){.kind = EK_CORE_MPIEXEC_ENDED, .result = code});
}

static void world_output_ends(world *w)
{
    world_take(w,
               (ek_core_event){.kind = EK_CORE_OUTPUT_ENDED, .step = w->done > 0 ? w->memory : 0});
}

static void world_step(world *w)
{
    if (w->core.n_draining > 0 || w->refused) {
        world_mpiexec_ends(w, w->refused);
        return;
    }
    w->step++;
    w->memory = w->step;
    w->progress++;
    world_take(w, (ek_core_event){.kind = EK_CORE_STEP, .step = w->step, .all = WORLD_STEPS});
    if (w->core.cfg.elastic && w->runs && !w->ended && w->first_reported == 0)
        world_fault(w, "a first step without a report");
    w->done = w->step;
    if (w->step >= WORLD_STEPS && !w->ended)
        world_mpiexec_ends(w, 0);
}

/* What is possible now, as it is in a world where nothing fails but links. */
static void world_answer(world *w)
{
    if (w->reading)
        world_list(w, (1 << WORLD_HOSTS) - 1, 0);
    for (int i = 0; i < w->core.hosts.n; i++)
        world_end_task(w, i, 0);
    for (int i = 0; i < WORLD_HOSTS; i++)
        if (w->link_jobs[i] && !(w->links_fail && i == 1))
            world_end_link_job(w, i, w->links_fail && i == 0);
    if (!w->runs)
        return;
    if (w->ended)
        world_output_ends(w);
    else if (w->kills > 0)
        world_mpiexec_ends(w, -1);
    else if (w->forwarded > 0)
        world_mpiexec_ends(w, EK_EXIT_INTERRUPTED);
    else if (!w->joined)
        world_join(w);
    else
        world_step(w);
}

/* A worker dies, is lost, or reports. */
static void world_worker(world *w, int how)
{
    int rank = w->core.ranks > 0 ? how / 8 % w->core.ranks : 0;

    switch (how % 8) {
    case 0: world_take(w, (ek_core_event){.kind = EK_CORE_WORKER_CLOSED, .rank = rank}); break;
    case 1: world_take(w, (ek_core_event){.kind = EK_CORE_WORKER_CLOSED, .rank = -1}); break;
    case 2:
        world_take(w, (ek_core_event){
                          .kind = EK_CORE_WORKER_FAILED, .rank = rank, .status = 1, .lost = 1});
        break;
    case 3:
        world_take(w, (ek_core_event){.kind = EK_CORE_WORKER_FAILED, .rank = rank, .status = 3});
        break;
    case 4: world_take(w, (ek_core_event){.kind = EK_CORE_NOTICE, .rank = rank}); break;
    case 5: world_take(w, (ek_core_event){.kind = EK_CORE_REACHED, .result = how / 64}); break;
    case 6: world_take(w, (ek_core_event){.kind = EK_CORE_DEATH}); break;
    default: world_take(w, (ek_core_event){.kind = EK_CORE_WORKER_WATCHED}); break;
    }
}

/* An event that need not fit the state. */
static void world_any(world *w)
{
    ek_core_event e = {.kind = (ek_core_event_kind)(world_byte(w) % EK_CORE_EVENTS),
                       .host = world_byte(w) % 8,
                       .rank = world_byte(w) - 2,
                       .phase = world_byte(w) % 16 - 2,
                       .status = 1};

    e.job = e.host;
    e.result = e.rank % 3;
    if (e.kind == EK_CORE_TASK_ENDED && w->tasks[e.host] != EK_TASK_NONE)
        w->tasks[e.host] = EK_TASK_NONE;
    if (e.kind == EK_CORE_LINK_JOB_ENDED && e.job < WORLD_HOSTS)
        w->link_jobs[e.job] = 0;
    if (e.kind == EK_CORE_LIST || e.kind == EK_CORE_LIST_FAILED || e.kind == EK_CORE_STEP ||
        e.kind == EK_CORE_MPIEXEC_ENDED || e.kind == EK_CORE_OUTPUT_ENDED ||
        e.kind == EK_CORE_ABANDON)
        return; /* these the world itself sends where they are possible */
    world_take(w, e);
}

static void world_pass(world *w, int how)
{
    for (int i = 0; i < how % 16 && w->core.state != EK_CORE_DONE; i++) {
        w->now += 400000000;
        world_take(w, (ek_core_event){.kind = EK_CORE_TIME});
    }
}

static void world_event(world *w)
{
    int what = world_byte(w), how = world_byte(w);

    switch (what % 24) {
    case 0: w->now += (int64_t)how * 10000000; break;  /* up to 2.5 s, */
    case 1: world_pass(w, how); break;                 /* and 6.4 s in which the supervisor runs */
    case 2: w->now += (int64_t)how * 100000000; break; /* a stall of up to 25 s */
    case 3:
        if (w->reading)
            world_list(w, world_byte(w) | 1, how);
        break;
    case 4:
        if (w->reading && how < 64) {
            w->reading = 0;
            world_take(w, (ek_core_event){.kind = EK_CORE_LIST_FAILED});
        }
        break;
    case 5:
    case 6: world_end_task(w, how, 0); break;
    case 7: world_end_task(w, how, 255); break;
    case 8: world_end_link_job(w, how, how & 1); break;
    case 9:
        if (w->runs && !w->ended && w->kills == 0)
            world_worker(w, how);
        break;
    case 10:
        if (w->runs && !w->ended)
            world_mpiexec_ends(w, how % 4 == 0 ? 0 : how % 4 == 1 ? -1 : 255);
        break;
    case 11:
        if (w->runs && w->ended)
            world_output_ends(w);
        break;
    case 12:
        if (how < 8 && w->exits == 0)
            world_take(w, (ek_core_event){.kind = EK_CORE_INTERRUPT});
        else
            w->silent = how % (2 * WORLD_HOSTS) - 1;
        break;
    case 13:
        if (how < 32)
            w->memory = how % 2 ? 0 : w->memory / 2; /* state is lost: an older checkpoint */
        break;
    case 14: world_any(w); break;
    default: world_answer(w); break;
    }
    world_take(w, (ek_core_event){.kind = EK_CORE_TIME});
}

/* Time goes on until the core has ended. */
static void world_finish(world *w)
{
    enum { TICKS_MAX = 40000 }; /* of 0.4 s */
    int n = 0;

    w->silent = -1;
    for (; n < TICKS_MAX && w->core.state != EK_CORE_DONE && w->fault[0] == '\0'; n++) {
        w->now += 400000000;
        if (w->healthy)
            world_answer(w);
        else if (w->reading && w->core.state == EK_CORE_LISTING)
            world_list(w, 7, 0);
        else if (w->runs && w->ended)
            world_output_ends(w);
        else if (w->runs && w->kills > 0)
            world_mpiexec_ends(w, -1);
        if (!w->core.cfg.elastic &&
            n > TICKS_MAX / 2) /* waits for its workers: the user does not */
            world_take(w, (ek_core_event){.kind = EK_CORE_INTERRUPT});
        world_take(w, (ek_core_event){.kind = EK_CORE_TIME});
    }
    if (n == TICKS_MAX)
        world_fault(w, "neither an end nor progress");
}

/* Runs one world; returns whether all held; else w->fault says what did not. */
static int world_run(world *w, const uint8_t *data, size_t size)
{
    ek_core_config cfg = {.unit = 1, .elastic = 1, .listed = 1, .list_s = 1, .watchdog_s = 5};
    int how, ranks;

    memset(w, 0, sizeof(*w));
    w->data = data;
    w->size = size;
    w->silent = -1;
    w->now = 1000000000;
    how = world_byte(w);
    ranks = world_byte(w);
    w->healthy = how & 1;
    w->links_fail = (how & 32) != 0;
    cfg.unit = how & 2 ? 2 : 1;
    cfg.listed = (how & 12) != 12;
    cfg.elastic = cfg.listed || (how & 16) != 0;
    cfg.ranks = ranks % 4 == 0 ? 0 : ranks % 7 * cfg.unit;
    if (!cfg.listed)
        cfg.ranks = cfg.ranks > 0 ? cfg.ranks : cfg.unit;
    else if (how >= 224)
        cfg.ranks++; /* possibly no multiple of the unit */
    if (ek_core_begin(&w->core, &cfg, w->now) != EK_OK)
        world_fault(w, "no memory");
    for (size_t i = 0; i < w->core.actions.n; i++)
        world_perform(w, &w->core.actions.action[i]);
    while (w->size > 0 && w->core.state != EK_CORE_DONE && w->fault[0] == '\0')
        world_event(w);
    world_finish(w);
    ek_core_fini(&w->core);
    return w->fault[0] == '\0';
}

#endif
