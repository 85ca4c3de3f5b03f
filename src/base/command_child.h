/* base/command_child.h - a computation in a child process, of which only the result comes back: its
 * threads and its memory are gone with it.
 *
 * The caller must not have threads: the child has only the one that called. */
#ifndef BASE_COMMAND_CHILD_H
#define BASE_COMMAND_CHILD_H

#include "evenkeel/err.h"

/* Computes *result from arg. */
typedef ek_status ek_child_run(const void *arg, void *result);

/* Runs `run` in a child process and copies its *result [bytes], plain values, back.  Its failure is
 * raised here, with its message.  Signals that end a command end the child; it also dies with its
 * parent.  `stop` (NULL: none) is asked several times a second: once it is true the child is
 * killed, EK_ECANCELED.  `what` names the computation in messages: EK_ENOMEM, EK_EIO: no child, a
 * signal killed it, it ended without a result, or reading from it failed. */
EK_CHECKED ek_status ek_child_compute(const char *what, ek_child_run *run, const void *arg,
                                      void *result, size_t bytes, int (*stop)(void));

#endif
