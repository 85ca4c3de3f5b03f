/* The answers of fit as JSON and as a table. */
#include "fit/report_text.h"

#include "base/count_text.h"

#include <inttypes.h>
#include <jansson.h>

/* --- JSON ------------------------------------------------------------------------------------- */

static json_t *inference_json(const ek_fit_report *r, const ek_fit_inference *i)
{
    ek_fit_speed s = ek_fit_speed_of(r, i);

    return json_pack("{s:s, s:s, s:f, s:b, s:f, s:f, s:I, s:f, s:I, s:f, s:f, s:f, s:f, s:f}",
                     "mode", "inference", "dtype", i->dtype, "memory_mb",
                     (double)ek_fit_inference_bytes(i) / 1e6, "fits",
                     ek_fit_fits(r, ek_fit_inference_bytes(i)), "weights_mb",
                     (double)i->weights / 1e6, "session_mb", (double)i->session / 1e6,
                     "kv_bytes_per_token", (json_int_t)i->bytes_a_token, "disk_mb",
                     ek_fit_fits(r, ek_fit_inference_bytes(i))
                         ? 0.0
                         : (double)(ek_fit_inference_bytes(i) - r->limit.bytes) / 1e6,
                     "expert_slots", (json_int_t)i->slots, "bytes_per_token", i->active,
                     "missed_bytes_per_token", s.missed, "tokens_per_s", s.decode,
                     "prefill_tokens_per_s", s.prefill, "disk_tokens_per_s", s.disk);
}

static json_t *training_json(const ek_fit_report *r, int i)
{
    const ek_fit_mode *m = &r->training[i].mode;

    return json_pack("{s:s, s:s, s:s, s:i, s:i, s:f, s:b}", "mode", "training", "dtype",
                     ek_mode_name(m->mode), "recompute", m->recompute, "zero", m->zero, "ranks",
                     m->ranks, "memory_mb", (double)r->training[i].bytes / 1e6, "fits",
                     ek_fit_fits(r, r->training[i].bytes));
}

static json_t *offload_json(const ek_fit_report *r, int i)
{
    const ek_fit_mode *m = &r->training[i].mode;
    const ek_fit_offload *o = &r->training[i].offload;
    ek_fit_disk_speed s = ek_fit_disk_speed_of(r, i);

    return json_pack(
        "{s:s, s:s, s:s, s:i, s:i, s:f, s:f, s:f, s:b, s:f, s:f, s:f, s:i, s:i, s:b, "
        "s:f, s:f, s:f}",
        "mode", "training-offload", "dtype", ek_mode_name(m->mode), "recompute", m->recompute,
        "zero", m->zero, "ranks", m->ranks, "memory_mb", (double)o->bytes / 1e6, "memory_least_mb",
        (double)o->least / 1e6, "memory_comfortable_mb", (double)o->comfortable / 1e6, "fits",
        ek_fit_fits(r, o->least), "disk_mb", (double)o->scratch / 1e6, "read_mb",
        o->step.read_bytes / 1e6, "written_mb", o->step.written_bytes / 1e6, "entries", o->entries,
        "buckets", o->buckets, "gradients_on_disk", o->gradients, "tokens_per_s", s.tokens_per_s,
        "tokens_of_expert", s.tokens_of_expert, "tokens_to_hide", s.tokens_to_hide);
}

