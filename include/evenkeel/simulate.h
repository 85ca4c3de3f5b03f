/** @file
 *  evenkeel/simulate.h - predicts the time of a training step on a described cluster, and finds the
 *  layout with the best one: what `evenkeel simulate` and `evenkeel search` do, for any program.
 *  Nothing is trained, no weights are allocated, no processes are started.
 *
 *  Settings and answers are JSON.  The settings are an object with the command's options without
 *  their dashes as keys, as in a file for its `--config` (`evenkeel simulate --help`), and as
 *  strict; the answer is the object that the command prints with `--json` (docs/formats.md,
 *  "Command output in JSON").  "json" need not be given.  Options that name files to be written
 *  ("report", "timeline", "pool") write them.  Paths are relative to the working directory;
 *  "cluster" is a cluster file, or the text of one, which begins with a brace.
 *
 *  @code
 *  char *report = NULL;
 *  ek_status st = ek_simulate_json("{\"cluster\": \"h100-64.json\", \"ranks\": 64, \"ep\": 8}",
 *                                  &report);
 *  if (st == EK_OK)
 *      puts(report);
 *  else
 *      fprintf(stderr, "%s\n", ek_err_text());
 *  free(report);
 *  @endcode
 *
 *  @par Collective
 *  No call is.
 *
 *  @par Ownership
 *  Texts that are passed in are borrowed during the call.  Answers are the caller's, who releases
 *  them with free().
 *
 *  @par Threads
 *  One call at a time per process; a call uses an OpenMP team.
 *
 *  @par Errors
 *  EK_EFORMAT text that is not a JSON object, a cluster file or a trace; EK_EINVAL a setting that
 *  is unknown (the message names the nearest) or out of range, a layout that training would
 *  refuse, ranks that the cluster does not have; EK_ENOENT, EK_EIO, EK_ENOSPC a file;
 *  EK_EUNSUPPORTED what an engine cannot simulate; EK_ENOMEM memory, and of ek_search_json: no
 *  layout fits in that of the cluster's ranks. */
#ifndef EK_SIMULATE_H
#define EK_SIMULATE_H

#include "evenkeel/err.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Simulates a step.  Not collective.
 *
 *  @param[in]  settings  JSON: options of `evenkeel simulate`; "cluster" and "ranks" are required
 *  @param[out] report    JSON: the step in milliseconds, its parts, memory and bytes of every class
 *                        of ranks, and what else was asked for; NULL on failure
 *  @return see the top */
EK_CHECKED EK_API ek_status ek_simulate_json(const char *settings, char **report);

/** Searches the layouts of a model on a cluster.  Not collective.
 *
 *  @param[in]  settings  JSON: options of `evenkeel search`; "cluster" and "ranks" are required
 *  @param[out] answer    JSON: the best layouts with their options, step and memory, the best with
 *                        each value of an option, and how many were looked at; NULL on failure
 *  @return see the top */
EK_CHECKED EK_API ek_status ek_search_json(const char *settings, char **answer);

#ifdef __cplusplus
}
#endif

#endif
