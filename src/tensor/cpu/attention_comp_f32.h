/* Storage type `comp` of attention_body.h and rope_body.h: float. */
#ifndef TENSOR_CPU_ATTENTION_COMP_F32_H
#define TENSOR_CPU_ATTENTION_COMP_F32_H

typedef float comp;

static inline vf comp_load(const comp *p)
{
    return v_load(p);
}

static inline vf comp_load_n(const comp *p, int64_t n)
{
    return v_load_n(p, n);
}

static inline void comp_store(comp *p, vf v)
{
    v_store(p, v);
}

static inline void comp_store_n(comp *p, vf v, int64_t n)
{
    v_store_n(p, v, n);
}

#endif
