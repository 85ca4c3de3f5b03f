/* data/tokenizer_priv.h - what a tokenizer is made of; for the files of this folder only.
 *
 * A text passes: added tokens of the raw text, normalisation, added tokens of the normalised text,
 * the splits one after another, bytes to ids.  Of a SentencePiece-style tokenizer (`chars`) the
 * splits are those of ek_metaspace, and characters become ids. */
#ifndef DATA_TOKENIZER_PRIV_H
#define DATA_TOKENIZER_PRIV_H

#include "data/added.h"
#include "data/bpe.h"
#include "data/chars.h"
#include "data/normalize.h"
#include "data/pattern.h"
#include "data/tokenizer.h"

enum { EK_SPLITS_MAX = 16 };

/* One pre-tokenizer that cuts by a pattern: which of its matches and the gaps between are kept. */
typedef struct {
    ek_pattern *pattern;
    int drop_matches, drop_gaps;
} ek_split;

/* Where a mark is put before a piece that does not begin with one. */
typedef enum { EK_PREFIX_NEVER, EK_PREFIX_FIRST, EK_PREFIX_ALWAYS } ek_prefix;

/* The pre-tokenizer that writes spaces as a mark (U+2581). */
typedef struct {
    ek_normalizer to_mark; /* " " -> mark; n 0: there is no such pre-tokenizer */
    ek_normalizer prefix;  /* puts the mark before */
    ek_prefix where;
    int split; /* before each mark */
} ek_metaspace;

struct ek_tokenizer {
    ek_bpe bpe;
    ek_added_set raw, normal; /* found before and after normalisation */
    ek_normalizer normalizer;
    int by_chars; /* SentencePiece-style: the three below count, splits do not */
    ek_chars chars;
    ek_metaspace metaspace;
    ek_normalizer decoder; /* of a token's text */
    int64_t strip;         /* spaces that decoding drops where a text begins */
    ek_token *plain;       /* [n_ids]: what ids decode to, in plain_blob; NULL: bpe.tokens */
    unsigned char *plain_blob;
    ek_split splits[EK_SPLITS_MAX];
    int n_splits;
    int prefix_at;  /* a space is put before pieces that reach this split without one; -1: never */
    int identity;   /* ids are bytes: nothing to split or merge */
    int line_cuts;  /* a text may be cut between lines, see ek_tokenizer_cut */
    int64_t end_id; /* -1: none */
    char *json;     /* the file */
    size_t json_bytes;
};

/* Bytes to the characters that stand for them in a vocabulary, and back (-1: no byte). */
uint32_t ek_byte_to_char(unsigned byte);
int ek_char_to_byte(uint32_t cp);

/* Fills t from t->json.  t is zeroed but for json, and released by the caller on failure. */
EK_CHECKED ek_status ek_tokenizer_build(ek_tokenizer *t, const char *name);

#endif
