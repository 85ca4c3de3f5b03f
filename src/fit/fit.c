/* Counts and measures what a model needs. */
#include "fit/fit.h"

#include "base/threads.h"
#include "infer/memory.h"
#include "infer/session.h"
#include "model/hf/names.h"
#include "tensor/select/select.h"

#include <string.h>

const char *const ek_fit_class_names[EK_FIT_CLASSES] = {"experts",   "shared", "attention",
                                                        "embedding", "head",   "other"};

static ek_fit_class class_of(ek_role role)
{
    switch (role) {
    case EK_ROLE_EMBED: return EK_FIT_EMBEDDING;
    case EK_ROLE_HEAD: return EK_FIT_HEAD;
    case EK_ROLE_Q:
    case EK_ROLE_K:
    case EK_ROLE_V:
    case EK_ROLE_O:
    case EK_ROLE_Q_BIAS:
    case EK_ROLE_K_BIAS:
    case EK_ROLE_V_BIAS: return EK_FIT_ATTENTION;
    case EK_ROLE_DENSE_GATE:
    case EK_ROLE_DENSE_UP:
    case EK_ROLE_DENSE_DOWN:
    case EK_ROLE_SHARED_GATE:
    case EK_ROLE_SHARED_UP:
    case EK_ROLE_SHARED_DOWN: return EK_FIT_SHARED;
    case EK_ROLE_EXPERT_GATE:
    case EK_ROLE_EXPERT_UP:
    case EK_ROLE_EXPERT_DOWN: return EK_FIT_EXPERTS;
    default: return EK_FIT_OTHER;
    }
}

void ek_fit_count(const ek_model_spec *spec, int64_t of[EK_FIT_CLASSES])
{
    int64_t count = ek_hf_count(spec);

    for (int64_t i = 0; i < count; i++) {
        int64_t n = 1;
        ek_hf_tensor t;

        ek_hf_tensor_at(spec, i, &t);
        for (int d = 0; d < t.dims; d++)
            n *= t.shape[d];
        of[class_of(t.role)] += n;
    }
}

ek_status ek_fit_inference_of(const ek_model_spec *spec, ek_mode mode, int threads, int64_t context,
                              int64_t limit, ek_fit_inference *out)
{
    ek_model_config mc = {.trained = 0, .never_touched = 1};
    ek_session_config sc = {.capacity = context};
    ek_session *session = NULL;
    ek_kernels *k = NULL;
    ek_model *m = NULL;
    ek_expert_room room = {0};
    ek_infer_bytes b;
    int all;
    ek_status st;

    *out = (ek_fit_inference){.dtype = ek_mode_name(mode)};
    EK_TRY(ek_kernels_open("cpu", 0, mode, ek_cpu_isa(), threads, &k));
    out->base = ek_rss_bytes();
    EK_TRY_OUT(ek_infer_measure(spec, k, context, (ek_expert_room){0}, &b));
    EK_TRY_OUT(ek_model_create(spec, k, &mc, &m));
    EK_TRY_OUT(ek_session_create(m, &sc, &session));
    out->weights = b.weights;
    out->session = b.session + b.other;
    out->bytes_a_token =
        2 * spec->layers * spec->kv_heads * spec->head_dim * (int64_t)ek_dtype_size(k->comp);
    for (int64_t l = ek_model_next_moe(m, -1); l < spec->layers;
         l = ek_model_next_moe(m, (int32_t)l))
        out->experts += spec->experts;
    EK_TRY_OUT(ek_infer_fits(spec, k, limit, context, &all));
    out->slots = out->experts;
    if (!all) {
        EK_TRY_OUT(ek_infer_most_slots(spec, k, limit, context, &room));
        out->slots = room.slots;
    }
    out->active = ek_session_active_bytes(session, context - 1);
out:
    ek_session_destroy(&session);
    ek_model_destroy(&m);
    ek_kernels_destroy(&k);
    return st;
}
