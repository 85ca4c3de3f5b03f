/* Any bytes as a machine file: refused with a message that names it, or tables in which more work
 * takes no less time, and which are the same when written and read again. */
#include "balance/costs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds)
        abort();
}

static void check_table(const ek_cost_table *t, int rates)
{
    double last = 0;

    for (int32_t i = 0; i < t->n; i++)
        for (int step = 0; step < 3; step++) {
            double x = t->x[i] * (1 + step), y;

            if (i + 1 < t->n && x > t->x[i + 1])
                break;
            y = rates ? x / ek_cost_rate_at(t, x) : ek_cost_time_at(t, x);
            require(isfinite(y) && y > 0 && y >= last * (1 - 1e-9));
            require(step > 0 || rates || y == t->y[i]);
            last = y;
        }
}

static void check_costs(const ek_machine *m)
{
    ek_model_spec spec;
    ek_plan_setting s = {&spec, 0, 1, 1, 100, 0};
    ek_plan_costs c;

    ek_model_default(&spec);
    spec.hidden = 8;
    spec.ff = 5;
    spec.experts = 4;
    for (s.ranks = 1; s.ranks <= 8; s.ranks *= 2)
        for (s.nodes = 1; s.nodes <= s.ranks; s.nodes *= 2) {
            if (ek_plan_costs_of(m, &s, &c, NULL) < 0) {
                require(s.ranks > 1 && !ek_cost_has_links(m));
                continue;
            }
            require(isfinite(c.compute_s_per_row) && c.compute_s_per_row > 0 &&
                    isfinite(c.comm_s_per_row) && c.comm_s_per_row >= 0);
            require(isfinite(c.replica_s) && (s.ranks == 1 || c.replica_s > 0));
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = NULL;
    size_t bytes = 0;
    ek_machine m, back;

    if (ek_machine_parse((const char *)data, size, "input", &m) < 0) {
        require(strncmp(ek_err_message(), "input: ", 7) == 0 && m.ranks == 0);
        return 0;
    }
    for (int p = 0; p < EK_COST_PRODUCTS; p++)
        check_table(&m.rate[p], 1);
    for (int l = 0; l < EK_LINKS; l++) {
        check_table(&m.link[l].message, 0);
        check_table(&m.link[l].hop, 0);
    }
    for (int32_t i = 0; i < m.kernels.n; i++)
        check_table(&m.kernels.cost[i].rate, 1);
    check_costs(&m);
    require(ek_machine_text(&m, &text, &bytes) == EK_OK);
    require(ek_machine_parse(text, bytes, "written", &back) == EK_OK);
    require(memcmp(&m, &back, sizeof(m)) == 0);
    free(text);
    return 0;
}
