/* kept_numbers.h - the master weights and moments that each rank keeps, by tensor and element, and
 * a record of them for bitwise comparison with other ranks and other layouts. */
#ifndef KEPT_NUMBERS_H
#define KEPT_NUMBERS_H

#include "ek_test.h"
#include "model/hf/weights.h"
#include "model/model.h"
#include "model/offload.h"

#include <pthread.h>

enum { KEPT_KINDS = 3 }; /* master and two moments */

/* Element `index` of tensor number `tensor`; at[kind] is where the rank keeps it. */
typedef void (*kept_fn)(void *context, const ek_hf_tensor *t, int64_t tensor, int64_t index,
                        void *const *at);

static inline void kept_each(ek_model *m, kept_fn f, void *context)
{
    int64_t size = (int64_t)ek_dtype_size(m->k->real);

    for (int64_t i = 0; i < ek_hf_count(&m->spec); i++) {
        const ek_param_bucket *on_disk;
        ek_hf_tensor t;
        ek_span s;

        ek_hf_tensor_at(&m->spec, i, &t);
        if (!ek_model_span(m, &t, &s))
            continue;
        on_disk = ek_offload_bucket_of(m, s.w, t.layer, t.expert);
        if (on_disk != NULL)
            CHECK(ek_offload_load(m, on_disk, EK_PART_STATE) == EK_OK);
        for (int64_t e = 0; e < s.rows * s.cols; e++) {
            int64_t row = s.row + e / s.cols, col = s.col + e % s.cols;
            int64_t at = s.first + e / s.cols * s.ld + e % s.cols - s.w->kept_first;
            void *const arrays[KEPT_KINDS] = {(char *)s.w->p_kept + at * size,
                                              (char *)s.w->m + at * size,
                                              (char *)s.w->v + at * size};

            if (at >= 0 && at < s.w->kept)
                f(context, &t, i, row * (t.dims > 1 ? t.shape[1] : 1) + col, arrays);
        }
    }
}

/* Numbers of all ranks of a layout.  Where several ranks keep a number, its bits are equal. */
typedef struct {
    pthread_mutex_t mutex;
    int64_t elements;    /* of the whole model */
    int64_t *first;      /* [tensors + 1] */
    double *number;      /* [elements, KEPT_KINDS] */
    unsigned char *seen; /* [elements] 0: not known, 1: kept by a rank, 2: of the layout before */
    int64_t differ;      /* count of numbers with different bits */
    char where[160];     /* the first of them */
} kept_record;

static inline void kept_open(kept_record *r, const ek_model_spec *spec)
{
    int64_t n = ek_hf_count(spec);

    memset(r, 0, sizeof(*r));
    pthread_mutex_init(&r->mutex, NULL);
    r->first = calloc((size_t)n + 1, sizeof(*r->first));
    for (int64_t i = 0; i < n; i++) {
        ek_hf_tensor t;

        ek_hf_tensor_at(spec, i, &t);
        r->first[i + 1] = r->first[i] + t.shape[0] * (t.dims > 1 ? t.shape[1] : 1);
    }
    r->elements = r->first[n];
    r->number = calloc((size_t)(r->elements * KEPT_KINDS), sizeof(*r->number));
    r->seen = calloc((size_t)r->elements, 1);
}

static inline void kept_close(kept_record *r)
{
    pthread_mutex_destroy(&r->mutex);
    free(r->first);
    free(r->number);
    free(r->seen);
}

typedef struct {
    kept_record *r;
    size_t size; /* of a number as it is kept */
} kept_visit;

static inline void kept_meet(void *context, const ek_hf_tensor *t, int64_t tensor, int64_t index,
                             void *const *at)
{
    const kept_visit *v = context;
    kept_record *r = v->r;
    int64_t e = r->first[tensor] + index;

    for (int kind = 0; kind < KEPT_KINDS; kind++) {
        double *kept = &r->number[e * KEPT_KINDS + kind];

        if (!r->seen[e])
            memcpy(kept, at[kind], v->size);
        else if (memcmp(kept, at[kind], v->size) != 0 && r->differ++ == 0)
            snprintf(r->where, sizeof(r->where), "element %lld of %s%s", (long long)index, t->name,
                     kind == 0   ? ""
                     : kind == 1 ? ", first moment"
                                 : ", second moment");
    }
    r->seen[e] = 1;
}

/* Records the numbers of m, or compares them with those recorded before.  From any thread. */
static inline void kept_enter(kept_record *r, ek_model *m)
{
    kept_visit v = {r, ek_dtype_size(m->k->real)};

    pthread_mutex_lock(&r->mutex);
    kept_each(m, kept_meet, &v);
    pthread_mutex_unlock(&r->mutex);
}

/* From now on numbers are compared with those of the layout before. */
static inline void kept_turn(kept_record *r)
{
    r->differ = 0;
    memset(r->seen, 2, (size_t)r->elements);
}

/* Count of numbers that no rank of the layout has recorded. */
static inline int64_t kept_missing(const kept_record *r)
{
    int64_t n = 0;

    for (int64_t e = 0; e < r->elements; e++)
        n += r->seen[e] != 1;
    return n;
}

#endif
