/* Plans of the uses of offloaded buckets in a step: what each reads, updates and packs, and which
 * memory it takes.  Uses are planned in their order, ahead of the ops of their products. */
#include "model/offload_priv.h"

#include <stdlib.h>

enum { NEVER = INT32_MAX };

/* --- uses ------------------------------------------------------------------------------------- */

/* Whether the products add to gradients.  In distributed layers this is a use of its own, which the
 * weights are not needed for. */
static int adds_gradients(const ek_model *m, ek_wave_use use)
{
    return use ==
           (ek_mesh_distributes_experts(m->cfg.mesh) ? EK_WAVE_WEIGHT_GRADIENT : EK_WAVE_BACKWARD);
}

int ek_offload_is_use(const ek_model *m, ek_wave_use use)
{
    return use != EK_WAVE_WEIGHT_GRADIENT || (m->offload->cfg.gradients && adds_gradients(m, use));
}

/* The direction of the form that products read; -1: none. */
static int direction_of(const ek_model *m, const ek_record *r, ek_wave_use use)
{
    int direction =
        use == EK_WAVE_FORWARD || m->k->one_form ? EK_PACKED_FORWARD : EK_PACKED_BACKWARD;

    return use == EK_WAVE_WEIGHT_GRADIENT || r->form_bytes[direction] == 0 ? -1 : direction;
}

ek_status ek_offload_add_use(ek_model *m, int32_t record, ek_wave_use use, int forms)
{
    ek_offload *o = m->offload;

    if (o->plan.n_uses == o->plan.cap_uses) {
        int32_t cap = 2 * o->plan.cap_uses + 64;
        ek_record_use *grown = realloc(o->plan.uses, (size_t)cap * sizeof(*grown));

        EK_REQUIRE(grown != NULL, EK_ENOMEM, "no memory for a plan of %d uses of experts",
                   (int)cap);
        o->plan.uses = grown;
        o->plan.cap_uses = cap;
    }
    o->plan.uses[o->plan.n_uses++] =
        (ek_record_use){.record = record,
                        .use = use,
                        .direction = forms ? direction_of(m, &o->records[record], use) : -1,
                        .entry = -1,
                        .form = {-1, -1},
                        .whole = -1};
    return EK_OK;
}

ek_status ek_offload_plan_layer(ek_model *m, int32_t layer, int32_t chunk, ek_wave_use use)
{
    ek_offload *o = m->offload;
    int32_t first, n;

    if (o == NULL || !ek_offload_is_use(m, use))
        return EK_OK;
    first = o->first_record[layer];
    n = o->first_record[layer + 1] - first;
    for (int32_t i = 0; i < n; i++)
        EK_TRY(ek_offload_add_use(m, first + ek_wave_at(use, chunk, i, n), use, /*forms*/ 1));
    return EK_OK;
}

/* Sets, of each use, the next one of its record, and of its forms; the last use of a record in the
 * plan is followed by the first one of a next step with the same plan. */
static void link_backwards(ek_offload *o)
{
    for (int32_t r = 0; r < o->n; r++) {
        ek_record *record = &o->records[r];

        record->next_use = o->plan.n_uses + record->first_use;
        record->next_form[0] = record->next_form[1] = NEVER; /* a next step updates first */
    }
    for (int32_t i = o->plan.n_uses - 1; i >= 0; i--) {
        ek_record_use *use = &o->plan.uses[i];
        ek_record *r = &o->records[use->record];

        use->next = r->next_use;
        use->next_form[0] = r->next_form[0];
        use->next_form[1] = r->next_form[1];
        r->next_use = i;
        if (use->direction >= 0)
            r->next_form[use->direction] = i;
    }
}

void ek_offload_link_uses(ek_model *m)
{
    ek_offload *o = m->offload;

    for (int32_t r = 0; r < o->n; r++) {
        o->records[r].first_use = o->plan.n_uses;
        o->records[r].last_adding = -1;
    }
    for (int32_t i = o->plan.n_uses - 1; i >= 0; i--)
        o->records[o->plan.uses[i].record].first_use = i;
    for (int32_t i = 0; i < o->plan.n_uses; i++)
        if (adds_gradients(m, o->plan.uses[i].use))
            o->records[o->plan.uses[i].record].last_adding = i;
    link_backwards(o);
    for (int32_t i = 0; i < o->cfg.entries; i++)
        if (o->entries[i].holds >= 0)
            o->entries[i].next_use = o->records[o->entries[i].holds].first_use;
    for (int32_t i = 0; i < o->cfg.forms; i++) {
        ek_form_buffer *f = &o->forms[i];

        if (f->record >= 0)
            f->next_use = o->records[f->record].pending > 0
                              ? NEVER
                              : o->records[f->record].next_form[f->direction];
    }
}

