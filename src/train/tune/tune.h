/* train/tune/tune.h - tunes Tutel's r, the pipeline degree and the all-to-all algorithm while
 * training.
 *
 * Source     Tutel (MLSys 2023), section 3.3: a table from the capacity of a step, in buckets, to
 *            the setting that was measured to be best.  r, degree and all-to-all are tuned jointly,
 *            as communication and computation that overlap slow each other down.  The table is
 *            filled during training: settings change the time of a step, not its result.
 * Search     of one bucket: every setting is tried once, uncounted; then in rounds over all
 *            remaining settings, in alternating order.  After two rounds far slower settings are
 *            dropped; then, after a few more each time, the slower half, until one remains: with 12
 *            settings after 175 steps at most.  With more settings there are fewer rounds: 25 take
 *            182 steps, 37 take 262.  As loads vary, a time is divided by the mean of its round;
 *            the score of a setting is the median over rounds.
 * Retuning   when the steps of a tuned bucket take another time than before, after at least
 *            retune_steps steps, its search is repeated; if it finds the same setting again,
 *            retune_steps doubles.
 * Ranks      the same times give the same settings: all ranks must add the same times.
 *
 * A pure state machine; nothing is allocated. */
#ifndef TRAIN_TUNE_TUNE_H
#define TRAIN_TUNE_TUNE_H

#include "moe/moe.h"

enum {
    EK_TUNE_SETTINGS = 61,      /* most settings to choose from: five r's with 12 each, and r = 0 */
    EK_TUNE_SMALL = 12,         /* up to this many settings get more rounds */
    EK_TUNE_BUCKETS = 16,       /* kept; then the least recently used is replaced */
    EK_TUNE_SAMPLES = 40,       /* times of a setting, at most */
    EK_TUNE_WATCH = 21,         /* steps of whose times the median is compared when tuned */
    EK_TUNE_RETUNE_STEPS = 100, /* steps before a search may be repeated, */
    EK_TUNE_RETUNE_MAX = 1 << 20, /* at most */
    EK_TUNE_CAPACITY = 128        /* of a bucket (Tutel's R) */
};

/* A step's setting, and its identity for ek_tune_add. */
typedef struct {
    ek_moe_traffic traffic;
    int setting, stage; /* index of the setting; stage of the search, -1: time not counted */
    int64_t search;
} ek_tune_choice;

/* The result of a search. */
typedef struct {
    ek_moe_traffic best, first; /* the fastest setting; the first (simplest) one */
    double best_s;              /* seconds of a step with the fastest: median */
    double gain;                /* time with the first over time with the fastest */
    int64_t bucket, steps;      /* bucket key; steps of the search */
} ek_tune_result;

typedef struct {
    int64_t key, search, last_used; /* last_used: a step */
    int64_t began;                  /* the step at which the search began or, if done, ended */
    int64_t retune_steps;
    int best;                             /* the setting chosen; -1: searching */
    int last;                             /* the setting chosen before; -1: none */
    double best_s;                        /* 0: unknown, set from the next watched steps */
    int stage, n_remaining, tried, timed; /* tried, timed: steps of the stage */
    int remaining[EK_TUNE_SETTINGS];
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

/* Settings that are given and not tuned. */
typedef struct {
    int degree;     /* > 0: this one alone */
    int a2a;        /* >= 0: likewise */
    int gather;     /* not 0: likewise (ek_dispatch_layout_set_gather) */
    int gather_all; /* 1: EK_GATHER_ALL is a candidate, too */
    ek_a2a first;   /* all-to-all of the first settings, if it is tuned and worth trying */
} ek_tune_fixed;

/* The all-to-all to use before any is measured, for messages of `bytes` between two ranks: 2DH for
 * short ones if groups have several nodes with several ranks on a node, where it makes fewer and
 * longer messages of them; else linear. */
ek_a2a ek_tune_a2a_by_topology(const ek_mesh *mesh, double bytes);

/* Fills out [EK_TUNE_SETTINGS] with the settings worth trying on a mesh, the simplest first, but
 * those with fixed->first before the others of their gather; returns their number.  Pairwise
 * all-to-all for groups of more than two ranks; 2DH for groups on several nodes with several ranks
 * on a node.  If everything is gathered no rows are dispatched, and there is one setting for it.  1
 * if no rows are dispatched to other ranks at all. */
int ek_tune_settings(const ek_mesh *mesh, const ek_tune_fixed *fixed, ek_moe_traffic *out);

/* The bucket of a step: the mean rows of an expert, times the capacity factor if there is one,
 * divided by EK_TUNE_CAPACITY. */
int64_t ek_tune_bucket_of(int64_t tokens, int64_t top_k, int64_t experts, double capacity_factor);

void ek_tune_init(ek_tune *t, const ek_moe_traffic *settings, int n);

/* The setting of the next step. */
ek_tune_choice ek_tune_next(ek_tune *t, int64_t bucket);

/* Adds the time of a step that ran with a choice; steps in order, possibly some steps late. Returns
 * 1 if a search has ended with it; then *found is its result. */
int ek_tune_add(ek_tune *t, const ek_tune_choice *c, double seconds, ek_tune_result *found);

/* Writes the most recently used buckets, as many as fit, to warm_state [cap]; returns the bytes
 * written. */
size_t ek_tune_pack(const ek_tune *t, void *warm_state, size_t cap);

/* Restores searches and results from a packed tuner with the same settings; ranks_changed: another
 * number of ranks, where steps take another time, which is measured again.  Returns 0, with t
 * unchanged, if it cannot be used. */
int ek_tune_unpack(ek_tune *t, const void *warm_state, size_t bytes, int ranks_changed);

#endif
