/* sim/report_html.h - the outcome of a simulation as a page (sim/html.h). */
#ifndef SIM_REPORT_HTML_H
#define SIM_REPORT_HTML_H

#include "sim/html.h"
#include "sim/report.h"

/* What parts of a step are drawn as: groups of ek_sim_part by colour.  Fills parts
 * [EK_HTML_COLOURS] with the seconds of each. */
void ek_sim_colour_parts(const ek_sim_parts *p, ek_html_part *parts);

/* Errors are left in ferror(out). */
void ek_sim_write_html(const ek_sim_report *r, FILE *out);

#endif
