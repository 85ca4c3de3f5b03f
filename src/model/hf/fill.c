/* Fills weights in jobs of a few rows of one weight, which threads take one after another.  A job
 * reads the tensors that its rows come from (an expert's gate and up, say).  Jobs whose values are
 * in files are done in batches, in the order of the files, while the next batches arrive. */
#include "model/hf/fill.h"

#include "base/team.h"
#include "model/hf/weights.h"
#include "model/offload.h"
#include "store/read_ahead.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum {
    JOB_ELEMENTS = 1 << 18, /* about: the float rows of a job stay in L2 */
    BATCH_BYTES = 2 << 20,  /* of files, read at once; a larger job is a batch by itself */
    BATCHES_AHEAD = 7,      /* in flight, or waiting for a thread */
    CALLS = 32              /* of the disk queue in flight: what the drive works on meanwhile */
};

/* A tensor's part in a weight. */
typedef struct {
    int64_t tensor; /* number, for ek_hf_tensor_at */
    ek_span span;
} source_part;

/* Rows [row, row + rows) of one weight, from its n parts. */
typedef struct {
    const source_part *parts;
    int64_t n, row, rows;
    void *to;         /* the rows, as R; or the weight's packed form */
    int packed;       /* `to` is the latter */
    const char *file; /* its first piece, "" if there is none, */
    int64_t at;       /* and where that begins */
} fill_job;

/* Jobs whose pieces are read together. */
typedef struct {
    int64_t *first; /* [n + 1], jobs */
    int64_t n;
    size_t room; /* of a buffer for any */
} fill_batches;

struct ek_filler {
    /* as long as it exists */
    ek_model *m;
    ek_value_source from;
    source_part *parts;    /* by weight, then by position in it */
    int64_t n_parts, tile; /* tile: elements of the largest job that is packed */
    void **tiles;          /* [threads], buffers */
    int threads;

    /* of a call */
    const ek_weight_array *array;
    fill_job *jobs;
    int64_t n_jobs, cap;
    fill_batches batches; /* of jobs in files */
    int64_t done, all;    /* elements of an array, those on disk included; set by its first call */
    ek_team_failure failure;
};

typedef struct ek_filler filling;

static const ek_weight_array master[] = {{"", offsetof(ek_weight, p_kept)}};
static const ek_weight_array moments[] = {{".exp_avg", offsetof(ek_weight, m)},
                                          {".exp_avg_sq", offsetof(ek_weight, v)}};

const ek_weight_array *ek_weight_arrays_of(ek_weight_arrays part, int *n)
{
    *n = part == EK_ARRAYS_MASTER ? 1 : 2;
    return part == EK_ARRAYS_MASTER ? master : moments;
}

void *ek_weight_kept(const ek_weight *w, const ek_weight_array *a)
{
    void *p;

    memcpy(&p, (const char *)w + a->kept, sizeof(p));
    return p;
}

static int64_t width_of(const ek_weight *w)
{
    return w->in > 0 ? w->in : 1;
}

/* Whether a weight has no master but a packed form. */
static int packed_only(const filling *f, const ek_weight *w)
{
    return !f->m->cfg.trained && f->array == master && w->p_kept == NULL && w->forward != NULL;
}

static int by_weight(const void *a, const void *b)
{
    const ek_span *x = &((const source_part *)a)->span, *y = &((const source_part *)b)->span;
    uintptr_t p = (uintptr_t)x->w, q = (uintptr_t)y->w;

    if (p != q)
        return p < q ? -1 : 1;
    return (x->first > y->first) - (x->first < y->first);
}

static ek_status list_parts(filling *f)
{
    int64_t count = ek_hf_count(&f->m->spec);

    f->parts = calloc((size_t)count + 1, sizeof(*f->parts));
    EK_REQUIRE(f->parts != NULL, EK_ENOMEM, "no memory for a list of %lld tensors",
               (long long)count);
    for (int64_t i = 0; i < count; i++) {
        source_part *p = &f->parts[f->n_parts];
        ek_hf_tensor t;

        ek_hf_tensor_at(&f->m->spec, i, &t);
        p->tensor = i;
        f->n_parts += ek_model_span(f->m, &t, &p->span);
    }
    qsort(f->parts, (size_t)f->n_parts, sizeof(*f->parts), by_weight);
    return EK_OK;
}

