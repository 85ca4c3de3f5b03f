/* Offloaded buckets: their records, the scratch file, entries, and access outside of steps. */
#include "base/log.h"
#include "model/offload_priv.h"
#include "store/record_sum.h"

#include <stdlib.h>
#include <string.h>

enum { SUM_BLOCK = 1 << 20 };

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

size_t ek_offload_part_bytes(const ek_record *r, int part, int reduced)
{
    return part == EK_PARTS - 1 && !reduced ? r->gradient_bytes : r->part_bytes;
}

ek_part_range ek_offload_range(const ek_record *r, unsigned parts, int reduced)
{
    int first = 0, end = EK_PARTS;

    while (first < EK_PARTS && !(parts >> first & 1u))
        first++;
    while (end > first && !(parts >> (end - 1) & 1u))
        end--;
    if (first == end)
        return (ek_part_range){0, 0};
    return (ek_part_range){(size_t)first * r->part_bytes,
                           (size_t)(end - 1 - first) * r->part_bytes +
                               ek_offload_part_bytes(r, end - 1, reduced)};
}

/* --- records ---------------------------------------------------------------------------------- */

int ek_offload_has_whole(const ek_model *m, const ek_param_bucket *u)
{
    return u->sharded && m->cfg.zero >= 2;
}

static ek_record record_of(const ek_model *m, ek_param_bucket *u, int64_t at)
{
    size_t real = ek_dtype_size(m->k->real);
    int64_t added =
        ek_offload_has_whole(m, u) ? u->kept : u->n; /* gradients that products add to */
    ek_record r = {.bucket = u,
                   .at = at,
                   .part_bytes = round_up((size_t)u->kept * real, EK_DISK_ALIGN),
                   .gradient_bytes = round_up((size_t)added * real, EK_DISK_ALIGN),
                   .entry = -1,
                   .form = {-1, -1}};

    for (int d = 0; d < 2; d++)
        r.form_bytes[d] = ek_param_bucket_form_bytes(m, u, (ek_form)d);
    return r;
}

static void grow(size_t *largest, size_t bytes)
{
    if (bytes > *largest)
        *largest = bytes;
}

static void list_records(ek_model *m)
{
    ek_offload *o = m->offload;
    unsigned parts = o->cfg.gradients ? EK_PART_STATE | EK_PART_GRADIENT : EK_PART_STATE;
    size_t whole = 0;

    for (int32_t i = 0; i < m->buckets->n; i++) {
        ek_param_bucket *u = &m->buckets->bucket[i];
        size_t bytes = (size_t)u->n * ek_dtype_size(m->k->real), of_record;
        ek_record *r;

        if (!ek_param_bucket_is_offloaded(u))
            continue;
        r = &o->records[u->offloaded];
        *r = record_of(m, u, o->file_bytes);
        of_record = ek_offload_range(r, parts, /*reduced*/ 0).bytes;
        o->file_bytes += (int64_t)of_record;
        grow(&o->whole_at, of_record);
        grow(&o->form_buffer_bytes, r->form_bytes[0]);
        grow(&o->form_buffer_bytes, r->form_bytes[1]);
        if (u->sharded)
            grow(&whole, bytes);
        if (o->cfg.gradients && ek_offload_has_whole(m, u))
            grow(&o->whole_gradient_bytes, bytes);
    }
    o->entry_bytes = round_up(o->whole_at + whole, EK_DISK_ALIGN);
}

static int32_t count_records(const ek_model *m)
{
    int32_t n = 0;

    for (int32_t i = 0; i < m->buckets->n; i++)
        n += ek_param_bucket_is_offloaded(&m->buckets->bucket[i]);
    return n;
}

/* Experts in every offloaded bucket of a layer but the last.  The same on all ranks with the same
 * shard of experts, which have the same size: but a rank without any has no size to tell it, and
 * then each has at most one. */
