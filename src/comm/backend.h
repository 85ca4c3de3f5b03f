/* comm/backend.h - interface of a back end: messages between two ranks, and groups. */
#ifndef COMM_BACKEND_H
#define COMM_BACKEND_H

#include "comm/comm.h"

#include <stdbool.h>

enum { EK_HOST_CAP = 64 };

/* A message in flight; opaque to the caller. */
typedef struct {
    void *handle[4];
} ek_message;

typedef struct ek_backend ek_backend;

/* self: the back end's state of one group.  Messages between two ranks of a group with equal tags
 * arrive in the order in which they were sent.  tag: 0 to 32767.  Sender and receiver give the same
 * length.  The peer is never the rank itself. */
struct ek_backend {
    const char *name;
    int64_t message_max; /* longest message, in bytes */
    bool no_data;        /* buffers are never touched: collectives copy and add nothing */
    bool no_others; /* no other rank exists: what ranks agree on (comm/agree.h) is this one's */
    ek_status (*send)(void *self, const void *buf, int64_t bytes, int to, int tag, ek_message *m);
    ek_status (*recv)(void *self, void *buf, int64_t bytes, int from, int tag, ek_message *m);
    /* A send that is done only once the peer has called recv for the message; NULL: send is one. */
    ek_status (*send_matched)(void *self, const void *buf, int64_t bytes, int to, int tag,
                              ek_message *m);
    /* *done: the send buffer may be reused, or the message has been received. */
    ek_status (*test)(void *self, ek_message *m, int *done);
    /* State of the subgroup of these n ranks of `self`.  Collective over them. */
    ek_status (*group)(void *self, const int *ranks, int n, void **out);
    /* failed: an operation of this world has failed, so it must not wait for other ranks. */
    void (*close)(void *self, int failed);
    /* Terminates all ranks of the job; NULL if the job is this process only. */
    void (*abort)(void *self, int status);
    /* Reports the failure of this rank to the others; NULL: not needed. */
    void (*failed)(void *self, const char *reason);
};

/* A world over this back end; takes ownership of `state`, also on failure (EK_ENOMEM).  hosts
 * [ranks]: host names, copied.  Local: the back end has connected the ranks. */
EK_CHECKED ek_status ek_comm_create(const ek_backend *backend, void *state, int rank, int ranks,
                                    const char (*hosts)[EK_HOST_CAP], ek_comm **out);

/* Replaces the world's back end by `outer`; returns the old one and its state in *inner and *state.
 * Before the first group and operation.  Local. */
void ek_comm_decorate(ek_comm *world, const ek_backend *outer, void *outer_state,
                      const ek_backend **inner, void **state);

/* Messages to other nodes are split into messages of at most `bytes` (a multiple of 8, the same on
 * all ranks), and so are segments.  Before the first operation. */
void ek_comm_set_far_max(ek_comm *world, int64_t bytes);

/* For tests: splits messages longer than `bytes` (a multiple of 8, the same on all ranks); turns
 * the check on or off that all ranks make the same collective call. */
void ek_comm_set_message_max(ek_comm *world, int64_t bytes);
void ek_comm_set_checked(ek_comm *world, int checked);

#endif
