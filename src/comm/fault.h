/* comm/fault.h - fault injection for tests: delayed and dropped messages, killed ranks. */
#ifndef COMM_FAULT_H
#define COMM_FAULT_H

#include "comm/comm.h"

/* Fractions of the messages that this rank sends (and, for delays, receives), drawn from the seed,
 * the rank and the message's number, so that runs are reproducible.  A test counts for all delayed
 * sends of its group at once: they wait beside each other, not one after the other, unless they
 * keep an order (to the same rank, with the same tag). */
typedef struct {
    uint64_t seed;
    double delay;        /* delayed by up to delay_tests tests: a send by those of any message of
                            its group, a receive by its own */
    int delay_tests;     /* at least 1 */
    int64_t delay_bytes; /* only messages of at least so many bytes are delayed */
    double drop;         /* reported as sent, but never delivered */
    double kill;         /* on_kill is called before the send */
    void (*on_kill)(void *arg);
    void *arg;
} ek_fault;

/* Wraps the world's back end, on this rank; before the first group and operation.  how is copied.
 * Closing the world closes both.  EK_ENOMEM. */
EK_CHECKED ek_status ek_fault_wrap(ek_comm *world, const ek_fault *how);

#endif
