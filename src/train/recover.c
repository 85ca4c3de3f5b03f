/* Finds survivors, finishes their step, and fills new segments: see the header.  Shard tables are
 * small compared with the state, so all ranks get all of them and make the same copy plan. */
#include "train/recover.h"

#include "base/log.h"
#include "comm/agree.h"
#include "elastic/adopt_blocks.h"
#include "elastic/prealloc.h"

#include <stdlib.h>
#include <string.h>

static ek_status wait_coll(ek_status st, ek_coll **op)
{
    return st < 0 ? st : ek_coll_wait(op);
}

static ek_status broadcast_bytes(ek_recovery *r, void *buf, size_t bytes, int root)
{
    ek_coll *op = NULL;

    if (r->ranks == 1 || bytes == 0)
        return EK_OK;
    return wait_coll(ek_comm_broadcast(r->world, buf, (int64_t)bytes, root, &op), &op);
}

static int rank_host(const ek_recovery *r, int rank)
{
    return r->ranks > 1 ? ek_comm_node(r->world, rank) : 0;
}

/* The rank of this host that serves a segment. */
static int serving_rank(const ek_recovery *r, const ek_segment_id *id)
{
    int n = 0, at = 0;

    for (int rank = 0; rank < r->ranks; rank++)
        n += rank_host(r, rank) == rank_host(r, r->rank);
    for (int rank = 0; rank < r->ranks; rank++)
        if (rank_host(r, rank) == rank_host(r, r->rank) && at++ == id->rank % n)
            return rank;
    return r->rank;
}

/* --- finding survivors ------------------------------------------------------------------------ */

/* Seconds to wait for the exit of a killed process; and before a process that still holds a segment
 * is killed, as its mpiexec hangs or both are stopped. */
static const double exit_timeout_s = 20, grace_s = 1;

static ek_status open_tables(ek_found_segment *f)
{
    const ek_segment *s = &f->segment;
    size_t end;

    EK_TRY(ek_journal_open(s->body, s->body_bytes, &f->journal));
    EK_TRY(ek_journal_check(&f->journal));
    end = ek_journal_end(&f->journal);
    return ek_shard_table_open(s->body + end, s->body_bytes - end, s->body_bytes,
                               ek_journal_real_bytes(&f->journal), &f->shards);
}

/* Removes an incomplete segment.  Fails for a segment that another process holds, or that another
 * version of evenkeel wrote. */
static ek_status open_served_segment(const ek_recovery *r, ek_found_segment *f)
{
    ek_segment *s = &f->segment;
    ek_status st = ek_segment_open(&f->id, grace_s, s);

    if (st == EK_ESTATE) {
        int pid = ek_segment_kill_holder(&f->id, r->supervisor_id);

        if (pid > 0)
            ek_log("elastic", EK_LOG_WARN,
                   "process %d of an earlier start still ran, and was killed", pid);
        st = ek_segment_open(&f->id, exit_timeout_s, s);
    }
    if (st == EK_ENOENT || st == EK_ECORRUPT)
        return ek_segment_remove(&f->id); /* some of its blocks may exist */
    EK_TRY(st);
    f->prealloc = ek_prealloc_is(&f->id);
    if (f->prealloc)
        return EK_OK;
    if (ek_segment_phase_of(s) == EK_SEGMENT_BUILDING) {
        ek_segment_close(s);
        return ek_segment_remove(&f->id);
    }
    if (open_tables(f) < 0) {
        ek_log("elastic", EK_LOG_WARN, "%s; it is not used", ek_err_message());
        ek_segment_close(s);
    }
    return EK_OK;
}

/* Warns, once a host, of a folder with a name of this run that is not used. */
static ek_status warn_of_foreign(const ek_recovery *r)
{
    const ek_segment_id first = {0};
    char text[512];

    if (serving_rank(r, &first) != r->rank)
        return EK_OK;
    EK_TRY(ek_segment_foreign(r->run, text, sizeof(text)));
    if (text[0] != '\0')
        ek_log("elastic", EK_LOG_WARN, "%s, and is ignored", text);
    return EK_OK;
}