static int32_t experts_each(const ek_model *m, const ek_expert_waves *waves, const ek_record *first)
{
    int64_t each;

    if (waves->n != 1)
        return waves->n > 1 ? waves->first[1] : 1;
    each = ek_param_bucket_room(m, /*experts*/ 1) / (first->bucket->n / waves->first[1]);
    return each > waves->first[1] ? (int32_t)each : waves->first[1];
}

/* The waves of a layer, whose records begin at r: the slots of one bucket after the other. */
static ek_status list_layer_waves(ek_model *m, int32_t l, int32_t r, int32_t *first)
{
    ek_offload *o = m->offload;
    const ek_mesh *mesh = m->cfg.mesh;
    ek_expert_waves *waves = &o->waves[l];
    int64_t experts = m->spec.experts;
    int32_t most = (int32_t)((experts + mesh->ep - 1) / mesh->ep);

    waves->first = first;
    for (; r < o->n && o->records[r].bucket->module == l; r++)
        first[waves->n++] = m->params[o->records[r].bucket->params[0]].slot;
    first[waves->n] = waves->n > 0 ? (int32_t)ek_range_length(experts, mesh->ep, mesh->ep_rank) : 0;
    waves->each = experts_each(m, waves, &o->records[r - waves->n]);
    waves->most = (most + waves->each - 1) / waves->each;
    waves->gradients = o->cfg.gradients;
    for (int32_t i = 0; i < waves->n; i++)
        EK_REQUIRE(first[i] == i * waves->each, EK_EINTERNAL,
                   "experts of bucket %d of layer %d begin in slot %d, not %d", (int)i, (int)l,
                   (int)first[i], (int)(i * waves->each));
    return EK_OK;
}

static ek_status list_waves(ek_model *m)
{
    ek_offload *o = m->offload;
    int32_t r = 0, *first = o->wave_first;

    for (int32_t l = 0; l < (int32_t)m->spec.layers; l++) {
        ek_moe_weights *w = &m->layers[l].experts;

        o->first_record[l] = r;
        if (w->routed)
            EK_TRY(list_layer_waves(m, l, r, first));
        r += o->waves[l].n;
        first += o->waves[l].n + 1;
        if (w->routed) /* a rank without experts of its own may have replicas */
            w->waves = &o->waves[l];
    }
    o->first_record[m->spec.layers] = r;
    return EK_OK;
}

static ek_status check_supported(const ek_model *m)
{
    EK_REQUIRE(m->k->memory == NULL, EK_EUNSUPPORTED,
               "experts on disk (--offload experts) need --device cpu");
    EK_REQUIRE(
        m->cfg.state == NULL, EK_EUNSUPPORTED,
        "experts on disk (--offload experts) do not outlive a process as --elastic needs it");
    return EK_OK;
}

