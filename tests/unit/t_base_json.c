/* Checked JSON access: every error names file and key. */
#include "base/json.h"
#include "ek_test.h"

#include <stdlib.h>
#include <sys/stat.h>

static json_t *parsed(const char *text)
{
    json_t *value = NULL;

    CHECK_INT(ek_json_parse(text, strlen(text), "f.json", &value), EK_OK);
    return value;
}

static void check_error_has(const char *words)
{
    if (strstr(ek_err_message(), words) == NULL)
        EK_T_FAIL("message is \"%s\", expected \"%s\"", ek_err_message(), words);
}

static void good_values(void)
{
    json_t *o = parsed("{\"i\": -3, \"r\": 2.5, \"w\": 4, \"s\": \"t\", \"b\": true, \"n\": null}");
    int64_t i = 0;
    double r = 0, w = 0;
    const char *s = NULL;
    int b = 0;

    CHECK_INT(ek_json_int(o, "f", "i", EK_JSON_REQUIRED, -3, 3, &i), EK_OK);
    CHECK_INT(ek_json_real(o, "f", "r", EK_JSON_REQUIRED, &r), EK_OK);
    CHECK_INT(ek_json_real(o, "f", "w", EK_JSON_REQUIRED, &w), EK_OK);
    CHECK_INT(ek_json_text(o, "f", "s", EK_JSON_REQUIRED, &s), EK_OK);
    CHECK_INT(ek_json_bool(o, "f", "b", EK_JSON_REQUIRED, &b), EK_OK);
    CHECK(i == -3 && r == 2.5 && w == 4.0 && b == 1 && s != NULL && strcmp(s, "t") == 0);
    i = 77;
    CHECK_INT(ek_json_int(o, "f", "absent", EK_JSON_OPTIONAL, 0, 1, &i), EK_OK);
    CHECK_INT(ek_json_int(o, "f", "n", EK_JSON_OPTIONAL, 0, 1, &i), EK_OK);
    CHECK_INT(i, 77);
    json_decref(o);
}

static void check_keys_refuses(const char *text, const char *const *keys, const char *message)
{
    json_t *o = parsed(text);

    CHECK_INT(ek_json_check_keys(o, "f", keys), EK_EFORMAT);
    if (strcmp(ek_err_message(), message) != 0)
        EK_T_FAIL("message is \"%s\", expected \"%s\"", ek_err_message(), message);
    json_decref(o);
}

/* The nearest key is named if at most a third of the longer one differs, or one character. */
static void unknown_keys(void)
{
    static const char *const none[] = {NULL}, *const some[] = {"x", "ranks", "levels", NULL};
    char text[128] = "{\"", message[128] = "f: key `";

    check_keys_refuses("{\"x\": 1, \"rank\": 1}", some,
                       "f: key `rank` is unknown; the nearest is `ranks`");
    check_keys_refuses("{\"lavles\": 1}", some, "f: key `lavles` is unknown");
    check_keys_refuses("{\"lavel\": 1}", some,
                       "f: key `lavel` is unknown; the nearest is `levels`");
    check_keys_refuses("{\"y\": 1}", some, "f: key `y` is unknown; the nearest is `x`");
    check_keys_refuses("{\"colour\": 1}", some, "f: key `colour` is unknown");
    check_keys_refuses("{\"x\": 1}", none, "f: key `x` is unknown");
    memset(text + 2, 'a', 100), strcat(text, "\": 1}");
    memset(message + 8, 'a', 100), strcat(message, "` is unknown");
    check_keys_refuses(text, some, message);
}

