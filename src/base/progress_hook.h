/* base/progress_hook.h - lets a long computation attend to something else now and then.
 *
 * Where the thread that computes also has to keep the network moving, it sets a function before
 * and clears it after; kernels call ek_progress between tiles.  The function belongs to the thread
 * that set it: other threads of an OpenMP team have none, so it never runs twice at once, and it
 * is not called from within itself. */
#ifndef BASE_PROGRESS_HOOK_H
#define BASE_PROGRESS_HOOK_H

/* What ek_progress calls on this thread from now on; NULL: nothing, which is the start. */
void ek_progress_hook_set(void (*fn)(void *context), void *context);

/* Calls it if the last call was some 50 us ago; costs a few ns otherwise.  For loops, every 20 to
 * 100 us of work. */
void ek_progress(void);

#endif
