/* A list of hosts: a file's, or what a command says; one a line. */
#include "base/file.h"
#include "cli/launch_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HOSTS_BYTES_MAX = 16 << 20, SLOTS_MAX = 100000 };

static const char blanks[] = " \t\r";

/* K of "K", or -1. */
static int64_t slots_of(const char *text)
{
    char *end;
    long k = strtol(text, &end, 10);

    return *text >= '0' && *text <= '9' && *end == '\0' && k >= 1 && k <= SLOTS_MAX ? k : -1;
}

/* One line: HOST, HOST:K or HOST slots=K.  *host: NULL for an empty line. */
static ek_status read_line(const char *what, int number, char *line, char **host, int64_t *slots)
{
    char *rest, *word, *colon;

    line[strcspn(line, "#")] = '\0';
    *host = strtok_r(line, blanks, &rest);
    *slots = 1;
    if (*host == NULL)
        return EK_OK;
    word = strtok_r(NULL, blanks, &rest);
    colon = strchr(*host, ':');
    if (colon != NULL) {
        *colon = '\0';
        *slots = slots_of(colon + 1);
    } else if (word != NULL && strncmp(word, "slots=", 6) == 0) {
        *slots = slots_of(word + 6);
        word = strtok_r(NULL, blanks, &rest);
    }
    EK_REQUIRE(*slots > 0, EK_EFORMAT, "%s, line %d: the processes of host %s are from 1 to %d",
               what, number, *host, SLOTS_MAX);
    EK_REQUIRE(word == NULL, EK_EFORMAT,
               "%s, line %d: %s stands behind host %s; a line is HOST, HOST:PROCESSES or HOST "
               "slots=PROCESSES",
               what, number, word, *host);
    EK_REQUIRE(**host != '\0' && **host != '-' && strchr(*host, ',') == NULL &&
                   strlen(*host) < LAUNCH_HOST_CAP,
               EK_EFORMAT, "%s, line %d: \"%s\" is no name of a host", what, number, *host);
    return EK_OK;
}

static ek_status add_host(launch_hosts *h, const char *name, int64_t slots)
{
    launch_host *grown = realloc(h->host, (size_t)(h->n + 1) * sizeof(*grown));

    EK_REQUIRE(grown != NULL, EK_ENOMEM, "no memory for %d hosts", h->n + 1);
    h->host = grown;
    grown[h->n] = (launch_host){.slots = slots};
    snprintf(grown[h->n++].name, LAUNCH_HOST_CAP, "%s", name);
    return EK_OK;
}

ek_status launch_hosts_parse(const char *what, char *text, launch_hosts *out)
{
    char *rest = text, *line;
    ek_status st = EK_OK;

    *out = (launch_hosts){0};
    for (int number = 1; (line = strsep(&rest, "\n")) != NULL; number++) {
        char *host;
        int64_t k;

        EK_TRY_OUT(read_line(what, number, line, &host, &k));
        if (host != NULL)
            EK_TRY_OUT(add_host(out, host, k));
    }
    EK_REQUIRE_OUT(out->n > 0, EK_EFORMAT, "%s names no hosts", what);
    return EK_OK;
out:
    launch_hosts_free(out);
    return st;
}

ek_status launch_hosts_read(const char *path, launch_hosts *out)
{
    char *text = NULL;
    size_t bytes;
    ek_status st;

    *out = (launch_hosts){0};
    EK_TRY(ek_file_read(path, HOSTS_BYTES_MAX, &text, &bytes));
    st = launch_hosts_parse(path, text, out);
    free(text);
    return st;
}

void launch_hosts_free(launch_hosts *h)
{
    free(h->host);
    *h = (launch_hosts){0};
}

int64_t launch_hosts_slots(const launch_hosts *h)
{
    int64_t n = 0;

    for (int i = 0; i < h->n; i++)
        n += h->host[i].slots;
    return n;
}

ek_status launch_hosts_list(const launch_hosts *h, char **list)
{
    size_t room;
    FILE *f = open_memstream(list, &room);

    EK_REQUIRE(f != NULL, EK_ENOMEM, "no memory for %d hosts", h->n);
    for (int i = 0; i < h->n; i++)
        fprintf(f, "%s%s:%lld", i > 0 ? "," : "", h->host[i].name, (long long)h->host[i].slots);
    EK_REQUIRE(fclose(f) == 0, EK_ENOMEM, "no memory for %d hosts", h->n);
    return EK_OK;
}
