/* Parameter buckets: assignment of weights, ownership ranges, and memory. */
#include "model/param_buckets.h"

#include <stdlib.h>
#include <string.h>

enum {
    BUCKET_BYTES = 32 << 20,
    /* of whole experts, on disk: read fast, with three times as much of moments, and a few of them
     * need little memory.  The same in memory where several ranks hold them, so that sums over
     * these are in the same order */
    EXPERT_BUCKET_BYTES = 16 << 20
};

static size_t real_size(const ek_model *m)
{
    return ek_dtype_size(m->k->real);
}

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/* Elements that a weight occupies in its bucket. */
static int64_t padded_elements(const ek_model *m, const ek_weight *w)
{
    return round_up(ek_weight_elements(w), EK_ARENA_ALIGN / (int64_t)real_size(m));
}

static int32_t module_index(const ek_model *m, int32_t module)
{
    return module >= 0 ? module + 1 : module == EK_MODULE_EMBED ? 0 : (int32_t)m->spec.layers + 1;
}

void ek_param_buckets_of(const ek_model *m, int32_t module, int32_t *first, int32_t *end)
{
    int32_t i = module_index(m, module);

    *first = m->buckets->first[i];
    *end = m->buckets->first[i + 1];
}

/* --- assignment of weights to buckets --------------------------------------------------------- */

static size_t form_bytes(const ek_model *m, const ek_param *p, ek_form form)
{
    if (!p->forms || (form == EK_PACKED_BACKWARD && !m->cfg.trained))
        return 0;
    return m->k->packed_bytes(m->k, p->w->out, p->w->in, form);
}

/* Whether kernels read only packed forms, never the master.  The embedding's rows are read. */
static int packed_alone(const ek_model *m, const ek_param *p)
{
    return p->module != EK_MODULE_EMBED && form_bytes(m, p, EK_PACKED_FORWARD) > 0 &&
           (!m->cfg.trained || form_bytes(m, p, EK_PACKED_BACKWARD) > 0);
}

/* Weights of one bucket have the same key, a number below KEYS. */
enum { KEYS = 4 * 2 * 2 };

static int key_of(const ek_model *m, const ek_param *p)
{
    return ((int)p->share * 2 + packed_alone(m, p)) * 2 + p->trained;
}

static int is_offloaded(const ek_model *m, const ek_param *p)
{
    return m->cfg.offload != NULL && p->slot >= 0;
}

/* Whether a weight is in a bucket of whole experts. */
static int is_of_expert(const ek_model *m, const ek_param *p)
{
    return is_offloaded(m, p) || (m->cfg.trained && p->slot >= 0 && m->cfg.mesh->edp > 1);
}

/* Whether an expert may migrate to any slot, so that all of them are cut alike over the ranks of
 * their group, and summed over it in the same order. */
static int keeps_slots_alike(const ek_model *m)
{
    return m->cfg.migrates && m->cfg.mesh->edp > 1 && (m->cfg.zero > 0 || m->cfg.persistent_slots);
}

/* Whether a weight starts a new bucket; n: elements of the current one with it. */
static int starts_bucket(const ek_model *m, const ek_param *p, int32_t slot_before, int64_t n,
                         int64_t bucket)
{
    const ek_model_config *c = &m->cfg;

    if (p->slot == slot_before)
        return n > bucket && !is_of_expert(m, p);
    return n > bucket || c->state != NULL || c->slot_buckets || keeps_slots_alike(m);
}

/* Elements that come into a bucket with param i, of those before `to`. */
static int64_t elements_with(const ek_model *m, int64_t i, int64_t to)
{
    const ek_param *p = &m->params[i];
    int64_t n = padded_elements(m, p->w);

    while (is_of_expert(m, p) && ++i < to && m->params[i].slot == p->slot)
        n += padded_elements(m, m->params[i].w);
    return n;
}

int64_t ek_param_bucket_room(const ek_model *m, int experts)
{
    int64_t bytes = m->cfg.bucket_bytes > 0 ? m->cfg.bucket_bytes
                    : experts               ? EXPERT_BUCKET_BYTES
                                            : BUCKET_BYTES;

    return bytes / (int64_t)real_size(m);
}

