/* comm/backend.h - what a back end does: bytes between two ranks, and groups. */
#ifndef COMM_BACKEND_H
#define COMM_BACKEND_H

#include "comm/comm.h"

/* A message in flight; the back end's own. */
typedef struct {
    void *handle[4];
} ek_message;

typedef struct ek_backend ek_backend;

/* self: the back end's state of one group.  Messages between two ranks of a group with equal tags
 * arrive in the order they were sent.  tag: 0 to 32767. */
struct ek_backend {
    const char *name;
    ek_status (*send)(void *self, const void *buf, int64_t bytes, int to, int tag, ek_message *m);
    ek_status (*recv)(void *self, void *buf, int64_t bytes, int from, int tag, ek_message *m);
    /* *done: the message has left, or has come. */
    ek_status (*test)(void *self, ek_message *m, int *done);
    ek_status (*group)(void *self, const int *ranks, int n, void **out);
    void (*close)(void *self);
    void (*abort)(void *self, int status);
};

#endif
