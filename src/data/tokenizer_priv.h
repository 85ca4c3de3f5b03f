/* data/tokenizer_priv.h - the struct of a tokenizer; for the files of this folder only.
 *
 * Stages of encoding: added tokens of the raw text, normalisation, added tokens of the normalised
 * text, the splits in order, bytes to ids.  A SentencePiece-style tokenizer (`chars`) splits by
 * ek_metaspace, and encodes characters. */
#ifndef DATA_TOKENIZER_PRIV_H
#define DATA_TOKENIZER_PRIV_H

#include "data/added.h"
#include "data/bpe.h"
#include "data/chars.h"
#include "data/normalize.h"
#include "data/pattern.h"
#include "data/tokenizer.h"

enum { EK_SPLITS_MAX = 16 };

/* A pre-tokenizer that splits by a pattern; which of its matches and gaps are dropped. */
typedef struct {
    ek_pattern *pattern;
    int drop_matches, drop_gaps;
} ek_split;

/* When a mark is prepended to a text that does not begin with one. */
typedef enum { EK_PREFIX_NEVER, EK_PREFIX_FIRST, EK_PREFIX_ALWAYS } ek_prefix;

/* The pre-tokenizer that replaces spaces by a mark (U+2581). */
typedef struct {
    ek_normalizer to_mark; /* " " -> mark; n 0: no such pre-tokenizer */
    ek_normalizer prefix;  /* prepends the mark */
    ek_prefix where;
    int split; /* before each mark */
} ek_metaspace;

struct ek_tokenizer {
    ek_bpe bpe;
    ek_added_set raw, normal; /* found before and after normalisation */
    ek_normalizer normalizer;
    int by_chars; /* SentencePiece-style: uses the next three members instead of splits */
    ek_chars chars;
    ek_metaspace metaspace;
    ek_normalizer decoder; /* applied to a token's text */
    int64_t strip;         /* spaces that decoding drops at the beginning of a text */
    ek_token *plain;       /* [n_ids]: decoded bytes of ids, in plain_blob; NULL: bpe.tokens */
    unsigned char *plain_blob;
    ek_split splits[EK_SPLITS_MAX];
    int n_splits;
    int prefix_at;  /* a space is prepended to texts at this split; -1: never */
    int identity;   /* ids are bytes: no splits or merges */
    int line_cuts;  /* texts can be cut between lines, see ek_tokenizer_cut */
    int64_t end_id; /* -1: none */
    char *json;     /* the file */
    size_t json_bytes;
};

/* The byte-level alphabet: the character of a byte, and the byte of a character (-1: none). */
uint32_t ek_byte_to_char(unsigned byte);
int ek_char_to_byte(uint32_t cp);

/* Fills t from t->json.  Other members are zero; the caller releases t on failure. */
EK_CHECKED ek_status ek_tokenizer_build(ek_tokenizer *t, const char *name);

#endif
