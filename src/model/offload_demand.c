/* Offloaded buckets that rest.
 *
 * An expert that no token chose has a gradient of zero, but AdamW still decays its weights and
 * moments.  A bucket whose experts all rest is neither read nor written: the updates that it misses
 * are counted, and applied one after the other when it is needed, which gives the same bits.
 *
 * A step is planned before its tokens are routed.  So a bucket is expected to rest if it had no
 * rows in the last REST_AFTER steps: after one step alone, buckets that have rows in most steps
 * would make their products wait.  The first of them applies the last gradient, so that a bucket
 * that rests has a gradient of zero.  Its uses are planned without a read; once the layer's tokens
 * are routed, a use that has no rows does nothing, and one that has brings the bucket into memory,
 * which its products wait for.  All these uses share entry 0 and form buffer 0, one after the
 * other; what these hold is known only while the graph runs.
 *
 * What is put off is bounded: now and then a bucket is read, updated and written as if it did not
 * rest; their turns are spread over the steps.
 *
 * A use that has no rows still waits, in the disk lane, for the write of what entry 0 held. */
#include "model/offload_priv.h"

enum { REST_AFTER = 2 };

/* Rows of the experts of a use's record, on this rank and of replicas. */
static int64_t rows_of(const ek_offload *o, const ek_record_use *use)
{
    int32_t layer = o->records[use->record].bucket->module;
    int32_t wave = use->record - o->first_record[layer];
    const int32_t *first = o->waves[layer].first;

    return use->rows(use->owner, use->micro, use->chunk, first[wave], first[wave + 1]);
}

/* Buckets that several ranks hold do not rest: a rank does not know the rows of the others.  Nor do
 * any where the other entries were too few. */
static int can_rest(const ek_offload *o, const ek_record *r)
{
    return r->bucket->size == 1 && o->cfg.entries > EK_OFFLOAD_ENTRIES_MIN;
}

static int expected_to_rest(const ek_offload *o, int32_t record)
{
    const ek_record *r = &o->records[record];
    int due = r->pending > 0 && (o->steps + record) % EK_OFFLOAD_DEFERRED_MAX == 0;

    return can_rest(o, r) && o->observed && !r->routed && r->rested + 1 >= REST_AFTER && !due &&
           r->pending < EK_OFFLOAD_DEFERRED_MAX;
}

/* Memory of records that rest holds nothing any more. */
static void empty_shared(ek_offload *o)
{
    ek_offload_empty(o, &o->entries[0]);
    if (o->forms[0].record >= 0)
        ek_offload_drop_forms(o, &o->records[o->forms[0].record]);
    o->forms[0].record = -1;
}

void ek_offload_set_resting(ek_model *m, int may_rest)
{
    ek_offload *o = m->offload;

    if (o->plan.resting > 0) /* it had the records of the last graph, in turn */
        empty_shared(o);
    o->plan.resting = o->plan.trains = 0;
    for (int32_t i = 0; i < o->plan.n_uses; i++)
        o->plan.trains |= o->plan.uses[i].use == EK_WAVE_BACKWARD;
    for (int32_t i = 0; i < o->n; i++) {
        ek_record *r = &o->records[i];

        r->rests = may_rest && expected_to_rest(o, i);
        o->plan.resting += r->rests;
        if (r->rests && r->entry >= 0)
            ek_offload_empty(o, &o->entries[r->entry]);
        if (r->rests)
            ek_offload_drop_forms(o, r);
        if (o->plan.trains) {
            r->rested = o->observed && !r->routed ? r->rested + 1 : 0;
            r->routed = 0;
        }
    }
    if (o->plan.resting > 0)
        empty_shared(o);
}

void ek_offload_plan_demand(ek_model *m, ek_record_use *use)
{
    ek_offload *o = m->offload;

    use->entry = 0;
    if (use->direction >= 0)
        use->form[use->direction] = 0;
    use->adds = ek_offload_adds(m, use->use);
    use->read_op = use->before = -1;
    o->plan.planned++;
}

void ek_offload_decide_use(ek_model *m, ek_record_use *use)
{
    ek_offload *o = m->offload;
    ek_record *r = &o->records[use->record];
    ek_offload_entry *e = &o->entries[0];
    ek_form_buffer *f = &o->forms[0];
    int has_form = f->record == use->record && f->direction == use->direction &&
                   !(use->use == EK_WAVE_FORWARD && r->pending > 0);

    use->idle = rows_of(o, use) == 0;
    if (use->idle)
        return;
    if (e->holds != use->record) {
        e->holds = use->record;
        e->parts = 0;
    }
    ek_offload_take_parts(use, r, e, ek_offload_parts_of(m, use, has_form));
    if (use->direction >= 0 && !has_form) {
        f->record = use->record;
        f->direction = use->direction;
        use->packs = 1u << use->direction;
    }
    o->stats.uses++;
    o->stats.hits += use->reads == 0;
}

void ek_offload_note_rows(ek_offload *o, const ek_record_use *use)
{
    ek_record *r = &o->records[use->record];

    if (!o->plan.trains || !can_rest(o, r) || use->rows == NULL)
        return;
    o->observed = 1;
    r->routed |= rows_of(o, use) > 0;
}
