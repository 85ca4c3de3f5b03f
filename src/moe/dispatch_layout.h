/* moe/dispatch_layout.h - which rows travel between the ranks of a stage, and where they lie.
 *
 * A source is a place of the stage with tokens of its own; a server is a place with experts (one
 * of the `shards` places of an expert rank).  A source in expert data parallel run i has an
 * assignment served by the slot that its run has for the expert, on `copies` of the slot's shards
 * (Tutel's r): shards form groups of `members`, which have gathered one another's slices of the
 * experts, and a row goes to one member of each group.  A source's rows for a slot are cut into
 * runs for the members; when rows are `local`, each serves those of its own tokens.
 *
 * The exchange is cut into chunks, in one of two ways:
 *
 *   by tokens    chunk c holds run c of every source's tokens (Tutel's degree)
 *   by distance  places form groups of `group` (the last may be smaller); chunk c holds what goes
 *                from group g to group g + c, modulo their number (FasterMoE's S/C/R)
 *
 *   send     [chunk][server][slot][token]      at a source; returned rows lie in the same places
 *   recv     [chunk][source][slot][token]      at a server
 *   experts  [chunk][slot][source][token]      at a server: an expert's rows of a chunk together
 *
 * All of it follows from the tallies of all ranks, and from a plan that does (moe/routing_plan.h):
 * integer-exact, the same on every rank. */
#ifndef MOE_DISPATCH_LAYOUT_H
#define MOE_DISPATCH_LAYOUT_H

#include "base/arena.h"
#include "comm/mesh.h"
#include "placement/placement.h"

#include <stdint.h>

/* A word of what a rank tells the others about its tokens: its number of dropped assignments, its
 * sum for the z-loss, then by expert its choices before drops, its sums of probabilities, and for
 * each run of its tokens the rows that it sends. */
typedef union {
    int64_t count;
    double sum;
} ek_gate_stats;

enum { EK_GATE_STATS_DROPPED, EK_GATE_STATS_Z, EK_GATE_STATS_CHOSEN };

static inline int64_t ek_gate_stats_words(int64_t experts, int token_chunks)
{
    return EK_GATE_STATS_CHOSEN + (2 + token_chunks) * experts;
}

/* First words of a rank's runs by expert. */
static inline int64_t ek_gate_stats_probs(int64_t experts)
{
    return EK_GATE_STATS_CHOSEN + experts;
}

static inline int64_t ek_gate_stats_rows(int64_t experts, int token_chunk)
{
    return EK_GATE_STATS_CHOSEN + (2 + token_chunk) * experts;
}

/* A table `dealt` says which slot serves which rows: [token_chunks, ranks, all_slots], of a
 * source's rows of a token chunk how many a slot serves. */
typedef struct {
    int ranks, at;                      /* places of the stage; this one */
    int ep_groups, shards;              /* edp, etp */
    int members, copies;                /* of a group; groups: shards / members */
    int local;                          /* every rank serves its own rows, and those alone */
    int group;                          /* > 0: chunks by distance */
    int token_chunks;                   /* runs that a source's tokens are cut into, */
    int token_chunks_max;               /* and the most there can be */
    int chunks;                         /* exchanges */
    int32_t experts, slots, first_slot; /* slots of an expert rank; this rank's first */
    int32_t all_slots;                  /* of all expert ranks */
    int64_t words;                      /* of a rank's tally */
    int32_t *serves;     /* [runs, experts] slot that serves an expert's rows, if no other does */
    int32_t *start_rank; /* [experts] expert rank of a run that has it when all begins */
    int32_t *list;       /* [all_slots] slots that hold something, by expert */
    int32_t *first;      /* [experts + 1] where an expert's begin */
    int64_t *next;       /* [ranks * slots], scratch of the sorts: of a slot for each member */
    int32_t *member;     /* [all_slots], likewise: which is next, */
    int32_t *part;       /* [all_slots], and how many rows it still gets */
    int64_t *start;      /* [ranks], likewise */
    int32_t *cursor;     /* [experts], likewise */
    int32_t *left;       /* [experts], likewise */
} ek_dispatch_layout;

/* Sizes and arrays.  degree, group: of ek_moe_config; without experts parallelism there is one
 * chunk.  Until it is cut otherwise the exchange is cut into the most chunks that it can have:
 * who takes memory by its sizes has enough for all. */
void ek_dispatch_layout_reserve(ek_dispatch_layout *x, ek_arena *a, const ek_mesh *mesh,
                                const ek_placement *p, int degree, int group);

/* Cuts it into another number of token chunks, as far as there is room (0: all that there is);
 * tallies and tables made before are void.  Chunks by distance stay as they are. */
void ek_dispatch_layout_set_degree(ek_dispatch_layout *x, int degree);

/* How many shards of an expert gather their slices: a divisor of etp, 0 is 1; EK_GATHER_ALL: all of
 * them, and every rank has every expert and serves its own rows. */
enum { EK_GATHER_ALL = -1 };
void ek_dispatch_layout_set_gather(ek_dispatch_layout *x, int gather);

/* Reads off the placement which slot serves whom: in each run, that of the home in the first, as
 * all runs are alike. */
void ek_dispatch_layout_follow_placement(ek_dispatch_layout *x, const ek_placement *p);

/* Lists the slots of each expert. */
void ek_dispatch_layout_list_slots(ek_dispatch_layout *x, const int32_t *expert_of);

/* The slot that serves a source's rows for an expert when each run keeps to the slots in `serves`.
 */
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

/* Of a source's rows for a slot, those that this member of a group serves. */
static inline int32_t ek_dispatch_member_rows(const ek_dispatch_layout *x, int source, int32_t slot,
                                              int member, int32_t rows)
{
    if (x->local)
        return source % x->shards == member ? rows : 0;
    return (int32_t)ek_range_length(rows, x->members, (member + source + slot) % x->members);
}

/* A source's rows of a token chunk in a table. */
static inline int32_t *ek_dispatch_row_counts(const ek_dispatch_layout *x, int32_t *row_counts,
                                              int token_chunk, int source)
{
    return row_counts + ((int64_t)token_chunk * x->ranks + source) * x->all_slots;
}

/* The table in which each run keeps to the slots in `serves`. */
void ek_dispatch_default_rows(const ek_dispatch_layout *x, const ek_gate_stats *gate_stats,
                              int32_t *row_counts);

/* Rows of a chunk from every source to every server, rows [ranks, ranks]; back: the transpose, of
 * the rows that return. */
void ek_dispatch_matrix(const ek_dispatch_layout *x, const int32_t *row_counts, int chunk, int back,
                        int64_t *rows);

/* This rank's assignments in the order of the send buffer; x lists the slots that were dealt to.
 * Of an expert's, the first in order go to the first of its slots.
 *   ids [n, cols] -> row_of [n, cols, copies] (negative: none), token_of [rows sent],
 *   send_first [chunks + 1] */
void ek_dispatch_sort(ek_dispatch_layout *x, const int32_t *row_counts, int64_t n, int64_t cols,
                      const int32_t *ids, int32_t *row_of, int32_t *token_of, int64_t *send_first);

/* The rows that this rank serves.
 *   offset [chunks, slots + 1]  in the order of experts
 *   from_recv [rows]            by row of experts, its row in recv, counted within the chunk
 *   from_experts [rows]         by row of recv, its row in experts, counted within the chunk */
void ek_dispatch_receive(ek_dispatch_layout *x, const int32_t *row_counts, int64_t *offset,
                         int32_t *from_recv, int32_t *from_experts);

#endif
