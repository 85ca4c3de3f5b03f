/* Buffers of experts in flight: which tensors they hold, and the forms made of them. */
#include "model/hf/expert_reads.h"

#include "base/arena.h"
#include "store/file_batch.h"

#include <stdlib.h>
#include <string.h>

enum {
    DEPTH = 32,      /* calls in flight: what the drive works on while nobody polls: all buffers, */
    DEPTH_MAX = 256, /* within these bounds */
    RANGES = 4,      /* of an expert, usually: gate, up, down, and one to spare */
    QUEUED_LAYERS = 4 /* experts of so many layers can be wanted */
};

/* An expert in flight. */
typedef struct {
    const ek_weight *up; /* which one; NULL: none that is wanted */
    int cancelled;       /* its calls may still write to the buffer */
    int64_t number;      /* how many were started before */
    char *buffer;
    ek_file_batch batch; /* where its tensors are; its requests are this file's own */
} reading;

/* An expert to be read. */
typedef struct {
    const ek_weight *up, *down;
    int idle; /* only while nothing else is to be read */
} wanted;

struct ek_expert_reads {
    ek_model *m;
    ek_hf_values values;
    ek_filler *filler;
    ek_disk *disk;
    ek_disk_file **opened; /* [n_opened], files and their paths */
    const char **paths;
    int64_t n_opened;
    reading *readings; /* [own + lendable], of which there are `buffers` now */
    int32_t buffers, own, lendable;
    int in_place;    /* experts stay where they were read */
    size_t room;     /* of a buffer */
    ek_arena memory; /* the buffers: huge pages, which a drive fills faster */
    wanted *queue;   /* [cap] */
    int64_t queued, cap;
    int64_t started; /* readings so far */
    int64_t used;    /* bytes of the disk that forms were made of */
};

/* Sets a batch to the pieces of an expert. */
static ek_status find_pieces(const ek_expert_reads *x, const ek_weight *up, const ek_weight *down,
                             ek_file_batch *out)
{
    ek_file_batch_clear(out);
    EK_TRY(ek_filler_pieces(x->filler, up, out));
    return ek_filler_pieces(x->filler, down, out);
}

size_t ek_expert_reads_room(size_t expert)
{
    return ek_disk_room(expert) + (RANGES - 1) * 2 * EK_DISK_ALIGN;
}

/* --- creation --------------------------------------------------------------------------------- */

static ek_status open_file(ek_expert_reads *x, const char *path, ek_disk_file **out)
{
    for (int64_t i = 0; i < x->n_opened; i++)
        if (strcmp(x->paths[i], path) == 0) {
            *out = x->opened[i];
            return EK_OK;
        }
    EK_TRY(ek_disk_open(x->disk, path, EK_DISK_READ, out));
    x->paths[x->n_opened] = path;
    x->opened[x->n_opened++] = *out;
    return EK_OK;
}

/* Opens the files of all experts, and finds the largest expert. */
static ek_status open_files(ek_expert_reads *x)
{
    const ek_model *m = x->m;
    ek_file_batch b = {0};
    ek_status st = EK_OK;

    for (int32_t l = ek_model_next_moe(m, -1); l < (int32_t)m->spec.layers;
         l = ek_model_next_moe(m, l))
        for (int64_t e = 0; e < m->spec.experts; e++) {
            const ek_moe_weights *w = &m->layers[l].experts;
            size_t room;

            EK_TRY_OUT(find_pieces(x, &w->up[e], &w->down[e], &b));
            for (int64_t i = 0; i < b.n; i++) {
                ek_disk_file *f;

                EK_TRY_OUT(open_file(x, b.ranges[i].path, &f));
            }
            room = ek_file_batch_room(&b);
            x->room = room > x->room ? room : x->room;
        }
out:
    ek_file_batch_free(&b);
    return st;
}

