/* data/added.h - added tokens: strings that become one token before a text is split.
 *
 * The rules are those of Hugging Face tokenizers: the leftmost match, of these the longest; flags
 * extend it over white space or refuse it inside a word. */
#ifndef DATA_ADDED_H
#define DATA_ADDED_H

#include "evenkeel/err.h"

#include "data/pattern.h"

#include <stddef.h>
#include <stdint.h>

typedef struct {
    unsigned char *text; /* owned by the set */
    size_t n;
    uint32_t id;
    int lstrip, rstrip; /* the match includes white space before, after it */
    int single_word;    /* not next to letters, digits or _ */
} ek_added;

/* A set of added tokens.  Zero-initialised is empty. */
typedef struct {
    ek_added *tokens; /* sorted by text after ek_added_sort */
    int64_t n, cap;
    unsigned char first[256]; /* 1: a token starts with this byte */
    ek_pattern *word;         /* matches one word character; created for single_word tokens */
} ek_added_set;

/* Adds a copy of a token.  Empty and known texts are ignored. */
EK_CHECKED ek_status ek_added_add(ek_added_set *s, const ek_added *token);
/* Call once, after the last ek_added_add. */
void ek_added_sort(ek_added_set *s);
/* Frees the tokens; the set is then empty. */
void ek_added_release(ek_added_set *s);

/* Iterates over a well-formed text: tokens, and the ranges between them, in order. */
typedef struct {
    const ek_added_set *set;
    ek_matcher *matcher;
    const unsigned char *text;
    size_t n, scan, from;    /* searched so far; returned so far */
    const ek_added *pending; /* a token to return after the range before it */
    size_t pending_end;
} ek_added_walk;

/* The next range: text[*start, *end), and its token or NULL. *more is 0 at the end. */
EK_CHECKED ek_status ek_added_next(ek_added_walk *w, int *more, size_t *start, size_t *end,
                                   const ek_added **token);

#endif
