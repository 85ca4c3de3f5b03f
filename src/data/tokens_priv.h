/* data/tokens_priv.h - the struct of a token stream; for the files of this folder only.
 *
 * Files are read with pread, not mapped: truncation then is an error of that read and not a
 * signal. */
#ifndef DATA_TOKENS_PRIV_H
#define DATA_TOKENS_PRIV_H

#include "base/file.h"
#include "data/tokens.h"

/* A segment of the stream: one file, or memory of the caller. */
typedef struct {
    int fd;          /* -1: in memory */
    const void *ids; /* NULL: in a file, from its beginning */
    int token_bytes;
    int64_t first, n; /* range in the stream */
    int64_t vocab;    /* ids are below it */
    char *name;       /* for messages */
} ek_segment;

struct ek_tokens {
    ek_segment *segments;
    int64_t n_segments;
    ek_tokens_info info;
};

/* Appends a segment of ids after checking them, of a file (ids NULL) or of memory (fd -1).  Takes
 * ownership of fd if it succeeds. */
EK_CHECKED ek_status ek_tokens_append(ek_tokens *t, int fd, const void *ids, int64_t bytes,
                                      int token_bytes, int64_t vocab, const char *name);

/* The record at the end of a cache file. */
typedef struct {
    char magic[8]; /* "EKTOKENS" */
    uint32_t version, token_bytes;
    uint64_t key;     /* hash of the paths of the texts and the encoding settings */
    uint64_t content; /* hash of the texts' contents */
    int64_t n_tokens, documents, skipped_binary, skipped_empty, text_bytes;
    uint64_t payload_hash; /* XXH3 of the ids */
    uint64_t record_hash;  /* XXH3 of the members before it */
} ek_cache_record;

enum { EK_CACHE_VERSION = 3 };

/* Hash of a record without its last member. */
uint64_t ek_cache_record_hash(const ek_cache_record *h);

/* Whether a file of this size is a complete cache file made from `key` and `content`; reads its
 * record. */
int ek_cache_valid(int fd, int64_t bytes, uint64_t key, uint64_t content, ek_cache_record *out);

/* Cleans a folder of cache files: removes those unused for 30 days, then the least recently used
 * ones while the total is too large, and leftovers of killed processes.  Keeps the file `used`. */
void ek_cache_clean(const char *folder, const char *used);

/* Fills t from the texts of a configuration, via the cache. */
EK_CHECKED ek_status ek_tokens_from_texts(ek_tokens *t, const ek_tokens_config *config);

#endif
