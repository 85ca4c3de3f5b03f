/* data/chars.h - SentencePiece-style BPE: symbols are characters, and bytes for a character that
 * is not in the vocabulary (byte fallback, tokens <0x00> to <0xFF>).
 *
 * A text is not split before the merges, so a word can be as long as the text.  But most pairs of
 * symbols are adjacent in no token: such a pair is never merged across, so the text is cut there
 * into short words with the same result.
 *
 * Threads      read-only once built. */
#ifndef DATA_CHARS_H
#define DATA_CHARS_H

#include "evenkeel/err.h"

#include "data/bpe.h"

#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint32_t *of_char;  /* [65536]: id + 1 of the token of a code point; 0: none */
    uint64_t *joints;   /* pairs of symbols that a merge can join: left << 32 | right, + 1, by hash;
                           0: empty */
    size_t joint_slots; /* a power of two; 0: any two symbols can be joined */
} ek_chars;

/* Builds from a vocabulary with its merges; fills b->byte_id.  EK_EFORMAT: a byte has no token. */
EK_CHECKED ek_status ek_chars_build(ek_chars *c, ek_bpe *b, const char *name);
/* Frees the tables; *c is then zero. */
void ek_chars_release(ek_chars *c);

/* Whether no merge crosses the end of a line. */
int ek_chars_end_at_lines(const ek_chars *c, const ek_bpe *b);

/* Appends the ids of a well-formed text. */
EK_CHECKED ek_status ek_chars_encode(const ek_chars *c, const ek_bpe *b, ek_bpe_work *w,
                                     const unsigned char *text, size_t n, ek_ids *out);

#endif
