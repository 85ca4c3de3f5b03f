/* One counter says how far updates have come, over all steps: chunk c of step t is number
 * (t - first step) * chunks + c, so that nothing has to be set back between steps.  A second one
 * says which chunk may be half done; it is one ahead of the first while that is so. */
#include "elastic/ledger.h"

#include <stdatomic.h>
#include <string.h>

enum { VERSION = 3, ALIGN = 64, RECORDS = 2 };
static const char magic[8] = "EKLEDGR";

/* Two of them take turns, so that one is always whole. */
typedef struct {
    _Atomic int64_t step; /* -1: not whole */
    unsigned char bytes[EK_LEDGER_RECORD];
} record;

/* Likewise. */
typedef struct {
    _Atomic int64_t number; /* -1: not whole */
    uint64_t n;
    unsigned char bytes[EK_LEDGER_NOTE];
} note;

struct ek_ledger_head {
    char magic[8];
    uint32_t version;
    int32_t real_bytes;
    uint64_t bytes;
    int64_t runs, chunks; /* of a step */
    int64_t first_step;
    _Atomic int64_t done;    /* chunks that are updated */
    _Atomic int64_t touched; /* done + 1: the copy of chunk `done` is whole, and it may be half
                                updated; else done */
    _Atomic int64_t reduced;
    record records[RECORDS];
    note notes[RECORDS];
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

static int64_t chunks_of(const ek_ledger_run *r)
{
    return (r->n + EK_LEDGER_CHUNK - 1) / EK_LEDGER_CHUNK;
}

/* --- memory ------------------------------------------------------------------------------------
 */

static size_t runs_at(void)
{
    return round_up(sizeof(ek_ledger_head));
}

static size_t undo_at(int64_t runs)
{
    return runs_at() + round_up((size_t)runs * sizeof(ek_ledger_run));
}

size_t ek_ledger_bytes(int64_t runs, int real_bytes)
{
    return undo_at(runs) +
           round_up((size_t)EK_LEDGER_ARRAYS * EK_LEDGER_CHUNK * (size_t)real_bytes);
}

static void point(ek_ledger *l, void *memory, int64_t runs)
{
    l->memory = memory;
    l->head = memory;
    l->run = (ek_ledger_run *)(l->memory + runs_at());
    l->undo = l->memory + undo_at(runs);
}

/* Whether the runs lie behind the ledger, within `bytes`, and are numbered as they should be. */
static ek_status check_runs(const ek_ledger *l, size_t bytes)
{
    const ek_ledger_head *h = l->head;
    int64_t first = (int64_t)ek_ledger_bytes(h->runs, h->real_bytes), chunks = 0;

    for (int64_t i = 0; i < h->runs; i++) {
        const ek_ledger_run *r = &l->run[i];
        int64_t room = ((int64_t)bytes - first) / h->real_bytes;

        EK_REQUIRE(r->n > 0 && r->n <= room && r->first == chunks, EK_ECORRUPT,
                   "a ledger whose run %lld has %lld numbers", (long long)i, (long long)r->n);
        chunks += chunks_of(r);
        for (int j = 0; j < EK_LEDGER_ARRAYS; j++)
            EK_REQUIRE(r->at[j] >= first && r->at[j] % h->real_bytes == 0 &&
                           r->at[j] <= (int64_t)bytes - r->n * h->real_bytes,
                       EK_ECORRUPT, "a ledger whose run %lld lies outside of its memory",
                       (long long)i);
    }
    EK_REQUIRE(h->chunks == chunks && chunks > 0, EK_ECORRUPT,
               "a ledger of %lld chunks instead of %lld", (long long)h->chunks, (long long)chunks);
    return EK_OK;
}

ek_status ek_ledger_create(void *memory, size_t bytes, const ek_ledger_run *runs, int64_t n_runs,
                           int real_bytes, int64_t steps_done, ek_ledger *l)
{
    ek_ledger_head *h = memory;

    EK_REQUIRE(n_runs > 0 && bytes >= ek_ledger_bytes(n_runs, real_bytes), EK_EINVAL,
               "a ledger of %lld runs in %zu bytes", (long long)n_runs, bytes);
    point(l, memory, n_runs);
    memcpy(l->run, runs, (size_t)n_runs * sizeof(*runs));
    h->version = VERSION;
    h->real_bytes = real_bytes;
    h->bytes = bytes;
    h->runs = n_runs;
    h->first_step = steps_done;
    h->chunks = 0;
    for (int64_t i = 0; i < n_runs; i++) {
        l->run[i].first = h->chunks;
        h->chunks += chunks_of(&l->run[i]);
    }
    set(&h->done, 0);
    set(&h->touched, 0);
    set(&h->reduced, -1);
    for (int i = 0; i < RECORDS; i++) {
        set(&h->records[i].step, -1);
        set(&h->notes[i].number, -1);
    }
    memcpy(h->magic, magic, sizeof(magic));
    return check_runs(l, bytes);
}

int ek_ledger_real_bytes(const ek_ledger *l)
{
    return l->head->real_bytes;
}

size_t ek_ledger_end(const ek_ledger *l)
{
    return ek_ledger_bytes(l->head->runs, l->head->real_bytes);
}

ek_status ek_ledger_open(void *memory, size_t bytes, ek_ledger *l)
{
    const ek_ledger_head *h = memory;

    EK_REQUIRE(bytes >= sizeof(*h) && memcmp(h->magic, magic, sizeof(magic)) == 0, EK_ECORRUPT,
               "there is no ledger in the state of a rank");
    EK_REQUIRE(h->version == VERSION && (h->real_bytes == 4 || h->real_bytes == 8) &&
                   h->bytes == bytes && h->runs > 0 &&
                   (uint64_t)h->runs < bytes / sizeof(ek_ledger_run) &&
                   bytes >= ek_ledger_bytes(h->runs, h->real_bytes),
               EK_ECORRUPT, "a ledger of version %u with %lld runs in %zu bytes", h->version,
               (long long)h->runs, bytes);
    point(l, memory, h->runs);
    return check_runs(l, bytes);
}

/* --- steps -------------------------------------------------------------------------------------
 */

void ek_ledger_reduced(ek_ledger *l, int64_t step)
{
    set(&l->head->reduced, step);
}

void ek_ledger_record(ek_ledger *l, int64_t step, const void *bytes, size_t n)
{
    record *r = &l->head->records[step % RECORDS];

    set(&r->step, -1);
    atomic_thread_fence(memory_order_seq_cst); /* the mark before the bytes */
    memcpy(r->bytes, bytes, n);
    set(&r->step, step);
}

static const note *newest_note(const ek_ledger *l)
{
    const note *n = l->head->notes;

    return get(&n[1].number) > get(&n[0].number) ? &n[1] : &n[0];
}

static note *next_note(ek_ledger *l)
{
    return &l->head->notes[newest_note(l) == &l->head->notes[0]];
}

void *ek_ledger_begin_note(ek_ledger *l)
{
    note *n = next_note(l);

    set(&n->number, -1);
    atomic_thread_fence(memory_order_seq_cst); /* the mark before the bytes */
    return n->bytes;
}

void ek_ledger_end_note(ek_ledger *l, size_t bytes)
{
    note *n = next_note(l);

    n->n = bytes;
    set(&n->number, get(&newest_note(l)->number) + 1);
}

/* The arrays of a chunk, and its numbers: chunk `at` of a run. */
static int64_t chunk_of(const ek_ledger *l, const ek_ledger_run *r, int64_t at,
                        void *arrays[EK_LEDGER_ARRAYS])
{
    int64_t from = at * EK_LEDGER_CHUNK, n = r->n - from;

    for (int j = 0; j < EK_LEDGER_ARRAYS; j++)
        arrays[j] = l->memory + r->at[j] + from * l->head->real_bytes;
    return n < EK_LEDGER_CHUNK ? n : EK_LEDGER_CHUNK;
}

/* Copies a chunk to the undo area, or back. */
static void copy(ek_ledger *l, int64_t n, void *const arrays[EK_LEDGER_ARRAYS], int back)
{
    size_t bytes = (size_t)(n * l->head->real_bytes);
    unsigned char *kept = l->undo;

    for (int j = 0; j < EK_LEDGER_ARRAYS; j++) {
        if (back)
            memcpy(arrays[j], kept, bytes);
        else
            memcpy(kept, arrays[j], bytes);
        kept += (size_t)EK_LEDGER_CHUNK * (size_t)l->head->real_bytes;
    }
}

/* Updates chunks of a run from its chunk `at` on. */
static void update_run(ek_ledger *l, const ek_ledger_rule *rule, const void *by,
                       const ek_ledger_run *r, int64_t at)
{
    ek_ledger_head *h = l->head;
    void *arrays[EK_LEDGER_ARRAYS];

    for (; at < chunks_of(r); at++) {
        int64_t n = chunk_of(l, r, at, arrays), number = get(&h->done);

        copy(l, n, arrays, 0);
        set(&h->touched, number + 1);
        atomic_thread_fence(memory_order_seq_cst); /* the mark before the update */
        rule->fn(rule->context, by, r, n, arrays);
        set(&h->done, number + 1);
    }
}

void ek_ledger_update(ek_ledger *l, const ek_ledger_rule *rule, int64_t first, int64_t end)
{
    const void *by = ek_ledger_recorded(l);

    for (int64_t i = first; i < end; i++)
        update_run(l, rule, by, &l->run[i], 0);
}

/* --- after a failure ---------------------------------------------------------------------------
 */

/* The record of the later step. */
static const record *newest(const ek_ledger *l)
{
    const record *r = l->head->records;

    return get(&r[1].step) > get(&r[0].step) ? &r[1] : &r[0];
}

const void *ek_ledger_recorded(const ek_ledger *l)
{
    return newest(l)->bytes;
}

const void *ek_ledger_noted(const ek_ledger *l, size_t *bytes)
{
    const note *n = newest_note(l);

    *bytes = get(&n->number) >= 0 && n->n <= EK_LEDGER_NOTE ? (size_t)n->n : 0;
    return n->bytes;
}

ek_ledger_state ek_ledger_look(const ek_ledger *l)
{
    const ek_ledger_head *h = l->head;
    int64_t done = get(&h->done), touched = get(&h->touched);

    return (ek_ledger_state){.steps_done = h->first_step + done / h->chunks,
                             .reduced = get(&h->reduced),
                             .recorded = get(&newest(l)->step),
                             .begun = done % h->chunks > 0 || touched > done};
}

ek_status ek_ledger_finish(ek_ledger *l, const ek_ledger_rule *rule, int64_t step, const void *by)
{
    ek_ledger_head *h = l->head;
    ek_ledger_state s = ek_ledger_look(l);
    int64_t done = get(&h->done), at = done % h->chunks;
    void *arrays[EK_LEDGER_ARRAYS];

    EK_REQUIRE(s.steps_done == step && s.reduced == step, EK_ESTATE,
               "step %lld cannot be finished by a rank that has done %lld and reduced %lld",
               (long long)step, (long long)s.steps_done, (long long)s.reduced);
    for (int64_t i = 0; i < h->runs; i++) {
        const ek_ledger_run *r = &l->run[i];
        int64_t in = at - r->first;

        if (in >= chunks_of(r))
            continue;
        if (in >= 0 && get(&h->touched) > done) {
            int64_t n = chunk_of(l, r, in, arrays);

            copy(l, n, arrays, 1);
            set(&h->touched, done);
        }
        update_run(l, rule, by, r, in > 0 ? in : 0);
    }
    return EK_OK;
}
