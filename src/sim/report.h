/* sim/report.h - the outcome of a simulation, for people and as JSON. */
#ifndef SIM_REPORT_H
#define SIM_REPORT_H

#include "base/printable.h"
#include "sim/cluster.h"
#include "sim/failures.h"
#include "sim/loads.h"
#include "sim/price_net.h"
#include "sim/replay.h"

#include <jansson.h>
#include <stdio.h>

/* A step with a change of the cluster (sim/what_if.h). */
typedef struct {
    const char *change;
    double step_s;
} ek_sim_what_if;

/* A run under failures. */
typedef struct {
    ek_failures_config config; /* without its events and worlds */
    ek_failures_result result;
    int32_t recorded; /* instances of a record at its beginning; 0: failures are drawn */
    double step_s;    /* of all nodes, */
    double memory;    /* and the bytes of the rank with most */
    int64_t save_every;
    int save_assumed; /* 1: the cost of a save is not given; so of the others */
    int recover_assumed, restart_assumed;
    int recovers;           /* 0: every loss restarts from a checkpoint */
    int32_t copies;         /* of each expert on all nodes, at least */
    double copies_lengthen; /* ek_sim_layout */
    char survival[160];
} ek_sim_failures;

/* Steps with one thing of the cluster changed by each of some factors. */
enum { EK_SIM_FACTORS = 5, EK_SIM_SWEEPS = EK_CLUSTER_LEVELS + 2 };
extern const double ek_sim_factors[EK_SIM_FACTORS]; /* 0.25 to 4; the middle one is 1 */

typedef struct {
    char change[EK_CLUSTER_NAME + 16]; /* sim/what_if.h, without the factor: "bandwidth[leaf]" */
    double step_s[EK_SIM_FACTORS];
} ek_sim_sweep;

/* Steps with loads of experts between even ones and others (balance/skew.h): with primary copies
 * only, and as a policy plans. */
enum { EK_SIM_SKEWS = 5 };

typedef struct {
    double share;         /* 0: even loads */
    double before, after; /* largest over mean rows of a rank, as of ek_sim_balance */
    double off_s, planned_s;
} ek_sim_skew;

typedef struct {
    int n_sweeps, n_skews; /* n_skews 0: loads of experts matter to no rank */
    ek_sim_sweep sweep[EK_SIM_SWEEPS];
    ek_sim_skew skew[EK_SIM_SKEWS];
    const char *policy; /* of planned_s */
    const char *loads;  /* which loads those of share 1 are, for people */
} ek_sim_sensitivity;

typedef struct {
    const char *model;  /* as --model has it */
    const char *engine; /* "replay", "flow", "messages" */
    unsigned dialect;   /* bits of sim/dialect.h */
    const ek_cluster *cluster;
    const ek_sim_graphs *graphs;
    const ek_sim_layout *layout;
    const ek_sim_result *result;
    int n_strips;                  /* the last of the result's records, which the page draws */
    ek_net_traffic traffic;        /* of a rank, in the mean, under even loads */
    const ek_sim_balance *balance; /* NULL: loads are even */
    const double *steps;           /* [n_steps] seconds */
    int64_t n_steps;
    const ek_sim_what_if *changes; /* [n_changes] */
    int n_changes;
    const ek_sim_sensitivity *sensitivity; /* NULL: not asked for */
    const ek_sim_failures *failures;       /* NULL: none */
    double took_s;                         /* the simulation itself */
} ek_sim_report;

double ek_sim_mfu(const ek_sim_report *r);
double ek_sim_tokens_per_s(const ek_sim_report *r);
int64_t ek_sim_node_count(const ek_sim_report *r);
/* The class whose ranks need most memory. */
const ek_sim_class *ek_sim_fullest(const ek_sim_report *r);
/* The q-quantile of the steps: the nearest of them. */
double ek_sim_quantile(const ek_sim_report *r, double q);

/* Price of a run under failures: of the nodes that are up, while it waits as well; and of its steps
 * on average. */
double ek_sim_price_of_run(const ek_sim_report *r);
double ek_sim_step_price(const ek_sim_report *r);

/* Where the numbers of a rank's machine are from: "by data sheet: ...", "measured: ...".
 * text [EK_SIM_MACHINE], returned. */
enum { EK_SIM_MACHINE = EK_PRINTABLE_GROWTH * EK_COST_NAME + 128 };
const char *ek_sim_machine_text(const ek_cluster *c, char *text);
/* The same for JSON: a new object. */
json_t *ek_sim_machine_json(const ek_cluster *c);

/* What an engine does beside replay, after a comma; "" of replay. */
const char *ek_sim_engine_note(const char *engine);

/* FLOP/s of a rank that shares are given of; *what: which. */
double ek_sim_peak(const ek_cluster *c, const char **what);

enum { EK_SIM_PARTS = EK_OP_GROUPS + EK_COLLECTIVES + 5, EK_SIM_PART_NAME = 64 };

/* The i-th of the parts that a step consists of, in seconds, and its name [cap] for people. */
double ek_sim_part(const ek_sim_parts *p, int i, char *name, size_t cap);

/* Errors are left in ferror(out).  JSON: one object on a line. */
void ek_sim_write_text(const ek_sim_report *r, FILE *out);
void ek_sim_write_json(const ek_sim_report *r, FILE *out);

#endif
