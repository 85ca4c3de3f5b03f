/* Buffers of experts in flight: which tensors they hold, and the forms made of them. */
#include "model/hf/expert_reads.h"

#include "store/convert.h"

#include <stdlib.h>
#include <string.h>

enum {
    DEPTH = 32, /* calls in flight: what the drive works on while nobody polls */
    RANGES = 4  /* of an expert: gate, up, down, and one to spare */
};

/* A contiguous piece of a file in a buffer. */
typedef struct {
    const char *file;
    int64_t at, bytes; /* in the file */
    ek_disk_request request;
} range;

/* An expert in flight. */
typedef struct {
    const ek_weight *up; /* which one; NULL: the buffer is free */
    char *buffer;
    range ranges[RANGES];
    int n;
} reading;

/* An expert to be read. */
typedef struct {
    const ek_weight *up, *down;
} wanted;

struct ek_expert_reads {
    ek_model *m;
    ek_hf_values values;
    ek_filler *filler;
    ek_disk *disk;
    ek_disk_file **opened; /* [n_opened], files and their paths */
    const char **paths;
    int64_t n_opened;
    reading readings[EK_EXPERT_BUFFERS];
    size_t room; /* of a buffer */
    wanted *queue;
    int64_t queued, cap;
    reading *current; /* whose ranges collect() adds to, or whose values fill() reads */
};

/* --- where tensors are ------------------------------------------------------------------------ */

/* Called for each tensor of an expert: adds where it is, joined to a range that it extends. */
static void collect(void *context, const ek_hf_tensor *t, const ek_weight_array *a,
                    const ek_tensor_slice *slice)
{
    ek_expert_reads *x = context;
    reading *r = x->current;
    ek_tensor_range at;

    (void)a;
    if (!ek_hf_range(&x->values, t, slice, &at))
        return; /* excluded at creation */
    for (int i = 0; i < r->n; i++) {
        range *g = &r->ranges[i];

        if (strcmp(g->file, at.t->file) != 0)
            continue;
        if (g->at + g->bytes == at.at) {
            g->bytes += at.bytes;
            return;
        }
        if (at.at + at.bytes == g->at) {
            g->at = at.at;
            g->bytes += at.bytes;
            return;
        }
    }
    if (r->n < RANGES)
        r->ranges[r->n++] = (range){.file = at.t->file, .at = at.at, .bytes = at.bytes};
}

/* Sets the ranges of an expert.  Three tensors in any order: two that touch the third are joined in
 * a second look. */
static void find_ranges(ek_expert_reads *x, reading *r, const ek_weight *up, const ek_weight *down)
{
    r->n = 0;
    x->current = r;
    ek_filler_prefetch(x->filler, up);
    ek_filler_prefetch(x->filler, down);
    for (int i = 0; i < r->n; i++)
        for (int j = 0; j < r->n; j++) {
            range *a = &r->ranges[i], *b = &r->ranges[j];

            if (i != j && strcmp(a->file, b->file) == 0 && a->at + a->bytes == b->at) {
                a->bytes += b->bytes;
                *b = r->ranges[--r->n];
                i = j = 0;
            }
        }
}

