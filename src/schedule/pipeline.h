/* schedule/pipeline.h - the order of work of a pipeline stage: 1F1B, plain and interleaved.
 *
 * A model is split into stages * model_chunks virtual stages; model chunk c of stage s is virtual
 * stage c * stages + s.  A micro-batch passes forward through the virtual stages in order, and
 * backward in reverse.  Each stage executes one list of items, in order: warm-up forwards, then one
 * forward and one backward alternately, then the remaining backwards.
 *
 * With one model chunk this is the 1F1B order of PipeDream-Flush.  With more, a group of about
 * `stages` micro-batches passes through one chunk after the other (the interleaved order of
 * Megatron-LM).  If `stages` does not divide the micro-batches, group sizes differ by one and none
 * is smaller than `stages`, which keeps the bubble at
 * (stages - 1) / (model_chunks * micros + stages - 1) of the step.  With fewer than `stages`
 * micro-batches there is one group, and a larger bubble.
 *
 * No deadlock  a stage's forwards are in the order in which the next stage consumes them, and it
 *              runs two more of them (one, with one model chunk) ahead of its backwards than the
 *              next stage does.  From the last stage back to the first, the same holds because a
 *              group is long enough; where it is not, the first stage has no forward left to wait
 *              for. */
#ifndef SCHEDULE_PIPELINE_H
#define SCHEDULE_PIPELINE_H

#include <stdint.h>

typedef struct {
    int32_t micro, model_chunk;
    int backward;
} ek_pipe_item;

/* Fills items [2 * micros * model_chunks] with the order of stage `stage`; training 0: forwards
 * alone, [micros * model_chunks].  Returns the number of items. */
int64_t ek_pipe_order(int stages, int model_chunks, int64_t micros, int stage, int training,
                      ek_pipe_item *items);

/* The largest number of micro-batches of a model chunk that are at the same time between the start
 * of their forward and the end of their backward, in a list made by ek_pipe_order: the activation
 * slots that the chunk needs.  Both forwards and backwards of a chunk are in micro-batch order, so
 * micro-batch m can use slot m % slots.  Later stages need no more than earlier ones. */
int64_t ek_pipe_slots(const ek_pipe_item *items, int64_t n, int model_chunk);

#endif
