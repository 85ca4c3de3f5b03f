/* Lines to instances, instances to positions, positions to nodes. */
#include "sim/failure_trace.h"

#include "base/file.h"

#include <stdlib.h>
#include <string.h>

enum { FILE_BYTES_MAX = 64 << 20, NAME_SHOWN = 64 };

static const int64_t ms_max = INT64_C(1) << 53;

/* A line; instance: the index of its name. */
typedef struct {
    int64_t ms;
    int32_t instance, comes;
} record;

/* A name, and where it is seen in the text. */
typedef struct {
    const char *at;
    int32_t length, instance;
} name_ref;

typedef struct {
    const char *file;
    record *records; /* [n] */
    name_ref *names; /* [n] of the records, by line, then sorted */
    int64_t n;
    int32_t instances;
    int32_t *place_of; /* [instances] position; -1: none */
    int64_t *since;    /* [instances] the record with which it came; -1: it is gone */
    int32_t *vacant;   /* queue of positions; each line adds one at most */
} trace_reader;

/* --- lines ------------------------------------------------------------------------------------ */

typedef struct {
    const char *at, *end;
} piece;

static int is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

static piece trim(piece p)
{
    while (p.at < p.end && is_space(*p.at))
        p.at++;
    while (p.at < p.end && is_space(p.end[-1]))
        p.end--;
    return p;
}

/* The piece up to `stop`, which is passed, or to the end. */
static piece cut(piece *rest, char stop)
{
    const char *at = memchr(rest->at, stop, (size_t)(rest->end - rest->at));
    piece p = {rest->at, at != NULL ? at : rest->end};

    rest->at = at != NULL ? at + 1 : rest->end;
    return p;
}

static int is_word(piece p, const char *word)
{
    size_t n = strlen(word);

    return (size_t)(p.end - p.at) == n && memcmp(p.at, word, n) == 0;
}

static int read_ms(piece p, int64_t *ms)
{
    *ms = 0;
    for (; p.at < p.end && *p.at >= '0' && *p.at <= '9' && *ms < ms_max; p.at++)
        *ms = *ms * 10 + (*p.at - '0');
    return p.at == p.end && *ms < ms_max;
}

static ek_status read_line(trace_reader *t, piece line, int64_t number)
{
    piece rest = line, ms = trim(cut(&rest, ',')), what = trim(cut(&rest, ',')), name = trim(rest);
    record *r = &t->records[t->n];

    r->comes = is_word(what, "add");
    EK_REQUIRE(ms.at < ms.end && read_ms(ms, &r->ms) && (r->comes || is_word(what, "remove")) &&
                   name.at < name.end && name.end - name.at < INT32_MAX &&
                   memchr(name.at, ',', (size_t)(name.end - name.at)) == NULL,
               EK_EFORMAT, "%s: line %lld: expected MILLISECONDS,add|remove,NAME", t->file,
               (long long)number);
    EK_REQUIRE(t->n == 0 || r->ms >= r[-1].ms, EK_EFORMAT, "%s: line %lld: times must not decrease",
               t->file, (long long)number);
    t->names[t->n] = (name_ref){name.at, (int32_t)(name.end - name.at), (int32_t)t->n};
    t->n++;
    return EK_OK;
}

static ek_status read_lines(trace_reader *t, piece text)
{
    for (int64_t number = 1; text.at < text.end; number++) {
        piece line = cut(&text, '\n'), used = trim(cut(&line, '#'));

        if (used.at < used.end)
            EK_TRY(read_line(t, used, number));
    }
    EK_REQUIRE(t->n > 0, EK_EFORMAT, "%s: no instance is added", t->file);
    return EK_OK;
}

/* --- instances -------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    const name_ref *x = a, *y = b;
    int32_t n = x->length < y->length ? x->length : y->length;
    int order = memcmp(x->at, y->at, (size_t)n);

    if (order == 0)
        order = (x->length > y->length) - (x->length < y->length);
    return order != 0 ? order : (x->instance > y->instance) - (x->instance < y->instance);
}

static int same_name(const name_ref *x, const name_ref *y)
{
    return x->length == y->length && memcmp(x->at, y->at, (size_t)x->length) == 0;
}

/* Numbers the names; an instance comes and goes in turn. */
static ek_status number_instances(trace_reader *t)
{
    qsort(t->names, (size_t)t->n, sizeof(*t->names), by_name);
    for (int64_t i = 0; i < t->n; i++) {
        const name_ref *name = &t->names[i];
        record *r = &t->records[name->instance];
        int first = i == 0 || !same_name(name, name - 1);
        int shown = name->length < NAME_SHOWN ? (int)name->length : NAME_SHOWN;

        EK_REQUIRE(r->comes == (first || !t->records[name[-1].instance].comes), EK_EFORMAT,
                   "%s: %.*s is %s at %lld ms, and is %s already", t->file, shown, name->at,
                   r->comes ? "added" : "removed", (long long)r->ms, r->comes ? "there" : "gone");
        t->instances += first;
        r->instance = t->instances - 1;
    }
    return EK_OK;
}

