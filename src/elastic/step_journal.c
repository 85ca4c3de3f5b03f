/* One counter says how far updates have come, over all steps: run r of step t is number
 * (t - first step) * runs + r, so that nothing has to be set back between steps.  A second one says
 * which run is under way; it is one ahead of the first while that is so, and the trails are then
 * that run's. */
#include "elastic/step_journal.h"

#include <stdatomic.h>
#include <string.h>

enum { VERSION = 4, ALIGN = 64, RECORDS = 2 };
static const char magic[8] = "EKLEDGR";

/* Two of them take turns, so that one is always whole. */
typedef struct {
    _Atomic int64_t step; /* -1: not whole */
    unsigned char bytes[EK_JOURNAL_RECORD];
} record;

/* Likewise. */
typedef struct {
    _Atomic int64_t number; /* -1: not whole */
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
    _Atomic int64_t done;    /* runs that are updated */
    _Atomic int64_t touched; /* done + 1: run `done` is under way; else done */
    _Atomic int64_t reduced;
    record records[RECORDS];
    warm_state notes[RECORDS];
};

static int64_t get(const _Atomic int64_t *x)
{
    return atomic_load_explicit(x, memory_order_acquire);
}

/* All that was written before is there for whoever sees it. */
static void set(_Atomic int64_t *x, int64_t to)
{
    atomic_store_explicit(x, to, memory_order_release);
}

