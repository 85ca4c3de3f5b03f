/* schedule/pipeline.h - in which order a pipeline stage works: 1F1B, plain and interleaved.
 *
 * A model is cut into stages * chunks pieces; chunk c of stage s is piece c * stages + s.  A
 * micro-batch passes forward through the pieces in order and backward through them in reverse.
 * Each stage works through one list of items, waiting for what an item needs: some forwards, then
 * one forward and one backward in turn, then the backwards that are left.
 *
 * Without chunks this is the 1F1B order of PipeDream-Flush.  With chunks, a group of about
 * `stages` micro-batches goes through one chunk after the other (the interleaved order of
 * Megatron-LM); where micro-batches do not divide, groups differ by one and none is smaller than
 * `stages`, which keeps the idle time at (stages - 1) / (chunks * micros + stages - 1) of the
 * whole.  Below `stages` micro-batches there is one group, and more idle time.
 *
 * Why it ends: a stage passes its forwards on in the order in which the next one wants them, and
 * starts two more (one, without chunks) ahead of backwards than the next does.  From the last
 * stage to the first, a group is long enough for the same to hold; where it is not, the first
 * stage has no forward left to wait for. */
#ifndef SCHEDULE_PIPELINE_H
#define SCHEDULE_PIPELINE_H

#include <stdint.h>

typedef struct {
    int32_t micro, model_chunk;
    int backward;
} ek_pipe_item;

/* Fills items[2 * micros * chunks] with the order in which stage `stage` works; training 0:
 * forwards alone, items[micros * chunks].  Returns the number of items. */
int64_t ek_pipe_order(int stages, int model_chunks, int64_t micros, int stage, int training,
                      ek_pipe_item *items);

/* The most (chunk, micro-batch) pairs of a stage that are between the start of their forward and
 * the end of their backward at once. */
int64_t ek_pipe_in_flight(int stages, int model_chunks, int64_t micros, int stage);

/* The same for one chunk, of a list made by ek_pipe_order: the activation slots that this chunk
 * needs.  A chunk takes micro-batches in order both ways, so micro-batch m can have slot
 * m % slots. */
int64_t ek_pipe_slots(const ek_pipe_item *items, int64_t n, int model_chunk);

#endif
