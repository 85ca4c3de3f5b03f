/* Checked JSON access: every refusal names file and key. */
#include "base/json.h"
#include "ek_test.h"

#include <sys/stat.h>

static json_t *parsed(const char *text)
{
    json_t *value = NULL;

    CHECK_INT(ek_json_parse(text, strlen(text), "f.json", &value), EK_OK);
    return value;
}

static void says(const char *words)
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

static void refusals(void)
{
    json_t *o = parsed("{\"i\": 4, \"r\": 2.0, \"s\": \"t\", \"n\": null, \"a\": []}");
    int64_t i = 5;
    double r = 5;
    const char *s = NULL;
    int b = 5;

    CHECK_INT(ek_json_int(o, "f.json", "i", EK_JSON_REQUIRED, 0, 3, &i), EK_EFORMAT);
    says("f.json: key `i`: 4 is not between 0 and 3");
    CHECK_INT(ek_json_int(o, "f.json", "r", EK_JSON_OPTIONAL, 0, 3, &i), EK_EFORMAT);
    says("f.json: key `r`: expected an integer, found a number");
    CHECK_INT(ek_json_int(o, "f.json", "x", EK_JSON_REQUIRED, 0, 3, &i), EK_EFORMAT);
    says("f.json: key `x` is missing");
    CHECK_INT(ek_json_int(o, "f.json", "n", EK_JSON_REQUIRED, 0, 3, &i), EK_EFORMAT);
    says("key `n`: expected an integer, found null");
    CHECK_INT(ek_json_real(o, "f.json", "s", EK_JSON_REQUIRED, &r), EK_EFORMAT);
    says("key `s`: expected a number, found a string");
    CHECK_INT(ek_json_text(o, "f.json", "a", EK_JSON_REQUIRED, &s), EK_EFORMAT);
    says("key `a`: expected a string, found an array");
    CHECK_INT(ek_json_bool(o, "f.json", "i", EK_JSON_REQUIRED, &b), EK_EFORMAT);
    says("key `i`: expected true or false, found an integer");
    CHECK_INT(ek_json_int(json_object_get(o, "a"), "f.json", "i", EK_JSON_OPTIONAL, 0, 3, &i),
              EK_EFORMAT);
    says("expected an object");
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
        says("bad.json: not valid JSON: line ");
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
    says(path);
    f = fopen(path, "w");
    CHECK(f != NULL && fputs("{\"a\": [1, 2]}\n", f) >= 0 && fclose(f) == 0);
    CHECK_INT(ek_json_read(path, &value), EK_OK);
    CHECK_INT(json_array_size(json_object_get(value, "a")), 2);
    json_decref(value);
    CHECK_INT(truncate(path, 5), 0);
    CHECK_INT(ek_json_read(path, &value), EK_EFORMAT);
    says(path);
    CHECK_INT(truncate(path, 0), 0);
    CHECK_INT(ek_json_read(path, &value), EK_EFORMAT);
    CHECK_INT(ek_json_read(folder, &value), EK_EFORMAT);
    says("not a regular file");
    CHECK_INT(truncate(path, (1ll << 29) + 1), 0);
    CHECK_INT(ek_json_read(path, &value), EK_EFORMAT);
    says("too many");
    unlink(path);
    rmdir(folder);
}

static const ek_case cases[] = {EK_CASE(good_values), EK_CASE(refusals), EK_CASE(bad_text),
                                EK_CASE(files)};
EK_TEST_MAIN(cases)
