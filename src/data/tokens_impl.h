/* data/tokens_impl.h - what a token stream is made of; for the files of this folder only. */
#ifndef DATA_TOKENS_IMPL_H
#define DATA_TOKENS_IMPL_H

#include "base/file.h"
#include "data/tokens.h"

/* A stretch of the stream: one file, or memory of the caller. */
typedef struct {
    ek_file_map map; /* data NULL: nothing to close */
    const void *ids;
    int token_bytes;
    int64_t first, n; /* place in the stream */
} ek_segment;

struct ek_tokens {
    ek_segment *segments;
    int64_t n_segments;
    ek_tokens_info info;
};

/* Appends a stretch of ids after checking them; takes the map over when it succeeds. */
EK_CHECKED ek_status ek_tokens_append(ek_tokens *t, ek_file_map map, const void *ids, size_t bytes,
                                      int token_bytes, int64_t vocab, const char *name);

/* What a cache file of texts ends with. */
typedef struct {
    char magic[8]; /* "EKTOKENS" */
    uint32_t version, token_bytes;
    uint64_t key; /* hash of what it was made from */
    int64_t n_tokens, documents, skipped_binary, skipped_empty, text_bytes;
    uint64_t payload_hash; /* XXH3 of the ids */
    uint64_t record_hash;  /* XXH3 of what stands before it in this struct */
} ek_cache_record;

enum { EK_CACHE_VERSION = 2 };

/* Whether the bytes are a whole cache file made from `key`, and its record. */
int ek_cache_valid(const void *data, size_t bytes, uint64_t key, ek_cache_record *out);

/* Fills t from the texts of a configuration, through the cache. */
EK_CHECKED ek_status ek_tokens_from_texts(ek_tokens *t, const ek_tokens_config *config);

#endif