/* Sorts params [from, to) of one module into buckets, numbered from `bucket` on, and appends them
 * to the memory order, of which *at entries are set.  Returns the next bucket number. */
static int32_t sort_module(ek_model *m, int64_t from, int64_t to, int32_t bucket, int32_t *at)
{
    for (int key = 0; key < KEYS; key++) {
        int64_t n = 0;
        int32_t slot = -1;

        for (int64_t i = from; i < to; i++) {
            ek_param *p = &m->params[i];
            int64_t more = padded_elements(m, p->w);
            int64_t most = ek_param_bucket_room(m, is_of_expert(m, p));

            if (key_of(m, p) != key)
                continue;
            if (n > 0 && starts_bucket(m, p, slot, n + elements_with(m, i, to), most)) {
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
    int32_t modules = (int32_t)m->spec.layers + 2, at = 0;
    int64_t from = 0;

    for (int32_t i = 0; i < modules; i++) {
        int64_t to = from;

        while (to < m->n_params && module_index(m, m->params[to].module) == i)
            to++;
        us->first[i] = us->n;
        us->n = sort_module(m, from, to, us->n, &at);
        from = to;
    }
    us->first[modules] = us->n;
}

/* --- ownership ranges ------------------------------------------------------------------------- */

static void set_group(const ek_mesh *mesh, ek_param_bucket *u)
{
    switch (u->share) {
    case EK_SHARE_DP:
        u->group = mesh->dp_group;
        u->mesh_group = EK_MESH_DP;
        u->size = mesh->dp;
        u->rank = mesh->dp_rank;
        break;
    case EK_SHARE_STAGE:
        u->group = mesh->stage;
        u->mesh_group = EK_MESH_STAGE;
        u->size = mesh->stage_size;
        u->rank = mesh->at;
        break;
    case EK_SHARE_EDP:
        u->group = mesh->edp_group;
        u->mesh_group = EK_MESH_EDP;
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

/* The start of a row, or of a weight, nearest to element `at` of a bucket.  *from: the weight to
 * begin with, 0 at first; as `at` ascends, that of the call before. */
static int64_t nearest_row(const ek_model *m, const ek_param_bucket *u, int64_t at, int32_t *from)
{
    for (; *from < u->n_params; ++*from) {
        const ek_param *p = &m->params[u->params[*from]];
        int64_t n = ek_weight_elements(p->w), row = p->w->in > 0 ? p->w->in : 1;
        int64_t end = *from + 1 < u->n_params ? m->params[u->params[*from + 1]].offset : u->n;

        if (at < end) {
            int64_t in = (at - p->offset + row / 2) / row * row;

            return in < n ? p->offset + in : end;
        }
    }
    return u->n;
}

static int64_t range_overlap(int64_t a, int64_t a_end, int64_t b, int64_t b_end, int64_t *first)
{
    int64_t from = a > b ? a : b, to = a_end < b_end ? a_end : b_end;

    *first = from < to ? from : a;
    return from < to ? to - from : 0;
}

int64_t ek_param_owned_by(const ek_param_bucket *u, const ek_param *p, int rank, int64_t *first)
{
    int64_t end = p->offset + ek_weight_elements(p->w), at;
    int64_t n = range_overlap(p->offset, end, u->first[rank], u->first[rank + 1], &at);

    *first = at - p->offset;
    return n;
}

/* Sets the ranges of a weight that this rank owns and keeps. */
static void set_weight_ranges(const ek_param_bucket *u, ek_param *p)
{
    ek_weight *w = p->w;
    int64_t end = p->offset + ek_weight_elements(w), first;

    w->own = ek_param_owned_by(u, p, u->rank, &w->own_first);
    w->kept = range_overlap(p->offset, end, u->kept_first, u->kept_first + u->kept, &first);
    w->kept_first = first - p->offset;
    if (p->copy || p->idle)
        w->own_first = w->own = 0;
}

/* Cuts a bucket at rows into a range for each rank. */
static void cut_ranges(const ek_model *m, const ek_param_bucket *u, int64_t *first)
{
    int32_t from = 0;

    for (int r = 0; r < u->size; r++)
        first[r] = nearest_row(m, u, ek_range_first(u->n, u->size, r), &from);
    first[0] = 0;
    first[u->size] = u->n;
}

/* Whether the weights of two buckets have the same sizes, so that they are cut alike. */
static int are_cut_alike(const ek_model *m, const ek_param_bucket *a, const ek_param_bucket *b)
{
    int alike = a->size == b->size && a->n == b->n && a->n_params == b->n_params;

    for (int32_t i = 0; i < a->n_params && alike; i++) {
        const ek_param *p = &m->params[a->params[i]], *q = &m->params[b->params[i]];

        alike = p->offset == q->offset && p->w->out == q->w->out && p->w->in == q->w->in;
    }
    return alike;
}

/* A bucket before the i-th that is cut alike: its neighbour, or the one in its place in the module
 * before; NULL: neither is. */
static const ek_param_bucket *find_alike(const ek_model *m, int32_t i)
{
    const ek_param_buckets *us = m->buckets;
    int32_t at = module_index(m, us->bucket[i].module), before = at > 0 ? us->first[at - 1] : 0;
    int32_t place = i - us->first[at] + before;

    if (i > 0 && are_cut_alike(m, &us->bucket[i - 1], &us->bucket[i]))
        return &us->bucket[i - 1];
    if (place < us->first[at] && are_cut_alike(m, &us->bucket[place], &us->bucket[i]))
        return &us->bucket[place];
    return NULL;
}

/* Sets the ranges of each rank, and those that this rank owns and keeps of each weight.  Buckets
 * that are cut alike share them. */
static ek_status set_ranges(ek_model *m)
{
    ek_param_buckets *us = m->buckets;
    int64_t *at, n = 0;

    for (int32_t i = 0; i < us->n; i++)
        n += find_alike(m, i) == NULL ? us->bucket[i].size + 1 : 0;
    us->ranges = calloc((size_t)n + 1, sizeof(*us->ranges));
    EK_REQUIRE(us->ranges != NULL, EK_ENOMEM, "no memory for the ranges of %d buckets", (int)us->n);
    at = us->ranges;
    for (int32_t i = 0; i < us->n; i++) {
        const ek_param_bucket *alike = find_alike(m, i);
        ek_param_bucket *u = &us->bucket[i];

        u->first = alike != NULL ? alike->first : at;
        if (alike == NULL) {
            cut_ranges(m, u, at);
            at += u->size + 1;
        }
        u->kept_first = u->sharded ? u->first[u->rank] : 0;
        u->kept = u->sharded ? u->first[u->rank + 1] - u->kept_first : u->n;
        for (int32_t j = 0; j < u->n_params; j++)
            set_weight_ranges(u, &m->params[u->params[j]]);
    }
    return EK_OK;
}

void ek_param_buckets_set_idle(ek_model *m, int32_t param, int idle)
{
    ek_param *p = &m->params[param];

    p->idle = idle;
    set_weight_ranges(&m->buckets->bucket[p->bucket], p);
}

/* *offloaded: how many buckets before it are. */
static void fill_bucket(const ek_model *m, ek_param_bucket *u, int32_t *offloaded)
{
    const ek_param *p = &m->params[u->params[0]];
    const ek_param *last = &m->params[u->params[u->n_params - 1]];

    u->module = p->module;
    u->share = p->share;
    u->packed = packed_alone(m, p);
    u->trained = p->trained;
    u->n = last->offset + padded_elements(m, last->w);
    set_group(m->cfg.mesh, u);
    u->sharded = m->cfg.zero > 0 && u->size > 1 && u->trained;
    u->offloaded = is_offloaded(m, p) ? *offloaded : -1;
    *offloaded += u->offloaded >= 0;
}

int ek_param_bucket_has_gradients_on_disk(const ek_model *m, const ek_param_bucket *u)
{
    return u->offloaded >= 0 && m->cfg.offload->gradients;
}

/* --- shared buffers --------------------------------------------------------------------------- */

ek_module_buffer *ek_param_buckets_buffer(const ek_model *m, ek_module_buffer_kind kind,
                                          int32_t module)
{
    int double_buffered = kind == EK_BUFFER_GRADIENT || kind == EK_BUFFER_MASTER;
    int i = module == EK_MODULE_EMBED  ? EK_BUFFERS - 2
            : module == EK_MODULE_HEAD ? EK_BUFFERS - 1
            : double_buffered          ? m->buckets->buf_idx[module]
                                       : 0;

    return &m->buckets->sets[kind][i];
}

/* Reserves `bytes` of a shared buffer for one module; returns their offset. */
static int64_t reserve_in_buffer(ek_module_buffer *s, int64_t *used, int64_t bytes)
{
    int64_t at = *used;

    *used += round_up(bytes, EK_ARENA_ALIGN);
    if (*used > s->bytes)
        s->bytes = *used;
    return at;
}

/* Places a module's buckets in the shared buffers, and grows those. */
static void size_buffers(ek_model *m, int32_t module)
{
    int64_t used[EK_BUFFER_KINDS] = {0};
    int32_t first, end;

    ek_param_buckets_of(m, module, &first, &end);
    for (int32_t i = first; i < end; i++) {
        ek_param_bucket *u = &m->buckets->bucket[i];
        int64_t bytes = u->n * (int64_t)real_size(m);
        ek_module_buffer_kind kind = u->packed ? EK_BUFFER_STAGED : EK_BUFFER_MASTER;

        if (!u->sharded)
            continue;
        if (m->cfg.zero >= 2 && !ek_param_bucket_has_gradients_on_disk(m, u)) {
            u->g_set = ek_param_buckets_buffer(m, EK_BUFFER_GRADIENT, module);
            u->g_at = reserve_in_buffer(u->g_set, &used[EK_BUFFER_GRADIENT], bytes);
        }
        if (u->offloaded >= 0)
            continue; /* gathered into the entries of model/offload.h */
        if (m->cfg.zero == 3) {
            u->p_set = ek_param_buckets_buffer(m, kind, module);
            u->p_at = reserve_in_buffer(u->p_set, &used[kind], bytes);
        } else if (u->packed) { /* gathered after an update, alternating between two buffers */
            int64_t alone = 0;

            u->p_set = &m->buckets->sets[EK_BUFFER_STAGED][m->buckets->staged++ % 2];
            u->p_at = reserve_in_buffer(u->p_set, &alone, bytes);
        }
    }
}

/* Sets the memory of a weight's packed forms: in its module's shared buffer, of which `used` bytes
 * are taken, or in the arena. */
static void reserve_forms(ek_model *m, const ek_param_bucket *u, ek_param *p, int64_t *used)
{
    void **at[] = {&p->w->forward, &p->w->backward};
    const ek_form forms[] = {EK_PACKED_FORWARD, EK_PACKED_BACKWARD};

    for (int i = 0; i < (m->cfg.trained ? 2 : 1); i++) {
        size_t bytes = form_bytes(m, p, forms[i]);

        if (!p->forms || u->offloaded >= 0 || (m->cfg.experts_elsewhere && p->slot >= 0))
            continue;
        if (bytes == 0) {
            *at[i] = p->w->p;
        } else if (u->sharded && m->cfg.zero == 3) {
            ek_module_buffer *s = ek_param_buckets_buffer(m, EK_BUFFER_PACKED, p->module);
            int64_t in = reserve_in_buffer(s, used, (int64_t)bytes);

            *at[i] = s->base != NULL ? (char *)s->base + in : NULL;
        } else if (i > 0 && m->k->one_form) {
            *at[i] = *at[0];
        } else {
            *at[i] = ek_arena_alloc(&m->arena, (int64_t)bytes, 1);
        }
    }
}

static void *element_at(const ek_model *m, void *base, int64_t elements)
{
    return base != NULL ? (char *)base + elements * (int64_t)real_size(m) : NULL;
}

static void *in_buffer(const ek_module_buffer *s, int64_t bytes)
{
    return s != NULL && s->base != NULL ? (char *)s->base + bytes : NULL;
}

static void reserve_gradients(ek_model *m, ek_param_bucket *u, ek_arena *a)
{
    if (u->g_set != NULL) {
        u->g = in_buffer(u->g_set, u->g_at);
        u->g_kept = ek_arena_alloc(a, u->kept, real_size(m));
    } else {
        u->g = ek_arena_alloc(a, u->n, real_size(m));
        u->g_kept = element_at(m, u->g, u->kept_first);
    }
}

static void reserve_bucket(ek_model *m, ek_param_bucket *u)
{
    ek_arena *a = m->cfg.state != NULL ? &m->state : &m->arena;
    size_t real = real_size(m);

    if (m->cfg.state != NULL)
        ek_arena_round(a, m->cfg.state->align);
    u->state_at = m->state.used;
    if (!m->cfg.trained && (u->packed || (m->cfg.experts_elsewhere && u->share == EK_SHARE_EDP)))
        return; /* no master */
    if (ek_param_bucket_has_gradients_on_disk(m, u))
        return; /* all is in the entries of model/offload.h */
    if (u->offloaded >= 0) {
        reserve_gradients(m, u, a);
        return;
    }
    if (u->p_set != NULL) {
        u->p = in_buffer(u->p_set, u->p_at);
        u->p_kept = ek_arena_alloc(a, u->kept, real);
    } else {
        u->p = ek_arena_alloc(a, u->n, real);
        u->p_kept = element_at(m, u->p, u->kept_first);
    }
    if (!m->cfg.trained)
        return;
    reserve_gradients(m, u, a);
    u->m = ek_arena_alloc(a, u->kept, real);
    u->v = ek_arena_alloc(a, u->kept, real);
    ek_param_bucket_reserve_copies(m, u, a);
}

static void point_weight(ek_model *m, const ek_param_bucket *u, ek_param *p)
{
    ek_weight *w = p->w;
    int64_t kept = w->kept > 0 ? p->offset + w->kept_first - u->kept_first : 0;

    w->p = u->sharded && u->packed ? NULL : element_at(m, u->p, p->offset);
    w->g = element_at(m, u->g, p->offset);
    w->p_kept = element_at(m, u->p_kept, kept);
    w->m = element_at(m, u->m, kept);
    w->v = element_at(m, u->v, kept);
    p->g_kept = element_at(m, u->g_kept, kept);
}

size_t ek_param_bucket_form_bytes(const ek_model *m, const ek_param_bucket *u, ek_form form)
{
    size_t used = 0;

    if (form == EK_PACKED_BACKWARD && m->k->one_form)
        return 0;
    for (int32_t i = 0; i < u->n_params; i++) {
        const ek_param *p = &m->params[u->params[i]];

        used += p->forms ? (size_t)round_up((int64_t)form_bytes(m, p, form), EK_ARENA_ALIGN) : 0;
    }
    return used;
}

/* Points the bucket's weights to packed forms of one direction. */
static void point_forms(const ek_model *m, const ek_param_bucket *u, ek_form form,
                        unsigned char *base)
{
    for (int32_t i = 0; i < u->n_params; i++) {
        const ek_param *p = &m->params[u->params[i]];
        void **at = form == EK_PACKED_FORWARD ? &p->w->forward : &p->w->backward;
        int64_t bytes = p->forms ? (int64_t)form_bytes(m, p, form) : 0;

        if (!p->forms)
            continue;
        *at = bytes == 0 ? p->w->p : base;
        if (base != NULL)
            base += round_up(bytes, EK_ARENA_ALIGN);
    }
}

void ek_param_bucket_attach(ek_model *m, ek_param_bucket *u, const ek_bucket_memory *at)
{
    if (at->gradients != NULL)
        u->g_kept = at->gradients;
    if (at->whole_gradients != NULL)
        u->g = at->whole_gradients;
    u->p_kept = at->masters;
    u->p = u->sharded ? at->whole : at->masters;
    u->m = at->first_moments;
    u->v = at->second_moments;
    for (int32_t i = 0; i < u->n_params; i++)
        point_weight(m, u, &m->params[u->params[i]]);
}

void ek_param_bucket_attach_forms(const ek_model *m, const ek_param_bucket *u, void *const forms[2])
{
    point_forms(m, u, EK_PACKED_FORWARD, forms[0]);
    point_forms(m, u, EK_PACKED_BACKWARD, forms[m->k->one_form ? 0 : 1]);
}

int ek_param_buckets_sends_whole_masters(const ek_model *m)
{
    return m->cfg.zero > 0 && m->cfg.zero < 3 && m->cfg.mesh->edp > 1;
}

/* Numbers of an expert, and of them those that this rank keeps; the same in all of its slots. */
static int64_t expert_numbers(const ek_model *m, int64_t *kept)
{
    int64_t whole = 3 * m->spec.hidden * m->local.ff;

    *kept = whole;
    for (int64_t i = 0; i + 1 < m->n_params && m->cfg.zero > 0; i++)
        if (m->params[i].slot >= 0) {
            *kept = m->params[i].w->kept + m->params[i + 1].w->kept;
            break;
        }
    return whole;
}

size_t ek_param_buckets_staging_bytes(const ek_model *m)
{
    int64_t kept, whole = expert_numbers(m, &kept);
    int64_t masters = ek_param_buckets_sends_whole_masters(m) ? whole : kept;
    size_t bytes = (size_t)(masters + 2 * kept) * real_size(m);
    size_t align = m->cfg.state != NULL ? m->cfg.state->align : 1;

    return (bytes + align - 1) / align * align;
}

int32_t ek_param_buckets_staging_slots(const ek_model *m)
{
    int64_t slots = (m->spec.experts + m->cfg.mesh->ep - 1) / m->cfg.mesh->ep;

    if (m->cfg.persistent_slots)
        slots += m->cfg.spare_slots - m->cfg.transient_slots;
    return (int32_t)slots;
}

/* Reserves staging for received experts in memory that outlives the process. */
static void reserve_staging(ek_model *m)
{
    for (int i = 0; i < 2 && m->cfg.state != NULL && m->cfg.migrates; i++) {
        ek_arena_round(&m->state, m->cfg.state->align);
        m->staging_at[i] = m->state.used;
        m->staging[i] = ek_arena_alloc(&m->state, ek_param_buckets_staging_slots(m),
                                       ek_param_buckets_staging_bytes(m));
    }
}

void ek_param_buckets_reserve(ek_model *m)
{
    ek_param_buckets *us = m->buckets;
    int32_t module = EK_MODULE_NONE;
    int64_t used = 0;

    m->n_elements = 0;
    for (int kind = 0; kind < EK_BUFFER_KINDS; kind++)
        for (int i = 0; i < EK_BUFFERS; i++)
            us->sets[kind][i].base = ek_arena_alloc(&m->arena, us->sets[kind][i].bytes, 1);
    for (int32_t i = 0; i < us->n; i++) {
        ek_param_bucket *u = &us->bucket[i];

        if (u->module != module)
            used = 0;
        module = u->module;
        reserve_bucket(m, u);
        for (int32_t j = 0; j < u->n_params; j++) {
            ek_param *p = &m->params[u->params[j]];

            point_weight(m, u, p);
            m->n_elements += u->p_set != NULL || (u->offloaded >= 0 && u->sharded)
                                 ? p->w->kept
                                 : ek_weight_elements(p->w);
            reserve_forms(m, u, p, &used);
        }
    }
    reserve_staging(m);
}

ek_status ek_param_buckets_create(ek_model *m)
{
    ek_param_buckets *us = calloc(1, sizeof(*us));
    int32_t offloaded = 0;
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
    us->deps = calloc((size_t)us->n + 4, sizeof(*us->deps));
    EK_REQUIRE(us->bucket != NULL && us->deps != NULL, EK_ENOMEM,
               "no memory for the buckets of %lld weights", (long long)m->n_params);
    for (int64_t i = 0; i < m->n_params; i++) {
        ek_param_bucket *u = &us->bucket[m->params[us->params[i]].bucket];

        if (u->n_params++ == 0)
            u->params = &us->params[i];
    }
    for (int32_t i = 0; i < us->n; i++)
        fill_bucket(m, &us->bucket[i], &offloaded);
    EK_TRY(set_ranges(m));
    EK_TRY(ek_param_buckets_choose_partners(m));
    size_buffers(m, EK_MODULE_EMBED);
    for (int32_t l = 0; l < (int32_t)m->spec.layers; l++)
        size_buffers(m, l);
    size_buffers(m, EK_MODULE_HEAD);
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
    free(us->ranges);
    free(us->deps);
    free(us->partners);
    free(us->copy_bytes);
    free(us);
    *pus = NULL;
}