ek_status ek_offload_create(ek_model *m)
{
    size_t layers = (size_t)m->spec.layers;
    ek_offload *o = calloc(1, sizeof(*o));
    int32_t n = count_records(m);

    EK_REQUIRE(o != NULL, EK_ENOMEM, "no memory for offloaded experts");
    m->offload = o;
    o->cfg = *m->cfg.offload;
    m->cfg.offload = &o->cfg;
    EK_TRY(check_supported(m));
    EK_REQUIRE(o->cfg.entries >= EK_OFFLOAD_ENTRIES_MIN, EK_EINVAL,
               "%d entries for offloaded experts; at least %d are needed", (int)o->cfg.entries,
               EK_OFFLOAD_ENTRIES_MIN);
    o->n = n;
    if (o->cfg.entries > n)
        o->cfg.entries = n > 0 ? n : 1;
    if (o->cfg.forms < o->cfg.entries)
        o->cfg.forms = o->cfg.entries;
    if (o->cfg.forms > 2 * n)
        o->cfg.forms = n > 0 ? 2 * n : 1;
    o->loaded = o->plan.reducing = -1;
    o->dir = strdup(o->cfg.dir != NULL ? o->cfg.dir : "");
    o->records = calloc((size_t)n + 1, sizeof(*o->records));
    o->entries = calloc((size_t)o->cfg.entries, sizeof(*o->entries));
    o->forms = calloc((size_t)o->cfg.forms, sizeof(*o->forms));
    o->waves = calloc(layers, sizeof(*o->waves));
    o->wave_first = calloc((size_t)n + layers, sizeof(*o->wave_first));
    o->first_record = calloc(layers + 1, sizeof(*o->first_record));
    o->stats.layer_stall_ns = calloc(2 * layers, sizeof(*o->stats.layer_stall_ns));
    if (o->cfg.gradients)
        o->squares = calloc((size_t)m->n_params, sizeof(*o->squares));
    EK_REQUIRE((o->squares != NULL) == o->cfg.gradients && o->dir != NULL && o->records != NULL &&
                   o->entries != NULL && o->forms != NULL && o->waves != NULL &&
                   o->wave_first != NULL && o->first_record != NULL &&
                   o->stats.layer_stall_ns != NULL,
               EK_ENOMEM, "no memory for the tables of %d offloaded buckets", (int)n);
    o->cfg.dir = o->dir;
    for (int32_t i = 0; i < o->cfg.entries; i++)
        o->entries[i].holds = -1;
    for (int32_t i = 0; i < o->cfg.forms; i++)
        o->forms[i].record = -1;
    list_records(m);
    EK_TRY(list_waves(m));
    ek_offload_set_waves(m);
    return EK_OK;
}

void ek_offload_reserve(ek_model *m)
{
    ek_offload *o = m->offload;

    if (o == NULL)
        return;
    ek_arena_round(&m->arena, EK_DISK_ALIGN);
    for (int32_t i = 0; i < o->cfg.entries; i++)
        o->entries[i].base = ek_arena_alloc(&m->arena, (int64_t)o->entry_bytes, 1);
    for (int32_t i = 0; i < o->cfg.forms; i++)
        o->forms[i].base = ek_arena_alloc(&m->arena, (int64_t)o->form_buffer_bytes, 1);
    for (int i = 0; i < EK_WHOLE_GRADIENTS; i++)
        o->whole_gradients[i] = ek_arena_alloc(&m->arena, (int64_t)o->whole_gradient_bytes, 1);
}

ek_status ek_offload_open(ek_model *m)
{
    ek_offload *o = m->offload;
    ek_disk_config c = {.backend = o->cfg.backend, .io = o->cfg.io};

    if (o->file_bytes == 0)
        return EK_OK;
    EK_TRY(ek_disk_create(&c, &o->disk));
    EK_TRY(ek_disk_open_scratch(o->disk, o->cfg.dir, o->file_bytes, &o->file));
    if (!ek_disk_is_direct(o->file))
        ek_log("offload", EK_LOG_WARN,
               "the scratch file in %s goes through the page cache, so it takes memory that is not "
               "counted: choose a folder on a local disk (--offload-dir)",
               o->cfg.dir);
    return EK_OK;
}

void ek_offload_destroy(ek_model *m)
{
    ek_offload *o = m->offload;

    if (o == NULL)
        return;
    ek_disk_destroy(&o->disk);
    free(o->plan.uses);
    free(o->squares);
    free(o->stats.layer_stall_ns);
    free(o->first_record);
    free(o->wave_first);
    free(o->waves);
    free(o->forms);
    free(o->entries);
    free(o->records);
    free(o->dir);
    free(o);
    m->offload = NULL;
}

/* --- sums ------------------------------------------------------------------------------------- */

/* The sum of a part: that of the sums of its blocks, which threads take one after another, or this
 * thread alone. */
