/* What --elastic does not go with, and whether a run goes on without a host. */
#include "supervisor/elastic_default.h"

#include "comm/mesh.h"
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

/* Whether the layout is that of the options; else one is chosen that goes on without any host. */
static int is_layout_given(const ek_options *o)
{
    return is_word(o, "layout", "given") &&
           (ek_options_given(o, "layout") || ek_options_text(o, "layout-pool") == NULL);
}

/* Slots without the host that has most of them. */
static int64_t slots_left(const ek_host_list *h)
{
    int64_t most = 0;

    for (int i = 0; i < h->n; i++)
        most = h->host[i].slots > most ? h->host[i].slots : most;
    return ek_host_list_slots(h) - most;
}

int ek_elastic_waits_for_hosts(const ek_options *o)
{
    const ek_mesh_sizes sizes = {(int)ek_options_int(o, "pp"), (int)ek_options_int(o, "tp"),
                                 (int)ek_options_int(o, "ep"), (int)ek_options_int(o, "etp")};
    const char *file = ek_options_text(o, "hosts");
    int64_t ranks = ek_options_int(o, "ranks"), left;
    ek_host_list hosts = {0};

    if (file == NULL || !is_layout_given(o) || ek_host_list_read_for(file, ranks, &hosts) < 0)
        return 0;
    left = slots_left(&hosts);
    ek_host_list_free(&hosts);
    return ek_mesh_elastic_ranks(&sizes, (int)(ranks > 0 && ranks < left ? ranks : left)) <= 0;
}
