/* The layout of a rank's segment, and its shard table: one shard for each non-expert tensor, then
 * three for each slot of each MoE layer, then three for each slot of the staging buffers. */
#include "recover/rank_state.h"

#include "elastic/prealloc.h"
#include "model/experts/migrate.h"
#include "model/hf/weights.h"
#include "model/param_buckets.h"

#include <stdlib.h>
#include <string.h>

enum { OF_EXPERT = 3 }; /* gate, up, down */

static const ek_role expert_roles[OF_EXPERT] = {EK_ROLE_EXPERT_GATE, EK_ROLE_EXPERT_UP,
                                                EK_ROLE_EXPERT_DOWN};

static int is_of_expert(ek_role role)
{
    return role == expert_roles[0] || role == expert_roles[1] || role == expert_roles[2];
}

static int64_t real_bytes_of(const ek_model *m)
{
    return (int64_t)ek_dtype_size(m->k->real);
}

/* --- the shard table -------------------------------------------------------------------------- */

int32_t ek_state_slots(const ek_model *m)
{
    int32_t l = ek_model_next_moe(m, -1);

    return l < m->spec.layers ? m->layers[l].experts.placement.slots - m->cfg.transient_slots : 0;
}

/* Entries of a staging buffer. */
static int32_t staged_slots(const ek_model *m)
{
    return m->cfg.migrates && ek_state_slots(m) > 0 ? ek_param_buckets_staging_slots(m) : 0;
}

/* Index of the first shard of a layer's slots; layer = layers, layers + 1: of a staging buffer. */
static int64_t first_shard(const ek_rank_state *s, const ek_model *m, int64_t layer)
{
    int64_t before = 0;

    for (int64_t l = 0; l < layer && l < m->spec.layers; l++)
        before += ek_model_has_moe_layer(m, l);
    before *= ek_state_slots(m);
    if (layer > m->spec.layers) /* the second staging buffer follows the first */
        before += staged_slots(m);
    return s->tensors + before * OF_EXPERT;
}

static int64_t count_shards(const ek_rank_state *s, const ek_model *m)
{
    return first_shard(s, m, m->spec.layers) + 2 * OF_EXPERT * (int64_t)staged_slots(m);
}

/* Sets a shard's byte offsets to number `first` of masters and moments. */
static void set_shard_offsets(ek_state_shard *p, const ek_rank_state *s,
                              void *const arrays[EK_STATE_ARRAYS], int64_t first, int64_t real)
{
    for (int j = 0; j < EK_STATE_ARRAYS; j++)
        p->at[j] = (unsigned char *)arrays[j] - s->segment.body + first * real;
}

/* The shards of an expert's state: gate and up in one matrix, down in another. */
static void set_expert_shards(const ek_rank_state *s, const ek_model *m, ek_state_shard *p,
                              void *const up[EK_STATE_ARRAYS], void *const down[EK_STATE_ARRAYS],
                              int64_t ff)
{
    int64_t d = m->spec.hidden, real = real_bytes_of(m);

    for (int i = 0; i < OF_EXPERT - 1; i++) {
        p[i].slice = (ek_tensor_slice){m->local.ff_first, ff, 0, d};
        p[i].ld = d;
        set_shard_offsets(&p[i], s, up, i * ff * d, real);
    }
    p[2].slice = (ek_tensor_slice){0, d, m->local.ff_first, ff};
    p[2].ld = ff;
    set_shard_offsets(&p[2], s, down, 0, real);
}

static void set_shard_tensors(ek_rank_state *s, const ek_model *m, int64_t layer, ek_state_shard *p,
                              int32_t expert)
{
    for (int i = 0; i < OF_EXPERT; i++)
        atomic_store_explicit(
            &p[i].tensor,
            expert < 0 ? -1 : s->tensor_of[(layer * m->spec.experts + expert) * OF_EXPERT + i],
            memory_order_release);
    atomic_thread_fence(memory_order_seq_cst); /* before the slot is overwritten */
}

