/* Counts and sorts rows between sources and servers. */
#include "moe/dispatch_layout.h"

#include <string.h>

int ek_dispatch_chunks_most(const ek_mesh *mesh, int degree, int group)
{
    if (!ek_mesh_distributes_experts(mesh))
        return 1;
    if (group > 0)
        return (mesh->stage_size + group - 1) / group;
    return degree > 1 ? degree : 1;
}

void ek_dispatch_layout_reserve(ek_dispatch_layout *x, ek_arena *a, const ek_mesh *mesh,
                                const ek_placement *p, int degree, int group)
{
    int distributed = ek_mesh_distributes_experts(mesh);

    x->ranks = mesh->stage_size;
    x->at = mesh->at;
    x->ep_groups = mesh->edp;
    x->shards = mesh->etp;
    x->group = distributed ? group : 0;
    x->token_chunks_max = x->group > 0 ? 1 : ek_dispatch_chunks_most(mesh, degree, 0);
    x->experts = p->experts;
    x->slots = p->slots;
    x->first_slot = (mesh->edp_rank * mesh->ep + mesh->ep_rank) * p->slots;
    x->all_slots = x->ranks / x->shards * p->slots;
    ek_dispatch_layout_set_degree(x, 0);
    ek_dispatch_layout_set_gather(x, 1);
    x->serves = ek_arena_alloc(a, (int64_t)x->ep_groups * p->experts, sizeof(*x->serves));
    x->scratch.next_row =
        ek_arena_alloc(a, (int64_t)x->ranks * p->slots, sizeof(*x->scratch.next_row));
    x->scratch.member = ek_arena_alloc(a, x->all_slots, sizeof(*x->scratch.member));
    x->scratch.member_left = ek_arena_alloc(a, x->all_slots, sizeof(*x->scratch.member_left));
    x->scratch.server_start = ek_arena_alloc(a, x->ranks, sizeof(*x->scratch.server_start));
    x->list = ek_arena_alloc(a, x->all_slots, sizeof(*x->list));
    x->start_rank = ek_arena_alloc(a, p->experts, sizeof(*x->start_rank));
    for (int r = 0; r < mesh->ep && x->start_rank != NULL; r++)
        for (int64_t e = ek_range_first(p->experts, mesh->ep, r);
             e < ek_range_first(p->experts, mesh->ep, r + 1); e++)
            x->start_rank[e] = r;
    x->first = ek_arena_alloc(a, p->experts + 1, sizeof(*x->first));
    x->scratch.cursor = ek_arena_alloc(a, p->experts, sizeof(*x->scratch.cursor));
    x->scratch.slot_left = ek_arena_alloc(a, p->experts, sizeof(*x->scratch.slot_left));
}

void ek_dispatch_layout_set_degree(ek_dispatch_layout *x, int degree)
{
    int most = x->token_chunks_max;

    x->token_chunks = degree > 0 && degree < most ? degree : most;
    x->chunks = x->group > 0 ? (x->ranks + x->group - 1) / x->group : x->token_chunks;
    x->words = ek_gate_stats_words(x->experts, x->token_chunks);
}

void ek_dispatch_layout_set_gather(ek_dispatch_layout *x, int gather)
{
    x->local = gather == EK_GATHER_ALL;
    x->members = x->local ? x->shards : gather > 1 ? gather : 1;
    x->copies = x->shards / x->members;
}

void ek_dispatch_layout_follow_placement(ek_dispatch_layout *x, const ek_placement *p)
{
    int32_t per_ep_group = p->ranks / x->ep_groups * p->slots;

    for (int ep_group = 0; ep_group < x->ep_groups; ep_group++)
        for (int32_t e = 0; e < x->experts; e++)
            x->serves[(int64_t)ep_group * x->experts + e] = ep_group * per_ep_group + p->primary[e];
}

void ek_dispatch_layout_list_slots(ek_dispatch_layout *x, const int32_t *expert_of)
{
    int32_t *at = x->scratch.cursor, n = 0;

    memset(at, 0, (size_t)x->experts * sizeof(*at));
    for (int32_t s = 0; s < x->all_slots; s++)
        if (expert_of[s] >= 0)
            at[expert_of[s]]++;
    for (int32_t e = 0; e < x->experts; e++) {
        x->first[e] = n;
        n += at[e];
        at[e] = x->first[e];
    }
    x->first[x->experts] = n;
    for (int32_t s = 0; s < x->all_slots; s++)
        if (expert_of[s] >= 0)
            x->list[at[expert_of[s]]++] = s;
}