void ek_fit_write_json(const ek_fit_report *r, FILE *out)
{
    char source[EK_LIMIT_TEXT];
    json_t *params = json_object(), *modes = json_array(), *all;

    for (int i = 0; i < EK_FIT_CLASSES; i++)
        json_object_set_new(params, ek_fit_class_names[i], json_integer(r->params[i]));
    for (int i = 0; i < EK_FIT_DTYPES; i++)
        json_array_append_new(modes, inference_json(r, &r->inference[i]));
    for (int i = 0; i < r->n_training; i++)
        json_array_append_new(modes, training_json(r, i));
    for (int i = 0; i < r->n_training && r->training[i].offload.buckets > 0; i++)
        json_array_append_new(modes, offload_json(r, i));
    all = json_pack("{s:I, s:I, s:o, s:f, s:s, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, "
                    "s:o}",
                    "params", (json_int_t)r->all, "active_params", (json_int_t)r->active,
                    "params_of", params, "limit_mb", (double)r->limit.bytes / 1e6, "limit_source",
                    ek_memory_limit_source(&r->limit, source), "context",
                    (json_int_t)r->cfg->context, "batch", (json_int_t)r->cfg->batch, "seq",
                    (json_int_t)r->cfg->seq, "memory_read_gbs", r->rates.memory_read / 1e9,
                    "bf16_gflops", r->rates.bf16 / 1e9, "fp32_gflops", r->rates.fp32 / 1e9,
                    "disk_read_gbs", r->rates.disk_read / 1e9, "scratch_read_gbs",
                    r->rates.scratch.read / 1e9, "scratch_write_gbs", r->rates.scratch.write / 1e9,
                    "scratch_both_gbs", r->rates.scratch.both / 1e9, "modes", modes);
    json_dumpf(all, out, 0);
    fputc('\n', out);
    json_decref(all);
}

/* --- a table ---------------------------------------------------------------------------------- */

static void write_model(const ek_fit_report *r, FILE *out)
{
    char a[16], b[16], memory[16], bf16[16], fp32[16];
    char source[EK_LIMIT_TEXT];

    fprintf(out, "model       %s parameters, %s of them multiplied for a token\n",
            ek_count_text(a, sizeof(a), (double)r->all),
            ek_count_text(b, sizeof(b), (double)r->active));
    fprintf(out, "            ");
    for (int i = 0, shown = 0; i < EK_FIT_CLASSES; i++)
        if (r->params[i] > 0)
            fprintf(out, "%s%s %s", shown++ > 0 ? ", " : "", ek_fit_class_names[i],
                    ek_count_text(a, sizeof(a), (double)r->params[i]));
    fprintf(out, "\nlimit       %sB (%s)\n", ek_count_text(a, sizeof(a), (double)r->limit.bytes),
            ek_memory_limit_source(&r->limit, source));
    fprintf(out,
            "measured    memory is read at %sB/s, products: %sFLOP/s in bf16, %sFLOP/s in fp32",
            ek_count_text(memory, sizeof(memory), r->rates.memory_read),
            ek_count_text(bf16, sizeof(bf16), r->rates.bf16),
            ek_count_text(fp32, sizeof(fp32), r->rates.fp32));
    if (r->rates.disk_read > 0)
        fprintf(out, "; the disk is read at %sB/s",
                ek_count_text(memory, sizeof(memory), r->rates.disk_read));
    fprintf(out, "\n");
}

static void write_inference(const ek_fit_report *r, const ek_fit_inference *i, FILE *out)
{
    char a[16], b[16], c[16], d[16];
    ek_fit_speed s = ek_fit_speed_of(r, i);
    int all = ek_fit_fits(r, ek_fit_inference_bytes(i));

    fprintf(out, "%s  %8sB  %-4s weights %sB, session %sB (%sB a token of context)\n", i->dtype,
            ek_count_text(a, sizeof(a), (double)ek_fit_inference_bytes(i)), all ? "fits" : "no",
            ek_count_text(b, sizeof(b), (double)i->weights),
            ek_count_text(c, sizeof(c), (double)i->session),
            ek_count_text(d, sizeof(d), (double)i->bytes_a_token));
    fprintf(out, "      decoding at most %s tokens/s: a token reads %sB from memory\n",
            ek_number_text(b, sizeof(b), s.decode), ek_count_text(a, sizeof(a), i->active));
    fprintf(out,
            "      a prompt at most %s tokens/s: 2 FLOPs for each parameter multiplied, without "
            "the output matrix\n",
            ek_number_text(a, sizeof(a), s.prefill));
    if (!all && i->slots > 0) {
        fprintf(out,
                "      with %" PRId64 " of %" PRId64
                " experts in memory it fits: a token misses %sB",
                i->slots, i->experts, ek_count_text(a, sizeof(a), s.missed));
        if (s.disk > 0)
            fprintf(out, ", at most %s tokens/s from disk", ek_number_text(a, sizeof(a), s.disk));
        fprintf(out, "\n");
    }
}