static void set_slot_shards(ek_rank_state *s, const ek_model *m, int64_t layer)
{
    const ek_moe_weights *w = &m->layers[layer].experts;
    ek_state_shard *p = &s->shards.shard[first_shard(s, m, layer)];

    for (int32_t slot = 0; slot < ek_state_slots(m); slot++, p += OF_EXPERT) {
        int32_t at = w->param_of[slot];
        const ek_weight *up, *down;

        if (at < 0 || m->buckets->bucket[m->params[at].bucket].sharded)
            continue; /* sharded: among the tensors that do not migrate */
        up = m->params[at].w;
        down = m->params[at + 1].w;
        set_expert_shards(s, m, p, (void *[]){up->p_kept, up->m, up->v},
                          (void *[]){down->p_kept, down->m, down->v}, w->ff);
        set_shard_tensors(s, m, layer, p, m->params[at].expert);
    }
}

/* As model/experts/migrate.c stages experts: up's three arrays, then down's. */
static void set_staging_shards(ek_rank_state *s, const ek_model *m, int buf_idx)
{
    int64_t up = 2 * m->spec.hidden * m->local.ff * real_bytes_of(m), down = up / 2;
    ek_state_shard *p = &s->shards.shard[first_shard(s, m, m->spec.layers + buf_idx)];

    for (int64_t slot = 0; slot < staged_slots(m); slot++, p += OF_EXPERT) {
        char *at = (char *)m->staging[buf_idx] + slot * (int64_t)ek_param_buckets_staging_bytes(m);

        set_expert_shards(s, m, p, (void *[]){at, at + up, at + 2 * up},
                          (void *[]){at + 3 * up, at + 3 * up + down, at + 3 * up + 2 * down},
                          m->local.ff);
    }
}

/* Adds the shard of tensor i that is rows and columns of it in these arrays. */
static int64_t add_slice(const ek_rank_state *s, const ek_model *m, int64_t i,
                         const ek_tensor_slice *slice, int64_t first, int64_t ld,
                         void *const arrays[EK_STATE_ARRAYS], ek_state_shard *shards, int64_t n)
{
    if (shards != NULL) {
        shards[n].slice = *slice;
        shards[n].ld = ld;
        set_shard_offsets(&shards[n], s, arrays, first, real_bytes_of(m));
        atomic_store_explicit(&shards[n].tensor, (int32_t)i, memory_order_release);
    }
    return n + 1;
}

/* Adds the shard of the part of tensor i in elements [first, first + numbers) of a weight, which
 * lie in these arrays.  shards may be NULL.  Returns the number of shards. */
static int64_t add_part(const ek_rank_state *s, const ek_model *m, int64_t i, const ek_span *a,
                        int64_t first, int64_t numbers, void *const arrays[EK_STATE_ARRAYS],
                        ek_state_shard *shards, int64_t n)
{
    ek_tensor_slice slice;
    int64_t from;

    if (!ek_span_part(a, first, numbers, &slice, &from))
        return n;
    return add_slice(s, m, i, &slice, from - first, a->ld, arrays, shards, n);
}

/* The parameter of a weight; NULL: it has none, and so no state. */
static const ek_param *param_of(const ek_model *m, const ek_weight *w)
{
    for (int64_t i = 0; i < m->n_params; i++)
        if (m->params[i].w == w)
            return &m->params[i];
    return NULL;
}

/* Adds shards of tensor i: of the range that this rank keeps, and of those that it copies. */
static int64_t add_ranges(const ek_rank_state *s, const ek_model *m, int64_t i, const ek_span *a,
                          const ek_param *p, ek_state_shard *shards, int64_t n)
{
    const ek_weight *w = a->w;
    const ek_param_bucket *u = &m->buckets->bucket[p->bucket];
    ek_param_copy c;

    n = add_part(s, m, i, a, w->kept_first, w->kept, (void *[]){w->p_kept, w->m, w->v}, shards, n);
    for (int owner = 0; owner < u->copies.size; owner++)
        if (ek_param_copy_of(m, u, p, owner, &c))
            n = add_part(s, m, i, a, c.first, c.n, (void *[]){c.p, c.m, c.v}, shards, n);
    return n;
}

