/* Oniguruma patterns on PCRE2: rewriting, compiling, matching. */
#include "data/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <ctype.h>
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

enum { MATCH_LIMIT = 10000000, JIT_STACK_MAX = 8 << 20, HEAP_LIMIT_KIB = 64 << 10 };

struct ek_pattern {
    pcre2_code *code;
};

struct ek_matcher {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

/* The rewritten pattern. */
typedef struct {
    const char *in;
    size_t n, at;
    char *out;
    size_t used;
    int in_class;
} rewrite;

/* Maximum length that one character becomes. */
enum { GROWTH = 32 };

static void append_bytes(rewrite *r, const char *s, size_t n)
{
    memcpy(r->out + r->used, s, n);
    r->used += n;
}

static void append_text(rewrite *r, const char *s)
{
    append_bytes(r, s, strlen(s));
}

/* \p{Name}: PCRE2 takes a script name to mean Script_Extensions, Oniguruma plain Script. */
static ek_status rewrite_property(rewrite *r)
{
    static const char *const same[] = {"Any", "Alphabetic", "White_Space", "Uppercase",
                                       "Lowercase"};
    const char *name = r->in + r->at + 3, *close;
    size_t left = r->n - r->at, n;
    int script;

    EK_REQUIRE(left > 3 && r->in[r->at + 2] == '{', EK_EUNSUPPORTED,
               "the pattern has \\%c without braces at character %zu; write \\%c{Name}",
               r->in[r->at + 1], r->at, r->in[r->at + 1]);
    close = memchr(name, '}', left - 3);
    EK_REQUIRE(close != NULL, EK_EFORMAT, "the pattern has an unclosed \\p{ at character %zu",
               r->at);
    n = (size_t)(close - name);
    script =
        n > 2 && name[0] != '^' && memchr(name, ':', n) == NULL && memchr(name, '=', n) == NULL;
    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++)
        if (n == strlen(same[i]) && memcmp(name, same[i], n) == 0)
            script = 0;
    append_bytes(r, r->in + r->at, 3);
    if (script)
        append_text(r, "sc:");
    append_bytes(r, name, n + 1);
    r->at += n + 4;
    return EK_OK;
}

static ek_status rewrite_escape(rewrite *r)
{
    char c;

    EK_REQUIRE(r->at + 1 < r->n, EK_EFORMAT, "the pattern ends in a single backslash");
    c = r->in[r->at + 1];
    if (c == 'p' || c == 'P')
        return rewrite_property(r);
    r->at += 2;
    if (c == 's')
        append_text(r, "\\p{wspace}");
    else if (c == 'S')
        append_text(r, "\\P{wspace}");
    else if (c == 'w')
        append_text(r, r->in_class ? "\\p{L}\\p{M}\\p{Nd}\\p{Pc}" : "[\\p{L}\\p{M}\\p{Nd}\\p{Pc}]");
    else if (strchr("rntdDfv", c) != NULL && c != '\0') {
        /* \v is one character for Oniguruma, a class for PCRE2 */
        append_text(r, "\\");
        append_bytes(r, c == 'v' ? "x0b" : &c, c == 'v' ? 3 : 1);
    } else if (ispunct((unsigned char)c) || c == ' ') {
        append_bytes(r, r->in + r->at - 2, 2);
    } else if (c == 'x' && r->at < r->n && r->in[r->at] == '{') {
        append_text(r, "\\x");
    } else {
        return EK_FAIL(EK_EUNSUPPORTED,
                       "the pattern has the escape \\%c at character %zu, which is not supported",
                       c, r->at - 2);
    }
    return EK_OK;
}

static ek_status rewrite_class_char(rewrite *r)
{
    char c = r->in[r->at];
    int pair = r->at + 1 < r->n && r->in[r->at + 1] == '&' && c == '&';

    EK_REQUIRE(c != '[' && !pair, EK_EUNSUPPORTED,
               "the pattern has %s at character %zu, which is not supported",
               pair ? "a class intersection (&&)" : "a class inside a class", r->at);
    if (c == ']')
        r->in_class = 0;
    append_bytes(r, &c, 1);
    r->at++;
    return EK_OK;
}

/* After "(?": only groups with the same meaning in both engines. */
static ek_status check_group(const rewrite *r)
{
    static const char *const known[] = {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};

    if (r->at + 1 >= r->n || (r->in[r->at + 1] != '?' && r->in[r->at + 1] != '*'))
        return EK_OK;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (r->n - r->at >= strlen(known[i]) &&
            memcmp(r->in + r->at, known[i], strlen(known[i])) == 0)
            return EK_OK;
    return EK_FAIL(EK_EUNSUPPORTED,
                   "the pattern has a group (%c at character %zu of a kind that is not supported",
                   r->in[r->at + 1], r->at);
}

/* {n,m}: Oniguruma has no possessive form of it, and reads {,m} as {0,m}. */
static ek_status check_braces(const rewrite *r)
{
    const char *p = r->in + r->at, *close = memchr(p, '}', r->n - r->at);

    EK_REQUIRE(r->at + 1 < r->n && p[1] != ',', EK_EUNSUPPORTED,
               "the pattern has {,m} at character %zu, which is not supported", r->at);
    EK_REQUIRE(close == NULL || close + 1 >= r->in + r->n || close[1] != '+', EK_EUNSUPPORTED,
               "the pattern has {n,m}+ at character %zu, which is not supported", r->at);
    return EK_OK;
}

