/* sim/failures_html.h - the section of a simulation's page about its run under failures. */
#ifndef SIM_FAILURES_HTML_H
#define SIM_FAILURES_HTML_H

#include "sim/report.h"

/* Nothing without failures.  Errors are left in ferror(f). */
void ek_sim_failures_html(const ek_sim_report *r, FILE *f);

#endif
