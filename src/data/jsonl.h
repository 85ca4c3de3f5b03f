/* data/jsonl.h - the text of one line of a JSON Lines file.
 *
 * The line is read once, without building a tree: memory is that of the text, whatever else the
 * line holds.  The whole line has to be JSON (RFC 8259), nested at most 64 deep; bytes of strings
 * are taken as they are, \u escapes become UTF-8, half of a surrogate pair U+FFFD. */
#ifndef DATA_JSONL_H
#define DATA_JSONL_H

#include "evenkeel/err.h"

#include <stddef.h>

/* What is wrong with a line, and where in it. */
typedef struct {
    const char *what; /* NULL: nothing */
    size_t column;    /* byte, from 1; 0: the line as a whole */
} ek_jsonl_fault;

/* The string at key `field` of the line's object; of equal keys the last.  text has room for n
 * bytes, *bytes of them are used.  Returns true, or false with *fault. */
int ek_jsonl_text(const char *line, size_t n, const char *field, char *text, size_t *bytes,
                  ek_jsonl_fault *fault);

/* Whether a line holds nothing but white space. */
int ek_jsonl_is_blank(const char *line, size_t n);

#endif