static ek_status open_segments(ek_recovery *r)
{
    ek_segment_id *ids = NULL;
    int64_t n = 0;
    ek_status st;

    EK_TRY_OUT(warn_of_foreign(r));
    EK_TRY_OUT(ek_segment_list(r->run, &ids, &n));
    r->found = calloc((size_t)n + 1, sizeof(*r->found));
    EK_REQUIRE_OUT(r->found != NULL, EK_ENOMEM, "no memory for %lld segments", (long long)n);
    r->n_found = n;
    for (int64_t i = 0; i < n; i++) {
        ek_found_segment *f = &r->found[i];

        *f = (ek_found_segment){
            .id = ids[i], .served = serving_rank(r, &ids[i]) == r->rank, .survivor = -1};
        if (f->served)
            EK_TRY_OUT(open_served_segment(r, f));
    }
out:
    free(ids);
    return st;
}

/* Opens the segments of this host that other ranks serve, to copy from them. */
static ek_status open_unserved_segments(ek_recovery *r)
{
    for (int64_t i = 0; i < r->n_found; i++) {
        ek_found_segment *f = &r->found[i];

        if (f->served || f->survivor < 0 || r->survivors[f->survivor].role == EK_SURVIVOR_STALE)
            continue;
        EK_TRY(ek_segment_open(&f->id, -1, &f->segment));
        EK_TRY(open_tables(f));
    }
    return EK_OK;
}

/* Summary of what one rank serves. */
typedef struct {
    int64_t generation; /* 1 + the newest that this rank has found, in any phase */
    int64_t n;          /* segments with state */
} serving_summary;

static ek_survivor_info survivor_of(const ek_recovery *r, const ek_found_segment *f)
{
    return (ek_survivor_info){.survivor = {.generation = f->id.generation,
                                           .rank = f->id.rank,
                                           .phase = (int32_t)ek_segment_phase_of(&f->segment),
                                           .state = ek_journal_look(&f->journal)},
                              .host = rank_host(r, r->rank),
                              .server = r->rank,
                              .fingerprint = f->segment.head->fingerprint,
                              .shards = f->shards.n,
                              .ranks = f->segment.head->ranks};
}

static int is_served_state(const ek_recovery *r, int64_t i)
{
    return r->found[i].served && r->found[i].segment.head != NULL && !r->found[i].prealloc;
}

/* Gathers survivors, ordered by serving rank, so that all ranks have the same list.  all [ranks].
 */
static ek_status gather_survivors(ek_recovery *r, serving_summary *all)
{
    ek_survivor_info *mine;
    int64_t most = 0, n = 0;
    ek_status st = EK_OK;

    for (int64_t i = 0; i < r->n_found; i++)
        all[r->rank].n += is_served_state(r, i);
    for (int64_t i = 0; i < r->n_found; i++)
        if (!ek_prealloc_is(&r->found[i].id) &&
            r->found[i].id.generation >= all[r->rank].generation)
            all[r->rank].generation = r->found[i].id.generation + 1;
    EK_TRY(ek_gather(r->world, all, sizeof(*all)));
    for (int i = 0; i < r->ranks; i++) {
        most = all[i].n > most ? all[i].n : most;
        r->generation =
            all[i].generation > r->generation ? (int32_t)all[i].generation : r->generation;
    }
    mine = calloc((size_t)(r->ranks * most) + 1, sizeof(*mine));
    r->survivors = calloc((size_t)(r->ranks * most) + 1, sizeof(*r->survivors));
    EK_REQUIRE_OUT(mine != NULL && r->survivors != NULL, EK_ENOMEM, "no memory for %lld segments",
                   (long long)(r->ranks * most));
    for (int64_t i = 0; i < r->n_found; i++)
        if (is_served_state(r, i))
            mine[r->rank * most + n++] = survivor_of(r, &r->found[i]);
    if (most > 0)
        EK_TRY_OUT(ek_gather(r->world, mine, (size_t)most * sizeof(*mine)));
    for (int i = 0; i < r->ranks; i++)
        for (int64_t j = 0; j < all[i].n; j++)
            r->survivors[r->n_survivors++] = mine[i * most + j];
out:
    free(mine);
    return st;
}