/* --- memory ----------------------------------------------------------------------------------- */

/* The entry that gives way: of those without a planned use, the one whose record is needed last.
 * NULL: there is none. */
static ek_offload_entry *find_entry(ek_offload *o)
{
    ek_offload_entry *found = NULL;

    for (int32_t i = o->plan.resting > 0; i < o->cfg.entries; i++) {
        ek_offload_entry *e = &o->entries[i];

        if (e->reserved > 0)
            continue;
        if (e->holds < 0)
            return e;
        if (found == NULL || e->next_use > found->next_use)
            found = e;
    }
    return found;
}

/* Gives an entry to a record, if it has none. */
static ek_offload_entry *take_entry(ek_offload *o, int32_t record, ek_offload_entry *e)
{
    ek_record *r = &o->records[record];

    if (e->holds == record)
        return e;
    if (e->holds >= 0)
        e->before = o->records[e->holds].written;
    ek_offload_empty(o, e);
    e->holds = record;
    r->entry = (int32_t)(e - o->entries);
    return e;
}

/* The form buffer that gives way to a form which is needed at use `next`: of those without a
 * planned use, the one that is needed last, and later than that.  NULL: there is none. */
static ek_form_buffer *find_form(ek_offload *o, int32_t next)
{
    ek_form_buffer *found = NULL;

    for (int32_t i = o->plan.resting > 0; i < o->cfg.forms; i++) {
        ek_form_buffer *f = &o->forms[i];

        if (f->reserved > 0)
            continue;
        if (f->record < 0)
            return f;
        if (f->next_use > next && (found == NULL || f->next_use > found->next_use))
            found = f;
    }
    return found;
}

static void take_form(ek_offload *o, int32_t record, int direction, ek_form_buffer *f)
{
    if (f->record >= 0)
        o->records[f->record].form[f->direction] = -1;
    f->record = record;
    f->direction = direction;
    o->records[record].form[direction] = (int32_t)(f - o->forms);
}

/* --- what a use does -------------------------------------------------------------------------- */

int ek_offload_adds(const ek_model *m, ek_wave_use use)
{
    return m->offload->cfg.gradients && adds_gradients(m, use);
}

/* Whether a use that adds to gradients completes a sum over ranks: with ZeRO 2 and 3 that of a
 * micro-batch, else that of the step. */
static int reduces_gradients(const ek_model *m, const ek_record_use *use)
{
    const ek_record *r = &m->offload->records[use->record];

    return use->adds && r->bucket->size > 1 &&
           (ek_offload_has_whole(m, r->bucket) || use - m->offload->plan.uses == r->last_adding);
}

unsigned ek_offload_parts_of(const ek_model *m, ek_record_use *use, int has_form)
{
    const ek_offload *o = m->offload;
    const ek_record *r = &o->records[use->record];
    int gradient;
    unsigned needed = 0;

    use->updates = use->use == EK_WAVE_FORWARD ? r->pending : 0;
    use->adds = ek_offload_adds(m, use->use);
    use->reduces = reduces_gradients(m, use);
    gradient = o->cfg.gradients && (use->updates > 0 || use->adds);
    use->begins = gradient && !r->has_gradient;
    if (use->direction >= 0 ? !has_form : ek_offload_reads_masters(m, use))
        needed = EK_PART_MASTER;
    if (use->updates > 0)
        needed = EK_PART_STATE;
    return gradient && r->has_gradient ? needed | EK_PART_GRADIENT : needed;
}

int ek_offload_reads_masters(const ek_model *m, const ek_record_use *use)
{
    return use->use != EK_WAVE_WEIGHT_GRADIENT && !m->offload->records[use->record].bucket->packed;
}

/* Takes a buffer for the form that the products read, if it is not in memory.  Returns 0 if there
 * is none. */
static int plan_own_form(ek_offload *o, ek_record_use *use)
{
    ek_record *r = &o->records[use->record];
    ek_form_buffer *f;

    if (use->direction < 0)
        return 1;
    if (r->form[use->direction] < 0) {
        f = find_form(o, -1);
        if (f == NULL)
            return 0;
        take_form(o, use->record, use->direction, f);
        use->packs = 1u << use->direction;
    }
    f = &o->forms[r->form[use->direction]];
    f->next_use = use->next_form[use->direction];
    f->reserved++;
    return 1;
}

