/* data/added.h - added tokens: strings that are cut out of a text before it is split.
 *
 * The rules are those of Hugging Face tokenizers: the leftmost match, the longest of these; flags
 * widen it over white space or refuse it inside a word. */
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
    int lstrip, rstrip; /* takes white space before it, behind it */
    int single_word;    /* only between characters that are no letters, digits or _ */
} ek_added;

/* A set of them.  Zeroed is empty. */
typedef struct {
    ek_added *tokens; /* by text, once sorted */
    int64_t n, room;
    unsigned char first[256]; /* bytes that a token begins with */
    ek_pattern *word;         /* one character of a word; made when single_word asks for it */
} ek_added_set;

/* Copies a token in.  Empty text is ignored, as is text that is there already. */
EK_CHECKED ek_status ek_added_put(ek_added_set *s, const ek_added *token);
/* To be called once, after the last put. */
void ek_added_sort(ek_added_set *s);
void ek_added_release(ek_added_set *s);

/* Walks through a well-formed text: pieces between tokens, and tokens, in order. */
typedef struct {
    const ek_added_set *set;
    ek_matcher *matcher;
    const unsigned char *text;
    size_t n, scan, from;    /* scanned so far; handed out so far */
    const ek_added *pending; /* a token to hand out after the piece before it */
    size_t pending_end;
} ek_added_walk;

/* The next piece: text[*start, *end), and its token or NULL.  *more is 0 at the end. */
EK_CHECKED ek_status ek_added_next(ek_added_walk *w, int *more, size_t *start, size_t *end,
                                   const ek_added **token);

#endif
