/* base/count_text.h - counts and bytes as people read them. */
#ifndef BASE_COUNT_TEXT_H
#define BASE_COUNT_TEXT_H

#include <stddef.h>

/* "12.3 M", "4.56 G": a count with three significant digits; buf of at least 16 bytes. */
const char *ek_count_text(char *buf, size_t cap, double n);

#endif
