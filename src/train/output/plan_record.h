/* train/output/plan_record.h - the plans of a run, with their reasons, as JSON Lines: plans.jsonl,
 * and for the other pipeline stages plans-stage1.jsonl, ...  The first rank of a stage writes them;
 * after each step its lines are in the file. */
#ifndef TRAIN_OUTPUT_PLAN_RECORD_H
#define TRAIN_OUTPUT_PLAN_RECORD_H

#include "balance/plan_lines.h"
#include "base/file.h"
#include "model/step/pass.h"

typedef struct {
    ek_plan_lines lines;
    int64_t step;
    int32_t ep_groups;              /* expert-parallel groups, each with its own plans */
    int both;                       /* 1: the planner also makes transient plans */
    int32_t *plans;                 /* [layers] plans in this step */
    char (*reason)[EK_PLAN_REASON]; /* [layers] of the persistent placement */
} ek_plan_record;

/* Sets *out to the listener for ek_moe_config, which borrows r, and gets its memory: persistent
 * plans may come before the file is open. */
EK_CHECKED ek_status ek_plan_record_listener(ek_plan_record *r, int64_t layers,
                                             ek_moe_plan_listener *out);

/* Opens the file of this stage in a folder.  p: the pass whose plans are recorded. */
EK_CHECKED ek_status ek_plan_record_open(ek_plan_record *r, const char *folder, const ek_pass *p);
/* Called before and after each step. */
void ek_plan_record_begin(ek_plan_record *r, int64_t step, int64_t layers);
EK_CHECKED ek_status ek_plan_record_end(ek_plan_record *r);
void ek_plan_record_close(ek_plan_record *r);

#endif
