/* Fills the state of a rank from survivors: adopts blocks in place, copies within the host,
 * receives the rest.  Shard tables are small compared with the state, so all ranks get all of them
 * and make the same copy plan. */
#include "base/count_text.h"
#include "comm/agree.h"
#include "elastic/adopt_blocks.h"
#include "recover/recover_priv.h"

#include <stdlib.h>
#include <string.h>

/* Survivors, wants, and the copy plan between them. */
typedef struct {
    const ek_shard_owner *survivors;
    const int32_t *survivor_of;
    ek_shard_owner *wants; /* [ranks] */
    ek_state_copy *copies;
    int64_t n;
} exchange;

/* Broadcasts the table of n shards of rank `from`; mine: its table, on that rank only. */
static ek_status broadcast_table(ek_recovery *r, ek_shard_owner *h, int64_t n,
                                 const ek_state_shard *mine, int from)
{
    size_t bytes = (size_t)n * sizeof(*h->shards.shard);

    h->shards.n = n;
    h->shards.shard = malloc(bytes + 1);
    EK_REQUIRE(h->shards.shard != NULL, EK_ENOMEM, "no memory for %lld parts", (long long)n);
    if (r->rank == from && bytes > 0)
        memcpy(h->shards.shard, mine, bytes);
    return ek_recover_broadcast(r, h->shards.shard, bytes, from);
}

/* The first usable survivor that is no copy, which has no warm state; if there are copies alone,
 * the first one. */
static int32_t first_with_warm_state(const ek_recovery *r)
{
    for (int32_t i = 0; i < r->n_tables; i++) {
        const ek_survivor_info *l = &r->survivors[r->table_survivor[i]];

        if (!ek_segment_is_copy(l->survivor.rank, l->ranks))
            return r->table_survivor[i];
    }
    return r->table_survivor[0];
}

/* Broadcasts the warm state of one survivor; ranks of a stage have the same. */
static ek_status broadcast_warm_state(ek_recovery *r)
{
    int32_t of = first_with_warm_state(r);
    const ek_survivor_info *l = &r->survivors[of];
    const ek_found_segment *f = ek_recover_served(r, of);
    size_t bytes = 0;
    const void *warm_state = f != NULL ? ek_journal_warm_state(&f->journal, &bytes) : NULL;

    r->warm_state_bytes = bytes;
    EK_TRY(ek_recover_broadcast(r, &r->warm_state_bytes, sizeof(r->warm_state_bytes), l->server));
    r->warm_state = malloc(r->warm_state_bytes + 1);
    EK_REQUIRE(r->warm_state != NULL, EK_ENOMEM, "no memory for the warm state");
    if (f != NULL)
        memcpy(r->warm_state, warm_state, bytes);
    return ek_recover_broadcast(r, r->warm_state, r->warm_state_bytes, l->server);
}

/* Whether the state of this survivor is that of the step to continue from, or will be. */
static int is_usable(const ek_survivor_info *s)
{
    return s->role == EK_SURVIVOR_CURRENT || s->role == EK_SURVIVOR_FINISH;
}

