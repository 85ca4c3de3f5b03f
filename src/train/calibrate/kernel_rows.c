/* Calls of the kernels that are not products, with the operands that an op of a training step gives
 * them: rows of the model's widths; what the op before wrote in a cache if it fits, what was stored
 * long ago or is stored for later not (ek_probe_operands.cold); indices that ascend in strides, as
 * the tokens of an expert do. */
#include "base/arena.h"
#include "train/calibrate/calibrate_priv.h"

#include <math.h>

enum { SEQUENCE = 256 /* positions of rotated rows */ };

static int64_t heads_width(const ek_model_spec *s)
{
    return (s->heads + 2 * s->kv_heads) * s->head_dim;
}

double ek_probe_row_bytes(const ek_probe_operands *o, ek_cost_kernel kernel)
{
    const ek_model_spec *s = o->spec;
    double r = (double)ek_dtype_size(o->k->real), c = (double)ek_dtype_size(o->k->comp);
    double d = (double)s->hidden, f = (double)s->ff, k = (double)s->top_k;

    switch (kernel) {
    case EK_KERNEL_NORM:
    case EK_KERNEL_CONVERT: return d * (r + c);
    case EK_KERNEL_NORM_BACKWARD: return 4 * d * r;
    case EK_KERNEL_ROPE: return 2 * (double)heads_width(s) * c;
    case EK_KERNEL_SWIGLU: return 3 * f * c;
    case EK_KERNEL_SWIGLU_BACKWARD: return 6 * f * c;
    case EK_KERNEL_GATHER: return 2 * d * c;
    case EK_KERNEL_COMBINE: return k * d * c + 2 * d * r; /* of a token */
    case EK_KERNEL_GATE: return 2 * (double)s->experts * r;
    case EK_KERNEL_GATE_BACKWARD: return (double)s->experts * r;
    case EK_KERNEL_CROSS_ENTROPY: return (double)s->vocab * (r + c);
    case EK_KERNEL_EMBED:
    case EK_KERNEL_COPY: return 2 * d * r;
    case EK_KERNEL_EMBED_BACKWARD: return 3 * d * r;
    case EK_KERNEL_SUM_SQUARES: return r;
    case EK_KERNEL_ADAMW: return 8 * r;
    case EK_KERNEL_PACK: return d * (r + c) * (o->k->one_form ? 1 : 2);
    default: return 0;
    }
}

int ek_probe_is_flat(ek_cost_kernel kernel)
{
    return kernel == EK_KERNEL_SUM_SQUARES || kernel == EK_KERNEL_ADAMW ||
           kernel == EK_KERNEL_PACK || kernel == EK_KERNEL_COPY;
}

int64_t ek_probe_rows_need(const ek_probe_operands *o, ek_cost_kernel kernel, int64_t n)
{
    const ek_model_spec *s = o->spec;
    int64_t r = (int64_t)ek_dtype_size(o->k->real), c = (int64_t)ek_dtype_size(o->k->comp), width;
    int64_t positions = SEQUENCE * s->head_dim * r;

    switch (kernel) {
    case EK_KERNEL_ROPE:
        width = heads_width(s) * c;
        return n * width > positions ? n * width : positions;
    case EK_KERNEL_SWIGLU:
    case EK_KERNEL_SWIGLU_BACKWARD: width = 2 * s->ff * c; break;
    case EK_KERNEL_COMBINE: width = s->top_k * s->hidden * c + s->hidden * r; break;
    case EK_KERNEL_GATE:
    case EK_KERNEL_GATE_BACKWARD: width = (s->experts + 2 * s->top_k) * r; break;
    case EK_KERNEL_CROSS_ENTROPY: width = (s->vocab + 7) / 8 * 8 * r; break;
    case EK_KERNEL_SUM_SQUARES: return n * r / EK_PROBE_BUFFERS; /* all buffers */
    case EK_KERNEL_ADAMW: width = r; break;
    default: width = s->hidden * r; break;
    }
    return n * width;
}