/* Parts must be whole rows, for rows of the weight to be slices of tensors. */
static ek_status check_parts(const source_part *p, int64_t n)
{
    int64_t width = width_of(p->span.w);

    for (int64_t i = 0; i < n; i++) {
        const ek_span *s = &p[i].span;

        EK_REQUIRE(s->ld == width && s->cols == width && s->first % width == 0, EK_EINTERNAL,
                   "tensor %lld is not whole rows of its weight", (long long)p[i].tensor);
    }
    return EK_OK;
}

/* Rows of a job: whole panels where they are packed. */
static int64_t job_rows(const filling *f, const ek_weight *w, int packed)
{
    int64_t unit = packed ? f->m->k->panel_rows : 1;
    int64_t units = JOB_ELEMENTS / (width_of(w) * unit);

    return unit * (units > 0 ? units : 1);
}

/* Elements of the largest job that may have to be packed. */
static int64_t largest_tile(const filling *f)
{
    int64_t largest = 0;

    for (int64_t i = 0; i < f->n_parts; i++) {
        const ek_weight *w = f->parts[i].span.w;
        int64_t rows = job_rows(f, w, 1);

        rows = rows < w->out ? rows : w->out;
        if (w->in > 0 && rows * w->in > largest)
            largest = rows * w->in;
    }
    return largest;
}

static ek_status add_job(filling *f, const fill_job *j)
{
    if (f->n_jobs == f->cap) {
        int64_t cap = 2 * f->cap + 64;
        fill_job *grown = realloc(f->jobs, (size_t)cap * sizeof(*grown));

        EK_REQUIRE(grown != NULL, EK_ENOMEM, "no memory to read %lld weights",
                   (long long)f->n_parts);
        f->jobs = grown;
        f->cap = cap;
    }
    f->jobs[f->n_jobs++] = *j;
    return EK_OK;
}

/* Adds the jobs of rows [row, end) of one weight. to: row `row`, or the packed form. */
static ek_status add_rows(filling *f, const source_part *parts, int64_t n, int64_t row, int64_t end,
                          void *to, int packed)
{
    const ek_weight *w = parts->span.w;
    int64_t most = job_rows(f, w, packed), first = row;
    int64_t bytes = width_of(w) * (int64_t)ek_dtype_size(f->m->k->real);

    EK_TRY(check_parts(parts, n));
    for (; row < end; row += most) {
        int64_t rows = end - row < most ? end - row : most;
        void *at = packed ? to : (char *)to + (row - first) * bytes;

        EK_TRY(add_job(f, &(fill_job){parts, n, row, rows, at, packed, "", 0}));
    }
    return EK_OK;
}

/* Adds the jobs of a weight that is in memory; none if this rank keeps nothing of it. */
static ek_status add_weight(filling *f, const source_part *parts, int64_t n)
{
    const ek_weight *w = parts->span.w;
    int64_t width = width_of(w);
    void *kept = ek_weight_kept(w, f->array);

    if (packed_only(f, w))
        return add_rows(f, parts, n, 0, w->out, w->forward, 1);
    if (kept == NULL || w->kept == 0)
        return EK_OK;
    EK_REQUIRE(w->kept_first % width == 0 && w->kept % width == 0, EK_EINTERNAL,
               "the range of %lld elements from %lld is not whole rows of %lld", (long long)w->kept,
               (long long)w->kept_first, (long long)width);
    return add_rows(f, parts, n, w->kept_first / width, (w->kept_first + w->kept) / width, kept, 0);
}

