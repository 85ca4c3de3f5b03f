/* sim/cluster.h - a cluster: the machine of a rank, and the tree of links between ranks.
 *
 * Levels     a tree of switches, innermost first.  Ranks [i * ranks, (i + 1) * ranks) are below one
 *            switch of a level.  A message between two ranks passes the lowest level at which both
 *            are below one switch, and is bound by the bandwidth of that level: a rank's own, in
 *            each direction, which other ranks do not share.  Where ranks do share a link, such as
 *            the network adapter of a node, the level has the part of a rank while all send, and
 *            says how many they are.
 * Node       ranks below one switch of the level named "node" share a node, as they share a host
 *            name in a job; without such a level each rank is a node.
 * Beyond     ranks that no level holds together communicate through the last level. */
#ifndef SIM_CLUSTER_H
#define SIM_CLUSTER_H

#include "cost/machine.h"

enum { EK_CLUSTER_LEVELS = 8, EK_CLUSTER_NAME = 128, EK_CLUSTER_SLOW = 256 };

typedef struct {
    char name[EK_CLUSTER_NAME];
    int64_t ranks;  /* consecutive ranks below one switch; a multiple of those of the level below */
    double bytes_s; /* bandwidth of a rank through this level, in each direction */
    double latency_s;  /* from the start of a short message to its arrival */
    double overhead_s; /* time of the rank for each message; 0: not given */
    int64_t rails;     /* parallel planes of switches */
    int64_t shared_by; /* consecutive ranks that share a link, of which bytes_s is the part of each
                          while all use it; one that uses it alone has all; 0: 1 */
    double collective_s; /* of an all-reduce, all-gather or reduce-scatter, beside its bytes and
                            latencies; 0: not given */
    double byte_s; /* that a byte sent and one received take from what the rank computes; 0: not
                      given */
    double arrival_skew_s; /* by which ranks that compute and then meet take longer than to compute
                         and to exchange, each alone, as they have not done as much at the same
                         time; 0: not given */
    double burst; /* bytes of a rank that a link lets pass at once after a pause; 0: not given */
    double peer_bytes_s; /* bandwidth between two ranks: of a message, and of what an all-to-all has
                            for one rank; 0: bytes_s */
    double gap_s;        /* of the link for each such message, beside its bytes; 0: not given */
    double ring_step_s;  /* of a step of a ring, beside its bytes, where each step pays it
                            (ring_steps below); 0: latency_s */
} ek_cluster_level;

/* Plain data without pointers.  0: not given, but for sizes of lists. */
typedef struct {
    char name[EK_CLUSTER_NAME];
    double memory;      /* bytes of a rank */
    char device[8];     /* on which a rank computes, a word of --device; "": cpu */
    int64_t cores;      /* of a rank */
    ek_machine machine; /* of a rank: measured tables, or constant rates */
    double peak;        /* FLOP/s of a rank by its data sheet, with constant rates */
    double speed;       /* factor on the speed at which a rank computes (sim/what_if.h); 0 is 1 */
    int ring_steps;     /* 1: each step of a ring pays ring_step_s (sim/dialect.h) */
    int tree_sums;      /* 1: all-reduces over nodes may be trees (sim/dialect.h) */
    int staged_2dh;     /* 1: 2DH in two phases with copies (sim/dialect.h) */
    int32_t n_levels;
    ek_cluster_level level[EK_CLUSTER_LEVELS]; /* [n_levels] */
    int32_t n_slow;
    int32_t slow[EK_CLUSTER_SLOW]; /* [n_slow] ranks that compute at slow_factor of the speed */
    double slow_factor;
    double node_mtbf_s;  /* mean time between failures of a node */
    int64_t rack_nodes;  /* consecutive nodes of a rack */
    double rack_share;   /* probability that a failure takes the rack; 0 with rack_nodes: 1 */
    double back_s;       /* until a failed node is back */
    double recover_s;    /* until a run goes on after a loss of nodes that it survives, */
    double restart_s;    /* and from a checkpoint */
    double save_s;       /* a checkpoint prolongs the run by this */
    double node_s_price; /* of a node for a second, in any currency */
} ek_cluster;

/* Parse a text, and read a file, or a text that begins with a brace; both are strict, and clear
 * *out on failure.  `file` is for messages, and a machine that is named there is read from its
 * folder.  EK_EFORMAT, EK_ENOENT, EK_EIO. */
EK_CHECKED ek_status ek_cluster_parse(const char *text, size_t bytes, const char *file,
                                      ek_cluster *out);
EK_CHECKED ek_status ek_cluster_read(const char *file_or_text, ek_cluster *out);

/* The text of a cluster file, with the machine's tables; the caller frees *text.  And to a file,
 * unless it would be refused: EK_EFORMAT. */
EK_CHECKED ek_status ek_cluster_text(const ek_cluster *c, char **text, size_t *bytes);
EK_CHECKED ek_status ek_cluster_write(const ek_cluster *c, const char *path);

/* Ranks of the whole cluster, and of a node. */
int64_t ek_cluster_ranks(const ek_cluster *c);
int64_t ek_cluster_node_ranks(const ek_cluster *c);

/* Nodes of the first `ranks` ranks, numbered by first rank: a new array, which the caller frees.
 * EK_ENOMEM. */
EK_CHECKED ek_status ek_cluster_nodes(const ek_cluster *c, int ranks, int **node_of);

/* Index of the level that messages between two different ranks pass. */
int ek_cluster_level_between(const ek_cluster *c, int64_t a, int64_t b);

/* Ranks that share a link of a level, and what it carries in a second. */
static inline int64_t ek_level_sharers(const ek_cluster_level *l)
{
    return l->shared_by > 1 ? l->shared_by : 1;
}

static inline double ek_level_capacity(const ek_cluster_level *l)
{
    return l->bytes_s * (double)ek_level_sharers(l);
}

/* A cluster whose prices (sim/price_net.h) are those of a rank that has all shared links to itself.
 */
ek_cluster ek_cluster_alone(const ek_cluster *c);

#endif
