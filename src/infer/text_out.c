/* Two stages: bytes are held until they are a character, characters until they cannot begin a stop
 * string. */
#include "infer/text_out.h"

#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { CHARACTER_MAX = 4 };

struct ek_text_out {
    ek_lm_text *text;
    void *context;
    const char *const *stop;
    size_t *stop_bytes; /* [n_stop] */
    int64_t n_stop;
    char *tail; /* characters that may begin a stop string, at most as long as the longest */
    size_t n_tail;
    unsigned char part[CHARACTER_MAX + 1]; /* bytes that may begin a character */
    size_t n_part;
    int over;
};

static ek_status check_stop(const char *stop, size_t bytes)
{
    uint32_t cp;

    EK_REQUIRE(bytes > 0, EK_EINVAL, "a stop string is empty");
    for (size_t at = 0, n; at < bytes; at += n) {
        n = ek_utf8_next((const unsigned char *)stop + at, bytes - at, &cp);
        EK_REQUIRE(n > 0, EK_EINVAL, "a stop string is not UTF-8 (byte %zu)", at);
    }
    return EK_OK;
}

ek_status ek_text_out_create(ek_lm_text *text, void *context, const char *const *stop,
                             int64_t n_stop, ek_text_out **out)
{
    ek_text_out *o = calloc(1, sizeof(*o));
    size_t longest = 0;
    ek_status st = EK_OK;

    EK_REQUIRE(o != NULL, EK_ENOMEM, "no memory for a text");
    o->text = text;
    o->context = context;
    o->stop = stop;
    o->n_stop = n_stop;
    o->stop_bytes = calloc((size_t)n_stop + 1, sizeof(*o->stop_bytes));
    EK_REQUIRE_OUT(o->stop_bytes != NULL, EK_ENOMEM, "no memory for %lld stop strings",
                   (long long)n_stop);
    for (int64_t i = 0; i < n_stop; i++) {
        o->stop_bytes[i] = strlen(stop[i]);
        EK_TRY_OUT(check_stop(stop[i], o->stop_bytes[i]));
        longest = o->stop_bytes[i] > longest ? o->stop_bytes[i] : longest;
    }
    o->tail = malloc(longest + CHARACTER_MAX);
    EK_REQUIRE_OUT(o->tail != NULL, EK_ENOMEM, "no memory for a text");
    *out = o;
    o = NULL;
out:
    ek_text_out_destroy(&o);
    return st;
}

void ek_text_out_destroy(ek_text_out **po)
{
    if (po == NULL || *po == NULL)
        return;
    free((*po)->stop_bytes);
    free((*po)->tail);
    free(*po);
    *po = NULL;
}

static void emit_text(ek_text_out *o, size_t n)
{
    if (n > 0 && o->text != NULL && o->text(o->context, o->tail, n) != 0)
        o->over = 1;
    memmove(o->tail, o->tail + n, o->n_tail - n);
    o->n_tail -= n;
}

/* Bytes of the longest stop string that the tail ends with. */
static size_t completed_stop(const ek_text_out *o)
{
    size_t longest = 0;

    for (int64_t i = 0; i < o->n_stop; i++) {
        size_t n = o->stop_bytes[i];

        if (n > longest && n <= o->n_tail && memcmp(o->tail + o->n_tail - n, o->stop[i], n) == 0)
            longest = n;
    }
    return longest;
}

/* Bytes of the longest suffix of the tail that begins a stop string. */
static size_t begun_stop(const ek_text_out *o)
{
    for (size_t n = o->n_tail; n > 0; n--)
        for (int64_t i = 0; i < o->n_stop; i++)
            if (n < o->stop_bytes[i] && memcmp(o->tail + o->n_tail - n, o->stop[i], n) == 0)
                return n;
    return 0;
}

static void put_character(ek_text_out *o, const void *bytes, size_t n)
{
    size_t whole;

    if (o->over)
        return;
    memcpy(o->tail + o->n_tail, bytes, n);
    o->n_tail += n;
    whole = completed_stop(o);
    if (whole > 0) {
        emit_text(o, o->n_tail - whole);
        o->over = 1;
        return;
    }
    emit_text(o, o->n_tail - begun_stop(o));
}

/* Passes complete characters on. last: nothing follows. */
static void put_characters(ek_text_out *o, int last)
{
    while (o->n_part > 0) {
        uint32_t cp;
        size_t n = ek_utf8_next(o->part, o->n_part, &cp);
        int may_grow = o->part[0] >= 0xc2 && o->part[0] <= 0xf4 && o->n_part < CHARACTER_MAX;

        for (size_t i = 1; i < o->n_part && may_grow; i++)
            may_grow = (o->part[i] & 0xc0) == 0x80;
        if (n == 0 && may_grow && !last)
            return;
        if (n > 0)
            put_character(o, o->part, n);
        else
            put_character(o, "\xef\xbf\xbd", 3);
        n = n > 0 ? n : 1;
        memmove(o->part, o->part + n, o->n_part - n);
        o->n_part -= n;
    }
}

int ek_text_out_append(ek_text_out *o, const unsigned char *bytes, size_t n)
{
    for (size_t i = 0; i < n && !o->over; i++) {
        o->part[o->n_part++] = bytes[i];
        put_characters(o, 0);
    }
    return o->over;
}

void ek_text_out_finish(ek_text_out *o)
{
    put_characters(o, 1);
    if (!o->over)
        emit_text(o, o->n_tail);
}
