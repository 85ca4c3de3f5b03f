/* comm_threads.h - runs a function on ranks that are threads. */
#ifndef COMM_THREADS_H
#define COMM_THREADS_H

#include "comm_cases.h"

#include <pthread.h>

enum { OVER_MAX = 12 };

typedef struct {
    peer p;
    void (*setup)(peer *p);
    void (*run)(peer *p);
    pthread_t thread;
} over_rank;

static inline void *over_thread(void *arg)
{
    over_rank *r = arg;

    if (r->setup != NULL)
        r->setup(&r->p);
    r->run(&r->p);
    ek_comm_close(&r->p.world);
    return NULL;
}

/* Every rank calls setup (NULL: none) and run, with this seed; returns the failed checks. */
static inline int over(int ranks, void (*setup)(peer *p), void (*run)(peer *p), uint64_t seed)
{
    ek_comm *worlds[OVER_MAX];
    over_rank r[OVER_MAX];
    int failed = 0;

    if (ek_comm_open_threads(ranks, worlds) != EK_OK) {
        fprintf(stderr, "%s\n", ek_err_text());
        return 1;
    }
    for (int i = 0; i < ranks; i++) {
        r[i] = (over_rank){.setup = setup, .run = run};
        r[i].p = (peer){.world = worlds[i], .rank = i, .size = ranks, .seed = seed};
        failed += pthread_create(&r[i].thread, NULL, over_thread, &r[i]) != 0;
    }
    for (int i = 0; i < ranks; i++) {
        pthread_join(r[i].thread, NULL);
        failed += r[i].p.failed;
    }
    return failed;
}

/* The same for each case of comm_cases.h. */
static inline int over_cases(int ranks, void (*setup)(peer *p))
{
    int failed = 0;

    for (size_t i = 0; i < sizeof(comm_cases) / sizeof(comm_cases[0]); i++) {
        int wrong = over(ranks, setup, comm_cases[i].run, 0);

        if (wrong > 0)
            fprintf(stderr, "case %s failed with %d ranks\n", comm_cases[i].name, ranks);
        failed += wrong;
    }
    return failed;
}

#endif
