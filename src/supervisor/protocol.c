/* What the supervisor, its workers and its other processes tell each other, as text. */
#include "supervisor/protocol.h"

#include "base/utf8.h"

#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* --- words ------------------------------------------------------------------------------------ */

/* The part of a text that is not read yet. */
typedef struct {
    const char *at, *end;
} unread_text;

static unread_text unread(const char *text)
{
    return (unread_text){text, text + strlen(text)};
}

/* Takes what is before the next separator, which is taken, too; returns its bytes, 0: none. */
static size_t take_until(unread_text *r, char separator, const char **part)
{
    const char *found = memchr(r->at, separator, (size_t)(r->end - r->at));
    const char *stop = found != NULL ? found : r->end;

    *part = r->at;
    if (found != NULL && found + 1 == r->end)
        return 0; /* a separator at the end */
    r->at = found != NULL ? found + 1 : r->end;
    return (size_t)(stop - *part);
}

/* Takes the next word, up to a blank, which is taken, too; returns its bytes, 0: none. */
static size_t take_word(unread_text *r, const char **word)
{
    return take_until(r, ' ', word);
}

/* Takes the next word if it is this one. */
static int take_literal(unread_text *r, const char *literal)
{
    unread_text before = *r;
    const char *word;
    size_t n = take_word(r, &word);

    if (n > 0 && n == strlen(literal) && memcmp(word, literal, n) == 0)
        return 1;
    *r = before;
    return 0;
}

/* Takes the next word if it begins with the key; *value, *n: the rest of it. */
static int take_value(unread_text *r, const char *key, const char **value, size_t *n)
{
    unread_text before = *r;
    size_t skip = strlen(key);

    *n = take_word(r, value);
    if (*n > skip && memcmp(*value, key, skip) == 0) {
        *value += skip;
        *n -= skip;
        return 1;
    }
    *r = before;
    return 0;
}

/* A number of digits, without leading zeros, at most `most`; -1: it is none. */
static int64_t number_of(const char *word, size_t n, int64_t most)
{
    int64_t x = 0;

    if (n > 1 && word[0] == '0')
        return -1;
    for (size_t i = 0; i < n; i++) {
        int digit = word[i] - '0';

        if (digit < 0 || digit > 9 || digit > most || x > (most - digit) / 10)
            return -1;
        x = 10 * x + digit;
    }
    return n > 0 ? x : -1;
}

enum { ID_CHARS = 16 };

/* Returns whether a word is an id, as "%016" PRIx64 writes it. */
static int read_id(const char *word, size_t n, uint64_t *id)
{
    static const char digits[] = "0123456789abcdef";

    if (n != ID_CHARS)
        return 0;
    *id = 0;
    for (size_t i = 0; i < n; i++) {
        const char *digit = memchr(digits, word[i], sizeof(digits) - 1);

        if (digit == NULL)
            return 0;
        *id = *id << 4 | (uint64_t)(digit - digits);
    }
    return 1;
}

/* Not empty, no blanks, and can be printed: well-formed UTF-8 without control characters. */
static int is_word(const char *text, size_t n)
{
    const unsigned char *p = (const unsigned char *)text;
    uint32_t cp = 0;

    for (size_t i = 0, length; i < n; i += length) {
        length = ek_utf8_next(p + i, n - i, &cp);
        if (length == 0 || cp <= ' ' || (cp >= 0x7f && cp <= 0xa0))
            return 0;
    }
    return n > 0;
}

/* --- environment: the job --------------------------------------------------------------------- */

/* value = NULL: removes the variable. */
static ek_status set_variable(const char *name, const char *value)
{
    int failed = value != NULL ? setenv(name, value, 1) : unsetenv(name);

    EK_REQUIRE(failed == 0, EK_ENOMEM, "no memory for an environment variable");
    return EK_OK;
}

