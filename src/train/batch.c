/* A batch cut into micro-batches, and those into the sequences of ranks. */
#include "train/batch.h"

#include "data/documents.h"
#include "nn/batch_shares.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

ek_status ek_batch_check(int64_t batch, int64_t micro_batch)
{
    EK_REQUIRE(micro_batch <= batch, EK_EINVAL,
               "--micro-batch %lld is over --batch %lld: give --micro-batch %lld or less, or a "
               "larger --batch",
               (long long)micro_batch, (long long)batch, (long long)batch);
    return EK_OK;
}

int64_t ek_batch_micros(int64_t batch, int64_t micro_batch)
{
    return (batch + micro_batch - 1) / micro_batch;
}

/* This rank's sequences of micro-batch i of a batch: consecutive ones; the last micro-batch may be
 * smaller. */
static int64_t sequences_of(const ek_mesh *mesh, const ek_batch_config *c, int64_t batch, int64_t i,
                            int64_t *first, int64_t *of_all)
{
    int64_t begin = i * c->micro_batch, all = batch - begin;

    all = all < c->micro_batch ? all : c->micro_batch;
    *first = begin + ek_shares_first(c->shares, mesh->dp, all, mesh->dp_rank);
    *of_all = all;
    return ek_shares_length(c->shares, mesh->dp, all, mesh->dp_rank);
}

static int64_t count_sequences(const ek_mesh *mesh, const ek_batch_config *c)
{
    int64_t n = 0, first, all;

    for (int64_t i = 0; i * c->micro_batch < c->batch; i++)
        n += sequences_of(mesh, c, c->batch, i, &first, &all);
    return n;
}

int64_t ek_batch_longest(const ek_mesh *mesh, const ek_batch_config *c)
{
    int64_t n = c->micro_batch, longest;

    if (!c->shares_change)
        return ek_shares_longest(c->shares, mesh->dp, n);
    longest = (int64_t)ceil(c->most_share * (double)n / mesh->dp);
    return longest < n ? longest : n;
}

/* Sequences of a step that there is memory for.  Of a smaller batch, such as an evaluation's last
 * one, a rank may have more than of a whole one if ranges are rounded shares, but no more than
 * this. */
static int64_t most_sequences(const ek_mesh *mesh, const ek_batch_config *c)
{
    if (c->shares == NULL && !c->shares_change)
        return count_sequences(mesh, c);
    return ek_batch_longest(mesh, c) * ek_batch_micros(c->batch, c->micro_batch);
}

size_t ek_batch_bytes(const ek_mesh *mesh, const ek_batch_config *c)
{
    return (c->document_mask ? 3 : 2) * sizeof(int32_t) *
           (size_t)(most_sequences(mesh, c) * c->seq);
}

/* Micro-batch i of `batch` sequences of `seq` tokens; `done`: this rank's sequences before it. */
static ek_micro micro_at(const ek_batch *b, int64_t batch, int64_t seq, int64_t i, int64_t done)
{
    const ek_mesh *mesh = b->mesh;
    int64_t first, whole;
    int64_t seqs = sequences_of(mesh, &b->cfg, batch, i, &first, &whole);
    int64_t all = seqs * seq;

    return (ek_micro){.seqs = seqs,
                      .seq = seq,
                      .all = all,
                      .first = ek_range_first(all, mesh->tp, mesh->tp_rank),
                      .n = ek_range_length(all, mesh->tp, mesh->tp_rank),
                      .total = whole * seq,
                      .share = (double)whole / (double)batch,
                      .first_sequence = (uint64_t)first,
                      .micro_first = (uint64_t)(i * b->cfg.micro_batch),
                      .inputs = b->inputs + done * seq,
                      .targets = b->targets + done * seq,
                      .starts = b->starts != NULL ? b->starts + done * seq : NULL,
                      .shares = b->cfg.shares};
}

