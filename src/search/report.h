/* search/report.h - the answer of a search: for people, as JSON, and as a pool file
 * (docs/formats.md). */
#ifndef SEARCH_REPORT_H
#define SEARCH_REPORT_H

#include "search/search.h"

#include <stdio.h>

double ek_search_tokens_per_s(const ek_search *s, const ek_search_layout *l);
double ek_search_mfu(const ek_search *s, const ek_search_layout *l);

enum { EK_SEARCH_WORDS = 256 };

/* Options of train: those of the choice, and a policy that was found to be better.  text [cap];
 * returned. */
const char *ek_search_words(const ek_search_layout *l, char *text, size_t cap);

/* The part of a step that grew most from one layout to another; its seconds and its name [cap]. */
double ek_search_most_grown(const ek_search_layout *from, const ek_search_layout *to, char *name,
                            size_t cap);

/* Errors are left in ferror(out).  JSON: one object on a line. */
void ek_search_write_text(const ek_search *s, FILE *out);
void ek_search_write_json(const ek_search *s, FILE *out);

/* The text of a pool file; the caller frees it.  EK_ENOMEM. */
EK_CHECKED ek_status ek_search_pool_text(const ek_search *s, char **text);
/* Replaces the file.  EK_EIO, EK_ENOSPC, EK_ENOMEM. */
EK_CHECKED ek_status ek_search_write_pool(const ek_search *s, const char *path);

#endif
