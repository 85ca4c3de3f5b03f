/* The queue: requests are cut into pieces, pieces go to the back end, and what a call has left
 * undone is called again. */
#include "store/disk.h"

#include "base/clock.h"
#include "base/log.h"
#include "store/disk_priv.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { ALIGN_MASK = EK_DISK_ALIGN - 1, RETRIES_MAX = 100, WAIT_NS = 1000 * 1000 };

/* ek_disk_request.state */
enum { STATE_NEW, STATE_WAITING, STATE_STARTED, STATE_ENDED, STATE_COLLECTED };

ek_disk_span ek_disk_span_of(int64_t offset, size_t bytes)
{
    size_t skip = (size_t)offset & ALIGN_MASK;

    return (ek_disk_span){.offset = offset - (int64_t)skip,
                          .bytes = (skip + bytes + ALIGN_MASK) & ~(size_t)ALIGN_MASK,
                          .skip = skip};
}

size_t ek_disk_room(size_t bytes)
{
    return ek_disk_span_of(EK_DISK_ALIGN - 1, bytes).bytes;
}

/* --- lists ------------------------------------------------------------------------------------ */

static void list_append(ek_disk_list *l, ek_disk_request *r)
{
    r->next = NULL;
    r->prev = l->last;
    if (l->last != NULL)
        l->last->next = r;
    else
        l->first = r;
    l->last = r;
}

static void list_remove(ek_disk_list *l, ek_disk_request *r)
{
    if (r->prev != NULL)
        r->prev->next = r->next;
    else
        l->first = r->next;
    if (r->next != NULL)
        r->next->prev = r->prev;
    else
        l->last = r->prev;
    r->next = r->prev = NULL;
}

static ek_disk_list *waiting_list(ek_disk *d, const ek_disk_request *r)
{
    return &d->waiting[r->background != 0];
}

/* --- results ---------------------------------------------------------------------------------- */

/* What to do about a failed call. */
static const char *remedy_of(int error)
{
    if (error == ENOSPC)
        return "make room there, or choose a folder on a larger disk";
    if (error == EDQUOT)
        return "raise the quota, or choose a folder on another disk";
    return "check the disk and the system's log, then start again";
}

ek_status ek_disk_result(const ek_disk_request *r)
{
    const char *doing = r->write ? "write" : "read";
    char reason[128];

    EK_REQUIRE(r->state == STATE_ENDED || r->state == STATE_COLLECTED, EK_EINVAL,
               "a disk request has no result before it has ended");
    if (r->error == 0)
        return EK_OK;
    EK_REQUIRE(r->error != ECANCELED, EK_ECANCELED,
               "the request to %s %zu bytes at offset %" PRId64 " of %s was cancelled", doing,
               r->bytes, r->offset, r->file->path);
    EK_REQUIRE(r->ends_at < 0, EK_EFORMAT,
               "%s ends at byte %" PRId64 ", before the end of the %zu bytes at offset %" PRId64
               ": the file was cut short; copy or make it again",
               r->file->path, r->ends_at, r->bytes, r->offset);
    return EK_FAIL(r->error == ENOSPC || r->error == EDQUOT ? EK_ENOSPC : EK_EIO,
                   "cannot %s %zu bytes at offset %" PRId64 " of %s: %s; %s", doing, r->bytes,
                   r->offset, r->file->path, strerror_r(r->error, reason, sizeof(reason)),
                   remedy_of(r->error));
}

static ek_disk_traffic *traffic_of(ek_disk *d, const ek_disk_request *r)
{
    return r->write ? &d->stats.written : &d->stats.read;
}

/* Ends a request if nothing of it is left to start or in flight. */
static void end_if_done(ek_disk *d, ek_disk_request *r)
{
    ek_disk_traffic *t = traffic_of(d, r);
    int64_t took;

    if (r->calls > 0 || r->state != STATE_STARTED)
        return;
    took = ek_clock_ns() - r->start_ns;
    r->state = STATE_ENDED;
    list_append(&d->ended, r);
    r->file->unfinished--;
    d->stats.unfinished--;
    t->requests += r->error == 0;
    t->failed += r->error != 0;
    t->bytes += r->error == 0 ? (int64_t)r->bytes : 0;
    t->time_ns += took;
    if (took > t->time_max_ns)
        t->time_max_ns = took;
}

/* Fails a request: its other pieces are not started. */
static void fail_request(ek_disk *d, ek_disk_request *r, int error)
{
    if (r->error == 0)
        r->error = error;
    if (r->state == STATE_WAITING) {
        list_remove(waiting_list(d, r), r);
        r->state = STATE_STARTED;
    }
}

/* --- pieces ----------------------------------------------------------------------------------- */

