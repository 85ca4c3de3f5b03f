/* data/sources.h - the data sources of --data: one token stream, or several with weights.
 *
 * PATH:WEIGHT, with a positive decimal number, makes a path a source of its own; a path that exists
 * under the whole text is taken literally.  Either every path has a weight, or none has: then all
 * of them are one stream. */
#ifndef DATA_SOURCES_H
#define DATA_SOURCES_H

#include "evenkeel/err.h"

#include "base/file.h"
#include "data/tokens.h"

#include <stdint.h>

enum { EK_SOURCES_MAX = 256 };

typedef struct {
    ek_tokens *tokens[EK_SOURCES_MAX];
    uint64_t share[EK_SOURCES_MAX]; /* weights as integers with a sum of about 2^31 */
    int64_t n;
} ek_sources;

/* Splits an argument of --data into path and weight. *weight points into text, after the colon, or
 * is NULL if there is no weight. */
EK_CHECKED ek_status ek_source_path(const char *text, ek_path *path, const char **weight);

/* Whether a path is a text, which needs a tokenizer.  EK_EINVAL: texts and token files are mixed
 * without weights. */
EK_CHECKED ek_status ek_sources_have_texts(const char *const *paths, int64_t n, int *have);

/* Opens the streams of config->paths.  EK_EINVAL: a weight is 0, or only some paths have one; else
 * as ek_tokens_open.  On failure nothing is open. */
EK_CHECKED ek_status ek_sources_open(const ek_tokens_config *config, ek_sources *out);
/* Closes the streams. */
void ek_sources_close(ek_sources *s);

/* Total number of tokens. */
int64_t ek_sources_tokens(const ek_sources *s);

/* Writes "1234 tokens", or for several sources "share of 1234 tokens, ...": equal for equal streams
 * and weights. */
EK_CHECKED ek_status ek_sources_describe(const ek_sources *s, char *text, size_t cap);

#endif
