/* moe/dispatch_layout.h - index arithmetic of a dispatch: which rows the ranks of a stage exchange,
 * and the order of rows in each buffer.
 *
 * A source is a rank of the stage with tokens; a server is a rank with experts (one of the `shards`
 * ranks of an expert rank).  A slot of the source's expert-parallel group serves an assignment, on
 * `copies` of the slot's shards (Tutel's r): shards form groups of `members`, which have gathered
 * each other's slices of the experts, and a row is sent to one member of each group.  A source's
 * rows for a slot are split into a range for each member.  When rows are `local`, each rank serves
 * its own tokens.
 *
 * The exchange is split into chunks, in one of two ways:
 *
 *   by tokens    chunk c has token range c of every source (Tutel's degree)
 *   by distance  ranks form groups of `group` (the last may be smaller); chunk c has the rows from
 *                group g to group g + c, modulo the number of groups (FasterMoE's S/C/R)
 *
 *   send     [chunk][server][slot][token]      at a source; returned rows have the same order
 *   recv     [chunk][source][slot][token]      at a server
 *   experts  [chunk][slot][source][token]      at a server: the rows of a slot are contiguous
 *
 * All of it is computed from the gate statistics of all ranks and the plan made from them
 * (moe/routing_plan.h): integer-exact, the same on every rank. */
#ifndef MOE_DISPATCH_LAYOUT_H
#define MOE_DISPATCH_LAYOUT_H

#include "base/arena.h"
#include "comm/mesh.h"
#include "placement/placement.h"

#include <stdint.h>

/* A word of the gate statistics that ranks all-gather: the number of dropped assignments, the sum
 * for the z-loss, then by expert the assignments before drops, the sum of probabilities, and for
 * each token chunk the rows sent. */
typedef union {
    int64_t count;
    double sum;
} ek_gate_stats;

enum { EK_GATE_STATS_DROPPED, EK_GATE_STATS_Z, EK_GATE_STATS_CHOSEN };

static inline int64_t ek_gate_stats_words(int64_t experts, int token_chunks)
{
    return EK_GATE_STATS_CHOSEN + (2 + token_chunks) * experts;
}

/* First word of the sums of probabilities, and of the rows of a token chunk. */
static inline int64_t ek_gate_stats_probs(int64_t experts)
{
    return EK_GATE_STATS_CHOSEN + experts;
}

static inline int64_t ek_gate_stats_rows(int64_t experts, int token_chunk)
{
    return EK_GATE_STATS_CHOSEN + (2 + token_chunk) * experts;
}

/* Scratch of ek_dispatch_sort and ek_dispatch_receive. */
typedef struct {
    int64_t *next_row;     /* [ranks * slots], next row of each (slot, member); counts by source */
    int32_t *member;       /* [all_slots], member that gets the slot's next row */
    int32_t *member_left;  /* [all_slots], rows that this member still gets */
    int64_t *server_start; /* [ranks], first row for each server in send */
    int32_t *cursor;       /* [experts], position in list */
    int32_t *slot_left;    /* [experts], rows that the slot at the cursor still gets */
} ek_dispatch_scratch;

/* Sizes of the exchange of one layer.  Its tables row_counts [token_chunks, ranks, all_slots] give
 * the rows of a source's token chunk that each slot serves. */
typedef struct {
    int ranks, at;                      /* ranks of the stage; this one */
    int ep_groups, shards;              /* edp, etp */
    int members, copies;                /* shards of a group; groups: shards / members */
    int local;                          /* every rank serves its own rows, and those alone */
    int group;                          /* > 0: chunks by distance */
    int token_chunks;                   /* ranges that a source's tokens are split into */
    int token_chunks_max;               /* the largest token_chunks of any step */
    int chunks;                         /* exchanges */
    int32_t experts, slots, first_slot; /* slots of an expert rank; this rank's first */
    int32_t all_slots;                  /* of all expert ranks */
    int64_t words;                      /* of a rank's gate statistics */
    int32_t *serves;     /* [ep_groups, experts], slot of the primary: serves all of the group's
                            rows for the expert without a plan */
    int32_t *start_rank; /* [experts], expert rank of a group in the initial block placement */
    int32_t *list;       /* [all_slots], slots that hold an expert, sorted by expert */
    int32_t *first;      /* [experts + 1], where an expert's slots begin in list */
    ek_dispatch_scratch scratch;
} ek_dispatch_layout;

