/* Parses host lists, from a file or the output of --discover; one host per line. */
#include "supervisor/host_list.h"

#include "base/file.h"
#include "supervisor/limits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HOSTS_BYTES_MAX = 16 << 20, SLOTS_MAX = EK_HOST_RANKS_MAX };

static const char blanks[] = " \t\r";

/* Number of slots, or -1 on a syntax error or if out of range. */
static int64_t slots_of(const char *text)
{
    char *end;
    long k = strtol(text, &end, 10);

    return *text >= '0' && *text <= '9' && *end == '\0' && k >= 1 && k <= SLOTS_MAX ? k : -1;
}

/* Parses the words after a host: slots=K (unless given as HOST:K) and rack=NAME.  *word: the first
 * other word, or NULL. */
static void read_words(char **rest, ek_host *h, char **word)
{
    while ((*word = strtok_r(NULL, blanks, rest)) != NULL) {
        if (strncmp(*word, "slots=", 6) == 0 && !h->has_slots) {
            h->slots = slots_of(*word + 6);
            h->has_slots = 1;
        } else if (strncmp(*word, "rack=", 5) == 0 && h->rack[0] == '\0' && (*word)[5] != '\0' &&
                   strlen(*word + 5) < EK_RACK_NAME_CAP) {
            snprintf(h->rack, sizeof(h->rack), "%s", *word + 5);
        } else {
            return;
        }
    }
}

/* Parses a line: HOST, HOST:K or HOST slots=K, then optionally rack=NAME.  h->name is empty for an
 * empty line. */
static ek_status read_line(const char *what, int number, char *line, ek_host *h)
{
    char *rest, *host, *word, *colon;

    *h = (ek_host){.slots = 1};
    line[strcspn(line, "#")] = '\0';
    host = strtok_r(line, blanks, &rest);
    if (host == NULL)
        return EK_OK;
    colon = strchr(host, ':');
    if (colon != NULL) {
        *colon = '\0';
        h->slots = slots_of(colon + 1);
        h->has_slots = 1;
    }
    read_words(&rest, h, &word);
    EK_REQUIRE(h->slots > 0, EK_EFORMAT, "%s, line %d: host %s must have 1 to %d slots", what,
               number, host, SLOTS_MAX);
    EK_REQUIRE(word == NULL, EK_EFORMAT,
               "%s, line %d: unexpected %s after host %s; a line is HOST, HOST:SLOTS or HOST "
               "slots=SLOTS, optionally followed by rack=NAME",
               what, number, word, host);
    EK_REQUIRE(*host != '\0' && *host != '-' && strchr(host, ',') == NULL &&
                   strlen(host) < EK_HOST_NAME_CAP,
               EK_EFORMAT, "%s, line %d: \"%s\" is not a host name", what, number, host);
    snprintf(h->name, sizeof(h->name), "%s", host);
    return EK_OK;
}

static ek_status add_host(ek_host_list *h, const ek_host *host)
{
    ek_host *grown = realloc(h->host, (size_t)(h->n + 1) * sizeof(*grown));

    EK_REQUIRE(grown != NULL, EK_ENOMEM, "no memory for %d hosts", h->n + 1);
    h->host = grown;
    grown[h->n++] = *host;
    return EK_OK;
}

ek_status ek_host_list_parse(const char *what, char *text, ek_host_list *out)
{
    char *rest = text, *line;
    ek_status st = EK_OK;

    *out = (ek_host_list){0};
    for (int number = 1; (line = strsep(&rest, "\n")) != NULL; number++) {
        ek_host host;

        EK_TRY_OUT(read_line(what, number, line, &host));
        if (host.name[0] != '\0')
            EK_TRY_OUT(add_host(out, &host));
    }
    EK_REQUIRE_OUT(out->n > 0, EK_EFORMAT, "%s contains no hosts", what);
    return EK_OK;
out:
    ek_host_list_free(out);
    return st;
}

ek_status ek_host_list_read(const char *path, ek_host_list *out)
{
    char *text = NULL;
    size_t bytes;
    ek_status st;

    *out = (ek_host_list){0};
    EK_TRY(ek_file_read(path, HOSTS_BYTES_MAX, &text, &bytes));
    st = ek_host_list_parse(path, text, out);
    free(text);
    return st;
}