/* Sets where a batch has an expert's values; false if it does not have them as C. */
static int has_values(const ek_expert_reads *x, const ek_file_batch *b, ek_expert_form *e)
{
    const ek_filler *f = x->filler;
    int64_t half = e->up->out / 2;

    e->to_up = (void *)(uintptr_t)ek_filler_find_rows(f, e->up, 0, half, b);
    e->to_rest = (void *)(uintptr_t)ek_filler_find_rows(f, e->up, half, half, b);
    e->to_down = (void *)(uintptr_t)ek_filler_find_rows(f, e->down, 0, e->down->out, b);
    return e->to_up != NULL && e->to_rest != NULL && e->to_down != NULL;
}

static ek_status alloc_lists(ek_expert_reads *x)
{
    const ek_model_spec *s = &x->m->spec;
    size_t files = (size_t)ek_slice_set_count(x->values.files) + 1;

    x->cap = QUEUED_LAYERS * s->experts;
    x->queue = calloc((size_t)x->cap, sizeof(*x->queue));
    x->opened = calloc(files, sizeof(*x->opened));
    x->paths = calloc(files, sizeof(*x->paths));
    EK_REQUIRE(x->queue != NULL && x->opened != NULL && x->paths != NULL, EK_ENOMEM,
               "no memory for the experts' files");
    return EK_OK;
}

static ek_status alloc_buffers(ek_expert_reads *x, size_t bytes)
{
    int64_t most = (int64_t)(bytes / x->room), all = x->m->spec.layers * x->m->spec.experts;

    most = most < all ? most : all;
    x->buffers = x->own = most > EK_EXPERT_BUFFERS ? (int32_t)most : EK_EXPERT_BUFFERS;
    x->readings = calloc((size_t)(x->own + x->lendable), sizeof(*x->readings));
    EK_REQUIRE(x->readings != NULL, EK_ENOMEM, "no memory for the experts' files");
    EK_TRY(ek_arena_init(&x->memory, (size_t)x->buffers * x->room, "buffers to read experts"));
    for (int i = 0; i < x->buffers; i++)
        x->readings[i].buffer = (char *)x->memory.base + (size_t)i * x->room;
    return EK_OK;
}

/* Whether all experts would be as C in a buffer, if they were read there. */
static ek_status find_values(const ek_expert_reads *x, int *all)
{
    const ek_model *m = x->m;
    ek_file_batch b = {0};
    ek_status st = EK_OK;

    *all = m->k->memory == NULL;
    for (int32_t l = ek_model_next_moe(m, -1); *all && l < (int32_t)m->spec.layers;
         l = ek_model_next_moe(m, l))
        for (int64_t e = 0; *all && e < m->spec.experts; e++) {
            const ek_moe_weights *w = &m->layers[l].experts;
            ek_expert_form found = {.up = &w->up[e], .down = &w->down[e]};
            char *at = x->readings[0].buffer;

            EK_TRY_OUT(find_pieces(x, found.up, found.down, &b));
            for (int64_t i = 0; i < b.n; i++) {
                ek_disk_span span = ek_disk_span_of(b.ranges[i].at, (size_t)b.ranges[i].bytes);

                b.ranges[i].data = (unsigned char *)at + span.skip;
                at += span.bytes;
            }
            *all = has_values(x, &b, &found);
        }
out:
    ek_file_batch_free(&b);
    return st;
}

static ek_status open_disk(ek_expert_reads *x, const ek_expert_reads_config *c)
{
    size_t depth = (c->buffer_bytes + (size_t)c->lendable * c->slot_bytes) / EK_DISK_PIECE;
    ek_disk_config disk = {.backend = c->backend, .io = c->io, .depth = DEPTH};

    if (depth > DEPTH)
        disk.depth = depth < DEPTH_MAX ? (int)depth : DEPTH_MAX;
    return ek_disk_create(&disk, &x->disk);
}

