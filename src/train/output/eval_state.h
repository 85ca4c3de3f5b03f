/* train/output/eval_state.h - the evaluation state of a run: the last and the best evaluation,
 * and the number of evaluations since the best.
 *
 * state.json of every checkpoint holds it as of that checkpoint, and <out>/evaluation.json the
 * current one:
 *
 *   {"format": "evenkeel-evaluation", "version": 1,
 *    "data_tokens": 120000, "seq": 256, "windows": 400,  what is evaluated
 *    "step": 300, "loss": 3.1, "best_step": 200, "best_loss": 3.0, "since_best": 1}
 *
 * Steps count those done, as the names of checkpoints do. */
#ifndef TRAIN_OUTPUT_EVAL_STATE_H
#define TRAIN_OUTPUT_EVAL_STATE_H

#include "evenkeel/err.h"

#include <jansson.h>
#include <stdint.h>

#define EK_EVAL_FILE "evaluation.json"

/* Plain numbers, so that it can be sent between ranks. */
typedef struct {
    int64_t data_tokens, seq, windows; /* tokens of the data, of a window; windows evaluated */
    int64_t step, best_step;           /* -1: there was no evaluation */
    double loss, best_loss;            /* mean cross entropy, nats */
    int64_t since_best;                /* evaluations since the best one */
} ek_eval_state;

/* A state without evaluations, for held-out data of this size and windows. */
ek_eval_state ek_eval_state_new(int64_t data_tokens, int64_t seq, int64_t windows);

/* Adds an evaluation; returns whether it is the best so far. */
int ek_eval_state_add(ek_eval_state *s, int64_t step, double loss);

/* Whether both are of the same data and windows, so that their losses can be compared. */
int ek_eval_state_same_data(const ek_eval_state *a, const ek_eval_state *b);

/* A new object; NULL: no memory. */
json_t *ek_eval_state_json(const ek_eval_state *s);

/* Reads the object `key` of the file (key NULL: the whole file).  *found: 0 if the object or file
 * does not exist.  EK_EFORMAT: it is not an evaluation state. */
EK_CHECKED ek_status ek_eval_state_read(const char *path, const char *key, ek_eval_state *s,
                                        int *found);

/* Replaces <out>/evaluation.json. */
EK_CHECKED ek_status ek_eval_state_write(const ek_eval_state *s, const char *out_dir);

#endif
