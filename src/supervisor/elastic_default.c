/* What --elastic does not go with, and whether the loss of a host would take a part of the model.
 */
#include "supervisor/elastic_default.h"

#include "supervisor/host_list.h"
#include "train/layout.h"
#include "train/output/folder.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int is_word(const ek_options *o, const char *name, const char *word)
{
    const char *text = ek_options_text(o, name);

    return text == NULL || strcmp(text, word) == 0;
}

/* The option that --elastic does not go with; NULL: none. */
static const char *opposing_option(const ek_options *o)
{
    const char *shares = ek_options_text(o, "batch-shares");

    if (!is_word(o, "device", "cpu"))
        return "--device";
    if (!is_word(o, "offload", "off"))
        return "--offload";
    if (shares != NULL && isdigit((unsigned char)shares[0]))
        return "a list of --batch-shares";
    return ek_options_flag(o, "overwrite") ? "--overwrite" : NULL;
}

ek_status ek_elastic_places(const ek_options *o, int *ranks, int **host_of, int **rack_of)
{
    const char *file = ek_options_text(o, "hosts");
    ek_host_list list = {0};
    ek_status st;

    *host_of = *rack_of = NULL;
    if (file == NULL)
        return EK_OK;
    EK_TRY(ek_host_list_read_for(file, *ranks, &list));
    *ranks = *ranks > 0 ? *ranks : (int)ek_host_list_slots(&list);
    st = ek_host_list_places(&list, *ranks, host_of, rack_of);
    ek_host_list_free(&list);
    return st;
}

static int has_several(const ek_host_list *h)
{
    for (int i = 1; i < h->n; i++)
        if (strcmp(h->host[i].name, h->host[0].name) != 0)
            return 1;
    return 0;
}

static int is_any_twice(const ek_host_list *h)
{
    for (int i = 1; i < h->n; i++)
        for (int j = 0; j < i; j++)
            if (strcmp(h->host[i].name, h->host[j].name) == 0)
                return 1;
    return 0;
}

/* Whether --out holds an earlier run, which is not to be continued unless told. */
static int has_run(const ek_options *o)
{
    const char *out = ek_options_text(o, "out");
    ek_path found = {{0}};

    return out != NULL && !ek_options_flag(o, "resume") && ek_out_find(out, &found) == EK_OK &&
           found.s[0] != '\0';
}

/* Why a part of the model would be lost with a host. */
static void explain_layout(const ek_options *o, const ek_host_list *h, int64_t ranks,
                           char why[EK_ELASTIC_WHY])
{
    int64_t pp = ek_options_int(o, "pp"), tp = ek_options_int(o, "tp");
    int *host_of = NULL, *rack_of = NULL, stage = -1;
    ek_status st = ek_host_list_places(h, (int)ranks, &host_of, &rack_of);

    if (st == EK_OK)
        stage = ek_layout_stage_on_one_host((int)ranks, pp > 0 ? (int)pp : 1, tp > 0 ? (int)tp : 1,
                                            host_of);
    else
        snprintf(why, EK_ELASTIC_WHY, "%s", ek_err_message());
    if (stage >= 0)
        snprintf(
            why, EK_ELASTIC_WHY,
            "one host alone would have a part of pipeline stage %d, of which --elastic keeps a "
            "copy on another host, at the cost of memory and time",
            stage);
    free(host_of);
    free(rack_of);
}

static void explain(const ek_options *o, const ek_host_list *h, char why[EK_ELASTIC_WHY])
{
    const char *opposes = opposing_option(o);
    int64_t ranks = ek_options_int(o, "ranks");

    ranks = ranks > 0 ? ranks : ek_host_list_slots(h);
    if (opposes != NULL)
        snprintf(why, EK_ELASTIC_WHY, "it does not go with %s", opposes);
    else if (ranks > ek_host_list_slots(h))
        snprintf(why, EK_ELASTIC_WHY, "--ranks is more than the slots of the hosts");
    else if (is_any_twice(h))
        snprintf(why, EK_ELASTIC_WHY, "a host is in the list twice");
    else if (is_word(o, "layout", "given") &&
             (ek_options_given(o, "layout") || ek_options_text(o, "layout-pool") == NULL))
        explain_layout(o, h, ranks, why); /* else only those are considered that survive */
}

int ek_elastic_by_default(const ek_options *o, char why[EK_ELASTIC_WHY])
{
    const char *file = ek_options_text(o, "hosts");
    ek_host_list hosts = {0};
    int several, is_default;

    why[0] = '\0';
    if (file == NULL || ek_options_given(o, "elastic") ||
        ek_host_list_read_for(file, ek_options_int(o, "ranks"), &hosts) < 0)
        return 0;
    /* hosts that get no rank do not count */
    several =
        has_several(&hosts) && (ek_options_int(o, "ranks") == 0 ||
                                ek_host_list_entry(&hosts, ek_options_int(o, "ranks") - 1) > 0);
    if (several)
        explain(o, &hosts, why);
    is_default = several && why[0] == '\0' && !has_run(o);
    ek_host_list_free(&hosts);
    return is_default;
}