ek_status ek_expert_reads_create(ek_model *m, const ek_slice_set *files,
                                 const ek_expert_reads_config *config, ek_expert_reads **out)
{
    ek_expert_reads *x = calloc(1, sizeof(*x));
    ek_value_source from;
    ek_status st;
    int fits;

    *out = NULL;
    EK_REQUIRE(x != NULL, EK_ENOMEM, "no memory for the experts' files");
    x->m = m;
    x->values = (ek_hf_values){.spec = &m->spec, .files = files};
    EK_TRY_OUT(alloc_lists(x));
    from = ek_hf_value_source(&x->values);
    EK_TRY_OUT(ek_filler_create(m, &from, &x->filler));
    EK_TRY_OUT(open_disk(x, config));
    EK_TRY_OUT(open_files(x));
    fits = x->room <= config->slot_bytes;
    x->room = fits ? config->slot_bytes : x->room;
    x->lendable = fits && m->k->memory == NULL ? config->lendable : 0;
    EK_TRY_OUT(alloc_buffers(x, config->buffer_bytes));
    if (fits)
        EK_TRY_OUT(find_values(x, &x->in_place));
    *out = x;
    x = NULL;
out:
    ek_expert_reads_destroy(&x);
    return st;
}

void ek_expert_reads_destroy(ek_expert_reads **px)
{
    ek_expert_reads *x = *px;

    if (x == NULL)
        return;
    ek_disk_destroy(&x->disk); /* buffers are not written any more */
    ek_filler_destroy(&x->filler);
    ek_arena_fini(&x->memory);
    for (int i = 0; x->readings != NULL && i < x->own + x->lendable; i++)
        ek_file_batch_free(&x->readings[i].batch);
    free(x->readings);
    free(x->queue);
    free(x->opened);
    free(x->paths);
    free(x);
    *px = NULL;
}

int32_t ek_expert_reads_buffers(const ek_expert_reads *x)
{
    return x->own;
}

int32_t ek_expert_reads_lendable(const ek_expert_reads *x)
{
    return x->lendable;
}

size_t ek_expert_reads_buffer_bytes(const ek_expert_reads *x)
{
    return (size_t)x->own * x->room;
}

void ek_expert_reads_traffic(const ek_expert_reads *x, int64_t *disk, int64_t *used)
{
    ek_disk_stats s;

    ek_disk_stats_of(x->disk, &s);
    *disk = s.read.moved;
    *used = x->used;
}

/* --- reading ---------------------------------------------------------------------------------- */

static reading *find_reading(ek_expert_reads *x, const ek_weight *up)
{
    for (int i = 0; i < x->buffers; i++)
        if (x->readings[i].up == up)
            return &x->readings[i];
    return NULL;
}

/* Whether no call writes to the buffer of a cancelled reading any more. */
static int has_ended(ek_expert_reads *x, reading *r)
{
    for (int64_t i = 0; i < r->batch.n; i++)
        if (ek_disk_test(x->disk, &r->batch.ranges[i].request) == EK_PENDING)
            return 0;
    r->cancelled = 0;
    return 1;
}

static reading *find_free(ek_expert_reads *x)
{
    for (int i = 0; i < x->buffers; i++) {
        reading *r = &x->readings[i];

        if (r->up == NULL && (!r->cancelled || has_ended(x, r)))
            return r;
    }
    return NULL;
}

static void cancel_reading(ek_expert_reads *x, reading *r)
{
    for (int64_t i = 0; i < r->batch.n; i++)
        ek_disk_cancel(x->disk, &r->batch.ranges[i].request);
    r->up = NULL;
    r->cancelled = 1;
}

/* Starts the requests of an expert, in the buffer of a free reading. */
static ek_status start(ek_expert_reads *x, reading *r, const wanted *w)
{
    char *at = r->buffer;

    EK_TRY(find_pieces(x, w->up, w->down, &r->batch));
    r->number = x->started++;
    for (int64_t i = 0; i < r->batch.n; i++) {
        ek_file_range *g = &r->batch.ranges[i];
        ek_disk_span span = ek_disk_span_of(g->at, (size_t)g->bytes);
        ek_disk_file *f;

        EK_TRY(open_file(x, g->path, &f));
        g->request = (ek_disk_request){.file = f,
                                       .background = w->idle,
                                       .offset = g->at,
                                       .bytes = (size_t)g->bytes,
                                       .buffer = at,
                                       .room = span.bytes};
        EK_TRY(ek_disk_start(x->disk, &g->request));
        g->data = g->request.data;
        r->up = w->up;
        at += span.bytes;
    }
    return EK_OK;
}

