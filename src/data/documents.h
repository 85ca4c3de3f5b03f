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

/* Tokens of a stream that ek_documents_check reads at most. */
enum { EK_DOCUMENTS_SEARCHED = 1 << 26 };

/* Warns through ek_log of streams that begin with EK_DOCUMENTS_SEARCHED tokens, or all they have,
 * without an end token: their sequences are one document each.  A failure of ek_tokens_read. */
EK_CHECKED ek_status ek_documents_check(ek_tokens *const *streams, int64_t n, int32_t end);

/* Marks the documents of a sequence of n tokens: starts [n] gets where each token's document begins
 * in the sequence; the target of every end token, which is of the next document, becomes -1 and
 * does not count.  targets [n] are the tokens that follow the inputs. */
void ek_documents_mark(int64_t n, int32_t end, const int32_t *inputs, int32_t *targets,
                       int32_t *starts);

#endif
