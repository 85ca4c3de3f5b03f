/* Collecting loads, and writing them. */
#include "train/routing_trace.h"

#include "balance/trace.h"

#include <stdlib.h>
#include <string.h>

ek_status ek_routing_trace_init(ek_routing_trace *t, const ek_model_spec *spec)
{
    memset(t, 0, sizeof(*t));
    for (int64_t l = 0; l < spec->layers; l++)
        t->layers += !spec->dense[l];
    t->experts = spec->experts;
    EK_REQUIRE(t->layers > 0, EK_EINVAL, "--record-routing: the model has no routed layer");
    return EK_OK;
}

void ek_routing_trace_fini(ek_routing_trace *t)
{
    free(t->counts);
    memset(t, 0, sizeof(*t));
}

ek_status ek_routing_trace_add(ek_routing_trace *t, const ek_pass *p)
{
    int64_t size = t->layers * t->experts;
    uint32_t *at;

    if (t->iterations == t->room) {
        int64_t room = t->room > 0 ? 2 * t->room : 256;

        at = realloc(t->counts, (size_t)(room * size) * sizeof(*at));
        EK_REQUIRE(at != NULL, EK_ENOMEM, "no memory for the routing trace");
        t->counts = at;
        t->room = room;
    }
    at = t->counts + t->iterations++ * size;
    for (int64_t l = 0; l < p->model->spec.layers; l++) {
        if (p->model->spec.dense[l])
            continue;
        for (int64_t e = 0; e < t->experts; e++)
            *at++ = (uint32_t)ek_pass_load(p, l)[e];
    }
    return EK_OK;
}

ek_status ek_routing_trace_write(const ek_routing_trace *t, const char *path)
{
    const int64_t shape[] = {t->iterations, t->layers, 1, t->experts};
    size_t bytes = (size_t)(t->iterations * t->layers * t->experts) * sizeof(*t->counts);
    ek_file_out f;
    ek_status st;

    EK_TRY(ek_trace_out_open(path, shape, &f));
    st = ek_file_out_write(&f, t->counts, bytes);
    if (st < 0) {
        ek_file_out_discard(&f);
        return st;
    }
    return ek_file_out_close(&f);
}
