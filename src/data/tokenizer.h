/* data/tokenizer.h - text to token ids and back.
 *
 * Two kinds: "bytes", whose ids 0 to 255 are the byte values and 256 ends a document, and Hugging
 * Face tokenizer.json files of byte-level BPE, or of SentencePiece-style BPE with byte fallback
 * (Llama 2, Mixtral), which give the same ids as the tokenizers library
 * with add_special_tokens=False: added tokens are found in the text, and what a post_processor
 * would put around it (a begin token) is left out; whoever wants one adds it.  Other kinds of
 * tokenizer.json, and options that would change ids and are not implemented, are refused by name.
 *
 * Any bytes can be encoded.  Where they are not UTF-8, the well-formed runs are encoded as texts of
 * their own, and each run of other bytes becomes one word outside normalisation and splitting.
 * Decoding gives the bytes back, but for what normalisation changed and a space that was put before
 * a text (add_prefix_space, Prepend, Metaspace).
 * Without normaliser, encode(a + b) can still differ from encode(a) + encode(b).
 *
 * Threads      a tokenizer is read-only; each thread encodes through an ek_encoder of its own. */
#ifndef DATA_TOKENIZER_H
#define DATA_TOKENIZER_H

#include "evenkeel/err.h"

#include "data/bpe.h"

#include <stddef.h>
#include <stdint.h>

typedef struct ek_tokenizer ek_tokenizer;
typedef struct ek_encoder ek_encoder;

/* "bytes", or the path of a tokenizer.json.  EK_EFORMAT, EK_EUNSUPPORTED, EK_ENOENT. */
EK_CHECKED ek_status ek_tokenizer_open(const char *name, ek_tokenizer **out);

/* From the text of a tokenizer.json; `name` is for messages. */
EK_CHECKED ek_status ek_tokenizer_parse(const char *json, size_t bytes, const char *name,
                                        ek_tokenizer **out);
void ek_tokenizer_destroy(ek_tokenizer **t);

/* One more than the largest id: what a model's vocabulary must hold at least. */
int64_t ek_tokenizer_vocab(const ek_tokenizer *t);

/* The token that ends a document: the first of <|endoftext|>, <|end_of_text|>, </s>, <eos>,
 * <|im_end|> that the file has; -1 if it has none and none was set. */
int64_t ek_tokenizer_end(const ek_tokenizer *t);
/* Overrides it, with a model config's eos_token_id for example; before encoding starts. */
EK_CHECKED ek_status ek_tokenizer_set_end(ek_tokenizer *t, int64_t id);

/* Whether a token has this id: below ek_tokenizer_vocab there may be holes. */
int ek_tokenizer_has(const ek_tokenizer *t, int64_t id);

/* The bytes that an id stands for; they may be part of a UTF-8 sequence.  EK_EINVAL for an id
 * that no token has.  The bytes are the tokenizer's. */
EK_CHECKED ek_status ek_tokenizer_decode(const ek_tokenizer *t, int64_t id,
                                         const unsigned char **bytes, size_t *n);

/* The text of an added token, NULL for other ids; it is the tokenizer's. */
const char *ek_tokenizer_added(const ek_tokenizer *t, int64_t id, size_t *n);
/* The id of an added token, -1 if there is none of that text. */
int64_t ek_tokenizer_added_id(const ek_tokenizer *t, const char *text);

/* Spaces that are dropped, as far as they are there, where a decoded text begins: 1 if one is put
 * before every text. */
int64_t ek_tokenizer_strip(const ek_tokenizer *t);

/* The tokenizer.json that it came from, byte for byte; for "bytes" an equivalent one. */
const char *ek_tokenizer_json(const ek_tokenizer *t, size_t *bytes);
/* Writes that to a file, which is replaced whole. */
EK_CHECKED ek_status ek_tokenizer_save(const ek_tokenizer *t, const char *path);

/* A place at or after `from` where a text may be cut without changing its ids, so that the parts
 * can be encoded apart; n if there is none, or if the tokenizer is not known to allow it. */
size_t ek_tokenizer_cut(const ek_tokenizer *t, const void *text, size_t n, size_t from);

/* Scratch of one thread, with a cache of words: keep it from text to text. */
EK_CHECKED ek_status ek_encoder_create(const ek_tokenizer *t, ek_encoder **out);
void ek_encoder_destroy(ek_encoder **e);

/* Appends the ids of a text.  After a failure `out` may hold a part of them. */
EK_CHECKED ek_status ek_encode(ek_encoder *e, const void *text, size_t n, ek_ids *out);
/* The same for what ek_tokenizer_cut has cut off: nothing is put before it as before a text. */
EK_CHECKED ek_status ek_encode_rest(ek_encoder *e, const void *text, size_t n, ek_ids *out);

#endif
