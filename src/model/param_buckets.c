/* Units: sorting weights into them, sharing them out, and their memory. */
#include "model/param_buckets.h"

#include <stdlib.h>
#include <string.h>

enum { BUCKET_BYTES = 32 << 20 };

static size_t real_size(const ek_model *m)
{
    return ek_dtype_size(m->k->real);
}

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/* Elements that a weight takes in its unit. */
static int64_t padded(const ek_model *m, const ek_weight *w)
{
    return round_up(ek_weight_elements(w), EK_ARENA_ALIGN / (int64_t)real_size(m));
}

static int32_t module_index(const ek_model *m, int32_t place)
{
    return place >= 0 ? place + 1 : place == EK_MODULE_EMBED ? 0 : (int32_t)m->spec.layers + 1;
}

void ek_param_buckets_of(const ek_model *m, int32_t place, int32_t *first, int32_t *end)
{
    int32_t i = module_index(m, place);

    *first = m->buckets->first[i];
    *end = m->buckets->first[i + 1];
}

/* --- which weights make a unit ---------------------------------------------------------------- */

static size_t form_bytes(const ek_model *m, const ek_param *p, ek_form form)
{
    if (!p->forms || (form == EK_PACKED_BACKWARD && !m->cfg.trained))
        return 0;
    return m->k->packed_bytes(m->k, p->w->out, p->w->in, form);
}

/* Kernels never read the master itself.  Those of the embedding take rows of it. */
static int packed_alone(const ek_model *m, const ek_param *p)
{
    return p->module != EK_MODULE_EMBED && form_bytes(m, p, EK_PACKED_FORWARD) > 0 &&
           form_bytes(m, p, EK_PACKED_BACKWARD) > 0;
}

/* What weights of one unit have in common, as a number below KEYS. */
enum { KEYS = 4 * 2 * 2 };

static int key_of(const ek_model *m, const ek_param *p)
{
    return ((int)p->share * 2 + packed_alone(m, p)) * 2 + p->trained;
}

/* Whether a weight begins another unit than the one before it, of n elements with it. */
static int begins_bucket(const ek_model *m, const ek_param *p, int32_t slot_before, int64_t n,
                         int64_t bucket)
{
    return n > bucket || (m->cfg.state != NULL && p->slot != slot_before);
}

/* Sorts params [from, to) of one place: numbers their units from `unit` on, and appends them to the
 * order of memory, of which *at entries are set.  Returns the next number. */
static int32_t sort_module(ek_model *m, int64_t from, int64_t to, int32_t bucket, int32_t *at)
{
    int64_t most = m->cfg.bucket_bytes > 0 ? m->cfg.bucket_bytes : BUCKET_BYTES;

    most /= (int64_t)real_size(m);
    for (int key = 0; key < KEYS; key++) {
        int64_t n = 0;
        int32_t slot = -1;

        for (int64_t i = from; i < to; i++) {
            ek_param *p = &m->params[i];
            int64_t more = padded(m, p->w);

            if (key_of(m, p) != key)
                continue;
            if (n > 0 && begins_bucket(m, p, slot, n + more, most)) {
                bucket++;
                n = 0;
            }
            slot = p->slot;
            p->bucket = bucket;
            p->offset = n;
            n += more;
            m->buckets->params[(*at)++] = (int32_t)i;
        }
        if (n > 0)
            bucket++;
    }
    return bucket;
}

static void sort_params(ek_model *m)
{
    ek_param_buckets *us = m->buckets;
    int32_t places = (int32_t)m->spec.layers + 2, at = 0;
    int64_t from = 0;

    for (int32_t i = 0; i < places; i++) {
        int64_t to = from;

        while (to < m->n_params && module_index(m, m->params[to].module) == i)
            to++;
        us->first[i] = us->n;
        us->n = sort_module(m, from, to, us->n, &at);
        from = to;
    }
    us->first[places] = us->n;
}

/* --- who answers for which rows --------------------------------------------------------------- */

