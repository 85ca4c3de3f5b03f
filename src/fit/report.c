/* What fits, and which speed follows. */
#include "fit/report.h"

#include <string.h>

int ek_fit_fits(const ek_fit_report *r, int64_t bytes)
{
    return r->limit.kind == EK_LIMIT_UNKNOWN || bytes <= r->limit.bytes;
}

int64_t ek_fit_inference_bytes(const ek_fit_inference *i)
{
    return i->base + i->weights + i->session;
}

/* Bytes of an expert in the model's files, or in those that this program would write. */
static double file_bytes(const ek_model_spec *s)
{
    int half = strcmp(s->torch_dtype, "bfloat16") == 0 || strcmp(s->torch_dtype, "float16") == 0;

    return (half ? 2.0 : 4.0) * 3 * (double)(s->hidden * s->ff);
}

/* The rate of products of a type. */
static double flops_of(const ek_fit_report *r, int bf16)
{
    return bf16 && r->rates.bf16 > r->rates.fp32 ? r->rates.bf16 : r->rates.fp32;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

ek_fit_disk_speed ek_fit_disk_speed_of(const ek_fit_report *r, int i)
{
    const ek_fit_mode *mode = &r->training[i].mode;
    const ek_offload_traffic *t = &r->training[i].offload.step;
    const ek_scratch_rates *disk = &r->rates.scratch;
    double tokens = (double)(mode->batch * mode->seq), experts = (double)r->params[EK_FIT_EXPERTS];
    ek_fit_disk_speed s = {.tokens_of_expert =
                               tokens * (double)r->spec->top_k / (double)r->spec->experts};
    double seconds;

    if (disk->read <= 0 || disk->write <= 0 || disk->both <= 0)
        return s;
    seconds = larger(larger(t->read_bytes / disk->read, t->written_bytes / disk->write),
                     (t->read_bytes + t->written_bytes) / disk->both);
    s.tokens_per_s = seconds > 0 ? tokens / seconds : 0;
    s.tokens_to_hide =
        seconds * flops_of(r, mode->mode == EK_MODE_BF16) * mode->ranks / (6 * experts);
    return s;
}

/* Parameters of the output matrix, which a prompt multiplies for its last token alone. */
static int64_t head_params(const ek_fit_report *r)
{
    return r->params[r->spec->tie_embeddings ? EK_FIT_EMBEDDING : EK_FIT_HEAD];
}

ek_fit_speed ek_fit_speed_of(const ek_fit_report *r, const ek_fit_inference *i)
{
    double a_token = (double)i->experts / (double)r->spec->experts * (double)r->spec->top_k;
    double kept = i->experts > 0 ? (double)i->slots / (double)i->experts : 1;
    double flops = flops_of(r, strcmp(i->dtype, "bf16") == 0);
    ek_fit_speed s = {.decode = r->rates.memory_read / i->active,
                      .prefill = flops / (2 * (double)(r->active - head_params(r))),
                      .missed = a_token * (1 - kept) * file_bytes(r->spec)};

    if (r->rates.disk_read > 0 && s.missed > 0 && i->slots > 0)
        s.disk = 1 / (1 / s.decode + s.missed / r->rates.disk_read);
    return s;
}

static ek_status measure_training(ek_fit_report *r)
{
    static const ek_mode modes[EK_FIT_DTYPES] = {EK_MODE_BF16, EK_MODE_FP32};
    static const char *const recompute[] = {"off", "attention", "full"};
    const ek_fit_request *c = r->cfg;
    int64_t most = r->limit.kind != EK_LIMIT_UNKNOWN ? r->limit.bytes : INT64_MAX;

    for (int d = 0; d < EK_FIT_DTYPES; d++)
        for (int i = 0; i < 3; i++)
            for (int zero = 0; zero <= (c->ranks > 1 ? 3 : 0); zero++) {
                ek_fit_mode *m = &r->training[r->n_training].mode;

                *m = (ek_fit_mode){modes[d], recompute[i], zero,          c->ranks,
                                   c->batch, c->seq,       c->micro_batch};
                EK_TRY(
                    ek_fit_training_of(r->spec, m, c->threads, &r->training[r->n_training].bytes));
                EK_TRY(ek_fit_offload_of(r->spec, m, c->threads, most,
                                         &r->training[r->n_training].offload));
                r->n_training++;
            }
    return EK_OK;
}

ek_status ek_fit_report_make(ek_fit_report *r, const char *weights)
{
    const ek_model_spec *s = r->spec;
    const ek_fit_request *c = r->cfg;

    ek_fit_count(s, r->params);
    for (int i = 0; i < EK_FIT_CLASSES; i++)
        r->all += r->params[i];
    r->active = r->all - r->params[EK_FIT_EXPERTS] / s->experts * (s->experts - s->top_k);
    r->active -= s->tie_embeddings ? 0 : r->params[EK_FIT_EMBEDDING]; /* a row is looked up */
    EK_TRY(ek_fit_inference_of(s, EK_MODE_BF16, c->threads, c->context, c->memory_limit,
                               &r->inference[0]));
    EK_TRY(ek_fit_inference_of(s, EK_MODE_FP32, c->threads, c->context, c->memory_limit,
                               &r->inference[1]));
    r->limit = ek_memory_limit_find(c->memory_limit);
    EK_TRY(measure_training(r));
    return ek_fit_measure_rates(weights, c->offload_dir, &r->rates);
}