void ek_dispatch_default_rows(const ek_dispatch_layout *x, const ek_gate_stats *gate_stats,
                              int32_t *row_counts)
{
    int64_t n = (int64_t)x->token_chunks * x->ranks * x->all_slots;

    memset(row_counts, 0, (size_t)n * sizeof(*row_counts));
    for (int chunk = 0; chunk < x->token_chunks; chunk++)
        for (int source = 0; source < x->ranks; source++) {
            const ek_gate_stats *count =
                gate_stats + source * x->words + ek_gate_stats_rows(x->experts, chunk);
            int32_t *to = ek_dispatch_row_counts(x, row_counts, chunk, source);

            for (int32_t e = 0; e < x->experts; e++)
                to[ek_dispatch_slot(x, source, e)] += (int32_t)count[e].count;
        }
}

static const int32_t *rows_of(const ek_dispatch_layout *x, const int32_t *row_counts, int chunk,
                              int source)
{
    return row_counts + ((int64_t)chunk * x->ranks + source) * x->all_slots;
}

/* The token chunk of a chunk. */
static int token_chunk_of(const ek_dispatch_layout *x, int chunk)
{
    return x->group > 0 ? 0 : chunk;
}

/* Index of a server within its group of members. */
static int member_of(const ek_dispatch_layout *x, int server)
{
    return server % x->shards % x->members;
}

/* A source's rows for all slots of a server. */
static int64_t rows_for(const ek_dispatch_layout *x, const int32_t *rows, int source, int server)
{
    int32_t first = server / x->shards * x->slots;
    int member = member_of(x, server);
    int64_t sum = 0;

    for (int32_t s = first; s < first + x->slots; s++)
        sum += ek_dispatch_member_rows(x, source, s, member, rows[s]);
    return sum;
}

void ek_dispatch_matrix(const ek_dispatch_layout *x, const int32_t *row_counts, int chunk, int back,
                        int64_t *rows)
{
    int token_chunk = token_chunk_of(x, chunk);

    memset(rows, 0, (size_t)x->ranks * (size_t)x->ranks * sizeof(*rows));
    for (int source = 0; source < x->ranks; source++)
        for (int server = 0; server < x->ranks; server++)
            if (ek_dispatch_chunk(x, source, server, token_chunk) == chunk)
                rows[back ? server * x->ranks + source : source * x->ranks + server] =
                    rows_for(x, rows_of(x, row_counts, token_chunk, source), source, server);
}

/* Sets where this rank's rows of a token chunk begin in the send buffer, after `row` rows:
 * x->scratch.server_start by server; x->scratch.next_row by slot and member, relative to the
 * server's start. Returns the end. */
static int64_t place_sent(ek_dispatch_layout *x, const int32_t *row_counts, int token_chunk,
                          int64_t row, int64_t *send_first)
{
    const int32_t *rows = rows_of(x, row_counts, token_chunk, x->at);
    int first = x->group > 0 ? 0 : token_chunk, end = x->group > 0 ? x->chunks : token_chunk + 1;

    for (int chunk = first; chunk < end; chunk++) {
        send_first[chunk] = row;
        for (int server = 0; server < x->ranks; server++)
            if (ek_dispatch_chunk(x, x->at, server, token_chunk) == chunk) {
                x->scratch.server_start[server] = row;
                row += rows_for(x, rows, x->at, server);
            }
    }
    for (int member = 0; member < x->members; member++)
        for (int32_t s = 0, at = 0; s < x->all_slots; s++) {
            at = s % x->slots == 0 ? 0 : at;
            x->scratch.next_row[(int64_t)s * x->members + member] = at;
            at += ek_dispatch_member_rows(x, x->at, s, member, rows[s]);
        }
    return row;
}

/* The slot that serves this rank's next row for an expert. */
static int32_t next_slot(ek_dispatch_layout *x, const int32_t *rows, int32_t expert)
{
    while (x->scratch.slot_left[expert] == 0)
        x->scratch.slot_left[expert] = rows[x->list[x->scratch.cursor[expert]++]];
    x->scratch.slot_left[expert]--;
    return x->list[x->scratch.cursor[expert] - 1];
}

