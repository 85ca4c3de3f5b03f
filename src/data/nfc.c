/* Form C: decompose, order marks, compose.
 *
 * A "certain" code point neither changes nor composes with the one before it, so a text is a
 * sequence of groups of one certain code point and the doubtful ones after it; only groups with
 * a doubtful one are normalised. */
#include "data/nfc.h"

#include "base/utf8.h"
#include "data/nfc_table.h"

#include <stdlib.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* Hangul arithmetic of the Unicode Standard, section 3.12. */
enum {
    S_BASE = 0xAC00,
    L_BASE = 0x1100,
    V_BASE = 0x1161,
    T_BASE = 0x11A7,
    L_COUNT = 19,
    V_COUNT = 21,
    T_COUNT = 28,
    S_COUNT = L_COUNT * V_COUNT * T_COUNT
};

struct ek_nfc_mark {
    uint32_t cp, ccc;
    size_t order; /* keeps the sort stable */
};

static int is_doubtful(uint32_t cp)
{
    size_t low = 0, high = COUNT(nfc_doubtful);

    if (cp < 0x300 || (cp >= 0x3400 && cp < 0xA000)) /* Latin, and ideographs */
        return 0;
    while (low < high) {
        size_t mid = (low + high) / 2;

        if (cp > nfc_doubtful[mid].last)
            low = mid + 1;
        else
            high = mid;
    }
    return low < COUNT(nfc_doubtful) && cp >= nfc_doubtful[low].first;
}

static uint32_t combining_class(uint32_t cp)
{
    size_t low = 0, high = COUNT(nfc_class);

    while (low < high) {
        size_t mid = (low + high) / 2;

        if (cp > nfc_class[mid].last)
            low = mid + 1;
        else
            high = mid;
    }
    return low < COUNT(nfc_class) && cp >= nfc_class[low].first ? nfc_class[low].ccc : 0;
}

/* Index of cp in nfc_decomposed; its size if cp is not there. */
static size_t find_decomposed(uint32_t cp)
{
    size_t low = 0, high = COUNT(nfc_decomposed);

    while (low < high) {
        size_t mid = (low + high) / 2;

        if (cp > nfc_decomposed[mid].cp)
            low = mid + 1;
        else
            high = mid;
    }
    return low < COUNT(nfc_decomposed) && nfc_decomposed[low].cp == cp ? low
                                                                       : COUNT(nfc_decomposed);
}

/* The composite of a and b; 0 if there is none. */
static uint32_t compose_pair(uint32_t a, uint32_t b)
{
    uint64_t key = (uint64_t)a << 32 | b;
    size_t low = 0, high = COUNT(nfc_composed);

    if (a >= L_BASE && a < L_BASE + L_COUNT && b >= V_BASE && b < V_BASE + V_COUNT)
        return S_BASE + ((a - L_BASE) * V_COUNT + (b - V_BASE)) * T_COUNT;
    if (a >= S_BASE && a < S_BASE + S_COUNT && (a - S_BASE) % T_COUNT == 0 && b > T_BASE &&
        b < T_BASE + T_COUNT)
        return a + (b - T_BASE);
    while (low < high) {
        size_t mid = (low + high) / 2, d = nfc_composed[mid];
        uint64_t at = (uint64_t)nfc_decomposed[d].first << 32 | nfc_decomposed[d].second;

        if (key == at)
            return nfc_decomposed[d].cp;
        if (key > at)
            low = mid + 1;
        else
            high = mid;
    }
    return 0;
}

int ek_nfc_certain(const unsigned char *text, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp = 0;
        uint64_t word;

        if (n - i >= 8) {
            memcpy(&word, text + i, 8);
            if ((word & 0x8080808080808080u) == 0) {
                i += 8;
                continue;
            }
        }
        i += ek_utf8_next(text + i, n - i, &cp);
        if (is_doubtful(cp))
            return 0;
    }
    return 1;
}

static ek_status add_mark(ek_nfc *s, uint32_t cp)
{
    if (s->n_marks == s->marks_cap) {
        size_t cap = s->marks_cap * 2 + 64;
        struct ek_nfc_mark *grown = realloc(s->marks, cap * sizeof(*grown));

        EK_REQUIRE(grown != NULL, EK_ENOMEM, "no memory for normalising %zu code points", cap);
        s->marks = grown;
        s->marks_cap = cap;
    }
    s->marks[s->n_marks] =
        (struct ek_nfc_mark){.cp = cp, .ccc = combining_class(cp), .order = s->n_marks};
    s->n_marks++;
    return EK_OK;
}