static void join_group(const ek_mesh *mesh, ek_param_bucket *u)
{
    switch (u->share) {
    case EK_SHARE_DP:
        u->group = mesh->dp_group;
        u->size = mesh->dp;
        u->rank = mesh->dp_rank;
        break;
    case EK_SHARE_STAGE:
        u->group = mesh->stage;
        u->size = mesh->stage_size;
        u->rank = mesh->at;
        break;
    case EK_SHARE_EDP:
        u->group = mesh->edp_group;
        u->size = mesh->edp;
        u->rank = mesh->edp_rank;
        break;
    case EK_SHARE_NONE:
        u->group = NULL;
        u->size = 1;
        u->rank = 0;
        break;
    }
}

/* The start of a row, or of a weight, that is nearest to element `at` of a unit. */
static int64_t nearest_row(const ek_model *m, const ek_param_bucket *u, int64_t at)
{
    for (int32_t i = 0; i < u->n_params; i++) {
        const ek_param *p = &m->params[u->params[i]];
        int64_t n = ek_weight_elements(p->w), row = p->w->in > 0 ? p->w->in : 1;
        int64_t end = i + 1 < u->n_params ? m->params[u->params[i + 1]].offset : u->n;

        if (at < end) {
            int64_t in = (at - p->offset + row / 2) / row * row;

            return in < n ? p->offset + in : end;
        }
    }
    return u->n;
}

static int64_t overlap(int64_t a, int64_t a_end, int64_t b, int64_t b_end, int64_t *first)
{
    int64_t from = a > b ? a : b, to = a_end < b_end ? a_end : b_end;

    *first = from < to ? from : a;
    return from < to ? to - from : 0;
}

/* What this rank owns and keeps of a weight. */
static void share_weight(const ek_param_bucket *u, ek_param *p)
{
    ek_weight *w = p->w;
    int64_t end = p->offset + ek_weight_elements(w), first;

    w->own = overlap(p->offset, end, u->first[u->rank], u->first[u->rank + 1], &first);
    w->own_first = first - p->offset;
    w->kept = overlap(p->offset, end, u->kept_first, u->kept_first + u->kept, &first);
    w->kept_first = first - p->offset;
    if (p->copy || p->idle)
        w->own_first = w->own = 0;
}

/* The runs of each rank; what this one owns and keeps of each weight. */
static void share_out(ek_model *m, ek_param_bucket *u)
{
    for (int r = 0; r < u->size; r++)
        u->first[r] = nearest_row(m, u, ek_range_first(u->n, u->size, r));
    u->first[0] = 0;
    u->first[u->size] = u->n;
    u->kept_first = u->sharded ? u->first[u->rank] : 0;
    u->kept = u->sharded ? u->first[u->rank + 1] - u->kept_first : u->n;
    for (int32_t i = 0; i < u->n_params; i++)
        share_weight(u, &m->params[u->params[i]]);
}

void ek_param_buckets_set_idle(ek_model *m, int32_t param, int idle)
{
    ek_param *p = &m->params[param];

    p->idle = idle;
    share_weight(&m->buckets->bucket[p->bucket], p);
}

static void fill_bucket(ek_model *m, ek_param_bucket *u, int64_t *runs)
{
    const ek_param *p = &m->params[u->params[0]];
    const ek_param *last = &m->params[u->params[u->n_params - 1]];

    u->module = p->module;
    u->share = p->share;
    u->packed = packed_alone(m, p);
    u->trained = p->trained;
    u->n = last->offset + padded(m, last->w);
    join_group(m->cfg.mesh, u);
    u->sharded = m->cfg.zero > 0 && u->size > 1 && u->trained;
    u->first = runs;
    share_out(m, u);
}

/* --- memory taken in turns -------------------------------------------------------------------- */

ek_set *ek_param_buckets_buffer(const ek_model *m, ek_set_kind kind, int32_t place)
{
    int double_buffered = kind == EK_SET_GRADIENT || kind == EK_SET_MASTER;
    int i = place == EK_MODULE_EMBED  ? EK_SETS - 2
            : place == EK_MODULE_HEAD ? EK_SETS - 1
            : double_buffered         ? m->buckets->buf_idx[place]
                                      : 0;

    return &m->buckets->sets[kind][i];
}

/* Appends `bytes` to a set's use by one place; returns where they start. */
static int64_t put(ek_set *s, int64_t *used, int64_t bytes)
{
    int64_t at = *used;

    *used += round_up(bytes, EK_ARENA_ALIGN);
    if (*used > s->bytes)
        s->bytes = *used;
    return at;
}