static void errors(void)
{
    json_t *o = parsed("{\"i\": 4, \"r\": 2.0, \"s\": \"t\", \"n\": null, \"a\": []}");
    int64_t i = 5;
    double r = 5;
    const char *s = NULL;
    int b = 5;

    CHECK_INT(ek_json_int(o, "f.json", "i", EK_JSON_REQUIRED, 0, 3, &i), EK_EFORMAT);
    check_error_has("f.json: key `i`: 4 is not between 0 and 3");
    CHECK_INT(ek_json_int(o, "f.json", "r", EK_JSON_OPTIONAL, 0, 3, &i), EK_EFORMAT);
    check_error_has("f.json: key `r`: expected an integer, found a number");
    CHECK_INT(ek_json_int(o, "f.json", "x", EK_JSON_REQUIRED, 0, 3, &i), EK_EFORMAT);
    check_error_has("f.json: key `x` is missing");
    CHECK_INT(ek_json_int(o, "f.json", "n", EK_JSON_REQUIRED, 0, 3, &i), EK_EFORMAT);
    check_error_has("key `n`: expected an integer, found null");
    CHECK_INT(ek_json_real(o, "f.json", "s", EK_JSON_REQUIRED, &r), EK_EFORMAT);
    check_error_has("key `s`: expected a number, found a string");
    CHECK_INT(ek_json_text(o, "f.json", "a", EK_JSON_REQUIRED, &s), EK_EFORMAT);
    check_error_has("key `a`: expected a string, found an array");
    CHECK_INT(ek_json_bool(o, "f.json", "i", EK_JSON_REQUIRED, &b), EK_EFORMAT);
    check_error_has("key `i`: expected true or false, found an integer");
    CHECK_INT(ek_json_int(json_object_get(o, "a"), "f.json", "i", EK_JSON_OPTIONAL, 0, 3, &i),
              EK_EFORMAT);
    check_error_has("expected an object");
    CHECK(i == 5 && r == 5 && s == NULL && b == 5);
    json_decref(o);
}

static void bad_text(void)
{
    static const char *const bad[] = {
        "",      "{",    "{\"a\":1} x", "{\"a\":1,\"a\":2}",      "{\"a\":1e999}", "[\"\xff\"]",
        "{a:1}", "[1,]", "nan",         "[99999999999999999999]",
    };

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        json_t *value = NULL;

        CHECK_INT(ek_json_parse(bad[i], strlen(bad[i]), "bad.json", &value), EK_EFORMAT);
        CHECK(value == NULL);
        check_error_has("bad.json: not valid JSON: line ");
    }
}

static void files(void)
{
    char folder[] = "/tmp/ek_json_XXXXXX", path[64];
    json_t *value = NULL;
    FILE *f;

    CHECK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof(path), "%s/a.json", folder);
    CHECK_INT(ek_json_read(path, &value), EK_ENOENT);
    check_error_has(path);
    f = fopen(path, "w");
    CHECK(f != NULL && fputs("{\"a\": [1, 2]}\n", f) >= 0 && fclose(f) == 0);
    CHECK_INT(ek_json_read(path, &value), EK_OK);
    CHECK_INT(json_array_size(json_object_get(value, "a")), 2);
    json_decref(value);
    CHECK_INT(truncate(path, 5), 0);
    CHECK_INT(ek_json_read(path, &value), EK_EFORMAT);
    check_error_has(path);
    CHECK_INT(truncate(path, 0), 0);
    CHECK_INT(ek_json_read(path, &value), EK_EFORMAT);
    CHECK_INT(ek_json_read(folder, &value), EK_EFORMAT);
    check_error_has("not a regular file");
    CHECK_INT(truncate(path, (1ll << 29) + 1), 0);
    CHECK_INT(ek_json_read(path, &value), EK_EFORMAT);
    check_error_has("more than the 16777216 allowed");
    unlink(path);
    rmdir(folder);
}

/* A text of `n` times `unit` between `begin` and `end`. */
static char *repeated(const char *begin, const char *unit, size_t n, const char *end, size_t *bytes)
{
    size_t b = strlen(begin), u = strlen(unit), e = strlen(end);
    char *text = malloc(b + n * u + e + 1);

    CHECK(text != NULL);
    memcpy(text, begin, b);
    for (size_t i = 0; i < n; i++)
        memcpy(text + b + i * u, unit, u);
    memcpy(text + b + n * u, end, e + 1);
    *bytes = b + n * u + e;
    return text;
}

