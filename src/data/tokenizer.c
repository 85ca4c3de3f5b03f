/* The tokenizer object: opening, encoding a text through its stages, decoding, saving. */
#include "data/tokenizer.h"

#include "base/file.h"
#include "base/json.h"
#include "base/utf8.h"
#include "data/tokenizer_priv.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ek_encoder {
    const ek_tokenizer *t;
    ek_matcher *matcher;
    ek_bpe_work work;
    ek_normalize_work normal;        /* scratch of the normaliser */
    ek_normalize_work marked, begun; /* scratch of ek_metaspace */
    int begins;                      /* the next text is the beginning of the document */
    unsigned char *prefixed;         /* a text with the prepended space */
    size_t prefixed_cap;
};

uint32_t ek_byte_to_char(unsigned byte)
{
    unsigned shifted = 256;

    if ((byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE)
        return byte;
    /* the others, in order, follow U+0100 */
    shifted += byte <= ' ' ? byte : byte <= 0xA0 ? byte - 0x7F + 33 : 67;
    return shifted;
}

int ek_char_to_byte(uint32_t cp)
{
    if (cp < 256)
        return ek_byte_to_char(cp) == cp ? (int)cp : -1;
    if (cp <= 256 + 32)
        return (int)cp - 256;
    if (cp <= 256 + 66)
        return (int)cp - 256 - 33 + 0x7F;
    return cp == 256 + 67 ? 0xAD : -1;
}

/* A tokenizer.json equivalent to "bytes"; the caller frees it. */
static ek_status bytes_json(char **out)
{
    static const char head[] =
        "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[{\"id\":256,"
        "\"content\":\"<|endoftext|>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
        "\"normalized\":false,\"special\":true}],\"normalizer\":null,\"pre_tokenizer\":{\"type\":"
        "\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false},"
        "\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
        "\"trim_offsets\":true,\"use_regex\":false},\"model\":{\"type\":\"BPE\",\"dropout\":null,"
        "\"unk_token\":null,\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
        "\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":false,\"vocab\":{";
    size_t cap = sizeof(head) + (size_t)256 * 24 + 32, n;
    char *text = malloc(cap);

    EK_REQUIRE(text != NULL, EK_ENOMEM, "no memory for the bytes tokenizer");
    n = (size_t)snprintf(text, cap, "%s", head);
    for (unsigned b = 0; b < 256; b++)
        n += (size_t)snprintf(text + n, cap - n, "%s\"\\u%04x\":%u", b == 0 ? "" : ",",
                              ek_byte_to_char(b), b);
    (void)snprintf(text + n, cap - n, "},\"merges\":[]}}\n");
    *out = text;
    return EK_OK;
}

/* Takes ownership of the text in any case. */
static ek_status build_tokenizer(char *json, size_t bytes, const char *name, ek_tokenizer **out)
{
    ek_tokenizer *t = calloc(1, sizeof(*t));
    ek_status st;

    if (t == NULL) {
        free(json);
        return EK_FAIL(EK_ENOMEM, "no memory for a tokenizer");
    }
    t->json = json;
    t->json_bytes = bytes;
    EK_TRY_OUT(ek_tokenizer_build(t, name));
    *out = t;
    t = NULL;
out:
    ek_tokenizer_destroy(&t);
    return st;
}

ek_status ek_tokenizer_open(const char *name, ek_tokenizer **out)
{
    char *json = NULL;
    size_t bytes = 0;

    if (strcmp(name, "bytes") == 0) {
        EK_TRY(bytes_json(&json));
        bytes = strlen(json);
    } else {
        size_t n = strlen(name);

        EK_REQUIRE(n < 6 || strcmp(name + n - 6, ".model") != 0, EK_EUNSUPPORTED,
                   "%s is a SentencePiece model, which is not read: make a tokenizer.json from it "
                   "with transformers, AutoTokenizer.from_pretrained(FOLDER).save_pretrained(TO)",
                   name);
        EK_TRY(ek_file_read(name, ek_json_text_max(EK_JSON_VOCABULARY), &json, &bytes));
    }
    return build_tokenizer(json, bytes, name, out);
}

ek_status ek_tokenizer_parse(const char *json, size_t bytes, const char *name, ek_tokenizer **out)
{
    char *copy = malloc(bytes + 1);

    EK_REQUIRE(copy != NULL, EK_ENOMEM, "no memory for the %zu bytes of %s", bytes, name);
    memcpy(copy, json, bytes);
    copy[bytes] = '\0';
    return build_tokenizer(copy, bytes, name, out);
}

void ek_tokenizer_destroy(ek_tokenizer **t)
{
    ek_tokenizer *x = *t;

    if (x == NULL)
        return;
    ek_bpe_release(&x->bpe);
    ek_added_release(&x->raw);
    ek_added_release(&x->normal);
    for (int i = 0; i < x->n_splits; i++)
        ek_pattern_destroy(&x->splits[i].pattern);
    ek_chars_release(&x->chars);
    free(x->plain);
    free(x->plain_blob);
    free(x->json);
    free(x);
    *t = NULL;
}

int64_t ek_tokenizer_vocab(const ek_tokenizer *t)
{
    return t->bpe.n_ids;
}

int64_t ek_tokenizer_end(const ek_tokenizer *t)
{
    return t->end_id;
}

ek_status ek_tokenizer_set_end(ek_tokenizer *t, int64_t id)
{
    EK_REQUIRE(id >= 0 && id < t->bpe.n_ids, EK_EINVAL,
               "the end token %lld is outside the tokenizer's vocabulary of %lld", (long long)id,
               (long long)t->bpe.n_ids);
    t->end_id = id;
    return EK_OK;
}

int ek_tokenizer_has(const ek_tokenizer *t, int64_t id)
{
    return id >= 0 && id < t->bpe.n_ids && t->bpe.tokens[id].used;
}

ek_status ek_tokenizer_decode(const ek_tokenizer *t, int64_t id, const unsigned char **bytes,
                              size_t *n)
{
    EK_REQUIRE(ek_tokenizer_has(t, id), EK_EINVAL, "the tokenizer has no token with id %lld",
               (long long)id);
    if (t->plain != NULL) {
        *bytes = t->plain_blob + t->plain[id].at;
        *n = t->plain[id].n;
        return EK_OK;
    }
    *bytes = t->bpe.blob + t->bpe.tokens[id].at;
    *n = t->bpe.tokens[id].n;
    return EK_OK;
}

static const ek_added *find_added(const ek_tokenizer *t, int64_t id, const char *text)
{
    const ek_added_set *const sets[] = {&t->raw, &t->normal};

    for (int i = 0; i < 2; i++) {
        for (int64_t k = 0; k < sets[i]->n; k++) {
            const ek_added *a = &sets[i]->tokens[k];

            if (text == NULL ? a->id == id
                             : a->n == strlen(text) && memcmp(a->text, text, a->n) == 0)
                return a;
        }
    }
    return NULL;
}

const char *ek_tokenizer_added(const ek_tokenizer *t, int64_t id, size_t *n)
{
    const ek_added *a = find_added(t, id, NULL);

    if (a == NULL)
        return NULL;
    *n = a->n;
    return (const char *)a->text;
}

int64_t ek_tokenizer_added_id(const ek_tokenizer *t, const char *text)
{
    const ek_added *a = find_added(t, -1, text);

    return a != NULL ? (int64_t)a->id : -1;
}

int64_t ek_tokenizer_strip(const ek_tokenizer *t)
{
    return t->strip;
}

const char *ek_tokenizer_json(const ek_tokenizer *t, size_t *bytes)
{
    *bytes = t->json_bytes;
    return t->json;
}

ek_status ek_tokenizer_save(const ek_tokenizer *t, const char *path)
{
    return ek_file_replace(NULL, path, t->json, t->json_bytes);
}

/* Cuts after a newline between a visible ASCII character and an ASCII letter or digit.  The
 * patterns that set line_cuts always end a match there: a newline can only be the end of a match,
 * no pattern joins it to a letter or digit, and a single one that "\s+(?!\S)" leaves is matched by
 * "\s+". Normalisation and added tokens do not cross it either. */
size_t ek_tokenizer_cut(const ek_tokenizer *t, const void *text, size_t n, size_t from)
{
    const unsigned char *p = text, *newline;
    size_t at = from < 2 ? 1 : from - 1;

    while (t->line_cuts && at + 1 < n) {
        newline = memchr(p + at, '\n', n - 1 - at);
        if (newline == NULL)
            break;
        at = (size_t)(newline - p) + 1;
        if (p[at - 2] > ' ' && p[at - 2] < 0x7F && p[at] < 0x80 && isalnum(p[at]))
            return at;
    }
    return n;
}

ek_status ek_encoder_create(const ek_tokenizer *t, ek_encoder **out)
{
    ek_encoder *e = calloc(1, sizeof(*e));
    ek_status st;

    EK_REQUIRE(e != NULL, EK_ENOMEM, "no memory for an encoder");
    e->t = t;
    EK_TRY_OUT(ek_matcher_create(&e->matcher));
    *out = e;
    e = NULL;
out:
    ek_encoder_destroy(&e);
    return st;
}

void ek_encoder_destroy(ek_encoder **e)
{
    if (*e == NULL)
        return;
    ek_matcher_destroy(&(*e)->matcher);
    ek_bpe_work_release(&(*e)->work);
    ek_normalize_work_release(&(*e)->normal);
    ek_normalize_work_release(&(*e)->marked);
    ek_normalize_work_release(&(*e)->begun);
    free((*e)->prefixed);
    free(*e);
    *e = NULL;
}

static ek_status split_from(ek_encoder *e, int stage, const unsigned char *text, size_t n,
                            ek_ids *out);

/* Prepends a space to a text that has none. */
static ek_status prepend_space(ek_encoder *e, const unsigned char **text, size_t *n)
{
    if ((*text)[0] == ' ')
        return EK_OK;
    if (e->prefixed_cap < *n + 1) {
        free(e->prefixed);
        e->prefixed_cap = 0;
        e->prefixed = malloc(2 * *n + 64);
        EK_REQUIRE(e->prefixed != NULL, EK_ENOMEM, "no memory for a text of %zu bytes", *n);
        e->prefixed_cap = 2 * *n + 64;
    }
    e->prefixed[0] = ' ';
    memcpy(e->prefixed + 1, *text, *n);
    *text = e->prefixed;
    *n += 1;
    return EK_OK;
}

/* Splits a text by the pattern of one stage and passes the parts to the next stage. */
static ek_status split_at_stage(ek_encoder *e, int stage, const unsigned char *text, size_t n,
                                ek_ids *out)
{
    const ek_split *s = &e->t->splits[stage];
    size_t scan = 0, done = 0;

    while (scan < n) {
        size_t start, end;
        uint32_t cp = 0;
        int found;

        EK_TRY(ek_pattern_find(s->pattern, e->matcher, text, n, scan, &found, &start, &end));
        if (!found)
            break;
        if (start > done && !s->drop_gaps)
            EK_TRY(split_from(e, stage + 1, text + done, start - done, out));
        if (end > start && !s->drop_matches)
            EK_TRY(split_from(e, stage + 1, text + start, end - start, out));
        done = end;
        scan = end > start ? end : end + ek_utf8_next(text + end, n - end, &cp);
    }
    if (done < n && !s->drop_gaps)
        EK_TRY(split_from(e, stage + 1, text + done, n - done, out));
    return EK_OK;
}

static ek_status split_from(ek_encoder *e, int stage, const unsigned char *text, size_t n,
                            ek_ids *out)
{
    if (stage == e->t->prefix_at)
        EK_TRY(prepend_space(e, &text, &n));
    if (stage == e->t->n_splits)
        return ek_bpe_encode(&e->t->bpe, &e->work, text, n, out);
    return split_at_stage(e, stage, text, n, out);
}

/* End of the part of a marked text that begins at `from`: before the next mark. */
static size_t part_end(const ek_metaspace *m, const unsigned char *text, size_t n, size_t from)
{
    const ek_replacement *mark = &m->to_mark.list[0];
    size_t at = from + 1;

    while (at < n && (n - at < mark->to_n || memcmp(text + at, mark->to, mark->to_n) != 0))
        at++;
    return at;
}

/* A text of a SentencePiece-style tokenizer. first: it is the beginning of a UTF-8 range. */
static ek_status encode_chars(ek_encoder *e, const unsigned char *text, size_t n, int first,
                              ek_ids *out)
{
    const ek_tokenizer *t = e->t;
    const ek_metaspace *m = &t->metaspace;
    const ek_replacement *mark = &m->to_mark.list[0];
    int begins = first && e->begins, prefix;

    if (m->to_mark.n == 0)
        return ek_chars_encode(&t->chars, &t->bpe, &e->work, text, n, out);
    EK_TRY(ek_normalize(&m->to_mark, &e->marked, 0, text, n, &text, &n));
    prefix =
        m->where == EK_PREFIX_ALWAYS ? !first || begins : m->where == EK_PREFIX_FIRST && begins;
    if (n < mark->to_n || memcmp(text, mark->to, mark->to_n) != 0)
        EK_TRY(ek_normalize(&m->prefix, &e->begun, prefix, text, n, &text, &n));
    for (size_t from = 0, to; from < n; from = to) {
        to = m->split ? part_end(m, text, n, from) : n;
        EK_TRY(ek_chars_encode(&t->chars, &t->bpe, &e->work, text + from, to - from, out));
    }
    return EK_OK;
}

/* A text without added tokens; first as above. */
static ek_status encode_plain(ek_encoder *e, const unsigned char *text, size_t n, int first,
                              ek_ids *out)
{
    if (e->t->by_chars)
        return encode_chars(e, text, n, first, out);
    if (!e->t->identity)
        return split_from(e, 0, text, n, out);
    EK_TRY(ek_ids_reserve(out, (int64_t)n));
    for (size_t i = 0; i < n; i++)
        out->ids[out->n + (int64_t)i] = text[i];
    out->n += (int64_t)n;
    return EK_OK;
}

/* Extracts added tokens; the text between is encoded: if raw, after normalisation and a second
 * extraction. first: the text is the beginning of a UTF-8 range. */
static ek_status extract_added(ek_encoder *e, int raw, const unsigned char *text, size_t n,
                               int first, ek_ids *out)
{
    ek_added_walk walk = {
        .set = raw ? &e->t->raw : &e->t->normal, .matcher = e->matcher, .text = text, .n = n};

    for (;;) {
        const unsigned char *piece;
        const ek_added *token;
        size_t start, end, len;
        int more, leads;

        EK_TRY(ek_added_next(&walk, &more, &start, &end, &token));
        if (!more)
            return EK_OK;
        piece = text + start;
        len = end - start;
        leads = first && start == 0;
        if (token != NULL) {
            EK_TRY(ek_ids_push(out, token->id));
        } else if (!raw) {
            EK_TRY(encode_plain(e, piece, len, leads, out));
        } else {
            EK_TRY(ek_normalize(&e->t->normalizer, &e->normal, !leads || e->begins, piece, len,
                                &piece, &len));
            EK_TRY(extract_added(e, 0, piece, len, leads, out));
        }
    }
}

/* Alternating ranges of UTF-8 and of other bytes.  Text after other bytes is not the beginning of a
 * text: nothing is prepended, so that decoding gives the bytes back. */
static ek_status encode_ranges(ek_encoder *e, const void *text, size_t n, ek_ids *out)
{
    const unsigned char *p = text;

    while (n > 0) {
        size_t valid = ek_utf8_valid(p, n), other = valid;
        uint32_t cp = 0;

        if (valid > 0)
            EK_TRY(extract_added(e, 1, p, valid, 1, out));
        e->begins = 0;
        while (other < n && ek_utf8_next(p + other, n - other, &cp) == 0)
            other++;
        EK_TRY(ek_bpe_encode(&e->t->bpe, &e->work, p + valid, other - valid, out));
        p += other;
        n -= other;
    }
    return EK_OK;
}

ek_status ek_encode(ek_encoder *e, const void *text, size_t n, ek_ids *out)
{
    e->begins = 1;
    return encode_ranges(e, text, n, out);
}

ek_status ek_encode_rest(ek_encoder *e, const void *text, size_t n, ek_ids *out)
{
    e->begins = 0;
    return encode_ranges(e, text, n, out);
}