static ek_status rewrite_pattern(rewrite *r)
{
    while (r->at < r->n) {
        char c = r->in[r->at];

        if (c == '\\') {
            EK_TRY(rewrite_escape(r));
            continue;
        }
        if (r->in_class) {
            EK_TRY(rewrite_class_char(r));
            continue;
        }
        if (c == '(')
            EK_TRY(check_group(r));
        if (c == '{')
            EK_TRY(check_braces(r));
        append_bytes(r, &c, 1);
        r->at++;
        if (c == '[') {
            r->in_class = 1;
            if (r->at < r->n && r->in[r->at] == '^')
                append_bytes(r, &r->in[r->at++], 1);
        }
    }
    return EK_OK;
}

static ek_status compile_pattern(const char *text, size_t n, uint32_t options, pcre2_code **out)
{
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    unsigned char reason[128] = "";
    PCRE2_SIZE where = 0;
    pcre2_code *code;
    int error = 0;

    EK_REQUIRE(context != NULL, EK_ENOMEM, "no memory for compiling a pattern");
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_set_parens_nest_limit(context, 100);
    code = pcre2_compile((PCRE2_SPTR)text, n, options, &error, &where, context);
    pcre2_compile_context_free(context);
    if (code == NULL) {
        pcre2_get_error_message(error, reason, sizeof(reason));
        return EK_FAIL(EK_EFORMAT, "the pattern cannot be compiled at character %zu: %s", where,
                       (const char *)reason);
    }
    (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); /* without JIT it is interpreted */
    *out = code;
    return EK_OK;
}

ek_status ek_pattern_create(const char *text, size_t n, int literal, ek_pattern **out)
{
    uint32_t options = PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C;
    ek_pattern *p = NULL;
    rewrite r = {.in = text, .n = n};
    ek_status st = EK_OK;

    EK_REQUIRE(n > 0 && n <= 65536, EK_EFORMAT,
               "the pattern has %zu bytes; 1 to 65536 are supported", n);
    r.out = malloc(n * GROWTH);
    p = calloc(1, sizeof(*p));
    EK_REQUIRE_OUT(r.out != NULL && p != NULL, EK_ENOMEM, "no memory for a pattern of %zu bytes",
                   n);
    if (literal) {
        EK_TRY_OUT(compile_pattern(text, n, PCRE2_UTF | PCRE2_LITERAL, &p->code));
    } else {
        EK_TRY_OUT(rewrite_pattern(&r));
        EK_TRY_OUT(compile_pattern(r.out, r.used, options | PCRE2_UCP | PCRE2_MULTILINE, &p->code));
    }
    *out = p;
    p = NULL;
out:
    free(r.out);
    ek_pattern_destroy(&p);
    return st;
}

void ek_pattern_destroy(ek_pattern **p)
{
    if (*p == NULL)
        return;
    pcre2_code_free((*p)->code);
    free(*p);
    *p = NULL;
}

ek_status ek_matcher_create(ek_matcher **out)
{
    ek_matcher *m = calloc(1, sizeof(*m));
    ek_status st = EK_OK;

    EK_REQUIRE_OUT(m != NULL, EK_ENOMEM, "no memory for a matcher");
    m->data = pcre2_match_data_create(32, NULL);
    m->context = pcre2_match_context_create(NULL);
    EK_REQUIRE_OUT(m->data != NULL && m->context != NULL, EK_ENOMEM, "no memory for a matcher");
    m->stack = pcre2_jit_stack_create(32 << 10, JIT_STACK_MAX, NULL);
    if (m->stack != NULL) /* NULL where PCRE2 was built without JIT */
        pcre2_jit_stack_assign(m->context, NULL, m->stack);
    pcre2_set_match_limit(m->context, MATCH_LIMIT);
    pcre2_set_heap_limit(m->context, HEAP_LIMIT_KIB);
    *out = m;
    m = NULL;
out:
    ek_matcher_destroy(&m);
    return st;
}

void ek_matcher_destroy(ek_matcher **m)
{
    if (*m == NULL)
        return;
    pcre2_match_data_free((*m)->data);
    pcre2_match_context_free((*m)->context);
    pcre2_jit_stack_free((*m)->stack);
    free(*m);
    *m = NULL;
}

ek_status ek_pattern_find(const ek_pattern *p, ek_matcher *m, const unsigned char *text, size_t n,
                          size_t from, int *found, size_t *start, size_t *end)
{
    const PCRE2_SIZE *span;
    int rc = pcre2_match(p->code, text, n, from, PCRE2_NO_UTF_CHECK, m->data, m->context);

    *found = rc >= 0;
    if (rc == PCRE2_ERROR_NOMATCH)
        return EK_OK;
    EK_REQUIRE(rc >= 0, EK_EFORMAT,
               "the pre-tokenizer's pattern gave up (PCRE2 error %d) at byte %zu of a text of %zu "
               "bytes; it backtracks too much for this text",
               rc, from, n);
    span = pcre2_get_ovector_pointer(m->data);
    *start = span[0];
    *end = span[1];
    return EK_OK;
}
