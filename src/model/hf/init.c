/* Initial values of the weights, by tensor. */
#include "model/hf/init.h"

#include "base/random.h"
#include "model/hf/fill.h"
#include "moe/cosine.h"

static void set_element(const ek_kernels *k, void *p, int64_t i, double x)
{
    if (k->real == EK_F64)
        ((double *)p)[i] = x;
    else
        ((float *)p)[i] = (float)x;
}

/* Initial value of a tensor: -1 stands for normal noise. */
static double initial_value(ek_role role)
{
    switch (role) {
    case EK_ROLE_NORM1:
    case EK_ROLE_NORM2:
    case EK_ROLE_Q_NORM:
    case EK_ROLE_K_NORM:
    case EK_ROLE_FINAL_NORM: return 1;
    case EK_ROLE_Q_BIAS:
    case EK_ROLE_K_BIAS:
    case EK_ROLE_V_BIAS:
    case EK_ROLE_ROUTER_BIAS: return 0;
    case EK_ROLE_ROUTER_SCALE: return EK_COSINE_THETA;
    default: return -1;
    }
}

typedef struct {
    const ek_model *m;
    uint64_t seed;
} initial_values;

static ek_status read_initial(void *context, const ek_hf_tensor *t, const ek_weight_array *a,
                              const ek_tensor_slice *slice, const ek_file_batch *in, ek_dtype type,
                              void *dst, int64_t ld)
{
    const initial_values *v = context;
    int64_t width = t->dims > 1 ? t->shape[1] : 1;
    double value = initial_value(t->role), range = v->m->spec.init_range;
    uint64_t stream = ek_random_stream(t->name);

    (void)a;
    (void)in;
    (void)type;
    for (int64_t r = 0; r < slice->rows; r++) {
        int64_t from = (slice->row + r) * width + slice->col;

        for (int64_t c = 0; c < slice->cols; c++)
            set_element(v->m->k, dst, r * ld + c,
                        value >= 0
                            ? value
                            : range * ek_random_normal(v->seed, stream, (uint64_t)(from + c)));
    }
    return EK_OK;
}

ek_status ek_model_init(ek_model *m, uint64_t seed)
{
    initial_values v = {m, seed};

    return ek_model_fill(m, EK_ARRAYS_MASTER,
                         &(ek_value_source){.read = read_initial, .real_only = 1, .context = &v});
}
