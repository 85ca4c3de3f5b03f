/* sim/report.h - the outcome of a simulation, for people and as JSON. */
#ifndef SIM_REPORT_H
#define SIM_REPORT_H

#include "sim/cluster.h"
#include "sim/loads.h"
#include "sim/price_net.h"
#include "sim/replay.h"

#include <stdio.h>

/* A step with a change of the cluster (sim/what_if.h). */
typedef struct {
    const char *change;
    double step_s;
} ek_sim_what_if;

typedef struct {
    const ek_cluster *cluster;
    const ek_sim_graphs *graphs;
    const ek_sim_layout *layout;
    const ek_sim_result *result;
    ek_net_traffic traffic;        /* of a rank, in the mean, under even loads */
    const ek_sim_balance *balance; /* NULL: loads are even */
    const double *steps;           /* [n_steps] seconds */
    int64_t n_steps;
    const ek_sim_what_if *changes; /* [n_changes] */
    int n_changes;
    double took_s; /* the simulation itself */
} ek_sim_report;

/* FLOP/s of a rank that shares are given of; *what: which. */
double ek_sim_peak(const ek_cluster *c, const char **what);

enum { EK_SIM_PARTS = EK_OP_GROUPS + EK_COLLECTIVES + 5, EK_SIM_PART_NAME = 64 };

/* The i-th of the parts that a step consists of, in seconds, and its name [cap] for people. */
double ek_sim_part(const ek_sim_parts *p, int i, char *name, size_t cap);

/* Errors are left in ferror(out).  JSON: one object on a line. */
void ek_sim_write_text(const ek_sim_report *r, FILE *out);
void ek_sim_write_json(const ek_sim_report *r, FILE *out);

#endif
