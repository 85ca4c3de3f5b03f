/* data/documents.h - documents within a sequence, for training that keeps them apart.
 *
 * Documents are joined by the end token (data/tokens.h), so tokens alone tell where one begins: at
 * the first token of the sequence and behind every end token. */
#ifndef DATA_DOCUMENTS_H
#define DATA_DOCUMENTS_H

#include "data/tokens.h"

/* The token that ends a document: the tokenizer's (NULL: there is none), else eos, the model
 * config's (-1: none).  EK_EFORMAT where both lack one. */
EK_CHECKED ek_status ek_documents_end(const ek_tokenizer *tokenizer, int64_t eos, int32_t *end);

/* Warns through ek_log of streams that hold no end token: all of one is a single document then.
 * Reads each up to its first end token. */
void ek_documents_warn(ek_tokens *const *streams, int64_t n, int32_t end);

/* Marks the documents of a sequence of n tokens: starts [n] gets where each token's document begins
 * in the sequence; the target of every end token, which is of the next document, becomes -1 and
 * does not count.  targets [n] are the tokens that follow the inputs. */
void ek_documents_mark(int64_t n, int32_t end, const int32_t *inputs, int32_t *targets,
                       int32_t *starts);

#endif
