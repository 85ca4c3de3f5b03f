/* model/hf/weights.h - the weights of this rank as parts of Hugging Face tensors. */
#ifndef MODEL_HF_WEIGHTS_H
#define MODEL_HF_WEIGHTS_H

#include "model/hf/names.h"
#include "model/model.h"
#include "store/tensor_slices.h"

/* The shard of a Hugging Face tensor that this rank computes with: rows x cols of it, from (row,
 * col) on (a vector is one column), starting at element `first` of weight w, whose rows have stride
 * ld.  If w->kept is less than w, only elements [kept_first, kept_first + kept) are stored, in
 * w->p_kept. w->own == 0: another rank owns all of it. */
typedef struct {
    ek_weight *w;
    int64_t first, ld;
    int64_t row, rows, col, cols;
} ek_span;

/* Returns 0 if this rank holds nothing of it. */
int ek_model_span(ek_model *m, const ek_hf_tensor *t, ek_span *out);

/* The slice of the tensor that elements [first, first + n) of the weight hold, from *from on; 0:
 * none.  The range is of whole rows, and the span has all columns. */
int ek_span_part(const ek_span *s, int64_t first, int64_t n, ek_tensor_slice *slice, int64_t *from);

#endif