static uint64_t sum_part(const ek_record *r, const unsigned char *data, int part, int reduced,
                         int alone)
{
    const ek_param_bucket *u = r->bucket;
    size_t bytes = ek_offload_part_bytes(r, part, reduced);
    int64_t blocks = (int64_t)((bytes + SUM_BLOCK - 1) / SUM_BLOCK);
    uint64_t sum = 0;

#pragma omp parallel for schedule(static) reduction(^ : sum) if (!alone)
    for (int64_t i = 0; i < blocks; i++) {
        size_t at = (size_t)i * SUM_BLOCK, left = bytes - at;

        sum ^= ek_record_sum(data + at, left < SUM_BLOCK ? left : SUM_BLOCK,
                             (int64_t)u->offloaded * EK_PARTS + part, i, r->generation);
    }
    return sum;
}

void ek_offload_sum(ek_record *r, const ek_offload_entry *e, unsigned parts, int reduced)
{
    for (int i = 0; i < EK_PARTS; i++)
        if (parts >> i & 1u)
            r->sum[i] = sum_part(r, e->base + (size_t)i * r->part_bytes, i, reduced, 0);
}

/* data: of a part in memory. */
static ek_status check_part(const ek_model *m, const ek_record *r, const unsigned char *data,
                            int part, int reduced, int alone)
{
    const ek_param *p = &m->params[r->bucket->params[0]];

    EK_REQUIRE(sum_part(r, data, part, reduced, alone) == r->sum[part], EK_ECORRUPT,
               "the state of expert %d of layer %d was read from the scratch file in %s with "
               "other bytes than were written: check the disk, then continue from the last "
               "checkpoint (--resume)",
               (int)p->expert, (int)p->layer, m->offload->cfg.dir);
    return EK_OK;
}

ek_status ek_offload_check(const ek_model *m, const ek_record *r, const ek_offload_entry *e,
                           unsigned parts, int reduced)
{
    for (int i = 0; i < EK_PARTS; i++)
        if (parts >> i & 1u)
            EK_TRY(check_part(m, r, e->base + (size_t)i * r->part_bytes, i, reduced, 0));
    return EK_OK;
}

/* --- outside of steps ------------------------------------------------------------------------- */

int64_t ek_offload_disk_bytes(const ek_model *m)
{
    return m->offload != NULL ? m->offload->file_bytes : 0;
}

size_t ek_offload_entry_bytes(const ek_model *m)
{
    return m->offload != NULL ? m->offload->entry_bytes : 0;
}

size_t ek_offload_form_bytes(const ek_model *m)
{
    return m->offload != NULL ? m->offload->form_buffer_bytes : 0;
}

int32_t ek_offload_buckets(const ek_model *m)
{
    return m->offload != NULL ? m->offload->n : 0;
}

void ek_offload_get_stats(const ek_model *m, ek_offload_stats *out)
{
    const ek_offload *o = m->offload;

    *out = (ek_offload_stats){0};
    if (o == NULL)
        return;
    *out = (ek_offload_stats){.uses = o->stats.uses,
                              .hits = o->stats.hits,
                              .updates = o->stats.updates,
                              .deferred = o->stats.deferred,
                              .stall_ns = o->stats.stall_ns,
                              .entry_stall_ns = o->stats.entry_stall_ns};
    if (o->disk != NULL)
        ek_disk_stats_of(o->disk, &out->disk);
}

void ek_offload_take_stalls(ek_model *m, double *seconds)
{
    ek_offload *o = m->offload;
    int64_t n = 2 * m->spec.layers;

    for (int64_t i = 0; i < n; i++)
        seconds[i] = o != NULL ? (double)o->stats.layer_stall_ns[i] / 1e9 : 0;
    if (o != NULL)
        memset(o->stats.layer_stall_ns, 0, (size_t)n * sizeof(*o->stats.layer_stall_ns));
}

