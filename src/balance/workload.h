/* balance/workload.h - routing traces made up by rule and seed: loads of experts that stand for
 * situations of real training, for planners to be tried on and for gates to replay.
 *
 * A workload says how popular the experts of a layer are in an iteration, and how many tokens a
 * source has.  Every token picks top_k different experts, so an expert has no more assignments from
 * a source than the source has tokens.  Sources are the ranks: "the experts of a rank" are those in
 * block order, as evenly as can be, the first ranks holding one more (placement/placement.h).  But
 * for W0 there is noise as if tokens picked by chance.  Numbers depend on the shape and nothing
 * else. */
#ifndef BALANCE_WORKLOAD_H
#define BALANCE_WORKLOAD_H

#include "evenkeel/err.h"

#include <stddef.h>
#include <stdint.h>

/* What changes with time does so after so many iterations. */
enum {
    EK_WORKLOAD_ROTATION = 4,  /* W5: the hot expert is another one */
    EK_WORKLOAD_CALM = 16,     /* W6: of so many iterations, */
    EK_WORKLOAD_BURST = 4,     /* so many are extreme, after as many that are calm */
    EK_WORKLOAD_DRIFT = 32,    /* drifting: nothing is left of a popularity */
    EK_WORKLOAD_SWITCHING = 20 /* switching: all popularities are drawn anew */
};

typedef struct {
    int64_t iterations, layers;
    int32_t sources, experts;
    int64_t tokens; /* of a source in an iteration, on average */
    int64_t top_k;
    uint64_t seed;
} ek_workload_shape;

typedef struct {
    double *popularity; /* [experts] */
    const ek_workload_shape *s;
    int64_t iteration, layer;
} ek_popularity;

/* One of those below. */
typedef struct {
    const char *name;
    const char *what;                           /* in one line, and what it stands for */
    void (*popularity)(const ek_popularity *p); /* in any unit */
    double (*tokens)(const ek_popularity *p, int32_t source); /* likewise; NULL: all alike */
    int exact; /* no noise, for popularities that are all alike */
} ek_workload;

extern const ek_workload ek_workloads[];
extern const size_t ek_workload_count;

/* By name; NULL: there is none. */
const ek_workload *ek_workload_find(const char *name);

typedef struct ek_workload_maker ek_workload_maker;

/* EK_EINVAL: a shape that cannot be. */
EK_CHECKED ek_status ek_workload_open(const ek_workload *w, const ek_workload_shape *s,
                                      ek_workload_maker **out);
void ek_workload_close(ek_workload_maker **m);

/* Fills counts [sources][experts] of a layer in an iteration. */
void ek_workload_counts(ek_workload_maker *m, int64_t iteration, int64_t layer, uint32_t *counts);

#endif