/* Sets found[].survivor of this host's segments. */
static void match_segments(ek_recovery *r)
{
    for (int64_t i = 0; i < r->n_found; i++)
        for (int32_t j = 0; j < r->n_survivors; j++)
            if (r->survivors[j].host == rank_host(r, r->rank) &&
                r->survivors[j].survivor.generation == r->found[i].id.generation &&
                r->survivors[j].survivor.rank == r->found[i].id.rank)
                r->found[i].survivor = j;
}

static ek_status decide_recovery(ek_recovery *r)
{
    ek_survivor *of = calloc((size_t)r->n_survivors + 1, sizeof(*of));
    ek_survivor_role *role = calloc((size_t)r->n_survivors + 1, sizeof(*role));
    ek_status st = EK_OK;

    EK_REQUIRE_OUT(of != NULL && role != NULL, EK_ENOMEM, "no memory for %d ranks", r->n_survivors);
    for (int32_t i = 0; i < r->n_survivors; i++)
        of[i] = r->survivors[i].survivor;
    r->decision = ek_recovery_decide(of, r->n_survivors, role);
    for (int32_t i = 0; i < r->n_survivors; i++) {
        r->survivors[i].role = role[i];
        r->finished += role[i] == EK_SURVIVOR_FINISH;
        if (role[i] == EK_SURVIVOR_UNUSABLE && r->rank == 0)
            ek_log("elastic", EK_LOG_WARN,
                   "the state of earlier rank %d is at step %lld and cannot be brought to step "
                   "%lld; it is not used",
                   (int)of[i].rank, (long long)of[i].state.steps_done,
                   (long long)r->decision.steps_done);
    }
out:
    free(of);
    free(role);
    return st;
}

/* --- the step under way ----------------------------------------------------------------------- */

/* The segment of a survivor, if this rank serves it; else NULL. */
static ek_found_segment *served_segment(const ek_recovery *r, int32_t survivor)
{
    for (int64_t i = 0; i < r->n_found; i++)
        if (r->found[i].survivor == survivor && is_served_state(r, i))
            return &r->found[i];
    return NULL;
}

static ek_status finish_served(ek_recovery *r, const ek_kernels *k)
{
    ek_journal_rule rule = ek_optimizer_rule(k);

    for (int32_t i = 0; i < r->n_survivors; i++) {
        ek_found_segment *f = served_segment(r, i);

        if (f == NULL || r->survivors[i].role != EK_SURVIVOR_FINISH)
            continue;
        EK_REQUIRE(ek_journal_real_bytes(&f->journal) == r->real, EK_EINVAL,
                   "the run in memory has numbers of %d bytes; give the same --dtype",
                   ek_journal_real_bytes(&f->journal));
        EK_TRY(ek_journal_finish(&f->journal, &rule, r->decision.steps_done - 1, &r->record));
    }
    return EK_OK;
}

/* Broadcasts the record; survivors that have not done the last step finish it. */
static ek_status finish_step(ek_recovery *r, const ek_kernels *k)
{
    const ek_found_segment *f;

    if (r->decision.record < 0)
        return EK_OK;
    f = served_segment(r, r->decision.record);
    if (f != NULL)
        memcpy(&r->record, ek_journal_recorded(&f->journal), sizeof(r->record));
    EK_TRY(
        broadcast_bytes(r, &r->record, sizeof(r->record), r->survivors[r->decision.record].server));
    return ek_agree(r->world, "finish a step", finish_served(r, k));
}

