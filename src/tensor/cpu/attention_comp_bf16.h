/* Storage type `comp` of attention_body.h and rope_body.h: bf16. */
#ifndef TENSOR_CPU_ATTENTION_COMP_BF16_H
#define TENSOR_CPU_ATTENTION_COMP_BF16_H

typedef ek_bf16 comp;

static inline vf comp_load(const comp *p)
{
    return v_load_bf16(p);
}

static inline vf comp_load_n(const comp *p, int64_t n)
{
    return v_load_bf16_n(p, n);
}

static inline void comp_store(comp *p, vf v)
{
    v_store_bf16(p, v);
}

static inline void comp_store_n(comp *p, vf v, int64_t n)
{
    v_store_bf16_n(p, v, n);
}

#endif
