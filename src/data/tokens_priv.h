/* data/tokens_priv.h - what a token stream is made of; for the files of this folder only.
 *
 * Files are read with pread, not mapped: one that is cut short meanwhile is a failure of that read
 * and not a signal. */
#ifndef DATA_TOKENS_PRIV_H
#define DATA_TOKENS_PRIV_H

#include "base/file.h"
#include "data/tokens.h"

/* A stretch of the stream: one file, or memory of the caller. */
typedef struct {
    int fd;          /* -1: in memory */
    const void *ids; /* NULL: in a file, from its beginning */
    int token_bytes;
    int64_t first, n; /* place in the stream */
    int64_t vocab;    /* ids are below it */
    char *name;       /* for messages */
} ek_segment;

struct ek_tokens {
    ek_segment *segments;
    int64_t n_segments;
    ek_tokens_info info;
};

/* Appends a stretch of ids after checking them, of a file (ids NULL) or of memory (fd -1); takes
 * the file over when it succeeds. */
EK_CHECKED ek_status ek_tokens_append(ek_tokens *t, int fd, const void *ids, int64_t bytes,
                                      int token_bytes, int64_t vocab, const char *name);

/* What a cache file of texts ends with. */
typedef struct {
    char magic[8]; /* "EKTOKENS" */
    uint32_t version, token_bytes;
    uint64_t key;     /* hash of which texts it was made from, and how */
    uint64_t content; /* hash of what they held */
    int64_t n_tokens, documents, skipped_binary, skipped_empty, text_bytes;
    uint64_t payload_hash; /* XXH3 of the ids */
    uint64_t record_hash;  /* XXH3 of what stands before it in this struct */
} ek_cache_record;

enum { EK_CACHE_VERSION = 3 };

/* Hash of a record but for its last field. */
uint64_t ek_cache_record_hash(const ek_cache_record *h);

/* Whether a file of so many bytes is a whole cache file made from `key` and `content`, and its
 * record. */
int ek_cache_valid(int fd, int64_t bytes, uint64_t key, uint64_t content, ek_cache_record *out);

/* Removes what has not been used for a month from a folder of cache files, what has been used
 * longest ago where they are too large together, and what killed processes have left.  The file
 * `used` stays. */
void ek_cache_clean(const char *folder, const char *used);

/* Fills t from the texts of a configuration, through the cache. */
EK_CHECKED ek_status ek_tokens_from_texts(ek_tokens *t, const ek_tokens_config *config);

#endif
