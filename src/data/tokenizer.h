/* data/tokenizer.h - text to token ids and back.
 *
 * Two kinds: "bytes", whose ids 0 to 255 are the byte values and 256 ends a document, and Hugging
 * Face tokenizer.json files of byte-level BPE, or of SentencePiece-style BPE with byte fallback
 * (Llama 2, Mixtral).  Ids are those of the tokenizers library with add_special_tokens=False: added
 * tokens are found in the text; tokens that a post_processor would add (a begin token) are not
 * added.  Other kinds, and options that would change ids and are not implemented, are refused by
 * name.
 *
 * Any bytes can be encoded.  In bytes that are not UTF-8, well-formed ranges are encoded as texts
 * of their own, and each range of other bytes becomes one word without normalisation and splitting.
 * Decoding gives the bytes back, except for normalisation and a space prepended to a text
 * (add_prefix_space, Prepend, Metaspace).
 * Without normaliser, encode(a + b) can still differ from encode(a) + encode(b).
 *
 * Threads      a tokenizer is read-only; each thread encodes through its own ek_encoder. */
#ifndef DATA_TOKENIZER_H
#define DATA_TOKENIZER_H

#include "evenkeel/err.h"

#include "data/bpe.h"

#include <stddef.h>
#include <stdint.h>

typedef struct ek_tokenizer ek_tokenizer;
typedef struct ek_encoder ek_encoder;

/* "bytes", or the path of a tokenizer.json; ek_tokenizer_destroy frees *out.  EK_EFORMAT,
 * EK_EUNSUPPORTED, EK_ENOENT. */
EK_CHECKED ek_status ek_tokenizer_open(const char *name, ek_tokenizer **out);

/* Parses a tokenizer.json in memory; `name` is its name in messages. */
EK_CHECKED ek_status ek_tokenizer_parse(const char *json, size_t bytes, const char *name,
                                        ek_tokenizer **out);
void ek_tokenizer_destroy(ek_tokenizer **t);

/* The largest id plus one: the minimum vocabulary of a model. */
int64_t ek_tokenizer_vocab(const ek_tokenizer *t);

/* The token that ends a document: the first of <|endoftext|>, <|end_of_text|>, </s>, <eos>,
 * <|im_end|> that the file has; -1 if it has none and none was set. */
int64_t ek_tokenizer_end(const ek_tokenizer *t);
/* Overrides the end token, for example with a model config's eos_token_id; before encoding
 * starts. */
EK_CHECKED ek_status ek_tokenizer_set_end(ek_tokenizer *t, int64_t id);

/* Whether a token has this id: ids below ek_tokenizer_vocab may be unused. */
int ek_tokenizer_has(const ek_tokenizer *t, int64_t id);

/* The bytes of an id, possibly a part of a UTF-8 sequence; borrowed.  EK_EINVAL: no token has the
 * id. */
EK_CHECKED ek_status ek_tokenizer_decode(const ek_tokenizer *t, int64_t id,
                                         const unsigned char **bytes, size_t *n);

/* The text of an added token, NULL for other ids; borrowed. */
const char *ek_tokenizer_added(const ek_tokenizer *t, int64_t id, size_t *n);
/* The id of the added token with this text, -1 if there is none. */
int64_t ek_tokenizer_added_id(const ek_tokenizer *t, const char *text);

/* Number of spaces that decoding drops, if present, at the beginning of a text: 1 if one is
 * prepended to every text. */
int64_t ek_tokenizer_strip(const ek_tokenizer *t);

/* The tokenizer.json that it was read from, byte for byte; for "bytes" an equivalent one.
 * Borrowed. */
const char *ek_tokenizer_json(const ek_tokenizer *t, size_t *bytes);
/* Writes the tokenizer.json to a file, atomically. */
EK_CHECKED ek_status ek_tokenizer_save(const ek_tokenizer *t, const char *path);

/* A position at or after `from` where a text can be cut without changing its ids, so that both
 * sides can be encoded separately; n if there is none, or if the tokenizer may not allow it. */
size_t ek_tokenizer_cut(const ek_tokenizer *t, const void *text, size_t n, size_t from);

/* Scratch of one thread, with a cache of words: reuse it for many texts.  Borrows t;
 * ek_encoder_destroy frees *out. */
EK_CHECKED ek_status ek_encoder_create(const ek_tokenizer *t, ek_encoder **out);
void ek_encoder_destroy(ek_encoder **e);

/* Appends the ids of a text.  After a failure `out` may hold a part of them. */
EK_CHECKED ek_status ek_encode(ek_encoder *e, const void *text, size_t n, ek_ids *out);
/* The same for the rest of a text after ek_tokenizer_cut: nothing is prepended. */
EK_CHECKED ek_status ek_encode_rest(ek_encoder *e, const void *text, size_t n, ek_ids *out);

#endif
