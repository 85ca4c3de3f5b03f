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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *line = malloc(size + 1), *text = malloc(size + 1);
    size_t bytes = 0;
    ek_jsonl_fault fault;
    json_t *json, *want;
    int ours;

    check(line != NULL && text != NULL, "memory");
    memcpy(line, data, size);
    ours = ek_jsonl_text(line, size, "text", text, &bytes, &fault);
    check(ours == (fault.what == NULL), "a fault is told, and only a fault");
    check(fault.column <= size + 1, "a fault lies in the line");
    check(!ours || bytes <= size, "a text fits its line");
    check(!ours || !ek_jsonl_is_blank(line, size), "a blank line has no text");
    json = json_loadb(line, size, 0, NULL);
    want = json_object_get(json, "text");
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