/* While the masters are in memory: packs the other form too, if a later use needs it, and a buffer
 * would else hold what is needed later still. */
static void plan_other_form(ek_offload *o, ek_record_use *use)
{
    ek_record *r = &o->records[use->record];
    int other = 1 - use->direction;
    ek_form_buffer *f;

    if (use->direction < 0 || use->packs == 0 || use->next_form[other] == NEVER ||
        r->form[other] >= 0)
        return;
    f = find_form(o, use->next_form[other]);
    if (f == NULL)
        return;
    take_form(o, use->record, other, f);
    f->next_use = use->next_form[other];
    f->reserved++;
    use->packs |= 1u << other;
}

/* The next use of the record of a use that needs it, rather than forms that are in memory. */
static int32_t next_need(const ek_offload *o, const ek_record_use *use)
{
    const ek_record *r = &o->records[use->record];
    int32_t next = use->next;

    while (next < o->plan.n_uses && !o->cfg.gradients && o->plan.uses[next].direction >= 0 &&
           r->form[o->plan.uses[next].direction] >= 0)
        next = o->plan.uses[next].next;
    return next;
}

void ek_offload_take_parts(ek_record_use *use, ek_record *r, ek_offload_entry *e, unsigned needed)
{
    use->reads = needed & ~e->parts;
    if ((use->reads & EK_PART_GRADIENT) && (use->reads & (EK_PART_M | EK_PART_V)))
        use->reads |= EK_PART_MASTER; /* it lies between them */
    use->reads_reduced = r->is_reduced;
    e->parts |= needed;
    if (use->adds)
        e->parts |= EK_PART_GRADIENT;
    if (use->updates > 0)
        e->parts &= ~(unsigned)EK_PART_GRADIENT;
    r->pending = use->updates > 0 ? 0 : r->pending;
    r->has_gradient = (use->updates > 0 ? 0 : r->has_gradient) | use->adds;
    r->is_reduced = (use->updates > 0 ? 0 : r->is_reduced) | use->reduces;
}

/* The entry, for parts that are needed or written. */
static void plan_entry(ek_offload *o, ek_record_use *use, unsigned needed, ek_offload_entry *e)
{
    take_entry(o, use->record, e);
    use->entry = (int32_t)(e - o->entries);
    use->before = e->before;
    ek_offload_take_parts(use, &o->records[use->record], e, needed);
    e->reserved++;
}

ek_record_use *ek_offload_plan_use(ek_model *m)
{
    ek_offload *o = m->offload;
    ek_record_use *use = &o->plan.uses[o->plan.planned];
    ek_offload_entry *e = NULL;
    ek_record *r;
    unsigned needed;

    if (o->plan.planned == o->plan.n_uses)
        return NULL;
    r = &o->records[use->record];
    if (r->rests) {
        ek_offload_plan_demand(m, use);
        return use;
    }
    if (use->use == EK_WAVE_FORWARD && r->pending > 0)
        ek_offload_drop_forms(o, r);
    needed = ek_offload_parts_of(m, use, use->direction >= 0 && r->form[use->direction] >= 0);
    if (needed != 0 || use->adds) {
        e = r->entry >= 0 ? &o->entries[r->entry] : find_entry(o);
        if (e == NULL)
            return NULL;
    }
    if (!plan_own_form(o, use))
        return NULL;
    plan_other_form(o, use);
    use->read_op = use->before = -1;
    if (e != NULL)
        plan_entry(o, use, needed, e);
    use->form[0] = r->form[0];
    use->form[1] = r->form[1];
    o->stats.hits += use->reads == 0;
    o->plan.planned++;
    return use;
}

void ek_offload_release_entry(ek_offload *o, const ek_record_use *use, int32_t dep, int32_t sent)
{
    ek_offload_entry *e = &o->entries[use->entry];

    e->used = dep;
    e->sent = sent;
    e->next_use = next_need(o, use);
    e->reserved--;
}

void ek_offload_release_form(ek_offload *o, int32_t buffer, int32_t dep, int32_t sent)
{
    o->forms[buffer].used = dep;
    o->forms[buffer].sent = sent;
    o->forms[buffer].reserved--;
}
