/* Counting and sorting of rows between sources and servers. */
#include "moe/exchange.h"

#include <string.h>

void ek_exchange_take(ek_exchange *x, ek_arena *a, const ek_mesh *mesh, const ek_placement *p,
                      int degree, int group)
{
    int travel = mesh->ep * mesh->etp > 1;

    x->ranks = mesh->stage_size;
    x->at = mesh->at;
    x->runs = mesh->edp;
    x->shards = mesh->etp;
    x->group = travel ? group : 0;
    x->token_chunks = travel && group == 0 && degree > 1 ? degree : 1;
    x->chunks = x->group > 0 ? (x->ranks + x->group - 1) / x->group : x->token_chunks;
    x->experts = p->experts;
    x->slots = p->slots;
    x->first_slot = (mesh->edp_rank * mesh->ep + mesh->ep_rank) * p->slots;
    x->words = ek_tally_words(p->experts, x->token_chunks);
    x->serves = ek_arena_take(a, (int64_t)x->runs * p->experts, sizeof(*x->serves));
    x->next = ek_arena_take(a, (int64_t)x->ranks * p->slots, sizeof(*x->next));
    x->start = ek_arena_take(a, x->ranks, sizeof(*x->start));
}

void ek_exchange_follow(ek_exchange *x, const ek_placement *p)
{
    for (int run = 0; run < x->runs; run++)
        ek_placement_serve(p, x->runs, run, x->serves + (int64_t)run * x->experts);
}

static const ek_tally *rows_of(const ek_exchange *x, const ek_tally *tally, int source, int chunk)
{
    return tally + source * x->words + ek_tally_rows(x->experts, chunk);
}

/* The token chunk of a chunk of the exchange. */
static int token_chunk_of(const ek_exchange *x, int chunk)
{
    return x->group > 0 ? 0 : chunk;
}

void ek_exchange_matrix(const ek_exchange *x, const ek_tally *tally, int chunk, int back,
                        int64_t *rows)
{
    int tokens = token_chunk_of(x, chunk);

    memset(rows, 0, (size_t)x->ranks * (size_t)x->ranks * sizeof(*rows));
    for (int source = 0; source < x->ranks; source++) {
        const ek_tally *count = rows_of(x, tally, source, tokens);

        for (int32_t e = 0; e < x->experts; e++) {
            int server = ek_exchange_server(x, source, e) / x->slots * x->shards;

            for (int end = server + x->shards; server < end; server++)
                if (ek_exchange_chunk(x, source, server, tokens) == chunk)
                    rows[back ? server * x->ranks + source : source * x->ranks + server] +=
                        count[e].count;
        }
    }
}

/* Where this rank's rows of a token chunk begin in the send buffer: x->start by server, after
 * `row` rows; x->next by slot, counted from there. */
static int64_t place_sent(ek_exchange *x, const ek_tally *tally, int tokens, int64_t row,
                          int64_t *send_first)
{
    const ek_tally *count = rows_of(x, tally, x->at, tokens);
    int first = x->group > 0 ? 0 : tokens, end = x->group > 0 ? x->chunks : tokens + 1;
    int64_t all = (int64_t)(x->ranks / x->shards) * x->slots;

    memset(x->next, 0, (size_t)all * sizeof(*x->next));
    for (int32_t e = 0; e < x->experts; e++)
        x->next[ek_exchange_server(x, x->at, e)] += count[e].count;
    memset(x->start, 0, (size_t)x->ranks * sizeof(*x->start));
    for (int server = 0; server < x->ranks; server++)
        for (int s = 0; s < x->slots; s++)
            x->start[server] += x->next[server / x->shards * x->slots + s];
    for (int chunk = first; chunk < end; chunk++) {
        send_first[chunk] = row;
        for (int server = 0; server < x->ranks; server++)
            if (ek_exchange_chunk(x, x->at, server, tokens) == chunk) {
                int64_t rows = x->start[server];

                x->start[server] = row;
                row += rows;
            }
    }
    for (int64_t s = 0, at = 0; s < all; s++) {
        int64_t rows = x->next[s];

        at = s % x->slots == 0 ? 0 : at;
        x->next[s] = at;
        at += rows;
    }
    return row;
}

void ek_exchange_sort(ek_exchange *x, const ek_tally *tally, int64_t n, int64_t cols,
                      const int32_t *ids, int32_t *row_of, int32_t *token_of, int64_t *send_first)
{
    int64_t rows = 0;

    for (int tokens = 0; tokens < x->token_chunks; tokens++) {
        int64_t t = ek_run_first(n, x->token_chunks, tokens);
        int64_t end = ek_run_first(n, x->token_chunks, tokens + 1);

        rows = place_sent(x, tally, tokens, rows, send_first);
        for (int64_t i = t * cols; i < end * cols; i++) {
            int32_t slot = ids[i] >= 0 ? ek_exchange_server(x, x->at, ids[i]) : -1;
            int64_t at = slot >= 0 ? x->next[slot]++ : 0;

            for (int j = 0; j < x->shards; j++) {
                int64_t row =
                    slot >= 0 ? x->start[slot / x->slots * x->shards + j] + at : (int64_t)-1;

                row_of[i * x->shards + j] = (int32_t)row;
                if (row >= 0)
                    token_of[row] = (int32_t)(i / cols);
            }
        }
    }
    send_first[x->chunks] = rows;
}

/* Rows of a chunk from a source for each of this rank's slots, into count [slots]; their sum. */
static int64_t count_received(const ek_exchange *x, const ek_tally *tally, int chunk, int source,
                              int64_t *count)
{
    int tokens = token_chunk_of(x, chunk);
    const ek_tally *rows = rows_of(x, tally, source, tokens);
    int64_t sum = 0;

    memset(count, 0, (size_t)x->slots * sizeof(*count));
    if (ek_exchange_chunk(x, source, x->at, tokens) != chunk)
        return 0;
    for (int32_t e = 0; e < x->experts; e++) {
        int32_t slot = ek_exchange_server(x, source, e) - x->first_slot;

        if (slot >= 0 && slot < x->slots) {
            count[slot] += rows[e].count;
            sum += rows[e].count;
        }
    }
    return sum;
}

void ek_exchange_receive(ek_exchange *x, const ek_tally *tally, int64_t *offset, int32_t *from_recv,
                         int32_t *from_experts)
{
    int64_t base = 0;

    for (int chunk = 0; chunk < x->chunks; chunk++, offset += x->slots + 1) {
        int64_t row = 0; /* of experts, within the chunk */

        for (int source = 0; source < x->ranks; source++)
            row += count_received(x, tally, chunk, source, x->next + (int64_t)source * x->slots);
        offset[x->slots] = base + row;
        row = 0;
        for (int slot = 0; slot < x->slots; slot++) {
            int64_t at = 0; /* of recv, within the chunk: where the source's rows begin */

            offset[slot] = base + row;
            for (int source = 0; source < x->ranks; source++) {
                const int64_t *count = x->next + (int64_t)source * x->slots;

                for (int s = 0; s < slot; s++)
                    at += count[s];
                for (int64_t i = 0; i < count[slot]; i++, row++) {
                    from_recv[base + row] = (int32_t)(at + i);
                    from_experts[base + at + i] = (int32_t)row;
                }
                for (int s = slot; s < x->slots; s++)
                    at += count[s];
            }
        }
        base += row;
    }
}
