/* data/normalize.h - a tokenizer's normalisation before splitting: NFC, then replacements.
 *
 * Prepend and Replace are those of Hugging Face tokenizers with plain strings: SentencePiece-style
 * files replace a space by U+2581 and prepend one to a text.
 *
 * Threads      an ek_normalizer is read-only once built; each thread has its own scratch. */
#ifndef DATA_NORMALIZE_H
#define DATA_NORMALIZE_H

#include "evenkeel/err.h"

#include "data/nfc.h"

#include <stddef.h>

enum { EK_REPLACEMENTS_MAX = 8, EK_REPLACEMENT_BYTES = 32 };

/* Replaces `from` by `to` everywhere, left to right; from_n 0: prepends `to` to the text. */
typedef struct {
    unsigned char from[EK_REPLACEMENT_BYTES], to[EK_REPLACEMENT_BYTES];
    size_t from_n, to_n;
} ek_replacement;

typedef struct {
    int nfc;
    ek_replacement list[EK_REPLACEMENTS_MAX];
    int n;
} ek_normalizer;

/* Scratch of one thread; zero-initialised is ready. */
typedef struct {
    ek_nfc nfc;
    unsigned char *text[2];
    size_t cap[2];
} ek_normalize_work;

/* Frees the scratch, which can be used again. */
void ek_normalize_work_release(ek_normalize_work *w);

/* Appends a replacement.  EK_EUNSUPPORTED: a string exceeds EK_REPLACEMENT_BYTES, or there are more
 * than EK_REPLACEMENTS_MAX. */
EK_CHECKED ek_status ek_normalizer_add(ek_normalizer *z, const char *from, const char *to);

/* Normalises a well-formed text. prepend: the text is the beginning of a document, so prepended
 * strings apply. *out [*out_n] is `text` itself or memory of w, valid until the next call.
 * EK_EFORMAT: replacements make the text grow too much. */
EK_CHECKED ek_status ek_normalize(const ek_normalizer *z, ek_normalize_work *w, int prepend,
                                  const unsigned char *text, size_t n, const unsigned char **out,
                                  size_t *out_n);

#endif
