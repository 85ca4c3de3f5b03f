/* data/tokenizer_files.h - the small files beside a tokenizer.json that other tools use.
 *
 *   tokenizer_config.json, special_tokens_map.json   tokenizer class and special tokens
 *   chat_template.jinja                              copied if present, never made
 *   generation_config.json                           begin and end token ids
 *
 * They are copied byte for byte from a model's folder to its checkpoints and exports; missing ones
 * are made.  Their contents are not interpreted here. */
#ifndef DATA_TOKENIZER_FILES_H
#define DATA_TOKENIZER_FILES_H

#include "evenkeel/err.h"

#include "data/tokenizer.h"

#include <stddef.h>
#include <stdint.h>

enum { EK_TOKENIZER_FILES = 4 };

/* Zero-initialised is empty. */
typedef struct {
    char *text[EK_TOKENIZER_FILES]; /* owned; NULL: none */
    size_t bytes[EK_TOKENIZER_FILES];
} ek_tokenizer_files;

/* The name of file i. */
const char *ek_tokenizer_file_name(int i);

/* Reads the files that a folder has. with_generation: also generation_config.json, which belongs to
 * the model.  EK_EFORMAT, EK_EIO: a file cannot be read. */
EK_CHECKED ek_status ek_tokenizer_files_read(const char *folder, int with_generation,
                                             ek_tokenizer_files *out);
/* Frees the texts; *f is then empty. */
void ek_tokenizer_files_free(ek_tokenizer_files *f);

/* Makes the missing files.
 * t          NULL: only generation_config.json is made
 * bos, eos   the config's ids, -1: none.  An eos that is not a special token of t is replaced by
 *            the token that ends t's documents
 * positions  the model's maximum length */
EK_CHECKED ek_status ek_tokenizer_files_complete(ek_tokenizer_files *f, const ek_tokenizer *t,
                                                 int64_t bos, int64_t eos, int64_t positions);

/* The end token as above; -1: none. */
int64_t ek_tokenizer_files_eos(const ek_tokenizer *t, int64_t eos);

#endif
