/* Any bytes as a line of JSON Lines, with jansson as the second opinion. */
#include "data/jsonl.h"

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "broken: %s\n", what);
        abort();
    }
}

/* Whether jansson refuses a line for what this reader takes: numbers that are too large, bytes that
 * are not UTF-8, half a surrogate pair, and keys with a NUL in them. */
static int is_taken(json_error_t *error)
{
    enum json_error_code code = json_error_code(error);

    return code == json_error_numeric_overflow || code == json_error_invalid_utf8 ||
           code == json_error_null_byte_in_key ||
           strncmp(error->text, "invalid Unicode '", 17) == 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *line = malloc(size + 1), *text = malloc(size + 1);
    size_t bytes = 0;
    ek_jsonl_fault fault;
    json_error_t error;
    json_t *json, *want;
    int ours;

    check(line != NULL && text != NULL, "memory");
    memcpy(line, data, size);
    ours = ek_jsonl_text(line, size, "text", text, &bytes, &fault);
    check(ours == (fault.what == NULL), "a fault is told, and only a fault");
    check(fault.column <= size + 1, "a fault lies in the line");
    check(!ours || bytes <= size, "a text fits its line");
    check(!ours || !ek_jsonl_is_blank(line, size), "a blank line has no text");
    if (memchr(line, '\0', size) != NULL) { /* jansson loses it behind a number or a literal */
        check(!ours, "no line has a NUL byte");
        size = 0;
    }
    json = json_loadb(line, size, JSON_ALLOW_NUL, &error);
    want = json_object_get(json, "text");
    check(!ours || (json != NULL ? json_is_string(want) : is_taken(&error)),
          "what jansson does not read is not read");
    if (json_is_string(want) &&
        (ours || strcmp(fault.what, "values nested more than 64 deep") != 0)) {
        check(ours, "what jansson reads is read");
        check(json_string_length(want) == bytes &&
                  memcmp(json_string_value(want), text, bytes) == 0,
              "it is the same text");
    }
    json_decref(json);
    free(line);
    free(text);
    return 0;
}
