/* balance/plan_lines.h - writes plans to a file, one JSON object a line (docs/formats.md): the
 * placement, the reasons, and which slot serves which source.
 *
 * Adding a line allocates nothing; a write error is returned by the next flush. */
#ifndef BALANCE_PLAN_LINES_H
#define BALANCE_PLAN_LINES_H

#include "balance/planner.h"
#include "base/file.h"

#include <stdio.h>

typedef struct {
    FILE *file; /* NULL: not open */
    ek_file_out out;
    int64_t *split; /* memory of ek_plan_split */
    int32_t *slots;
    int error; /* errno of the first write that failed; 0: none */
} ek_plan_lines;

/* The plan that a line describes. */
typedef struct {
    int64_t iteration, layer;
    int64_t micro;    /* micro-batch of a training step; -1: the plan is of a trace */
    int32_t ep_group; /* expert-parallel group; written with `micro` only */
} ek_plan_place;

/* Opens a file for plans of l->ranks and l->slots.  EK_WRITE_GROW: readable while it grows;
 * EK_WRITE_REPLACE: it appears under its name in ek_plan_lines_finish.  *out needs
 * ek_plan_lines_close, also after a failure.  EK_ENOMEM, or a failure to open the file. */
EK_CHECKED ek_status ek_plan_lines_open(const char *path, ek_write_mode mode,
                                        const ek_plan_limits *l, ek_plan_lines *out);
/* Adds a plan whose quotas add up to these counts [ranks][experts]. */
void ek_plan_lines_add(ek_plan_lines *f, const ek_plan_place *at, const ek_plan_limits *l,
                       const int64_t *counts, const ek_plan *p);
/* Flushes to the operating system: EK_EIO, EK_ENOSPC. */
EK_CHECKED ek_status ek_plan_lines_flush(ek_plan_lines *f);
/* Completes the file: EK_EIO, EK_ENOSPC.  Without an open file: EK_OK. */
EK_CHECKED ek_status ek_plan_lines_finish(ek_plan_lines *f);
/* Closes and frees; an unfinished EK_WRITE_REPLACE file is discarded.  Without an open file it does
 * nothing. */
void ek_plan_lines_close(ek_plan_lines *f);

#endif
