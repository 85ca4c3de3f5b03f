/* The counter `done` counts updated extents over all steps: extent e of step t is number
 * (t - first step) * extents + e, so that nothing is reset between steps.  `touched` is done + 1
 * while an extent is being updated; the undo logs then belong to that extent. */
#include "elastic/step_journal.h"

#include <stdatomic.h>
#include <string.h>

enum { VERSION = 4, ALIGN = 64, BUFFERS = 2 };
static const char magic[8] = "EKLEDGR";

/* Double-buffered, so that one is always complete. */
typedef struct {
    _Atomic int64_t step; /* -1: incomplete */
    unsigned char bytes[EK_JOURNAL_RECORD];
} record;

/* Double-buffered likewise. */
typedef struct {
    _Atomic int64_t number; /* -1: incomplete */
    uint64_t n;
    unsigned char bytes[EK_JOURNAL_WARM_STATE];
} warm_state;

struct ek_journal_head {
    char magic[8];
    uint32_t version;
    int32_t real_bytes;
    uint64_t bytes;
    int64_t extents; /* of a step */
    int32_t lanes;
    int64_t first_step;
    _Atomic int64_t done;    /* extents updated */
    _Atomic int64_t touched; /* done + 1: extent `done` is being updated; else done */
    _Atomic int64_t reduced;
    record records[BUFFERS];
    warm_state warm_states[BUFFERS];
};

static int64_t load_acquire(const _Atomic int64_t *x)
{
    return atomic_load_explicit(x, memory_order_acquire);
}

/* A process that sees the value sees all earlier writes. */
static void store_release(_Atomic int64_t *x, int64_t to)
{
    atomic_store_explicit(x, to, memory_order_release);
}