ek_status ek_launched_set(const ek_launched *l)
{
    char value[160];
    int n = snprintf(value, sizeof(value), "%d%s", l->ranks, l->live ? " live" : "");

    if (l->elastic)
        n += snprintf(value + n, sizeof(value) - (size_t)n, " elastic=%016" PRIx64 "%s",
                      l->supervisor_id, l->elastic == EK_ELASTIC_BY_DEFAULT ? " default" : "");
    if (l->elastic && l->n_draining > 0)
        n += snprintf(value + n, sizeof(value) - (size_t)n, " draining=%d", l->n_draining);
    if (l->elastic && l->least_step > 0)
        n += snprintf(value + n, sizeof(value) - (size_t)n, " least=%" PRId64, l->least_step);
    if (l->elastic && l->lost_hosts > 0)
        snprintf(value + n, sizeof(value) - (size_t)n, " lost=%" PRId64 " after=%" PRId64,
                 l->lost_hosts, l->host_s);
    return set_variable(EK_LAUNCHED_VARIABLE, value);
}

/* What is behind the number of ranks. */
static int read_settings(unread_text *r, ek_launched *l)
{
    const char *value;
    size_t n;

    l->live = take_literal(r, "live");
    if (take_value(r, "elastic=", &value, &n)) {
        l->elastic = 1;
        if (!read_id(value, n, &l->supervisor_id))
            return 0;
        if (take_literal(r, "default"))
            l->elastic = EK_ELASTIC_BY_DEFAULT;
        if (take_value(r, "draining=", &value, &n)) {
            l->n_draining = (int)number_of(value, n, l->ranks - 1);
            if (l->n_draining <= 0)
                return 0;
        }
        if (take_value(r, "least=", &value, &n)) {
            l->least_step = number_of(value, n, INT64_MAX);
            if (l->least_step <= 0)
                return 0;
        }
        if (take_value(r, "lost=", &value, &n)) {
            l->lost_hosts = number_of(value, n, INT64_MAX);
            if (!take_value(r, "after=", &value, &n))
                return 0;
            l->host_s = number_of(value, n, INT64_MAX);
            if (l->lost_hosts <= 0 || l->host_s <= 0)
                return 0;
        }
    }
    return r->at == r->end;
}

ek_launched ek_launched_read(const char *text)
{
    static const ek_launched none;
    ek_launched l = {0};
    unread_text r;
    const char *word;
    size_t n;

    if (text == NULL)
        return none;
    r = unread(text);
    n = take_word(&r, &word);
    l.ranks = (int)number_of(word, n, INT_MAX);
    return l.ranks > 0 && read_settings(&r, &l) ? l : none;
}

/* --- environment: racks ----------------------------------------------------------------------- */

ek_status ek_racks_set(const ek_rack_slots *host, int n)
{
    char *list = NULL;
    size_t bytes;
    FILE *f;
    ek_status st;

    if (n == 0)
        return set_variable(EK_RACKS_VARIABLE, NULL);
    f = open_memstream(&list, &bytes);
    EK_REQUIRE(f != NULL, EK_ENOMEM, "no memory for the racks of %d hosts", n);
    for (int i = 0; i < n; i++)
        fprintf(f, "%s%d:%d", i > 0 ? "," : "", host[i].slots, host[i].rack);
    st = fclose(f) == 0 ? set_variable(EK_RACKS_VARIABLE, list)
                        : EK_FAIL(EK_ENOMEM, "no memory for the racks of %d hosts", n);
    free(list);
    return st;
}

/* Takes host i; returns 0 on a syntax error. */
static int take_rack_slots(unread_text *r, ek_rack_slots *host, int i)
{
    const char *part, *slots;
    size_t n = take_until(r, ',', &part);
    unread_text pair = {part, part + n};
    size_t bytes = take_until(&pair, ':', &slots);

    host[i].slots = (int)number_of(slots, bytes, INT_MAX);
    host[i].rack = (int)number_of(pair.at, (size_t)(pair.end - pair.at), i);
    return host[i].slots > 0 && host[i].rack >= 0 && host[host[i].rack].rack == host[i].rack;
}

ek_status ek_racks_read(const char *text, ek_rack_slots **host, int *n)
{
    size_t most = 1;
    unread_text r;

    *host = NULL;
    *n = 0;
    if (text == NULL)
        return EK_OK;
    r = unread(text);
    for (const char *at = r.at; at < r.end; at++)
        most += *at == ',';
    *host = calloc(most, sizeof(**host));
    EK_REQUIRE(*host != NULL, EK_ENOMEM, "no memory for the racks of %zu hosts", most);
    do {
        if (!take_rack_slots(&r, *host, *n)) {
            free(*host);
            *host = NULL;
            *n = 0;
            return EK_OK;
        }
        ++*n;
    } while (r.at < r.end);
    return EK_OK;
}