static void release_piece(ek_disk *d, ek_disk_piece *p)
{
    ek_disk_request *r = p->request;

    p->request = NULL;
    p->next = d->free_pieces;
    d->free_pieces = p;
    r->calls--;
    d->stats.in_flight--;
    if (d->stats.in_flight == 0)
        d->stats.busy_ns += ek_clock_ns() - d->busy_since_ns;
    end_if_done(d, r);
}

int ek_disk_is_passing(int error)
{
    return error == EINTR || error == EAGAIN || error == EBUSY || error == ECANCELED;
}

/* Fails a read that got no further: the file ends in its range. */
static void fail_at_end(ek_disk *d, ek_disk_piece *p)
{
    ek_disk_request *r = p->request;
    struct stat s;

    r->ends_at = fstat(r->file->fd, &s) == 0 ? (int64_t)s.st_size : p->offset + (int64_t)p->reached;
    fail_request(d, r, EIO);
}

/* Accounts for the bytes of a call; returns 1 if the piece needs another one. */
static int needs_another(ek_disk *d, ek_disk_piece *p, int64_t result)
{
    ek_disk_request *r = p->request;
    int passing = result < 0 && ek_disk_is_passing((int)-result);
    size_t reached;

    if (passing && p->retries++ < RETRIES_MAX)
        return 1;
    if (result < 0) { /* ECANCELED is for requests that the caller cancelled */
        fail_request(d, r, passing ? EIO : (int)-result);
        return 0;
    }
    traffic_of(d, r)->moved += result;
    reached = p->from + (size_t)result;
    if (reached >= p->need)
        return 0;
    if (reached <= p->reached) {
        if (r->write)
            fail_request(d, r, EIO);
        else
            fail_at_end(d, p);
        return 0;
    }
    p->reached = reached;
    p->from = reached & ~(size_t)ALIGN_MASK;
    return 1;
}

void ek_disk_piece_done(ek_disk *d, ek_disk_piece *p, int64_t result)
{
    traffic_of(d, p->request)->calls++;
    if (needs_another(d, p, result) && p->request->error == 0)
        d->table->queue(d, p);
    else
        release_piece(d, p);
}

