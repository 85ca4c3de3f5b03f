/* Finding added tokens: candidates by first byte, then by narrowing a range of the sorted list. */
#include "data/added.h"

#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

static int by_text(const void *a, const void *b)
{
    const ek_added *x = a, *y = b;
    int c = memcmp(x->text, y->text, x->n < y->n ? x->n : y->n);

    return c != 0 ? c : x->n < y->n ? -1 : x->n > y->n;
}

ek_status ek_added_add(ek_added_set *s, const ek_added *token)
{
    ek_added *t;

    if (token->n == 0)
        return EK_OK;
    for (int64_t i = 0; i < s->n; i++)
        if (by_text(&s->tokens[i], token) == 0)
            return EK_OK;
    if (s->n == s->cap) {
        int64_t cap = s->cap * 2 + 16;
        ek_added *grown = realloc(s->tokens, (size_t)cap * sizeof(*grown));

        EK_REQUIRE(grown != NULL, EK_ENOMEM, "no memory for %lld added tokens", (long long)cap);
        s->tokens = grown;
        s->cap = cap;
    }
    if (token->single_word && s->word == NULL) {
        static const char word[] = "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}]";

        EK_TRY(ek_pattern_create(word, sizeof(word) - 1, 0, &s->word));
    }
    t = &s->tokens[s->n];
    *t = *token;
    t->text = malloc(token->n);
    EK_REQUIRE(t->text != NULL, EK_ENOMEM, "no memory for an added token");
    memcpy(t->text, token->text, token->n);
    s->n++;
    s->first[t->text[0]] = 1;
    return EK_OK;
}

void ek_added_sort(ek_added_set *s)
{
    if (s->n > 1)
        qsort(s->tokens, (size_t)s->n, sizeof(*s->tokens), by_text);
}

void ek_added_release(ek_added_set *s)
{
    for (int64_t i = 0; i < s->n; i++)
        free(s->tokens[i].text);
    free(s->tokens);
    ek_pattern_destroy(&s->word);
    memset(s, 0, sizeof(*s));
}

/* The first of tokens [low, high), which agree up to `depth`, whose byte at `depth` is at least c;
 * a token that ends at `depth` sorts first. */
static int64_t narrow_range(const ek_added *t, int64_t low, int64_t high, size_t depth, unsigned c)
{
    while (low < high) {
        int64_t mid = low + (high - low) / 2;

        if (t[mid].n <= depth || t[mid].text[depth] < c)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* The longest token that is a prefix of the text. */
static const ek_added *longest_match(const ek_added_set *s, const unsigned char *text, size_t n)
{
    const ek_added *best = NULL;
    int64_t low = 0, high = s->n;

    for (size_t depth = 0; depth < n; depth++) {
        low = narrow_range(s->tokens, low, high, depth, text[depth]);
        high = narrow_range(s->tokens, low, high, depth, text[depth] + 1u);
        if (low == high)
            break;
        if (s->tokens[low].n == depth + 1)
            best = &s->tokens[low];
    }
    return best;
}

static int is_white(uint32_t c)
{
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
           c == 0x205F || c == 0x3000;
}

static ek_status is_word(const ek_added_walk *w, size_t start, size_t end, int *yes)
{
    size_t a, b;

    return ek_pattern_find(w->set->word, w->matcher, w->text + start, end - start, 0, yes, &a, &b);
}

/* Whether the characters around [start, end) are no word characters. */
static ek_status is_separate(const ek_added_walk *w, size_t start, size_t end, int *yes)
{
    int before = 0, after = 0;
    uint32_t cp = 0;

    if (start > 0)
        EK_TRY(is_word(w, ek_utf8_back(w->text, start), start, &before));
    if (end < w->n)
        EK_TRY(is_word(w, end, end + ek_utf8_next(w->text + end, w->n - end, &cp), &after));
    *yes = !before && !after;
    return EK_OK;
}

/* [start, end) extended by the white space that the token includes, except what was returned. */
static void extend_match(const ek_added_walk *w, const ek_added *t, size_t *start, size_t *end)
{
    uint32_t cp = 0;

    while (t->lstrip && *start > w->from) {
        size_t back = ek_utf8_back(w->text, *start);

        if (ek_utf8_next(w->text + back, *start - back, &cp) == 0 || !is_white(cp))
            break;
        *start = back;
    }
    while (t->rstrip && *end < w->n) {
        size_t len = ek_utf8_next(w->text + *end, w->n - *end, &cp);

        if (!is_white(cp))
            break;
        *end += len;
    }
}

ek_status ek_added_next(ek_added_walk *w, int *more, size_t *start, size_t *end,
                        const ek_added **token)
{
    *more = 1;
    *token = NULL;
    *start = w->from;
    if (w->pending != NULL) {
        *token = w->pending;
        *end = w->from = w->pending_end;
        w->pending = NULL;
        return EK_OK;
    }
    while (w->set->n > 0 && w->scan < w->n) {
        const ek_added *t = w->set->first[w->text[w->scan]]
                                ? longest_match(w->set, w->text + w->scan, w->n - w->scan)
                                : NULL;
        size_t a = w->scan, b;
        int alone = 1;

        if (t == NULL) {
            w->scan++;
            continue;
        }
        b = w->scan = a + t->n;
        if (t->single_word)
            EK_TRY(is_separate(w, a, b, &alone));
        if (!alone || a < w->from) /* or inside the white space that a token includes */
            continue;
        extend_match(w, t, &a, &b);
        *end = a;
        w->pending = t;
        w->pending_end = b;
        if (a > w->from) {
            w->from = a;
            return EK_OK;
        }
        return ek_added_next(w, more, start, end, token);
    }
    *end = w->n;
    *more = w->from < w->n;
    w->from = w->n;
    return EK_OK;
}