/* --- environment: the supervisor's socket, and marks ------------------------------------------ */

/* "BOOT NAMESPACE", each a word or empty. */
static int is_machine(const char *text)
{
    const char *blank = strchr(text, ' ');
    size_t n = strlen(text);

    return n < EK_WORKER_LINK_MACHINE_CAP && blank != NULL &&
           (blank == text || is_word(text, (size_t)(blank - text))) &&
           (blank[1] == '\0' || is_word(blank + 1, strlen(blank + 1)));
}

static int is_socket_name(const char *text)
{
    return strlen(text) < EK_WORKER_LINK_NAME_CAP && is_word(text, strlen(text));
}

ek_status ek_worker_link_set(const ek_worker_link_address *a)
{
    EK_REQUIRE(a == NULL || (is_socket_name(a->name) && is_machine(a->machine)), EK_EINVAL,
               "the supervisor's address is not valid");
    EK_TRY(set_variable(EK_WORKER_LINK_NAME, a != NULL ? a->name : NULL));
    return set_variable(EK_WORKER_LINK_MACHINE, a != NULL ? a->machine : NULL);
}

ek_worker_link_address ek_worker_link_read(const char *name, const char *machine)
{
    ek_worker_link_address a = {0};

    if (name == NULL || machine == NULL || !is_socket_name(name) || !is_machine(machine))
        return a;
    memcpy(a.name, name, strlen(name));
    memcpy(a.machine, machine, strlen(machine));
    return a;
}

void ek_process_mark_write(const char *id, int64_t pid, char text[EK_PROCESS_MARK_CAP])
{
    snprintf(text, EK_PROCESS_MARK_CAP, "%s.%" PRId64, id, pid);
}

int ek_process_mark_is(const char *text, const char *id, int64_t pid)
{
    size_t n = strlen(id);
    int64_t of;

    if (n == 0 || strncmp(text, id, n) != 0 || text[n] != '.')
        return 0;
    of = number_of(text + n + 1, strlen(text + n + 1), INT64_MAX);
    return of > 0 && (pid == 0 || pid == of);
}

/* --- connection ------------------------------------------------------------------------------- */

void ek_worker_link_word_write(int word, unsigned char bytes[EK_WORKER_LINK_BYTES])
{
    int32_t x = word;

    memcpy(bytes, &x, sizeof(x));
}

int ek_worker_link_word_read(const unsigned char *bytes, size_t n, int *word)
{
    int32_t x;

    if (n != sizeof(x))
        return 0;
    memcpy(&x, bytes, sizeof(x));
    *word = x;
    return x >= EK_WORKER_LINK_EXIT;
}

/* --- lines ------------------------------------------------------------------------------------ */

static const char line_types[EK_LINE_KINDS] = {
    [EK_LINE_TEXT] = 0x1e, [EK_LINE_PART] = 0x1d, [EK_LINE_MESSAGE] = 0x1c};

ek_line_kind ek_line_read(const char *line, size_t n, const char **text, size_t *bytes)
{
    *text = line;
    *bytes = n;
    for (int k = EK_LINE_FOREIGN + 1; n > 0 && k < EK_LINE_KINDS; k++)
        if (line[0] == line_types[k]) {
            *text = line + 1;
            *bytes = n - 1;
            return (ek_line_kind)k;
        }
    return EK_LINE_FOREIGN;
}

size_t ek_line_write(ek_line_kind kind, const char *text, size_t n, char *out, size_t cap)
{
    size_t at = 0;

    if (cap < 3)
        return 0;
    if (kind != EK_LINE_FOREIGN && (n == 0 || text[0] != line_types[EK_LINE_MESSAGE]))
        out[at++] = line_types[kind];
    n = n < cap - at - 1 ? n : cap - at - 1;
    memcpy(out + at, text, n);
    at += n;
    out[at++] = '\n';
    return at;
}

/* --- messages --------------------------------------------------------------------------------- */

typedef enum {
    FIELD_END,
    FIELD_INT,   /* int, 0 to INT_MAX */
    FIELD_INT64, /* int64_t, 0 to INT64_MAX */
    FIELD_ID,    /* uint64_t, in hexadecimal */
    FIELD_TEXT,  /* char [cap] */
    FIELD_FLAG   /* int: 1 where the label is there, which may be left out */
} field_type;