/* The most chunks of a layer's rows, for degree and group of ek_moe_config. */
int ek_dispatch_chunks_most(const ek_mesh *mesh, int degree, int group);

/* Sets sizes and reserves arrays.  degree, group: of ek_moe_config; a layer that is not distributed
 * has one chunk.  token_chunks is at its maximum until ek_dispatch_layout_set_degree, so memory
 * reserved by these sizes suffices for every step. */
void ek_dispatch_layout_reserve(ek_dispatch_layout *x, ek_arena *a, const ek_mesh *mesh,
                                const ek_placement *p, int degree, int group);

/* Sets the number of token chunks, at most token_chunks_max (0: that).  Gate statistics and tables
 * made before become invalid.  Chunks by distance do not change. */
void ek_dispatch_layout_set_degree(ek_dispatch_layout *x, int degree);

/* Sets how many shards of an expert gather their slices: a divisor of etp, 0 is 1.  EK_GATHER_ALL:
 * every rank gathers every expert whole, and serves its own rows. */
enum { EK_GATHER_ALL = -1 };
void ek_dispatch_layout_set_gather(ek_dispatch_layout *x, int gather);

/* Sets x->serves: in each expert-parallel group the slot that corresponds to the primary's in the
 * first group, as all groups have the same placement. */
void ek_dispatch_layout_follow_placement(ek_dispatch_layout *x, const ek_placement *p);

/* Sets x->list and x->first from expert_of [all_slots]. */
void ek_dispatch_layout_list_slots(ek_dispatch_layout *x, const int32_t *expert_of);

/* The slot that serves a source's rows for an expert without a plan. */
static inline int32_t ek_dispatch_slot(const ek_dispatch_layout *x, int source, int64_t expert)
{
    return x->serves[(int64_t)(source / (x->ranks / x->ep_groups)) * x->experts + expert];
}

/* The chunk in which rows of a token chunk go from source to server. */
static inline int ek_dispatch_chunk(const ek_dispatch_layout *x, int source, int server,
                                    int token_chunk)
{
    return x->group > 0 ? (server / x->group - source / x->group + x->chunks) % x->chunks
                        : token_chunk;
}

/* How many of a source's `rows` for a slot this member of a group serves. */
static inline int32_t ek_dispatch_member_rows(const ek_dispatch_layout *x, int source, int32_t slot,
                                              int member, int32_t rows)
{
    if (x->local)
        return source % x->shards == member ? rows : 0;
    return (int32_t)ek_range_length(rows, x->members, (member + source + slot) % x->members);
}

/* The entries [all_slots] of a source's token chunk in a table. */
static inline int32_t *ek_dispatch_row_counts(const ek_dispatch_layout *x, int32_t *row_counts,
                                              int token_chunk, int source)
{
    return row_counts + ((int64_t)token_chunk * x->ranks + source) * x->all_slots;
}

/* Fills the table for serving without a plan, by x->serves. */
void ek_dispatch_default_rows(const ek_dispatch_layout *x, const ek_gate_stats *gate_stats,
                              int32_t *row_counts);

/* Rows of a chunk from every source to every server, rows [ranks, ranks]; back: the transpose, for
 * the rows on their way back. */
void ek_dispatch_matrix(const ek_dispatch_layout *x, const int32_t *row_counts, int chunk, int back,
                        int64_t *rows);

/* Sorts this rank's assignments into the order of the send buffer; x->list must be set.  An
 * expert's assignments fill its slots in order.
 *   ids [n, cols] -> row_of [n, cols, copies] (negative: none), token_of [rows sent],
 *   send_first [chunks + 1] */
void ek_dispatch_sort(ek_dispatch_layout *x, const int32_t *row_counts, int64_t n, int64_t cols,
                      const int32_t *ids, int32_t *row_of, int32_t *token_of, int64_t *send_first);

/* Layout of the rows that this rank serves.
 *   offset [chunks, slots + 1]  in the order of experts
 *   from_recv [rows]            by row of experts, its row in recv, counted within the chunk
 *   from_experts [rows]         by row of recv, its row in experts, counted within the chunk */
void ek_dispatch_receive(ek_dispatch_layout *x, const int32_t *row_counts, int64_t *offset,
                         int32_t *from_recv, int32_t *from_experts);

#endif