/* Where in their sets the units of a place lie, and so how large the sets have to be. */
static void size_sets(ek_model *m, int32_t place)
{
    int64_t used[EK_SET_KINDS] = {0};
    int32_t first, end;

    ek_param_buckets_of(m, place, &first, &end);
    for (int32_t i = first; i < end; i++) {
        ek_param_bucket *u = &m->buckets->bucket[i];
        int64_t bytes = u->n * (int64_t)real_size(m);
        ek_set_kind kind = u->packed ? EK_SET_STAGED : EK_SET_MASTER;

        if (!u->sharded)
            continue;
        if (m->cfg.zero >= 2) {
            u->g_set = ek_param_buckets_buffer(m, EK_SET_GRADIENT, place);
            u->g_at = put(u->g_set, &used[EK_SET_GRADIENT], bytes);
        }
        if (m->cfg.zero == 3) {
            u->p_set = ek_param_buckets_buffer(m, kind, place);
            u->p_at = put(u->p_set, &used[kind], bytes);
        } else if (u->packed) { /* after an update these take turns at two buffers */
            int64_t alone = 0;

            u->p_set = &m->buckets->sets[EK_SET_STAGED][m->buckets->staged++ % 2];
            u->p_at = put(u->p_set, &alone, bytes);
        }
    }
}

/* Points the forms of a unit's weight at memory: in the set of its place, of which `used` bytes
 * are taken, or in the arena. */
static void lay_forms(ek_model *m, const ek_param_bucket *u, ek_param *p, int64_t *used)
{
    void **at[] = {&p->w->forward, &p->w->backward};
    const ek_form forms[] = {EK_PACKED_FORWARD, EK_PACKED_BACKWARD};

    for (int i = 0; i < (m->cfg.trained ? 2 : 1); i++) {
        size_t bytes = form_bytes(m, p, forms[i]);

        if (!p->forms)
            continue;
        if (bytes == 0) {
            *at[i] = p->w->p;
        } else if (u->sharded && m->cfg.zero == 3) {
            ek_set *s = ek_param_buckets_buffer(m, EK_SET_FORM, p->module);
            int64_t in = put(s, used, (int64_t)bytes);

            *at[i] = s->base != NULL ? (char *)s->base + in : NULL;
        } else if (i > 0 && m->k->one_form) {
            *at[i] = *at[0];
        } else {
            *at[i] = ek_arena_alloc(&m->arena, (int64_t)bytes, 1);
        }
    }
}

static void *at(const ek_model *m, void *base, int64_t elements)
{
    return base != NULL ? (char *)base + elements * (int64_t)real_size(m) : NULL;
}

static void *in_set(const ek_set *s, int64_t bytes)
{
    return s != NULL && s->base != NULL ? (char *)s->base + bytes : NULL;
}

static void reserve_bucket(ek_model *m, ek_param_bucket *u)
{
    ek_arena *a = m->cfg.state != NULL ? &m->state : &m->arena;
    size_t real = real_size(m);

    if (m->cfg.state != NULL)
        ek_arena_round(a, m->cfg.state->align);
    u->state_at = m->state.used;
    if (u->p_set != NULL) {
        u->p = in_set(u->p_set, u->p_at);
        u->p_kept = ek_arena_alloc(a, u->kept, real);
    } else {
        u->p = ek_arena_alloc(a, u->n, real);
        u->p_kept = at(m, u->p, u->kept_first);
    }
    if (!m->cfg.trained)
        return;
    if (u->g_set != NULL) {
        u->g = in_set(u->g_set, u->g_at);
        u->g_kept = ek_arena_alloc(a, u->kept, real);
    } else {
        u->g = ek_arena_alloc(a, u->n, real);
        u->g_kept = at(m, u->g, u->kept_first);
    }
    u->m = ek_arena_alloc(a, u->kept, real);
    u->v = ek_arena_alloc(a, u->kept, real);
}

static void point_weight(ek_model *m, const ek_param_bucket *u, ek_param *p)
{
    ek_weight *w = p->w;
    int64_t kept = w->kept > 0 ? p->offset + w->kept_first - u->kept_first : 0;

    w->p = u->sharded && u->packed ? NULL : at(m, u->p, p->offset);
    w->g = at(m, u->g, p->offset);
    w->p_kept = at(m, u->p_kept, kept);
    w->m = at(m, u->m, kept);
    w->v = at(m, u->v, kept);
    p->g_kept = at(m, u->g_kept, kept);
    m->n_elements += u->p_set != NULL ? w->kept : ek_weight_elements(w);
}

