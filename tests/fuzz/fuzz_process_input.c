/* Any bytes as environment variables and arguments of a process that the supervisor starts: what is
 * read is written as it was. */
#include "supervisor/protocol.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ARGS_MAX = 16 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "broken: %s\n", what);
        abort();
    }
}

static int is_in_environment(const char *name, const char *text)
{
    const char *value = getenv(name);

    return value != NULL && strcmp(value, text) == 0;
}

static void check_launched(const char *text)
{
    ek_launched l = ek_launched_read(text);

    check(l.ranks > 0 || (!l.elastic && !l.live && l.n_draining == 0), "a job or none");
    if (l.ranks == 0)
        return;
    check(ek_launched_set(&l) == EK_OK && is_in_environment(EK_LAUNCHED_VARIABLE, text),
          "a job is written as it was");
}

static void check_racks(const char *text)
{
    ek_rack_slots *host = NULL;
    int n = 0;

    check(ek_racks_read(text, &host, &n) == EK_OK && (host == NULL) == (n == 0), "racks or none");
    if (n > 0)
        check(ek_racks_set(host, n) == EK_OK && is_in_environment(EK_RACKS_VARIABLE, text),
              "racks are written as they were");
    free(host);
}

static void check_address(const char *text, const char *behind)
{
    ek_worker_link_address a = ek_worker_link_read(text, behind);

    if (a.name[0] == '\0')
        return;
    check(ek_worker_link_set(&a) == EK_OK && is_in_environment(EK_WORKER_LINK_NAME, text) &&
              is_in_environment(EK_WORKER_LINK_MACHINE, behind),
          "an address is written as it was");
}

static void check_mark(const char *text)
{
    const char *stop = strchr(text, '.');
    char id[EK_PROCESS_MARK_CAP], again[EK_PROCESS_MARK_CAP];

    if (stop == NULL || stop - text > 32)
        return;
    snprintf(id, sizeof(id), "%.*s", (int)(stop - text), text);
    if (!ek_process_mark_is(text, id, 0))
        return;
    ek_process_mark_write(id, strtoll(stop + 1, NULL, 10), again);
    check(strcmp(text, again) == 0, "a mark is written as it was");
}

static void check_arguments(int argc, char **argv)
{
    ek_internal_call c;
    ek_internal_args again;

    if (!ek_internal_read(argc, argv, &c))
        return;
    check(ek_internal_write(&c, &again) == EK_OK, "what is read can be written");
    check(argc == again.argc, "with as many arguments");
    for (int i = 0; i < argc; i++)
        check(strcmp(argv[i], again.argv[i]) == 0, "arguments are written as they were");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1), *argv[ARGS_MAX + 1] = {NULL}, *rest = text, *line;
    int argc = 0;

    check(text != NULL, "memory");
    memcpy(text, data, size);
    text[size] = '\0';
    check_launched(text);
    check_racks(text);
    check_mark(text);
    while (argc < ARGS_MAX && (line = strsep(&rest, "\n")) != NULL)
        argv[argc++] = line;
    check_arguments(argc, argv);
    check_address(argv[0], argv[1]);
    free(text);
    return 0;
}
