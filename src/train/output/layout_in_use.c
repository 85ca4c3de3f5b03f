/* Reads the layout in run.json. */
#include "train/output/layout_in_use.h"

#include "base/json.h"
#include "train/output/run_file.h"

#include <string.h>

/* A number, or a word. */
static ek_status read_choice(const json_t *settings, const char *file, ek_choice c, int64_t *out)
{
    const json_t *x = json_object_get(settings, ek_choice_name(c));
    char number[32] = "";
    const char *text = json_is_string(x) ? json_string_value(x) : number;

    if (json_is_integer(x))
        (void)ek_choice_text(EK_CHOICE_PP, json_integer_value(x), number, sizeof(number));
    *out = ek_choice_value(c, text, strlen(text));
    EK_REQUIRE(*out >= 0, EK_EFORMAT, "%s: key `%s` is not part of a layout", file,
               ek_choice_name(c));
    return EK_OK;
}

static ek_status read_layout(const json_t *settings, const char *file, ek_pool_layout *l)
{
    *l = (ek_pool_layout){0};
    for (int i = 0; i < EK_CHOICES; i++)
        EK_TRY(read_choice(settings, file, (ek_choice)i, &l->choice.value[i]));
    return ek_json_copy_text(settings, file, "balance", EK_JSON_REQUIRED, l->balance,
                             sizeof(l->balance));
}

ek_status ek_layout_in_use_read(const char *out, ek_pool_layout *l, int *found)
{
    json_t *settings = NULL;
    ek_path path;
    ek_status st;

    *found = 0;
    EK_TRY(ek_run_file_find(out, &path));
    if (path.s[0] == '\0')
        return EK_OK;
    EK_TRY(ek_run_file_read(path.s, &settings));
    st = read_layout(settings, path.s, l);
    json_decref(settings);
    *found = st == EK_OK;
    return st;
}
