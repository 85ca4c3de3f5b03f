/* data/jsonl.h - extracts the text of one line of a JSON Lines file.
 *
 * The line is scanned once, without building a tree, so memory is that of the text.  The whole line
 * must be JSON (RFC 8259), nested at most 64 deep; bytes of strings are copied, \u escapes become
 * UTF-8, half of a surrogate pair U+FFFD. */
#ifndef DATA_JSONL_H
#define DATA_JSONL_H

#include "evenkeel/err.h"

#include <stddef.h>

/* A defect of a line, and its position. */
typedef struct {
    const char *what; /* NULL: none */
    size_t column;    /* byte, from 1; 0: the line as a whole */
} ek_jsonl_fault;

/* The string at key `field` of the line's object; of duplicate keys the last. text has a capacity
 * of n bytes, of which *bytes are used.  Returns true, or false with *fault. */
int ek_jsonl_text(const char *line, size_t n, const char *field, char *text, size_t *bytes,
                  ek_jsonl_fault *fault);

/* Whether a line is only white space. */
int ek_jsonl_is_blank(const char *line, size_t n);

#endif