/* Removes segments of other generations, to free memory. */
static ek_status remove_old(ek_recovery *r)
{
    for (int64_t i = 0; i < r->n_found; i++) {
        ek_found_segment *f = &r->found[i];

        if (!is_served_state(r, i) || r->survivors[f->survivor].role != EK_SURVIVOR_STALE)
            continue;
        ek_segment_close(&f->segment);
        EK_TRY(ek_segment_remove(&f->id));
    }
    return EK_OK;
}

ek_status ek_recover_find(ek_recovery *r, ek_comm *world, uint64_t run, uint64_t supervisor_id,
                          const ek_kernels *k)
{
    serving_summary *all;
    ek_status st = EK_OK;

    *r = (ek_recovery){.world = world,
                       .ranks = 1,
                       .run = run,
                       .supervisor_id = supervisor_id,
                       .decision = {-1, 0, -1}};
    r->real = (int)ek_dtype_size(k->real);
    if (world != NULL) {
        r->rank = ek_comm_rank(world);
        r->ranks = ek_comm_size(world);
    }
    all = calloc((size_t)r->ranks, sizeof(*all));
    EK_TRY_OUT(ek_agree(world, "look for the state of the run",
                        all != NULL ? open_segments(r)
                                    : EK_FAIL(EK_ENOMEM, "no memory for %d ranks", r->ranks)));
    EK_TRY_OUT(gather_survivors(r, all));
    match_segments(r);
    EK_TRY_OUT(decide_recovery(r));
    EK_TRY_OUT(finish_step(r, k));
    EK_TRY_OUT(ek_agree(world, "remove unusable state", remove_old(r)));
    EK_TRY_OUT(ek_agree(world, "open the state of the run", open_unserved_segments(r)));
out:
    free(all);
    return st;
}

ek_status ek_recover_check(const ek_recovery *r, uint64_t fingerprint, const char *out)
{
    for (int32_t i = 0; i < r->n_survivors; i++)
        EK_REQUIRE(r->survivors[i].role == EK_SURVIVOR_STALE ||
                       r->survivors[i].fingerprint == fingerprint,
                   EK_EINVAL,
                   "--elastic: memory holds the state of a run with --out %s and another model, "
                   "other data or settings; give the same, or discard that state with `evenkeel "
                   "clean --out %s`",
                   out, out);
    return EK_OK;
}

/* --- filling ---------------------------------------------------------------------------------- */

/* Survivors, wants, and the copy plan between them. */
typedef struct {
    const ek_shard_owner *survivors;
    const int32_t *survivor_of;
    ek_shard_owner *wants; /* [ranks] */
    ek_state_copy *copies;
    int64_t n;
} exchange;

/* Broadcasts the table of n shards of rank `from`; mine: its table, on that rank only. */
static ek_status broadcast_table(ek_recovery *r, ek_shard_owner *h, int64_t n, const ek_shard *mine,
                                 int from)
{
    size_t bytes = (size_t)n * sizeof(*h->shards.shard);

    h->shards.n = n;
    h->shards.shard = malloc(bytes + 1);
    EK_REQUIRE(h->shards.shard != NULL, EK_ENOMEM, "no memory for %lld parts", (long long)n);
    if (r->rank == from && bytes > 0)
        memcpy(h->shards.shard, mine, bytes);
    return broadcast_bytes(r, h->shards.shard, bytes, from);
}

