/* Hosts of an --elastic job: the list, tasks on hosts, and which hosts can be used. */
#include "supervisor/core_hosts.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

/* Time limit of a probe; after the first responses: a multiple of the slowest, with a minimum. */
static const double answer_s = 15, answer_least_s = 1.5, answer_factor = 10;
/* That minimum before the first generation, when no work is waiting. */
static const double first_answer_least_s = 5;
/* Time limits to preallocate memory (possibly most of the host's), and to free it. */
static const double prealloc_s = 600, free_s = 5;
/* How long prepared hosts wait for others that are still preallocating. */
static const double together_s = 20;
/* Time limit of a connectivity test: a multiple of the duration of a start, with a minimum; if that
 * is unknown. */
static const double links_factor = 5, links_least_s = 3, links_unknown_s = 20;
/* Interval of probing a host that is not in use. */
static const double probe_every_s = 2;
enum { REFUSALS_DOUBLE = 5, LATE_DOUBLES_MAX = 4 };

void ek_core_hosts_fini(ek_core_hosts *h)
{
    free(h->host);
    free(h->used);
    *h = (ek_core_hosts){0};
}

int ek_core_hosts_index(const ek_core_hosts *h, int number)
{
    for (int i = 0; i < h->n; i++)
        if (h->host[i].number == number)
            return i;
    return -1;
}

const char *ek_core_hosts_name(const ek_core_hosts *h, int number)
{
    return h->host[ek_core_hosts_index(h, number)].host.name;
}

/* --- which hosts can be used ------------------------------------------------------------------ */

int ek_core_host_is_leaving(const ek_core_host *x)
{
    return !x->listed || x->leaving;
}

int ek_core_hosts_has_leaving(const ek_core_hosts *h)
{
    for (int i = 0; i < h->n; i++)
        if (h->host[i].used > 0 && ek_core_host_is_leaving(&h->host[i]))
            return 1;
    return 0;
}

int64_t ek_core_hosts_slots(const ek_core_hosts *h, int64_t now)
{
    int64_t n = 0;

    for (int i = 0; i < h->n; i++)
        n += ek_core_host_is_usable(&h->host[i], now) ? h->host[i].host.slots : 0;
    return n;
}

int64_t ek_core_hosts_listed_slots(const ek_core_hosts *h)
{
    int64_t n = 0;

    for (int i = 0; i < h->n; i++)
        n += h->host[i].listed ? h->host[i].host.slots : 0;
    return n;
}

int ek_core_hosts_in_use(const ek_core_hosts *h)
{
    int n = 0;

    for (int i = 0; i < h->n; i++)
        n += h->host[i].used > 0;
    return n;
}

int ek_core_host_is_usable(const ek_core_host *x, int64_t now)
{
    return !ek_core_host_is_leaving(x) && !x->suspect && x->health.answer == 0 &&
           x->health.task == EK_TASK_NONE && (x->used > 0 || x->holds || now >= x->back_at);
}

/* --- tasks ------------------------------------------------------------------------------------ */

static void cancel_task(ek_core_host *x, ek_core_actions *out)
{
    if (x->health.task == EK_TASK_NONE)
        return;
    x->health.task = EK_TASK_NONE;
    ek_core_act(out, &(ek_core_action){.kind = EK_CORE_CANCEL_TASK, .host = x->number});
}

static void run_task(ek_core_host *x, ek_core_task task, double limit_s, int64_t now,
                     ek_core_actions *out)
{
    cancel_task(x, out);
    x->health.task = task;
    x->health.begin = now;
    x->health.limit = ek_clock_from_s(limit_s);
    ek_core_act(out, &(ek_core_action){.kind = EK_CORE_RUN_TASK, .host = x->number, .task = task});
}

double ek_core_links_limit_s(double start_s)
{
    double s = start_s > 0 ? links_factor * start_s : links_unknown_s;

    return s > links_least_s ? s : links_least_s;
}

