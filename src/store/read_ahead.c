/* Buffers with batches: free, started, or in use by a thread. */
#include "store/read_ahead.h"

#include "base/arena.h"

#include <pthread.h>
#include <stdlib.h>

/* The batch is the first member, for a thread to give it back. */
typedef struct {
    ek_file_batch batch;
    void *memory;
    int used;
} batch_buffer;

struct ek_read_ahead {
    ek_read_ahead_config config;
    ek_file_reader *reader;
    ek_arena memory;       /* huge pages, which a drive fills at twice the rate and more */
    batch_buffer *buffers; /* [config.buffers] */
    batch_buffer **order;  /* [config.buffers], of batch i at i % config.buffers, from start to
                              taking */

    pthread_mutex_t mutex; /* guards what follows, and starting */
    pthread_cond_t changed;
    int64_t started, taken; /* batches */
    int stopped;            /* by a failure */
};

static batch_buffer *free_buffer(const ek_read_ahead *a)
{
    for (int i = 0; i < a->config.buffers; i++)
        if (!a->buffers[i].used)
            return &a->buffers[i];
    return NULL;
}

/* Starts batches in all free buffers. */
static ek_status start_batches(ek_read_ahead *a)
{
    batch_buffer *b;

    while (a->started < a->config.batches && (b = free_buffer(a)) != NULL) {
        b->used = 1;
        ek_file_batch_clear(&b->batch);
        EK_TRY(a->config.describe(a->config.context, a->started, &b->batch));
        EK_TRY(ek_file_reader_start(a->reader, &b->batch, b->memory, a->config.room));
        a->order[a->started++ % a->config.buffers] = b;
    }
    return EK_OK;
}

static void stop(ek_read_ahead *a)
{
    a->stopped = 1;
    pthread_cond_broadcast(&a->changed);
}

/* *out: the buffer of the next batch, which was started; NULL: none. */
static ek_status take_next(ek_read_ahead *a, int64_t *i, batch_buffer **out)
{
    ek_status st = EK_OK;

    *i = -1;
    *out = NULL;
    pthread_mutex_lock(&a->mutex);
    while (!a->stopped && a->taken < a->config.batches) {
        st = start_batches(a);
        if (st < 0) {
            stop(a);
        } else if (a->taken < a->started) {
            *i = a->taken++;
            *out = a->order[*i % a->config.buffers];
            if (a->taken == a->config.batches) /* nothing is left to wait for */
                pthread_cond_broadcast(&a->changed);
            break;
        } else { /* other threads use all buffers */
            pthread_cond_wait(&a->changed, &a->mutex);
        }
    }
    pthread_mutex_unlock(&a->mutex);
    return st;
}

ek_status ek_read_ahead_take(ek_read_ahead *a, int64_t *i, ek_file_batch **out)
{
    batch_buffer *b;
    ek_status st;

    *out = NULL;
    EK_TRY(take_next(a, i, &b));
    if (b == NULL)
        return EK_OK;
    st = ek_file_reader_wait(a->reader, &b->batch);
    if (st < 0) { /* the buffer stays used: other calls for it may be in flight */
        *i = -1;
        pthread_mutex_lock(&a->mutex);
        stop(a);
        pthread_mutex_unlock(&a->mutex);
        return st;
    }
    *out = &b->batch;
    return EK_OK;
}

void ek_read_ahead_give_back(ek_read_ahead *a, ek_file_batch *b)
{
    pthread_mutex_lock(&a->mutex);
    ((batch_buffer *)b)->used = 0;
    pthread_cond_signal(&a->changed);
    pthread_mutex_unlock(&a->mutex);
}

ek_file_reader_bytes ek_read_ahead_bytes(ek_read_ahead *a)
{
    return ek_file_reader_bytes_of(a->reader);
}

/* --- creation --------------------------------------------------------------------------------- */

static ek_status alloc_buffers(ek_read_ahead *a)
{
    size_t n = (size_t)a->config.buffers, room = ek_disk_span_of(0, a->config.room).bytes;

    a->buffers = calloc(n, sizeof(*a->buffers));
    a->order = calloc(n, sizeof(*a->order));
    EK_REQUIRE(a->buffers != NULL && a->order != NULL, EK_ENOMEM, "no memory to read files");
    EK_TRY(ek_arena_init(&a->memory, n * room, "buffers to read files"));
    for (size_t i = 0; i < n; i++)
        a->buffers[i].memory = a->memory.base + i * room;
    return EK_OK;
}

ek_status ek_read_ahead_create(const ek_read_ahead_config *config, ek_read_ahead **out)
{
    ek_read_ahead *a = calloc(1, sizeof(*a));
    ek_status st;

    EK_REQUIRE(a != NULL, EK_ENOMEM, "no memory to read files");
    a->config = *config;
    pthread_mutex_init(&a->mutex, NULL);
    pthread_cond_init(&a->changed, NULL);
    EK_TRY_OUT(alloc_buffers(a));
    EK_TRY_OUT(ek_file_reader_create(&config->reader, &a->reader));
    *out = a;
    a = NULL;
out:
    ek_read_ahead_destroy(&a);
    return st;
}

void ek_read_ahead_destroy(ek_read_ahead **pa)
{
    ek_read_ahead *a = *pa;

    if (a == NULL)
        return;
    ek_file_reader_destroy(&a->reader); /* buffers are not written any more */
    for (int i = 0; a->buffers != NULL && i < a->config.buffers; i++)
        ek_file_batch_free(&a->buffers[i].batch);
    ek_arena_fini(&a->memory);
    free(a->buffers);
    free(a->order);
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->mutex);
    free(a);
    *pa = NULL;
}
