/* A scanner over one line: an explicit stack of open brackets instead of recursion. */
#include "data/jsonl.h"

#include "base/utf8.h"

#include <stdint.h>
#include <string.h>

enum { DEPTH_MAX = 64 };

typedef struct {
    const char *p, *end, *begin;
    const char *what; /* the first fault, at p */
} scanner;

static int fail_at(scanner *s, const char *what)
{
    if (s->what == NULL)
        s->what = what;
    return 0;
}

static void skip_space(scanner *s)
{
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\t' || *s->p == '\r' || *s->p == '\n'))
        s->p++;
}

static int accept_char(scanner *s, char c)
{
    skip_space(s);
    if (s->p == s->end || *s->p != c)
        return 0;
    s->p++;
    return 1;
}

static int hex4(scanner *s, uint32_t *out)
{
    *out = 0;
    for (int i = 0; i < 4; i++, s->p++) {
        char c = s->p < s->end ? *s->p : '\0', low = (char)(c | 0x20);

        if (c >= '0' && c <= '9')
            *out = *out << 4 | (uint32_t)(c - '0');
        else if (low >= 'a' && low <= 'f')
            *out = *out << 4 | (uint32_t)(low - 'a' + 10);
        else
            return fail_at(s, "an escape \\u without four hexadecimal digits");
    }
    return 1;
}

/* Scans what follows \u; a pair of surrogates is one code point. */
static int scan_code_point(scanner *s, uint32_t *cp)
{
    uint32_t low;

    if (!hex4(s, cp))
        return 0;
    if (*cp >= 0xD800 && *cp < 0xDC00 && s->end - s->p >= 6 && s->p[0] == '\\' && s->p[1] == 'u') {
        scanner ahead = *s;

        ahead.p += 2;
        if (!hex4(&ahead, &low))
            return fail_at(s, ahead.what);
        if (low >= 0xDC00 && low < 0xE000) {
            s->p = ahead.p;
            *cp = 0x10000 + ((*cp - 0xD800) << 10) + (low - 0xDC00);
        }
    }
    if (*cp >= 0xD800 && *cp < 0xE000)
        *cp = 0xFFFD;
    return 1;
}

/* Sink of a string's bytes: stored in memory, or compared with an expected string. */
typedef struct {
    char *out;          /* NULL: not stored */
    const char *expect; /* NULL: not compared */
    size_t expect_bytes;
    size_t n;
    int differs;
} sink;

static void emit_bytes(sink *k, const void *bytes, size_t n)
{
    if (k->out != NULL)
        memcpy(k->out + k->n, bytes, n);
    if (k->expect != NULL)
        k->differs |= k->n + n > k->expect_bytes || memcmp(k->expect + k->n, bytes, n) != 0;
    k->n = k->differs ? 0 : k->n + n;
}

/* Scans what follows a backslash. */
static int scan_escape(scanner *s, sink *k)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    unsigned char utf8[4];
    const char *name;
    uint32_t cp;

    name = s->p < s->end && *s->p != '\0' ? strchr(names, *s->p) : NULL;
    if (name != NULL) {
        s->p++;
        emit_bytes(k, values + (name - names), 1);
        return 1;
    }
    if (s->p == s->end || *s->p != 'u')
        return fail_at(s, "an unknown escape");
    s->p++;
    if (!scan_code_point(s, &cp))
        return 0;
    emit_bytes(k, utf8, ek_utf8_put(cp, utf8));
    return 1;
}

/* Scans a string after its opening quote. */
static int scan_string(scanner *s, sink *k)
{
    for (;;) {
        const char *from = s->p;

        while (s->p < s->end && *s->p != '"' && *s->p != '\\' && (unsigned char)*s->p >= 0x20)
            s->p++;
        emit_bytes(k, from, (size_t)(s->p - from));
        if (s->p == s->end)
            return fail_at(s, "a string without its closing quote");
        if ((unsigned char)*s->p < 0x20)
            return fail_at(s, "a control character inside a string");
        if (*s->p++ == '"')
            return 1;
        if (!scan_escape(s, k))
            return 0;
    }
}

static int scan_digits(scanner *s)
{
    const char *from = s->p;

    while (s->p < s->end && *s->p >= '0' && *s->p <= '9')
        s->p++;
    return s->p > from || fail_at(s, "a number without digits");
}