static void divide_batch(ek_batch *b)
{
    int64_t done = 0;

    for (int64_t i = 0; i < b->n_micro; i++) {
        b->micro[i] = micro_at(b, b->cfg.batch, b->cfg.seq, i, done);
        for (int64_t j = 0; j < b->micro[i].seqs; j++)
            b->sequence[done++] = (int64_t)b->micro[i].first_sequence + j;
    }
    b->n_sequences = done;
}

static void set_shares(ek_batch *b, const int64_t *shares)
{
    memcpy(b->shares, shares, (size_t)(b->mesh->dp + 1) * sizeof(*shares));
    b->cfg.shares = b->shares;
    divide_batch(b);
}

int ek_batch_set_shares(ek_batch *b, const int64_t *shares)
{
    int dp = b->mesh->dp, moved = 0;

    for (int r = 1; r < dp; r++)
        moved |= ek_shares_first(shares, dp, b->cfg.micro_batch, r) !=
                 ek_shares_first(b->cfg.shares, dp, b->cfg.micro_batch, r);
    if (!moved)
        return 0;
    set_shares(b, shares);
    b->share_changes++;
    return 1;
}

ek_status ek_batch_init(ek_batch *b, ek_model *m, const ek_batch_config *cfg)
{
    *b = (ek_batch){.mesh = m->cfg.mesh, .cfg = *cfg};
    b->n_micro = ek_batch_micros(cfg->batch, cfg->micro_batch);
    b->most_sequences = most_sequences(b->mesh, cfg);
    b->sequence = calloc((size_t)b->most_sequences + 1, sizeof(*b->sequence));
    b->micro = calloc((size_t)b->n_micro, sizeof(*b->micro));
    b->eval_micro = calloc((size_t)b->n_micro, sizeof(*b->eval_micro));
    EK_REQUIRE(b->sequence != NULL && b->micro != NULL && b->eval_micro != NULL, EK_ENOMEM,
               "no memory for %lld sequences", (long long)b->most_sequences);
    EK_TRY(ek_model_reserve_tokens(m, b->most_sequences * cfg->seq, &b->tokens, &b->inputs,
                                   &b->targets, cfg->document_mask ? &b->starts : NULL));
    if (cfg->shares != NULL || cfg->shares_change) {
        b->shares = calloc((size_t)b->mesh->dp + 1, sizeof(*b->shares));
        EK_REQUIRE(b->shares != NULL, EK_ENOMEM, "no memory for %d shares", b->mesh->dp);
    }
    if (cfg->shares != NULL)
        set_shares(b, cfg->shares);
    else
        divide_batch(b);
    return EK_OK;
}

void ek_batch_fini(ek_batch *b)
{
    free(b->micro);
    free(b->eval_micro);
    free(b->sequence);
    free(b->shares);
    ek_arena_fini(&b->tokens);
}

/* Of this rank's sequences. */
static void mark_documents(ek_batch *b, int64_t sequences, int64_t seq)
{
    for (int64_t i = 0; b->starts != NULL && i < sequences; i++)
        ek_documents_mark(seq, b->cfg.document_end, b->inputs + i * seq, b->targets + i * seq,
                          b->starts + i * seq);
}

void ek_batch_begin_step(ek_batch *b)
{
    mark_documents(b, b->n_sequences, b->cfg.seq);
}

int64_t ek_batch_read(ek_batch *b, int64_t batch, int64_t seq, const ek_batch_reader *reader)
{
    int64_t n = ek_batch_micros(batch, b->cfg.micro_batch), done = 0;

    for (int64_t i = 0; i < n; i++) {
        ek_micro *mb = &b->eval_micro[i];

        *mb = micro_at(b, batch, seq, i, done);
        for (int64_t j = 0; j < mb->seqs; j++, done++)
            reader->read(reader->context, (int64_t)mb->first_sequence + j, b->inputs + done * seq,
                         b->targets + done * seq);
    }
    mark_documents(b, done, seq);
    return n;
}
