/* Connectivity test between hosts.  A broken link between two hosts that both respond to probes is
 * not visible to the supervisor; workers on them just wait for each other.  The test runs `evenkeel
 * links` jobs: first one on all hosts, which passes soon if all links work; otherwise one on each
 * pair, in rounds in which every host takes part in one job. */
#include "supervisor/connectivity.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Time limit of a job: a multiple of the duration of a start, with a minimum; if that is
 * unknown. */
static const double factor = 5, least_s = 3, unknown_s = 20;
/* No further pairs of a host are tested after this many failures. */
enum { ENOUGH = 2 };

ek_status ek_connectivity_try(ek_subprocess *e, const ek_supervisor_config *config,
                              const char *mpiexec, double start_s, const char *const *host, int n)
{
    char command[] = "links", *argv[] = {command}, *list;
    double s = start_s > 0 ? factor * start_s : unknown_s;
    size_t room;
    FILE *f = open_memstream(&list, &room);
    ek_status st;

    EK_REQUIRE(f != NULL, EK_ENOMEM, "no memory for %d hosts", n);
    for (int i = 0; i < n; i++)
        fprintf(f, "%s%s:1", i > 0 ? "," : "", host[i]);
    EK_REQUIRE(fclose(f) == 0, EK_ENOMEM, "no memory for %d hosts", n);
    st = ek_subprocess_run(e, config, mpiexec, n, list, argv, 1, s > least_s ? s : least_s);
    free(list);
    return st;
}

static int rounds_of(int n)
{
    return n + n % 2 - 1;
}

/* Pair i of a round (counted from 1), by the circle method of round-robin tournaments.  Returns 0
 * if one of the two does not exist (n odd). */
static int pair_of(int n, int round, int i, int *a, int *b)
{
    int m = rounds_of(n);

    *a = i == 0 ? m : (round - 1 + i) % m;
    *b = (round - 1 - i + m) % m;
    return *a < n && *b < n;
}

int ek_connectivity_cut(const ek_connectivity *k, int a, int b)
{
    return k->cut[a * k->n + b];
}

static int cuts_of(const ek_connectivity *k, int host)
{
    int n = 0;

    for (int i = 0; i < k->n; i++)
        n += ek_connectivity_cut(k, host, i);
    return n;
}

static ek_status begin_round(ek_connectivity *k)
{
    for (int i = 0; i < (k->n + 1) / 2; i++) {
        int a, b;

        if (pair_of(k->n, k->round, i, &a, &b) && cuts_of(k, a) < ENOUGH &&
            cuts_of(k, b) < ENOUGH) {
            const char *const two[] = {k->host[a], k->host[b]};

            EK_TRY(
                ek_connectivity_try(&k->subprocess[i], k->config, k->mpiexec, k->start_s, two, 2));
        }
    }
    return EK_OK;
}

ek_status ek_connectivity_begin(ek_connectivity *k)
{
    size_t n = (size_t)k->n;

    k->cut = calloc(n * n, 1);
    k->subprocess = calloc(n, sizeof(*k->subprocess));
    EK_REQUIRE(k->cut != NULL && k->subprocess != NULL, EK_ENOMEM,
               "no memory for the links of %zu hosts", n);
    for (int i = 0; i < k->n; i++)
        k->subprocess[i].out = -1;
    k->round = 0;
    return ek_connectivity_try(&k->subprocess[0], k->config, k->mpiexec, k->start_s, k->host, k->n);
}

/* Polls one job and records its result; returns 0 while it runs. */
static int poll_job(ek_connectivity *k, int i)
{
    int status, a, b;

    if (k->subprocess[i].pid == 0)
        return 1;
    status = ek_subprocess_poll(&k->subprocess[i]);
    if (status == EK_SUBPROCESS_RUNNING)
        return 0;
    k->good += status == 0;
    if (k->round == 0) {
        k->whole = status == 0;
    } else if (status != 0) {
        pair_of(k->n, k->round, i, &a, &b);
        k->cut[a * k->n + b] = k->cut[b * k->n + a] = 1;
    }
    return 1;
}

ek_status ek_connectivity_poll(ek_connectivity *k, int *known)
{
    int waiting = 0;

    for (int i = 0; i < k->n; i++)
        waiting += !poll_job(k, i);
    *known = waiting == 0 && (k->whole || k->round == rounds_of(k->n));
    if (waiting > 0 || *known)
        return EK_OK;
    k->round++;
    return begin_round(k);
}

/* The remaining host with most broken links to other remaining hosts, the last of equals; -1:
 * none. */
static int most_cut_host(const ek_connectivity *k, const unsigned char *out)
{
    int found = -1, most = 0;

    for (int i = 0; i < k->n; i++) {
        int n = 0;

        for (int j = 0; j < k->n; j++)
            n += !out[j] && ek_connectivity_cut(k, i, j);
        if (!out[i] && n > 0 && n >= most) {
            found = i;
            most = n;
        }
    }
    return found;
}

int ek_connectivity_choose(const ek_connectivity *k, unsigned char *out)
{
    int n = 0, i, other_cause = k->good == 0 && k->n > 2;

    memset(out, 0, (size_t)k->n);
    while (!other_cause && (i = most_cut_host(k, out)) >= 0) {
        out[i] = 1;
        n++;
    }
    if (n > k->n / 2)
        memset(out, 0, (size_t)k->n);
    return n > k->n / 2 ? 0 : n;
}

void ek_connectivity_end(ek_connectivity *k)
{
    for (int i = 0; k->subprocess != NULL && i < k->n; i++)
        ek_subprocess_end(&k->subprocess[i]);
    free(k->subprocess);
    free(k->cut);
    k->subprocess = NULL;
    k->cut = NULL;
}