typedef struct {
    field_type type;
    const char *label; /* a word before the value; NULL: none */
    size_t offset;     /* in ek_worker_message */
    size_t cap;
} message_field;

enum { FIELDS_MAX = 5 };

/* All messages: their first word, and their fields.  From field `required` on each may be left out,
 * with its label; numbers are then 0. */
static const struct {
    const char *name;
    int required;
    message_field fields[FIELDS_MAX];
} formats[EK_MESSAGES] = {
    [EK_MESSAGE_START] = {"start",
                          3,
                          {{FIELD_INT, NULL, offsetof(ek_worker_message, worker.rank), 0},
                           {FIELD_INT, "pid", offsetof(ek_worker_message, worker.pid), 0},
                           {FIELD_TEXT, "host", offsetof(ek_worker_message, worker.host),
                            EK_MESSAGE_HOST_CAP}}},
    [EK_MESSAGE_JOINED] = {"rank",
                           3,
                           {{FIELD_INT, NULL, offsetof(ek_worker_message, worker.rank), 0},
                            {FIELD_INT, "pid", offsetof(ek_worker_message, worker.pid), 0},
                            {FIELD_TEXT, "host", offsetof(ek_worker_message, worker.host),
                             EK_MESSAGE_HOST_CAP}}},
    [EK_MESSAGE_FAILED] = {"failed",
                           1,
                           {{FIELD_INT, NULL, offsetof(ek_worker_message, failed.status), 0},
                            {FIELD_INT, "rank", offsetof(ek_worker_message, failed.rank), 0},
                            {FIELD_FLAG, "lost", offsetof(ek_worker_message, failed.lost), 0}}},
    [EK_MESSAGE_PHASE] = {"phase",
                          1,
                          {{FIELD_TEXT, NULL, offsetof(ek_worker_message, phase.name),
                            EK_MESSAGE_PHASE_CAP}}},
    [EK_MESSAGE_STEP] = {"step",
                         2,
                         {{FIELD_INT64, NULL, offsetof(ek_worker_message, step.done), 0},
                          {FIELD_INT64, "of", offsetof(ek_worker_message, step.total), 0}}},
    [EK_MESSAGE_RECOVERED] =
        {"recovered",
         4,
         {{FIELD_INT64, NULL, offsetof(ek_worker_message, recovered.taken), 0},
          {FIELD_INT64, NULL, offsetof(ek_worker_message, recovered.copied), 0},
          {FIELD_INT64, NULL, offsetof(ek_worker_message, recovered.received), 0},
          {FIELD_INT64, NULL, offsetof(ek_worker_message, recovered.prealloc), 0}}},
    [EK_MESSAGE_LACKING] = {"lacking",
                            1,
                            {{FIELD_INT64, NULL, offsetof(ek_worker_message, lacking.step), 0}}},
    [EK_MESSAGE_NO_ROOM] = {"noroom",
                            1,
                            {{FIELD_INT, NULL, offsetof(ek_worker_message, notice.rank), 0}}},
    [EK_MESSAGE_MEMORY] = {"memory",
                           2,
                           {{FIELD_ID, NULL, offsetof(ek_worker_message, memory.run), 0},
                            {FIELD_TEXT, NULL, offsetof(ek_worker_message, memory.blocks),
                             EK_PREALLOC_TEXT}}},
    [EK_MESSAGE_NOTICE] = {"notice",
                           1,
                           {{FIELD_INT, NULL, offsetof(ek_worker_message, notice.rank), 0}}},
    [EK_MESSAGE_ALIVE] = {"alive",
                          1,
                          {{FIELD_INT, NULL, offsetof(ek_worker_message, notice.rank), 0}}},
    [EK_MESSAGE_LEAVING] = {"leaving",
                            1,
                            {{FIELD_INT, NULL, offsetof(ek_worker_message, notice.rank), 0}}},
};

/* Appends " LABEL VALUE" to line at *n; returns 0 if the value is not valid, or there is no room.
 */