/* Broadcasts the warm state of the first usable survivor; ranks of a stage have the same. */
static ek_status broadcast_warm_state(ek_recovery *r)
{
    const ek_survivor_info *l = &r->survivors[r->table_survivor[0]];
    const ek_found_segment *f = served_segment(r, r->table_survivor[0]);
    size_t bytes = 0;
    const void *warm_state = f != NULL ? ek_journal_warm_state(&f->journal, &bytes) : NULL;

    r->warm_state_bytes = bytes;
    EK_TRY(broadcast_bytes(r, &r->warm_state_bytes, sizeof(r->warm_state_bytes), l->server));
    r->warm_state = malloc(r->warm_state_bytes + 1);
    EK_REQUIRE(r->warm_state != NULL, EK_ENOMEM, "no memory for the warm state");
    if (f != NULL)
        memcpy(r->warm_state, warm_state, bytes);
    return broadcast_bytes(r, r->warm_state, r->warm_state_bytes, l->server);
}

ek_status ek_recover_read_tables(ek_recovery *r)
{
    r->tables = calloc((size_t)r->n_survivors + 1, sizeof(*r->tables));
    r->table_survivor = calloc((size_t)r->n_survivors + 1, sizeof(*r->table_survivor));
    EK_REQUIRE(r->tables != NULL && r->table_survivor != NULL, EK_ENOMEM, "no memory for %d ranks",
               r->n_survivors);
    for (int32_t i = 0; i < r->n_survivors; i++) {
        const ek_survivor_info *l = &r->survivors[i];
        const ek_found_segment *f = served_segment(r, i);
        ek_shard_owner *h = &r->tables[r->n_tables];

        if (l->role != EK_SURVIVOR_CURRENT && l->role != EK_SURVIVOR_FINISH)
            continue;
        h->host = l->host;
        h->rank = l->server;
        r->table_survivor[r->n_tables++] = i;
        EK_TRY(broadcast_table(r, h, l->shards, f != NULL ? f->shards.shard : NULL, l->server));
    }
    return r->n_tables > 0 ? broadcast_warm_state(r) : EK_OK;
}

static ek_status gather_wants(ek_recovery *r, exchange *x, const ek_shard_table *mine)
{
    int64_t *n = calloc((size_t)r->ranks, sizeof(*n));
    ek_status st = EK_OK;

    EK_REQUIRE(n != NULL, EK_ENOMEM, "no memory for %d ranks", r->ranks);
    n[r->rank] = mine->n;
    EK_TRY_OUT(ek_gather(r->world, n, sizeof(*n)));
    for (int i = 0; i < r->ranks; i++) {
        x->wants[i].host = rank_host(r, i);
        x->wants[i].rank = i;
        EK_TRY_OUT(broadcast_table(r, &x->wants[i], n[i], mine->shard, i));
    }
out:
    free(n);
    return st;
}

/* The memory layout of a copied slice in a body. */
typedef struct {
    unsigned char *at[EK_STATE_ARRAYS];
    int64_t rows, row_bytes, stride;
} slice_layout;

static slice_layout slice_layout_of(const ek_shard *p, unsigned char *body,
                                    const ek_tensor_slice *slice, int real)
{
    slice_layout x = {.rows = slice->rows, .row_bytes = slice->cols * real, .stride = p->ld * real};

    for (int j = 0; j < EK_STATE_ARRAYS; j++)
        x.at[j] = body + ek_shard_at(p, j, slice, real);
    return x;
}

/* Copies rows; stride 0: packed rows. */
static void copy_rows(unsigned char *to, int64_t to_stride, const unsigned char *from,
                      int64_t from_stride, const slice_layout *x)
{
    for (int64_t i = 0; i < x->rows; i++)
        memcpy(to + i * (to_stride > 0 ? to_stride : x->row_bytes),
               from + i * (from_stride > 0 ? from_stride : x->row_bytes), (size_t)x->row_bytes);
}

static ek_found_segment *local_segment(const ek_recovery *r, int32_t survivor)
{
    for (int64_t i = 0; i < r->n_found; i++)
        if (r->found[i].survivor == survivor)
            return &r->found[i];
    return NULL;
}

static int is_local(const exchange *x, const ek_state_copy *c)
{
    return x->survivors[c->from].host == x->wants[c->to].host;
}

