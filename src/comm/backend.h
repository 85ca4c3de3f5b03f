/* comm/backend.h - what a back end does: bytes between two ranks, and groups. */
#ifndef COMM_BACKEND_H
#define COMM_BACKEND_H

#include "comm/comm.h"

enum { EK_HOST_CAP = 64 };

/* A message in flight; the back end's own. */
typedef struct {
    void *handle[4];
} ek_message;

typedef struct ek_backend ek_backend;

/* self: the back end's state of one group.  Messages between two ranks of a group with equal tags
 * arrive in the order they were sent.  tag: 0 to 32767.  A message must have the length that its
 * receiver asks for.  The peer is never the rank itself. */
struct ek_backend {
    const char *name;
    int64_t message_max; /* longest message it takes, in bytes */
    ek_status (*send)(void *self, const void *buf, int64_t bytes, int to, int tag, ek_message *m);
    ek_status (*recv)(void *self, void *buf, int64_t bytes, int from, int tag, ek_message *m);
    /* *done: the message has left, or has come. */
    ek_status (*test)(void *self, ek_message *m, int *done);
    ek_status (*group)(void *self, const int *ranks, int n, void **out);
    /* failed: an operation of this world has failed, so waiting for others may never end. */
    void (*close)(void *self, int failed);
    /* Ends the job; NULL where it is this process alone. */
    void (*abort)(void *self, int status);
    /* This rank has failed; NULL where the others learn it otherwise. */
    void (*failed)(void *self, const char *reason);
};

/* A world over this back end; takes `state`, also on failure.  hosts [ranks]: names to copy. */
EK_CHECKED ek_status ek_comm_create(const ek_backend *backend, void *state, int rank, int ranks,
                                    const char (*hosts)[EK_HOST_CAP], ek_comm **out);

/* Puts `outer` in the place of the world's back end; *inner and *state are what it was.  Before
 * the first group and operation. */
void ek_comm_decorate(ek_comm *world, const ek_backend *outer, void *outer_state,
                      const ek_backend **inner, void **state);

/* Messages to other nodes travel in pieces of at most so many bytes (a multiple of 8, the same on
 * all ranks).  Before the first operation. */
void ek_comm_set_far_max(ek_comm *world, int64_t bytes);

/* For tests: longer messages than this (a multiple of 8, the same on all ranks) travel in pieces;
 * and whether collectives check that all ranks make the same call. */
void ek_comm_set_message_max(ek_comm *world, int64_t bytes);
void ek_comm_set_checked(ek_comm *world, int checked);

#endif
