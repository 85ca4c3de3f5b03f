/* comm/coll.h - inside of comm: worlds, groups and operations in flight.
 *
 * An operation is a state machine over messages: `post` starts its first messages and `step`
 * makes progress until it says that it is done.  Most post a list of transfers and wait for all
 * of them (ek_coll_wait_transfers); long vectors flow through the ranks in segments
 * (coll_stream.c). */
#ifndef COMM_COLL_H
#define COMM_COLL_H

#include "comm/backend.h"

#include <stdbool.h>

enum {
    SEGMENT = 256 << 10, /* bytes of a piece of a long vector that is passed on */
    WINDOW = 4,          /* pieces in flight in one direction */
    CHILDREN_MAX = 31,   /* of a rank in a binomial tree over up to 2^31 ranks */
    WHY_CAP = 1024,
    TAG_MULTICAST = EK_COMM_TAGS, /* below: send and recv */
    TAG_MULTIREDUCE = 2 * EK_COMM_TAGS,
    TAG_CALL = 3 * EK_COMM_TAGS, /* of multicasts and multireduces, in checked worlds */
    TAG_COLLECTIVE = 5 * EK_COMM_TAGS,
    TAG_END = 32768,
    SITE_CAP = 96
};

/* What a rank calls, as its neighbour must call it too (coll_call.c). */
typedef struct {
    char name[32], site[SITE_CAP];
    int64_t amount;  /* elements, bytes or rows */
    uint64_t digest; /* of all arguments that ranks must agree on */
} ek_call;

typedef struct {
    const ek_backend *backend;
    void *state; /* the back end's, of the group of all ranks */
    int64_t bytes_sent, message_max, segment;
    int64_t far_max;   /* longest message to another node */
    int64_t arrived;   /* messages finished */
    double watchdog_s; /* of ek_coll_wait; 0: never */
    ek_coll *running;
    ek_status failed; /* EK_OK, or what the first failure was */
    char reason[WHY_CAP];
    bool checked;
} ek_world;

struct ek_comm {
    ek_world *world;
    void *state;
    const char *name;
    int rank, size, nodes;
    unsigned calls; /* collectives started: the tag of the next one */
    int *world_of;  /* [size] rank in the world */
    int *node_of;   /* [size] */
    int *place_of;  /* [size] place of a rank in its node, by rank */
    int *node_size; /* [nodes] */
    char (*hosts)[EK_HOST_CAP];
    ek_coll *idle; /* operations to be used again */
};

/* One message of an operation. */
typedef struct {
    ek_message m;
    int64_t bytes;
    int peer;
    bool incoming, open;
} ek_transfer;

/* A place in a stream: byte `at` of the chunk of this step. */
typedef struct {
    int step;
    int64_t at;
} ek_place;

/* Pieces on their way from or to one peer, in order. */
typedef struct {
    int peer;
    ek_place posted, done;
    unsigned n_posted, n_done;
} ek_lane_of_pieces;

/* Chunks that are passed on from rank to rank (coll_stream.c). */
typedef struct {
    int chunks, start; /* step u handles chunk (start - u) mod chunks, of ek_coll.table */
    int in_first, in_end, out_end;
    int reduce_end; /* what comes in before this step is added, later it replaces */
    int n_out;
    int64_t slot; /* bytes of scratch for each piece that is to be added */
    ek_lane_of_pieces in, out[CHILDREN_MAX];
} ek_stream;

struct ek_coll {
    ek_comm *comm;
    ek_coll *prev, *next;    /* in ek_world.running, or next in ek_comm.idle */
    const char *name, *site; /* site: NULL for send and recv */
    int tag;
    ek_status (*post)(ek_coll *op);
    ek_status (*step)(ek_coll *op, int *done);
    bool agreed, posted, done; /* agreed: that all ranks make this call, or nobody asks */

    /* Checked worlds: the caller's words to the next rank, and those of the rank before. */
    ek_call mine, theirs;
    ek_message call_out, call_in;
    int next_rank, prev_rank;
    bool heard; /* theirs is here */