static wanted *find_wanted(ek_expert_reads *x, const ek_weight *up)
{
    for (int64_t i = 0; i < x->queued; i++)
        if (x->queue[i].up == up)
            return &x->queue[i];
    return NULL;
}

static void unqueue(ek_expert_reads *x, const wanted *w)
{
    int64_t at = w - x->queue;

    memmove(&x->queue[at], &x->queue[at + 1], (size_t)(--x->queued - at) * sizeof(*w));
}

/* The wanted expert to read next: those for idle times last. */
static wanted *next_wanted(ek_expert_reads *x)
{
    for (int64_t i = 0; i < x->queued; i++)
        if (!x->queue[i].idle)
            return &x->queue[i];
    return x->queued > 0 ? &x->queue[0] : NULL;
}

/* Starts wanted experts while buffers are free. */
static ek_status start_wanted(ek_expert_reads *x)
{
    wanted *next;
    reading *r;

    while ((next = next_wanted(x)) != NULL && (r = find_free(x)) != NULL) {
        wanted w = *next;

        unqueue(x, next);
        EK_TRY(start(x, r, &w));
    }
    return EK_OK;
}

/* Forgets all that is in flight or wanted. */
static void drop_all(ek_expert_reads *x)
{
    ek_disk_cancel_all(x->disk);
    while (ek_disk_poll(x->disk) != NULL)
        ;
    for (int i = 0; i < x->buffers; i++) {
        x->readings[i].up = NULL;
        x->readings[i].cancelled = 0;
    }
    x->queued = 0;
}

void ek_expert_reads_want(ek_expert_reads *x, const ek_expert_form *expert, int idle)
{
    wanted *w = find_wanted(x, expert->up);

    if (w != NULL)
        w->idle = w->idle && idle;
    else if (x->queued < x->cap && find_reading(x, expert->up) == NULL)
        x->queue[x->queued++] = (wanted){expert->up, expert->down, idle};
    if (start_wanted(x) < 0)
        drop_all(x); /* reading them says why */
}

void ek_expert_reads_drop(ek_expert_reads *x, const ek_expert_form *expert)
{
    wanted *w;
    reading *r;

    if (expert == NULL) {
        drop_all(x);
        return;
    }
    w = find_wanted(x, expert->up);
    r = find_reading(x, expert->up);
    if (w != NULL)
        unqueue(x, w);
    if (r != NULL)
        cancel_reading(x, r);
}

/* Waits for all requests of an expert; the first failure. */
static ek_status wait_requests(ek_expert_reads *x, reading *r)
{
    ek_status st = EK_OK;

    for (int64_t i = 0; i < r->batch.n; i++) {
        ek_status one = ek_disk_wait(x->disk, &r->batch.ranges[i].request);

        st = st < 0 ? st : one;
    }
    return st;
}

/* A buffer for an expert that is read now: a free one, or that of a dropped one, or of the one that
 * was started last. */
static reading *require_free(ek_expert_reads *x)
{
    reading *r = find_free(x), *last = &x->readings[0];

    if (r != NULL)
        return r;
    for (int i = 0; i < x->buffers && !last->cancelled; i++) {
        r = &x->readings[i];
        if (r->cancelled || r->number > last->number)
            last = r;
    }
    cancel_reading(x, last);
    last->cancelled = wait_requests(x, last) == EK_PENDING;
    return last;
}

void ek_expert_reads_lend(ek_expert_reads *x, void *memory)
{
    x->readings[x->buffers++].buffer = memory;
}

void *ek_expert_reads_take_back(ek_expert_reads *x)
{
    reading *r = require_free(x), *last = &x->readings[--x->buffers], given = *r;

    *r = *last; /* whose requests stay where they are */
    given.batch.n = 0;
    *last = given;
    return given.buffer;
}

