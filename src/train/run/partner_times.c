/* Sends the beginning of all messages at once, and updates as many numbers. */
#include "train/run/partner_times.h"

#include "base/clock.h"
#include "comm/agree.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of a message, at most; rounds, of which the quickest counts, after one more. */
enum { MESSAGE_MOST = 4 << 20, ROUNDS = 3, TAG = 0, STATE_ARRAYS = 4 };

typedef struct {
    const ek_rank_copies *c;
    ek_comm *world;
    int64_t bytes;  /* of a message */
    char *memory;   /* [arrays][bytes]: what is sent and received; the first ones are updated */
    ek_coll **coll; /* [c->n + 1] */
} probe;

static double real_bytes(const ek_rank_copies *c)
{
    return (double)ek_dtype_size(c->model->k->real);
}

/* Bytes that this rank sends. */
static double bytes_to_send(const ek_rank_copies *c)
{
    const ek_rank_copy own = {.model = c->model};

    return c->partner >= 0 ? ek_rank_copy_numbers(&own) * real_bytes(c) : 0;
}

static ek_status open_probe(probe *p)
{
    size_t arrays = p->c->n + 1 > STATE_ARRAYS ? (size_t)p->c->n + 1 : STATE_ARRAYS;
    size_t bytes = (size_t)p->bytes * arrays;

    p->memory = malloc(bytes + 1);
    p->coll = calloc((size_t)p->c->n + 1, sizeof(*p->coll));
    EK_REQUIRE(p->memory != NULL && p->coll != NULL, EK_ENOMEM,
               "no memory to measure messages of %lld bytes", (long long)p->bytes);
    memset(p->memory, 0, bytes); /* so that it is there */
    return EK_OK;
}

static ek_status start_messages(const probe *p)
{
    for (int32_t i = 0; i < p->c->n; i++)
        EK_TRY(ek_comm_recv(p->world, p->memory + (i + 1) * p->bytes, p->bytes, p->c->copy[i].owner,
                            TAG, &p->coll[i]));
    if (p->c->partner >= 0)
        EK_TRY(ek_comm_send(p->world, p->memory, p->bytes, p->c->partner, TAG, &p->coll[p->c->n]));
    return EK_OK;
}

/* Memory is in use until all that were started have ended. */
static ek_status exchange(const probe *p)
{
    ek_status st = start_messages(p);

    for (int32_t i = 0; i <= p->c->n; i++) {
        ek_status ended = p->coll[i] != NULL ? ek_coll_wait(&p->coll[i]) : EK_OK;

        st = st == EK_OK ? ended : st;
    }
    return st;
}

/* Updates as many numbers as a message has. */
static ek_status update(const probe *p)
{
    static const ek_adamw h = {1e-4, 0.1, 0.9, 0.95, 1e-8, 0.5, 0.5, 1};
    const ek_kernels *k = p->c->model->k;
    char *at = p->memory;
    int64_t n = p->bytes / (int64_t)ek_dtype_size(k->real);

    if (p->c->n > 0)
        k->adamw(&h, n, at, at + p->bytes, at + 2 * p->bytes, at + 3 * p->bytes);
    return ek_kernels_wait(k);
}

/* *seconds: of a pass, of the slowest rank. */
static ek_status time_pass(const probe *p, ek_status (*pass)(const probe *p), double *seconds)
{
    *seconds = INFINITY;
    for (int i = 0; i <= ROUNDS; i++) {
        int64_t start;
        double took;

        EK_TRY(ek_comm_barrier(p->world));
        start = ek_clock_ns();
        EK_TRY(pass(p));
        took = (double)(ek_clock_ns() - start) * 1e-9;
        EK_TRY(ek_maximum(p->world, &took));
        if (i > 0)
            *seconds = fmin(*seconds, took);
    }
    return EK_OK;
}

/* most: bytes of the rank that sends most. */
static ek_status time_all(probe *p, double most, double *seconds)
{
    double copied = 0, messages, updates;

    for (int32_t i = 0; i < p->c->n; i++)
        copied += ek_rank_copy_numbers(&p->c->copy[i]) * real_bytes(p->c);
    EK_TRY(ek_maximum(p->world, &copied));
    EK_TRY(time_pass(p, exchange, &messages));
    EK_TRY(time_pass(p, update, &updates));
    *seconds = (messages * most + updates * copied) / (double)p->bytes;
    return EK_OK;
}

ek_status ek_run_time_copies(const ek_run *r, double *seconds)
{
    probe p = {.c = &r->partners.copies, .world = r->world};
    double most = bytes_to_send(p.c);
    ek_status st;

    EK_TRY(ek_maximum(r->world, &most));
    p.bytes = most < MESSAGE_MOST ? (int64_t)most : MESSAGE_MOST;
    st = ek_agree(r->world, "measure messages to partners", open_probe(&p));
    if (st == EK_OK)
        st = time_all(&p, most, seconds);
    free(p.memory);
    free(p.coll);
    return st;
}
