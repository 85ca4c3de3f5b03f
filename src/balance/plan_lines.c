/* Writes plans as lines of JSON. */
#include "balance/plan_lines.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

ek_status ek_plan_lines_open(const char *path, ek_write_mode mode, const ek_plan_limits *l,
                             ek_plan_lines *out)
{
    size_t slots = (size_t)l->ranks * (size_t)l->slots;

    memset(out, 0, sizeof(*out));
    out->out.fd = -1;
    out->split = calloc((size_t)l->ranks * (slots + 1) + slots, sizeof(*out->split));
    out->slots = calloc(slots, sizeof(*out->slots));
    EK_REQUIRE(out->split != NULL && out->slots != NULL, EK_ENOMEM, "no memory for plans");
    EK_TRY(ek_file_out_open(NULL, path, mode, &out->out));
    return ek_file_out_stream(&out->out, &out->file);
}

static void write_list(FILE *f, const char *name, const int32_t *x, int64_t n)
{
    fprintf(f, ", \"%s\": [", name);
    for (int64_t i = 0; i < n; i++)
        fprintf(f, "%s%d", i > 0 ? ", " : "", (int)x[i]);
    fputc(']', f);
}

/* Writes an expert's nonzero [source rank, slot, assignments]. */
static void write_split(const ek_plan_lines *f, const ek_plan_limits *l, const int64_t *counts,
                        const ek_plan *p, int32_t expert, int *n_written)
{
    int64_t *rows = f->split + l->ranks + l->ranks * l->slots;
    int32_t n = ek_plan_split(l, counts, &p->placement, p->quota, expert, f->split, f->slots, rows);

    for (int32_t r = 0; r < l->ranks; r++)
        for (int32_t i = 0; i < n; i++)
            if (rows[(int64_t)r * n + i] > 0)
                fprintf(f->file, "%s[%d, %d, %lld]", (*n_written)++ > 0 ? ", " : "", (int)r,
                        (int)f->slots[i], (long long)rows[(int64_t)r * n + i]);
}

void ek_plan_lines_add(ek_plan_lines *f, const ek_plan_place *at, const ek_plan_limits *l,
                       const int64_t *counts, const ek_plan *p)
{
    int n_written = 0;

    fprintf(f->file, "{\"iteration\": %lld, \"layer\": %lld", (long long)at->iteration,
            (long long)at->layer);
    if (at->micro >= 0)
        fprintf(f->file, ", \"micro\": %lld, \"ep_group\": %d", (long long)at->micro,
                (int)at->ep_group);
    write_list(f->file, "expert_of", p->placement.expert_of, (int64_t)l->ranks * l->slots);
    write_list(f->file, "primary", p->placement.primary, l->experts);
    fprintf(f->file, ", \"reason\": \"%s\", \"primary_reason\": \"%s\", \"split\": [", p->reason,
            p->primary_reason);
    for (int32_t e = 0; e < l->experts; e++)
        write_split(f, l, counts, p, e, &n_written);
    fprintf(f->file, "]}\n");
    if (ferror(f->file) && f->error == 0)
        f->error = errno;
}

ek_status ek_plan_lines_flush(ek_plan_lines *f)
{
    if (fflush(f->file) != 0 && f->error == 0)
        f->error = errno;
    EK_REQUIRE(f->error == 0, f->error == ENOSPC ? EK_ENOSPC : EK_EIO,
               "cannot write the plans to %s: %s", f->out.path.s, strerror(f->error));
    return EK_OK;
}

ek_status ek_plan_lines_finish(ek_plan_lines *f)
{
    if (f->file == NULL)
        return EK_OK;
    EK_TRY(ek_plan_lines_flush(f));
    fclose(f->file); /* flushed above */
    f->file = NULL;
    EK_TRY(ek_file_out_close(&f->out));
    return EK_OK;
}

void ek_plan_lines_close(ek_plan_lines *f)
{
    if (f->file != NULL)
        fclose(f->file);
    if (f->out.io != NULL)
        ek_file_out_discard(&f->out);
    free(f->split);
    free(f->slots);
    memset(f, 0, sizeof(*f));
}
