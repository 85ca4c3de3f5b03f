/* Fills weights in jobs of a few rows of one weight, which threads take one after another.  A job
 * reads the tensors that its rows come from (an expert's gate and up, say). */
#include "model/hf/fill.h"

#include "base/team.h"
#include "model/hf/weights.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum {
    JOB_ELEMENTS = 1 << 18, /* about: the float rows of a job stay in L2 */
    AHEAD = 64              /* jobs whose values are fetched before their turn */
};

/* A tensor's part in a weight. */
typedef struct {
    int64_t tensor; /* number, for ek_hf_tensor_at */
    ek_span span;
} source_part;

/* Rows [row, row + rows) of one weight, from parts [first, first + n). */
typedef struct {
    const source_part *parts;
    int64_t n, row, rows;
} fill_job;

typedef struct {
    ek_model *m;
    const ek_value_source *from;
    const ek_weight_array *array;
    source_part *parts; /* by weight, then by position in it */
    int64_t n_parts;
    fill_job *jobs;
    int64_t n_jobs, tile; /* tile: elements of the largest job that is packed */
    int64_t done, all;    /* elements */
    ek_team_failure failure;
} filling;

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

/* The rows of a weight that get values here. */
static ek_status rows_of(const filling *f, const source_part *p, int64_t n, int64_t *row,
                         int64_t *end)
{
    const ek_weight *w = p->span.w;
    int64_t width = width_of(w);

    *row = *end = 0;
    if (packed_only(f, w)) {
        *end = w->out;
    } else if (ek_weight_kept(w, f->array) != NULL && w->kept > 0) {
        *row = w->kept_first / width;
        *end = *row + w->kept / width;
        EK_REQUIRE(w->kept_first % width == 0 && w->kept % width == 0, EK_EINTERNAL,
                   "the range of %lld elements from %lld is not whole rows of %lld",
                   (long long)w->kept, (long long)w->kept_first, (long long)width);
    }
    for (int64_t i = 0; i < n; i++) {
        const ek_span *s = &p[i].span;

        EK_REQUIRE(s->ld == width && s->cols == width && s->first % width == 0, EK_EINTERNAL,
                   "tensor %lld is not whole rows of its weight", (long long)p[i].tensor);
    }
    return EK_OK;
}

/* Rows of a job: whole panels where they are packed. */
static int64_t job_rows(const filling *f, const ek_weight *w)
{
    int64_t unit = packed_only(f, w) ? f->m->k->panel_rows : 1;
    int64_t units = JOB_ELEMENTS / (width_of(w) * unit);

    return unit * (units > 0 ? units : 1);
}

/* Cuts the rows of one weight into jobs; counts them if there is no list yet. */
static ek_status add_weight(filling *f, const source_part *parts, int64_t n)
{
    const ek_weight *w = parts->span.w;
    int64_t row, end, most = job_rows(f, w);

    EK_TRY(rows_of(f, parts, n, &row, &end));
    for (; row < end; row += most) {
        int64_t rows = end - row < most ? end - row : most, elements = rows * width_of(w);

        if (packed_only(f, w) && elements > f->tile)
            f->tile = elements;
        if (f->jobs != NULL) {
            f->jobs[f->n_jobs] = (fill_job){parts, n, row, rows};
            f->all += elements;
        }
        f->n_jobs++;
    }
    return EK_OK;
}

/* Roughly the order in files. */
static int by_tensor(const void *a, const void *b)
{
    const fill_job *x = a, *y = b;

    if (x->parts->tensor != y->parts->tensor)
        return x->parts->tensor < y->parts->tensor ? -1 : 1;
    return (x->row > y->row) - (x->row < y->row);
}

