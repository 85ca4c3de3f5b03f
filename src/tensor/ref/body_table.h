/* The table of one mode.  A body file, see body.h: the last one. */

#define ENTRY(op) .op = NAME(op)

void NAME(ek_kernels_ref)(ek_kernels *k)
{
    *k = (ek_kernels){.name = "ref " MODE,
                      .products = "plain loops",
                      .real = R_TYPE,
                      .comp = C_TYPE,
                      .threads = k->threads,
                      ENTRY(packed_bytes),
                      ENTRY(pack),
                      ENTRY(linear_forward),
                      ENTRY(linear_backward_input),
                      ENTRY(linear_backward_weight),
                      ENTRY(linear_workspace),
                      ENTRY(matmul_real),
                      ENTRY(gather_comp),
                      ENTRY(gather_real),
                      ENTRY(combine),
                      ENTRY(to_comp),
                      ENTRY(embed_forward),
                      ENTRY(embed_backward),
                      ENTRY(bias_forward),
                      ENTRY(bias_backward),
                      ENTRY(rmsnorm_forward),
                      ENTRY(rmsnorm_backward),
                      ENTRY(headnorm_forward),
                      ENTRY(headnorm_backward),
                      ENTRY(rmsnorm_workspace),
                      ENTRY(rope),
                      ENTRY(attention_forward),
                      ENTRY(attention_backward),
                      ENTRY(attention_workspace),
                      ENTRY(attention_cached),
                      ENTRY(softmax_topk),
                      ENTRY(swiglu_forward),
                      ENTRY(swiglu_backward),
                      ENTRY(cross_entropy),
                      ENTRY(sum_squares),
                      ENTRY(adamw)};
}
