/* train/plan_record.h - the plans of a run, with their reasons, as lines of JSON: plans.jsonl, and
 * of the other stages of a pipeline plans-stage1.jsonl, ...  The first rank of a stage writes them,
 * while steps go on; after each step its lines are in the file. */
#ifndef TRAIN_PLAN_RECORD_H
#define TRAIN_PLAN_RECORD_H

#include "balance/plan_lines.h"
#include "base/file.h"
#include "model/pass.h"

typedef struct {
    ek_plan_lines lines;
    int64_t step;
    int32_t ep_groups;              /* of ranks, that plan for themselves */
    int both;                       /* the planner also plans for once */
    int32_t *plans;                 /* [layers] of this step */
    char (*reason)[EK_PLAN_REASON]; /* [layers] of the placement that lasts */
} ek_plan_record;

/* Hears of plans: for ek_moe_config. */
ek_moe_plan_listener ek_plan_record_listener(ek_plan_record *r);

/* Opens the file of this stage in a folder.  p: whose layers tell of their plans. */
EK_CHECKED ek_status ek_plan_record_open(ek_plan_record *r, const char *folder, const ek_pass *p);
/* Around each step. */
void ek_plan_record_begin(ek_plan_record *r, int64_t step, int64_t layers);
EK_CHECKED ek_status ek_plan_record_end(ek_plan_record *r);
void ek_plan_record_close(ek_plan_record *r);

/* The name of a stage's file. */
EK_CHECKED ek_status ek_plan_record_path(ek_path *path, const char *folder, int stage);

#endif
