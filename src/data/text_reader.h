/* data/text_reader.h - reads text files in order, once, in blocks that can be encoded separately.
 *
 * A text file is one document; a .jsonl or .ndjson file has one on each line, a string at the text
 * field.  Either may be compressed (data/byte_stream.h).  A block of a text ends where the
 * tokenizer allows a cut, a block of a JSON Lines file at the end of a line.
 *
 * Memory       two blocks: about 4 MiB; more for a text that cannot be cut (up to 1 GiB) and for
 *              longer lines (up to 64 MiB). */
#ifndef DATA_TEXT_READER_H
#define DATA_TEXT_READER_H

#include "evenkeel/err.h"

#include "data/tokenizer.h"

#include <stddef.h>
#include <stdint.h>

typedef struct {
    const char *path; /* borrowed from the reader's caller */
    char *text;       /* [n], owned by the block */
    size_t n;
    int lines;       /* JSON Lines: whole lines, the first with number `line` */
    int64_t line;    /* from 1 */
    int first, last; /* first, last block of the file */
    enum { EK_TEXT_BLOCK_UTF8, EK_TEXT_BLOCK_BINARY, EK_TEXT_BLOCK_EMPTY } kind;
} ek_text_block;

/* Frees the text. */
void ek_text_block_free(ek_text_block *p);

/* EK_EFORMAT for a file that is known to be neither text nor tokens (Parquet, PDF, archives, ...);
 * the message names the format. */
EK_CHECKED ek_status ek_text_check_name(const char *path);

typedef struct ek_text_reader ek_text_reader;

/* tokenizer is borrowed; ek_text_reader_destroy frees *out and closes its file. */
EK_CHECKED ek_status ek_text_reader_create(const ek_tokenizer *tokenizer, ek_text_reader **out);
void ek_text_reader_destroy(ek_text_reader **r);

/* Opens a file and closes the one before. */
EK_CHECKED ek_status ek_text_reader_open(ek_text_reader *r, const char *path);

/* The next block of the file, in new memory; `last` is set on the last one.  EK_EFORMAT, with the
 * position, for a damaged or truncated stream and for a line or text that is too long. */
EK_CHECKED ek_status ek_text_reader_next(ek_text_reader *r, ek_text_block *out);

/* Bytes of the open file consumed so far. */
int64_t ek_text_reader_position(const ek_text_reader *r);

#endif