size_t ek_probe_rows_workspace(const ek_kernels *k, const ek_model_spec *spec)
{
    return k->rmsnorm_workspace(k, spec->hidden);
}

void ek_probe_set_index(const ek_probe_operands *o, ek_cost_kernel kernel, int64_t n)
{
    enum { STRIDE = 5 };
    int64_t rows = o->buffer_bytes / (o->spec->hidden * (int64_t)ek_dtype_size(o->k->real));
    int64_t entries = n, bound = n;

    if (ek_probe_is_flat(kernel))
        return;
    if (kernel == EK_KERNEL_COMBINE || kernel == EK_KERNEL_GATE_BACKWARD)
        entries = bound = n * o->spec->top_k;
    if (kernel == EK_KERNEL_CROSS_ENTROPY)
        bound = o->spec->vocab;
    if (kernel == EK_KERNEL_EMBED || kernel == EK_KERNEL_EMBED_BACKWARD)
        bound = o->spec->vocab < rows ? o->spec->vocab : rows;
    for (int64_t i = 0; i < n * o->spec->top_k && kernel == EK_KERNEL_GATE_BACKWARD; i++)
        o->ids[i] = (int32_t)(i % o->spec->experts);
    for (int64_t i = 0; i < entries; i++)
        o->index[i] = (int32_t)(i * STRIDE % bound);
}

/* The gate of plain routers, with its statistics. */
static void call_gate(const ek_probe_operands *o, int64_t n)
{
    const ek_model_spec *s = o->spec;
    const ek_kernels *k = o->k;
    ek_weighing by = {s->experts, s->top_k, s->gate.normalise, s->gate.kind == EK_GATE_SIGMOID_BIAS,
                      s->gate.scale};
    int32_t *ids = o->ids;
    int64_t counts[2 * EK_GATE_EXPERTS_MAX];
    double sums[EK_GATE_EXPERTS_MAX];

    k->softmax_topk(n, s->experts, s->top_k, o->buffer[0], o->buffer[1], ids, o->column[0]);
    k->weigh(&by, n, o->buffer[1], ids, o->buffer[3]);
    if (s->experts > EK_GATE_EXPERTS_MAX)
        return;
    k->count_choices(n * s->top_k, s->experts, ids, counts);
    k->sum_columns(n, s->experts, o->buffer[1], sums);
}

static void call_gate_backward(const ek_probe_operands *o, int64_t n)
{
    const ek_model_spec *s = o->spec;
    ek_weighing by = {s->experts, s->top_k, s->gate.normalise, s->gate.kind == EK_GATE_SIGMOID_BIAS,
                      s->gate.scale};
    double balance[EK_GATE_EXPERTS_MAX] = {0};
    int64_t choices = n * s->top_k * (int64_t)ek_dtype_size(o->k->real);

    o->k->gather_numbers(n * s->top_k, o->index, o->column[1], o->buffer[2]);
    if (s->experts <= EK_GATE_EXPERTS_MAX)
        o->k->weigh_backward(&by, n, o->buffer[0], o->column[0], o->ids,
                             (char *)o->buffer[2] + choices, o->buffer[2], balance, 0,
                             o->buffer[1]);
}

static void call_combine(const ek_probe_operands *o, int64_t n)
{
    const ek_model_spec *s = o->spec;

    o->k->combine(n, s->hidden, s->top_k, o->index, o->buffer[0], s->hidden, 1, o->cold[1]);
}

/* Both forms of matrices like those of an expert, one after the other. */
static ek_status call_pack(const ek_probe_operands *o, int64_t n)
{
    const ek_kernels *k = o->k;
    int64_t d = o->spec->hidden, each = 2 * o->spec->ff;
    int64_t real = d * (int64_t)ek_dtype_size(k->real);

    for (int64_t first = 0; first < n; first += each) {
        int64_t rows = n - first < each ? n - first : each;

        for (int form = 0; form < (k->one_form ? 1 : 2); form++)
            if (k->packed_bytes(k, rows, d, (ek_form)form) > 0)
                EK_TRY(k->pack(k, rows, d, (ek_form)form, (char *)o->cold[0] + first * real,
                               (char *)o->cold[1 + form] + first * real));
    }
    return EK_OK;
}

