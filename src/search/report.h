/* search/report.h - the answer of a search: for people, as JSON, and as a pool file
 * (docs/formats.md). */
#ifndef SEARCH_REPORT_H
#define SEARCH_REPORT_H

#include "search/search.h"

#include <stdio.h>

/* Errors are left in ferror(out).  JSON: one object on a line. */
void ek_search_write_text(const ek_search *s, FILE *out);
void ek_search_write_json(const ek_search *s, FILE *out);

/* Replaces the file.  EK_EIO, EK_ENOSPC, EK_ENOMEM. */
EK_CHECKED ek_status ek_search_write_pool(const ek_search *s, const char *path);

#endif