void ek_offload_attach(ek_model *m, const ek_record *r, const ek_offload_entry *e,
                       const int32_t forms[2], int32_t whole)
{
    const ek_offload *o = m->offload;
    size_t part = r->part_bytes;
    void *gradients = e != NULL && o->cfg.gradients ? e->base + 3 * part : NULL;
    void *base[2];

    if (e != NULL)
        ek_param_bucket_attach(
            m, r->bucket,
            &(ek_bucket_memory){.first_moments = e->base,
                                .second_moments = e->base + part,
                                .masters = e->base + 2 * part,
                                .gradients = gradients,
                                .whole_gradients = whole >= 0 ? o->whole_gradients[whole]
                                                   : ek_offload_has_whole(m, r->bucket) ? NULL
                                                                                        : gradients,
                                .whole = e->base + o->whole_at});
    for (int d = 0; d < 2; d++)
        base[d] = forms[d] >= 0 ? o->forms[forms[d]].base : NULL;
    ek_param_bucket_attach_forms(m, r->bucket, base);
}

void ek_offload_set_update(ek_model *m,
                           void (*update)(void *context, const ek_param_bucket *u, int n),
                           void *context)
{
    if (m->offload == NULL)
        return;
    m->offload->update = update;
    m->offload->context = context;
}

const ek_param_bucket *ek_offload_bucket_of(const ek_model *m, const ek_weight *w, int64_t layer,
                                            int64_t expert)
{
    const ek_offload *o = m->offload;

    if (o == NULL || layer < 0 || expert < 0)
        return NULL;
    for (int32_t r = o->first_record[layer]; r < o->first_record[layer + 1]; r++) {
        const ek_param_bucket *u = o->records[r].bucket;

        for (int32_t i = 0; i < u->n_params; i++)
            if (m->params[u->params[i]].w == w)
                return u;
    }
    return NULL;
}

void ek_offload_empty(ek_offload *o, ek_offload_entry *e)
{
    if (e->holds >= 0)
        o->records[e->holds].entry = -1;
    e->holds = -1;
    e->parts = 0;
    e->gathered = 0;
}

void ek_offload_drop_forms(ek_offload *o, ek_record *r)
{
    for (int d = 0; d < 2; d++) {
        if (r->form[d] >= 0)
            o->forms[r->form[d]].record = -1;
        r->form[d] = -1;
    }
}

/* Empties entry 0, and the memory that holds the record and its forms. */
static ek_offload_entry *clear_entry(ek_offload *o, ek_record *r)
{
    ek_offload_drop_forms(o, r);
    if (r->entry >= 0)
        ek_offload_empty(o, &o->entries[r->entry]);
    ek_offload_empty(o, &o->entries[0]);
    o->loaded = -1;
    return &o->entries[0];
}

ek_disk_request ek_offload_request(const ek_offload *o, const ek_record *r, int write,
                                   unsigned parts, int reduced, unsigned char *base)
{
    ek_part_range range = ek_offload_range(r, parts, reduced);

    return (ek_disk_request){.file = o->file,
                             .write = write,
                             .offset = r->at + (int64_t)range.first,
                             .bytes = range.bytes,
                             .buffer = base + range.first,
                             .room = range.bytes};
}

static ek_status transfer(ek_offload *o, const ek_record *r, int write, unsigned parts,
                          unsigned char *base)
{
    ek_disk_request q = ek_offload_request(o, r, write, parts, /*reduced*/ 0, base);

    if (q.bytes == 0) /* this rank keeps nothing of a sharded bucket */
        return EK_OK;
    EK_TRY(ek_disk_start(o->disk, &q));
    return ek_disk_wait(o->disk, &q);
}