ek_status ek_recover_read_tables(ek_recovery *r)
{
    r->tables = calloc((size_t)r->n_survivors + 1, sizeof(*r->tables));
    r->table_survivor = calloc((size_t)r->n_survivors + 1, sizeof(*r->table_survivor));
    EK_REQUIRE(r->tables != NULL && r->table_survivor != NULL, EK_ENOMEM, "no memory for %d ranks",
               r->n_survivors);
    for (int32_t i = 0; i < r->n_survivors; i++) {
        const ek_survivor_info *l = &r->survivors[i];
        const ek_found_segment *f = ek_recover_served(r, i);
        ek_shard_owner *h = &r->tables[r->n_tables];

        if (!is_usable(l))
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
        x->wants[i].host = ek_recover_host(r, i);
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

static slice_layout slice_layout_of(const ek_state_shard *p, unsigned char *body,
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
    return (ek_state_blocks){.shards = shards, .at = s->block_at, .n = s->head->blocks};
}

/* The usable segments that this rank serves. */
static int32_t list_usable(const ek_recovery *r, ek_found_segment **of, ek_state_blocks *blocks)
{
    int32_t n = 0;

    for (int64_t i = 0; i < r->n_found; i++) {
        ek_found_segment *f = &r->found[i];

        if (!ek_recover_serves_state(r, i) || !is_usable(&r->survivors[f->survivor]))
            continue;
        of[n] = f;
        blocks[n] = state_blocks_of(&f->segment, &f->shards);
        blocks[n++].taken = f->taken;
    }
    return n;
}

/* Adopts a block of an earlier rank as block k. */
static ek_status adopt_block(ek_recovery *r, ek_rank_state *s, int64_t k, ek_found_segment *f,
                             const ek_block_source *from)
{
    if (f->taken == NULL)
        f->taken = calloc((size_t)f->segment.head->blocks + 1, 1);
    EK_REQUIRE(f->taken != NULL, EK_ENOMEM, "no memory for %lld state blocks",
               (long long)f->segment.head->blocks);
    EK_TRY(ek_state_adopt_block(s, k, &f->segment, from->block, from->whole));
    f->taken[from->block] = 1;
    r->bytes.adopted += from->whole ? (int64_t)ek_segment_block_bytes(&s->segment, k) : 0;
    return EK_OK;
}

ek_status ek_recover_create_blocks(ek_recovery *r, ek_rank_state *s)
{
    for (int64_t i = 0; i < r->n_found; i++) {
        ek_found_segment *f = &r->found[i];

        if (!f->prealloc || f->segment.head == NULL)
            continue;
        EK_TRY(ek_state_use_prealloc(s, &f->segment, &r->bytes.prealloc));
        ek_segment_close(&f->segment);
        EK_TRY(ek_segment_remove(&f->id));
    }
    return ek_state_create_blocks(s);
}

/* A rank adopts blocks only of segments that it serves, so that no two ranks adopt the same. */
static ek_status adopt_blocks(ek_recovery *r, ek_rank_state *s)
{
    ek_state_blocks want = state_blocks_of(&s->segment, &s->shards);
    ek_found_segment **of = calloc((size_t)r->n_found + 1, sizeof(*of));
    ek_state_blocks *survivors = calloc((size_t)r->n_found + 1, sizeof(*survivors));
    ek_block_source *sources = calloc((size_t)want.n + 1, sizeof(*sources));
    ek_status st = EK_OK;

    EK_REQUIRE_OUT(of != NULL && survivors != NULL && sources != NULL, EK_ENOMEM,
                   "no memory for %lld state blocks", (long long)want.n);
    EK_TRY_OUT(ek_adopt_plan(survivors, list_usable(r, of, survivors), &want, sources));
    for (int64_t k = 0; k < want.n; k++)
        if (sources[k].from >= 0)
            EK_TRY_OUT(adopt_block(r, s, k, of[sources[k].from], &sources[k]));
    st = ek_recover_create_blocks(r, s);
out:
    free(of);
    free(survivors);
    free(sources);
    return st;
}

static int is_adopted(const ek_rank_state *s, const ek_state_shard *p)
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
                               &c->slice, r->update.real_bytes);
        to = slice_layout_of(&x->wants[c->to].shards.shard[c->to_shard], s->segment.body, &c->slice,
                             r->update.real_bytes);
        for (int j = 0; j < EK_STATE_ARRAYS; j++)
            copy_rows(to.at[j], to.stride, from.at[j], from.stride, &to);
        r->bytes.copied += copy_bytes(c, r->update.real_bytes);
    }
}

/* Bytes from each rank to each other: bytes_to [ranks][ranks]; returns whether there are any. */
static int count_remote_bytes(const ek_recovery *r, const exchange *x, int64_t *bytes_to)
{
    int any = 0;

    for (int64_t i = 0; i < x->n; i++)
        if (!is_local(x, &x->copies[i])) {
            bytes_to[x->survivors[x->copies[i].from].rank * r->ranks + x->copies[i].to] +=
                copy_bytes(&x->copies[i], r->update.real_bytes);
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
                                &c->slice, r->update.real_bytes);
        else
            p = slice_layout_of(&x->survivors[c->from].shards.shard[c->from_shard],
                                local_segment(r, x->survivor_of[c->from])->segment.body, &c->slice,
                                r->update.real_bytes);
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
    char text[32];

    for (int i = 0; i < r->ranks; i++) {
        out += bytes_to[r->rank * r->ranks + i];
        in += bytes_to[i * r->ranks + r->rank];
    }
    send = at = malloc((size_t)out + 1);
    recv = malloc((size_t)in + 1);
    EK_TRY_OUT(ek_agree(r->world, "allocate buffers for recovery",
                        send != NULL && recv != NULL
                            ? EK_OK
                            : EK_FAIL(EK_ENOMEM, "no memory for %s of state to exchange",
                                      ek_bytes_text(text, sizeof(text), (double)(out + in)))));
    for (int i = 0; i < r->ranks; i++)
        at = pack_copies(r, x, s, i, 0, at);
    EK_TRY_OUT(ek_comm_all_to_all(r->world, EK_A2A_LINEAR, bytes_to, 1, send, recv, &op));
    EK_TRY_OUT(ek_coll_wait(&op));
    at = recv;
    for (int i = 0; i < r->ranks; i++)
        at = pack_copies(r, x, s, i, 1, at);
    r->bytes.received += in;
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