static int by_tensor(const void *a, const void *b)
{
    const fill_job *x = a, *y = b;

    if (x->parts->tensor != y->parts->tensor)
        return x->parts->tensor < y->parts->tensor ? -1 : 1;
    return (x->row > y->row) - (x->row < y->row);
}

/* The parts of one weight, from part i on. */
static int64_t parts_of(const filling *f, int64_t i)
{
    int64_t end = i + 1;

    while (end < f->n_parts && f->parts[end].span.w == f->parts[i].span.w)
        end++;
    return end - i;
}

static ek_status list_jobs(filling *f)
{
    for (int64_t i = 0, n; i < f->n_parts; i += n) {
        n = parts_of(f, i);
        EK_TRY(add_weight(f, &f->parts[i], n));
    }
    if (f->n_jobs > 0)
        qsort(f->jobs, (size_t)f->n_jobs, sizeof(*f->jobs), by_tensor);
    return EK_OK;
}

/* The slice of part i of a job; *row: where it begins, in rows of the job.  False if it is empty.
 */
static int slice_of(const filling *f, const fill_job *j, int64_t i, ek_hf_tensor *t,
                    ek_tensor_slice *slice, int64_t *row)
{
    const ek_span *s = &j->parts[i].span;
    int64_t at = s->first / width_of(s->w), first = j->row > at ? j->row : at, end = at + s->rows;

    end = end < j->row + j->rows ? end : j->row + j->rows;
    if (first >= end)
        return 0;
    *slice = (ek_tensor_slice){s->row + first - at, end - first, s->col, s->cols};
    *row = first - j->row;
    ek_hf_tensor_at(&f->m->spec, j->parts[i].tensor, t);
    return 1;
}

/* Reads a job's rows to dst, dense; from the batch `in` if that is not NULL. */
static ek_status read_rows(const filling *f, const fill_job *j, const ek_file_batch *in,
                           ek_dtype type, char *dst)
{
    int64_t width = width_of(j->parts->span.w), rows = 0, row;
    int64_t size = (int64_t)ek_dtype_size(type);

    for (int64_t i = 0; i < j->n; i++) {
        ek_tensor_slice slice;
        ek_hf_tensor t;

        if (!slice_of(f, j, i, &t, &slice, &row))
            continue;
        EK_TRY(f->from.read(f->from.context, &t, f->array, &slice, in, type,
                            dst + row * width * size, width));
        rows += slice.rows;
    }
    EK_REQUIRE(rows == j->rows, EK_EINTERNAL, "%lld of %lld rows of a weight belong to no tensor",
               (long long)(j->rows - rows), (long long)j->rows);
    return EK_OK;
}

/* A job's rows where the batch `in` has them; NULL: nowhere as C values side by side. */
static const void *rows_in_place(const filling *f, const fill_job *j, const ek_file_batch *in)
{
    if (f->from.in_place == NULL || in == NULL || f->m->k->memory != NULL)
        return NULL;
    for (int64_t i = 0; i < j->n; i++) {
        ek_tensor_slice slice;
        ek_hf_tensor t;
        int64_t row;

        if (slice_of(f, j, i, &t, &slice, &row))
            return slice.rows < j->rows
                       ? NULL
                       : f->from.in_place(f->from.context, &t, f->array, &slice, in, f->m->k->comp);
    }
    return NULL;
}

/* Whether rows are packed from C, which the host does, and not from R by a kernel. */
static int packs_comp(const filling *f)
{
    return f->m->k->pack_comp != NULL && !f->from.real_only;
}

/* Begins to move what the host writes for a job to its next user, where an accelerator has its own
 * memory. */
static void move_rows(const filling *f, const fill_job *j, ek_memory_user next)
{
    const ek_kernels *k = f->m->k;
    int64_t width = width_of(j->parts->span.w);

    if (k->memory == NULL)
        return;
    if (!j->packed)
        k->memory->move(k->memory, j->to, (size_t)(j->rows * width) * ek_dtype_size(k->real), next);
    else if (packs_comp(f))
        k->memory->move(k->memory,
                        (char *)j->to + k->packed_bytes(k, j->row, width, EK_PACKED_FORWARD),
                        k->packed_bytes(k, j->rows, width, EK_PACKED_FORWARD), next);
}