static size_t round_up(size_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

/* --- memory ----------------------------------------------------------------------------------- */

static size_t extents_at(void)
{
    return round_up(sizeof(ek_journal_head));
}

static size_t undo_logs_at(int64_t extents)
{
    return extents_at() + round_up((size_t)extents * sizeof(ek_journal_extent));
}

size_t ek_journal_bytes(int64_t extents, int lanes)
{
    return undo_logs_at(extents) + (size_t)lanes * sizeof(ek_undo_log);
}

static void set_pointers(ek_journal *l, void *memory, int64_t extents)
{
    l->memory = memory;
    l->head = memory;
    l->extent = (ek_journal_extent *)(l->memory + extents_at());
    l->undo_logs = (ek_undo_log *)(void *)(l->memory + undo_logs_at(extents));
}

/* Checks that extents lie behind the journal, within `bytes`. */
static ek_status check_extents(const ek_journal *l, size_t bytes)
{
    const ek_journal_head *h = l->head;
    int64_t first = (int64_t)ek_journal_end(l);

    for (int64_t i = 0; i < h->extents; i++) {
        const ek_journal_extent *r = &l->extent[i];
        int64_t cap = ((int64_t)bytes - first) / h->real_bytes;

        EK_REQUIRE(r->n > 0 && r->n <= cap, EK_ECORRUPT,
                   "a step journal whose extent %lld has %lld numbers", (long long)i,
                   (long long)r->n);
        for (int j = 0; j < EK_JOURNAL_ARRAYS; j++)
            EK_REQUIRE(r->at[j] >= first && r->at[j] % h->real_bytes == 0 &&
                           r->at[j] <= (int64_t)bytes - r->n * h->real_bytes,
                       EK_ECORRUPT, "a step journal whose extent %lld lies outside of its memory",
                       (long long)i);
    }
    return EK_OK;
}

ek_status ek_journal_create(void *memory, size_t bytes, const ek_journal_extent *extents,
                            int64_t n_extents, int lanes, int real_bytes, int64_t steps_done,
                            ek_journal *l)
{
    ek_journal_head *h = memory;

    EK_REQUIRE((uintptr_t)memory % ALIGN == 0, EK_EINVAL,
               "a step journal at %p, not aligned to 64 bytes", memory);
    EK_REQUIRE(n_extents > 0 && lanes > 0 && bytes >= ek_journal_bytes(n_extents, lanes), EK_EINVAL,
               "a step journal of %lld extents and %d lanes in %zu bytes", (long long)n_extents,
               lanes, bytes);
    set_pointers(l, memory, n_extents);
    memcpy(l->extent, extents, (size_t)n_extents * sizeof(*extents));
    h->version = VERSION;
    h->real_bytes = real_bytes;
    h->bytes = bytes;
    h->extents = n_extents;
    h->lanes = lanes;
    h->first_step = steps_done;
    store_release(&h->done, 0);
    store_release(&h->touched, 0);
    store_release(&h->reduced, -1);
    for (int i = 0; i < BUFFERS; i++) {
        store_release(&h->records[i].step, -1);
        store_release(&h->warm_states[i].number, -1);
    }
    memcpy(h->magic, magic, sizeof(magic));
    return check_extents(l, bytes);
}

int ek_journal_real_bytes(const ek_journal *l)
{
    return l->head->real_bytes;
}

size_t ek_journal_end(const ek_journal *l)
{
    return ek_journal_bytes(l->head->extents, l->head->lanes);
}

ek_status ek_journal_open(void *memory, size_t bytes, ek_journal *l)
{
    const ek_journal_head *h = memory;

    EK_REQUIRE(bytes >= sizeof(*h) && memcmp(h->magic, magic, sizeof(magic)) == 0, EK_ECORRUPT,
               "the state of a rank has no step journal");
    EK_REQUIRE(h->version == VERSION && (h->real_bytes == 4 || h->real_bytes == 8) &&
                   h->bytes == bytes && h->extents > 0 && h->lanes > 0 &&
                   (uint64_t)h->extents < bytes / sizeof(ek_journal_extent) &&
                   bytes >= ek_journal_bytes(h->extents, h->lanes),
               EK_ECORRUPT,
               "a step journal of version %u with %lld extents and %d lanes in %zu bytes",
               h->version, (long long)h->extents, h->lanes, bytes);
    set_pointers(l, memory, h->extents);
    return check_extents(l, bytes);
}

/* --- steps ------------------------------------------------------------------------------------ */

void ek_journal_reduced(ek_journal *l, int64_t step)
{
    store_release(&l->head->reduced, step);
}

void ek_journal_record(ek_journal *l, int64_t step, const void *bytes, size_t n)
{
    record *r = &l->head->records[step % BUFFERS];

    store_release(&r->step, -1);
    atomic_thread_fence(memory_order_seq_cst); /* the mark before the bytes */
    memcpy(r->bytes, bytes, n);
    store_release(&r->step, step);
}

static const warm_state *newest_warm_state(const ek_journal *l)
{
    const warm_state *n = l->head->warm_states;

    return load_acquire(&n[1].number) > load_acquire(&n[0].number) ? &n[1] : &n[0];
}

static warm_state *next_warm_state(ek_journal *l)
{
    return &l->head->warm_states[newest_warm_state(l) == &l->head->warm_states[0]];
}

void *ek_journal_begin_warm_state(ek_journal *l)
{
    warm_state *n = next_warm_state(l);

    store_release(&n->number, -1);
    atomic_thread_fence(memory_order_seq_cst); /* the mark before the bytes */
    return n->bytes;
}

void ek_journal_end_warm_state(ek_journal *l, size_t bytes)
{
    warm_state *n = next_warm_state(l);

    n->n = bytes;
    store_release(&n->number, load_acquire(&newest_warm_state(l)->number) + 1);
}

/* Updates extent i, or the rest of it if its update had begun. */
static void update_extent(ek_journal *l, const ek_journal_rule *rule, const void *record_used,
                          int64_t i)
{
    ek_journal_head *h = l->head;
    void *arrays[EK_JOURNAL_ARRAYS];
    int64_t number = load_acquire(&h->done);

    for (int j = 0; j < EK_JOURNAL_ARRAYS; j++)
        arrays[j] = l->memory + l->extent[i].at[j];
    if (load_acquire(&h->touched) == number) {
        for (int lane = 0; lane < h->lanes; lane++)
            store_release(&l->undo_logs[lane].at, 0);
        store_release(&h->touched, number + 1);
        atomic_thread_fence(memory_order_seq_cst); /* the mark before the update */
    }
    rule->fn(rule->context, record_used, &l->extent[i], arrays, h->lanes, l->undo_logs);
    store_release(&h->done, number + 1);
}

void ek_journal_update(ek_journal *l, const ek_journal_rule *rule, int64_t first, int64_t end)
{
    const void *record_used = ek_journal_recorded(l);

    for (int64_t i = first; i < end; i++)
        update_extent(l, rule, record_used, i);
}

/* --- after a failure -------------------------------------------------------------------------- */

/* The record of the later step. */
static const record *newest_record(const ek_journal *l)
{
    const record *r = l->head->records;

    return load_acquire(&r[1].step) > load_acquire(&r[0].step) ? &r[1] : &r[0];
}

const void *ek_journal_recorded(const ek_journal *l)
{
    return newest_record(l)->bytes;
}

const void *ek_journal_warm_state(const ek_journal *l, size_t *bytes)
{
    const warm_state *n = newest_warm_state(l);

    *bytes = load_acquire(&n->number) >= 0 && n->n <= EK_JOURNAL_WARM_STATE ? (size_t)n->n : 0;
    return n->bytes;
}

ek_journal_state ek_journal_look(const ek_journal *l)
{
    const ek_journal_head *h = l->head;
    int64_t done = load_acquire(&h->done), touched = load_acquire(&h->touched);

    return (ek_journal_state){.steps_done = h->first_step + done / h->extents,
                              .reduced = load_acquire(&h->reduced),
                              .recorded = load_acquire(&newest_record(l)->step),
                              .begun = done % h->extents > 0 || touched > done};
}

ek_status ek_journal_check(const ek_journal *l)
{
    const ek_journal_head *h = l->head;
    int64_t done = load_acquire(&h->done), in_progress = load_acquire(&h->touched) - done, n;

    EK_REQUIRE(done >= 0 && (in_progress == 0 || in_progress == 1), EK_ECORRUPT,
               "a step journal that has updated %lld extents and begun %lld", (long long)done,
               (long long)load_acquire(&h->touched));
    if (in_progress == 0)
        return EK_OK;
    n = l->extent[done % h->extents].n;
    for (int lane = 0; lane < h->lanes; lane++) {
        int64_t at = load_acquire(&l->undo_logs[lane].at);
        int64_t own =
            ek_undo_lane_first(n, h->lanes, lane + 1) - ek_undo_lane_first(n, h->lanes, lane);

        EK_REQUIRE(at >= 0 && at <= own && (at % EK_UNDO_BLOCK == 0 || at == own), EK_ECORRUPT,
                   "a step journal whose lane %d has updated %lld of %lld numbers", lane,
                   (long long)at, (long long)own);
    }
    return EK_OK;
}

ek_status ek_journal_finish(ek_journal *l, const ek_journal_rule *rule, int64_t step,
                            const void *record_used)
{
    ek_journal_head *h = l->head;
    ek_journal_state s = ek_journal_look(l);

    EK_REQUIRE(s.steps_done == step && s.reduced == step, EK_ESTATE,
               "step %lld cannot be finished by a rank that has done %lld and reduced %lld",
               (long long)step, (long long)s.steps_done, (long long)s.reduced);
    EK_TRY(ek_journal_check(l));
    for (int64_t i = load_acquire(&h->done) % h->extents; i < h->extents; i++)
        update_extent(l, rule, record_used, i);
    return EK_OK;
}
