/* train/output/summary_json.h - the results of a run as JSON (docs/formats.md, "Command output in
 * JSON").  The caller releases what is returned. */
#ifndef TRAIN_OUTPUT_SUMMARY_JSON_H
#define TRAIN_OUTPUT_SUMMARY_JSON_H

#include "evenkeel/train.h"

#include <jansson.h>

json_t *ek_summary_json(const ek_train_summary *s, int ranks);
/* An element of `roofline`, and one of `costs`. */
json_t *ek_summary_layer_json(const ek_train_layer *l);
json_t *ek_summary_cost_json(const ek_train_cost *c);

/* Pro-Prophet's measure of what balancing did to the loads of ranks; infinite where it left no
 * difference, 1 where there was none. */
double ek_summary_rb(const ek_train_balance *b);

#endif
