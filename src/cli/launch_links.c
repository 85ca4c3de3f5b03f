/* Which hosts reach each other.  A cut between two that both answer cannot be seen from here: their
 * workers wait for each other.  Jobs of `evenkeel links` tell: first one on all hosts, which ends
 * soon where nothing is cut; else one on each pair, in rounds in which every host has one. */
#include "base/clock.h"
#include "cli/launch_priv.h"

#include <stdio.h>
#include <stdlib.h>

/* So long a job may take: more times what the quickest kind of job took, and at least this. */
static const double least_s = 3, factor = 10;

static ek_status begin_job(launch_links *k, launch_errand *e, const int *hosts, int n)
{
    char command[] = "links", *argv[] = {command}, *list;
    double s = factor * k->slowest_s > least_s ? factor * k->slowest_s : least_s;
    size_t room;
    FILE *f = open_memstream(&list, &room);
    ek_status st;

    EK_REQUIRE(f != NULL, EK_ENOMEM, "no memory for %d hosts", n);
    for (int i = 0; i < n; i++)
        fprintf(f, "%s%s:1", i > 0 ? "," : "", k->host[hosts[i]]);
    EK_REQUIRE(fclose(f) == 0, EK_ENOMEM, "no memory for %d hosts", n);
    st = launch_errand_run(e, k->l, k->mpiexec, n, list, argv, 1, s);
    free(list);
    return st;
}

/* The pairs of a round, from 1: as in a tournament, one stays where it is and the others go round.
 * Of an odd number one has nobody to meet. */
static int pair_of(int n, int round, int i, int *a, int *b)
{
    int m = n + n % 2 - 1;

    *a = i == 0 ? m : (round - 1 + i) % m;
    *b = (round - 1 - i + m) % m;
    return *a < n && *b < n;
}

static int rounds_of(int n)
{
    return n + n % 2 - 1;
}

static ek_status begin_round(launch_links *k)
{
    for (int i = 0; i < (k->n + 1) / 2; i++) {
        int hosts[2];

        if (pair_of(k->n, k->round, i, &hosts[0], &hosts[1]))
            EK_TRY(begin_job(k, &k->errand[i], hosts, 2));
    }
    return EK_OK;
}

ek_status launch_links_begin(launch_links *k)
{
    size_t n = (size_t)k->n;
    int *all = calloc(n, sizeof(*all));
    ek_status st = EK_OK;

    k->cut = calloc(n * n, 1);
    k->errand = calloc(n, sizeof(*k->errand));
    EK_REQUIRE_OUT(all != NULL && k->cut != NULL && k->errand != NULL, EK_ENOMEM,
                   "no memory for the links of %zu hosts", n);
    for (int i = 0; i < k->n; i++) {
        all[i] = i;
        k->errand[i].out = -1;
    }
    k->round = 0;
    EK_TRY_OUT(begin_job(k, &k->errand[0], all, k->n));
out:
    free(all);
    return st;
}

/* Where no pair of several can run a job it is something else. */
static void forget_if_all(launch_links *k)
{
    if (k->n == 2)
        return;
    for (int i = 0; i < k->n; i++)
        for (int j = 0; j < k->n; j++)
            if (i != j && !k->cut[i * k->n + j])
                return;
    for (int i = 0; i < k->n * k->n; i++)
        k->cut[i] = 0;
}

/* Takes what the job has said; 0: it is still under way. */
static int heard(launch_links *k, int i)
{
    int status, a, b;

    if (k->errand[i].pid == 0)
        return 1;
    status = launch_errand_look(&k->errand[i]);
    if (status == LAUNCH_ERRAND_OUT)
        return 0;
    if (k->round == 0) {
        k->whole = status == 0;
    } else if (status != 0) {
        pair_of(k->n, k->round, i, &a, &b);
        k->cut[a * k->n + b] = k->cut[b * k->n + a] = 1;
    } else if (k->errand[i].took > k->slowest_s) {
        k->slowest_s = k->errand[i].took;
    }
    return 1;
}

ek_status launch_links_look(launch_links *k, int *known)
{
    int waiting = 0;

    for (int i = 0; i < k->n; i++)
        waiting += !heard(k, i);
    *known = 0;
    if (waiting > 0)
        return EK_OK;
    *known = k->whole || k->round == rounds_of(k->n);
    if (*known) {
        forget_if_all(k);
        return EK_OK;
    }
    k->round++;
    return begin_round(k);
}

int launch_links_cut(const launch_links *k, int a, int b)
{
    return k->cut[a * k->n + b];
}

int launch_links_worst(const launch_links *k, const unsigned char *out)
{
    int worst = -1, most = 0;

    for (int i = 0; i < k->n; i++) {
        int n = 0;

        for (int j = 0; j < k->n; j++)
            n += !out[j] && launch_links_cut(k, i, j);
        if (!out[i] && n > 0 && n >= most) {
            worst = i;
            most = n;
        }
    }
    return worst;
}

void launch_links_end(launch_links *k)
{
    for (int i = 0; k->errand != NULL && i < k->n; i++)
        launch_errand_end(&k->errand[i]);
    free(k->errand);
    free(k->cut);
    k->errand = NULL;
    k->cut = NULL;
}