static void call_rope(const ek_probe_operands *o, int64_t n)
{
    const ek_model_spec *s = o->spec;
    int64_t seq = n < SEQUENCE ? n : SEQUENCE;

    o->k->rope(n, seq, 0, s->heads + s->kv_heads, s->head_dim, o->buffer[1], 0, o->buffer[0],
               heads_width(s));
}

void ek_probe_move_on(ek_probe_operands *o, int64_t need)
{
    need = (need + EK_ARENA_ALIGN - 1) / EK_ARENA_ALIGN * EK_ARENA_ALIGN;
    o->at = o->at + 2 * need <= o->buffer_bytes ? o->at + need : 0;
    for (int i = 0; i < EK_PROBE_BUFFERS; i++)
        o->cold[i] = (char *)o->buffer[i] + o->at;
}

ek_status ek_probe_call_rows(ek_probe_operands *o, ek_cost_kernel kernel, int64_t n)
{
    static const ek_adamw step = {1e-4, 0.1, 0.9, 0.95, 1e-8, 0.1, 0.05, 1};
    const ek_model_spec *s = o->spec;
    const ek_kernels *k = o->k;
    int64_t d = s->hidden, f = s->ff, v = s->vocab, row = d * (int64_t)ek_dtype_size(k->real);
    void *const *hot = o->buffer, *const *cold = o->cold;

    ek_probe_move_on(o, ek_probe_rows_need(o, kernel, n));
    switch (kernel) {
    case EK_KERNEL_NORM:
        k->rmsnorm_forward(n, d, s->rms_eps, hot[0], o->column[1], cold[1], NULL, o->column[0]);
        break;
    case EK_KERNEL_NORM_BACKWARD:
        k->rmsnorm_backward(n, d, cold[0], o->column[1], o->column[0], hot[1], hot[2], hot[3],
                            o->ws);
        break;
    case EK_KERNEL_ROPE: call_rope(o, n); break;
    case EK_KERNEL_SWIGLU: k->swiglu_forward(n, f, hot[0], o->column[0], cold[1]); break;
    case EK_KERNEL_SWIGLU_BACKWARD:
        k->swiglu_backward(n, f, cold[2], o->column[0], hot[1], cold[2], hot[1], o->column[2]);
        break;
    case EK_KERNEL_GATHER: k->gather_comp(n, d, o->index, hot[0], d, cold[1], d); break;
    case EK_KERNEL_COMBINE: call_combine(o, n); break;
    case EK_KERNEL_CONVERT: k->to_comp(n, d, hot[0], cold[1]); break;
    case EK_KERNEL_GATE: call_gate(o, n); break;
    case EK_KERNEL_GATE_BACKWARD: call_gate_backward(o, n); break;
    case EK_KERNEL_CROSS_ENTROPY:
        k->cross_entropy(n, v, hot[0], v, o->index, 1e-3, hot[3], hot[1], (v + 7) / 8 * 8);
        break;
    case EK_KERNEL_EMBED: k->embed_forward(n, d, o->index, hot[0], cold[1]); break;
    case EK_KERNEL_EMBED_BACKWARD: k->embed_backward(n, d, o->index, hot[0], cold[1]); break;
    case EK_KERNEL_SUM_SQUARES: (void)k->sum_squares(n, cold[0]); break;
    case EK_KERNEL_ADAMW: k->adamw(&step, n, cold[0], cold[1], cold[2], cold[3]); break;
    case EK_KERNEL_PACK: return call_pack(o, n);
    case EK_KERNEL_COPY: k->copy_rows(n, row, hot[0], row, cold[1], row); break;
    default: break;
    }
    return EK_OK;
}
