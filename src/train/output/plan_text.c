/* The plan of a dry run as JSON and as text. */
#include "train/output/plan_text.h"

#include "base/count_text.h"
#include "base/file.h"
#include "base/json.h"
#include "base/printable.h"

#include <inttypes.h>
#include <jansson.h>
#include <string.h>

static json_t *offload_json(const ek_train_plan_offload *f)
{
    return json_pack(
        "{s:o, s:f, s:f, s:f, s:f, s:I, s:I, s:b, s:f, s:f, s:f, s:f}", "folder",
        ek_json_text_of(f->folder), "scratch_least_mb", f->scratch_least / 1e6, "scratch_most_mb",
        f->scratch_most / 1e6, "scratch_host_mb", f->scratch_host / 1e6, "free_mb", f->free / 1e6,
        "buckets", (json_int_t)f->buckets, "entries", (json_int_t)f->entries, "gradients",
        f->gradients, "read_mb", f->read / 1e6, "written_mb", f->written / 1e6, "hits",
        f->uses > 0 ? f->hits / f->uses : 0.0, "tokens_of_expert", f->tokens_of_expert);
}

void ek_plan_write_json(const ek_train_summary *s, const ek_train_config *cfg, FILE *out)
{
    const ek_train_info *i = &s->info;
    const ek_train_plan *p = &s->plan;
    json_t *layout = json_pack("{s:i, s:i, s:s, s:i, s:i, s:i, s:i, s:i, s:i}", "ranks", p->ranks,
                               "pp", p->pp, "pp_layers", i->stage_layers, "dp", p->dp, "tp", p->tp,
                               "edp", p->edp, "ep", p->ep, "etp", p->etp, "zero", cfg->zero);
    json_t *memory =
        json_pack("{s:f, s:f, s:i, s:f, s:f, s:f, s:o}", "least_mb", p->memory_least / 1e6,
                  "most_mb", p->memory_most / 1e6, "most_rank", p->memory_most_rank, "host_mb",
                  p->memory_host / 1e6, "available_mb", p->memory_available / 1e6, "limit_mb",
                  p->memory_limit / 1e6, "limit_source", ek_json_text_of(p->memory_limit_source));
    json_t *disk =
        json_pack("{s:I, s:I, s:I, s:I}", "checkpoint_bytes", (json_int_t)p->checkpoint_bytes,
                  "checkpoints_most", (json_int_t)p->checkpoints_most, "bytes_most",
                  (json_int_t)(p->checkpoints_most * p->checkpoint_bytes), "free_bytes",
                  (json_int_t)p->disk_free);
    json_t *o = json_pack(
        "{s:b, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:I, s:I, s:o, s:o, s:o, s:s}",
        "dry_run", 1, "out", ek_json_text_of(cfg->out), "params", (json_int_t)i->params,
        "active_params", (json_int_t)i->active_params, "data_tokens", (json_int_t)i->tokens,
        "batch", (json_int_t)i->batch, "seq", (json_int_t)i->seq, "step_tokens",
        (json_int_t)p->step_tokens, "first_step", (json_int_t)i->first_step, "steps",
        (json_int_t)i->steps, "epochs", p->epochs, "eval_every", (json_int_t)p->eval_every,
        "eval_windows", (json_int_t)p->eval_windows, "layout", layout, "memory", memory, "disk",
        disk, "files", p->files);

    if (p->offload.scratch_most > 0)
        json_object_set_new(o, "offload", offload_json(&p->offload));
    if (p->replicas > 0)
        json_object_set_new(
            o, "replicas",
            json_pack("{s:f, s:b}", "keeping_mb", p->replicas / 1e6, "kept", p->replicas_kept));
    if (p->partner_copies > 0)
        json_object_set_new(o, "partner_copies_mb", json_real(p->partner_copies / 1e6));
    json_dumpf(o, out, 0);
    fputc('\n', out);
    json_decref(o);
}

static void write_memory(const ek_train_plan *p, FILE *out)
{
    char a[16], b[16], c[16], d[16];

    ek_count_text(a, sizeof(a), p->memory_most);
    if (p->ranks == 1) {
        fprintf(out, "memory      about %sB", a);
    } else {
        fprintf(out, "memory      about %sB to %sB a rank (most on rank %d)",
                ek_count_text(b, sizeof(b), p->memory_least), a, p->memory_most_rank);
        if (p->memory_host > 0)
            fprintf(out, ", %sB on the first host", ek_count_text(c, sizeof(c), p->memory_host));
    }
    if (p->memory_limit > 0)
        fprintf(out, "; the limit of a process is %sB (%s)",
                ek_count_text(d, sizeof(d), p->memory_limit), p->memory_limit_source);
    fprintf(out, "\n");
}

