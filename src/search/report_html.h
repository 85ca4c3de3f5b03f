/* search/report_html.h - the answer of a search as a page (sim/html.h). */
#ifndef SEARCH_REPORT_HTML_H
#define SEARCH_REPORT_HTML_H

#include "search/search.h"

#include <stdio.h>

/* Errors are left in ferror(out). */
void ek_search_write_html(const ek_search *s, FILE *out);

#endif
