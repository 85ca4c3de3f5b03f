/* data/tokenizer_files.h - the small files beside a tokenizer.json that other tools look for.
 *
 *   tokenizer_config.json, special_tokens_map.json   which class reads it, its special tokens
 *   chat_template.jinja                              where there is one; never made
 *   generation_config.json                           the ids that begin and end a text
 *
 * They are carried along byte for byte, from the folder that a model came from through its
 * checkpoints to an export, and made from what is known where they were missing.  Nothing here
 * reads what they say. */
#ifndef DATA_TOKENIZER_FILES_H
#define DATA_TOKENIZER_FILES_H

#include "evenkeel/err.h"

#include "data/tokenizer.h"

#include <stddef.h>
#include <stdint.h>

enum { EK_TOKENIZER_FILES = 4 };

/* Zeroed is empty. */
typedef struct {
    char *text[EK_TOKENIZER_FILES]; /* owned; NULL: there is none */
    size_t bytes[EK_TOKENIZER_FILES];
} ek_tokenizer_files;

/* The name of file i. */
const char *ek_tokenizer_file_name(int i);

/* Reads those that a folder has.  with_generation: also generation_config.json, which belongs to
 * the model.  EK_EFORMAT, EK_EIO for one that cannot be read. */
EK_CHECKED ek_status ek_tokenizer_files_read(const char *folder, int with_generation,
                                             ek_tokenizer_files *out);
void ek_tokenizer_files_free(ek_tokenizer_files *f);

/* Makes those that are missing.
 * t          may be NULL: then only generation_config.json
 * bos, eos   the config's ids, -1: none.  An eos that is no special token of t gives way to the
 *            token that ends t's documents
 * positions  the longest text of the model */
EK_CHECKED ek_status ek_tokenizer_files_complete(ek_tokenizer_files *f, const ek_tokenizer *t,
                                                 int64_t bos, int64_t eos, int64_t positions);

/* The token that ends a text, as above; -1: none. */
int64_t ek_tokenizer_files_eos(const ek_tokenizer *t, int64_t eos);

#endif
