/* Threads that touch memory ahead of its use, a huge page at a time. */
#include "base/populate.h"

#include "base/threads.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    PIECE = 2 << 20, /* a huge page, where memory has such */
    THREADS_MOST = 4 /* a core clears memory faster than a disk fills it */
};

struct ek_populate {
    char *memory;
    size_t bytes;
    int most; /* threads */

    pthread_mutex_t mutex;
    pthread_cond_t more;
    pthread_t threads[THREADS_MOST];
    int n_threads;
    size_t asked, taken; /* bytes from the start; taken: by a thread */
    int quit, failed;    /* failed: the system cannot */
};

/* 0, or -1: the system cannot. */
static int touch_pages(char *from, size_t bytes)
{
#ifdef MADV_POPULATE_WRITE
    return madvise(from, bytes, MADV_POPULATE_WRITE);
#else
    (void)from;
    (void)bytes;
    return -1;
#endif
}

/* Bytes up to the end of a piece, or of what was asked for. */
static size_t next_piece(const ek_populate *p)
{
    size_t piece = PIECE - (uintptr_t)(p->memory + p->taken) % PIECE, left = p->asked - p->taken;

    return piece < left ? piece : left;
}

static void *populate_main(void *arg)
{
    ek_populate *p = arg;

    pthread_mutex_lock(&p->mutex);
    for (;;) {
        char *from;
        size_t bytes;
        int failed;

        while (p->taken == p->asked && p->taken < p->bytes && !p->quit)
            pthread_cond_wait(&p->more, &p->mutex);
        if (p->taken == p->bytes || p->quit)
            break;
        from = p->memory + p->taken;
        bytes = next_piece(p);
        p->taken += bytes;
        pthread_mutex_unlock(&p->mutex);
        failed = touch_pages(from, bytes) != 0;
        pthread_mutex_lock(&p->mutex);
        p->quit |= failed;
        p->failed |= failed;
    }
    pthread_cond_broadcast(&p->more); /* all end together */
    pthread_mutex_unlock(&p->mutex);
    return NULL;
}

ek_status ek_populate_create(void *memory, size_t bytes, int threads, ek_populate **out)
{
    ek_populate *p = calloc(1, sizeof(*p));

    EK_REQUIRE(p != NULL, EK_ENOMEM, "no memory for the account of touched memory");
    p->memory = memory;
    p->bytes = bytes;
    p->most = threads < THREADS_MOST ? threads : THREADS_MOST;
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->more, NULL);
    *out = p;
    return EK_OK;
}

void ek_populate_ask(ek_populate *p, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    bytes = bytes < p->bytes ? bytes + (page - bytes % page) % page : p->bytes;
    bytes = bytes < p->bytes ? bytes : p->bytes;
    pthread_mutex_lock(&p->mutex);
    if (bytes > p->asked) {
        p->asked = bytes;
        while (p->n_threads < p->most && !p->quit &&
               ek_thread_start(&p->threads[p->n_threads], populate_main, p))
            p->n_threads++;
        pthread_cond_broadcast(&p->more);
    }
    pthread_mutex_unlock(&p->mutex);
}

size_t ek_populate_touched(ek_populate *p)
{
    size_t taken;

    pthread_mutex_lock(&p->mutex);
    taken = p->failed ? 0 : p->taken;
    pthread_mutex_unlock(&p->mutex);
    return taken;
}

void ek_populate_destroy(ek_populate **pp)
{
    ek_populate *p = *pp;

    if (p == NULL)
        return;
    pthread_mutex_lock(&p->mutex);
    p->quit = 1;
    pthread_cond_broadcast(&p->more);
    pthread_mutex_unlock(&p->mutex);
    for (int i = 0; i < p->n_threads; i++)
        pthread_join(p->threads[i], NULL);
    pthread_cond_destroy(&p->more);
    pthread_mutex_destroy(&p->mutex);
    free(p);
    *pp = NULL;
}