static int write_field(const message_field *field, const ek_worker_message *m, char *line,
                       size_t *n)
{
    const char *at = (const char *)m + field->offset;
    const char *label = field->label != NULL ? field->label : "";
    const char *blank = field->label != NULL ? " " : "";
    size_t room = EK_MESSAGE_CAP - 1 - *n; /* of the newline */
    int length = 0;

    switch (field->type) {
    case FIELD_INT: {
        int x = *(const int *)(const void *)at;

        if (x < 0)
            return 0;
        length = snprintf(line + *n, room, "%s%s %d", blank, label, x);
        break;
    }
    case FIELD_INT64: {
        int64_t x = *(const int64_t *)(const void *)at;

        if (x < 0)
            return 0;
        length = snprintf(line + *n, room, "%s%s %" PRId64, blank, label, x);
        break;
    }
    case FIELD_ID:
        length = snprintf(line + *n, room, "%s%s %016" PRIx64, blank, label,
                          *(const uint64_t *)(const void *)at);
        break;
    case FIELD_TEXT:
        if (!is_word(at, strnlen(at, field->cap)) || strnlen(at, field->cap) == field->cap)
            return 0;
        length = snprintf(line + *n, room, "%s%s %s", blank, label, at);
        break;
    case FIELD_FLAG:
        if (*(const int *)(const void *)at != 0)
            length = snprintf(line + *n, room, " %s", label);
        break;
    case FIELD_END: break;
    }
    if (length < 0 || (size_t)length >= room)
        return 0;
    *n += (size_t)length;
    return 1;
}

size_t ek_message_write(const ek_worker_message *m, char *line)
{
    size_t n = 0;

    line[0] = '\0';
    if ((unsigned)m->kind >= EK_MESSAGES)
        return 0;
    n = (size_t)snprintf(line, EK_MESSAGE_CAP, "%c%s", line_types[EK_LINE_MESSAGE],
                         formats[m->kind].name);
    for (int i = 0; i < FIELDS_MAX; i++)
        if (!write_field(&formats[m->kind].fields[i], m, line, &n)) {
            line[0] = '\0';
            return 0;
        }
    line[n++] = '\n';
    line[n] = '\0';
    return n;
}

void ek_message_send(const ek_worker_message *m, FILE *f)
{
    char line[EK_MESSAGE_CAP];

    if (ek_message_write(m, line) == 0)
        return;
    fputs(line, f);
    fflush(f);
}

/* Returns 0 on a syntax error. */
static int read_field(const message_field *field, int required, unread_text *r,
                      ek_worker_message *m)
{
    char *at = (char *)m + field->offset;
    const char *word;
    int64_t x;
    size_t n;

    if (field->type == FIELD_FLAG) {
        *(int *)(void *)at = take_literal(r, field->label);
        return 1;
    }
    if (field->label != NULL && !take_literal(r, field->label))
        return !required;
    n = take_word(r, &word);
    if (field->type == FIELD_ID)
        return read_id(word, n, (uint64_t *)(void *)at);
    if (field->type == FIELD_TEXT) {
        if (n >= field->cap || !is_word(word, n))
            return 0;
        memcpy(at, word, n); /* the rest is zero */
        return 1;
    }
    x = number_of(word, n, field->type == FIELD_INT ? INT_MAX : INT64_MAX);
    if (x < 0)
        return 0;
    if (field->type == FIELD_INT)
        *(int *)(void *)at = (int)x;
    else
        *(int64_t *)(void *)at = x;
    return 1;
}

int ek_message_read(const char *text, size_t n, ek_worker_message *m)
{
    unread_text r = {text, text + n};
    int kind = 0;

    memset(m, 0, sizeof(*m));
    while (kind < EK_MESSAGES && !take_literal(&r, formats[kind].name))
        kind++;
    if (kind == EK_MESSAGES)
        return 0;
    m->kind = (ek_message_kind)kind;
    for (int i = 0; i < FIELDS_MAX && formats[kind].fields[i].type != FIELD_END; i++)
        if (!read_field(&formats[kind].fields[i], i < formats[kind].required, &r, m))
            return 0;
    return r.at == r.end;
}

/* --- internal commands ------------------------------------------------------------------------ */

/* Their names, and how many arguments they have behind it. */
static const struct {
    const char *name;
    int argc;
} internal[EK_INTERNAL_KINDS] = {[EK_INTERNAL_RESERVE] = {"reserve", 6},
                                 [EK_INTERNAL_FREE] = {"reserve", 2},
                                 [EK_INTERNAL_LINKS] = {"links", 0},
                                 [EK_INTERNAL_GUARD] = {"guard", 1}};

