/* rows_body.h - all row kernels of one instruction set: rows_body_real.h for R, then
 * rows_body_move.h and rows_body_math.h for each C.  rows_avx512.c and rows_avx2.c include it and
 * are compiled with their instruction set's flags. */
#include "tensor/cpu/rows_body_real.h"

#define COMP         float
#define comp_load    vf_load
#define comp_store   vf_store
#define comp_sigmoid vf_sigmoid
#define FN(name)     name##_f32
#include "tensor/cpu/rows_body_math.h"
#include "tensor/cpu/rows_body_move.h"

#undef COMP
#undef comp_load
#undef comp_store
#undef comp_sigmoid
#undef FN
#define COMP         ek_bf16
#define comp_load    vb_load
#define comp_store   vb_store
#define comp_sigmoid vf_sigmoid_near
#define FN(name)     name##_bf16
#include "tensor/cpu/rows_body_math.h"
#include "tensor/cpu/rows_body_move.h"

#if defined(__AVX512BF16__)
#undef comp_store
#undef FN
#define comp_store vb_store_near
#define FN(name)   name##_near
#include "tensor/cpu/rows_body_math.h"
#endif

static void fill_rows(ek_kernels *k, ek_mode mode, ek_isa isa)
{
    k->embed_forward = embed_forward;
    k->embed_backward = embed_backward;
    k->rmsnorm_backward = rmsnorm_backward;
    k->softmax_topk = softmax_topk;
    k->vocab_exponentials = vocab_exponentials;
    k->sum_squares = sum_squares;
    k->adamw = adamw;
    k->adamw_resumable = adamw_resumable;
    if (mode == EK_MODE_FP32) {
        fill_moves_f32(k);
        fill_math_f32(k);
    } else {
        fill_moves_bf16(k);
        fill_math_bf16(k);
    }
#if defined(__AVX512BF16__)
    if (mode == EK_MODE_BF16 && isa >= EK_ISA_AVX512_SLOW_BF16)
        fill_math_near(k);
#endif
    (void)isa;
}