/* Packs a job's rows from R.  An accelerator's kernels are called by one thread at a time, and have
 * read the values when they return. */
static ek_status pack_rows(const filling *f, const fill_job *j, const void *values, void *to)
{
    const ek_kernels *k = f->m->k;
    int64_t in = j->parts->span.w->in;
    ek_status st;

    if (k->memory == NULL)
        return k->pack(k, j->rows, in, EK_PACKED_FORWARD, values, to);
#pragma omp critical(accelerator_pack)
    st = k->pack(k, j->rows, in, EK_PACKED_FORWARD, values, to);
    return st;
}

static ek_status write_rows(const filling *f, const fill_job *j, const ek_file_batch *from,
                            void *tile)
{
    const ek_kernels *k = f->m->k;
    int64_t in = j->parts->span.w->in;
    const void *values;
    char *to = j->to;

    if (!j->packed)
        return read_rows(f, j, from, k->real, to);
    to += k->packed_bytes(k, j->row, in, EK_PACKED_FORWARD);
    if (packs_comp(f)) {
        values = rows_in_place(f, j, from);
        if (values == NULL)
            EK_TRY(read_rows(f, j, from, k->comp, tile));
        return k->pack_comp(k, j->rows, in, values != NULL ? values : tile, to);
    }
    EK_TRY(read_rows(f, j, from, k->real, tile));
    return pack_rows(f, j, tile, to);
}

static ek_status run_job(const filling *f, const fill_job *j, const ek_file_batch *from, void *tile)
{
    EK_TRY(write_rows(f, j, from, tile));
    move_rows(f, j, EK_USED_BY_ACCELERATOR);
    return EK_OK;
}

static void count_done(filling *f, const fill_job *j)
{
    int64_t done;

#pragma omp atomic capture
    {
        f->done += j->rows * width_of(j->parts->span.w);
        done = f->done;
    }
    if (f->from.progress.function != NULL && omp_get_thread_num() == 0)
        f->from.progress.function(f->from.progress.context, done, f->all);
}

/* Reports how far it is at the end of a call. */
static ek_status end_call(filling *f)
{
    if (f->failure.index < 0 && f->from.progress.function != NULL)
        f->from.progress.function(f->from.progress.context, f->done, f->all);
    return ek_team_result(&f->failure);
}

/* A job fails alone, but the rest of them is then skipped. */
static ek_status run_jobs(filling *f, const ek_file_batch *in)
{
#pragma omp parallel num_threads(f->threads)
    {
        void *tile = f->tiles[omp_get_thread_num()];

#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < f->n_jobs; i++) {
            ek_status st;

            if (ek_team_has_failed(&f->failure))
                continue;
            st = run_job(f, &f->jobs[i], in, tile);
            if (st < 0)
                ek_team_record(&f->failure, i, st);
            count_done(f, &f->jobs[i]);
        }
    }
    return end_call(f);
}

/* --- from files ------------------------------------------------------------------------------- */

static ek_status add_pieces(const filling *f, const fill_job *j, ek_file_batch *out)
{
    for (int64_t i = 0; i < j->n; i++) {
        ek_tensor_slice slice;
        ek_hf_tensor t;
        int64_t row;

        if (slice_of(f, j, i, &t, &slice, &row))
            EK_TRY(f->from.pieces(f->from.context, &t, f->array, &slice, out));
    }
    return EK_OK;
}

static int by_place(const void *a, const void *b)
{
    const fill_job *x = a, *y = b;
    int order = x->file == y->file ? 0 : strcmp(x->file, y->file);

    return order != 0 ? order : (x->at > y->at) - (x->at < y->at);
}

