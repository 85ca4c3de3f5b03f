/* elastic/adopt_blocks.h - which state blocks of earlier ranks a new rank uses in place.
 *
 * The state of a rank consists of state blocks (elastic/segment.h): one for each parameter bucket,
 * and one for each expert slot.  A new rank need not copy a block of an earlier rank of its host
 * that holds the tensor slices it wants at the offsets at which it wants them: it adopts the block.
 * A block in which it wants nothing (a free slot) is adopted as memory, which saves reserving and
 * clearing pages.
 *
 * Pure.  O((blocks of both sides)^2); there are hundreds. */
#ifndef ELASTIC_ADOPT_BLOCKS_H
#define ELASTIC_ADOPT_BLOCKS_H

#include "elastic/shard_table.h"

/* The shards in the state blocks of one rank. */
typedef struct {
    const ek_shard_table *shards;
    const uint64_t *at; /* [n + 1]: byte offsets in the body; blocks are contiguous */
    int64_t n;
    const unsigned char *taken; /* [n] of a survivor: blocks not to be used; NULL: none */
} ek_state_blocks;

typedef struct {
    int32_t from;  /* index of the survivor; -1: the block has to be created */
    int64_t block; /* index of the block of that survivor */
    int whole;     /* 1: the block holds all wanted shards; 0: it is only memory */
} ek_block_source;

/* Fills sources [want->n]: for each block of `want` a block of survivors [n_survivors] with the
 * same size and, where shards are wanted, the same shards at the same offsets.  A survivor's block
 * is used once; blocks with wanted shards are served first.  EK_ENOMEM. */
EK_CHECKED ek_status ek_adopt_plan(const ek_state_blocks *survivors, int32_t n_survivors,
                                   const ek_state_blocks *want, ek_block_source *sources);

/* The block that contains a byte offset of the body; -1: none. */
int64_t ek_state_block_of(const ek_state_blocks *p, int64_t byte);

#endif
