/* infer/memory.h - the memory that a model, a text and an evaluation need, against the limit of
 * this process.  Each check fails with EK_ENOMEM, whose message says what is needed, what the limit
 * is, and what would fit.  On an accelerator nothing is checked: its memory is its own.
 *
 * limit: most bytes of this process; 0: auto (base/memory_limit.h). */
#ifndef INFER_MEMORY_H
#define INFER_MEMORY_H

#include "model/model.h"

/* Memory for the experts of a model whose others stay in files (model/hf/expert_files.h). */
typedef struct {
    int64_t slots;   /* experts in memory; 0: all are */
    int64_t buffers; /* experts on their way there */
} ek_expert_room;

/* Bytes of a model that is not trained, and of a session of so many positions (0: none), without
 * touching any.  EK_EUNSUPPORTED: see ek_session_create. */
typedef struct {
    int64_t weights, session;
    int64_t slot;  /* of weights: one expert in memory; 0: the model has none */
    int64_t other; /* allowance for buffers that no arena holds, while weights are read */
} ek_infer_bytes;
EK_CHECKED ek_status ek_infer_measure(const ek_model_spec *spec, const ek_kernels *k,
                                      int64_t positions, ek_expert_room room, ek_infer_bytes *out);

/* Whether a model whose experts are all in memory fits, with a text of so many positions, or, if
 * that is not known (0), an evaluation of short windows. */
EK_CHECKED ek_status ek_infer_fits(const ek_model_spec *spec, const ek_kernels *k, int64_t limit,
                                   int64_t positions, int *fits);
/* The most expert slots with which it does, at most all experts; 0: fewer than a token needs.
 * room: the slots are set, and the buffers, if they are 0, to what goes with them. */
EK_CHECKED ek_status ek_infer_most_slots(const ek_model_spec *spec, const ek_kernels *k,
                                         int64_t limit, int64_t positions, ek_expert_room *room);

/* Before weights are read. positions: of texts, at least; 0: not known.
 * *file_cache: see ek_file_reader_config. */
EK_CHECKED ek_status ek_infer_check_model(const ek_model_spec *spec, const ek_kernels *k,
                                          ek_mode mode, int64_t limit, int64_t positions,
                                          ek_expert_room room, int64_t *file_cache);

/* Before a session for a prompt and so many more tokens is created.  promised: bytes of slots that
 * nothing is in yet, and so not counted as held. */
EK_CHECKED ek_status ek_infer_check_session(ek_model *m, int64_t limit, int64_t promised,
                                            int64_t prompt, int64_t tokens);

/* Before windows of seq tokens are evaluated, `batch` at a time. */
EK_CHECKED ek_status ek_infer_check_evaluation(ek_model *m, int64_t limit, int64_t promised,
                                               int64_t batch, int64_t seq);

#endif
