/* Any bytes as recorded failures: refused with a message that names the file, or losses and returns
 * of the nodes in turn, in the order of their times. */
#include "sim/failure_trace.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds)
        abort();
}

static void check_trace(const ek_failure_trace *t)
{
    int lost[64] = {0};
    double before = 0;

    require(t->nodes <= t->instances && t->n >= 0 && isfinite(t->seconds));
    for (int64_t i = 0; i < t->n; i++) {
        const ek_failure_event *e = &t->events[i];

        require(e->at_s >= before && e->at_s <= t->seconds);
        require(e->node >= 0 && e->node < t->nodes && lost[e->node] == e->back);
        lost[e->node] = !e->back;
        before = e->at_s;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ek_failure_trace t;

    for (int32_t nodes = 1; nodes <= 64; nodes = nodes * 3 + 1) {
        if (ek_failure_trace_parse((const char *)data, size, "input", nodes, &t) < 0)
            require(strncmp(ek_err_message(), "input: ", 7) == 0);
        else
            check_trace(&t);
        ek_failure_trace_free(&t);
    }
    return 0;
}
