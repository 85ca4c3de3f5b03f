/* Implements evenkeel/simulate.h: the commands' options from JSON, and their answers as text. */
#include "evenkeel/simulate.h"

#include "base/entry.h"
#include "base/json.h"
#include "base/options.h"
#include "base/threads.h"
#include "search/command.h"
#include "train/command/simulate.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef ek_status (*command)(const ek_options *o, FILE *out);

/* Runs a command with its output in memory; the caller frees *answer. */
static ek_status run_into(command run, const ek_options *o, char **answer)
{
    size_t bytes = 0;
    FILE *f = open_memstream(answer, &bytes);
    ek_status st;
    int failed;

    EK_REQUIRE(f != NULL, EK_ENOMEM, "no memory for an answer: %s", strerror(errno));
    st = run(o, f);
    failed = ferror(f);
    failed |= fclose(f) != 0;
    if (st == EK_OK && failed)
        st = EK_FAIL(EK_ENOMEM, "no memory for an answer of %zu bytes", bytes);
    if (st == EK_OK)
        return EK_OK;
    free(*answer);
    *answer = NULL;
    return st;
}

static ek_status answer_json(const ek_option_table *table, command run, const char *settings,
                             char **answer)
{
    ek_options *o = NULL;
    json_t *root = NULL;
    ek_status st;

    EK_TRY(ek_stack_check());
    EK_TRY(ek_json_parse(settings, strlen(settings), "the settings", &root));
    if (json_is_object(root))
        (void)json_object_set_new(root, "json", json_true()); /* a command's other form is text */
    EK_TRY_OUT(ek_options_from_json(table, root, "the settings", &o));
    EK_TRY_OUT(run_into(run, o, answer));
out:
    ek_options_destroy(o);
    json_decref(root);
    return st;
}

ek_status ek_simulate_json(const char *settings, char **report)
{
    EK_C_LOCALE;
    ek_option rows[EK_SIMULATE_OPTIONS];
    ek_option_table table;

    EK_NOT_NULL(report);
    *report = NULL;
    EK_NOT_NULL(settings);
    ek_simulate_table(rows, &table);
    return answer_json(&table, ek_simulate_command, settings, report);
}

ek_status ek_search_json(const char *settings, char **answer)
{
    EK_C_LOCALE;
    ek_option rows[EK_SEARCH_OPTIONS];
    ek_option_table table;

    EK_NOT_NULL(answer);
    *answer = NULL;
    EK_NOT_NULL(settings);
    ek_search_table(rows, &table);
    return answer_json(&table, ek_search_command, settings, answer);
}
