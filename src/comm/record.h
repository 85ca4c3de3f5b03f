/* comm/record.h - worlds of all ranks of a job in one thread, whose messages are recorded.
 *
 * Operations run as over any back end, but messages carry no data: buffers are never touched, and
 * may be any addresses but NULL.  Who has opened the worlds takes the messages in the order in
 * which both sides have called, as a network that does not buffer would, and says of each when its
 * sender may go on, and when its receiver has it; so the operations' own rules decide which message
 * follows which. */
#ifndef COMM_RECORD_H
#define COMM_RECORD_H

#include "comm/comm.h"

typedef struct ek_recorder ek_recorder;

typedef struct {
    int32_t id;       /* another message has it when both ends are done with this one */
    int32_t from, to; /* ranks of the world */
    int64_t bytes;
} ek_recorded;

/* The caller closes *out, also after a failure.  All ranks are on this host until
 * ek_comm_set_nodes says otherwise.  EK_ENOMEM.  Local. */
EK_CHECKED ek_status ek_record_open(int ranks, ek_recorder **out);
/* Closes the worlds, too; groups are closed before. */
void ek_record_close(ek_recorder **r);

/* The world as a rank sees it; borrowed. */
ek_comm *ek_record_world(const ek_recorder *r, int rank);

/* The group of n ranks of the world as each of them sees it, groups [n], which the caller closes,
 * also after a failure; ek_comm_group would not know that they are one.  Errors as of it. */
EK_CHECKED ek_status ek_record_group(ek_recorder *r, const char *name, const int *ranks, int n,
                                     ek_comm **groups);

/* The oldest message that was not taken; returns 0 if there is none. */
int ek_record_take(ek_recorder *r, ek_recorded *m);

/* Of a message that was taken, once each: the sender's buffer is free; the receiver has it.  The
 * ranks see it when they test their operations. */
void ek_record_left(ek_recorder *r, int32_t id);
void ek_record_arrived(ek_recorder *r, int32_t id);

#endif