/* Bytes allocated by jansson: now, and the peak. */
static size_t held, peak;

static void *counted(size_t n)
{
    size_t *p = malloc(n + 16);

    if (p == NULL)
        return NULL;
    *p = n;
    held += n;
    peak = held > peak ? held : peak;
    return p + 2;
}

static void uncounted(void *p)
{
    size_t *q = p;

    if (q == NULL)
        return;
    held -= q[-2];
    free(q - 2);
}

static size_t peak_of(const char *text, size_t bytes, ek_json_kind kind, ek_status *st)
{
    json_t *value = NULL;

    held = peak = 0;
    json_set_alloc_funcs(counted, uncounted);
    *st = ek_json_parse_as(kind, text, bytes, "big.json", &value);
    json_decref(value);
    CHECK_INT((int64_t)held, 0);
    json_set_alloc_funcs(malloc, free);
    return peak;
}

/* For any text, its values take no more than 30 times its size. */
static void memory_is_bounded(void)
{
    static const struct {
        const char *begin, *unit, *end;
        int good;
    } texts[] = {
        {"[", "{},", "0]", 0},
        {"[", "[],", "0]", 0},
        {"{\"x\":[", "{},", "0]}", 0},
        {"[", "\"\",", "0]", 0},
        {"[", "1,", "0]", 1},
        {"[", "true,", "0]", 1},
        {"[", "[\"th\",\"e Ga\"],", "0]", 1}, /* merges */
        {"[", "[\"\",[]],", "0]", 0},
        {"[", "\"a string of text\",", "0]", 1},
        {"[", "{\"a\":{\"b\":1}},", "0]", 0},
        {"[", "{\"dtype\":\"BF16\",\"shape\":[4096,1408],\"data_offsets\":[0,11534336]},", "0]", 1},
        {"[", "-1.5e7,", "0]", 1},
        {"", "{},", "", 0},
        {"\"", "\\\"", "\"", 1},
    };

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        size_t bytes, used;
        char *text = repeated(texts[i].begin, texts[i].unit, 200000, texts[i].end, &bytes);
        ek_status st = EK_OK;

        used = peak_of(text, bytes, EK_JSON_VOCABULARY, &st);
        if ((st == EK_OK) != texts[i].good)
            EK_T_FAIL("%zu: %s", i, st < 0 ? ek_err_message() : "accepted");
        if (st < 0)
            check_error_has("memory");
        if (used > 30 * bytes + (1 << 20) || (st < 0 && used > 0))
            EK_T_FAIL("%zu: %zu bytes took %zu", i, bytes, used);
        free(text);
    }
}

/* Each kind has absolute limits as well. */
static void kinds(void)
{
    size_t bytes;
    char *text = repeated("[", "1234567,", 3000000, "0]", &bytes);
    ek_status st = EK_OK;

    CHECK(peak_of(text, bytes, EK_JSON_SETTINGS, &st) == 0 && st == EK_EFORMAT);
    check_error_has("over the limit of 16777216");
    CHECK(peak_of(text, 15000000, EK_JSON_TENSORS, &st) > 0 && st == EK_EFORMAT);
    check_error_has("not valid JSON"); /* truncated, but within the limits */
    (void)peak_of(text, bytes, EK_JSON_TENSORS, &st);
    CHECK_INT(st, EK_OK);
    free(text);
    text = repeated("[", "1,", 3000000, "0]", &bytes);
    CHECK(peak_of(text, bytes, EK_JSON_SETTINGS, &st) == 0 && st == EK_EFORMAT);
    check_error_has("would take 168 MB");
    free(text);
}

