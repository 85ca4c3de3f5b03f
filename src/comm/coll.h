/* comm/coll.h - internal to comm: worlds, groups and operations in flight.
 *
 * An operation is a state machine over messages: `post` starts its first messages, and `step`
 * makes progress and sets *done at the end.  Most post a list of transfers and test these until all
 * are finished (ek_coll_test_transfers); long vectors are pipelined through the ranks in segments
 * (coll_stream.c). */
#ifndef COMM_COLL_H
#define COMM_COLL_H

#include "base/coll_limits.h"
#include "comm/backend.h"

#include <stdbool.h>

enum {
    WINDOW = 4,              /* receives of a stream in flight; its least limit of sends */
    SENDS_MAX = 32,          /* the largest limit of a stream's sends in flight to a peer */
    SENDS_BYTES = 512 << 10, /* over a segment's bytes: that limit, within the two above */
    MATCH_EVERY = 8,         /* every such send to a peer is matched */
    CHILDREN_MAX = 31,       /* of a rank in a binomial tree over up to 2^31 ranks */
    REASON_CAP = 1024,
    TAG_MULTICAST = EK_COMM_TAGS, /* below: send and recv */
    TAG_MULTIREDUCE = 2 * EK_COMM_TAGS,
    TAG_CALL = 3 * EK_COMM_TAGS, /* call checks of multicast and multireduce (coll_call.c) */
    TAG_COLLECTIVE = 5 * EK_COMM_TAGS,
    TAG_END = 32768,
    SITE_CAP = 96
};

/* Description of a collective call, compared between neighbouring ranks (coll_call.c). */
typedef struct {
    char name[32], site[SITE_CAP];
    int64_t amount;  /* elements, bytes or rows */
    uint64_t digest; /* of all arguments that ranks must agree on */
} ek_call;

typedef struct {
    const ek_backend *backend;
    void *state; /* the back end's state of the group of all ranks */
    int64_t bytes_sent, message_max;
    int64_t far_max;   /* longest message to another node */
    int64_t arrived;   /* messages finished */
    double watchdog_s; /* timeout of ek_coll_wait; 0: none */
    ek_coll *running;
    ek_status failed; /* EK_OK, or the first failure */
    char reason[REASON_CAP];
    bool checked; /* whether collectives check that all ranks make the same call */
} ek_world;

struct ek_comm {
    ek_world *world;
    void *state;
    const char *name;
    int rank, size, nodes;
    unsigned calls;     /* collectives started: the tag of the next one */
    int *world_of;      /* [size] rank in the world */
    int *node_of;       /* [size] */
    int *local_rank_of; /* [size] rank within its node */
    int *node_size;     /* [nodes] */
    int *by_node;       /* [size] ranks ordered by node, then by local rank */
    int *node_first;    /* [nodes + 1] first of each node in by_node */
    char (*hosts)[EK_HOST_CAP];
    ek_coll *idle; /* pool of finished operations */
};

/* One message of an operation. */
typedef struct {
    ek_message m;
    int64_t bytes;
    int peer;
    bool incoming, open;
} ek_transfer;

/* A position in a stream: byte `at` of the chunk of this step. */
typedef struct {
    int step;
    int64_t at;
} ek_stream_pos;

/* Segments from or to one peer, in order. */
typedef struct {
    int peer;
    ek_stream_pos posted, done;
    unsigned n_posted, n_done;
} ek_stream_lane;

/* Chunks that are forwarded from rank to rank (coll_stream.c). */
typedef struct {
    int chunks, start;    /* step u handles chunk (start - u) mod chunks, of ek_coll.table */
    int in_first, in_end; /* steps whose chunks are received */
    int out_end;          /* chunks of the steps before this one are sent */
    int reduce_end;       /* chunks received before this step are added, later ones replace */
    int n_out;
    int sends;       /* in flight to each peer, at most */
    int64_t segment; /* bytes of a segment; the last one of a chunk may be shorter */
    int64_t slot;    /* bytes of scratch for each segment that is to be added */
    ek_stream_lane in, out[CHILDREN_MAX];
} ek_stream;

/* In a checked world: this rank's call, sent to the next rank, and the previous rank's call. */
typedef struct {
    bool agreed; /* all ranks make this call, or it is not checked */
    ek_call own_call, prev_call;
    ek_message call_out, call_in;
    int next_rank, prev_rank;
    bool call_received; /* prev_call is complete */
} ek_coll_check;

/* Buffers that an operation keeps between uses, and that grow as needed. */
typedef struct {
    unsigned char *scratch;
    ek_transfer *transfers;
    int64_t *table; /* [n_table] starts of ranges [size + 1], or of a stream's chunks, then a list
                       of ranks; or byte counts (coll_all_to_all.c) */
    int64_t scratch_cap, transfers_cap, table_cap, n_table;
} ek_coll_buffers;

struct ek_coll {
    ek_comm *comm;
    ek_coll *prev, *next;    /* in ek_world.running, or next in ek_comm.idle */
    const char *name, *site; /* site: NULL for send and recv */
    int tag;
    ek_status (*post)(ek_coll *op);
    ek_status (*step)(ek_coll *op, int *done);
    bool posted, done;
    bool advanced; /* by the test of another operation, since it was last tested itself */
    ek_coll_check check;
    ek_coll_buffers kept;

