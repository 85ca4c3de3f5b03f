/* balance/plan_lines.h - plans written down, a JSON object a line (docs/formats.md).
 *
 * A line says where experts lie, why, and who serves whom.  Writing allocates nothing; what went
 * wrong is told when lines are flushed. */
#ifndef BALANCE_PLAN_LINES_H
#define BALANCE_PLAN_LINES_H

#include "balance/planner.h"
#include "base/file.h"

#include <stdio.h>

typedef struct {
    FILE *file; /* NULL: not open */
    ek_file_out out;
    int64_t *split; /* of ek_plan_split */
    int32_t *slots;
    int error; /* errno of the first write that failed; 0: none */
} ek_plan_lines;

/* Which plan a line is of. */
typedef struct {
    int64_t iteration, layer;
    int64_t micro;    /* of a training step; -1: of a trace */
    int32_t ep_group; /* that a step's plan is for */
} ek_plan_place;

/* For plans of so many ranks and slots.  EK_WRITE_GROW: it can be read while it grows;
 * EK_WRITE_REPLACE: it appears with ek_plan_lines_finish. */
EK_CHECKED ek_status ek_plan_lines_open(const char *path, ek_write_mode mode,
                                        const ek_plan_limits *l, ek_plan_lines *out);
/* A plan whose quotas serve these counts. */
void ek_plan_lines_add(ek_plan_lines *f, const ek_plan_place *at, const ek_plan_limits *l,
                       const int64_t *counts, const ek_plan *p);
/* Hands the lines to the system: EK_EIO, EK_ENOSPC. */
EK_CHECKED ek_status ek_plan_lines_flush(ek_plan_lines *f);
/* Ends the file.  Nothing happens to what is not open. */
EK_CHECKED ek_status ek_plan_lines_finish(ek_plan_lines *f);
/* Closes; one of EK_WRITE_REPLACE that was not finished is gone.  Nothing happens to what is not
 * open. */
void ek_plan_lines_close(ek_plan_lines *f);

#endif