static size_t min_bytes(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Cuts the next piece off a request. */
static void cut_piece(ek_disk *d, ek_disk_request *r, ek_disk_piece *p)
{
    ek_disk_span span = ek_disk_span_of(r->offset, r->bytes);
    size_t at = r->started;

    *p = (ek_disk_piece){.request = r,
                         .data = (unsigned char *)r->buffer + at,
                         .offset = span.offset + (int64_t)at,
                         .bytes = min_bytes(d->config.piece_bytes, span.bytes - at)};
    p->need = min_bytes(p->bytes, span.skip + r->bytes - at);
    r->started += p->bytes;
    r->calls++;
    if (r->started == span.bytes) {
        list_remove(waiting_list(d, r), r);
        r->state = STATE_STARTED;
    }
}

/* Starts as many pieces as may be in flight. */
static void start_pieces(ek_disk *d)
{
    while (d->free_pieces != NULL) {
        ek_disk_piece *p = d->free_pieces;
        ek_disk_request *r =
            d->waiting[0].first != NULL ? d->waiting[0].first : d->waiting[1].first;

        if (r == NULL)
            break;
        d->free_pieces = p->next;
        if (d->stats.in_flight++ == 0)
            d->busy_since_ns = ek_clock_ns();
        cut_piece(d, r, p);
        d->table->queue(d, p);
    }
    d->table->flush(d);
}

/* Takes in what has ended and starts what can start. */
static void make_progress(ek_disk *d)
{
    if (d->stats.in_flight > 0)
        d->table->reap(d);
    start_pieces(d);
}

/* --- requests --------------------------------------------------------------------------------- */

static ek_status check_request(const ek_disk_request *r)
{
    const char *doing = r->write ? "write" : "read";
    ek_disk_span span;

    EK_REQUIRE(r->file != NULL && r->buffer != NULL && r->bytes > 0, EK_EINVAL,
               "a disk request needs a file, a buffer and bytes");
    EK_REQUIRE(r->state != STATE_WAITING && r->state != STATE_STARTED, EK_EINVAL,
               "a request to %s %s has not ended yet", doing, r->file->path);
    EK_REQUIRE(r->offset >= 0 && r->bytes <= (size_t)INT64_MAX / 2 &&
                   r->offset <= INT64_MAX / 2 - EK_DISK_ALIGN,
               EK_EINVAL, "%s: no file has %zu bytes at offset %" PRId64, r->file->path, r->bytes,
               r->offset);
    span = ek_disk_span_of(r->offset, r->bytes);
    EK_REQUIRE(((uintptr_t)r->buffer & ALIGN_MASK) == 0, EK_EINVAL,
               "the buffer to %s %s with is not a multiple of %d", doing, r->file->path,
               EK_DISK_ALIGN);
    EK_REQUIRE(r->room >= span.bytes, EK_EINVAL,
               "%zu bytes at offset %" PRId64 " of %s need a buffer of %zu bytes, not %zu",
               r->bytes, r->offset, r->file->path, span.bytes, r->room);
    if (!r->write)
        return EK_OK;
    EK_REQUIRE(span.skip == 0 && span.bytes == r->bytes, EK_EINVAL,
               "writing %zu bytes at offset %" PRId64 " of %s: both have to be multiples of %d",
               r->bytes, r->offset, r->file->path, EK_DISK_ALIGN);
    EK_REQUIRE(r->file->writable, EK_EINVAL, "%s was opened for reading only", r->file->path);
    return EK_OK;
}

ek_status ek_disk_start(ek_disk *d, ek_disk_request *r)
{
    EK_TRY(check_request(r));
    pthread_mutex_lock(&d->mutex);
    if (r->state == STATE_ENDED) /* used again before it was collected */
        list_remove(&d->ended, r);
    r->data = (unsigned char *)r->buffer + ek_disk_span_of(r->offset, r->bytes).skip;
    r->state = STATE_WAITING;
    r->calls = r->error = 0;
    r->started = 0;
    r->ends_at = -1;
    r->start_ns = ek_clock_ns();
    r->file->unfinished++;
    d->stats.unfinished++;
    list_append(waiting_list(d, r), r);
    make_progress(d);
    pthread_mutex_unlock(&d->mutex);
    return EK_OK;
}

/* Takes an ended request off the list of those not collected. */
static void collect_request(ek_disk *d, ek_disk_request *r)
{
    list_remove(&d->ended, r);
    r->state = STATE_COLLECTED;
}

ek_status ek_disk_test(ek_disk *d, ek_disk_request *r)
{
    int ended;

    pthread_mutex_lock(&d->mutex);
    if (r->state < STATE_ENDED)
        make_progress(d);
    if (r->state == STATE_ENDED)
        collect_request(d, r);
    ended = r->state == STATE_COLLECTED || r->state == STATE_NEW;
    pthread_mutex_unlock(&d->mutex);
    return ended ? ek_disk_result(r) : EK_PENDING;
}

ek_status ek_disk_wait(ek_disk *d, ek_disk_request *r)
{
    ek_status st;

    while ((st = ek_disk_test(d, r)) == EK_PENDING)
        d->table->wait(d, WAIT_NS);
    return st;
}

/* *left: whether requests are unfinished. */
static ek_disk_request *poll_ended(ek_disk *d, int *left)
{
    ek_disk_request *r;

    pthread_mutex_lock(&d->mutex);
    make_progress(d);
    r = d->ended.first;
    if (r != NULL)
        collect_request(d, r);
    *left = d->stats.unfinished > 0;
    pthread_mutex_unlock(&d->mutex);
    return r;
}

ek_disk_request *ek_disk_poll(ek_disk *d)
{
    int left;

    return poll_ended(d, &left);
}

ek_disk_request *ek_disk_wait_any(ek_disk *d)
{
    ek_disk_request *r;
    int left;

    while ((r = poll_ended(d, &left)) == NULL && left)
        d->table->wait(d, WAIT_NS);
    return r;
}

/* Makes progress until no request of the file (NULL: of any) is unfinished. */
static void wait_for_file(ek_disk *d, const ek_disk_file *f)
{
    pthread_mutex_lock(&d->mutex);
    for (;;) {
        make_progress(d);
        if ((f != NULL ? f->unfinished : d->stats.unfinished) == 0)
            break;
        pthread_mutex_unlock(&d->mutex);
        d->table->wait(d, WAIT_NS);
        pthread_mutex_lock(&d->mutex);
    }
    pthread_mutex_unlock(&d->mutex);
}

void ek_disk_wait_all(ek_disk *d)
{
    wait_for_file(d, NULL);
}

static void cancel_locked(ek_disk *d, ek_disk_request *r)
{
    if (r->state != STATE_WAITING && r->state != STATE_STARTED)
        return;
    fail_request(d, r, ECANCELED);
    end_if_done(d, r);
}

void ek_disk_cancel(ek_disk *d, ek_disk_request *r)
{
    pthread_mutex_lock(&d->mutex);
    cancel_locked(d, r);
    pthread_mutex_unlock(&d->mutex);
}

void ek_disk_cancel_file(ek_disk *d, const ek_disk_file *f)
{
    pthread_mutex_lock(&d->mutex);
    for (int i = 0; i < 2; i++)
        for (ek_disk_request *r = d->waiting[i].first, *next; r != NULL; r = next) {
            next = r->next;
            if (f == NULL || r->file == f)
                cancel_locked(d, r);
        }
    for (int i = 0; i < d->config.depth; i++) {
        ek_disk_request *r = d->pieces[i].request;

        if (r != NULL && (f == NULL || r->file == f))
            cancel_locked(d, r);
    }
    pthread_mutex_unlock(&d->mutex);
    wait_for_file(d, f);
}

void ek_disk_drop_results(ek_disk *d, const ek_disk_file *f)
{
    for (ek_disk_request *r = d->ended.first, *next; r != NULL; r = next) {
        next = r->next;
        if (r->file == f)
            collect_request(d, r);
    }
}

void ek_disk_cancel_all(ek_disk *d)
{
    ek_disk_cancel_file(d, NULL);
}

void ek_disk_stats_of(ek_disk *d, ek_disk_stats *out)
{
    pthread_mutex_lock(&d->mutex);
    *out = d->stats;
    if (out->in_flight > 0)
        out->busy_ns += ek_clock_ns() - d->busy_since_ns;
    pthread_mutex_unlock(&d->mutex);
}

/* --- the queue -------------------------------------------------------------------------------- */

const char *ek_disk_backend_name(const ek_disk *d)
{
    return d->table->name;
}

size_t ek_disk_registered(const ek_disk *d)
{
    return d->table->registered(d);
}

/* Sets the defaults and checks the rest. */
static ek_status complete_config(ek_disk_config *c)
{
    if (c->depth == 0)
        c->depth = EK_DISK_DEPTH;
    if (c->piece_bytes == 0)
        c->piece_bytes = EK_DISK_PIECE;
    if (c->io == NULL)
        c->io = &ek_disk_io_system;
    EK_REQUIRE(c->depth > 0 && c->depth <= EK_DISK_DEPTH_MAX, EK_EINVAL,
               "a disk queue has 1 to %d calls in flight, not %d", EK_DISK_DEPTH_MAX, c->depth);
    EK_REQUIRE((c->piece_bytes & ALIGN_MASK) == 0 && c->piece_bytes <= 1 << 30, EK_EINVAL,
               "calls of %zu bytes: the size has to be a multiple of %d and at most 1 GiB",
               c->piece_bytes, EK_DISK_ALIGN);
    for (int i = 0; i < c->n_memory; i++)
        EK_REQUIRE(((uintptr_t)c->memory[i].start & ALIGN_MASK) == 0, EK_EINVAL,
                   "memory to register is not a multiple of %d", EK_DISK_ALIGN);
    return EK_OK;
}

/* Opens the back end that was asked for, or the first that this system has. */
static ek_status open_backend(ek_disk *d)
{
    ek_status st;

    if (d->config.backend != EK_DISK_POOL) {
        d->table = &ek_disk_uring;
        st = d->table->create(d);
        if (st >= 0 || d->config.backend == EK_DISK_URING || st == EK_ENOMEM)
            return st;
        ek_log("store", EK_LOG_DEBUG, "%s: using a pool of pread threads", ek_err_message());
    }
    d->table = &ek_disk_pool;
    return d->table->create(d);
}

ek_status ek_disk_create(const ek_disk_config *config, ek_disk **out)
{
    ek_disk *d = calloc(1, sizeof(*d));
    ek_status st;

    EK_REQUIRE(d != NULL, EK_ENOMEM, "no memory for a disk queue");
    pthread_mutex_init(&d->mutex, NULL);
    if (config != NULL)
        d->config = *config;
    EK_TRY_OUT(complete_config(&d->config));
    d->io = d->config.io;
    d->pieces = calloc((size_t)d->config.depth, sizeof(*d->pieces));
    EK_REQUIRE_OUT(d->pieces != NULL, EK_ENOMEM, "no memory for a disk queue");
    for (int i = 0; i < d->config.depth; i++) {
        d->pieces[i].next = d->free_pieces;
        d->free_pieces = &d->pieces[i];
    }
    EK_TRY_OUT(open_backend(d));
    d->config.memory = NULL;
    *out = d;
    return EK_OK;
out:
    free(d->pieces);
    pthread_mutex_destroy(&d->mutex);
    free(d);
    return st;
}

void ek_disk_destroy(ek_disk **pd)
{
    ek_disk *d;

    if (pd == NULL || *pd == NULL)
        return;
    d = *pd;
    ek_disk_cancel_all(d);
    d->table->destroy(d);
    for (ek_disk_file *f = d->files, *next; f != NULL; f = next) {
        next = f->next;
        ek_disk_file_free(f);
    }
    free(d->pieces);
    pthread_mutex_destroy(&d->mutex);
    free(d);
    *pd = NULL;
}
