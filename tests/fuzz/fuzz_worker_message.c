/* Any bytes as a line of a worker: what is read as a message is written as an equal one. */
#include "supervisor/protocol.h"

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

static void check_message(const char *text, size_t n)
{
    ek_worker_message m, again;
    char line[EK_MESSAGE_CAP], other[EK_MESSAGE_CAP];
    size_t bytes;

    if (!ek_message_read(text, n, &m))
        return;
    bytes = ek_message_write(&m, line);
    check(bytes > 0, "what is read can be written");
    check(ek_message_read(line + 1, bytes - 2, &again), "what is written can be read");
    check(memcmp(&m, &again, sizeof(m)) == 0, "it is the same message");
    check(ek_message_write(&again, other) == bytes && memcmp(line, other, bytes) == 0,
          "it is written as before");
}

static void check_line(const char *line, size_t n)
{
    const char *text;
    size_t bytes;
    ek_line_kind kind = ek_line_read(line, n, &text, &bytes);

    check(bytes + (kind != EK_LINE_FOREIGN) == n && text + bytes == line + n,
          "a line is its type and its text");
    check_message(text, bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);

    check(text != NULL, "memory");
    memcpy(text, data, size);
    text[size] = '\0';
    check_line(text, size);
    free(text);
    return 0;
}
