/* Lines, messages and the environment variable between workers and supervisor. */
#include "supervisor/protocol.h"

#include "base/utf8.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* --- words ------------------------------------------------------------------------------------ */

/* The part of a text that is not read yet. */
typedef struct {
    const char *at, *end;
} unread_text;

/* Takes the next word, up to a blank, which is taken, too; returns its bytes, 0: none. */
static size_t take_word(unread_text *r, const char **word)
{
    const char *blank = memchr(r->at, ' ', (size_t)(r->end - r->at));
    const char *stop = blank != NULL ? blank : r->end;

    *word = r->at;
    if (blank != NULL && blank + 1 == r->end)
        return 0; /* a blank at the end */
    r->at = blank != NULL ? blank + 1 : r->end;
    return (size_t)(stop - *word);
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

/* A number of digits, at most `most`; -1: it is none. */
static int64_t number_of(const char *word, size_t n, int64_t most)
{
    int64_t x = 0;

    for (size_t i = 0; i < n; i++) {
        int digit = word[i] - '0';

        if (digit < 0 || digit > 9 || x > (most - digit) / 10)
            return -1;
        x = 10 * x + digit;
    }
    return n > 0 ? x : -1;
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

/* --- environment ------------------------------------------------------------------------------ */

ek_status ek_launched_set(const ek_launched *l)
{
    char value[96];
    int n = snprintf(value, sizeof(value), "%d%s", l->ranks, l->live ? " live" : "");

    if (l->elastic)
        n += snprintf(value + n, sizeof(value) - (size_t)n, " elastic=%016" PRIx64,
                      l->supervisor_id);
    if (l->n_draining > 0)
        snprintf(value + n, sizeof(value) - (size_t)n, " draining=%d", l->n_draining);
    EK_REQUIRE(setenv(EK_LAUNCHED_VARIABLE, value, 1) == 0, EK_ENOMEM,
               "no memory for an environment variable");
    return EK_OK;
}

/* The value of a word "KEY=VALUE", or NULL. */
static const char *value_of(const char *word, size_t n, const char *key, size_t *bytes)
{
    size_t skip = strlen(key);

    if (n <= skip || memcmp(word, key, skip) != 0)
        return NULL;
    *bytes = n - skip;
    return word + skip;
}

static int read_id(const char *text, size_t n, uint64_t *id)
{
    char digits[17] = "";

    if (n == 0 || n >= sizeof(digits) || strspn(text, "0123456789abcdef") < n)
        return 0;
    memcpy(digits, text, n);
    *id = strtoull(digits, NULL, 16);
    return 1;
}

/* One word behind the number of ranks. */
static int read_setting(const char *word, size_t n, ek_launched *l)
{
    const char *value;
    size_t bytes;

    if (n == 4 && memcmp(word, "live", n) == 0) {
        l->live = 1;
        return 1;
    }
    if ((value = value_of(word, n, "elastic=", &bytes)) != NULL) {
        l->elastic = 1;
        return read_id(value, bytes, &l->supervisor_id);
    }
    if ((value = value_of(word, n, "draining=", &bytes)) != NULL) {
        l->n_draining = (int)number_of(value, bytes, INT_MAX);
        return l->n_draining >= 0;
    }
    return 0;
}

ek_launched ek_launched_read(const char *text)
{
    static const ek_launched none;
    ek_launched l = {0};
    unread_text r = {text, text != NULL ? text + strlen(text) : NULL};
    const char *word;
    size_t n;

    if (text == NULL)
        return none;
    n = take_word(&r, &word);
    l.ranks = (int)number_of(word, n, INT_MAX);
    if (l.ranks <= 0)
        return none;
    while (r.at < r.end) {
        n = take_word(&r, &word);
        if (n == 0 || !read_setting(word, n, &l))
            return none;
    }
    return l;
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
    [EK_MESSAGE_LACKING] = {"lacking", 0, {{FIELD_END, NULL, 0, 0}}},
    [EK_MESSAGE_MEMORY] =
        {"memory",
         2,
         {{FIELD_TEXT, NULL, offsetof(ek_worker_message, memory.run), EK_MESSAGE_RUN_CAP},
          {FIELD_TEXT, NULL, offsetof(ek_worker_message, memory.blocks), EK_MESSAGE_BLOCKS_CAP}}},
    [EK_MESSAGE_NOTICE] = {"notice",
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
