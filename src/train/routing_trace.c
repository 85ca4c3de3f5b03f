/* Collecting loads, and writing them as .npy (format version 1.0: magic, header length, a Python
 * dictionary padded to 64 bytes, then the array in C order). */
#include "train/routing_trace.h"

#include "base/file.h"

#include <stdio.h>
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
    enum { PREFIX = 10, HEADER = 118 };
    char head[PREFIX + HEADER + 1];
    size_t bytes = (size_t)(t->iterations * t->layers * t->experts) * sizeof(*t->counts);
    ek_file_out f;
    int n;

    memcpy(head, "\x93NUMPY\x01\x00", 8);
    head[8] = HEADER;
    head[9] = 0;
    n = snprintf(head + PREFIX, HEADER,
                 "{'descr': '<u4', 'fortran_order': False, 'shape': (%lld, %lld, 1, %lld), }",
                 (long long)t->iterations, (long long)t->layers, (long long)t->experts);
    memset(head + PREFIX + n, ' ', (size_t)(HEADER - n));
    head[PREFIX + HEADER - 1] = '\n';
    EK_TRY(ek_file_out_open(NULL, path, &f));
    if (ek_file_out_write(&f, head, PREFIX + HEADER) < 0 ||
        ek_file_out_write(&f, t->counts, bytes) < 0) {
        ek_file_out_discard(&f);
        return EK_FAIL(EK_EIO, "%s", ek_err_message());
    }
    return ek_file_out_close(&f);
}
