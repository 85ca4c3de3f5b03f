/* Reading and making the files beside a tokenizer. */
#include "data/tokenizer_files.h"

#include "base/file.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENIZER_CONFIG, SPECIAL_TOKENS, CHAT_TEMPLATE, GENERATION_CONFIG };
enum { BYTES_MAX = 16 << 20 };

static const char *const names[EK_TOKENIZER_FILES] = {
    "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
    "generation_config.json"};

const char *ek_tokenizer_file_name(int i)
{
    return names[i];
}

ek_status ek_tokenizer_files_read(const char *folder, int with_generation, ek_tokenizer_files *out)
{
    memset(out, 0, sizeof(*out));
    for (int i = 0; i < EK_TOKENIZER_FILES; i++) {
        ek_status st;
        ek_path path;

        if (i == GENERATION_CONFIG && !with_generation)
            continue;
        EK_TRY(ek_path_set(&path, "%s/%s", folder, names[i]));
        if (!ek_file_exists(path.s))
            continue;
        st = ek_file_read(path.s, BYTES_MAX, &out->text[i], &out->bytes[i]);
        if (st < 0)
            ek_tokenizer_files_free(out);
        EK_TRY(st);
    }
    return EK_OK;
}

void ek_tokenizer_files_free(ek_tokenizer_files *f)
{
    for (int i = 0; i < EK_TOKENIZER_FILES; i++)
        free(f->text[i]);
    memset(f, 0, sizeof(*f));
}

int64_t ek_tokenizer_files_eos(const ek_tokenizer *t, int64_t eos)
{
    size_t n;

    if (t == NULL || ek_tokenizer_added(t, eos, &n) != NULL)
        return eos;
    return ek_tokenizer_end(t);
}

/* Adds the text of a special token; one that is not UTF-8, or not an added token, is left out. */
static int add_token(json_t *object, const char *key, const ek_tokenizer *t, int64_t id)
{
    size_t n = 0;
    const char *text = ek_tokenizer_added(t, id, &n);
    json_t *value = text != NULL ? json_stringn(text, n) : NULL;

    return value != NULL ? json_object_set_new(object, key, value) : 0;
}

static int add_special_tokens(json_t *object, const ek_tokenizer *t, int64_t bos, int64_t eos)
{
    int bad = add_token(object, "bos_token", t, bos);

    bad |= add_token(object, "eos_token", t, ek_tokenizer_files_eos(t, eos));
    return bad | add_token(object, "unk_token", t, ek_tokenizer_added_id(t, "<unk>"));
}

/* Makes file i from an object, which is released in any case. */
static ek_status make_file(ek_tokenizer_files *f, int i, json_t *object, int bad)
{
    f->text[i] =
        object != NULL && !bad ? json_dumps(object, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
    json_decref(object);
    EK_REQUIRE(f->text[i] != NULL, EK_ENOMEM, "no memory for %s", names[i]);
    f->bytes[i] = strlen(f->text[i]);
    return EK_OK;
}

static ek_status make_special_tokens(ek_tokenizer_files *f, const ek_tokenizer *t, int64_t bos,
                                     int64_t eos)
{
    json_t *object = json_object();

    return make_file(f, SPECIAL_TOKENS, object, add_special_tokens(object, t, bos, eos));
}

static ek_status make_tokenizer_config(ek_tokenizer_files *f, const ek_tokenizer *t, int64_t bos,
                                       int64_t eos, int64_t positions)
{
    json_t *object =
        json_pack("{s:s, s:b, s:I}", "tokenizer_class", "PreTrainedTokenizerFast",
                  "clean_up_tokenization_spaces", 0, "model_max_length", (json_int_t)positions);

    return make_file(f, TOKENIZER_CONFIG, object, add_special_tokens(object, t, bos, eos));
}

static ek_status make_generation_config(ek_tokenizer_files *f, int64_t bos, int64_t eos)
{
    json_t *object = json_pack("{s:b}", "_from_model_config", 1);
    int bad = 0;

    if (bos >= 0)
        bad |= json_object_set_new(object, "bos_token_id", json_integer((json_int_t)bos));
    if (eos >= 0)
        bad |= json_object_set_new(object, "eos_token_id", json_integer((json_int_t)eos));
    return make_file(f, GENERATION_CONFIG, object, bad);
}

ek_status ek_tokenizer_files_complete(ek_tokenizer_files *f, const ek_tokenizer *t, int64_t bos,
                                      int64_t eos, int64_t positions)
{
    if (t != NULL && f->text[SPECIAL_TOKENS] == NULL && f->text[TOKENIZER_CONFIG] == NULL)
        EK_TRY(make_special_tokens(f, t, bos, eos));
    if (t != NULL && f->text[TOKENIZER_CONFIG] == NULL)
        EK_TRY(make_tokenizer_config(f, t, bos, eos, positions));
    if (f->text[GENERATION_CONFIG] == NULL)
        EK_TRY(make_generation_config(f, bos, ek_tokenizer_files_eos(t, eos)));
    return EK_OK;
}
