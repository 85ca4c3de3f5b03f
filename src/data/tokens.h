/* data/tokens.h - a stream of tokens in files: what training and evaluation read.
 *
 * It comes from token files (.bin: little-endian unsigned integers of 2 or 4 bytes, nothing else),
 * put one behind another, or from texts: files, and folders read recursively in byte order of
 * their paths.  Every text is a document, encoded by itself and closed by the end token; a .jsonl
 * or .ndjson file holds one on each line.  Each may be compressed (.gz, .zst).  Texts are encoded
 * once, on the OpenMP team, into a cache file; the stream does not depend on the number of threads.
 * In folders files with a NUL byte in their first 8 KiB (binary) are passed over, as empty texts
 * are everywhere, counted, and warned about through ek_log; names that begin with a dot, likewise
 * without count.  Other formats (Parquet, PDF, archives, ...) are refused by name, as are binary
 * files that are named themselves.
 *
 * Cache file   DIR/tokens-<hash>.ekt, named by the hash of the files' paths, the tokenizer, its end
 *              token and the text field.  It holds the ids as a .bin file does (2 bytes each where
 *              the tokenizer's vocabulary allows it), then a record of 88 bytes with a hash of what
 *              the files held, counts and checksums (data/tokens_priv.h).  It appears whole, by a
 *              rename; one that does not agree with its record or with what the files hold now is
 *              written anew.  DIR has to be this user's alone, as the file has: those of others are
 *              not read.
 * Threads      an open stream is read-only and may be read from any thread. */
#ifndef DATA_TOKENS_H
#define DATA_TOKENS_H

#include "evenkeel/err.h"

#include "data/tokenizer.h"

#include <stddef.h>
#include <stdint.h>

typedef struct ek_tokens ek_tokens;

typedef struct {
    const char *const *paths;
    int64_t n_paths;
    int token_bytes;               /* of .bin files: 2 or 4 */
    int64_t vocab;                 /* of the model: every id must be below it */
    const ek_tokenizer *tokenizer; /* for texts; not needed for .bin files */
    const char *cache_dir;         /* for texts: where the cache file stands; made if missing.
                                      NULL: nothing is kept, ids go to a file without a name... */
    const char *scratch_dir;       /* ... in this folder */
    /* Called from the opening thread while texts are encoded; NULL: nobody asks. */
    void (*progress)(void *context, int64_t bytes_done, int64_t bytes_total);
    int (*stop)(void *context); /* asked likewise; true ends the encoding with EK_ECANCELED */
    void *context;
    const char *text_field; /* of JSON Lines files: the key of a line's text; NULL: "text" */
} ek_tokens_config;

typedef struct {
    int64_t n_tokens;
    int64_t documents;                     /* 0 for token files, which do not say */
    int64_t skipped_binary, skipped_empty; /* texts passed over */
    int64_t text_bytes;                    /* of the documents */
    int from_cache;                        /* nothing had to be encoded */
} ek_tokens_info;

/* Whether a path names a token file: .bin, and not a folder. */
int ek_tokens_is_file(const char *path);

/* How many of the paths of one stream are token files: all or none.  EK_EINVAL for a mixture. */
EK_CHECKED ek_status ek_tokens_count_files(const char *const *paths, int64_t n, int64_t *files);

/* Opens and checks every id against the vocabulary.  EK_EINVAL for a mixture of .bin files and
 * texts, EK_ENOENT, EK_EFORMAT for files without tokens, of odd size or with an id beyond the
 * vocabulary, EK_ENOSPC and EK_EIO for a cache that cannot be written, EK_EINVAL for a folder of it
 * that others own or may write to, EK_ECANCELED. */
EK_CHECKED ek_status ek_tokens_open(const ek_tokens_config *config, ek_tokens **out);

/* A stream over ids in memory, which it borrows: the layout of a .bin file.  `name` is for
 * messages. */
EK_CHECKED ek_status ek_tokens_wrap(const void *data, size_t bytes, int token_bytes, int64_t vocab,
                                    const char *name, ek_tokens **out);
void ek_tokens_close(ek_tokens **t);

ek_tokens_info ek_tokens_get_info(const ek_tokens *t);

/* Copies ids [at, at + n), which the stream must have.  EK_EFORMAT where a file was cut short or
 * changed since it was opened, EK_EIO. */
EK_CHECKED ek_status ek_tokens_read(const ek_tokens *t, int64_t at, int64_t n, int32_t *out);

#endif
