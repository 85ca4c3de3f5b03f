/* The connectivity test: its jobs, and which hosts to exclude. */
#include "supervisor/core_links.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

/* No further pairs of a host are tested after this many failures. */
enum { ENOUGH = 2 };

static int rounds_of(int n)
{
    return n + n % 2 - 1;
}

/* Pair i of a round (counted from 1), by the circle method of round-robin tournaments.  Returns 0
 * if one of the two does not exist (n odd). */
static int pair_of(int n, int round, int i, int pair[2])
{
    int m = rounds_of(n);

    pair[0] = i == 0 ? m : (round - 1 + i) % m;
    pair[1] = (round - 1 - i + m) % m;
    return pair[0] < n && pair[1] < n;
}

int ek_core_links_cut(const ek_core_links *k, int a, int b)
{
    return k->cut[a * k->n + b];
}

static int cuts_of(const ek_core_links *k, int host)
{
    int n = 0;

    for (int i = 0; i < k->n; i++)
        n += ek_core_links_cut(k, host, i);
    return n;
}

static void run_job(ek_core_links *k, int job, const int *hosts, int n, ek_core_actions *out)
{
    k->running[job] = 1;
    ek_core_act(out,
                &(ek_core_action){
                    .kind = EK_CORE_RUN_LINK_JOB, .host = -1, .job = job, .hosts = hosts, .n = n});
}

/* Numbers of the hosts of a pair; in k->pair, behind the indices of all pairs. */
static const int *numbers_of(ek_core_links *k, int job)
{
    int *numbers = k->pair[k->n + job];

    numbers[0] = k->host[k->pair[job][0]];
    numbers[1] = k->host[k->pair[job][1]];
    return numbers;
}

static void begin_round(ek_core_links *k, int64_t now, ek_core_actions *out)
{
    k->begin = now;
    for (int i = 0; i < (k->n + 1) / 2; i++)
        if (pair_of(k->n, k->round, i, k->pair[i]) && cuts_of(k, k->pair[i][0]) < ENOUGH &&
            cuts_of(k, k->pair[i][1]) < ENOUGH)
            run_job(k, i, numbers_of(k, i), 2, out);
}

ek_status ek_core_links_begin(ek_core_links *k, const int *host, int n, double limit_s, int64_t now,
                              ek_core_actions *out)
{
    size_t size = (size_t)n;

    ek_core_links_fini(k);
    *k = (ek_core_links){.host = malloc(size * sizeof(*k->host)),
                         .n = n,
                         .cut = calloc(size * size, 1),
                         .out = calloc(size, 1),
                         .pair = calloc(2 * size, sizeof(*k->pair)),
                         .running = calloc(size, 1),
                         .begin = now,
                         .limit = ek_clock_from_s(limit_s)};
    if (k->host == NULL || k->cut == NULL || k->out == NULL || k->pair == NULL ||
        k->running == NULL) {
        ek_core_links_fini(k);
        return EK_FAIL(EK_ENOMEM, "no memory for the links of %d hosts", n);
    }
    memcpy(k->host, host, size * sizeof(*host));
    run_job(k, 0, k->host, n, out);
    return EK_OK;
}

void ek_core_links_job_ended(ek_core_links *k, int job, int result)
{
    if (job < 0 || job >= k->n || !k->running[job])
        return;
    k->running[job] = 0;
    k->good += result == 0;
    if (k->round == 0) {
        k->whole = result == 0;
    } else if (result != 0) {
        int a = k->pair[job][0], b = k->pair[job][1];

        k->cut[a * k->n + b] = k->cut[b * k->n + a] = 1;
    }
}

static int running(const ek_core_links *k)
{
    int n = 0;

    for (int i = 0; i < k->n; i++)
        n += k->running[i];
    return n;
}

void ek_core_links_cancel(ek_core_links *k, ek_core_actions *out)
{
    for (int i = 0; i < k->n; i++)
        if (k->running[i]) {
            k->running[i] = 0;
            ek_core_act(out,
                        &(ek_core_action){.kind = EK_CORE_CANCEL_LINK_JOB, .host = -1, .job = i});
        }
}

static void end_late(ek_core_links *k, ek_core_actions *out)
{
    for (int i = 0; i < k->n; i++)
        if (k->running[i]) {
            ek_core_act(out,
                        &(ek_core_action){.kind = EK_CORE_CANCEL_LINK_JOB, .host = -1, .job = i});
            ek_core_links_job_ended(k, i, EK_RESULT_LATE);
        }
}

/* The remaining host with most broken links to other remaining hosts, the last of equals; -1:
 * none. */
static int most_cut_host(const ek_core_links *k)
{
    int found = -1, most = 0;

    for (int i = 0; i < k->n; i++) {
        int n = 0;

        for (int j = 0; j < k->n; j++)
            n += !k->out[j] && ek_core_links_cut(k, i, j);
        if (!k->out[i] && n > 0 && n >= most) {
            found = i;
            most = n;
        }
    }
    return found;
}

/* Excludes none if that were more than half, or if no pair of more than two hosts passed (then
 * there is another cause). */
static void choose(ek_core_links *k)
{
    int n = 0, i, other_cause = k->good == 0 && k->n > 2;

    while (!other_cause && (i = most_cut_host(k)) >= 0) {
        k->out[i] = 1;
        n++;
    }
    if (n > k->n / 2)
        memset(k->out, 0, (size_t)k->n);
}

int ek_core_links_poll(ek_core_links *k, int64_t now, ek_core_actions *out)
{
    if (now - k->begin >= k->limit)
        end_late(k, out);
    while (running(k) == 0 && !k->whole && k->round < rounds_of(k->n)) {
        k->round++;
        begin_round(k, now, out);
    }
    if (running(k) > 0)
        return 0;
    choose(k);
    return 1;
}

void ek_core_links_fini(ek_core_links *k)
{
    free(k->host);
    free(k->cut);
    free(k->out);
    free(k->pair);
    free(k->running);
    *k = (ek_core_links){0};
}
