/* search/zero_traffic.h - how long ZeRO keeps a rank's links busy in a step: with ZeRO 3 the
 * weights of a layer are gathered whenever they are used and no longer there, with ZeRO 2 and 3 its
 * gradients are summed after each micro-batch. */
#ifndef SEARCH_ZERO_TRAFFIC_H
#define SEARCH_ZERO_TRAFFIC_H

#include "train/imagine.h"

/* A layer of the first stage: those inside the node, and to other nodes. */
typedef struct {
    double gather_s[2], sum_s[2];
} ek_layer_traffic;

/* Of the layer of a rank of the first stage, of `stage` ranks, that has least of each.  ZeRO 2
 * or 3. EK_ENOMEM. */
EK_CHECKED ek_status ek_layer_traffic_of(const ek_imagined_rank *x, const ek_cluster *c,
                                         int32_t stage, ek_layer_traffic *out);

/* How the layers of a step's first stage are used. */
typedef struct {
    int64_t layers; /* of the model */
    int pp, chunks;
    int64_t micros;
} ek_layer_uses;

/* How often a layer of the first stage is gathered in a step with ZeRO 3, at least: when neither of
 * two buffers, for every second layer each, has its weights.  EK_ENOMEM. */
EK_CHECKED ek_status ek_layer_gathers(const ek_layer_uses *u, int64_t *gathers);

/* Seconds of a step, or less: of ZeRO 3, else 2.  Flows of one layer that are in flight together
 * may be counted less than they are in a replay, so two layers' are left out. */
EK_CHECKED ek_status ek_zero_traffic_bound(const ek_layer_traffic *of, const ek_layer_uses *u,
                                           int zero, double *seconds);

#endif
