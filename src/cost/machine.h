/* cost/machine.h - measured performance of a machine: tables by size, and the file format.
 *
 * Planners  the rates of an expert's products and copies: the least that is measured.
 * Training  where further copies of experts are considered: what prices them beside a whole step.
 * Kernels   rates of every kernel by shape and size (cost/kernel_costs.h), which predictions of
 *           whole steps use where they are there.
 * Links     two classes: between ranks of one node, and between nodes.  A class that the measured
 *           ranks did not have is empty. */
#ifndef COST_MACHINE_H
#define COST_MACHINE_H

#include "evenkeel/err.h"

#include "cost/kernel_costs.h"

#include <stddef.h>
#include <stdint.h>

enum { EK_COST_NAME = 320, EK_COST_KEY = 1024 };

/* The products of an expert, up and down together. */
typedef enum {
    EK_COST_FORWARD,
    EK_COST_BACKWARD_INPUT,
    EK_COST_BACKWARD_WEIGHT,
    EK_COST_PRODUCTS
} ek_cost_product;

typedef enum { EK_LINK_NODE, EK_LINK_NET, EK_LINKS } ek_link;

typedef struct {
    int64_t ranks_a_node;  /* ranks that sent at the same time, sharing the links of their node */
    ek_cost_table message; /* all-to-all: bytes to one other rank -> seconds a message */
    ek_cost_table hop;     /* multicast: bytes -> seconds from one rank to the next */
    double seconds_a_byte_beside; /* what a byte sent and one received take from products on the
                                     same core */
    double arrival_skew_s; /* by which ranks that compute and then meet take longer than to compute
                              and to exchange, each alone */
    double burst; /* bytes of a rank that pass at once after a pause; 0: not measured, or none */
} ek_link_cost;

/* What a rank reaches in wall time while all others do the same, as in training. */
typedef struct {
    int64_t rows;       /* of an expert; 0: not measured */
    int64_t seq;        /* tokens of a sequence */
    double flops_per_s; /* of an expert's products, forward and backward, with so many rows */
    double adamw;       /* bytes read plus bytes written per second */
    double attention_s; /* a token of such a sequence takes in a layer, forward and backward */
} ek_training_rates;

/* Plain data without pointers: may be copied and sent. */
typedef struct {
    char name[EK_COST_NAME]; /* for display */
    char key[EK_COST_KEY];   /* what was measured; "" in a file written by hand */
    char dtype[8];           /* of the products: bf16, fp32 or fp64 */
    int64_t ranks, nodes, threads;
    int64_t hidden, ff, experts; /* sizes that products were measured with; experts of a rank */
    double took_s;               /* duration of the measurement */
    ek_cost_table rate[EK_COST_PRODUCTS]; /* rows an expert -> FLOP/s of a rank */
    double copy;                          /* bytes read plus bytes written per second, of a rank */
    ek_link_cost link[EK_LINKS];
    ek_training_rates training;
    double op_s;    /* of the executor for an op, besides what the op does; 0: not measured */
    double polling; /* share by which an op of the network in flight prolongs products on the same
                       core, besides its bytes; 0: not measured, or the network has a core */
    double rank_alone, node_alone; /* CPU time of a rank, over that with all ranks busy: while no
                                      other rank computes; while other nodes do not.  0: 1, as
                                      where ranks have cores of their own */
    ek_kernel_costs kernels;
} ek_machine;

/* "forward", "node", ...: the keys of the file. */
const char *ek_cost_product_name(ek_cost_product p);
const char *ek_link_name(ek_link link);

/* Bytes of an element for this dtype: of the products' operands (weights, rows), and of gradients
 * and optimizer state. */
int ek_machine_comp_bytes(const ek_machine *m);
int ek_machine_real_bytes(const ek_machine *m);

/* The machine with the rates of training in place of those that planners use, where they were
 * measured, and messages of all-to-alls between nodes that are larger than what was measured
 * priced by hops, one for each rank that shares a node's link. */
void ek_machine_in_training(const ek_machine *m, ek_machine *out);

/* EK_EFORMAT: an invalid value; the message names `file` and the key. */
EK_CHECKED ek_status ek_machine_check(const ek_machine *m, const char *file);

/* The text of a machine file: JSON, one array a line.  The caller frees *text. */
EK_CHECKED ek_status ek_machine_text(const ek_machine *m, char **text, size_t *bytes);
/* Parse a text, and read a file; both are strict, and clear *out on failure.  EK_EFORMAT,
 * EK_ENOENT, EK_EIO. */
EK_CHECKED ek_status ek_machine_parse(const char *text, size_t bytes, const char *file,
                                      ek_machine *out);
EK_CHECKED ek_status ek_machine_read(const char *path, ek_machine *out);
EK_CHECKED ek_status ek_machine_write(const ek_machine *m, const char *path);

#endif