    int n_transfers, n_done; /* the first n_done transfers are finished */

    /* Arguments and progress of the operation. */
    unsigned char *buf;        /* in place, or the receive buffer */
    const unsigned char *send; /* the send buffer, if it is a separate one */
    int64_t bytes;             /* of buf, or of the caller's range in it */
    int64_t size;              /* of an element or a row, in bytes */
    int64_t amount;            /* elements, bytes or rows in total, the same on all ranks */
    int peer;                  /* of send and recv, or the root */
    int phase, n_phase_0;      /* n_phase_0: transfers that end phase 0 */
    int64_t region[3];         /* offsets in scratch (coll_all_to_all.c) */
    int64_t n_served;          /* ranks that the caller forwards to (coll_all_to_all.c) */
    uint64_t digest;           /* of arguments that are not in the table; 0: none */
    ek_reduce how;
    ek_stream stream;
};

/* --- coll.c ----------------------------------------------------------------------------------- */

/* An operation from the pool with a capacity of so many transfers, table entries and scratch
 * bytes; ek_coll_launch takes it over.  tag -1: the next collective tag.  EK_ENOMEM, or the failure
 * of the world. */
EK_CHECKED ek_status ek_coll_begin(ek_comm *c, const char *name, const char *site, int tag,
                                   int64_t transfers, int64_t table, int64_t scratch,
                                   ek_coll **out);
/* Starts an operation; *out is the caller's handle.  On failure the world has failed. */
EK_CHECKED ek_status ek_coll_launch(ek_coll *op, ek_coll **out);

/* Starts one message of at most message_max bytes as the operation's transfer t. */
EK_CHECKED ek_status ek_transfer_send(ek_coll *op, ek_transfer *t, const void *buf, int64_t bytes,
                                      int to);
/* The same, by ek_backend.send_matched. */
EK_CHECKED ek_status ek_transfer_send_matched(ek_coll *op, ek_transfer *t, const void *buf,
                                              int64_t bytes, int to);
EK_CHECKED ek_status ek_transfer_recv(ek_coll *op, ek_transfer *t, void *buf, int64_t bytes,
                                      int from);
/* Sets t->open to false when the transfer is finished. */
EK_CHECKED ek_status ek_transfer_test(ek_coll *op, ek_transfer *t);

/* Appends a message of any length to the operation's transfers, split where it is too long. */
EK_CHECKED ek_status ek_coll_send(ek_coll *op, const void *buf, int64_t bytes, int to);
EK_CHECKED ek_status ek_coll_recv(ek_coll *op, void *buf, int64_t bytes, int from);
/* Tests the first `upto` transfers; *done: all of them are finished. */
EK_CHECKED ek_status ek_coll_test_transfers(ek_coll *op, int upto, int *done);
/* A step that waits for all transfers. */
EK_CHECKED ek_status ek_coll_step_wait_transfers(ek_coll *op, int *done);

/* Sets *at to the caller's index in a list of ranks of the group; EK_EINVAL for a bad tag or rank,
 * or if the caller is not listed exactly once. */
EK_CHECKED ek_status ek_coll_find_rank(const ek_comm *c, const char *name, const int *ranks, int n,
                                       int tag, int *at);
/* Restricts the operation to a list of ranks, the caller at index `at`: checked worlds compare
 * calls along this ring.  Copies the list to the last n entries of the table. */
void ek_coll_set_ring(ek_coll *op, const int *ranks, int n, int at);

/* Transfers that a message of this length is split into, at most. */
int64_t ek_coll_n_transfers(const ek_comm *c, int64_t bytes);
/* Bytes of a segment, one message, of a stream over these ranks of the group (NULL: all). */
int64_t ek_coll_segment(const ek_comm *c, const int *ranks, int n);

/* Copies within the caller's buffers, unless the back end carries no data. */
void ek_coll_copy(const ek_coll *op, void *to, const void *from, int64_t bytes);

/* --- coll_call.c ------------------------------------------------------------------------------ */

/* Digest of numbers that all ranks give alike; not 0. */
uint64_t ek_call_digest(const int64_t *numbers, int64_t n);
/* Starts the exchange of call descriptions with the neighbours in the ring. */
EK_CHECKED ek_status ek_call_post(ek_coll *op);
/* Sets op->agreed when the previous rank makes the same call; EK_ECOMM if it makes another. */
EK_CHECKED ek_status ek_call_test(ek_coll *op);

/* --- coll_stream.c ---------------------------------------------------------------------------- */

/* post and step of an operation that is a stream, op->stream. */
EK_CHECKED ek_status ek_stream_post(ek_coll *op);
EK_CHECKED ek_status ek_stream_step(ek_coll *op, int *done);
/* Sends to one peer that a stream keeps in flight, at most. */
int ek_stream_sends(int64_t segment);
/* Transfers needed by a stream with n_out outgoing lanes of so many sends. */
int ek_stream_transfers(int n_out, int sends);

/* --- coll_reduce.c ---------------------------------------------------------------------------- */

/* into [bytes] := into + from (or the maximum), elementwise, by op->how; unless the back end
 * carries no data. */
void ek_coll_reduce(const ek_coll *op, void *into, const void *from, int64_t bytes);

#endif