/* Gives values from the current buffer; called by several threads. */
static ek_status fill(void *context, const ek_hf_tensor *t, const ek_weight_array *a,
                      const ek_tensor_slice *slice, ek_dtype type, void *dst, int64_t ld)
{
    const ek_expert_reads *x = context;
    ek_tensor_range at;

    (void)a;
    EK_REQUIRE(ek_hf_range(&x->values, t, slice, &at) && ld == slice->cols, EK_EINTERNAL,
               "%s is not contiguous", t->name);
    for (int i = 0; i < x->current->n; i++) {
        const range *g = &x->current->ranges[i];

        if (strcmp(g->file, at.t->file) != 0 || at.at < g->at ||
            at.at + at.bytes > g->at + g->bytes)
            continue;
        ek_convert(slice->rows * slice->cols, g->request.data + (at.at - g->at), at.t->dtype, dst,
                   type);
        return EK_OK;
    }
    return EK_FAIL(EK_EINTERNAL, "%s was not read", t->name);
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

/* Opens the files of all experts, and finds the largest expert.  *contiguous: 0 if a tensor is in
 * pieces. */
static ek_status open_files(ek_expert_reads *x, int *contiguous)
{
    const ek_model *m = x->m;
    int64_t bytes = 0;

    *contiguous = 1;
    for (int32_t l = ek_model_next_moe(m, -1); l < (int32_t)m->spec.layers;
         l = ek_model_next_moe(m, l))
        for (int64_t e = 0; e < m->spec.experts && *contiguous; e++) {
            const ek_weight *up = &m->layers[l].experts.up[e],
                            *down = &m->layers[l].experts.down[e];
            reading r = {0};
            int64_t all = 0;

            find_ranges(x, &r, up, down);
            for (int i = 0; i < r.n; i++) {
                ek_disk_file *f;

                all += r.ranges[i].bytes;
                EK_TRY(open_file(x, r.ranges[i].file, &f));
            }
            bytes = all > bytes ? all : bytes;
            *contiguous = all > 0 && r.n < RANGES;
        }
    x->room = ek_disk_room((size_t)bytes) + (RANGES - 1) * 2 * EK_DISK_ALIGN;
    x->current = NULL;
    return EK_OK;
}

/* Whether each tensor of the experts is contiguous in one file. */
static int all_contiguous(const ek_expert_reads *x)
{
    int64_t count = ek_hf_count(x->values.spec);

    for (int64_t i = 0; i < count; i++) {
        ek_hf_tensor t;
        ek_tensor_range at;

        ek_hf_tensor_at(x->values.spec, i, &t);
        if (t.expert >= 0 &&
            !ek_hf_range(&x->values, &t, &(ek_tensor_slice){0, t.shape[0], 0, t.shape[1]}, &at))
            return 0;
    }
    return 1;
}

static ek_status alloc_lists(ek_expert_reads *x)
{
    const ek_model_spec *s = &x->m->spec;
    size_t files = (size_t)ek_slice_set_count(x->values.files) + 1;

    x->cap = s->experts;
    x->queue = calloc((size_t)x->cap, sizeof(*x->queue));
    x->opened = calloc(files, sizeof(*x->opened));
    x->paths = calloc(files, sizeof(*x->paths));
    EK_REQUIRE(x->queue != NULL && x->opened != NULL && x->paths != NULL, EK_ENOMEM,
               "no memory for the experts' files");
    return EK_OK;
}

static ek_status alloc_buffers(ek_expert_reads *x)
{
    for (int i = 0; i < EK_EXPERT_BUFFERS; i++) {
        x->readings[i].buffer = aligned_alloc(EK_DISK_ALIGN, x->room);
        EK_REQUIRE(x->readings[i].buffer != NULL, EK_ENOMEM,
                   "no memory to read an expert of %zu bytes", x->room);
    }
    return EK_OK;
}

ek_status ek_expert_reads_create(ek_model *m, const ek_slice_set *files, ek_expert_reads **out)
{
    ek_expert_reads *x = calloc(1, sizeof(*x));
    int contiguous;
    ek_status st;

    *out = NULL;
    EK_REQUIRE(x != NULL, EK_ENOMEM, "no memory for the experts' files");
    x->m = m;
    x->values = (ek_hf_values){.spec = &m->spec, .files = files};
    EK_TRY_OUT(alloc_lists(x));
    EK_TRY_OUT(ek_filler_create(
        m, &(ek_value_source){.read = fill, .prefetch = collect, .context = x}, &x->filler));
    EK_TRY_OUT(ek_disk_create(&(ek_disk_config){.depth = DEPTH}, &x->disk));
    if (!all_contiguous(x))
        goto out;
    EK_TRY_OUT(open_files(x, &contiguous));
    if (!contiguous)
        goto out;
    EK_TRY_OUT(alloc_buffers(x));
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
    for (int i = 0; i < EK_EXPERT_BUFFERS; i++)
        free(x->readings[i].buffer);
    free(x->queue);
    free(x->opened);
    free(x->paths);
    free(x);
    *px = NULL;
}

/* --- reading ---------------------------------------------------------------------------------- */

static reading *find_reading(ek_expert_reads *x, const ek_weight *up)
{
    for (int i = 0; i < EK_EXPERT_BUFFERS; i++)
        if (x->readings[i].up == up)
            return &x->readings[i];
    return NULL;
}

/* Starts the requests of an expert, in the buffer of a free reading. */
static ek_status start(ek_expert_reads *x, reading *r, const wanted *w)
{
    char *at = r->buffer;

    find_ranges(x, r, w->up, w->down);
    for (int i = 0; i < r->n; i++) {
        range *g = &r->ranges[i];
        ek_disk_span span = ek_disk_span_of(g->at, (size_t)g->bytes);
        ek_disk_file *f;

        EK_TRY(open_file(x, g->file, &f));
        g->request = (ek_disk_request){.file = f,
                                       .offset = g->at,
                                       .bytes = (size_t)g->bytes,
                                       .buffer = at,
                                       .room = span.bytes};
        EK_TRY(ek_disk_start(x->disk, &g->request));
        r->up = w->up;
        at += span.bytes;
    }
    return EK_OK;
}

/* Takes an expert out of the queue.  False: it is not there. */
static int unqueue(ek_expert_reads *x, const ek_weight *up, wanted *out)
{
    for (int64_t i = 0; i < x->queued; i++)
        if (up == NULL || x->queue[i].up == up) {
            *out = x->queue[i];
            memmove(&x->queue[i], &x->queue[i + 1], (size_t)(--x->queued - i) * sizeof(*x->queue));
            return 1;
        }
    return 0;
}

/* Starts wanted experts while buffers are free. */
static ek_status start_wanted(ek_expert_reads *x)
{
    reading *r;
    wanted w;

    while (x->queued > 0 && (r = find_reading(x, NULL)) != NULL && unqueue(x, NULL, &w))
        EK_TRY(start(x, r, &w));
    return EK_OK;
}

/* Forgets all that is in flight or wanted. */
static void drop_all(ek_expert_reads *x)
{
    ek_disk_cancel_all(x->disk);
    while (ek_disk_poll(x->disk) != NULL)
        ;
    for (int i = 0; i < EK_EXPERT_BUFFERS; i++)
        x->readings[i].up = NULL;
    x->queued = 0;
}

void ek_expert_reads_want(ek_expert_reads *x, const ek_expert_form *expert)
{
    if (x->queued < x->cap && find_reading(x, expert->up) == NULL)
        x->queue[x->queued++] = (wanted){expert->up, expert->down};
    if (start_wanted(x) < 0)
        drop_all(x); /* reading them says why */
}

/* Makes sure that an expert is in flight. */
static ek_status require(ek_expert_reads *x, const ek_expert_form *e, reading **out)
{
    wanted w = {e->up, e->down};

    *out = find_reading(x, e->up);
    if (*out != NULL)
        return EK_OK;
    (void)unqueue(x, e->up, &w);
    *out = find_reading(x, NULL);
    if (*out == NULL) { /* others are in flight that nobody reads first */
        drop_all(x);
        *out = &x->readings[0];
    }
    return start(x, *out, &w);
}

static ek_status read_one(ek_expert_reads *x, const ek_expert_form *e)
{
    const ek_weight_form forms[] = {{e->up, e->to_up}, {e->down, e->to_down}};
    reading *r;

    EK_TRY(require(x, e, &r));
    for (int i = 0; i < r->n; i++)
        EK_TRY(ek_disk_wait(x->disk, &r->ranges[i].request));
    x->current = r;
    EK_TRY(ek_filler_read(x->filler, 2, forms));
    r->up = NULL;
    return start_wanted(x);
}

ek_status ek_expert_reads_read(ek_expert_reads *x, int64_t n, const ek_expert_form *experts)
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