static void depth(void)
{
    json_t *value = NULL;
    size_t bytes;
    char *text = repeated("", "[", 64, "", &bytes);

    CHECK_INT(ek_json_parse(text, bytes, "deep.json", &value), EK_EFORMAT);
    check_error_has("deep.json: not valid JSON: line ");
    free(text);
    text = repeated("", "[", 65, "", &bytes);
    CHECK_INT(ek_json_parse(text, bytes, "deep.json", &value), EK_EFORMAT);
    check_error_has("deep.json: its JSON is nested 65 deep, over the limit of 64");
    free(text);
    /* Brackets in strings do not nest, behind escaped quotes neither. */
    text = repeated("{\"\\\"", "[{", 65, "\": \"\\\\\"}", &bytes);
    value = parsed(text);
    json_decref(value);
    free(text);
}

static void byte_order_marks(void)
{
    json_t *value = NULL;

    CHECK_INT(ek_json_parse("\xEF\xBB\xBF{}", 5, "bom.json", &value), EK_EFORMAT);
    check_error_has("bom.json: begins with a byte order mark (BOM)");
    CHECK_INT(ek_json_parse("\xFF\xFE{\0}\0", 6, "bom.json", &value), EK_EFORMAT);
    check_error_has("save it as UTF-8 without one");
    CHECK_INT(ek_json_parse("\xFE\xFF\0{\0}", 6, "bom.json", &value), EK_EFORMAT);
    check_error_has("a byte order mark (of UTF-16)");
    CHECK(value == NULL);
}

static void text_as(const char *bytes, const char *want)
{
    json_t *text = ek_json_text_of(bytes), *list = json_pack("[o]", text), *back;

    CHECK(text != NULL && list != NULL);
    if (strcmp(json_string_value(text), want) != 0)
        EK_T_FAIL("\"%s\", expected \"%s\"", json_string_value(text), want);
    back = ek_json_unescaped(list);
    CHECK(strcmp(json_string_value(json_array_get(back, 0)), bytes) == 0);
    json_decref(list);
    list = ek_json_escaped(back);
    CHECK(strcmp(json_string_value(json_array_get(list, 0)), want) == 0);
    json_decref(list);
    json_decref(back);
}

static void texts_that_are_not_utf8(void)
{
    json_t *o = parsed("{\"a\": [1, {\"b\": \"\\\\xfE\"}, null], \"c\": true}"), *back;

    text_as("", "");
    text_as("a/n\xc3\xb6-\xe6\xbc\xa2", "a/n\xc3\xb6-\xe6\xbc\xa2");
    text_as("a\xff/b\xc3", "a\\xff/b\\xc3");
    text_as("\xc3\xa4\xe4", "\xc3\xa4\\xe4");
    text_as("\xed\xa0\x80\xf8", "\\xed\\xa0\\x80\\xf8");
    text_as("a\\x41", "a\\x5cx41"); /* so that unescaping restores it */
    text_as("a\\x4\\n\\\xff", "a\\x4\\n\\\\xff");
    text_as("\\x5cx41", "\\x5cx5cx41");
    back = ek_json_unescaped(o);
    CHECK(strcmp(json_string_value(
                     json_object_get(json_array_get(json_object_get(back, "a"), 1), "b")),
                 "\xfe") == 0);
    CHECK(json_is_true(json_object_get(back, "c")));
    json_decref(o);
    o = ek_json_escaped(back);
    CHECK(json_array_size(json_object_get(o, "a")) == 3);
    json_decref(o);
    json_decref(back);
}

static const ek_case cases[] = {EK_CASE(good_values),
                                EK_CASE(errors),
                                EK_CASE(unknown_keys),
                                EK_CASE(bad_text),
                                EK_CASE(files),
                                EK_CASE(memory_is_bounded),
                                EK_CASE(kinds),
                                EK_CASE(depth),
                                EK_CASE(byte_order_marks),
                                EK_CASE(texts_that_are_not_utf8)};
EK_TEST_MAIN(cases)
