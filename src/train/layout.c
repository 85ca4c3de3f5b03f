/* Choices of a layout as options, as text and in a run's settings. */
#include "train/layout.h"

#include "base/option_value.h"
#include "comm/mesh.h"
#include "placement/partners.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char words[] = "off|attention|full";
static const char *const recomputes[] = {"off", "attention", "full"};

static const struct {
    const char *name;
    int64_t none; /* train's default; -1: always said */
} choices[EK_CHOICES] = {
    [EK_CHOICE_PP] = {"pp", 1},
    [EK_CHOICE_CHUNKS] = {"pp-chunks", 1},
    [EK_CHOICE_TP] = {"tp", 1},
    [EK_CHOICE_EP] = {"ep", 1},
    [EK_CHOICE_ETP] = {"etp", 1},
    [EK_CHOICE_ZERO] = {"zero", 0},
    [EK_CHOICE_MICRO_BATCH] = {"micro-batch", -1},
    [EK_CHOICE_RECOMPUTE] = {"recompute", 0},
};

const char *ek_choice_name(ek_choice c)
{
    return choices[c].name;
}

const char *ek_choice_text(ek_choice c, int64_t value, char *text, size_t cap)
{
    if (c == EK_CHOICE_RECOMPUTE)
        (void)snprintf(text, cap, "%s", recomputes[value]);
    else
        (void)snprintf(text, cap, "%lld", (long long)value);
    return text;
}

const char *ek_layout_words(const ek_layout *l, const char *balance, char *text, size_t cap)
{
    size_t used = 0;

    text[0] = '\0';
    for (int i = 0; i < EK_CHOICES && used < cap; i++) {
        char value[32];

        if (l->value[i] != choices[i].none)
            used += (size_t)snprintf(
                text + used, cap - used, "%s--%s %s", used > 0 ? " " : "", choices[i].name,
                ek_choice_text((ek_choice)i, l->value[i], value, sizeof(value)));
    }
    if (balance != NULL && balance[0] != '\0' && used < cap)
        (void)snprintf(text + used, cap - used, "%s--balance %s", used > 0 ? " " : "", balance);
    return text;
}

void ek_layout_apply(const ek_layout *l, ek_train_config *cfg)
{
    cfg->pp = (int)l->value[EK_CHOICE_PP];
    cfg->chunks = (int)l->value[EK_CHOICE_CHUNKS];
    cfg->tp = (int)l->value[EK_CHOICE_TP];
    cfg->ep = (int)l->value[EK_CHOICE_EP];
    cfg->etp = (int)l->value[EK_CHOICE_ETP];
    cfg->zero = (int)l->value[EK_CHOICE_ZERO];
    cfg->micro_batch = l->value[EK_CHOICE_MICRO_BATCH];
    cfg->recompute = recomputes[l->value[EK_CHOICE_RECOMPUTE]];
}

int ek_choice_named(const char *name, size_t length)
{
    for (int i = 0; i < EK_CHOICES; i++)
        if (strlen(choices[i].name) == length && strncmp(choices[i].name, name, length) == 0)
            return i;
    return -1;
}

int64_t ek_choice_value(ek_choice c, const char *text, size_t length)
{
    char copy[32], *end;
    long long n;

    if (length == 0 || length >= sizeof(copy))
        return -1;
    memcpy(copy, text, length);
    copy[length] = '\0';
    if (c == EK_CHOICE_RECOMPUTE)
        return ek_option_choice_index(words, copy);
    errno = 0;
    n = strtoll(copy, &end, 10);
    if (copy[0] < '0' || copy[0] > '9' || *end != '\0' || errno != 0 || n > 1000000)
        return -1;
    if (c == EK_CHOICE_ZERO)
        return n <= 3 ? n : -1;
    return n >= 1 ? n : -1;
}

/* --- without a host --------------------------------------------------------------------------- */

int ek_layout_ranks_left(int ranks, const int *host_of)
{
    int most = 0;

    for (int lost = 0; lost < ranks; lost++) {
        int n = 0;

        if (lost > 0 && host_of[lost] == host_of[lost - 1])
            continue; /* counted */
        for (int r = 0; r < ranks; r++)
            n += host_of[r] == host_of[lost];
        most = n > most ? n : most;
    }
    return ranks - most;
}

int ek_layout_stage_on_one_host(int ranks, int pp, int tp, const int *host_of)
{
    int stage = ranks / pp;

    for (int s = 0; s < pp; s++)
        for (int t = 0; t < tp; t++)
            if (ek_ranks_on_one_host((ek_ranks){s * stage + t, tp, stage / tp}, host_of))
                return s;
    return -1;
}

int ek_layout_survives(const ek_layout *l, int left)
{
    const int64_t *v = l->value;
    ek_mesh_sizes sizes = {(int)v[EK_CHOICE_PP], (int)v[EK_CHOICE_TP], (int)v[EK_CHOICE_EP],
                           (int)v[EK_CHOICE_ETP]};

    return ek_mesh_elastic_ranks(&sizes, left) > 0; /* more ranks have room where fewer have */
}
