/* Lays out the ranks with their copies. */
#include "train/layout_room.h"

#include "base/count_text.h"
#include "base/log.h"
#include "train/imagine.h"

/* Bytes of the rank that needs most with a layout; 0 if training refuses it. */
static double measure(const ek_train_config *cfg, const ek_pool_layout *l, int ranks,
                      const int *host_of)
{
    const ek_imagined_world w = {ranks, host_of, NULL, host_of};
    ek_train_config c = *cfg;
    int logged = ek_log_limit(EK_LOG_ERROR); /* what a run with this layout would tell */
    ek_imagined *x = NULL;
    double bytes = 0;

    ek_pool_layout_apply(l, &c);
    c.layout_pool = NULL;
    c.layout_every = 0;
    c.world = NULL;
    c.supervised = NULL;
    c.replay_routing = NULL;
    if (ek_imagine(&c, &w, 0, &x) == EK_OK)
        bytes = ek_sim_graphs_fullest(ek_imagined_graphs(x))->memory;
    ek_imagined_close(&x);
    ek_log_unlimit(logged);
    return bytes;
}

int ek_layout_has_room(const ek_train_config *cfg, const ek_pool_layout *l, int ranks,
                       const int *host_of, int tells)
{
    const int64_t *v = l->choice.value;
    char words[256], needs[32], limit[32];
    double bytes;

    if (cfg->memory_limit <= 0 ||
        ek_layout_stage_on_one_host(ranks, (int)v[EK_CHOICE_PP], (int)v[EK_CHOICE_TP], host_of) < 0)
        return 1;
    bytes = measure(cfg, l, ranks, host_of);
    if (bytes <= (double)cfg->memory_limit)
        return 1;
    if (tells)
        ek_log(
            "layout", EK_LOG_WARN,
            "%s of the pool is left out: one host alone would have a part of a stage, and with a "
            "copy of that on another one a rank needs %s, more than --memory-limit, %s",
            ek_layout_words(&l->choice, l->balance, words, sizeof(words)),
            ek_bytes_text(needs, sizeof(needs), bytes),
            ek_bytes_text(limit, sizeof(limit), (double)cfg->memory_limit));
    return 0;
}