size_t ek_param_buckets_module_bytes(const ek_model *m)
{
    size_t bytes = (size_t)(9 * m->spec.hidden * m->local.ff) * real_size(m);
    size_t align = m->cfg.state != NULL ? m->cfg.state->align : 1;

    return (bytes + align - 1) / align * align;
}

/* Room for experts on their way that outlives the process as well. */
static void lay_staging(ek_model *m)
{
    int64_t slots = (m->spec.experts + m->cfg.mesh->ep - 1) / m->cfg.mesh->ep + m->cfg.spare_slots;

    for (int i = 0; i < 2 && m->cfg.state != NULL && m->cfg.state->moves; i++) {
        ek_arena_round(&m->state, m->cfg.state->align);
        m->staging_at[i] = m->state.used;
        m->staging[i] = ek_arena_alloc(&m->state, slots, ek_param_buckets_module_bytes(m));
    }
}

void ek_param_buckets_reserve(ek_model *m)
{
    ek_param_buckets *us = m->buckets;
    int32_t place = EK_MODULE_NONE;
    int64_t used = 0;

    m->n_elements = 0;
    for (int kind = 0; kind < EK_SET_KINDS; kind++)
        for (int i = 0; i < EK_SETS; i++)
            us->sets[kind][i].base = ek_arena_alloc(&m->arena, us->sets[kind][i].bytes, 1);
    for (int32_t i = 0; i < us->n; i++) {
        ek_param_bucket *u = &us->bucket[i];

        if (u->module != place)
            used = 0;
        place = u->module;
        reserve_bucket(m, u);
        for (int32_t j = 0; j < u->n_params; j++) {
            ek_param *p = &m->params[u->params[j]];

            point_weight(m, u, p);
            lay_forms(m, u, p, &used);
        }
    }
    lay_staging(m);
}

ek_status ek_param_buckets_create(ek_model *m)
{
    ek_param_buckets *us = calloc(1, sizeof(*us));
    int64_t runs = m->cfg.mesh->stage_size + 1;
    unsigned char buf_idx = 0;

    EK_REQUIRE(us != NULL, EK_ENOMEM, "no memory for a model");
    m->buckets = us;
    us->first = calloc((size_t)m->spec.layers + 3, sizeof(*us->first));
    us->params = calloc((size_t)m->n_params + 1, sizeof(*us->params));
    EK_REQUIRE(us->first != NULL && us->params != NULL, EK_ENOMEM, "no memory for %lld weights",
               (long long)m->n_params);
    for (int64_t l = 0; l < m->spec.layers; l++)
        if (ek_model_has_layer(m, l)) {
            us->buf_idx[l] = buf_idx;
            buf_idx = !buf_idx;
        }
    sort_params(m);
    us->bucket = calloc((size_t)us->n + 1, sizeof(*us->bucket));
    us->runs = calloc((size_t)(us->n * runs) + 1, sizeof(*us->runs));
    us->deps = calloc((size_t)us->n + 4, sizeof(*us->deps));
    EK_REQUIRE(us->bucket != NULL && us->runs != NULL && us->deps != NULL, EK_ENOMEM,
               "no memory for the runs of %lld weights", (long long)m->n_params);
    for (int64_t i = 0; i < m->n_params; i++) {
        ek_param_bucket *u = &us->bucket[m->params[us->params[i]].bucket];

        if (u->n_params++ == 0)
            u->params = &us->params[i];
    }
    for (int32_t i = 0; i < us->n; i++)
        fill_bucket(m, &us->bucket[i], &us->runs[i * runs]);
    size_sets(m, EK_MODULE_EMBED);
    for (int32_t l = 0; l < (int32_t)m->spec.layers; l++)
        size_sets(m, l);
    size_sets(m, EK_MODULE_HEAD);
    return EK_OK;
}

void ek_param_buckets_destroy(ek_param_buckets **pus)
{
    ek_param_buckets *us = *pus;

    if (us == NULL)
        return;
    free(us->bucket);
    free(us->first);
    free(us->params);
    free(us->runs);
    free(us->deps);
    free(us);
    *pus = NULL;
}