/* Tests the connectivity between a host and all hosts in use. */
static void run_links_task(ek_core_hosts *h, ek_core_host *x, int64_t now, ek_core_actions *out)
{
    int n = 0;

    for (int i = 0; i < h->n; i++)
        if (h->host[i].used > 0)
            h->used[n++] = h->host[i].number;
    run_task(x, EK_TASK_LINKS, ek_core_links_limit_s(h->start_s), now, out);
    if (out->n > 0) {
        out->action[out->n - 1].hosts = h->used;
        out->action[out->n - 1].n = n;
    }
}

/* running: a suspect host must then reach those in use. */
static void probe(ek_core_hosts *h, ek_core_host *x, int running, int64_t now, ek_core_actions *out)
{
    x->health.answer = EK_RESULT_PENDING;
    x->health.round = h->round;
    if (running && x->suspect)
        run_links_task(h, x, now, out);
    else
        run_task(x, EK_TASK_PROBE, answer_s, now, out);
}

/* Ends the task of a host, and starts to free its preallocated memory, if it is not in use. */
static void free_memory(ek_core_host *x, int64_t now, ek_core_actions *out)
{
    cancel_task(x, out);
    if (x->memory.held)
        run_task(x, EK_TASK_FREE, free_s, now, out);
    x->memory = (ek_host_memory){.freeing = x->memory.freeing};
}

/* Result of a connectivity test.  Waits longer after failures, as each test slows the hosts in use.
 */
static void note_links(ek_core_host *x, int64_t now, int result)
{
    ek_host_health *a = &x->health;

    x->suspect = result != 0;
    a->refusals = result != 0 ? a->refusals + 1 : 0;
    a->probe_at =
        now + ek_clock_from_s(
                  probe_every_s *
                  (double)(1 << (a->refusals < REFUSALS_DOUBLE ? a->refusals : REFUSALS_DOUBLE)));
}

/* After a failed preallocation the host is probed at once: it may be gone, or lack memory, in which
 * case it is used without preallocation. */
static void note_result(ek_core_host *x, int result, double took_s, int64_t now)
{
    ek_core_task task = x->health.task;

    x->health.task = EK_TASK_NONE;
    x->health.answer = result;
    x->health.took_s = took_s;
    x->health.probe_at =
        task == EK_TASK_PREALLOC && result != 0 ? now : now + ek_clock_from_s(probe_every_s);
    if (task == EK_TASK_LINKS)
        note_links(x, now, result);
    x->memory.ready = task == EK_TASK_PREALLOC || (x->memory.ready && result == 0);
}

void ek_core_hosts_task_ended(ek_core_hosts *h, int number, int result, double took_s, int64_t now)
{
    int i = ek_core_hosts_index(h, number);

    if (i >= 0 && h->host[i].health.task != EK_TASK_NONE)
        note_result(&h->host[i], result, took_s, now);
}

void ek_core_hosts_end_late(ek_core_hosts *h, int64_t now, ek_core_actions *out)
{
    for (int i = 0; i < h->n; i++) {
        ek_core_host *x = &h->host[i];
        ek_host_health *a = &x->health;

        if (a->task == EK_TASK_NONE || now - a->begin < a->limit)
            continue;
        ek_core_act(out, &(ek_core_action){.kind = EK_CORE_CANCEL_TASK, .host = x->number});
        note_result(x, EK_RESULT_LATE, (double)(now - a->begin) / 1e9, now);
    }
}

void ek_core_hosts_forgive(ek_core_hosts *h, int64_t gap)
{
    h->wait_until += h->wait_until > 0 ? gap : 0;
    for (int i = 0; i < h->n; i++)
        h->host[i].health.begin += gap;
}

/* --- the list --------------------------------------------------------------------------------- */

/* Forgets hosts that are neither listed nor in use, once their preallocated memory is freed. */
static void drop_unlisted(ek_core_hosts *h, int64_t now, ek_core_actions *out)
{
    int n = 0;

    for (int i = 0; i < h->n; i++) {
        ek_core_host *x = &h->host[i];
        int gone = !x->listed && x->used == 0;

        if (gone && x->memory.held)
            free_memory(x, now, out);
        else if (gone && !x->memory.freeing)
            cancel_task(x, out);
        x->memory.freeing = gone && x->health.task != EK_TASK_NONE;
        if (!gone || x->memory.freeing)
            h->host[n++] = *x;
    }
    h->n = n;
}

