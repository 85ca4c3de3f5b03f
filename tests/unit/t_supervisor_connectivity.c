/* Connectivity test with a script in place of mpiexec: every pair is tested once, every broken link
 * is found, and the minimum number of hosts is excluded. */
#include "base/file.h"
#include "ek_test.h"
#include "supervisor/connectivity.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { HOSTS_MAX = 9 };

static const char *const names[HOSTS_MAX] = {"h0", "h1", "h2", "h3", "h4", "h5", "h6", "h7", "h8"};

typedef struct {
    ek_path folder, script, log;
    ek_connectivity k;
    unsigned char out[HOSTS_MAX];
    int left_out;
} trial;

static const char head[] = "#!/bin/sh\n"
                           "while [ $# -gt 1 ]; do\n"
                           "    case $1 in -hosts | --host) list=$2 ;; esac\n"
                           "    shift\n"
                           "done\n"
                           "echo \"$list\" >>%s\n"
                           "has() { case ,$list, in *,h$1:1,*) return 0 ;; esac; return 1; }\n";

/* Writes a script that replaces mpiexec: a job fails if it has both hosts of a broken link.  cut:
 * pairs of host numbers. */
static void write_script(trial *t, const int (*cut)[2], int cuts)
{
    FILE *f;

    CHECK(ek_path_set(&t->folder, "/tmp/ek_t_links_XXXXXX") == EK_OK);
    CHECK(mkdtemp(t->folder.s) != NULL);
    CHECK(ek_path_set(&t->script, "%s/mpiexec", t->folder.s) == EK_OK);
    CHECK(ek_path_set(&t->log, "%s/log", t->folder.s) == EK_OK);
    f = fopen(t->script.s, "w");
    CHECK(f != NULL);
    fprintf(f, head, t->log.s);
    for (int i = 0; i < cuts; i++)
        fprintf(f, "has %d && has %d && exit 1\n", cut[i][0], cut[i][1]);
    fprintf(f, "exit 0\n");
    fclose(f);
    CHECK(chmod(t->script.s, 0700) == 0);
}

static void try_links(trial *t, int n, const int (*cut)[2], int cuts)
{
    static const ek_supervisor_config config = {.command = "train"};
    const struct timespec nap = {0, 1000000};
    int known = 0;

    memset(t, 0, sizeof(*t));
    write_script(t, cut, cuts);
    t->k = (ek_connectivity){.config = &config,
                             .mpiexec = t->script.s,
                             .host = (const char **)(uintptr_t)names,
                             .n = n,
                             .start_s = 60};
    CHECK(ek_connectivity_begin(&t->k) == EK_OK);
    while (!known) {
        CHECK(ek_connectivity_poll(&t->k, &known) == EK_OK);
        nanosleep(&nap, NULL);
    }
    t->left_out = ek_connectivity_choose(&t->k, t->out);
}

/* Number of jobs run. */
static int jobs(const trial *t)
{
    FILE *f = fopen(t->log.s, "r");
    int n = 0, c;

    while (f != NULL && (c = fgetc(f)) != EOF)
        n += c == '\n';
    if (f != NULL)
        fclose(f);
    return n;
}

static void drop(trial *t)
{
    ek_connectivity_end(&t->k);
    unlink(t->script.s);
    unlink(t->log.s);
    rmdir(t->folder.s);
}

static void nothing_is_cut(void)
{
    for (int n = 2; n <= HOSTS_MAX; n++) {
        trial t;

        try_links(&t, n, NULL, 0);
        CHECK_INT(t.left_out, 0);
        CHECK_INT(jobs(&t), 1);
        drop(&t);
    }
}

/* All pairs are tested once, and only the broken one is found. */
static void one_pair_is_cut(void)
{
    for (int n = 2, some = 1; n <= HOSTS_MAX; n++, some = n > 5 ? 3 : 1)
        for (int b = 1; b < n; b += some) {
            const int cut[1][2] = {{b / 2, b}};
            trial t;

            try_links(&t, n, cut, 1);
            CHECK_INT(jobs(&t), 1 + n * (n - 1) / 2);
            for (int i = 0; i < n; i++)
                for (int j = 0; j < n; j++)
                    CHECK_INT(ek_connectivity_cut(&t.k, i, j),
                              (i == b / 2 && j == b) || (i == b && j == b / 2));
            CHECK_INT(t.left_out, 1);
            CHECK_INT(t.out[b], 1);
            drop(&t);
        }
}

/* Its remaining pairs are skipped. */
static void one_reaches_nobody(void)
{
    enum { N = 8 };

    for (int lost = 0; lost < N; lost++) {
        int cut[N][2];
        trial t;

        for (int i = 0; i < N; i++) {
            cut[i][0] = lost;
            cut[i][1] = i != lost ? i : HOSTS_MAX;
        }
        try_links(&t, N, (const int(*)[2])cut, N);
        CHECK_INT(t.left_out, 1);
        CHECK_INT(t.out[lost], 1);
        CHECK_INT(jobs(&t), 1 + N * (N - 1) / 2 - (N - 3));
        drop(&t);
    }
}

static void two_cuts(void)
{
    const int apart[2][2] = {{0, 1}, {2, 3}}, shared[2][2] = {{0, 3}, {1, 3}};
    trial t;

    try_links(&t, 5, apart, 2);
    CHECK_INT(t.left_out, 2);
    CHECK(t.out[0] + t.out[1] == 1 && t.out[2] + t.out[3] == 1);
    drop(&t);
    try_links(&t, 5, shared, 2);
    CHECK_INT(t.left_out, 1);
    CHECK_INT(t.out[3], 1);
    drop(&t);
}

/* All jobs fail: there is another cause, so no host is excluded. */
static void all_fails(void)
{
    int cut[HOSTS_MAX * HOSTS_MAX][2], n = 0;
    trial t;

    for (int i = 0; i < 4; i++)
        for (int j = 0; j < i; j++, n++) {
            cut[n][0] = i;
            cut[n][1] = j;
        }
    try_links(&t, 4, (const int(*)[2])cut, n);
    CHECK_INT(t.left_out, 0);
    for (int i = 0; i < 4; i++)
        CHECK_INT(t.out[i], 0);
    drop(&t);
}

static const ek_case cases[] = {
    EK_CASE(nothing_is_cut), EK_CASE(one_pair_is_cut), EK_CASE(one_reaches_nobody),
    EK_CASE(two_cuts),       EK_CASE(all_fails),
};
EK_TEST_MAIN(cases)
