/* search/end_ranks.h - the two ranks of a layout that a search lays out: the first of the first
 * pipeline stage, which keeps most activations, and the first of the last stage, which has the
 * head.
 *
 * Their memory is what training lays out.  Their times are those of a step of a single micro-batch,
 * replayed on one stage alone, as if messages of other stages were always there.
 *
 * Where all layers are alike, and virtual stages have equally many, two models with few layers are
 * laid out instead of the model: one more layer of each virtual stage is the difference of the two,
 * so what the others take is known.  Bytes found so are those of the model, but for a kilobyte of
 * tables; the time of a micro-batch is, too, but for rounding, as each layer waits for the one
 * before. What follows the last micro-batch overlaps with it, and is not known so.
 *
 * With --elastic a run may keep two copies of each expert, or one, as it finds when it starts:
 * memory is that of one, and each time the shorter one. */
#ifndef SEARCH_END_RANKS_H
#define SEARCH_END_RANKS_H

#include "search/stage_time.h"
#include "search/zero_traffic.h"

enum { EK_END_FIRST, EK_END_LAST, EK_END_RANKS }; /* stages */

typedef struct {
    const ek_cluster *cluster;
    int ranks;
    const int *node_of;   /* [ranks] */
    const int *host_of;   /* [ranks], as of ek_imagined_world */
    int64_t layers;       /* of the model */
    int alike;            /* 1: all its layers are alike, and few of them may be laid out */
    ek_even_plans *plans; /* of copies of experts */
} ek_end_world;

typedef struct ek_end_ranks ek_end_ranks;

/* The caller closes *out, also after a failure; cfg's texts are borrowed until then.  Errors as of
 * ek_imagine. */
EK_CHECKED ek_status ek_end_ranks_open(const ek_end_world *w, const ek_train_config *cfg,
                                       ek_end_ranks **out);
void ek_end_ranks_close(ek_end_ranks **x);

/* The bytes of the one that needs more, with a micro-batch and recomputation (a word of
 * --recompute), and those of them that are copies of all that other ranks keep. */
EK_CHECKED ek_status ek_end_ranks_measure(const ek_end_ranks *x, int64_t micro_batch,
                                          const char *recompute, double *memory, double *copies);

/* ZeRO 2 or 3: what a layer of the first stage sends. */
EK_CHECKED ek_status ek_end_ranks_traffic(const ek_end_ranks *x, ek_layer_traffic *out);

/* Times a micro-batch on both stages, whatever its recomputation. */
EK_CHECKED ek_status ek_end_ranks_time(const ek_end_ranks *x, int64_t micro_batch,
                                       ek_stage_time of[EK_END_RANKS]);

#endif