/* The same of a tensor of which this rank keeps all that it has, and copies columns of others. */
static int64_t add_whole(const ek_rank_state *s, const ek_model *m, int64_t i, const ek_span *a,
                         const ek_param *p, ek_state_shard *shards, int64_t n)
{
    const ek_param_bucket *u = &m->buckets->bucket[p->bucket];
    ek_tensor_slice slice = {a->row, a->rows, a->col, a->cols};
    ek_param_copy c;

    n = add_slice(s, m, i, &slice, a->first, a->ld, (void *[]){a->w->p_kept, a->w->m, a->w->v},
                  shards, n);
    for (int owner = 0; owner < u->copies.size; owner++)
        if (ek_param_copy_of(m, u, p, owner, &c)) {
            slice.col = c.col;
            slice.cols = c.cols;
            n = add_slice(s, m, i, &slice, 0, c.cols, (void *[]){c.p, c.m, c.v}, shards, n);
        }
    return n;
}

/* The number of slices of non-expert tensors that this rank has; fills shards unless NULL. */
static int64_t list_tensors(const ek_rank_state *s, ek_model *m, ek_state_shard *shards)
{
    int64_t count = ek_hf_count(&m->spec), n = 0;

    for (int64_t i = 0; i < count; i++) {
        ek_hf_tensor t;
        ek_span a;
        const ek_param *p;

        ek_hf_tensor_at(&m->spec, i, &t);
        p = ek_model_span(m, &t, &a) ? param_of(m, a.w) : NULL;
        if (p == NULL)
            continue;
        if (m->buckets->bucket[p->bucket].sharded)
            n = add_ranges(s, m, i, &a, p, shards, n);
        else if (!is_of_expert(t.role)) /* those may migrate */
            n = add_whole(s, m, i, &a, p, shards, n);
    }
    return n;
}

/* Fills s->tensor_of [layers][experts][OF_EXPERT]. */
static ek_status number_experts(ek_rank_state *s, const ek_model *m)
{
    int64_t count = ek_hf_count(&m->spec);

    s->tensor_of =
        calloc((size_t)(m->spec.layers * m->spec.experts * OF_EXPERT) + 1, sizeof(*s->tensor_of));
    EK_REQUIRE(s->tensor_of != NULL, EK_ENOMEM, "no memory for tensor indices");
    for (int64_t i = 0; i < count; i++) {
        ek_hf_tensor t;

        ek_hf_tensor_at(&m->spec, i, &t);
        for (int k = 0; k < OF_EXPERT; k++)
            if (t.role == expert_roles[k])
                s->tensor_of[(t.layer * m->spec.experts + t.expert) * OF_EXPERT + k] = (int32_t)i;
    }
    return EK_OK;
}

static void fill_table(ek_rank_state *s, ek_model *m)
{
    list_tensors(s, m, s->shards.shard);
    for (int64_t l = 0; l < m->spec.layers; l++)
        if (ek_model_has_moe_layer(m, l))
            set_slot_shards(s, m, l);
    for (int buf_idx = 0; buf_idx < 2 && m->cfg.migrates; buf_idx++)
        set_staging_shards(s, m, buf_idx);
}

/* Called when a slot (slot >= 0) or staging slot (-1 - slot) gets another expert: updates the shard
 * table. */
static void on_slot_change(void *context, int32_t layer, int32_t slot, int32_t expert)
{
    ek_rank_state *s = context;
    const ek_model *m = s->model;
    int64_t at = slot >= 0 ? first_shard(s, m, layer) + OF_EXPERT * slot
                           : first_shard(s, m, m->spec.layers + ek_migration_buf_idx(m, layer)) +
                                 OF_EXPERT * (int64_t)(-1 - slot);

    set_shard_tensors(s, m, layer, &s->shards.shard[at], expert);
}

/* --- the extents of the step journal ---------------------------------------------------------- */

/* Appends the extent of `numbers` of a parameter in these arrays, if there are any. */
static int64_t add_extent(const ek_param *p, int64_t numbers,
                          const void *const arrays[EK_JOURNAL_ARRAYS], const void *base,
                          ek_journal_extent *extents, int64_t n)
{
    if (numbers == 0)
        return n;
    if (extents != NULL) {
        extents[n] = (ek_journal_extent){.n = numbers,
                                         .kind = !p->trained ? EK_EXTENT_FEEDBACK
                                                 : p->decay  ? EK_EXTENT_DECAYED
                                                             : EK_EXTENT_UNDECAYED};
        for (int k = 0; k < EK_JOURNAL_ARRAYS; k++)
            extents[n].at[k] = (const char *)arrays[k] - (const char *)base;
    }
    return n + 1;
}

