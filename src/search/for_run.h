/* search/for_run.h - the layouts of a run with --layout auto. */
#ifndef SEARCH_FOR_RUN_H
#define SEARCH_FOR_RUN_H

#include "base/file.h"
#include "train/layout.h"

/* Searches the layouts of a run on cfg->cluster, and makes the pool that ek_train chooses from
 * (cfg.layout_pool).  With a micro_batch only layouts with it; with layout_every all layouts have
 * the micro-batch of the best one, as losses depend on it.  Loads of experts are those of
 * replay_routing, else even.  host_of [ranks]: only layouts that survive the loss of any host
 * (ek_layout_survives); NULL: all.  With cfg->elastic steps and memory have its copies.  The caller
 * frees *pool, JSON text.  EK_EINVAL: no cluster is given; else errors as of ek_search_run, and of
 * the files.  Local. */
EK_CHECKED ek_status ek_search_for_run(const ek_train_config *cfg, int ranks, const int *host_of,
                                       char **pool);

/* Options of a layout as words of a command line. */
enum { EK_RUN_LAYOUT_WORDS = 2 * EK_CHOICES + 5, EK_RUN_LAYOUT_WORD = 40 };
typedef char ek_run_layout_word[EK_RUN_LAYOUT_WORD];
typedef struct {
    int n;
    ek_run_layout_word word[EK_RUN_LAYOUT_WORDS]; /* [n] "--pp", "2", ..., "--layout", "given" */
    int n_layout_words; /* of these, if the run changes its layout: workers do not get them, as they
                           choose the layout themselves; else 0 */
    ek_path pool;       /* a file with the pool of these layouts, which workers read; or "" */
    char shown[256];    /* for people */
} ek_run_layout;

/* The same search in a child process (base/command_child.h): a command that then starts ranks keeps
 * neither its threads, which would take the command's signals, nor its memory.  The best layout,
 * for that command; with cfg->layout_pool the first of the pool.  Where cfg->elastic is
 * EK_ELASTIC_BY_DEFAULT and there is no such layout that survives and fits, the best of all, with
 * "--elastic=false" and a warning.  With layout_every a run that is in cfg->out has the layout that
 * its run.json says, and a pool that was searched is written into that folder (layout-pool.json),
 * but for a dry run.  host_of where all ranks are on one host: as NULL.  stop: as of
 * ek_child_compute. */
EK_CHECKED ek_status ek_search_layout_for_run(const ek_train_config *cfg, int ranks,
                                              const int *host_of, int (*stop)(void),
                                              ek_run_layout *out);

#endif
