/* Writes lines of plans.jsonl: each plan with its reasons. */
#include "train/output/plan_record.h"

#include <stdlib.h>
#include <string.h>

/* The name of a stage's file. */
static ek_status record_path(ek_path *path, const char *folder, int stage)
{
    if (stage == 0)
        return ek_path_set(path, "%s/plans.jsonl", folder);
    return ek_path_set(path, "%s/plans-stage%d.jsonl", folder, stage);
}

static void on_plan(void *context, int layer, int ep_group, const ek_plan_limits *l,
                    const int64_t *counts, const ek_plan *p)
{
    ek_plan_record *r = context;
    ek_plan recorded = *p;

    if (ep_group < 0) {
        memcpy(r->reason[layer], p->reason, sizeof(p->reason));
        return;
    }
    memcpy(r->both ? recorded.primary_reason : recorded.reason, r->reason[layer],
           sizeof(recorded.reason));
    ek_plan_lines_add(&r->lines,
                      &(ek_plan_place){r->step, layer, r->plans[layer]++ / r->ep_groups, ep_group},
                      l, counts, &recorded);
}

ek_status ek_plan_record_listener(ek_plan_record *r, int64_t layers, ek_moe_plan_listener *out)
{
    r->plans = calloc((size_t)layers, sizeof(*r->plans));
    r->reason = calloc((size_t)layers, sizeof(*r->reason));
    EK_REQUIRE(r->plans != NULL && r->reason != NULL, EK_ENOMEM, "no memory for plans");
    *out = (ek_moe_plan_listener){on_plan, r};
    return EK_OK;
}

ek_status ek_plan_record_open(ek_plan_record *r, const char *folder, const ek_pass *p)
{
    const ek_moe_planning *d = &p->planning;
    ek_path path;

    r->ep_groups = p->model->cfg.mesh->edp;
    r->both = d->planner->plan_transient != NULL;
    EK_TRY(record_path(&path, folder, p->model->cfg.mesh->pp_rank));
    return ek_plan_lines_open(path.s, EK_WRITE_GROW, &d->limits, &r->lines);
}

void ek_plan_record_begin(ek_plan_record *r, int64_t step, int64_t layers)
{
    r->step = step;
    if (r->lines.file != NULL)
        memset(r->plans, 0, (size_t)layers * sizeof(*r->plans));
}

ek_status ek_plan_record_end(ek_plan_record *r)
{
    return r->lines.file != NULL ? ek_plan_lines_flush(&r->lines) : EK_OK;
}

void ek_plan_record_close(ek_plan_record *r)
{
    ek_plan_lines_close(&r->lines);
    free(r->plans);
    free(r->reason);
}