/* Appends the extents of a bucket to n others, one for each part of a parameter that this rank
 * keeps or copies; returns their number.  extents may be NULL.  base: the start of the journal's
 * memory. */
static int64_t list_bucket_extents(const ek_model *m, const ek_param_bucket *u, const void *base,
                                   ek_journal_extent *extents, int64_t n)
{
    for (int32_t j = 0; j < u->n_params; j++) {
        const ek_param *p = &m->params[u->params[j]];
        const void *arrays[] = {p->w->p_kept, p->g_kept, p->w->m, p->w->v};
        ek_param_copy c;

        n = add_extent(p, p->w->kept, arrays, base, extents, n);
        for (int owner = 0; owner < u->copies.size; owner++)
            if (ek_param_copy_of(m, u, p, owner, &c))
                n = add_extent(p, c.n, (const void *[]){c.p, c.g, c.m, c.v}, base, extents, n);
    }
    return n;
}

/* The journal extents of the model, as ek_rank_state.extents_of describes them.  Returns their
 * number; extents and extents_of may be NULL. */
static int64_t list_extents(const ek_model *m, const void *base, ek_journal_extent *extents,
                            int64_t *extents_of)
{
    int64_t n = 0, first;

    for (int32_t i = 0; i < m->buckets->n; i++) {
        const ek_param_bucket *u = &m->buckets->bucket[i];

        first = n;
        if (u->trained)
            n = list_bucket_extents(m, u, base, extents, n);
        if (extents_of != NULL)
            extents_of[i] = first;
    }
    first = n;
    for (int32_t i = 0; i < m->buckets->n; i++)
        if (!m->buckets->bucket[i].trained)
            n = list_bucket_extents(m, &m->buckets->bucket[i], base, extents, n);
    if (extents_of != NULL) {
        extents_of[m->buckets->n] = first;
        extents_of[m->buckets->n + 1] = n;
    }
    return n;
}

/* --- the segment ------------------------------------------------------------------------------ */

/* Bytes of the blocks: of each parameter bucket, then of each staging slot.  Returns their number.
 */
static int64_t list_block_sizes(const ek_model *m, size_t end, size_t *bytes)
{
    int64_t n = 0, staged = staged_slots(m);
    size_t buckets_end = staged > 0 ? m->staging_at[0] : end;

    for (int32_t i = 0; i < m->buckets->n; i++, n++)
        if (bytes != NULL)
            bytes[n] = (i + 1 < m->buckets->n ? m->buckets->bucket[i + 1].state_at : buckets_end) -
                       m->buckets->bucket[i].state_at;
    for (int64_t i = 0; i < 2 * staged; i++, n++)
        if (bytes != NULL)
            bytes[n] = ek_param_buckets_staging_bytes(m);
    return n;
}

static ek_status create_segment(void *context, const ek_model *m, size_t bytes, void **memory)
{
    ek_rank_state *s = context;
    size_t front = ek_journal_bytes(list_extents(m, NULL, NULL, NULL), m->k->threads);
    int64_t n = list_block_sizes(m, bytes, NULL);
    size_t *block_bytes = calloc((size_t)n + 1, sizeof(*block_bytes));
    ek_status st = EK_OK;

    s->blocks = calloc((size_t)n + 1, sizeof(*s->blocks));
    EK_REQUIRE_OUT(block_bytes != NULL && s->blocks != NULL, EK_ENOMEM,
                   "no memory for %lld state blocks", (long long)n);
    s->tensors = list_tensors(s, (ek_model *)(uintptr_t)m, NULL);
    front += ek_shard_table_bytes(count_shards(s, m));
    list_block_sizes(m, bytes, block_bytes);
    EK_TRY_OUT(ek_segment_create(&s->id, s->ranks, s->fingerprint, s->out, front, block_bytes, n,
                                 &s->segment));
    s->segment.head->supervisor_id = s->supervisor_id;
    *memory = s->segment.body + s->segment.block_at[0];
out:
    free(block_bytes);
    return st;
}