/* Whether all members that belong to the kind are valid. */
static int is_valid_call(const ek_internal_call *c)
{
    switch (c->kind) {
    case EK_INTERNAL_RESERVE:
        return c->host >= 0 && c->ranks > 0 && c->ranks <= EK_INTERNAL_RANKS_MAX &&
               is_word(c->blocks, strnlen(c->blocks, sizeof(c->blocks))) &&
               strnlen(c->blocks, sizeof(c->blocks)) < sizeof(c->blocks) && c->out.s[0] == '/';
    case EK_INTERNAL_FREE:
    case EK_INTERNAL_LINKS: return 1;
    case EK_INTERNAL_GUARD:
        return c->id[EK_RANDOM_NAME_CHARS] == '\0' && ek_random_name_is_at(c->id);
    case EK_INTERNAL_KINDS: break;
    }
    return 0;
}

/* Appends an argument. */
EK_PRINTF(2, 3) static void add_argument(ek_internal_args *a, const char *fmt, ...)
{
    va_list list;

    a->argv[a->argc++] = a->text + a->bytes;
    va_start(list, fmt);
    a->bytes += (size_t)vsnprintf(a->text + a->bytes, sizeof(a->text) - a->bytes, fmt, list) + 1;
    va_end(list);
}

int ek_internal_is(const char *name)
{
    for (int k = 0; k < EK_INTERNAL_KINDS; k++)
        if (strcmp(name, internal[k].name) == 0)
            return 1;
    return 0;
}

ek_status ek_internal_write(const ek_internal_call *c, ek_internal_args *out)
{
    *out = (ek_internal_args){0};
    EK_REQUIRE(is_valid_call(c), EK_EINVAL, "arguments of an internal command are not valid");
    add_argument(out, "%s", internal[c->kind].name);
    if (c->kind == EK_INTERNAL_RESERVE || c->kind == EK_INTERNAL_FREE) {
        add_argument(out, "%016" PRIx64, c->run);
        add_argument(out, "%016" PRIx64, c->supervisor_id);
    }
    if (c->kind == EK_INTERNAL_RESERVE) {
        add_argument(out, "%d", c->host);
        add_argument(out, "%" PRId64, c->ranks);
        add_argument(out, "%s", c->blocks);
        add_argument(out, "%s", c->out.s);
    }
    if (c->kind == EK_INTERNAL_GUARD)
        add_argument(out, "%s", c->id);
    return EK_OK;
}

/* Returns 0 if there is no room. */
static int copy_argument(const char *arg, char *out, size_t cap)
{
    return (size_t)snprintf(out, cap, "%s", arg) < cap;
}

/* What _RESERVE and _FREE have in common, and the rest of _RESERVE. */
static int read_reserve(char *const *arg, ek_internal_call *c)
{
    if (!read_id(arg[0], strlen(arg[0]), &c->run) ||
        !read_id(arg[1], strlen(arg[1]), &c->supervisor_id))
        return 0;
    if (c->kind == EK_INTERNAL_FREE)
        return 1;
    c->host = (int)number_of(arg[2], strlen(arg[2]), INT_MAX);
    c->ranks = number_of(arg[3], strlen(arg[3]), EK_INTERNAL_RANKS_MAX);
    return copy_argument(arg[4], c->blocks, sizeof(c->blocks)) &&
           copy_argument(arg[5], c->out.s, sizeof(c->out.s));
}

int ek_internal_read(int argc, char *const *argv, ek_internal_call *c)
{
    int kind = 0;

    *c = (ek_internal_call){0};
    while (kind < EK_INTERNAL_KINDS &&
           (argc != internal[kind].argc + 1 || strcmp(argv[0], internal[kind].name) != 0))
        kind++;
    c->kind = (ek_internal_kind)kind;
    switch (c->kind) {
    case EK_INTERNAL_RESERVE:
    case EK_INTERNAL_FREE:
        if (!read_reserve(argv + 1, c))
            return 0;
        break;
    case EK_INTERNAL_GUARD:
        if (!copy_argument(argv[1], c->id, sizeof(c->id)))
            return 0;
        break;
    case EK_INTERNAL_LINKS:
    case EK_INTERNAL_KINDS: break;
    }
    return is_valid_call(c);
}