static int64_t copy_bytes(const ek_state_copy *c, int real)
{
    return EK_STATE_ARRAYS * c->slice.rows * c->slice.cols * real;
}

/* --- adopting blocks: see elastic/adopt_blocks.h ---------------------------------------------- */

static ek_state_blocks state_blocks_of(const ek_segment *s, const ek_shard_table *shards)
{
    return (ek_state_blocks){shards, s->block_at, s->head->blocks};
}

/* The usable segments that this rank serves. */
static int32_t list_usable(const ek_recovery *r, const ek_found_segment **of,
                           ek_state_blocks *blocks)
{
    int32_t n = 0;

    for (int64_t i = 0; i < r->n_found; i++) {
        const ek_found_segment *f = &r->found[i];

        if (!is_served_state(r, i) || (r->survivors[f->survivor].role != EK_SURVIVOR_CURRENT &&
                                       r->survivors[f->survivor].role != EK_SURVIVOR_FINISH))
            continue;
        of[n] = f;
        blocks[n++] = state_blocks_of(&f->segment, &f->shards);
    }
    return n;
}

ek_status ek_recover_create_blocks(ek_recovery *r, ek_rank_state *s)
{
    for (int64_t i = 0; i < r->n_found; i++) {
        ek_found_segment *f = &r->found[i];

        if (!f->prealloc || f->segment.head == NULL)
            continue;
        EK_TRY(ek_state_use_prealloc(s, &f->segment, &r->bytes_prealloc));
        ek_segment_close(&f->segment);
        EK_TRY(ek_segment_remove(&f->id));
    }
    return ek_state_create_blocks(s);
}

/* A rank adopts blocks only of segments that it serves, so that no two ranks adopt the same. */
static ek_status adopt_blocks(ek_recovery *r, ek_rank_state *s)
{
    ek_state_blocks want = state_blocks_of(&s->segment, &s->shards);
    const ek_found_segment **of = calloc((size_t)r->n_found + 1, sizeof(*of));
    ek_state_blocks *survivors = calloc((size_t)r->n_found + 1, sizeof(*survivors));
    ek_block_source *sources = calloc((size_t)want.n + 1, sizeof(*sources));
    ek_status st = EK_OK;

    EK_REQUIRE_OUT(of != NULL && survivors != NULL && sources != NULL, EK_ENOMEM,
                   "no memory for %lld state blocks", (long long)want.n);
    EK_TRY_OUT(ek_adopt_plan(survivors, list_usable(r, of, survivors), &want, sources));
    for (int64_t k = 0; k < want.n; k++) {
        const ek_block_source *from = &sources[k];

        if (from->from < 0)
            continue;
        EK_TRY_OUT(ek_state_adopt_block(s, k, &of[from->from]->segment, from->block, from->whole));
        r->bytes_adopted += from->whole ? (int64_t)ek_segment_block_bytes(&s->segment, k) : 0;
    }
    st = ek_recover_create_blocks(r, s);
out:
    free(of);
    free(survivors);
    free(sources);
    return st;
}

static int is_adopted(const ek_rank_state *s, const ek_shard *p)
{
    ek_state_blocks mine = state_blocks_of(&s->segment, &s->shards);
    int64_t k = ek_state_block_of(&mine, p->at[0]);

    return k >= 0 && s->blocks[k] == EK_BLOCK_ADOPTED;
}

/* Copies what this rank wants from segments of its host. */
static void copy_local(ek_recovery *r, const exchange *x, ek_rank_state *s)
{
    for (int64_t i = 0; i < x->n; i++) {
        const ek_state_copy *c = &x->copies[i];
        ek_found_segment *f;
        slice_layout from, to;

        if (c->to != r->rank || !is_local(x, c) || is_adopted(s, &s->shards.shard[c->to_shard]))
            continue;
        f = local_segment(r, x->survivor_of[c->from]);
        from = slice_layout_of(&x->survivors[c->from].shards.shard[c->from_shard], f->segment.body,
                               &c->slice, r->real);
        to = slice_layout_of(&x->wants[c->to].shards.shard[c->to_shard], s->segment.body, &c->slice,
                             r->real);
        for (int j = 0; j < EK_STATE_ARRAYS; j++)
            copy_rows(to.at[j], to.stride, from.at[j], from.stride, &to);
        r->bytes_copied += copy_bytes(c, r->real);
    }
}

