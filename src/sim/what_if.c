/* Parses and applies changes of a cluster. */
#include "sim/what_if.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "leaf, spine" */
static const char *level_names(const ek_cluster *c, char *text, size_t cap)
{
    size_t used = 0;

    text[0] = '\0';
    for (int32_t l = 0; l < c->n_levels && used + 1 < cap; l++)
        used +=
            (size_t)snprintf(text + used, cap - used, "%s%s", l > 0 ? ", " : "", c->level[l].name);
    return text;
}

static ek_status no_change(const ek_cluster *c, const char *change)
{
    char levels[512];

    return EK_FAIL(EK_EINVAL,
                   "--what-if \"%s\" is not \"WHAT xFACTOR\", FACTOR from 1e-6 to 1e6, WHAT being "
                   "bandwidth[LEVEL], "
                   "latency[LEVEL] or compute, and LEVEL *, or one of %s",
                   change, level_names(c, levels, sizeof(levels)));
}

/* The text before " xFACTOR" has n characters. */
static int parse_factor(const char *change, size_t *n, double *factor)
{
    const char *x = strrchr(change, 'x');
    char *end;

    if (x == NULL || x == change)
        return 0;
    *factor = strtod(x + 1, &end);
    for (*n = (size_t)(x - change); *n > 0 && change[*n - 1] == ' ';)
        --*n;
    return end != x + 1 && *end == '\0' && *factor >= 1e-6 && *factor <= 1e6;
}

static int is_word(const char *text, size_t n, const char *word)
{
    return n == strlen(word) && strncmp(text, word, n) == 0;
}

/* Whether text [n] is WHAT[LEVEL], or WHAT[*]. */
static int is_level(const char *text, size_t n, const char *what, const char *level)
{
    size_t at = strlen(what);

    if (n < at + 3 || strncmp(text, what, at) != 0 || text[at] != '[' || text[n - 1] != ']')
        return 0;
    return is_word(text + at + 1, n - at - 2, "*") || is_word(text + at + 1, n - at - 2, level);
}

static int change_levels(ek_cluster *c, const char *text, size_t n, double factor)
{
    int changed = 0;

    for (int32_t l = 0; l < c->n_levels; l++) {
        ek_cluster_level *x = &c->level[l];

        if (is_level(text, n, "bandwidth", x->name)) {
            x->bytes_s *= factor;
            x->peer_bytes_s *= factor;
            changed = 1;
        } else if (is_level(text, n, "latency", x->name)) {
            x->latency_s *= factor;
            x->ring_step_s *= factor;
            changed = 1;
        }
    }
    return changed;
}

ek_status ek_cluster_change(ek_cluster *c, const char *change)
{
    double factor;
    size_t n;

    if (!parse_factor(change, &n, &factor))
        return no_change(c, change);
    if (is_word(change, n, "compute")) {
        c->speed = (c->speed > 0 ? c->speed : 1) * factor;
        c->peak *= factor;
    } else if (!change_levels(c, change, n, factor)) {
        return no_change(c, change);
    }
    return EK_OK;
}
