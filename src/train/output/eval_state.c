/* The state of evaluations, and its JSON. */
#include "train/output/eval_state.h"

#include "base/file.h"
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

#define FORMAT "evenkeel-evaluation"

ek_eval_state ek_eval_state_new(int64_t data_tokens, int64_t seq, int64_t windows)
{
    return (ek_eval_state){
        .data_tokens = data_tokens, .seq = seq, .windows = windows, .step = -1, .best_step = -1};
}

int ek_eval_state_add(ek_eval_state *s, int64_t step, double loss)
{
    int best = s->best_step < 0 || loss < s->best_loss;

    s->step = step;
    s->loss = loss;
    s->since_best = best ? 0 : s->since_best + 1;
    if (best) {
        s->best_step = step;
        s->best_loss = loss;
    }
    return best;
}

int ek_eval_state_same_data(const ek_eval_state *a, const ek_eval_state *b)
{
    return a->data_tokens == b->data_tokens && a->seq == b->seq && a->windows == b->windows;
}

json_t *ek_eval_state_json(const ek_eval_state *s)
{
    return json_pack("{s:s, s:i, s:I, s:I, s:I, s:I, s:f, s:I, s:f, s:I}", "format", FORMAT,
                     "version", 1, "data_tokens", (json_int_t)s->data_tokens, "seq",
                     (json_int_t)s->seq, "windows", (json_int_t)s->windows, "step",
                     (json_int_t)s->step, "loss", s->loss, "best_step", (json_int_t)s->best_step,
                     "best_loss", s->best_loss, "since_best", (json_int_t)s->since_best);
}

static ek_status read_object(const json_t *o, const char *path, ek_eval_state *s)
{
    const struct {
        const char *key;
        int64_t *to;
    } numbers[] = {{"data_tokens", &s->data_tokens}, {"seq", &s->seq},
                   {"windows", &s->windows},         {"step", &s->step},
                   {"best_step", &s->best_step},     {"since_best", &s->since_best}};
    const char *format = "";
    int64_t version = 0;

    EK_TRY(ek_json_text(o, path, "format", EK_JSON_REQUIRED, &format));
    EK_TRY(ek_json_int(o, path, "version", EK_JSON_REQUIRED, 1, INT64_MAX / 2, &version));
    EK_REQUIRE(strcmp(format, FORMAT) == 0 && version == 1, EK_EFORMAT,
               "%s: this evenkeel reads format " FORMAT ", version 1, and not %.80s, version %lld",
               path, format, (long long)version);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        EK_TRY(ek_json_int(o, path, numbers[i].key, EK_JSON_REQUIRED, -1, INT64_MAX / 2,
                           numbers[i].to));
    EK_TRY(ek_json_real(o, path, "loss", EK_JSON_REQUIRED, &s->loss));
    return ek_json_real(o, path, "best_loss", EK_JSON_REQUIRED, &s->best_loss);
}

ek_status ek_eval_state_read(const char *path, const char *key, ek_eval_state *s, int *found)
{
    json_t *root = NULL, *o;
    ek_status st = EK_OK;

    *found = 0;
    if (ek_file_kind_of(path) == EK_FILE_NONE)
        return EK_OK;
    EK_TRY(ek_json_read(path, &root));
    o = key != NULL ? json_object_get(root, key) : root;
    if (o != NULL) {
        st = read_object(o, path, s);
        *found = st == EK_OK;
    }
    json_decref(root);
    return st;
}

ek_status ek_eval_state_write(const ek_eval_state *s, const char *out_dir)
{
    json_t *o = ek_eval_state_json(s);
    char *text = o != NULL ? json_dumps(o, JSON_INDENT(2)) : NULL;
    ek_path path;
    ek_status st = EK_OK;

    json_decref(o);
    EK_REQUIRE(text != NULL, EK_ENOMEM, "no memory for " EK_EVAL_FILE);
    EK_TRY_OUT(ek_path_set(&path, "%s/" EK_EVAL_FILE, out_dir));
    EK_TRY_OUT(ek_file_replace(NULL, path.s, text, strlen(text)));
out:
    free(text);
    return st;
}
