/* Pages, tables and bars. */
#include "sim/html.h"

#include "base/file.h"
#include "base/printable.h"
#include "cost/cost.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT = 4096 };

/* --- text ------------------------------------------------------------------------------------- */

static void put_escaped(FILE *f, const char *text)
{
    for (; *text != '\0'; text++)
        switch (*text) {
        case '&': fputs("&amp;", f); break;
        case '<': fputs("&lt;", f); break;
        case '>': fputs("&gt;", f); break;
        case '"': fputs("&quot;", f); break;
        case '\'': fputs("&#39;", f); break;
        default: fputc(*text, f);
        }
}

void ek_html_text(FILE *f, const char *text)
{
    char printable[TEXT];

    put_escaped(f, ek_printable(printable, sizeof(printable), text));
}

void ek_html_format(FILE *f, const char *fmt, ...)
{
    char text[TEXT];
    va_list ap;

    va_start(ap, fmt);
    ek_printable_format(text, sizeof(text), fmt, ap);
    va_end(ap);
    put_escaped(f, text);
}

/* --- pages ------------------------------------------------------------------------------------ */

static const char style[] =
    ":root{color-scheme:light dark;--fg:#1c2127;--dim:#57606a;--bg:#fff;--card:#f5f7f9;"
    "--line:#d5dbe1;--c0:#0b62a4;--c1:#4aa3d8;--c2:#3a9d7c;--c3:#a3c26b;--c4:#b06ab3;--c5:#cf5b14;"
    "--c6:#eaa221;--c7:#b4bcc5;--c8:#87919c}"
    "@media(prefers-color-scheme:dark){:root{--fg:#e3e7eb;--dim:#9aa4ae;--bg:#14171b;--card:#"
    "1d2228;"
    "--line:#353c44;--c0:#3f8fd0;--c1:#7cc3ee;--c2:#4fb893;--c3:#b4d27c;--c4:#c68ac9;--c5:#ec7a35;"
    "--c6:#f0b54b;--c7:#59626c;--c8:#77818c}}"
    "@media print{:root{--fg:#000;--dim:#444;--bg:#fff;--card:#fff;--line:#bbb;--c0:#0b62a4;"
    "--c1:#4aa3d8;--c2:#3a9d7c;--c3:#a3c26b;--c4:#b06ab3;--c5:#cf5b14;--c6:#eaa221;--c7:#b4bcc5;"
    "--c8:#87919c}"
    "main{max-width:none;padding:0}figure,table,.tiles{break-inside:avoid}h2{break-after:avoid}"
    "*{-webkit-print-color-adjust:exact;print-color-adjust:exact}}"
    "*{box-sizing:border-box}"
    "body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,-apple-system,"
    "\"Segoe UI\",Roboto,\"Helvetica Neue\",Arial,sans-serif}"
    "main{max-width:1040px;margin:0 auto;padding:28px 24px 48px}"
    "h1{font-size:25px;line-height:1.25;margin:0 0 4px;overflow-wrap:anywhere}"
    "h2{font-size:18px;margin:0 0 6px}"
    "p{margin:0 0 12px;max-width:80ch;color:var(--dim)}"
    ".sub{margin:0;color:var(--dim);max-width:none;overflow-wrap:anywhere}"
    "section{margin-top:38px}"
    ".tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;"
    "margin:22px 0 0}"
    ".tile{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 14px}"
    ".tile dt{font-size:13px;color:var(--dim)}.tile dd{margin:0}"
    ".tile .figure{font-size:23px;font-weight:600;line-height:1.3;white-space:nowrap}"
    ".tile .remark{font-size:12.5px;color:var(--dim);line-height:1.35}"
    "table{border-collapse:collapse;width:100%;margin:0 0 10px;font-variant-numeric:tabular-nums}"
    "caption{text-align:left;color:var(--dim);font-size:13.5px;padding:0 0 4px}"
    "th{font-weight:600;font-size:13px;color:var(--dim);text-align:left;vertical-align:bottom}"
    "th,td{padding:4px 14px 4px 0;border-bottom:1px solid var(--line)}"
    "td{vertical-align:middle}tbody "
    "th{color:var(--fg);font-weight:400;font-size:15px;vertical-align:middle}"
    "small{color:var(--dim)}.n{text-align:right;white-space:nowrap}th:last-child,td:last-child{"
    "padding-right:0}"
    ".wide{width:46%}.best td,.best th{font-weight:600}"
    ".scroll{overflow-x:auto}"
    "code{font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,\"DejaVu Sans Mono\",monospace;"
    "overflow-wrap:anywhere}"
    "data,.w{white-space:nowrap}code.copy{user-select:all;-webkit-user-select:all;cursor:copy}"
    "pre{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 14px;"
    "margin:0 0 12px;white-space:pre-wrap}"
    "svg{display:block;width:100%;height:auto}svg.bar{height:16px}"
    "figure{margin:0 0 14px}figcaption{font-weight:600;font-size:14px;margin-bottom:2px}"
    ".pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(400px,1fr));gap:20px}"
    ".legend{list-style:none;display:flex;flex-wrap:wrap;gap:2px 18px;margin:0 0 8px;padding:0;"
    "font-size:13.5px}.legend svg{display:inline-block;width:11px;height:11px;margin-right:6px;"
    "vertical-align:-1px}"
    ".c0{fill:var(--c0)}.c1{fill:var(--c1)}.c2{fill:var(--c2)}.c3{fill:var(--c3)}"
    ".c4{fill:var(--c4)}.c5{fill:var(--c5)}.c6{fill:var(--c6)}.c7{fill:var(--c7)}"
    ".c8{fill:var(--c8)}"
    ".l0{stroke:var(--c0)}.l1{stroke:var(--c1)}.l2{stroke:var(--c2)}.l3{stroke:var(--c3)}"
    ".l4{stroke:var(--c4)}.l5{stroke:var(--c5)}.l6{stroke:var(--c6)}.l7{stroke:var(--c7)}"
    ".l8{stroke:var(--c8)}"
    ".curve{fill:none;stroke-width:2}.grid{stroke:var(--line)}.axis{stroke:var(--dim)}"
    ".mark{stroke:var(--fg);stroke-width:2}.limit{stroke:var(--fg);stroke-dasharray:5 4}"
    ".track{fill:var(--card)}.ring{fill:none;stroke:var(--fg);stroke-width:2}"
    "svg text{fill:var(--dim);font-size:12px}svg text.strong{fill:var(--fg)}"
    "svg text.on{fill:var(--fg);font-size:9px}"
    "footer{margin-top:38px;border-top:1px solid var(--line);padding-top:10px;font-size:13px}";