/* Sorts the jobs by their places in files. */
static ek_status sort_by_place(filling *f)
{
    ek_file_batch one = {0};
    ek_status st = EK_OK;

    for (int64_t i = 0; i < f->n_jobs; i++) {
        fill_job *j = &f->jobs[i];

        ek_file_batch_clear(&one);
        EK_TRY_OUT(add_pieces(f, j, &one));
        if (one.n > 0) {
            j->file = one.ranges[0].path;
            j->at = one.ranges[0].at;
        }
    }
    qsort(f->jobs, (size_t)f->n_jobs, sizeof(*f->jobs), by_place);
out:
    ek_file_batch_free(&one);
    return st;
}

/* Cuts the sorted jobs into batches. */
static ek_status cut_batches(filling *f, fill_batches *out)
{
    ek_file_batch b = {0};
    ek_status st = EK_OK;

    out->first = calloc((size_t)f->n_jobs + 1, sizeof(*out->first));
    EK_REQUIRE(out->first != NULL, EK_ENOMEM, "no memory to read %lld weights",
               (long long)f->n_parts);
    for (int64_t i = 0; i < f->n_jobs; i++) {
        size_t room;

        EK_TRY_OUT(add_pieces(f, &f->jobs[i], &b));
        room = ek_file_batch_room(&b);
        if (i > 0 && room > BATCH_BYTES) {
            out->first[++out->n] = i;
            ek_file_batch_clear(&b);
            EK_TRY_OUT(add_pieces(f, &f->jobs[i], &b));
            room = ek_file_batch_room(&b);
        }
        out->room = room > out->room ? room : out->room;
    }
    out->n += f->n_jobs > 0;
    out->first[out->n] = f->n_jobs;
out:
    ek_file_batch_free(&b);
    return st;
}

static ek_status describe_batch(void *context, int64_t i, ek_file_batch *out)
{
    const filling *f = context;

    for (int64_t j = f->batches.first[i]; j < f->batches.first[i + 1]; j++)
        EK_TRY(add_pieces(f, &f->jobs[j], out));
    return EK_OK;
}

static void run_batch(filling *f, int64_t i, const ek_file_batch *in, void *tile)
{
    for (int64_t j = f->batches.first[i]; j < f->batches.first[i + 1]; j++) {
        ek_status st;

        if (ek_team_has_failed(&f->failure))
            return;
        st = run_job(f, &f->jobs[j], in, tile);
        if (st < 0)
            ek_team_record(&f->failure, j, st);
        count_done(f, &f->jobs[j]);
    }
}

/* Of one thread. */
static void run_batches(filling *f, ek_read_ahead *ahead, void *tile)
{
    while (!ek_team_has_failed(&f->failure)) {
        ek_file_batch *in;
        int64_t i;
        ek_status st = ek_read_ahead_take(ahead, &i, &in);

        if (st < 0)
            ek_team_record(&f->failure, f->n_jobs, st);
        if (st < 0 || i < 0)
            return;
        run_batch(f, i, in, tile);
        ek_read_ahead_give_back(ahead, in);
    }
}

static int least(int64_t a, int64_t b)
{
    return (int)(a < b ? a : b);
}

static ek_status run_from_files(filling *f)
{
    ek_read_ahead_config c = {.describe = describe_batch, .context = f, .reader = f->from.files};
    ek_read_ahead *ahead = NULL;
    ek_status st = EK_OK;

    EK_TRY_OUT(sort_by_place(f));
    EK_TRY_OUT(cut_batches(f, &f->batches));
    c.batches = f->batches.n;
    c.buffers = least(f->threads + BATCHES_AHEAD, c.batches > 0 ? c.batches : 1);
    c.room = f->batches.room > 0 ? f->batches.room : EK_DISK_ALIGN;
    if (c.reader.depth == 0)
        c.reader.depth = CALLS;
    EK_TRY_OUT(ek_read_ahead_create(&c, &ahead));
#pragma omp parallel num_threads(f->threads)
    run_batches(f, ahead, f->tiles[omp_get_thread_num()]);
    st = end_call(f);
out:
    ek_read_ahead_destroy(&ahead);
    free(f->batches.first);
    f->batches = (fill_batches){0};
    return st;
}