static void write_offload(const ek_fit_report *r, int i, FILE *out)
{
    const ek_fit_mode *m = &r->training[i].mode;
    const ek_fit_offload *o = &r->training[i].offload;
    ek_fit_disk_speed s = ek_fit_disk_speed_of(r, i);
    char a[16], b[16], c[16], zero[24] = "";

    if (m->ranks > 1)
        snprintf(zero, sizeof(zero), " --zero %d", m->zero);
    fprintf(out, "%s  %8sB to %7sB  %-4s --recompute %s%s: %sB on disk", ek_mode_name(m->mode),
            ek_count_text(a, sizeof(a), (double)o->least),
            ek_count_text(b, sizeof(b), (double)o->comfortable),
            ek_fit_fits(r, o->least) ? "fits" : "no", m->recompute, zero,
            ek_count_text(c, sizeof(c), (double)o->scratch));
    if (!ek_fit_fits(r, o->least)) {
        fprintf(out, "\n");
        return;
    }
    fprintf(out, "; %d of %d buckets in memory: a step reads %s, writes %s", o->entries, o->buckets,
            ek_bytes_text(a, sizeof(a), o->step.read_bytes),
            ek_bytes_text(b, sizeof(b), o->step.written_bytes));
    if (s.tokens_per_s > 0)
        fprintf(out, ", at most %s tokens/s; hidden with %s tokens for an expert",
                ek_number_text(a, sizeof(a), s.tokens_per_s),
                ek_number_text(b, sizeof(b), s.tokens_to_hide));
    fprintf(out, "\n");
}

/* Training with experts on disk. */
static void write_offloads(const ek_fit_report *r, FILE *out)
{
    const ek_scratch_rates *disk = &r->rates.scratch;
    const char *dir = r->cfg->offload_dir != NULL ? r->cfg->offload_dir : "the current folder";
    char tokens[16], read[16], written[16], both[16];

    if (r->n_training == 0 || r->training[0].offload.buckets == 0)
        return;
    fprintf(out,
            "\nwith --offload experts, %s tokens for an expert a step: memory from the least to a "
            "comfortable size, scratch file\n",
            ek_number_text(tokens, sizeof(tokens), ek_fit_disk_speed_of(r, 0).tokens_of_expert));
    for (int i = 0; i < r->n_training; i++)
        write_offload(r, i, out);
    if (disk->both > 0)
        fprintf(out,
                "measured    a scratch file in %s is read at %sB/s, written at %sB/s, both at once "
                "at %sB/s together\n",
                dir, ek_count_text(read, sizeof(read), disk->read),
                ek_count_text(written, sizeof(written), disk->write),
                ek_count_text(both, sizeof(both), disk->both));
    else
        fprintf(out, "not measured: a scratch file past the page cache in %s\n", dir);
}

void ek_fit_write_table(const ek_fit_report *r, FILE *out)
{
    char a[16];

    write_model(r, out);
    fprintf(out, "\ninference, %" PRId64 " tokens of context\n", r->cfg->context);
    for (int i = 0; i < EK_FIT_DTYPES; i++)
        write_inference(r, &r->inference[i], out);
    fprintf(out,
            "\ntraining, %" PRId64 " sequences of %" PRId64 " tokens a step, %" PRId64
            " at once, %d rank%s: memory of a rank\n",
            r->cfg->batch, r->cfg->seq, r->cfg->micro_batch, r->cfg->ranks,
            r->cfg->ranks > 1 ? "s" : "");
    for (int i = 0; i < r->n_training; i++) {
        const ek_fit_mode *m = &r->training[i].mode;

        fprintf(out, "%s  %8sB  %-4s --recompute %s", ek_mode_name(m->mode),
                ek_count_text(a, sizeof(a), (double)r->training[i].bytes),
                ek_fit_fits(r, r->training[i].bytes) ? "fits" : "no", m->recompute);
        if (m->ranks > 1)
            fprintf(out, " --zero %d", m->zero);
        fprintf(out, "\n");
    }
    write_offloads(r, out);
}
