/* train/value_schedule.h - a setting that changes at given steps: "STEP:VALUE,STEP:VALUE,...".
 *
 * A value holds from its step on, steps counting from 0, until the next one's; before the first
 * entry the setting's own option holds.  It depends on the step alone, so a resumed run continues
 * the schedule. */
#ifndef TRAIN_VALUE_SCHEDULE_H
#define TRAIN_VALUE_SCHEDULE_H

#include "evenkeel/err.h"

#include <stdint.h>

enum { EK_VALUE_SCHEDULE_MAX = 256 }; /* entries */

typedef struct {
    int n;
    int64_t step[EK_VALUE_SCHEDULE_MAX];
    double value[EK_VALUE_SCHEDULE_MAX];
} ek_value_schedule;

/* Parses a schedule: values from `least` to `most`, integers if `whole` is set; ascending steps.
 * text NULL: no entries.  EK_EINVAL names the option and the entry. */
EK_CHECKED ek_status ek_value_schedule_parse(const char *option, const char *text, double least,
                                             double most, int whole, ek_value_schedule *out);

/* The value in effect at a step; `before` if no entry has begun. */
double ek_value_schedule_at(const ek_value_schedule *s, int64_t step, double before);

#endif
