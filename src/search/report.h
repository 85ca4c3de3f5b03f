/* search/report.h - the answer of a search: for people, as JSON, and as a pool file
 * (docs/formats.md). */
#ifndef SEARCH_REPORT_H
#define SEARCH_REPORT_H

#include "search/figures.h"
#include "search/report_objective.h"

#include <stdio.h>

/* The answer of the best of n numbers of ranks, one of which at least was searched, and the best
 * layout of each.  Errors are left in ferror(out).  JSON: one object on a line. */
void ek_search_write_text(const ek_search_ranks *at, int64_t n, FILE *out);
void ek_search_write_json(const ek_search_ranks *at, int64_t n, FILE *out);

/* Two sentences with something between them: what cannot be told apart from the best layout, and
 * which of it needs least memory.  text [EK_SEARCH_NEAR], returned. */
enum { EK_SEARCH_NEAR = 768 };
const char *ek_search_near_text(const ek_search *s, const char *between, char *text);

/* Of an answer with a trace: its loads, and what they cost the best layout, in sentences.
 * text [EK_SEARCH_LOADS], returned. */
enum { EK_SEARCH_LOADS = 512 };
const char *ek_search_loads_text(const ek_search *s, char *text);

/* Whether evenkeel itself cannot yet train as is simulated: several GPUs have no NCCL. */
int ek_search_is_for_others(const ek_search *s);
#define EK_SEARCH_FOR_OTHERS(line_end)                                                             \
    "GPUs are taken to exchange over the links of the cluster file, where evenkeel's own "         \
    "training" line_end                                                                            \
    "does so through the host, without NCCL: on several GPUs the layout is for other "             \
    "programs. docs/search.md" line_end "has the options of Megatron-LM for it."

/* The text of a pool file; the caller frees it.  EK_ENOMEM. */
EK_CHECKED ek_status ek_search_pool_text(const ek_search *s, char **text);
/* Replaces the file.  EK_EIO, EK_ENOSPC, EK_ENOMEM. */
EK_CHECKED ek_status ek_search_write_pool(const ek_search *s, const char *path);

#endif