static ek_status decompose_char(ek_nfc *s, uint32_t cp)
{
    uint32_t tail[8];
    size_t n = 0, at;

    if (cp >= S_BASE && cp < S_BASE + S_COUNT) {
        uint32_t index = cp - S_BASE, t = index % T_COUNT;

        EK_TRY(add_mark(s, L_BASE + index / (V_COUNT * T_COUNT)));
        EK_TRY(add_mark(s, V_BASE + index % (V_COUNT * T_COUNT) / T_COUNT));
        return t == 0 ? EK_OK : add_mark(s, T_BASE + t);
    }
    /* only the first part decomposes further, a few levels deep */
    while ((at = find_decomposed(cp)) < COUNT(nfc_decomposed) && n < COUNT(tail)) {
        if (nfc_decomposed[at].second != 0)
            tail[n++] = nfc_decomposed[at].second;
        cp = nfc_decomposed[at].first;
    }
    EK_TRY(add_mark(s, cp));
    while (n > 0)
        EK_TRY(add_mark(s, tail[--n]));
    return EK_OK;
}

static int by_class(const void *a, const void *b)
{
    const struct ek_nfc_mark *x = a, *y = b;

    if (x->ccc != y->ccc)
        return x->ccc < y->ccc ? -1 : 1;
    return x->order < y->order ? -1 : x->order > y->order;
}

/* Canonical order: marks between starters by class, equal ones as they stood. */
static void order_marks(ek_nfc *s)
{
    for (size_t i = 0; i < s->n_marks;) {
        size_t from = i;
        int sorted = 1;

        while (i < s->n_marks && s->marks[i].ccc != 0) {
            sorted &= i == from || s->marks[i - 1].ccc <= s->marks[i].ccc;
            i++;
        }
        if (!sorted)
            qsort(s->marks + from, i - from, sizeof(*s->marks), by_class);
        i += i == from;
    }
}

static void compose_marks(ek_nfc *s)
{
    size_t supervisor_id = SIZE_MAX, kept = 0;

    for (size_t i = 0; i < s->n_marks; i++) {
        struct ek_nfc_mark m = s->marks[i];
        /* blocked: something between with a class not below this one's */
        int open = supervisor_id != SIZE_MAX &&
                   (kept == supervisor_id + 1 || (m.ccc != 0 && s->marks[kept - 1].ccc < m.ccc));
        uint32_t composite = open ? compose_pair(s->marks[supervisor_id].cp, m.cp) : 0;

        if (composite != 0) {
            s->marks[supervisor_id].cp = composite;
            continue;
        }
        if (m.ccc == 0)
            supervisor_id = kept;
        s->marks[kept++] = m;
    }
    s->n_marks = kept;
}

static ek_status reserve_text(ek_nfc *s, size_t more)
{
    if (s->cap - s->n <= more) {
        size_t cap = s->cap + s->cap / 2 + more + 256;
        unsigned char *grown = realloc(s->text, cap);

        EK_REQUIRE(grown != NULL, EK_ENOMEM, "no memory for %zu bytes of normalised text", cap);
        s->text = grown;
        s->cap = cap;
    }
    return EK_OK;
}

static ek_status write_run(ek_nfc *s, const unsigned char *run, size_t n)
{
    s->n_marks = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp = 0;

        i += ek_utf8_next(run + i, n - i, &cp);
        EK_TRY(decompose_char(s, cp));
    }
    order_marks(s);
    compose_marks(s);
    EK_TRY(reserve_text(s, 4 * s->n_marks));
    for (size_t i = 0; i < s->n_marks; i++)
        s->n += ek_utf8_put(s->marks[i].cp, s->text + s->n);
    return EK_OK;
}

ek_status ek_nfc_run(ek_nfc *s, const unsigned char *text, size_t n)
{
    size_t run = 0, i = 0; /* run: start of the code point that doubtful ones may compose with */
    size_t plain = 0;      /* start of the range to be copied unchanged */

    s->n = 0;
    while (i < n) {
        uint32_t cp = 0;
        size_t len = ek_utf8_next(text + i, n - i, &cp);

        if (!is_doubtful(cp)) {
            run = i;
            i += len;
            continue;
        }
        EK_TRY(reserve_text(s, run - plain));
        memcpy(s->text + s->n, text + plain, run - plain);
        s->n += run - plain;
        do {
            i += len;
            len = ek_utf8_next(text + i, n - i, &cp);
        } while (i < n && is_doubtful(cp));
        EK_TRY(write_run(s, text + run, i - run));
        plain = run = i;
    }
    EK_TRY(reserve_text(s, n - plain));
    memcpy(s->text + s->n, text + plain, n - plain);
    s->n += n - plain;
    return EK_OK;
}

void ek_nfc_release(ek_nfc *s)
{
    free(s->text);
    free(s->marks);
    memset(s, 0, sizeof(*s));
}