/* Bytes from each rank to each other: bytes_to [ranks][ranks]; returns whether there are any. */
static int count_remote_bytes(const ek_recovery *r, const exchange *x, int64_t *bytes_to)
{
    int any = 0;

    for (int64_t i = 0; i < x->n; i++)
        if (!is_local(x, &x->copies[i])) {
            bytes_to[x->survivors[x->copies[i].from].rank * r->ranks + x->copies[i].to] +=
                copy_bytes(&x->copies[i], r->real);
            any = 1;
        }
    return any;
}

/* Packs the copies from this rank to `peer`, or unpacks those from `peer`, in the order of the copy
 * plan.  Returns the end. */
static unsigned char *pack_copies(const ek_recovery *r, const exchange *x, ek_rank_state *s,
                                  int peer, int unpack, unsigned char *at)
{
    for (int64_t i = 0; i < x->n; i++) {
        const ek_state_copy *c = &x->copies[i];
        int from = x->survivors[c->from].rank;
        slice_layout p;

        if (is_local(x, c) || from != (unpack ? peer : r->rank) ||
            c->to != (unpack ? r->rank : peer))
            continue;
        if (unpack)
            p = slice_layout_of(&x->wants[c->to].shards.shard[c->to_shard], s->segment.body,
                                &c->slice, r->real);
        else
            p = slice_layout_of(&x->survivors[c->from].shards.shard[c->from_shard],
                                local_segment(r, x->survivor_of[c->from])->segment.body, &c->slice,
                                r->real);
        for (int j = 0; j < EK_STATE_ARRAYS; j++) {
            if (unpack)
                copy_rows(p.at[j], p.stride, at, 0, &p);
            else
                copy_rows(at, 0, p.at[j], p.stride, &p);
            at += p.rows * p.row_bytes;
        }
    }
    return at;
}

static ek_status send_and_receive(ek_recovery *r, const exchange *x, ek_rank_state *s,
                                  const int64_t *bytes_to)
{
    int64_t out = 0, in = 0;
    unsigned char *send, *recv, *at;
    ek_coll *op = NULL;
    ek_status st = EK_OK;

    for (int i = 0; i < r->ranks; i++) {
        out += bytes_to[r->rank * r->ranks + i];
        in += bytes_to[i * r->ranks + r->rank];
    }
    send = at = malloc((size_t)out + 1);
    recv = malloc((size_t)in + 1);
    EK_TRY_OUT(ek_agree(r->world, "allocate buffers for recovery",
                        send != NULL && recv != NULL
                            ? EK_OK
                            : EK_FAIL(EK_ENOMEM, "no memory for %.1f MB of state to exchange",
                                      (double)(out + in) / 1e6)));
    for (int i = 0; i < r->ranks; i++)
        at = pack_copies(r, x, s, i, 0, at);
    EK_TRY_OUT(ek_comm_all_to_all(r->world, EK_A2A_LINEAR, bytes_to, 1, send, recv, &op));
    EK_TRY_OUT(ek_coll_wait(&op));
    at = recv;
    for (int i = 0; i < r->ranks; i++)
        at = pack_copies(r, x, s, i, 1, at);
    r->bytes_received = in;
out:
    free(send);
    free(recv);
    return st;
}

