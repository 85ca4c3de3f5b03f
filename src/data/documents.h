/* data/documents.h - document boundaries within a sequence, for document masks.
 *
 * Documents are joined by the end token (data/tokens.h): a document begins at the first token of
 * the sequence and after every end token. */
#ifndef DATA_DOCUMENTS_H
#define DATA_DOCUMENTS_H

#include "data/tokens.h"

/* The token that ends a document: the tokenizer's (NULL: no tokenizer), else eos, the model
 * config's (-1: none).  EK_EFORMAT: neither has one. */
EK_CHECKED ek_status ek_documents_end(const ek_tokenizer *tokenizer, int64_t eos, int32_t *end);

/* Maximum number of tokens of a stream that ek_documents_check reads. */
enum { EK_DOCUMENTS_SEARCHED = 1 << 26 };

/* Warns through ek_log about streams whose first EK_DOCUMENTS_SEARCHED tokens, or all they have,
 * contain no end token: each of their sequences is one document.  Returns the failures of
 * ek_tokens_read. */
EK_CHECKED ek_status ek_documents_check(ek_tokens *const *streams, int64_t n, int32_t end);

/* Marks the documents of a sequence of n tokens. starts [n]: where in the sequence the document of
 * each token begins. targets [n], the tokens that follow the inputs: that of an end token belongs
 * to the next document and becomes -1, which does not count. */
void ek_documents_mark(int64_t n, int32_t end, const int32_t *inputs, int32_t *targets,
                       int32_t *starts);

#endif