size_t ek_model_fill_bytes(const ek_kernels *k)
{
    return (size_t)(k->threads + BATCHES_AHEAD) * BATCH_BYTES +
           (size_t)k->threads * JOB_ELEMENTS * ek_dtype_size(k->real);
}

/* --- calls ------------------------------------------------------------------------------------ */

static void begin_call(filling *f, const ek_weight_array *array)
{
    f->array = array;
    f->n_jobs = 0;
    f->failure.index = -1;
}

/* Runs the jobs of a call. */
static ek_status run_call(filling *f)
{
    if (f->n_jobs == 0)
        return end_call(f);
    for (int64_t i = 0; i < f->n_jobs; i++)
        move_rows(f, &f->jobs[i], EK_USED_BY_HOST);
    return f->from.pieces != NULL ? run_from_files(f) : run_jobs(f, NULL);
}

/* --- a filler --------------------------------------------------------------------------------- */

static size_t tile_bytes(const filling *f)
{
    size_t bytes = (size_t)f->tile * ek_dtype_size(f->m->k->real) + EK_ARENA_ALIGN;

    return bytes / EK_ARENA_ALIGN * EK_ARENA_ALIGN;
}

/* The threads' buffers, in memory that kernels can read. */
static ek_status alloc_tiles(filling *f)
{
    const ek_memory *from = f->m->k->memory;

    f->threads = f->m->k->threads;
    f->tile = largest_tile(f);
    f->tiles = calloc((size_t)f->threads, sizeof(*f->tiles));
    EK_REQUIRE(f->tiles != NULL, EK_ENOMEM, "no memory for %d buffers", f->threads);
    for (int i = 0; i < f->threads; i++) {
        if (from != NULL) {
            EK_TRY(
                from->alloc(from, tile_bytes(f), tile_bytes(f), "values of weights", &f->tiles[i]));
            continue;
        }
        f->tiles[i] = aligned_alloc(EK_ARENA_ALIGN, tile_bytes(f));
        EK_REQUIRE(f->tiles[i] != NULL, EK_ENOMEM, "no memory for %lld values of weights",
                   (long long)f->tile);
    }
    return EK_OK;
}

static void free_tiles(filling *f)
{
    const ek_memory *from = f->m->k->memory;

    for (int i = 0; f->tiles != NULL && i < f->threads; i++) {
        if (from != NULL && f->tiles[i] != NULL)
            from->free(from, f->tiles[i], tile_bytes(f));
        else
            free(f->tiles[i]);
    }
    free(f->tiles);
}

ek_status ek_filler_create(ek_model *m, const ek_value_source *from, ek_filler **out)
{
    filling *f = calloc(1, sizeof(*f));
    ek_status st;

    EK_REQUIRE(f != NULL, EK_ENOMEM, "no memory to read weights");
    f->m = m;
    f->from = *from;
    EK_TRY_OUT(list_parts(f));
    EK_TRY_OUT(alloc_tiles(f));
    *out = f;
    f = NULL;
out:
    ek_filler_destroy(&f);
    return st;
}

void ek_filler_destroy(ek_filler **pf)
{
    filling *f = *pf;

    if (f == NULL)
        return;
    free_tiles(f);
    free(f->parts);
    free(f->jobs);
    free(f);
    *pf = NULL;
}

size_t ek_weight_form_bytes(const ek_kernels *k, const ek_weight *w)
{
    size_t packed = k->packed_bytes(k, w->out, w->in, EK_PACKED_FORWARD);

    return packed > 0 ? packed : (size_t)ek_weight_elements(w) * ek_dtype_size(k->real);
}

/* Index of a weight's first part; -1: no tensor belongs to it. */
static int64_t find_parts(const filling *f, const ek_weight *w)
{
    int64_t low = 0, high = f->n_parts;

    while (low < high) {
        int64_t at = low + (high - low) / 2;

        if ((uintptr_t)f->parts[at].span.w < (uintptr_t)w)
            low = at + 1;
        else
            high = at;
    }
    return low < f->n_parts && f->parts[low].span.w == w ? low : -1;
}

