/* The page's section on failures: the figures of the text, in a table. */
#include "sim/failures_html.h"

#include "base/count_text.h"
#include "cost/cost.h"
#include "sim/html.h"

#include <inttypes.h>

/* A number as people read it; its element's value has all digits. */
static void put_number(FILE *f, double x, const char *unit)
{
    char text[32];

    if (unit[0] == 's' && x >= 120)
        ek_time_text(text, sizeof(text), x);
    else if (unit[0] != '\0')
        ek_cost_quantity(text, x, unit);
    else
        ek_number_text(text, sizeof(text), x);
    fprintf(f, "<td class=\"n\"><data value=\"%.12g\">%s</data></td>", x, text);
}

static void put_row(FILE *f, const char *what, double x, const char *unit, const char *remark)
{
    fputs("<tr><th scope=\"row\">", f);
    ek_html_text(f, what);
    fputs("</th>", f);
    put_number(f, x, unit);
    ek_html_text_cell(f, remark);
    fputs("</tr>\n", f);
}

static void put_rows(const ek_sim_report *r, FILE *f)
{
    static const char *const assumed[] = {"", "assumed"};
    const ek_sim_failures *x = r->failures;
    const ek_failures_result *of = &x->result;
    char error[64] = "of an undisturbed run";

    if (of->error > 0)
        (void)snprintf(error, sizeof(error), "of an undisturbed run; standard error %.2g",
                       of->error);
    put_row(f, "goodput", of->goodput, "", error);
    put_row(f, "ETTR", of->ettr, "", "share of the time in steps that were not lost");
    put_row(f, "steps", of->steps, "", "");
    put_row(f, "steps taken again", of->lost_steps, "", "");
    put_row(f, "nodes lost", of->losses, "", "");
    put_row(f, "recoveries", of->recoveries, "", "");
    put_row(f, "restarts from a checkpoint", of->restarts, "", "");
    put_row(f, "waits for nodes", of->wait_s, "s", "");
    put_row(f, "a recovery", x->config.recover_s, "s", assumed[x->recover_assumed]);
    put_row(f, "a restart", x->config.restart_s, "s", assumed[x->restart_assumed]);
    put_row(f, "a save", x->config.save_s, "s", assumed[x->save_assumed]);
    put_row(f, "steps between saves", (double)x->save_every, "",
            x->save_every > 0 ? "" : "none is made");
    if (r->cluster->node_s_price > 0) {
        put_row(f, "price of a step", ek_sim_step_price(r), "", "");
        put_row(f, "price of the run", ek_sim_price_of_run(r), "", "");
    }
}

void ek_sim_failures_html(const ek_sim_report *r, FILE *f)
{
    const ek_sim_failures *x = r->failures;
    char text[512], a[32], b[32];

    if (x == NULL)
        return;
    if (x->recorded > 0)
        (void)snprintf(text, sizeof(text), "Failures as recorded, of %d of %d instances, in %s. ",
                       (int)x->config.nodes, (int)x->recorded,
                       ek_time_text(a, sizeof(a), x->config.seconds));
    else
        (void)snprintf(
            text, sizeof(text), "A node fails every %s; the mean of %" PRId64 " run%s of %s. ",
            ek_time_text(a, sizeof(a), x->config.mtbf_s), x->config.runs,
            x->config.runs != 1 ? "s" : "", ek_time_text(b, sizeof(b), x->config.seconds));
    ek_html_section(f, "Failures");
    ek_html_paragraph(f, text);
    (void)snprintf(text, sizeof(text), "Experts: %s.",
                   x->recovers ? x->survival : "every loss restarts");
    ek_html_paragraph(f, text);
    ek_html_table(f, "A run under failures.", "of a run|>value|");
    put_rows(r, f);
    ek_html_table_end(f);
    ek_html_section_end(f);
}