ek_status ek_html_file(const char *path, void (*write)(const void *subject, FILE *f),
                       const void *subject)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    int failed = f == NULL;
    ek_status st;

    if (f != NULL) {
        write(subject, f);
        failed = ferror(f);
        failed |= fclose(f) != 0;
    }
    st = failed ? EK_FAIL(EK_ENOMEM, "no memory for %s", path)
                : ek_file_replace(NULL, path, text, bytes);
    free(text);
    return st;
}

void ek_html_begin(FILE *f, const char *title, const char *subtitle)
{
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
          "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src &#39;none&#39;; "
          "style-src &#39;unsafe-inline&#39;\"/>\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>",
          f);
    ek_html_text(f, title);
    fprintf(f, "</title>\n<style>%s</style>\n</head>\n<body>\n<main>\n<h1>", style);
    ek_html_text(f, title);
    fputs("</h1>\n<p class=\"sub\">", f);
    ek_html_text(f, subtitle);
    fputs("</p>\n", f);
}

void ek_html_end(FILE *f, const char *note)
{
    fputs("<footer><p>", f);
    ek_html_text(f, note);
    fputs("</p></footer>\n</main>\n</body>\n</html>\n", f);
}

void ek_html_section(FILE *f, const char *heading)
{
    fputs("<section>\n<h2>", f);
    ek_html_text(f, heading);
    fputs("</h2>\n", f);
}

void ek_html_section_end(FILE *f)
{
    fputs("</section>\n", f);
}

void ek_html_paragraph(FILE *f, const char *text)
{
    fputs("<p>", f);
    ek_html_text(f, text);
    fputs("</p>\n", f);
}

/* --- figures ---------------------------------------------------------------------------------- */

void ek_html_quantity(FILE *f, double x, const char *unit)
{
    char text[EK_COST_QUANTITY];
    const char *micro;

    if (unit[0] == '\0' && x == floor(x) && fabs(x) < 1e6)
        (void)snprintf(text, sizeof(text), "%.0f", x); /* a count */
    else
        ek_cost_quantity(text, x, unit);
    micro = strstr(text, " u");
    fprintf(f, "<data value=\"%.12g\">", x);
    if (micro != NULL) {
        fprintf(f, "%.*s \xc2\xb5", (int)(micro - text), text);
        put_escaped(f, micro + 2);
    } else {
        put_escaped(f, text);
    }
    fputs("</data>", f);
}

