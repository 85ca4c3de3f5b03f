/* evenkeel/simulate.h: answers are those of the commands, settings are as strict, and a cluster may
 * be given as text. */
#include "evenkeel/simulate.h"

#include "base/json.h"
#include "ek_test.h"
#include "machine_fixture.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CLUSTER                                                                                    \
    "{\"evenkeel_cluster\": 1, \"name\": \"made up\", \"rank\": {\"memory\": \"%s\", \"cores\": "  \
    "8,"                                                                                           \
    " \"machine\": {\"peak\": 8e12, \"memory_bytes_s\": 3e12, \"efficiency\": 0.5}},"              \
    " \"levels\": [{\"name\": \"node\", \"ranks\": 8, \"gbytes_s\": 0.45, \"us\": 3.5}]}"

typedef ek_status (*function)(const char *settings, char **answer);

/* The settings of a run of `tiny` with the given cluster, and more of them. */
static char *settings_with(const char *cluster, const char *more)
{
    json_t *o = json_loads(more, 0, NULL);
    char *text;

    CHECK(o != NULL);
    json_object_set_new(o, "cluster", json_string(cluster));
    json_object_set_new(o, "model", json_string("tiny"));
    json_object_set_new(o, "batch", json_integer(8));
    text = json_dumps(o, 0);
    json_decref(o);
    return text;
}

static ek_status call(function f, const char *cluster, const char *more, json_t **answer)
{
    char *settings = settings_with(cluster, more), *text = NULL;
    ek_status st = f(settings, &text);

    *answer = NULL;
    CHECK((st == EK_OK) == (text != NULL));
    if (st == EK_OK)
        *answer = json_loads(text, 0, NULL);
    CHECK((st == EK_OK) == (*answer != NULL));
    free(text);
    free(settings);
    return st;
}

static double number(const json_t *o, const char *key)
{
    const json_t *x = json_object_get(o, key);

    CHECK(json_is_number(x));
    return json_number_value(x);
}

static char *made_up(const char *memory)
{
    static char text[1024];

    snprintf(text, sizeof(text), CLUSTER, memory);
    return text;
}

static void a_step_with_more_bandwidth_is_shorter(void)
{
    char *text = made_up("80G"), *slow = strdup(text), path[] = "/tmp/ek_cluster_XXXXXX";
    int fd = mkstemp(path);
    json_t *of_text, *of_file, *of_slow;

    memcpy(strstr(slow, "0.45"), "0.05", 4);
    CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) && close(fd) == 0);
    CHECK_INT(call(ek_simulate_json, text, "{\"ranks\": 4, \"ep\": 4}", &of_text), EK_OK);
    CHECK_INT(call(ek_simulate_json, path, "{\"ranks\": 4, \"ep\": 4, \"json\": false}", &of_file),
              EK_OK);
    CHECK_INT(call(ek_simulate_json, slow, "{\"ranks\": 4, \"ep\": 4}", &of_slow), EK_OK);
    CHECK(number(of_text, "step_ms") > 0);
    CHECK(number(of_text, "step_ms") == number(of_file, "step_ms"));
    CHECK(number(of_slow, "step_ms") > 1.5 * number(of_text, "step_ms"));
    json_decref(of_text);
    json_decref(of_file);
    json_decref(of_slow);
    unlink(path);
    free(slow);
}

/* The step of the best layout is what a simulation of its options gives. */
static void a_search_agrees_with_a_simulation(void)
{
    json_t *answer, *best, *options, *report;
    char *more;

    CHECK_INT(call(ek_search_json, made_up("80G"), "{\"ranks\": 4, \"top\": 3, \"fix\": \"etp=1\"}",
                   &answer),
              EK_OK);
    CHECK_INT(json_array_size(json_object_get(answer, "best")), 3);
    best = json_array_get(json_object_get(answer, "best"), 0);
    options = json_deep_copy(json_object_get(best, "options"));
    json_object_set_new(options, "ranks", json_integer(4));
    json_object_set_new(options, "engine", json_string("flow")); /* as the search does the best */
    more = json_dumps(options, 0);
    CHECK_INT(call(ek_simulate_json, made_up("80G"), more, &report), EK_OK);
    CHECK_NEAR(number(report, "step_ms"), number(best, "step_ms"));
    json_decref(report);
    json_decref(options);
    json_decref(answer);
    free(more);
}

static void refused(function f, const char *cluster, const char *more, ek_status st,
                    const char *message)
{
    json_t *answer;

    CHECK_INT(call(f, cluster, more, &answer), st);
    if (strstr(ek_err_message(), message) == NULL)
        EK_T_FAIL("not \"%s\": %s", message, ek_err_message());
}

static void bad_settings_are_refused_by_name(void)
{
    char *text = (char *)"x";

    refused(ek_simulate_json, made_up("80G"), "{\"ranks\": 4, \"epp\": 4}", EK_EINVAL,
            "the settings: `simulate` has no option `epp`; the nearest is `pp`");
    refused(ek_simulate_json, made_up("80G"), "{\"ranks\": \"4\"}", EK_EINVAL,
            "the settings: key `ranks`");
    refused(ek_simulate_json, made_up("80G"), "{}", EK_EINVAL, "needs `--ranks`");
    refused(ek_simulate_json, made_up("80G"), "{\"ranks\": 9}", EK_EINVAL,
            "--ranks 9: cluster made up has 8 (`ranks` of its last level)");
    refused(ek_simulate_json, "{\"evenkeel_cluster\": 1}", "{\"ranks\": 4}", EK_EFORMAT,
            "the cluster: ");
    refused(ek_simulate_json, "/nowhere.json", "{\"ranks\": 4}", EK_ENOENT, "/nowhere.json");
    refused(ek_search_json, made_up("1M"), "{\"ranks\": 4}", EK_ENOMEM, "memory");
    CHECK_INT(ek_simulate_json("[]", &text), EK_EFORMAT);
    CHECK(text == NULL && strstr(ek_err_message(), "the settings: expected an object") != NULL);
    CHECK_INT(ek_simulate_json("{", &text), EK_EFORMAT);
}

static const ek_case cases[] = {
    EK_CASE(a_step_with_more_bandwidth_is_shorter),
    EK_CASE(a_search_agrees_with_a_simulation),
    EK_CASE(bad_settings_are_refused_by_name),
};

EK_TEST_MAIN(cases)