static void write_replicas(const ek_train_plan *p, FILE *out)
{
    char a[16];

    if (p->replicas <= 0)
        return;
    ek_count_text(a, sizeof(a), p->replicas);
    if (p->replicas_kept)
        fprintf(out,
                "replicas    are kept until backward, for %sB of memory: weights are sent once\n",
                a);
    else
        fprintf(out,
                "replicas    are sent again for backward: to keep them takes %sB more memory\n", a);
}

static void write_partners(const ek_train_plan *p, FILE *out)
{
    char a[16];

    if (p->partner_copies > 0)
        fprintf(out, "partners    on other hosts have copies of what one host has: %sB a rank\n",
                ek_count_text(a, sizeof(a), p->partner_copies));
}

/* Experts on disk. */
static void write_offload(const ek_train_plan *p, FILE *out)
{
    const ek_train_plan_offload *f = &p->offload;
    char a[16], b[16], c[16];
    char folder[EK_PRINTABLE_GROWTH * sizeof(ek_path)];

    if (f->scratch_most <= 0)
        return;
    ek_count_text(a, sizeof(a), f->scratch_most);
    fprintf(out, "experts     on disk, in %s: ", ek_printable(folder, sizeof(folder), f->folder));
    if (p->ranks == 1)
        fprintf(out, "%sB", a);
    else
        fprintf(out, "%sB to %sB a rank", ek_count_text(b, sizeof(b), f->scratch_least), a);
    if (p->ranks > 1 && f->scratch_host > 0)
        fprintf(out, ", %sB on the first host", ek_count_text(c, sizeof(c), f->scratch_host));
    if (f->free > 0)
        fprintf(out, "; %sB are free%s", ek_count_text(b, sizeof(b), f->free),
                f->free < f->scratch_host ? ", which is too little" : "");
    fprintf(out,
            "\n            %" PRId64 " of %" PRId64 " parameter buckets in memory, gradients %s\n",
            f->entries < f->buckets ? f->entries : f->buckets, f->buckets,
            f->gradients ? "on disk" : "in memory");
    fprintf(out,
            "            a step%s reads %sB and writes %sB; %.0f %% of uses are in memory; "
            "%s tokens for an expert\n",
            p->ranks > 1 ? " of a rank" : "", ek_count_text(a, sizeof(a), f->read),
            ek_count_text(b, sizeof(b), f->written), f->uses > 0 ? 100 * f->hits / f->uses : 0,
            ek_count_text(c, sizeof(c), f->tokens_of_expert));
}

void ek_plan_write_text(const ek_train_summary *s, const ek_train_config *cfg, FILE *out)
{
    const ek_train_info *i = &s->info;
    const ek_train_plan *p = &s->plan;
    char a[16], b[16], c[16];
    char folder[EK_PRINTABLE_GROWTH * sizeof(ek_path)];

    fprintf(out, "model       %s parameters, %s active for a token\n",
            ek_count_text(a, sizeof(a), (double)i->params),
            ek_count_text(b, sizeof(b), (double)i->active_params));
    fprintf(out, "data        %s tokens, seen %.3g times\n",
            ek_count_text(a, sizeof(a), (double)i->tokens), p->epochs);
    fprintf(out,
            "steps       %" PRId64 " to %" PRId64 ", of %" PRId64 " x %" PRId64 " = %" PRId64
            " tokens each\n",
            i->first_step, i->steps, i->batch, i->seq, p->step_tokens);
    if (p->eval_every > 0)
        fprintf(out,
                "evaluation  every %" PRId64 " steps, of %" PRId64 " windows of %" PRId64
                " tokens\n",
                p->eval_every, p->eval_windows, i->seq);
    fprintf(
        out, "layout      %d rank%s: pp %d, dp %d, tp %d; experts edp %d, ep %d, etp %d; zero %d\n",
        p->ranks, p->ranks > 1 ? "s" : "", p->pp, p->dp, p->tp, p->edp, p->ep, p->etp, cfg->zero);
    if (p->pp > 1)
        fprintf(out, "stages      %s layers%s\n", i->stage_layers,
                strcmp(cfg->pp_layers, "measured") == 0 ? ", as with auto: nothing is measured here"
                                                        : "");
    write_memory(p, out);
    write_replicas(p, out);
    write_partners(p, out);
    write_offload(p, out);
    fprintf(out, "checkpoints %sB each, at most %" PRId64 " at once: %sB; %sB of disk are free\n",
            ek_count_text(a, sizeof(a), (double)p->checkpoint_bytes), p->checkpoints_most,
            ek_count_text(b, sizeof(b), (double)(p->checkpoints_most * p->checkpoint_bytes)),
            ek_count_text(c, sizeof(c), (double)p->disk_free));
    fprintf(out, "would write %s: %s\n", ek_printable(folder, sizeof(folder), cfg->out), p->files);
}
