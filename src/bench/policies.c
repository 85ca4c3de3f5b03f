/* What the benchmarks of balance policies share: the list of policies, the routing trace that
 * loads are from, and the costs that planners know. */
#include "bench/bench_priv.h"
#include "train/timing/layer_costs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ek_status add_policy(const bench *b, const char *name, bench_policies *out)
{
    const ek_planner *p = ek_planner_find(name);

    EK_REQUIRE(p != NULL, EK_EINVAL, "--policies %s: no balance policy %s", b->cfg->policies, name);
    EK_REQUIRE(out->n < BENCH_POLICIES_MAX, EK_EINVAL, "--policies %s: more than %d",
               b->cfg->policies, BENCH_POLICIES_MAX);
    for (int i = 0; i < out->n; i++)
        EK_REQUIRE(out->of[i] != p, EK_EINVAL, "--policies %s: %s twice", b->cfg->policies, name);
    out->of[out->n++] = p;
    return EK_OK;
}

ek_status bench_read_policies(const bench *b, bench_policies *out)
{
    char name[32];
    const char *at = b->cfg->policies;

    out->n = 0;
    for (; *at != '\0'; at += strcspn(at, ",") + (at[strcspn(at, ",")] == ',')) {
        snprintf(name, sizeof(name), "%.*s", (int)strcspn(at, ","), at);
        EK_TRY(add_policy(b, name, out));
    }
    EK_REQUIRE(out->n > 0, EK_EINVAL, "--policies is empty");
    return EK_OK;
}

ek_status bench_open_trace(const bench *b, ek_trace *out)
{
    int64_t experts;

    EK_TRY(ek_trace_open(b->cfg->replay, out));
    experts = out->experts;
    if (experts != b->spec.experts)
        ek_trace_close(out);
    EK_REQUIRE(experts == b->spec.experts, EK_EFORMAT,
               "--replay-routing %s has %lld experts, but the model has %lld", b->cfg->replay,
               (long long)experts, (long long)b->spec.experts);
    return EK_OK;
}

ek_status bench_layer_costs(const bench *b, const ek_mesh *mesh, ek_plan_costs *out)
{
    ek_machine *m = malloc(sizeof(*m));
    int64_t experts = (b->spec.experts + mesh->ep - 1) / mesh->ep;
    ek_status st = EK_OK;

    EK_REQUIRE(m != NULL, EK_ENOMEM, "no memory for costs");
    EK_TRY_OUT(bench_measure_costs(b, experts, 0, m, NULL));
    EK_TRY_OUT(ek_layer_costs(m, &b->spec, mesh, (double)(b->cfg->micro_batch * b->cfg->seq),
                              b->spec.top_k, 0, out, NULL));
out:
    free(m);
    return st;
}

ek_status bench_check_planner(const ek_pass *p, const char *name)
{
    EK_REQUIRE(!p->planning.failed && !p->planning.unfit, EK_EINTERNAL,
               "the planner of %s has failed", name);
    return EK_OK;
}