void ek_html_tile(FILE *f, const char *label, double x, const char *unit, const char *remark)
{
    fputs("<div class=\"tile\"><dt>", f);
    ek_html_text(f, label);
    fputs("</dt><dd class=\"figure\">", f);
    ek_html_quantity(f, x, unit);
    fputs("</dd>", f);
    if (remark != NULL) {
        fputs("<dd class=\"remark\">", f);
        ek_html_text(f, remark);
        fputs("</dd>", f);
    }
    fputs("</div>\n", f);
}

/* --- tables ----------------------------------------------------------------------------------- */

void ek_html_table(FILE *f, const char *caption, const char *labels)
{
    fputs("<div class=\"scroll\"><table>", f);
    if (caption != NULL) {
        fputs("<caption>", f);
        ek_html_text(f, caption);
        fputs("</caption>", f);
    }
    fputs("<thead><tr>", f);
    while (labels != NULL) {
        const char *end = strchr(labels, '|');
        int number = labels[0] == '>';
        const char *from = labels + number;

        fprintf(f, "<th scope=\"col\"%s>", number ? " class=\"n\"" : "");
        ek_html_format(f, "%.*s", (int)(end != NULL ? (size_t)(end - from) : strlen(from)), from);
        fputs("</th>", f);
        labels = end != NULL ? end + 1 : NULL;
    }
    fputs("</tr></thead>\n<tbody>\n", f);
}

void ek_html_table_end(FILE *f)
{
    fputs("</tbody></table></div>\n", f);
}

void ek_html_number_cell(FILE *f, double x, const char *unit)
{
    fputs("<td class=\"n\">", f);
    ek_html_quantity(f, x, unit);
    fputs("</td>", f);
}

void ek_html_text_cell(FILE *f, const char *text)
{
    fputs("<td>", f);
    ek_html_text(f, text);
    fputs("</td>", f);
}

/* --- bars ------------------------------------------------------------------------------------- */

enum { LONG = 1000 };

void ek_html_put_bar(FILE *f, const ek_html_bar *b)
{
    double scale = b->whole > 0 ? LONG / b->whole : 0, at = 0;
    char text[EK_COST_QUANTITY];

    fprintf(f,
            "<svg class=\"bar\" viewBox=\"0 0 %d 16\" preserveAspectRatio=\"none\" role=\"img\" "
            "aria-label=\"",
            LONG);
    for (int i = 0; i < b->n; i++)
        if (b->parts[i].value > 0)
            ek_html_format(f, "%s %s; ", b->parts[i].name,
                           ek_cost_quantity(text, b->parts[i].value, b->unit));
    fputs("\">", f);
    fprintf(f, "<rect class=\"track\" width=\"%d\" height=\"16\"/>", LONG);
    for (int i = 0; i < b->n; i++) {
        double wide = b->parts[i].value * scale;

        if (wide > 0.05) {
            fprintf(f,
                    "<rect class=\"c%d\" x=\"%.1f\" y=\"1\" width=\"%.1f\" height=\"14\"><title>",
                    (int)b->parts[i].colour, at, wide);
            ek_html_format(f, "%s: %s", b->parts[i].name,
                           ek_cost_quantity(text, b->parts[i].value, b->unit));
            fputs("</title></rect>", f);
        }
        at += wide;
    }
    if (b->mark > 0 && b->mark <= b->whole) {
        fprintf(f, "<path class=\"mark\" d=\"M%.1f 0v16\"><title>", b->mark * scale);
        ek_html_format(f, "%s: %s", b->mark_name, ek_cost_quantity(text, b->mark, b->unit));
        fputs("</title></path>", f);
    }
    fputs("</svg>", f);
}

void ek_html_legend(FILE *f, const ek_html_part *parts, int n)
{
    fputs("<ul class=\"legend\">", f);
    for (int i = 0; i < n; i++) {
        fprintf(f,
                "<li><svg viewBox=\"0 0 1 1\" aria-hidden=\"true\"><rect class=\"c%d\" "
                "width=\"1\" height=\"1\"/></svg>",
                (int)parts[i].colour);
        ek_html_text(f, parts[i].name);
        fputs("</li>", f);
    }
    fputs("</ul>\n", f);
}