static int scan_number(scanner *s)
{
    if (*s->p == '-')
        s->p++;
    if (s->p < s->end && *s->p == '0')
        s->p++;
    else if (!scan_digits(s))
        return 0;
    if (s->p < s->end && *s->p == '.') {
        s->p++;
        if (!scan_digits(s))
            return 0;
    }
    if (s->p < s->end && (*s->p == 'e' || *s->p == 'E')) {
        s->p++;
        if (s->p < s->end && (*s->p == '+' || *s->p == '-'))
            s->p++;
        return scan_digits(s);
    }
    return 1;
}

static int scan_word(scanner *s, const char *word)
{
    size_t n = strlen(word);

    if ((size_t)(s->end - s->p) < n || memcmp(s->p, word, n) != 0)
        return fail_at(s, "a value that JSON does not have");
    s->p += n;
    return 1;
}

/* A string, number, true, false or null. */
static int scan_scalar(scanner *s)
{
    sink nowhere = {.n = 0};

    if (accept_char(s, '"'))
        return scan_string(s, &nowhere);
    if (s->p == s->end)
        return fail_at(s, "the line ends where a value should be");
    switch (*s->p) {
    case 't': return scan_word(s, "true");
    case 'f': return scan_word(s, "false");
    case 'n': return scan_word(s, "null");
    default: break;
    }
    if (*s->p != '-' && (*s->p < '0' || *s->p > '9'))
        return fail_at(s, "a value that JSON does not have");
    return scan_number(s);
}

/* A key and its colon. */
static int scan_key(scanner *s, sink *k)
{
    if (!accept_char(s, '"'))
        return fail_at(s, "no key where one should be");
    return scan_string(s, k) && (accept_char(s, ':') || fail_at(s, "no colon after a key"));
}

/* Any value, to its end. */
static int skip_value(scanner *s)
{
    char open[DEPTH_MAX];
    int depth = 0;

    for (;;) {
        sink nowhere = {.n = 0};
        int opened = 0;

        if (accept_char(s, '{') || accept_char(s, '[')) {
            if (depth == DEPTH_MAX)
                return fail_at(s, "values nested more than 64 deep");
            open[depth++] = s->p[-1] == '{' ? '}' : ']';
            opened = 1;
        } else if (!scan_scalar(s)) {
            return 0;
        }
        while (depth > 0 && accept_char(s, open[depth - 1])) {
            depth--;
            opened = 0;
        }
        if (depth == 0)
            return 1;
        if (!opened && !accept_char(s, ','))
            return fail_at(s, "neither a comma nor a closing bracket after a value");
        if (open[depth - 1] == '}' && !scan_key(s, &nowhere))
            return 0;
    }
}

/* Scans the value of the field: a string into text; the position of any other value in *other. */
static int scan_field(scanner *s, char *text, size_t *bytes, const char **other)
{
    sink value = {.out = text};

    *other = NULL;
    if (!accept_char(s, '"')) {
        *other = s->p;
        return skip_value(s);
    }
    if (!scan_string(s, &value))
        return 0;
    *bytes = value.n;
    return 1;
}

static int scan_object(scanner *s, const char *field, char *text, size_t *bytes, int *found)
{
    const char *other = NULL; /* the last of duplicate keys counts */

    if (!accept_char(s, '{'))
        return fail_at(s, "not a JSON object");
    if (accept_char(s, '}'))
        return 1;
    do {
        sink key = {.expect = field, .expect_bytes = strlen(field)};

        if (!scan_key(s, &key))
            return 0;
        if (key.differs || key.n != key.expect_bytes) {
            if (!skip_value(s))
                return 0;
            continue;
        }
        if (!scan_field(s, text, bytes, &other))
            return 0;
        *found = 1;
    } while (accept_char(s, ','));
    if (!accept_char(s, '}'))
        return fail_at(s, "neither a comma nor a closing bracket after a value");
    if (other == NULL)
        return 1;
    s->p = other;
    return fail_at(s, "the field is not a string");
}

int ek_jsonl_text(const char *line, size_t n, const char *field, char *text, size_t *bytes,
                  ek_jsonl_fault *fault)
{
    scanner s = {.p = line, .end = line + n, .begin = line};
    int found = 0;

    *fault = (ek_jsonl_fault){NULL, 0};
    if (scan_object(&s, field, text, bytes, &found)) {
        skip_space(&s);
        if (s.p < s.end)
            (void)fail_at(&s, "data after the object");
        else if (found)
            return 1;
    }
    if (s.what != NULL)
        *fault = (ek_jsonl_fault){s.what, (size_t)(s.p - s.begin) + 1};
    else
        fault->what = "the field is missing";
    return 0;
}

int ek_jsonl_is_blank(const char *line, size_t n)
{
    scanner s = {.p = line, .end = line + n, .begin = line};

    skip_space(&s);
    return s.p == s.end;
}
