/* Any bytes as a cluster file: refused with a message that names it or the machine file that it
 * names, or a cluster whose levels nest and whose numbers are in range. */
#include "sim/cluster.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds)
        abort();
}

static void check_levels(const ek_cluster *c)
{
    require(c->n_levels >= 1 && c->n_levels <= EK_CLUSTER_LEVELS);
    for (int32_t i = 0; i < c->n_levels; i++) {
        const ek_cluster_level *l = &c->level[i];

        require(l->ranks >= 1 && (i == 0 || l->ranks % c->level[i - 1].ranks == 0));
        require(isfinite(l->bytes_s) && l->bytes_s > 0);
        require(isfinite(l->latency_s) && l->latency_s >= 0);
        require(isfinite(l->overhead_s) && l->overhead_s >= 0 && l->rails >= 1);
        require(l->name[0] != '\0');
    }
    require(ek_cluster_ranks(c) % ek_cluster_node_ranks(c) == 0);
    for (int64_t a = 0, b = 1; b < ek_cluster_ranks(c) && b < 1 << 20; a++, b = 2 * b + a) {
        int l = ek_cluster_level_between(c, a, b);

        require(l == ek_cluster_level_between(c, b, a) && l >= 0 && l < c->n_levels);
        require(a / c->level[l].ranks == b / c->level[l].ranks);
        require(l == 0 || a / c->level[l - 1].ranks != b / c->level[l - 1].ranks);
    }
}

static void require_near(double a, double b)
{
    require(fabs(a - b) <= 1e-12 * fabs(a));
}

/* Written and read again: the same, but for the last bit of a number times its unit. */
static void check_written(const ek_cluster *c)
{
    char *text = NULL;
    size_t bytes = 0;
    ek_cluster back;

    require(ek_cluster_text(c, &text, &bytes) == EK_OK);
    require(ek_cluster_parse(text, bytes, "written", &back) == EK_OK);
    require(back.n_levels == c->n_levels && strcmp(back.name, c->name) == 0);
    require(memcmp(&back.machine, &c->machine, sizeof(c->machine)) == 0);
    for (int32_t i = 0; i < c->n_levels; i++) {
        require(back.level[i].ranks == c->level[i].ranks);
        require_near(c->level[i].bytes_s, back.level[i].bytes_s);
        require_near(c->level[i].latency_s, back.level[i].latency_s);
        require_near(c->level[i].overhead_s, back.level[i].overhead_s);
    }
    require_near(c->memory, back.memory);
    require_near(c->node_mtbf_s, back.node_mtbf_s);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ek_cluster c;

    if (ek_cluster_parse((const char *)data, size, "input", &c) < 0) {
        require(strchr(ek_err_message(), ':') != NULL && c.n_levels == 0);
        return 0;
    }
    check_levels(&c);
    require(c.memory >= 0 && c.cores >= 0 && c.node_mtbf_s >= 0 && c.node_s_price >= 0);
    require(c.n_slow >= 0 && c.n_slow <= EK_CLUSTER_SLOW);
    for (int32_t i = 0; i < c.n_slow; i++)
        require(c.slow[i] >= 0 && c.slow[i] < ek_cluster_ranks(&c) && c.slow_factor > 0);
    require(ek_machine_check(&c.machine, "machine") == EK_OK);
    check_written(&c);
    return 0;
}
