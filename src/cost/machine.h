/* cost/machine.h - what a machine was measured to take: tables by size, and the file that keeps
 * them.
 *
 * Tables   y over ascending x, straight in log x and log y between two points, and exact at them.
 *          A table of times is flat below its first point and grows in proportion above the last;
 *          a table of rates is the other way round: below its first point it falls in proportion
 *          (less work takes no less time), above the last it is flat.  Neither lets more work
 *          take less time, which the reader checks.
 * Links    two classes: between ranks of one node, and between nodes.  A class that the measured
 *          ranks did not have is empty. */
#ifndef COST_MACHINE_H
#define COST_MACHINE_H

#include "evenkeel/err.h"

#include <stddef.h>
#include <stdint.h>

enum { EK_COST_POINTS = 24, EK_COST_NAME = 320, EK_COST_KEY = 1024 };

/* Points of a table; n 0: not measured. */
typedef struct {
    int32_t n;
    double x[EK_COST_POINTS], y[EK_COST_POINTS];
} ek_cost_table;

/* The products of an expert: up and down together, in each direction. */
typedef enum {
    EK_COST_FORWARD,
    EK_COST_BACKWARD_INPUT,
    EK_COST_BACKWARD_WEIGHT,
    EK_COST_PRODUCTS
} ek_cost_product;

typedef enum { EK_LINK_NODE, EK_LINK_NET, EK_LINKS } ek_link;

typedef struct {
    int64_t ranks_a_node;  /* that talked at the same time: they share what their node has */
    ek_cost_table message; /* all-to-all: bytes to one other rank -> seconds a message */
    ek_cost_table hop;     /* multicast: bytes -> seconds from a rank to the next */
} ek_link_cost;

/* Plain data: may be copied and sent as it is. */
typedef struct {
    char name[EK_COST_NAME]; /* for people */
    char key[EK_COST_KEY];   /* what it was measured on; "" where a person wrote it */
    char dtype[8];           /* of the products: bf16, fp32 or fp64 */
    int64_t ranks, nodes, threads;
    int64_t hidden, ff, experts; /* sizes that products were measured with, experts of a rank */
    double took_s;               /* to measure all of it */
    ek_cost_table rate[EK_COST_PRODUCTS]; /* rows an expert -> FLOP/s of a rank */
    double copy;                          /* bytes read and bytes written a second, of a rank */
    ek_link_cost link[EK_LINKS];
} ek_machine;

double ek_cost_time_at(const ek_cost_table *t, double x);
double ek_cost_rate_at(const ek_cost_table *t, double x);

/* Where more work took less time, the less took as long as the more: whatever else a machine does
 * only makes it slower. */
void ek_cost_smooth_times(ek_cost_table *t);
void ek_cost_smooth_rates(ek_cost_table *t);

/* "forward", "node", ...: as in the file. */
const char *ek_cost_product_name(ek_cost_product p);
const char *ek_link_name(ek_link link);

/* Bytes of a number that products read (weights, rows), and of one that gradients and the
 * optimizer hold, for this dtype. */
int ek_machine_comp_bytes(const ek_machine *m);
int ek_machine_real_bytes(const ek_machine *m);

/* EK_EFORMAT names the key at fault, after `file`. */
EK_CHECKED ek_status ek_machine_check(const ek_machine *m, const char *file);

/* The text of a machine file: JSON, one table a line.  The caller frees *text. */
EK_CHECKED ek_status ek_machine_text(const ek_machine *m, char **text, size_t *bytes);
/* The reverse, of a text and of a file; both are strict.  EK_EFORMAT, EK_ENOENT, EK_EIO. */
EK_CHECKED ek_status ek_machine_parse(const char *text, size_t bytes, const char *file,
                                      ek_machine *out);
EK_CHECKED ek_status ek_machine_read(const char *path, ek_machine *out);
EK_CHECKED ek_status ek_machine_write(const ek_machine *m, const char *path);

#endif
