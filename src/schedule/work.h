/* schedule/work.h - the work of an op in numbers: what its time depends on.
 *
 * The builder of an op knows what the op will ask of the communicator or the kernels, and says so
 * before it runs: a simulator needs nothing else to price it, and the executor records it with the
 * op.  What depends on routing is that of an even spread of rows, where no comment says more.
 *
 * Network   one call of comm/comm.h, or, for replicas and experts that migrate, as many messages
 *           as the plan asks for. */
#ifndef SCHEDULE_WORK_H
#define SCHEDULE_WORK_H

#include "base/ranks.h"

#include <stddef.h>
#include <stdint.h>

typedef enum {
    EK_COLLECTIVE_ALL_REDUCE,
    EK_COLLECTIVE_ALL_GATHER,
    EK_COLLECTIVE_REDUCE_SCATTER,
    EK_COLLECTIVE_A2A_LINEAR, /* all-to-alls in the order of ek_a2a */
    EK_COLLECTIVE_A2A_PAIRWISE,
    EK_COLLECTIVE_A2A_2DH,
    EK_COLLECTIVE_SEND,
    EK_COLLECTIVE_RECEIVE,
    EK_COLLECTIVE_MULTICASTS,   /* from a rank to some others, any number of them: replicas */
    EK_COLLECTIVE_MULTIREDUCES, /* sums of some ranks on one of them, any number of them */
    EK_COLLECTIVE_TRANSFERS,    /* sends and receives, any number of them: experts that migrate */
    EK_COLLECTIVES
} ek_collective;

typedef struct {
    ek_collective collective;
    ek_ranks group;  /* of the communicator */
    int32_t span;    /* messages stay within so many consecutive ranks of the group: ranks
                        [i * span, (i + 1) * span), this rank among them; group.n: no bound */
    int32_t peer;    /* rank in the group that a send goes to, or that a receive is from; -1 */
    int32_t element; /* bytes of a number of a sum or gather, of a row of an all-to-all; else 1 */
    double bytes;    /* all-reduce, all-gather, reduce-scatter: of the whole vector, of which ranks
                        have about equal ranges; send, receive: of the message; all-to-all: of the
                        rows that this rank sends to others; transfers: that it sends; multicasts:
                        that it receives, at most; multireduces: that it adds to, at most */
} ek_net_work;

typedef enum {
    EK_WORK_NONE, /* waits for other ops, or what is done takes no time worth predicting */
    EK_WORK_NET
} ek_work_kind;

typedef struct {
    ek_work_kind kind;
    union {
        ek_net_work net;
    };
} ek_work;

/* Bytes of traffic: that a rank of the group sends, in the mean over ranks, or that a receive
 * receives.  0 for work of other kinds. */
double ek_work_net_bytes(const ek_work *w);

/* A hash of up to 8 bytes of data, continued from `digest`. */
uint64_t ek_digest_add(uint64_t digest, const void *data, size_t bytes);

/* A hash of the work, continued from `digest`. */
uint64_t ek_work_digest(uint64_t digest, const ek_work *w);

/* "all-gather", "2dh all-to-all", ... */
const char *ek_collective_name(ek_collective collective);

#endif