ek_status ek_state_adopt_block(ek_rank_state *s, int64_t k, const ek_segment *from, int64_t j,
                               int whole)
{
    EK_TRY(ek_segment_adopt_block(&s->segment, k, from, j));
    s->blocks[k] = whole ? EK_BLOCK_ADOPTED : EK_BLOCK_REUSED;
    return EK_OK;
}

void ek_state_clear_gradients(ek_rank_state *s)
{
    for (int64_t k = 0; k < s->model->buckets->n; k++) {
        const ek_param_bucket *u = &s->model->buckets->bucket[k];

        if (s->blocks[k] == EK_BLOCK_ADOPTED || s->blocks[k] == EK_BLOCK_REUSED)
            memset(u->g_set != NULL ? u->g_kept : u->g, 0,
                   (size_t)(u->g_set != NULL ? u->kept : u->n) * (size_t)real_bytes_of(s->model));
    }
}

ek_status ek_state_use_prealloc(ek_rank_state *s, const ek_segment *prealloc, int64_t *bytes)
{
    int64_t n = s->segment.head->blocks;
    unsigned char *missing = calloc((size_t)n + 1, 1);
    ek_status st;

    EK_REQUIRE(missing != NULL, EK_ENOMEM, "no memory for %lld state blocks", (long long)n);
    for (int64_t k = 0; k < n; k++)
        missing[k] = s->blocks[k] == EK_BLOCK_ABSENT;
    st = ek_prealloc_move(prealloc, &s->segment, missing, bytes);
    for (int64_t k = 0; k < n; k++)
        if (s->blocks[k] == EK_BLOCK_ABSENT && !missing[k])
            s->blocks[k] = EK_BLOCK_CREATED;
    free(missing);
    return st;
}

ek_status ek_state_create_blocks(ek_rank_state *s)
{
    for (int64_t k = 0; k < s->segment.head->blocks; k++)
        if (s->blocks[k] == EK_BLOCK_ABSENT) {
            EK_TRY(ek_segment_create_block(&s->segment, k));
            s->blocks[k] = EK_BLOCK_CREATED;
        }
    return EK_OK;
}

void ek_state_reserve(ek_rank_state *s, const ek_segment_id *id, int32_t ranks,
                      uint64_t fingerprint, uint64_t supervisor_id, const char *out)
{
    *s = (ek_rank_state){.id = *id,
                         .ranks = ranks,
                         .fingerprint = fingerprint,
                         .supervisor_id = supervisor_id,
                         .out = out,
                         .memory = {.take = create_segment,
                                    .holds = on_slot_change,
                                    .context = s,
                                    .align = EK_SEGMENT_ALIGN}};
}

/* Creates the step journal. */
static ek_status start_journal(ek_rank_state *s, const ek_model *m, int64_t steps_done)
{
    int64_t n = list_extents(m, NULL, NULL, NULL);
    ek_journal_extent *extents = malloc((size_t)(n + 1) * sizeof(*extents));
    ek_status st;

    free(s->extents_of);
    s->extents_of = malloc(((size_t)m->buckets->n + 2) * sizeof(*s->extents_of));
    EK_REQUIRE_OUT(extents != NULL && s->extents_of != NULL, EK_ENOMEM,
                   "no memory for %lld extents", (long long)n);
    list_extents(m, s->segment.body, extents, s->extents_of);
    EK_TRY_OUT(ek_journal_create(s->segment.body, s->segment.body_bytes, extents, n, m->k->threads,
                                 (int)real_bytes_of(m), steps_done, &s->journal));
out:
    free(extents);
    return st;
}

ek_status ek_state_start(ek_rank_state *s, ek_model *m, int64_t steps_done)
{
    s->model = m;
    if (s->tensor_of == NULL)
        EK_TRY(number_experts(s, m));
    EK_TRY(start_journal(s, m, steps_done));
    ek_shard_table_create(s->segment.body + ek_journal_end(&s->journal), count_shards(s, m),
                          &s->shards);
    fill_table(s, m);
    return EK_OK;
}

void ek_state_close(ek_rank_state *s)
{
    free(s->extents_of);
    free(s->tensor_of);
    free(s->blocks);
    s->blocks = NULL;
    s->extents_of = NULL;
    s->tensor_of = NULL;
    ek_segment_close(&s->segment);
}