/* Makes sure that an expert is in flight. */
static ek_status require(ek_expert_reads *x, const ek_expert_form *e, reading **out)
{
    wanted *w = find_wanted(x, e->up);

    *out = find_reading(x, e->up);
    if (*out != NULL)
        return EK_OK;
    if (w != NULL)
        unqueue(x, w);
    *out = require_free(x);
    return start(x, *out, &(wanted){e->up, e->down, 0});
}

/* Sets where an expert's packed forms are in memory. */
static void set_packed(const ek_expert_reads *x, ek_expert_form *e, char *memory)
{
    size_t up = ek_weight_form_bytes(x->m->k, e->up);

    e->to_up = memory;
    e->to_down = memory + (up + EK_ARENA_ALIGN - 1) / EK_ARENA_ALIGN * EK_ARENA_ALIGN;
    e->to_rest = NULL;
}

/* Exchanges a slot's memory for a buffer. */
static void exchange(reading *r, ek_expert_form *e)
{
    char *buffer = r->buffer;

    r->buffer = e->memory;
    e->memory = buffer;
}

/* Gives an expert that was read to its slot. */
static ek_status give_to_slot(ek_expert_reads *x, reading *r, ek_expert_form *e)
{
    ek_weight_form forms[2];

    if (x->in_place) {
        EK_REQUIRE(has_values(x, &r->batch, e), EK_EINTERNAL, "an expert is not where it was read");
        exchange(r, e);
        return EK_OK;
    }
    set_packed(x, e, e->memory);
    forms[0] = (ek_weight_form){e->up, e->to_up};
    forms[1] = (ek_weight_form){e->down, e->to_down};
    return ek_filler_read(x->filler, 2, forms, &r->batch);
}

/* Values C [rows, in] to rows of a packed form. */
static ek_status pack_rows(const ek_kernels *k, int64_t rows, int64_t in, const void *values,
                           void *to)
{
    return k->pack_comp != NULL ? k->pack_comp(k, rows, in, values, to)
                                : k->pack(k, rows, in, EK_PACKED_FORWARD, values, to);
}

ek_status ek_expert_reads_pack(ek_expert_reads *x, ek_expert_form *e)
{
    const ek_kernels *k = x->m->k;
    ek_expert_form packed = *e;
    int64_t half = e->up->out / 2;
    reading *r = find_free(x);

    if (r == NULL || k->one_form || half % k->panel_rows != 0)
        return EK_OK;
    set_packed(x, &packed, r->buffer);
    EK_TRY(pack_rows(k, half, e->up->in, e->to_up, packed.to_up));
    EK_TRY(
        pack_rows(k, half, e->up->in, e->to_rest,
                  (char *)packed.to_up + k->packed_bytes(k, half, e->up->in, EK_PACKED_FORWARD)));
    EK_TRY(pack_rows(k, e->down->out, e->down->in, e->to_down, packed.to_down));
    exchange(r, &packed);
    *e = packed;
    return EK_OK;
}

static ek_status read_one(ek_expert_reads *x, ek_expert_form *e)
{
    reading *r;
    ek_status st;

    EK_TRY(require(x, e, &r));
    st = wait_requests(x, r);
    if (st == EK_EIO) {
        EK_TRY(start(x, r, &(wanted){e->up, e->down, 0}));
        st = wait_requests(x, r);
    }
    EK_TRY(st);
    EK_TRY(give_to_slot(x, r, e));
    for (int64_t i = 0; i < r->batch.n; i++)
        x->used += (int64_t)r->batch.ranges[i].request.room;
    r->up = NULL;
    return start_wanted(x);
}

ek_status ek_expert_reads_read(ek_expert_reads *x, int64_t n, ek_expert_form *experts)
{
    for (int64_t i = 0; i < n; i++) {
        ek_status st = read_one(x, &experts[i]);

        if (st < 0) {
            drop_all(x);
            return st;
        }
    }
    return EK_OK;
}
