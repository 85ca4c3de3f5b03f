/* search/for_run.h - the pool of layouts of a run with --layout auto. */
#ifndef SEARCH_FOR_RUN_H
#define SEARCH_FOR_RUN_H

#include "evenkeel/train.h"

/* Searches the layouts of a run on cfg->cluster, and makes the pool that ek_train chooses from
 * (cfg.layout_pool).  With a micro_batch only layouts with it; with layout_every all layouts have
 * the micro-batch of the best one, as losses depend on it.  Loads of experts are those of
 * replay_routing, else even.  The caller frees *pool, JSON text.  EK_EINVAL: no cluster is given;
 * else errors as of ek_search_run, and of the files.  Local. */
EK_CHECKED ek_status ek_search_for_run(const ek_train_config *cfg, int ranks, char **pool);

#endif