int64_t ek_host_list_even_slots(const ek_host_list *h, int64_t ranks)
{
    for (int i = 0; i < h->n; i++)
        if (h->host[i].has_slots)
            return 1;
    return ranks > 0 && ranks % h->n == 0 && ranks / h->n <= SLOTS_MAX ? ranks / h->n : 1;
}

void ek_host_list_fill(ek_host_list *h, int64_t slots)
{
    for (int i = 0; i < h->n; i++)
        if (!h->host[i].has_slots)
            h->host[i].slots = slots;
}

ek_status ek_host_list_read_for(const char *path, int64_t ranks, ek_host_list *out)
{
    EK_TRY(ek_host_list_read(path, out));
    ek_host_list_fill(out, ek_host_list_even_slots(out, ranks));
    return EK_OK;
}

void ek_host_list_free(ek_host_list *h)
{
    free(h->host);
    *h = (ek_host_list){0};
}

ek_status ek_host_list_copy(const ek_host_list *h, ek_host_list *out)
{
    *out = (ek_host_list){.host = calloc((size_t)h->n + 1, sizeof(*out->host))};
    EK_REQUIRE(out->host != NULL, EK_ENOMEM, "no memory for %d hosts", h->n);
    memcpy(out->host, h->host, (size_t)h->n * sizeof(*out->host));
    out->n = h->n;
    return EK_OK;
}

int64_t ek_host_list_slots(const ek_host_list *h)
{
    int64_t n = 0;

    for (int i = 0; i < h->n; i++)
        n += h->host[i].slots;
    return n;
}

ek_status ek_host_list_text(const ek_host_list *h, char **list)
{
    size_t room;
    FILE *f = open_memstream(list, &room);

    EK_REQUIRE(f != NULL, EK_ENOMEM, "no memory for %d hosts", h->n);
    for (int i = 0; i < h->n; i++)
        fprintf(f, "%s%s:%lld", i > 0 ? "," : "", h->host[i].name, (long long)h->host[i].slots);
    EK_REQUIRE(fclose(f) == 0, EK_ENOMEM, "no memory for %d hosts", h->n);
    return EK_OK;
}

/* The number of a host's rack: index of the first host in it. */
static int rack_number(const ek_host_list *h, int host)
{
    int first = 0;

    while (first < host &&
           (h->host[host].rack[0] == '\0' || strcmp(h->host[first].rack, h->host[host].rack) != 0))
        first++;
    return first;
}

ek_status ek_host_list_racks(const ek_host_list *h, ek_rack_slots **racks)
{
    int known = 0;

    *racks = NULL;
    for (int i = 0; i < h->n; i++)
        known |= h->host[i].rack[0] != '\0';
    if (!known)
        return EK_OK;
    *racks = calloc((size_t)h->n, sizeof(**racks));
    EK_REQUIRE(*racks != NULL, EK_ENOMEM, "no memory for %d hosts", h->n);
    for (int i = 0; i < h->n; i++)
        (*racks)[i] = (ek_rack_slots){.slots = (int)h->host[i].slots, .rack = rack_number(h, i)};
    return EK_OK;
}

int ek_host_list_entry(const ek_host_list *h, int64_t rank)
{
    int host = 0;

    for (; host < h->n - 1 && rank >= h->host[host].slots; host++)
        rank -= h->host[host].slots;
    return host;
}

/* The first entry of the list that names an entry's host. */
static int first_entry(const ek_host_list *h, int entry)
{
    int first = 0;

    while (strcmp(h->host[first].name, h->host[entry].name) != 0)
        first++;
    return first;
}

ek_status ek_host_list_places(const ek_host_list *h, int ranks, int **hosts, int **racks)
{
    ek_rack_slots *of_entry = NULL;
    ek_status st = EK_OK;

    *hosts = *racks = NULL;
    EK_TRY(ek_host_list_racks(h, &of_entry));
    *hosts = calloc((size_t)ranks, sizeof(**hosts));
    *racks = of_entry != NULL ? calloc((size_t)ranks, sizeof(**racks)) : NULL;
    for (int r = 0; r < ranks && *hosts != NULL; r++) {
        int entry = ek_host_list_entry(h, r);

        (*hosts)[r] = first_entry(h, entry);
        if (*racks != NULL)
            (*racks)[r] = of_entry[entry].rack;
    }
    if (*hosts == NULL || (of_entry != NULL && *racks == NULL))
        st = EK_FAIL(EK_ENOMEM, "no memory for the hosts of %d ranks", ranks);
    free(of_entry);
    return st;
}
