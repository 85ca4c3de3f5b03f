/* data/tokens.h - a token stream: the data of training and evaluation.
 *
 * It is read from token files (.bin: little-endian unsigned integers of 2 or 4 bytes, nothing
 * else), concatenated, or from texts: files, and folders searched recursively in byte order of
 * their paths.  Every text is a document, encoded by itself and followed by the end token; a .jsonl
 * or .ndjson file holds one on each line.  Texts may be compressed (.gz, .zst).  They are encoded
 * once, by the OpenMP team, into a cache file; the stream does not depend on the number of threads.
 * Skipped, counted, and reported through ek_log: empty texts, and in folders files with a NUL byte
 * in their first 8 KiB (binary).  Names that begin with a dot are skipped silently.  Refused by
 * name: other formats (Parquet, PDF, archives, ...), and binary files that are named themselves.
 *
 * Cache file   DIR/tokens-<hash>.ekt, named by the hash of the files' paths, the tokenizer, its end
 *              token and the text field.  It holds the ids as a .bin file does (2 bytes each if the
 *              tokenizer's vocabulary allows it), then a record of 88 bytes with a hash of the
 *              files' contents, counts and checksums (data/tokens_priv.h).  It is created by a
 *              rename, and replaced if it does not match its record or the files' contents.  DIR
 *              and the file must be private to this user; others are not read.
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
    const char *cache_dir;   /* for texts: folder of the cache file, created if missing.  NULL: no
                                cache, ids are written to an unnamed file... */
    const char *scratch_dir; /* ... in this folder */
    /* Called from the opening thread while texts are encoded; may be NULL. */
    void (*progress)(void *context, int64_t bytes_done, int64_t bytes_total);
    int (*stop)(void *context); /* polled likewise; true ends the encoding with EK_ECANCELED */
    void *context;
    const char *text_field; /* of JSON Lines files: the key of a line's text; NULL: "text" */
} ek_tokens_config;

typedef struct {
    int64_t n_tokens;
    int64_t documents;                     /* 0 for token files, where it is not known */
    int64_t skipped_binary, skipped_empty; /* skipped texts */
    int64_t text_bytes;                    /* of the documents */
    int from_cache;                        /* read from a cache file */
} ek_tokens_info;

/* Whether a path names a token file: .bin, and not a folder. */
int ek_tokens_is_file(const char *path);

/* The number of token files among the paths of one stream: all or none.  EK_EINVAL for a
 * mixture. */
EK_CHECKED ek_status ek_tokens_count_files(const char *const *paths, int64_t n, int64_t *files);

/* Opens a stream and checks every id against the vocabulary.  EK_EINVAL: .bin files are mixed with
 * texts, or the cache folder belongs to or is writable by others; EK_ENOENT; EK_EFORMAT: files
 * without tokens, of odd size, or with an id beyond the vocabulary; EK_ENOSPC, EK_EIO: the cache
 * cannot be written; EK_ECANCELED. */
EK_CHECKED ek_status ek_tokens_open(const ek_tokens_config *config, ek_tokens **out);

/* A stream over ids in memory, borrowed, in the layout of a .bin file. `name` is its name in
 * messages. */
EK_CHECKED ek_status ek_tokens_wrap(const void *data, size_t bytes, int token_bytes, int64_t vocab,
                                    const char *name, ek_tokens **out);
/* Closes the files and frees *t; a cache file stays. */
void ek_tokens_close(ek_tokens **t);

/* Counts of the whole stream. */
ek_tokens_info ek_tokens_get_info(const ek_tokens *t);

/* Copies ids [at, at + n), a range of the stream.  EK_EFORMAT: a file was truncated or changed
 * since it was opened; EK_EIO. */
EK_CHECKED ek_status ek_tokens_read(const ek_tokens *t, int64_t at, int64_t n, int32_t *out);

#endif