static ek_core_host *find_name(ek_core_hosts *h, const char *name)
{
    for (int i = 0; i < h->n; i++)
        if (strcmp(h->host[i].host.name, name) == 0)
            return &h->host[i];
    return NULL;
}

static ek_status reserve(ek_core_hosts *h, int n)
{
    ek_core_host *host = realloc(h->host, (size_t)n * sizeof(*host));
    int *used;

    EK_REQUIRE(host != NULL, EK_ENOMEM, "no memory for %d hosts", n);
    h->host = host;
    used = realloc(h->used, (size_t)n * sizeof(*used));
    EK_REQUIRE(used != NULL, EK_ENOMEM, "no memory for %d hosts", n);
    h->used = used;
    return EK_OK;
}

ek_status ek_core_hosts_set_list(ek_core_hosts *h, const ek_host *list, int n, int64_t now,
                                 ek_core_actions *out)
{
    EK_TRY(reserve(h, h->n + n + 1));
    for (int i = 0; i < h->n; i++)
        h->host[i].listed = 0;
    for (int i = 0; i < n; i++) {
        ek_core_host *x = find_name(h, list[i].name);

        if (x != NULL && x->listed) {
            x->host.slots += list[i].slots;
            continue;
        }
        if (x == NULL) {
            x = &h->host[h->n++];
            *x = (ek_core_host){.number = h->numbers++,
                                .health.answer = EK_RESULT_PENDING}; /* not probed yet */
        }
        x->host = list[i];
        x->listed = 1;
    }
    drop_unlisted(h, now, out);
    return EK_OK;
}

/* --- probing ---------------------------------------------------------------------------------- */

void ek_core_hosts_probe(ek_core_hosts *h, int64_t now, ek_core_actions *out)
{
    h->slowest_s = 0;
    h->round++;
    for (int i = 0; i < h->n; i++) {
        ek_core_host *x = &h->host[i];

        x->health.doubles = 0;
        if (x->listed || x->used > 0) /* unlisted hosts in use hold state */
            probe(h, x, 0, now, out);
    }
}

void ek_core_hosts_probe_new(ek_core_hosts *h, int64_t now, ek_core_actions *out)
{
    for (int i = 0; i < h->n; i++)
        if (h->host[i].listed && h->host[i].health.round != h->round)
            probe(h, &h->host[i], 0, now, out);
}

/* Before the first generation, a host that failed a probe is probed once more: mpiexec may fail
 * once. */
static int is_probed_again(const ek_core_hosts *h, ek_core_host *x)
{
    ek_host_health *a = &x->health;
    int is = !h->begun && !a->probed_twice && a->answer != EK_RESULT_LATE;

    a->probed_twice |= is;
    return is;
}

/* Whether late hosts are waited for, and none of them has responded yet: the first one may have all
 * that was missing. */
static int is_waiting_for_late(const ek_core_hosts *h, int64_t now)
{
    for (int i = 0; i < h->n; i++) {
        const ek_core_host *x = &h->host[i];

        if (x->late && x->health.round == h->round && x->health.answer == 0)
            return 0;
    }
    return now < h->wait_until;
}

/* The others have a multiple of the time of the slowest host that has responded; a late host that
 * is waited for twice as long with each probe. */
static void shorten_limits(ek_core_hosts *h, int waiting)
{
    double least = h->used_at == 0 ? first_answer_least_s : answer_least_s;
    double s = answer_factor * h->slowest_s;

    for (int i = 0; i < h->n; i++) {
        ek_core_host *x = &h->host[i];
        int doubles = waiting && x->late ? 1 + x->health.doubles : 0;

        if (x->health.task == EK_TASK_PROBE)
            x->health.limit = ek_clock_from_s((s > least ? s : least) * (double)(1 << doubles));
    }
}

