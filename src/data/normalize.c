/* Normalisation: one pass per replacement, from one buffer to the other. */
#include "data/normalize.h"

#include <stdlib.h>
#include <string.h>

/* Limit of a text's growth, as a factor plus a constant: one byte becomes at most 32. */
enum { GROWTH_MAX = 64, GROWTH_FREE = 4096 };

void ek_normalize_work_release(ek_normalize_work *w)
{
    ek_nfc_release(&w->nfc);
    free(w->text[0]);
    free(w->text[1]);
    memset(w, 0, sizeof(*w));
}

ek_status ek_normalizer_add(ek_normalizer *z, const char *from, const char *to)
{
    ek_replacement *r = &z->list[z->n];
    size_t from_n = strlen(from), to_n = strlen(to);

    EK_REQUIRE(z->n < EK_REPLACEMENTS_MAX, EK_EUNSUPPORTED,
               "more than %d replacements in a row are not supported", EK_REPLACEMENTS_MAX);
    EK_REQUIRE(from_n <= EK_REPLACEMENT_BYTES && to_n <= EK_REPLACEMENT_BYTES, EK_EUNSUPPORTED,
               "a replacement of more than %d bytes is not supported", EK_REPLACEMENT_BYTES);
    memcpy(r->from, from, from_n);
    memcpy(r->to, to, to_n);
    r->from_n = from_n;
    r->to_n = to_n;
    z->n++;
    return EK_OK;
}

/* Reserves the maximum size that r makes of n bytes. */
static ek_status reserve_text(ek_normalize_work *w, int i, size_t n, const ek_replacement *r)
{
    size_t matches = r->from_n > 0 ? n / r->from_n : 1, need = n + matches * r->to_n + 1;

    if (need <= w->cap[i])
        return EK_OK;
    free(w->text[i]);
    w->cap[i] = 0;
    w->text[i] = malloc(need + need / 4);
    EK_REQUIRE(w->text[i] != NULL, EK_ENOMEM, "no memory for a text of %zu bytes", need);
    w->cap[i] = need + need / 4;
    return EK_OK;
}

/* The next occurrence of r->from in the text, or its end. */
static const unsigned char *find_match(const ek_replacement *r, const unsigned char *p,
                                       const unsigned char *end)
{
    while ((size_t)(end - p) >= r->from_n) {
        p = memchr(p, r->from[0], (size_t)(end - p) - r->from_n + 1);
        if (p == NULL)
            return end;
        if (memcmp(p, r->from, r->from_n) == 0)
            return p;
        p++;
    }
    return end;
}

static size_t replace_all(const ek_replacement *r, const unsigned char *text, size_t n,
                          unsigned char *out)
{
    const unsigned char *p = text, *end = text + n;
    unsigned char *to = out;

    if (r->from_n == 0) {
        memcpy(out, r->to, r->to_n);
        memcpy(out + r->to_n, text, n);
        return r->to_n + n;
    }
    while (p < end) {
        const unsigned char *match = find_match(r, p, end);

        memcpy(to, p, (size_t)(match - p));
        to += match - p;
        if (match == end)
            break;
        memcpy(to, r->to, r->to_n);
        to += r->to_n;
        p = match + r->from_n;
    }
    return (size_t)(to - out);
}

ek_status ek_normalize(const ek_normalizer *z, ek_normalize_work *w, int prepend,
                       const unsigned char *text, size_t n, const unsigned char **out,
                       size_t *out_n)
{
    size_t most = GROWTH_MAX * n + GROWTH_FREE;
    int to = 0;

    if (z->nfc && !ek_nfc_certain(text, n)) {
        EK_TRY(ek_nfc_run(&w->nfc, text, n));
        text = w->nfc.text;
        n = w->nfc.n;
    }
    for (int i = 0; i < z->n && n > 0; i++) {
        const ek_replacement *r = &z->list[i];

        if (r->from_n == 0 && !prepend)
            continue;
        EK_TRY(reserve_text(w, to, n, r));
        n = replace_all(r, text, n, w->text[to]);
        text = w->text[to];
        to = 1 - to;
        EK_REQUIRE(n <= most, EK_EFORMAT,
                   "the normalizer's replacements make a text grow to %zu bytes", n);
    }
    *out = text;
    *out_n = n;
    return EK_OK;
}
