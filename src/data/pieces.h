/* data/pieces.h - files of texts in pieces that can be encoded apart, read once and in order.
 *
 * A text file is one document; a .jsonl or .ndjson file has one on each line, a string at the text
 * field.  Either may be compressed (data/byte_stream.h).  A piece of a text ends where the
 * tokenizer allows a cut, a piece of a JSON Lines file at the end of a line.
 * Memory       two pieces: about 4 MiB, more only for a text that cannot be cut (up to 1 GiB) and
 *              for lines that are longer (up to 64 MiB). */
#ifndef DATA_PIECES_H
#define DATA_PIECES_H

#include "evenkeel/err.h"

#include "data/tokenizer.h"

#include <stddef.h>
#include <stdint.h>

typedef struct {
    const char *path; /* borrowed from the reader's caller */
    char *text;       /* [n], owned by the piece */
    size_t n;
    int lines;       /* JSON Lines: whole lines, the first of them number `line` */
    int64_t line;    /* from 1 */
    int first, last; /* the file begins, ends with it */
    enum { EK_PIECE_TEXT, EK_PIECE_BINARY, EK_PIECE_EMPTY } kind;
} ek_piece;

void ek_piece_free(ek_piece *p);

/* Whether a path names a JSON Lines file, compressed or not. */
int ek_pieces_are_lines(const char *path);

/* Refuses, by the name of its format, a file that is known to be neither text nor tokens: Parquet,
 * PDF, archives, ...  EK_EFORMAT. */
EK_CHECKED ek_status ek_pieces_check_name(const char *path);

typedef struct ek_piece_reader ek_piece_reader;

/* tokenizer is borrowed. */
EK_CHECKED ek_status ek_piece_reader_create(const ek_tokenizer *tokenizer, ek_piece_reader **out);
void ek_piece_reader_destroy(ek_piece_reader **r);

/* Begins a file, closing the one before. */
EK_CHECKED ek_status ek_piece_reader_open(ek_piece_reader *r, const char *path);

/* The next piece of the file, in new memory; the one with `last` set is the last.  EK_EFORMAT for a
 * damaged or truncated stream and for a line or a text that is too long, with the place. */
EK_CHECKED ek_status ek_piece_reader_next(ek_piece_reader *r, ek_piece *out);

/* Bytes of the open file that were consumed. */
int64_t ek_piece_reader_position(const ek_piece_reader *r);

#endif
