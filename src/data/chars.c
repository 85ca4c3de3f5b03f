/* Symbols of characters, and the pairs of symbols that merges can join.
 *
 * Each merged token begins and ends with a symbol, whatever the order of the merges; a merge of
 * tokens a and b joins the last symbol of a with the first of b.  Two adjacent symbols that no
 * merge joins in this sense are never merged. */
#include "data/chars.h"

#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CODES = 65536, PASSES_MAX = 64 };

static const uint32_t unknown = UINT32_MAX;

/* First and last symbol of each token, as far as known. */
typedef struct {
    uint32_t *first, *last; /* [n_ids] */
    int ambiguous;          /* a token has two spellings: pairs cannot be determined */
} ends;

static size_t joint_slot(const ek_chars *c, uint64_t pair)
{
    size_t slot = (size_t)(pair * 0x9E3779B97F4A7C15u >> 20) & (c->joint_slots - 1);

    while (c->joints[slot] != 0 && c->joints[slot] != pair)
        slot = (slot + 1) & (c->joint_slots - 1);
    return slot;
}

static uint64_t joint_of(uint32_t left, uint32_t right)
{
    return ((uint64_t)left << 32 | right) + 1;
}

static int may_join(const ek_chars *c, uint32_t left, uint32_t right)
{
    return c->joint_slots == 0 || c->joints[joint_slot(c, joint_of(left, right))] != 0;
}

/* The symbols: tokens of one character, and those of bytes. */
static ek_status find_symbols(ek_chars *c, ek_bpe *b, const char *name, ends *e)
{
    for (int64_t id = 0; id < b->n_ids; id++) {
        const ek_token *t = &b->tokens[id];
        uint32_t cp = 0;

        e->first[id] = e->last[id] = unknown;
        if (!t->used || t->added || t->n == 0 || ek_utf8_next(b->blob + t->at, t->n, &cp) != t->n)
            continue;
        e->first[id] = e->last[id] = (uint32_t)id;
        if (cp < CODES)
            c->of_char[cp] = (uint32_t)id + 1;
    }
    for (unsigned v = 0; v < 256; v++) {
        char text[8];
        int64_t id;

        (void)snprintf(text, sizeof(text), "<0x%02X>", v);
        id = ek_bpe_find(b, (const unsigned char *)text, 6);
        EK_REQUIRE(id >= 0, EK_EFORMAT,
                   "%s: byte_fallback is set, and the vocabulary has no token %s; all 256 are "
                   "needed, so that any text can be encoded",
                   name, text);
        b->byte_id[v] = (uint32_t)id;
        e->first[id] = e->last[id] = (uint32_t)id;
    }
    return EK_OK;
}

/* One pass over all merges; returns whether the ends of a token were found. */
static int find_ends(const ek_bpe *b, ends *e)
{
    int news = 0;

    for (size_t i = 0; i < b->merge_slots; i++) {
        const ek_merge *m = &b->merges[i];
        uint32_t left = (uint32_t)((m->pair - 1) >> 32), right = (uint32_t)(m->pair - 1);

        if (m->pair == 0 || e->first[left] == unknown || e->last[right] == unknown)
            continue;
        if (e->first[m->id] == unknown) {
            e->first[m->id] = e->first[left];
            e->last[m->id] = e->last[right];
            news = 1;
        } else if (e->first[m->id] != e->first[left] || e->last[m->id] != e->last[right]) {
            e->ambiguous = 1;
        }
    }
    return news;
}

/* Collects the pairs; merges of tokens that no merge produces are ignored. */
static ek_status find_joints(ek_chars *c, const ek_bpe *b, ends *e)
{
    int passes = 0;

    while (find_ends(b, e) && !e->ambiguous)
        if (++passes == PASSES_MAX)
            return EK_OK;
    if (e->ambiguous)
        return EK_OK;
    c->joints = calloc(b->merge_slots, sizeof(*c->joints));
    EK_REQUIRE(c->joints != NULL, EK_ENOMEM, "no memory for the pairs of a tokenizer");
    c->joint_slots = b->merge_slots;
    for (size_t i = 0; i < b->merge_slots; i++) {
        const ek_merge *m = &b->merges[i];
        uint32_t left = (uint32_t)((m->pair - 1) >> 32), right = (uint32_t)(m->pair - 1);
        uint64_t pair;

        if (m->pair == 0 || e->last[left] == unknown || e->first[right] == unknown)
            continue;
        pair = joint_of(e->last[left], e->first[right]);
        c->joints[joint_slot(c, pair)] = pair;
    }
    return EK_OK;
}