static ek_status list_jobs(filling *f)
{
    f->n_jobs = 0;
    for (int64_t i = 0, end; i < f->n_parts; i = end) {
        for (end = i + 1; end < f->n_parts && f->parts[end].span.w == f->parts[i].span.w;)
            end++;
        EK_TRY(add_weight(f, &f->parts[i], end - i));
    }
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

static void prefetch_rows(const filling *f, const fill_job *j)
{
    ek_hf_tensor t;
    ek_tensor_slice slice;
    int64_t row;

    for (int64_t i = 0; f->from->prefetch != NULL && i < j->n; i++)
        if (slice_of(f, j, i, &t, &slice, &row))
            f->from->prefetch(f->from->context, &t, f->array, &slice);
}

/* Reads a job's rows to dst, dense. */
static ek_status read_rows(const filling *f, const fill_job *j, char *dst)
{
    int64_t width = width_of(j->parts->span.w), rows = 0, row;
    int64_t size = (int64_t)ek_dtype_size(f->m->k->real);

    for (int64_t i = 0; i < j->n; i++) {
        ek_tensor_slice slice;
        ek_hf_tensor t;

        if (!slice_of(f, j, i, &t, &slice, &row))
            continue;
        EK_TRY(
            f->from->read(f->from->context, &t, f->array, &slice, dst + row * width * size, width));
        rows += slice.rows;
    }
    EK_REQUIRE(rows == j->rows, EK_EINTERNAL, "%lld of %lld rows of a weight belong to no tensor",
               (long long)(j->rows - rows), (long long)j->rows);
    return EK_OK;
}

static ek_status run_job(const filling *f, const fill_job *j, void *tile)
{
    const ek_kernels *k = f->m->k;
    const ek_weight *w = j->parts->span.w;
    char *kept = ek_weight_kept(w, f->array);
    int64_t at = j->row * width_of(w) - w->kept_first;

    if (!packed_only(f, w))
        return read_rows(f, j, kept + at * (int64_t)ek_dtype_size(k->real));
    EK_TRY(read_rows(f, j, tile));
    return k->pack(k, j->rows, w->in, EK_PACKED_FORWARD, tile,
                   (char *)w->forward + k->packed_bytes(k, j->row, w->in, EK_PACKED_FORWARD));
}

static size_t tile_bytes(const filling *f)
{
    return (size_t)f->tile * ek_dtype_size(f->m->k->real) + EK_ARENA_ALIGN;
}

/* A thread's buffer, in memory that kernels can read. */
static ek_status tile_alloc(const filling *f, void **out)
{
    const ek_memory *from = f->m->k->memory;

    *out = NULL;
    if (from != NULL)
        return from->alloc(from, tile_bytes(f), "values of weights", out);
    *out = aligned_alloc(EK_ARENA_ALIGN, tile_bytes(f) / EK_ARENA_ALIGN * EK_ARENA_ALIGN);
    EK_REQUIRE(*out != NULL, EK_ENOMEM, "no memory for %lld values of weights", (long long)f->tile);
    return EK_OK;
}

static void tile_free(const filling *f, void *tile)
{
    const ek_memory *from = f->m->k->memory;

    if (from != NULL && tile != NULL)
        from->free(from, tile, tile_bytes(f));
    else
        free(tile);
}

static void count_done(filling *f, const fill_job *j)
{
    int64_t done;

#pragma omp atomic capture
    {
        f->done += j->rows * width_of(j->parts->span.w);
        done = f->done;
    }
    if (f->from->progress.function != NULL && omp_get_thread_num() == 0)
        f->from->progress.function(f->from->progress.context, done, f->all);
}

/* A job fails alone, but the rest of them is then skipped. */
static ek_status run_jobs(filling *f)
{
    int threads = f->m->k->memory != NULL ? 1 : f->m->k->threads;

#pragma omp parallel num_threads(threads)
    {
        void *tile;
        ek_status st = tile_alloc(f, &tile);

        if (st < 0)
            ek_team_record(&f->failure, 0, st);
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < f->n_jobs; i++) {
            if (ek_team_has_failed(&f->failure))
                continue;
            if (i + AHEAD < f->n_jobs)
                prefetch_rows(f, &f->jobs[i + AHEAD]);
            st = run_job(f, &f->jobs[i], tile);
            if (st < 0)
                ek_team_record(&f->failure, i, st);
            count_done(f, &f->jobs[i]);
        }
        tile_free(f, tile);
    }
    if (f->failure.index < 0 && f->from->progress.function != NULL)
        f->from->progress.function(f->from->progress.context, f->all, f->all);
    return ek_team_result(&f->failure);
}

static ek_status fill_array(ek_model *m, const ek_weight_array *array, const ek_value_source *from)
{
    filling f = {.m = m, .from = from, .array = array, .failure.index = -1};
    ek_status st = EK_OK;

    EK_TRY_OUT(list_parts(&f));
    EK_TRY_OUT(list_jobs(&f));
    f.jobs = calloc((size_t)f.n_jobs + 1, sizeof(*f.jobs));
    EK_REQUIRE_OUT(f.jobs != NULL, EK_ENOMEM, "no memory to read %lld weights",
                   (long long)f.n_parts);
    EK_TRY_OUT(list_jobs(&f));
    qsort(f.jobs, (size_t)f.n_jobs, sizeof(*f.jobs), by_tensor);
    EK_TRY_OUT(run_jobs(&f));
out:
    free(f.parts);
    free(f.jobs);
    return st;
}

ek_status ek_model_fill(ek_model *m, ek_weight_arrays part, const ek_value_source *from)
{
    int n;
    const ek_weight_array *arrays = ek_weight_arrays_of(part, &n);

    for (int i = 0; i < n; i++)
        EK_TRY(fill_array(m, &arrays[i], from));
    return EK_OK;
}