static ek_status copy_state(ek_recovery *r, const exchange *x, ek_rank_state *s)
{
    int64_t *bytes_to = calloc((size_t)r->ranks * (size_t)r->ranks, sizeof(*bytes_to));
    ek_status st = EK_OK;

    EK_REQUIRE(bytes_to != NULL, EK_ENOMEM, "no memory for %d ranks", r->ranks);
    copy_local(r, x, s);
    if (count_remote_bytes(r, x, bytes_to))
        st = send_and_receive(r, x, s, bytes_to);
    free(bytes_to);
    return st;
}

ek_status ek_recover_load(ek_recovery *r, ek_rank_state *s, int32_t *missing)
{
    static const ek_shard_table nothing;
    exchange x = {.survivors = r->tables, .survivor_of = r->table_survivor};
    ek_status st = EK_OK;

    x.wants = calloc((size_t)r->ranks, sizeof(*x.wants));
    EK_REQUIRE_OUT(x.wants != NULL, EK_ENOMEM, "no memory for %d ranks", r->ranks);
    EK_TRY_OUT(gather_wants(r, &x, s != NULL ? &s->shards : &nothing));
    EK_TRY_OUT(
        ek_shard_copy_plan(x.survivors, r->n_tables, x.wants, r->ranks, &x.copies, &x.n, missing));
    EK_REQUIRE_OUT(*missing < 0, EK_ENOENT, "memory does not hold the whole model");
    EK_TRY_OUT(ek_agree(r->world, "adopt state", s != NULL ? adopt_blocks(r, s) : EK_OK));
    EK_TRY_OUT(copy_state(r, &x, s));
out:
    for (int32_t i = 0; x.wants != NULL && i < r->ranks; i++)
        free(x.wants[i].shards.shard);
    free(x.wants);
    free(x.copies);
    return st;
}

int64_t ek_recover_bytes(const ek_recovery *r)
{
    int64_t bytes = 0;

    for (int64_t i = 0; i < r->n_found; i++)
        bytes += is_served_state(r, i) ? (int64_t)r->found[i].segment.head->bytes : 0;
    return bytes;
}

int64_t ek_recover_prealloc_bytes(const ek_recovery *r)
{
    int64_t bytes = 0;

    for (int64_t i = 0; i < r->n_found; i++)
        if (r->found[i].prealloc && r->found[i].segment.head != NULL)
            bytes += (int64_t)r->found[i].segment.head->bytes;
    return bytes;
}

/* --- commit ----------------------------------------------------------------------------------- */

static void close_found(ek_recovery *r)
{
    for (int64_t i = 0; i < r->n_found; i++)
        ek_segment_close(&r->found[i].segment);
    free(r->found);
    r->found = NULL;
    r->n_found = 0;
}

ek_status ek_recover_remove(ek_recovery *r)
{
    ek_status st = EK_OK;

    for (int64_t i = 0; i < r->n_found && st == EK_OK; i++)
        if (r->found[i].served)
            st = ek_segment_remove(&r->found[i].id);
    close_found(r);
    return ek_agree(r->world, "remove the state of an earlier start", st);
}

ek_status ek_recover_commit(ek_recovery *r, ek_rank_state *s)
{
    if (s != NULL)
        ek_segment_set_phase(&s->segment, EK_SEGMENT_FILLED);
    EK_TRY(ek_agree(r->world, "fill its state", EK_OK));
    if (s != NULL)
        ek_segment_set_phase(&s->segment, EK_SEGMENT_READY);
    EK_TRY(ek_agree(r->world, "have its state ready", EK_OK));
    EK_TRY(ek_recover_remove(r));
    if (s != NULL)
        ek_state_clear_gradients(s);
    return EK_OK;
}

void ek_recover_close(ek_recovery *r)
{
    close_found(r);
    for (int32_t i = 0; i < r->n_tables; i++)
        free(r->tables[i].shards.shard);
    free(r->warm_state);
    free(r->tables);
    free(r->table_survivor);
    free(r->survivors);
    *r = (ek_recovery){0};
}
