/* Collects loads in a temporary file, and writes the trace from it. */
#include "train/output/routing_trace.h"

#include "balance/trace.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

ek_status ek_routing_trace_open(ek_routing_trace *t, const ek_model_spec *spec, const char *folder)
{
    memset(t, 0, sizeof(*t));
    t->layers = ek_model_moe_layers(spec);
    t->experts = spec->experts;
    EK_REQUIRE(t->layers > 0, EK_EINVAL, "--record-routing: the model has no routed layer");
    EK_TRY(ek_path_set(&t->folder, "%s", folder));
    t->counts = malloc((size_t)(t->layers * t->experts) * sizeof(*t->counts));
    EK_REQUIRE(t->counts != NULL, EK_ENOMEM, "no memory for the loads of a step");
    return ek_file_open_unnamed(folder, &t->fd);
}

void ek_routing_trace_close(ek_routing_trace *t)
{
    if (t->counts != NULL && t->fd >= 0)
        close(t->fd);
    free(t->counts);
    memset(t, 0, sizeof(*t));
}

static size_t step_bytes(const ek_routing_trace *t)
{
    return (size_t)(t->layers * t->experts) * sizeof(*t->counts);
}

ek_status ek_routing_trace_add(ek_routing_trace *t, const ek_pass *p)
{
    const char *from = (const char *)t->counts;
    uint32_t *at = t->counts;

    for (int64_t l = 0; l < p->model->spec.layers; l++) {
        if (p->model->spec.dense[l])
            continue;
        for (int64_t e = 0; e < t->experts; e++)
            *at++ = (uint32_t)ek_pass_load(p, l)[e];
    }
    for (size_t done = 0, bytes = step_bytes(t); done < bytes;) {
        ssize_t n = write(t->fd, from + done, bytes - done);

        if (n < 0 && errno == EINTR)
            continue;
        EK_REQUIRE(n >= 0, errno == ENOSPC || errno == EDQUOT ? EK_ENOSPC : EK_EIO,
                   "cannot write the routing of a step to a file in %s: %s", t->folder.s,
                   strerror(errno));
        done += (size_t)n;
    }
    t->iterations++;
    return EK_OK;
}

/* Appends all collected loads after the header of *f. */
static ek_status copy_all(const ek_routing_trace *t, ek_file_out *f)
{
    enum { PIECE = 1 << 16 };
    size_t all = (size_t)t->iterations * step_bytes(t);
    char *piece = malloc(PIECE);
    ek_status st = EK_OK;

    EK_REQUIRE(piece != NULL, EK_ENOMEM, "no memory for the routing trace");
    for (size_t done = 0; done < all && st == EK_OK;) {
        size_t want = all - done < PIECE ? all - done : PIECE;
        ssize_t n = pread(t->fd, piece, want, (off_t)done);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            st = EK_FAIL(EK_EIO, "cannot read the routing of the steps again in %s: %s",
                         t->folder.s, n < 0 ? strerror(errno) : "the file is too short");
        else
            st = ek_file_out_write(f, piece, (size_t)n);
        done += n > 0 ? (size_t)n : 0;
    }
    free(piece);
    return st;
}

ek_status ek_routing_trace_write(const ek_routing_trace *t, const char *path)
{
    const int64_t shape[] = {t->iterations, t->layers, 1, t->experts};
    ek_file_out f;
    ek_status st;

    EK_TRY(ek_trace_out_open(path, shape, &f));
    EK_TRY_OUT(copy_all(t, &f));
    EK_TRY_OUT(ek_file_out_close(&f));
out:
    if (st < 0)
        ek_file_out_discard(&f);
    return st;
}