/* While late hosts are waited for, one whose probe has ended without a response is probed again: at
 * once if it was too slow, else after a while. */
static void probe_late_again(ek_core_hosts *h, ek_core_host *x, int64_t now, ek_core_actions *out)
{
    ek_host_health *a = &x->health;

    if (a->answer != EK_RESULT_LATE && now < a->probe_at)
        return;
    a->doubles += a->answer == EK_RESULT_LATE && a->doubles < LATE_DOUBLES_MAX;
    probe(h, x, 0, now, out);
}

int ek_core_hosts_probed(ek_core_hosts *h, int reading, int64_t now, ek_core_actions *out)
{
    int waiting = 0, there = 0, late = is_waiting_for_late(h, now);

    for (int i = 0; i < h->n; i++) {
        ek_core_host *x = &h->host[i];
        ek_host_health *a = &x->health;

        if (a->round != h->round)
            continue;
        if (a->task == EK_TASK_NONE && a->answer != 0 && is_probed_again(h, x))
            probe(h, x, 0, now, out);
        else if (a->task == EK_TASK_NONE && a->answer != 0 && late && x->late)
            probe_late_again(h, x, now, out);
        if (a->task != EK_TASK_NONE || (a->answer != 0 && late && x->late)) {
            waiting++;
        } else if (a->answer == 0) {
            there++;
            if (a->took_s > h->slowest_s && !(x->late && h->wait_until > 0))
                h->slowest_s = a->took_s;
        }
    }
    if (there > 0)
        shorten_limits(h, late);
    return waiting == 0 && (there > 0 || !reading);
}

void ek_core_hosts_poll(ek_core_hosts *h, int64_t now, ek_core_actions *out)
{
    for (int i = 0; i < h->n; i++) {
        ek_core_host *x = &h->host[i];

        if (x->used == 0 && x->health.task == EK_TASK_NONE && x->listed &&
            now >= x->health.probe_at)
            probe(h, x, 1, now, out);
    }
}

int ek_core_hosts_is_probe_pending(const ek_core_hosts *h, int64_t now)
{
    for (int i = 0; i < h->n; i++) {
        const ek_core_host *x = &h->host[i];
        double s = x->health.task == EK_TASK_PREALLOC ? together_s : answer_least_s;

        if (x->used == 0 && x->listed && x->health.task != EK_TASK_NONE &&
            now - x->health.begin < ek_clock_from_s(s))
            return 1;
    }
    return 0;
}

/* --- preallocation ---------------------------------------------------------------------------- */

/* Slots of hosts that are in use or prepared. */
static int64_t expected_slots(const ek_core_hosts *h)
{
    int64_t n = 0;

    for (int i = 0; i < h->n; i++) {
        const ek_core_host *x = &h->host[i];

        n += x->used > 0 || x->memory.ready || x->health.task == EK_TASK_PREALLOC ? x->host.slots
                                                                                  : 0;
    }
    return n;
}

int ek_core_hosts_prealloc(ek_core_hosts *h, int64_t wanted, int64_t now, ek_core_actions *out)
{
    int begun = 0;

    for (int i = 0; i < h->n && h->can_prealloc && expected_slots(h) < wanted; i++) {
        ek_core_host *x = &h->host[i];

        if (x->used > 0 || x->memory.ready || !ek_core_host_is_usable(x, now))
            continue;
        run_task(x, EK_TASK_PREALLOC, prealloc_s, now, out);
        x->memory.held = 1;
        begun = 1;
    }
    return begun;
}

void ek_core_hosts_free_all(ek_core_hosts *h, int64_t now, ek_core_actions *out)
{
    for (int i = 0; i < h->n; i++)
        if (h->host[i].health.task != EK_TASK_FREE)
            free_memory(&h->host[i], now, out);
}

int ek_core_hosts_all_free(const ek_core_hosts *h)
{
    for (int i = 0; i < h->n; i++)
        if (h->host[i].health.task != EK_TASK_NONE)
            return 0;
    return 1;
}
