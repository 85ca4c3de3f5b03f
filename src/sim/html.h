/* sim/html.h - pages in HTML: one file each, without scripts and without anything from elsewhere,
 * which its policy (Content-Security-Policy) forbids; readable in light and dark, and on paper.
 *
 * Pages are also well-formed XML.  All text of foreign origin goes through ek_html_text.  Charts
 * are in sim/chart.h.  Errors of writing are left in
 * ferror(f). */
#ifndef SIM_HTML_H
#define SIM_HTML_H

#include "evenkeel/err.h"

#include <stdio.h>

/* Colours of parts and lines: class c<N> of the style sheet. */
typedef enum {
    EK_HTML_EXPERTS,
    EK_HTML_ATTENTION,
    EK_HTML_COMPUTE,
    EK_HTML_OPTIMIZER,
    EK_HTML_OVERHEAD,
    EK_HTML_TRANSFER,
    EK_HTML_SKEW,
    EK_HTML_BUBBLE,
    EK_HTML_END,
    EK_HTML_COLOURS
} ek_html_colour;

/* Writes a page to a file, which it replaces.  EK_ENOMEM, EK_EIO, EK_ENOSPC. */
EK_CHECKED ek_status ek_html_file(const char *path, void (*write)(const void *subject, FILE *f),
                                  const void *subject);

void ek_html_begin(FILE *f, const char *title, const char *subtitle);
/* Ends the page with a note, which may be NULL. */
void ek_html_end(FILE *f, const char *note);

/* A text, made printable (base/printable.h) and escaped for content and attributes. */
void ek_html_text(FILE *f, const char *text);
/* Formatted and written so. */
void ek_html_format(FILE *f, const char *fmt, ...) EK_PRINTF(2, 3);

/* A section with a heading; one is ended before the next. */
void ek_html_section(FILE *f, const char *heading);
void ek_html_section_end(FILE *f);
/* A paragraph of plain text. */
void ek_html_paragraph(FILE *f, const char *text);

/* "233 ms": the number with three digits, a count without a unit with all, as an element whose
 * value has all. */
void ek_html_quantity(FILE *f, double x, const char *unit);
/* A tile with a figure: label, quantity, and a remark below, which may be NULL. */
void ek_html_tile(FILE *f, const char *label, double x, const char *unit, const char *remark);

/* A table's head from labels separated by |; a label that begins with > is of numbers. */
void ek_html_table(FILE *f, const char *caption, const char *labels);
void ek_html_table_end(FILE *f);
void ek_html_number_cell(FILE *f, double x, const char *unit);
void ek_html_text_cell(FILE *f, const char *text);

typedef struct {
    const char *name;
    double value;
    ek_html_colour colour;
} ek_html_part;

/* A bar of parts beside each other, of a full length `whole`; mark: where a line crosses it, 0:
 * nowhere.  unit: of values. */
typedef struct {
    const ek_html_part *parts;
    int n;
    double whole, mark;
    const char *mark_name, *unit;
} ek_html_bar;

void ek_html_put_bar(FILE *f, const ek_html_bar *bar);

/* Names with their colours, of n parts. */
void ek_html_legend(FILE *f, const ek_html_part *parts, int n);

#endif