/* Adds the jobs of a weight whose form is not in the model. */
static ek_status add_form(filling *f, const ek_weight_form *x)
{
    const ek_kernels *k = f->m->k;
    const ek_weight *w = x->w;
    int64_t at = find_parts(f, w);

    EK_REQUIRE(at >= 0, EK_EINTERNAL, "a weight of %lld by %lld belongs to no tensor",
               (long long)w->out, (long long)w->in);
    return add_rows(f, &f->parts[at], parts_of(f, at), 0, w->out, x->to,
                    k->packed_bytes(k, w->out, w->in, EK_PACKED_FORWARD) > 0);
}

ek_status ek_filler_read(ek_filler *f, int64_t n, const ek_weight_form *forms,
                         const ek_file_batch *in)
{
    begin_call(f, master);
    for (int64_t i = 0; i < n; i++)
        EK_TRY(add_form(f, &forms[i]));
    return run_jobs(f, in);
}

const void *ek_filler_find_rows(const ek_filler *f, const ek_weight *w, int64_t row, int64_t rows,
                                const ek_file_batch *in)
{
    int64_t at = find_parts(f, w);
    fill_job j = {.row = row, .rows = rows};

    if (at < 0)
        return NULL;
    j.parts = &f->parts[at];
    j.n = parts_of(f, at);
    return rows_in_place(f, &j, in);
}

ek_status ek_filler_pieces(ek_filler *f, const ek_weight *w, ek_file_batch *out)
{
    int64_t at = find_parts(f, w);

    f->array = master;
    if (at < 0)
        return EK_OK;
    return add_pieces(f, &(fill_job){.parts = &f->parts[at], .n = parts_of(f, at), .rows = w->out},
                      out);
}

/* Elements of an array that this rank keeps, in memory and on disk. */
static int64_t count_elements(const filling *f)
{
    int64_t n = 0;

    for (int64_t i = 0; i < f->n_parts; i += parts_of(f, i)) {
        const ek_weight *w = f->parts[i].span.w;

        n += packed_only(f, w) ? ek_weight_elements(w) : w->kept;
    }
    return n;
}

/* Fills one array of a bucket whose state is on disk, and writes it there.  With its masters the
 * moments begin, at zero. */
static ek_status fill_offloaded(filling *f, const ek_param_bucket *u, const ek_weight_array *array)
{
    ek_model *m = f->m;

    EK_TRY(ek_offload_load(m, u, 0));
    begin_call(f, array);
    for (int32_t i = 0; i < u->n_params; i++) {
        int64_t at = find_parts(f, m->params[u->params[i]].w);

        if (at >= 0)
            EK_TRY(add_weight(f, &f->parts[at], parts_of(f, at)));
    }
    EK_TRY(run_call(f));
    return ek_offload_store(m, u,
                            array == master        ? EK_PART_STATE
                            : array == &moments[0] ? EK_PART_M
                                                   : EK_PART_V);
}

ek_status ek_model_fill(ek_model *m, ek_weight_arrays part, const ek_value_source *from)
{
    int n;
    const ek_weight_array *arrays = ek_weight_arrays_of(part, &n);
    ek_filler *f = NULL;
    ek_status st;

    EK_TRY_OUT(ek_filler_create(m, from, &f));
    for (int i = 0; i < n; i++) {
        begin_call(f, &arrays[i]);
        f->done = 0;
        f->all = count_elements(f);
        EK_TRY_OUT(list_jobs(f));
        EK_TRY_OUT(run_call(f));
        for (int32_t b = 0; b < m->buckets->n; b++)
            if (ek_param_bucket_is_offloaded(&m->buckets->bucket[b]))
                EK_TRY_OUT(fill_offloaded(f, &m->buckets->bucket[b], &arrays[i]));
    }
out:
    ek_filler_destroy(&f);
    return st;
}