/* The member of each group that serves this rank's next row for a slot. */
static int next_member(ek_dispatch_layout *x, const int32_t *rows, int32_t slot)
{
    while (x->scratch.member_left[slot] == 0)
        x->scratch.member_left[slot] =
            ek_dispatch_member_rows(x, x->at, slot, ++x->scratch.member[slot], rows[slot]);
    x->scratch.member_left[slot]--;
    return x->scratch.member[slot];
}

/* Sets the position in send of a slot's next row, for each of its copies: row_of [copies]. */
static void place_row(ek_dispatch_layout *x, const int32_t *rows, int32_t slot, int32_t token,
                      int32_t *row_of, int32_t *token_of)
{
    int member = next_member(x, rows, slot), server = slot / x->slots * x->shards + member;
    int64_t at = x->scratch.next_row[(int64_t)slot * x->members + member]++;

    for (int j = 0; j < x->copies; j++, server += x->members) {
        row_of[j] = (int32_t)(x->scratch.server_start[server] + at);
        token_of[row_of[j]] = token;
    }
}

void ek_dispatch_sort(ek_dispatch_layout *x, const int32_t *row_counts, int64_t n, int64_t cols,
                      const int32_t *ids, int32_t *row_of, int32_t *token_of, int64_t *send_first)
{
    int64_t rows = 0;

    for (int token_chunk = 0; token_chunk < x->token_chunks; token_chunk++) {
        int64_t t = ek_range_first(n, x->token_chunks, token_chunk);
        int64_t end = ek_range_first(n, x->token_chunks, token_chunk + 1);
        const int32_t *to = rows_of(x, row_counts, token_chunk, x->at);

        rows = place_sent(x, row_counts, token_chunk, rows, send_first);
        memcpy(x->scratch.cursor, x->first, (size_t)x->experts * sizeof(*x->scratch.cursor));
        memset(x->scratch.slot_left, 0, (size_t)x->experts * sizeof(*x->scratch.slot_left));
        memset(x->scratch.member_left, 0, (size_t)x->all_slots * sizeof(*x->scratch.member_left));
        memset(x->scratch.member, -1, (size_t)x->all_slots * sizeof(*x->scratch.member));
        for (int64_t i = t * cols; i < end * cols; i++)
            if (ids[i] >= 0)
                place_row(x, to, next_slot(x, to, ids[i]), (int32_t)(i / cols),
                          row_of + i * x->copies, token_of);
            else
                memset(row_of + i * x->copies, -1, (size_t)x->copies * sizeof(*row_of));
    }
    send_first[x->chunks] = rows;
}

/* Rows of a chunk from a source for each of this rank's slots, count [slots]; returns their sum. */
static int64_t count_received(const ek_dispatch_layout *x, const int32_t *row_counts, int chunk,
                              int source, int64_t *count)
{
    int token_chunk = token_chunk_of(x, chunk);
    const int32_t *rows = rows_of(x, row_counts, token_chunk, source) + x->first_slot;
    int member = member_of(x, x->at);
    int64_t sum = 0;

    memset(count, 0, (size_t)x->slots * sizeof(*count));
    if (ek_dispatch_chunk(x, source, x->at, token_chunk) != chunk)
        return 0;
    for (int32_t s = 0; s < x->slots; s++)
        sum += count[s] = ek_dispatch_member_rows(x, source, x->first_slot + s, member, rows[s]);
    return sum;
}

void ek_dispatch_receive(ek_dispatch_layout *x, const int32_t *row_counts, int64_t *offset,
                         int32_t *from_recv, int32_t *from_experts)
{
    int64_t base = 0;

    for (int chunk = 0; chunk < x->chunks; chunk++, offset += x->slots + 1) {
        int64_t row = 0; /* of experts, within the chunk */

        for (int source = 0; source < x->ranks; source++)
            row += count_received(x, row_counts, chunk, source,
                                  x->scratch.next_row + (int64_t)source * x->slots);
        offset[x->slots] = base + row;
        row = 0;
        for (int slot = 0; slot < x->slots; slot++) {
            int64_t at = 0; /* of recv, within the chunk: first row of (source, slot) */

            offset[slot] = base + row;
            for (int source = 0; source < x->ranks; source++) {
                const int64_t *count = x->scratch.next_row + (int64_t)source * x->slots;

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