/* The number of lines after which most instances are up, at first. */
static int64_t find_peak(const trace_reader *t)
{
    int64_t up = 0, most = 0, peak = 0;

    for (int64_t i = 0; i < t->n; i++) {
        up += t->records[i].comes ? 1 : -1;
        if (up > most) {
            most = up;
            peak = i + 1;
        }
    }
    return peak;
}

/* --- positions -------------------------------------------------------------------------------- */

/* Gives positions to the instances that are up after the first `peak` lines; returns how many. */
static int32_t fill_positions(trace_reader *t, int64_t peak)
{
    int32_t n = 0;

    for (int32_t i = 0; i < t->instances; i++)
        t->place_of[i] = -1;
    for (int64_t i = 0; i < peak; i++)
        t->since[t->records[i].instance] = t->records[i].comes ? i : -1;
    for (int64_t i = 0; i < peak; i++)
        if (t->since[t->records[i].instance] == i)
            t->place_of[t->records[i].instance] = n++;
    return n;
}

/* The node at a position; -1: none. */
static int32_t node_at(const ek_failure_trace *out, int32_t place)
{
    int64_t node = ((int64_t)place * out->nodes + out->instances - 1) / out->instances;

    return node < out->nodes && node * out->instances / out->nodes == place ? (int32_t)node : -1;
}

static void add_event(ek_failure_trace *out, double at_s, int32_t place, int back)
{
    int32_t node = node_at(out, place);

    if (node >= 0)
        out->events[out->n++] = (ek_failure_event){at_s, node, back};
}

/* Follows the lines after the first `peak`.  There are never more instances than positions. */
static void follow(trace_reader *t, int64_t peak, ek_failure_trace *out)
{
    int64_t first = 0, end = 0; /* of the queue */
    int64_t begin = t->records[peak - 1].ms;

    for (int64_t i = peak; i < t->n; i++) {
        const record *r = &t->records[i];
        int32_t *place = &t->place_of[r->instance];

        if (r->comes)
            *place = t->vacant[first++];
        else
            t->vacant[end++] = *place;
        add_event(out, (double)(r->ms - begin) * 1e-3, *place, r->comes);
    }
    out->seconds = (double)(t->records[t->n - 1].ms - begin) * 1e-3;
}

/* --- files ------------------------------------------------------------------------------------ */

static ek_status allocate(trace_reader *t, size_t lines, ek_failure_trace *out)
{
    t->records = calloc(lines, sizeof(*t->records));
    t->names = calloc(lines, sizeof(*t->names));
    t->place_of = calloc(lines, sizeof(*t->place_of));
    t->vacant = calloc(lines, sizeof(*t->vacant));
    t->since = calloc(lines, sizeof(*t->since));
    out->events = calloc(lines, sizeof(*out->events));
    EK_REQUIRE(t->records != NULL && t->names != NULL && t->place_of != NULL && t->vacant != NULL &&
                   t->since != NULL && out->events != NULL,
               EK_ENOMEM, "%s: no memory for %zu lines", t->file, lines);
    return EK_OK;
}

static ek_status read_trace(trace_reader *t, piece text, ek_failure_trace *out)
{
    size_t lines = 1;
    int64_t peak;

    for (const char *c = text.at; c < text.end; c++)
        lines += *c == '\n';
    EK_TRY(allocate(t, lines, out));
    EK_TRY(read_lines(t, text));
    EK_TRY(number_instances(t));
    peak = find_peak(t);
    out->instances = fill_positions(t, peak);
    EK_REQUIRE(out->instances >= out->nodes, EK_EFORMAT,
               "%s: at most %d instances are up at once, for %d nodes", t->file,
               (int)out->instances, (int)out->nodes);
    follow(t, peak, out);
    return EK_OK;
}

ek_status ek_failure_trace_parse(const char *text, size_t bytes, const char *file, int32_t nodes,
                                 ek_failure_trace *out)
{
    trace_reader t = {.file = file};
    ek_status st;

    *out = (ek_failure_trace){.nodes = nodes};
    st = read_trace(&t, (piece){text, text + bytes}, out);
    free(t.records);
    free(t.names);
    free(t.place_of);
    free(t.vacant);
    free(t.since);
    return st;
}

ek_status ek_failure_trace_read(const char *path, int32_t nodes, ek_failure_trace *out)
{
    char *text = NULL;
    size_t bytes = 0;
    ek_status st;

    *out = (ek_failure_trace){.nodes = nodes};
    EK_TRY_OUT(ek_file_read(path, FILE_BYTES_MAX, &text, &bytes));
    EK_TRY_OUT(ek_failure_trace_parse(text, bytes, path, nodes, out));
out:
    free(text);
    return st;
}

void ek_failure_trace_free(ek_failure_trace *t)
{
    free(t->events);
    *t = (ek_failure_trace){0};
}