ek_status ek_offload_load(ek_model *m, const ek_param_bucket *u, unsigned parts)
{
    ek_offload *o = m->offload;
    ek_record *r = &o->records[u->offloaded];
    ek_offload_entry *e;

    if (o->loaded == u->offloaded && parts == EK_PART_STATE)
        return EK_OK;
    e = clear_entry(o, r);
    ek_offload_attach(m, r, e, (const int32_t[]){-1, -1}, -1);
    for (int i = 0; i < EK_PARTS - 1; i++)
        if (!(parts >> i & 1u))
            memset(e->base + (size_t)i * r->part_bytes, 0, r->part_bytes);
    if (parts == 0)
        return EK_OK;
    EK_TRY(transfer(o, r, 0, parts, e->base));
    EK_TRY(ek_offload_check(m, r, e, parts, /*reduced*/ 0));
    if (parts == EK_PART_STATE)
        o->loaded = u->offloaded;
    return EK_OK;
}

ek_status ek_offload_store(ek_model *m, const ek_param_bucket *u, unsigned parts)
{
    ek_offload *o = m->offload;
    ek_record *r = &o->records[u->offloaded];
    const ek_offload_entry *e = &o->entries[0];

    ek_offload_sum(r, e, parts, /*reduced*/ 0);
    return transfer(o, r, 1, parts, e->base);
}

/* --- beside steps ----------------------------------------------------------------------------- */

/* Both moments, which lie side by side, or the masters. */
size_t ek_offload_reader_bytes(const ek_model *m)
{
    const ek_offload *o = m->offload;
    size_t most = 0;

    for (int32_t i = 0; o != NULL && i < o->n; i++)
        grow(&most, 2 * o->records[i].part_bytes);
    return most;
}

unsigned char *ek_offload_reader_memory(ek_model *m)
{
    ek_offload *o = m->offload;

    if (o == NULL)
        return NULL;
    ek_offload_empty(o, &o->entries[0]);
    o->loaded = -1;
    return o->entries[0].base;
}

static ek_status read_parts(ek_offload_reader *reader, const ek_param_bucket *u, unsigned parts)
{
    const ek_offload *o = reader->m->offload;
    const ek_record *r = &o->records[u->offloaded];
    ek_part_range range = ek_offload_range(r, parts, /*reduced*/ 0);
    const unsigned char *at = reader->memory;
    ek_disk_request q = {.file = o->file,
                         .background = 1,
                         .offset = r->at + (int64_t)range.first,
                         .bytes = range.bytes,
                         .buffer = reader->memory,
                         .room = range.bytes};

    reader->bucket = NULL;
    EK_TRY(ek_disk_start(o->disk, &q));
    EK_TRY(ek_disk_wait(o->disk, &q));
    for (int i = 0; i < EK_PARTS; i++)
        if (parts >> i & 1u) {
            EK_TRY(check_part(reader->m, r, at, i, /*reduced*/ 0, 1));
            at += r->part_bytes;
        }
    reader->bucket = u;
    reader->parts = parts;
    return EK_OK;
}

/* Where a bucket's kept range has the element of a weight's. */
static int64_t kept_element(const ek_model *m, const ek_param_bucket *u, const ek_weight *w,
                            int64_t at)
{
    for (int32_t i = 0; i < u->n_params; i++) {
        const ek_param *p = &m->params[u->params[i]];

        if (p->w == w)
            return p->offset + w->kept_first - u->kept_first + at;
    }
    return 0;
}

ek_status ek_offload_read(ek_offload_reader *reader, const ek_param_bucket *u, const ek_weight *w,
                          ek_offload_part part, int64_t at, const void **data)
{
    const ek_model *m = reader->m;
    const ek_record *r = &m->offload->records[u->offloaded];
    unsigned parts = part == EK_PART_MASTER ? EK_PART_MASTER : EK_PART_M | EK_PART_V;
    size_t element = (size_t)kept_element(m, u, w, at);

    if (reader->bucket != u || reader->parts != parts)
        EK_TRY(read_parts(reader, u, parts));
    *data = reader->memory + (part == EK_PART_V ? r->part_bytes : 0) +
            element * ek_dtype_size(m->k->real);
    return EK_OK;
}
