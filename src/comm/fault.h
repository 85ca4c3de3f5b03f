/* comm/fault.h - a world whose messages come late, get lost, or end the process: for tests. */
#ifndef COMM_FAULT_H
#define COMM_FAULT_H

#include "comm/comm.h"

/* Shares of the messages that this rank sends (and, for delays, receives), drawn by seed, rank
 * and number of the message, so that a run repeats. */
typedef struct {
    uint64_t seed;
    double delay;    /* held back for up to delay_tests tests of messages of its group */
    int delay_tests; /* at least 1 */
    double drop;     /* said to have left, and never comes */
    double kill;     /* calls on_kill before it is sent */
    void (*on_kill)(void *arg);
    void *arg;
} ek_fault;

/* Before the first group and operation of the world. */
EK_CHECKED ek_status ek_fault_wrap(ek_comm *world, const ek_fault *how);

#endif