static size_t round_up(size_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

/* --- memory ------------------------------------------------------------------------------------
 */

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

static void point(ek_journal *l, void *memory, int64_t extents)
{
    l->memory = memory;
    l->head = memory;
    l->extent = (ek_journal_extent *)(l->memory + extents_at());
    l->undo_logs = (ek_undo_log *)(void *)(l->memory + undo_logs_at(extents));
}

/* Whether the runs lie behind the ledger, within `bytes`. */
static ek_status check_extents(const ek_journal *l, size_t bytes)
{
    const ek_journal_head *h = l->head;
    int64_t first = (int64_t)ek_journal_end(l);

    for (int64_t i = 0; i < h->extents; i++) {
        const ek_journal_extent *r = &l->extent[i];
        int64_t room = ((int64_t)bytes - first) / h->real_bytes;

        EK_REQUIRE(r->n > 0 && r->n <= room, EK_ECORRUPT,
                   "a ledger whose run %lld has %lld numbers", (long long)i, (long long)r->n);
        for (int j = 0; j < EK_JOURNAL_ARRAYS; j++)
            EK_REQUIRE(r->at[j] >= first && r->at[j] % h->real_bytes == 0 &&
                           r->at[j] <= (int64_t)bytes - r->n * h->real_bytes,
                       EK_ECORRUPT, "a ledger whose run %lld lies outside of its memory",
                       (long long)i);
    }
    return EK_OK;
}

ek_status ek_journal_create(void *memory, size_t bytes, const ek_journal_extent *extents,
                            int64_t n_extents, int lanes, int real_bytes, int64_t steps_done,
                            ek_journal *l)
{
    ek_journal_head *h = memory;

    EK_REQUIRE((uintptr_t)memory % ALIGN == 0, EK_EINVAL, "a ledger at %p", memory);
    EK_REQUIRE(n_extents > 0 && lanes > 0 && bytes >= ek_journal_bytes(n_extents, lanes), EK_EINVAL,
               "a ledger of %lld runs and %d lanes in %zu bytes", (long long)n_extents, lanes,
               bytes);
    point(l, memory, n_extents);
    memcpy(l->extent, extents, (size_t)n_extents * sizeof(*extents));
    h->version = VERSION;
    h->real_bytes = real_bytes;
    h->bytes = bytes;
    h->extents = n_extents;
    h->lanes = lanes;
    h->first_step = steps_done;
    set(&h->done, 0);
    set(&h->touched, 0);
    set(&h->reduced, -1);
    for (int i = 0; i < RECORDS; i++) {
        set(&h->records[i].step, -1);
        set(&h->notes[i].number, -1);
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
               "there is no ledger in the state of a rank");
    EK_REQUIRE(h->version == VERSION && (h->real_bytes == 4 || h->real_bytes == 8) &&
                   h->bytes == bytes && h->extents > 0 && h->lanes > 0 &&
                   (uint64_t)h->extents < bytes / sizeof(ek_journal_extent) &&
                   bytes >= ek_journal_bytes(h->extents, h->lanes),
               EK_ECORRUPT, "a ledger of version %u with %lld runs and %d lanes in %zu bytes",
               h->version, (long long)h->extents, h->lanes, bytes);
    point(l, memory, h->extents);
    return check_extents(l, bytes);
}

/* --- steps -------------------------------------------------------------------------------------
 */

void ek_journal_reduced(ek_journal *l, int64_t step)
{
    set(&l->head->reduced, step);
}

void ek_journal_record(ek_journal *l, int64_t step, const void *bytes, size_t n)
{
    record *r = &l->head->records[step % RECORDS];

    set(&r->step, -1);
    atomic_thread_fence(memory_order_seq_cst); /* the mark before the bytes */
    memcpy(r->bytes, bytes, n);
    set(&r->step, step);
}

static const warm_state *newest_warm_state(const ek_journal *l)
{
    const warm_state *n = l->head->notes;

    return get(&n[1].number) > get(&n[0].number) ? &n[1] : &n[0];
}

static warm_state *next_warm_state(ek_journal *l)
{
    return &l->head->notes[newest_warm_state(l) == &l->head->notes[0]];
}

void *ek_journal_begin_warm_state(ek_journal *l)
{
    warm_state *n = next_warm_state(l);

    set(&n->number, -1);
    atomic_thread_fence(memory_order_seq_cst); /* the mark before the bytes */
    return n->bytes;
}

void ek_journal_end_warm_state(ek_journal *l, size_t bytes)
{
    warm_state *n = next_warm_state(l);

    n->n = bytes;
    set(&n->number, get(&newest_warm_state(l)->number) + 1);
}

/* Updates run i, or what is left of the one under way. */
static void update_run(ek_journal *l, const ek_journal_rule *rule, const void *by, int64_t i)
{
    ek_journal_head *h = l->head;
    void *arrays[EK_JOURNAL_ARRAYS];
    int64_t number = get(&h->done);

    for (int j = 0; j < EK_JOURNAL_ARRAYS; j++)
        arrays[j] = l->memory + l->extent[i].at[j];
    if (get(&h->touched) == number) {
        for (int lane = 0; lane < h->lanes; lane++)
            set(&l->undo_logs[lane].at, 0);
        set(&h->touched, number + 1);
        atomic_thread_fence(memory_order_seq_cst); /* the mark before the update */
    }
    rule->fn(rule->context, by, &l->extent[i], arrays, h->lanes, l->undo_logs);
    set(&h->done, number + 1);
}

void ek_journal_update(ek_journal *l, const ek_journal_rule *rule, int64_t first, int64_t end)
{
    const void *by = ek_journal_recorded(l);

    for (int64_t i = first; i < end; i++)
        update_run(l, rule, by, i);
}

/* --- after a failure ---------------------------------------------------------------------------
 */

/* The record of the later step. */
static const record *newest(const ek_journal *l)
{
    const record *r = l->head->records;

    return get(&r[1].step) > get(&r[0].step) ? &r[1] : &r[0];
}

const void *ek_journal_recorded(const ek_journal *l)
{
    return newest(l)->bytes;
}

const void *ek_journal_warm_state(const ek_journal *l, size_t *bytes)
{
    const warm_state *n = newest_warm_state(l);

    *bytes = get(&n->number) >= 0 && n->n <= EK_JOURNAL_WARM_STATE ? (size_t)n->n : 0;
    return n->bytes;
}

ek_journal_state ek_journal_look(const ek_journal *l)
{
    const ek_journal_head *h = l->head;
    int64_t done = get(&h->done), touched = get(&h->touched);

    return (ek_journal_state){.steps_done = h->first_step + done / h->extents,
                              .reduced = get(&h->reduced),
                              .recorded = get(&newest(l)->step),
                              .begun = done % h->extents > 0 || touched > done};
}

ek_status ek_journal_check(const ek_journal *l)
{
    const ek_journal_head *h = l->head;
    int64_t done = get(&h->done), ahead = get(&h->touched) - done, n;

    EK_REQUIRE(done >= 0 && (ahead == 0 || ahead == 1), EK_ECORRUPT,
               "a ledger that has updated %lld runs and begun %lld", (long long)done,
               (long long)get(&h->touched));
    if (ahead == 0)
        return EK_OK;
    n = l->extent[done % h->extents].n;
    for (int lane = 0; lane < h->lanes; lane++) {
        int64_t at = get(&l->undo_logs[lane].at);
        int64_t own =
            ek_undo_lane_first(n, h->lanes, lane + 1) - ek_undo_lane_first(n, h->lanes, lane);

        EK_REQUIRE(at >= 0 && at <= own && (at % EK_UNDO_BLOCK == 0 || at == own), EK_ECORRUPT,
                   "a ledger whose lane %d has come to %lld of %lld numbers", lane, (long long)at,
                   (long long)own);
    }
    return EK_OK;
}

ek_status ek_journal_finish(ek_journal *l, const ek_journal_rule *rule, int64_t step,
                            const void *by)
{
    ek_journal_head *h = l->head;
    ek_journal_state s = ek_journal_look(l);

    EK_REQUIRE(s.steps_done == step && s.reduced == step, EK_ESTATE,
               "step %lld cannot be finished by a rank that has done %lld and reduced %lld",
               (long long)step, (long long)s.steps_done, (long long)s.reduced);
    EK_TRY(ek_journal_check(l));
    for (int64_t i = get(&h->done) % h->extents; i < h->extents; i++)
        update_run(l, rule, by, i);
    return EK_OK;
}
