/* data/sources.h - what --data names: one token stream, or several with weights.
 *
 * PATH:WEIGHT, with a positive decimal number, makes a path a source of its own; a path that exists
 * as it is written is taken as it is.  Either every path has a weight or none has: then all of them
 * together are one stream. */
#ifndef DATA_SOURCES_H
#define DATA_SOURCES_H

#include "evenkeel/err.h"

#include "base/file.h"
#include "data/tokens.h"

#include <stdint.h>

enum { EK_SOURCES_MAX = 256 };

typedef struct {
    ek_tokens *tokens[EK_SOURCES_MAX];
    uint64_t share[EK_SOURCES_MAX]; /* weights as whole numbers, 2^31 all together, or nearly */
    int64_t n;
} ek_sources;

/* The path that a text of --data names.  Returns the weight's place in the text, behind the colon,
 * or NULL where it has none. */
EK_CHECKED ek_status ek_source_path(const char *text, ek_path *path, const char **weight);

/* Whether one of them is a text, which needs a tokenizer.  EK_EINVAL where texts and token files
 * are mixed without weights. */
EK_CHECKED ek_status ek_sources_have_texts(const char *const *paths, int64_t n, int *have);

/* Opens the streams of config->paths.  EK_EINVAL for weights that are 0 or that some paths lack;
 * else as ek_tokens_open.  On failure nothing is open. */
EK_CHECKED ek_status ek_sources_open(const ek_tokens_config *config, ek_sources *out);
void ek_sources_close(ek_sources *s);

/* Tokens of all streams. */
int64_t ek_sources_tokens(const ek_sources *s);

/* "1234 tokens", or of several "share of 1234 tokens, ...": equal for equal streams and weights. */
EK_CHECKED ek_status ek_sources_describe(const ek_sources *s, char *text, size_t cap);

#endif