    /* Kept between uses, grown as needed. */
    unsigned char *scratch;
    ek_transfer *transfers;
    int64_t *table; /* [n_table] runs, [size + 1] or of a stream, or rows [size][size]; then a list
                       of ranks: copied from the caller */
    int64_t scratch_cap, transfers_cap, table_cap, n_table;

    int n_transfers, n_done; /* transfers before `settled` are finished */

    /* Arguments, and where an operation stands. */
    unsigned char *buf;        /* or what is received */
    const unsigned char *send; /* what is sent, where that is another buffer */
    int64_t bytes;             /* of buf, or of the run in it that is the caller's */
    int64_t size;              /* of an element or a row, in bytes */
    int64_t amount;            /* of everything, alike on all ranks: for messages */
    int peer;                  /* of send and recv, or the root */
    int phase, gate;           /* gate: the transfers before it end the first phase */
    int64_t region[3];         /* places in scratch (coll_all_to_all.c) */
    ek_reduce how;
    ek_stream stream;
};

/* --- coll.c ----------------------------------------------------------------------------------- */

/* An operation with room for that many transfers and table entries, and scratch bytes.  Takes
 * the next collective tag when tag is -1. */
EK_CHECKED ek_status ek_coll_begin(ek_comm *c, const char *name, const char *site, int tag,
                                   int64_t transfers, int64_t table, int64_t scratch,
                                   ek_coll **out);
/* Starts it; *out is the caller's handle. */
EK_CHECKED ek_status ek_coll_launch(ek_coll *op, ek_coll **out);

/* Starts a message as the operation's transfer t, of at most message_max bytes. */
EK_CHECKED ek_status ek_transfer_send(ek_coll *op, ek_transfer *t, const void *buf, int64_t bytes,
                                      int to);
EK_CHECKED ek_status ek_transfer_recv(ek_coll *op, ek_transfer *t, void *buf, int64_t bytes,
                                      int from);
/* Closes t when it is finished. */
EK_CHECKED ek_status ek_transfer_test(ek_coll *op, ek_transfer *t);

/* Appends a message of any length to the operation's transfers. */
EK_CHECKED ek_status ek_coll_send(ek_coll *op, const void *buf, int64_t bytes, int to);
EK_CHECKED ek_status ek_coll_recv(ek_coll *op, void *buf, int64_t bytes, int from);
/* Whether the first `upto` transfers are finished. */
EK_CHECKED ek_status ek_coll_wait_transfers(ek_coll *op, int upto, int *done);
/* A step that waits for all transfers. */
EK_CHECKED ek_status ek_coll_step_wait_transfers(ek_coll *op, int *done);

/* The caller's place in a list of ranks of the group, where it stands once; checks the tag. */
EK_CHECKED ek_status ek_coll_place(const ek_comm *c, const char *name, const int *ranks, int n,
                                   int tag, int *at);
/* The operation is one of these ranks alone, the caller at place `at`: checked worlds ask along the
 * list, and compare it, in the last n entries of the table. */
void ek_coll_along(ek_coll *op, const int *ranks, int n, int at);

/* How many transfers a message of this length takes, at most. */
int64_t ek_coll_pieces(const ek_comm *c, int64_t bytes);

/* --- coll_call.c ------------------------------------------------------------------------------ */

/* Tells the next rank what this one calls. */
EK_CHECKED ek_status ek_call_post(ek_coll *op);
/* Sets op->agreed when the rank before makes the same call; EK_ECOMM when it makes another. */
EK_CHECKED ek_status ek_call_test(ek_coll *op);

/* --- coll_stream.c ---------------------------------------------------------------------------- */

EK_CHECKED ek_status ek_stream_post(ek_coll *op);
EK_CHECKED ek_status ek_stream_step(ek_coll *op, int *done);
/* Transfers that a stream with this many outgoing lanes needs. */
int ek_stream_transfers(int n_out);

/* --- coll_reduce.c ---------------------------------------------------------------------------- */

/* into [bytes] := into + from, by elements. */
void ek_reduce_bytes(ek_reduce how, void *into, const void *from, int64_t bytes);

#endif
