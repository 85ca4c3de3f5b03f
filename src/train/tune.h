/* train/tune.h - Tutel's r, the pipeline degree and the all-to-all of the steps, chosen while
 * training.
 *
 * Source   Tutel (MLSys 2023), section 3.3: a table from the capacity of a step, in buckets, to the
 *          setting that was measured to be best; the parts are tuned jointly, as an exchange beside
 *          products slows both.  Here it is filled while training goes on: settings change what a
 *          step takes and not what it computes.
 * Search   of one bucket: every setting is tried once, which is not counted; then in rounds, each
 *          of which tries all that are left, to and fro.  After two rounds those go that take far
 *          longer; then, after a few more, the slower half, until one is left: of 12 settings after
 *          175 steps at most.  With more settings rounds are fewer: 25 take 182 steps, 37 take
 *          262.  A time counts as part of its round's mean, as loads come and go, and the median
 * over rounds is what a setting is judged by. Watch    when the steps of a bucket that has settled
 * take another time than they did for long, its search begins anew; one that finds the same again
 * makes the tuner more patient. Agreed   the same times give the same settings: all ranks have to
 * be told the same.
 *
 * A pure state machine; nothing is allocated. */
#ifndef TRAIN_TUNE_H
#define TRAIN_TUNE_H

#include "moe/moe.h"

enum {
    EK_TUNE_SETTINGS = 61,  /* most settings to choose from: five r's with 12 each, and 0 */
    EK_TUNE_FEW = 12,       /* so many are tried more often */
    EK_TUNE_BUCKETS = 16,   /* kept; then the one that was not used for longest goes */
    EK_TUNE_SAMPLES = 40,   /* times of a setting, at most */
    EK_TUNE_WATCH = 21,     /* steps by which one that has settled is judged */
    EK_TUNE_PATIENCE = 100, /* steps that a choice is kept, at least, */
    EK_TUNE_PATIENCE_MAX = 1 << 20,
    EK_TUNE_CAPACITY = 128 /* of a bucket (Tutel's R) */
};

/* A step's setting, and what the tuner knows it by. */
typedef struct {
    ek_moe_traffic traffic;
    int place, stage; /* of the setting; of the search, or -1: its time is not counted */
    int64_t search;
} ek_tune_choice;

/* What a search has found. */
typedef struct {
    ek_moe_traffic best, first; /* first: of the settings */
    double best_s;              /* what a step took with it: median */
    double gain;                /* how many times longer it was with the first */
    int64_t bucket, steps;      /* that it took */
} ek_tune_result;

typedef struct {
    int64_t key, search, used; /* used: the step that last did */
    int64_t began;             /* of the search: a step; when it has settled, that one */
    int64_t patience;
    int best;      /* the setting that it has settled on; -1: it searches */
    int last;      /* what it had settled on before; -1: nothing */
    double best_s; /* 0: to be found out, by the next steps that it is judged by */
    int stage, n_left, tried, timed; /* the latter of the stage */
    int left[EK_TUNE_SETTINGS];
    int n[EK_TUNE_SETTINGS];
    double s[EK_TUNE_SETTINGS][EK_TUNE_SAMPLES];
    int n_watched;
    double watched[EK_TUNE_WATCH];
} ek_tune_bucket;

typedef struct {
    int n;
    ek_moe_traffic settings[EK_TUNE_SETTINGS];
    int64_t step, searches;
    int n_buckets;
    ek_tune_bucket bucket[EK_TUNE_BUCKETS];
} ek_tune;

/* What is not to be chosen. */
typedef struct {
    int degree;     /* > 0: this one alone */
    int a2a;        /* >= 0: likewise */
    int gather;     /* not 0: likewise (ek_dispatch_layout_set_gather) */
    int gather_all; /* EK_GATHER_ALL is to choose from, too */
} ek_tune_given;

/* The settings worth trying on a mesh, the simplest first; their number.  Pairs take turns where
 * more than two ranks exchange; by nodes where ranks that exchange are on several, and some of them
 * on the same.  Where everything is gathered no rows travel, and there is one setting for it.
 * 1 where nothing travels at all. */
int ek_tune_settings(const ek_mesh *mesh, const ek_tune_given *given, ek_moe_traffic *out);

/* The bucket of a step: by the rows of an expert, were they spread evenly, times the capacity
 * factor if there is one. */
int64_t ek_tune_bucket_of(int64_t tokens, int64_t top_k, int64_t experts, double capacity_factor);

void ek_tune_init(ek_tune *t, const ek_moe_traffic *settings, int n);

/* What the next step runs with. */
ek_tune_choice ek_tune_next(ek_tune *t, int64_t bucket);

/* How long a step took that ran with a choice; steps are told in order, none or some steps late.
 * 1: a search has ended with it, and this is what it found. */
int ek_tune_add(ek_tune *t, const ek_tune_choice *c, double seconds, ek_tune_result *found);

/* What is known, for another process to go on from: the buckets used last, as many as fit.  The
 * bytes that takes; at most `room`. */
size_t ek_tune_pack(const ek_tune *t, void *warm_state, size_t room);

/* Goes on from that, where it is of the same settings: searches go on, and so does what they have
 * found, but others: on other ranks, where steps take another time.  0: it is of no use, and
 * nothing has changed. */
int ek_tune_unpack(ek_tune *t, const void *warm_state, size_t bytes, int others);

#endif