ek_status ek_chars_build(ek_chars *c, ek_bpe *b, const char *name)
{
    ends e = {malloc(((size_t)b->n_ids + 1) * sizeof(uint32_t)),
              malloc(((size_t)b->n_ids + 1) * sizeof(uint32_t)), 0};
    ek_status st = EK_OK;

    c->of_char = calloc(CODES, sizeof(*c->of_char));
    EK_REQUIRE_OUT(c->of_char != NULL && e.first != NULL && e.last != NULL, EK_ENOMEM,
                   "no memory for the characters of a tokenizer");
    EK_TRY_OUT(find_symbols(c, b, name, &e));
    EK_TRY_OUT(find_joints(c, b, &e));
out:
    free(e.first);
    free(e.last);
    return st;
}

void ek_chars_release(ek_chars *c)
{
    free(c->of_char);
    free(c->joints);
    memset(c, 0, sizeof(*c));
}

int ek_chars_end_at_lines(const ek_chars *c, const ek_bpe *b)
{
    uint32_t newline = c->of_char['\n'] > 0 ? c->of_char['\n'] - 1 : b->byte_id['\n'];

    if (c->joint_slots == 0)
        return 0;
    for (size_t i = 0; i < c->joint_slots; i++)
        if (c->joints[i] != 0 && (uint32_t)((c->joints[i] - 1) >> 32) == newline)
            return 0;
    return 1;
}

/* The token of one character, -1 if it has none. */
static int64_t char_id(const ek_chars *c, const ek_bpe *b, uint32_t cp, const unsigned char *p,
                       size_t len)
{
    return cp < CODES ? (int64_t)c->of_char[cp] - 1 : ek_bpe_find(b, p, len);
}

/* The current word: text[from, to) and its symbols. */
typedef struct {
    const unsigned char *text;
    size_t from, to, n;
} word;

static ek_status finish_word(const ek_bpe *b, ek_bpe_work *w, word *x, ek_ids *out)
{
    size_t n = x->n;

    x->n = 0;
    if (n == 1)
        return ek_ids_push(out, w->ids[0]);
    return ek_bpe_encode_symbols(b, w, x->text + x->from, x->to - x->from, n, out);
}

/* Appends a symbol of `bytes` bytes; starts a new word if no merge can join it to the last one. */
static ek_status add_symbol(const ek_chars *c, const ek_bpe *b, ek_bpe_work *w, word *x,
                            uint32_t id, size_t bytes, ek_ids *out)
{
    if (x->n > 0 && !may_join(c, w->ids[x->n - 1], id))
        EK_TRY(finish_word(b, w, x, out));
    if (x->n == 0)
        x->from = x->to;
    EK_TRY(ek_bpe_reserve_symbols(w, x->n + 1));
    w->ids[x->n++] = id;
    x->to += bytes;
    return EK_OK;
}

ek_status ek_chars_encode(const ek_chars *c, const ek_bpe *b, ek_bpe_work *w,
                          const unsigned char *text, size_t n, ek_ids *out)
{
    int64_t whole = b->whole_words && n > 0 ? ek_bpe_find(b, text, n) : -1;
    word x = {.text = text};

    if (whole >= 0)
        return ek_ids_push(out, (uint32_t)whole);
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t cp = 0;
        int64_t id;

        len = ek_utf8_next(text + i, n - i, &cp);
        id = char_id(c, b, cp, text + i, len);
        if (id >= 0)
            EK_TRY(add_symbol(c, b, w, &x, (uint32_t)id, len, out));
        for (size_t k = 0; id < 0 && k < len; k++)
            EK_TRY(add_symbol(c, b, w, &x, b->byte_id[text[i + k]], 1, out));
    }
    return x.n > 0 ? finish_word(b, w, &x, out) : EK_OK;
}
