/* train/output/plan_text.h - the plan of a dry run (ek_train_summary.plan) for people and as JSON.
 */
#ifndef TRAIN_OUTPUT_PLAN_TEXT_H
#define TRAIN_OUTPUT_PLAN_TEXT_H

#include "evenkeel/train.h"

#include <stdio.h>

/* Errors are left in ferror(out).  JSON: one object on a line. */
void ek_plan_write_text(const ek_train_summary *s, const ek_train_config *cfg, FILE *out);
void ek_plan_write_json(const ek_train_summary *s, const ek_train_config *cfg, FILE *out);

#endif
