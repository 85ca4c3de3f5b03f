/* base/progress_hook.h - a function that kernels call periodically, to drive communication.
 *
 * A thread that both computes and progresses the network sets the hook before a computation and
 * clears it afterwards; kernels call ek_progress between tiles.  The hook is thread-local: other
 * threads of an OpenMP team have none, so it never runs concurrently, and it is not reentered. */
#ifndef BASE_PROGRESS_HOOK_H
#define BASE_PROGRESS_HOOK_H

/* Sets the function that ek_progress calls on this thread; NULL (the default): none. */
void ek_progress_hook_set(void (*fn)(void *context), void *context);

/* Calls the hook if its last call was at least 50 us ago; costs a few ns otherwise.  Loops call it
 * every 20 to 100 us of work. */
void ek_progress(void);

#endif
