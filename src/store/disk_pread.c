/* The back end of threads: each takes a piece, calls pread or pwrite, and puts it on the list of
 * those done.  They sleep while there is none. */
#include "base/c_locale.h"
#include "base/threads.h"
#include "store/disk_priv.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

typedef struct {
    ek_disk_piece *first, *last;
} piece_list;

typedef struct {
    const ek_disk_io *io;
    pthread_t threads[EK_DISK_THREADS_MAX];
    int n_threads;
    pthread_mutex_t mutex; /* guards what follows; taken inside the queue's mutex */
    pthread_cond_t work, done;
    piece_list todo, ended;
    int64_t results[EK_DISK_DEPTH_MAX]; /* of the pieces ended, by their place in ek_disk.pieces */
    const ek_disk_piece *pieces;        /* ek_disk.pieces */
    int quit;
} pool;

static void append_piece(piece_list *l, ek_disk_piece *p)
{
    p->next = NULL;
    if (l->last != NULL)
        l->last->next = p;
    else
        l->first = p;
    l->last = p;
}

static ek_disk_piece *take_piece(piece_list *l)
{
    ek_disk_piece *p = l->first;

    if (p == NULL)
        return NULL;
    l->first = p->next;
    if (l->first == NULL)
        l->last = NULL;
    return p;
}

/* One call for the rest of a piece. */
static int64_t call_system(const ek_disk_io *io, const ek_disk_piece *p)
{
    int fd = p->request->file->fd;
    off_t offset = (off_t)(p->offset + (int64_t)p->from);
    unsigned char *data = p->data + p->from;
    ssize_t n = p->request->write ? io->pwrite(fd, data, p->bytes - p->from, offset)
                                  : io->pread(fd, data, p->bytes - p->from, offset);

    return n < 0 ? -errno : n;
}

static void *worker_main(void *arg)
{
    pool *b = arg;
    EK_C_LOCALE;

    pthread_mutex_lock(&b->mutex);
    for (;;) {
        ek_disk_piece *p;
        int64_t result;

        while ((p = take_piece(&b->todo)) == NULL && !b->quit)
            pthread_cond_wait(&b->work, &b->mutex);
        if (p == NULL)
            break;
        pthread_mutex_unlock(&b->mutex);
        result = call_system(b->io, p);
        pthread_mutex_lock(&b->mutex);
        b->results[p - b->pieces] = result;
        append_piece(&b->ended, p);
        pthread_cond_signal(&b->done);
    }
    pthread_mutex_unlock(&b->mutex);
    return NULL;
}

static void destroy_pool(ek_disk *d)
{
    pool *b = d->backend;

    pthread_mutex_lock(&b->mutex);
    b->quit = 1;
    pthread_cond_broadcast(&b->work);
    pthread_mutex_unlock(&b->mutex);
    for (int i = 0; i < b->n_threads; i++)
        pthread_join(b->threads[i], NULL);
    pthread_cond_destroy(&b->work);
    pthread_cond_destroy(&b->done);
    pthread_mutex_destroy(&b->mutex);
    free(b);
    d->backend = NULL;
}

static ek_status create_pool(ek_disk *d)
{
    int want = d->config.depth < EK_DISK_THREADS_MAX ? d->config.depth : EK_DISK_THREADS_MAX;
    pool *b = calloc(1, sizeof(*b));
    pthread_condattr_t attr;

    EK_REQUIRE(b != NULL, EK_ENOMEM, "no memory for a pool of disk threads");
    b->io = d->io;
    b->pieces = d->pieces;
    pthread_mutex_init(&b->mutex, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&b->work, NULL);
    pthread_cond_init(&b->done, &attr);
    pthread_condattr_destroy(&attr);
    d->backend = b;
    while (b->n_threads < want && ek_thread_start(&b->threads[b->n_threads], worker_main, b))
        b->n_threads++;
    if (b->n_threads > 0) /* fewer than wanted carry out the same */
        return EK_OK;
    destroy_pool(d);
    return EK_FAIL(EK_ENOMEM, "cannot start a thread for reading and writing files");
}

static void queue_piece(ek_disk *d, ek_disk_piece *p)
{
    pool *b = d->backend;

    pthread_mutex_lock(&b->mutex);
    append_piece(&b->todo, p);
    pthread_cond_signal(&b->work);
    pthread_mutex_unlock(&b->mutex);
}

static void flush_nothing(ek_disk *d)
{
    (void)d;
}

static void reap_ended(ek_disk *d)
{
    pool *b = d->backend;
    ek_disk_piece *p;

    do {
        int64_t result = 0;

        pthread_mutex_lock(&b->mutex);
        p = take_piece(&b->ended);
        if (p != NULL)
            result = b->results[p - b->pieces];
        pthread_mutex_unlock(&b->mutex);
        if (p != NULL)
            ek_disk_piece_done(d, p, result);
    } while (p != NULL);
}

static void wait_ended(ek_disk *d, int64_t most_ns)
{
    pool *b = d->backend;
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += most_ns;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&b->mutex);
    if (b->ended.first == NULL)
        pthread_cond_timedwait(&b->done, &b->mutex, &until);
    pthread_mutex_unlock(&b->mutex);
}

static size_t registers_nothing(const ek_disk *d)
{
    (void)d;
    return 0;
}

const ek_disk_backend_table ek_disk_pool = {.name = "pread pool",
                                            .create = create_pool,
                                            .destroy = destroy_pool,
                                            .queue = queue_piece,
                                            .flush = flush_nothing,
                                            .reap = reap_ended,
                                            .wait = wait_ended,
                                            .registered = registers_nothing};
