/* elastic/adopt_blocks.h - which pieces of what is left a rank goes on with where they lie.
 *
 * The state of a rank lies in pieces (elastic/segment.h): one for each unit of weights, among them
 * one for each slot of experts.  Ranks that go on from what others of their host have left need not
 * copy a piece that holds what they want in the places where they want it: they take it over.  A
 * piece of which they want nothing, as that of a free slot, saves time too, since its memory need
 * not be found and cleared.
 *
 * Pure, and linear in (pieces of both sides)^2; those are hundreds. */
#ifndef ELASTIC_ADOPT_BLOCKS_H
#define ELASTIC_ADOPT_BLOCKS_H

#include "elastic/shard_table.h"

/* What lies in the pieces of a body. */
typedef struct {
    const ek_shard_table *shards;
    const uint64_t *at; /* [n + 1]: bytes from the body's start; pieces follow each other */
    int64_t n;
} ek_state_blocks;

typedef struct {
    int32_t from;  /* which of what is left; -1: it has to be made anew */
    int64_t block; /* of that */
    int whole;     /* all that is wanted in it is there; else nothing is wanted */
} ek_block_source;

/* Sources [want->n] for the pieces of `want`: of the same size, with the same parts in the same
 * places.  Each piece of left [n_left] is taken once at most, by those first who want what it
 * holds. */
EK_CHECKED ek_status ek_adopt_plan(const ek_state_blocks *left, int32_t n_left,
                                   const ek_state_blocks *want, ek_block_source *sources);

/* The piece in which a byte of the body lies; -1: none. */
int64_t ek_state_block_of(const ek_state_blocks *p, int64_t byte);

#endif
