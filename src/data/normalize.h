/* data/normalize.h - what a tokenizer does to a text before it is split: NFC, then replacements.
 *
 * Prepend and Replace are those of Hugging Face tokenizers with plain strings: SentencePiece-style
 * files write a space as U+2581 and put one before a text.
 *
 * Threads      an ek_normalizer is read-only once built; each thread has its own scratch. */
#ifndef DATA_NORMALIZE_H
#define DATA_NORMALIZE_H

#include "evenkeel/err.h"

#include "data/nfc.h"

#include <stddef.h>

enum { EK_REPLACEMENTS_MAX = 8, EK_REPLACEMENT_BYTES = 32 };

/* from -> to, wherever it stands, left to right; from_n 0: `to` is put before the text. */
typedef struct {
    unsigned char from[EK_REPLACEMENT_BYTES], to[EK_REPLACEMENT_BYTES];
    size_t from_n, to_n;
} ek_replacement;

typedef struct {
    int nfc;
    ek_replacement list[EK_REPLACEMENTS_MAX];
    int n;
} ek_normalizer;

/* Zeroed is ready. */
typedef struct {
    ek_nfc nfc;
    unsigned char *text[2];
    size_t room[2];
} ek_normalize_work;

void ek_normalize_work_release(ek_normalize_work *w);

/* Appends a replacement; strings of at most EK_REPLACEMENT_BYTES.  EK_EUNSUPPORTED beyond that. */
EK_CHECKED ek_status ek_normalizer_add(ek_normalizer *z, const char *from, const char *to);

/* Normalises a well-formed text.  prepend: it begins a text, so that what is put before texts is
 * put before it.  *out [*out_n] is `text` itself or stands in w until the next call.  EK_EFORMAT:
 * replacements that make a text grow beyond reason. */
EK_CHECKED ek_status ek_normalize(const ek_normalizer *z, ek_normalize_work *w, int prepend,
                                  const unsigned char *text, size_t n, const unsigned char **out,
                                  size_t *out_n);

#endif
