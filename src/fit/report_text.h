/* fit/report_text.h - the answers of `evenkeel fit` as text. */
#ifndef FIT_REPORT_TEXT_H
#define FIT_REPORT_TEXT_H

#include "fit/report.h"

#include <stdio.h>

/* Errors are left in ferror(out).  json: one object on a line. */
void ek_fit_write_json(const ek_fit_report *r, FILE *out);
void ek_fit_write_table(const ek_fit_report *r, FILE *out);

#endif
