/* schedule/work.h - the work of an op in numbers: what its time depends on.
 *
 * The builder of an op knows what the op will ask of the communicator or the kernels, and says so
 * before it runs: a simulator needs nothing else to price it, and the executor records it with the
 * op.  What depends on routing is that of an even spread of rows, where no comment says more.
 *
 * Network     one call of comm/comm.h, or, for replicas and experts that migrate, as many messages
 *             as the plan asks for.
 * Products    one or two matrix products, of which the time is nearly all, and row kernels between
 *             them.
 * Rows        kernels that read and write rows once or a few times: the op's kind says which, its
 *             bytes how much.  What runs on the host (layout, plans) is counted as rows, too. */
#ifndef SCHEDULE_WORK_H
#define SCHEDULE_WORK_H

#include "base/ranks.h"

#include <stddef.h>
#include <stdint.h>

typedef enum {
    EK_COLLECTIVE_ALL_REDUCE,
    EK_COLLECTIVE_ALL_GATHER,
    EK_COLLECTIVE_REDUCE_SCATTER,
    EK_COLLECTIVE_A2A_LINEAR, /* all-to-alls in the order of ek_a2a */
    EK_COLLECTIVE_A2A_PAIRWISE,
    EK_COLLECTIVE_A2A_2DH,
    EK_COLLECTIVE_SEND,
    EK_COLLECTIVE_RECEIVE,
    EK_COLLECTIVE_MULTICASTS,   /* from a rank to some others, any number of them: replicas */
    EK_COLLECTIVE_MULTIREDUCES, /* sums of some ranks on one of them, any number of them */
    EK_COLLECTIVE_TRANSFERS,    /* sends and receives, any number of them: experts that migrate */
    EK_COLLECTIVE_PARTNERS,     /* every rank sends to its partner (placement/partners.h) */
    EK_COLLECTIVES
} ek_collective;

typedef struct {
    ek_collective collective;
    ek_ranks group;  /* of the communicator */
    int32_t span;    /* messages stay within so many consecutive ranks of the group: ranks
                        [i * span, (i + 1) * span), this rank among them; group.n: no bound */
    int32_t peer;    /* rank in the group that a send goes to, or that a receive is from; -1 */
    int32_t after;   /* partners: the rank that this one sends to comes so many after it in the
                        group, modulo n; else 0 */
    int32_t element; /* bytes of a number of a sum or gather, of a row of an all-to-all; else 1 */
    /* All-reduce, all-gather, reduce-scatter: of the whole vector, of which ranks have about equal
     * ranges; send, receive: of the message; all-to-all: of the rows that this rank sends to
     * others; transfers, partners: that it sends; multicasts: that it receives, at most;
     * multireduces: that it adds to, at most. */
    double bytes;
} ek_net_work;

/* Whether it is one message of two ranks, as between pipeline stages. */
static inline int ek_net_work_is_message(const ek_net_work *w)
{
    return w->collective == EK_COLLECTIVE_SEND || w->collective == EK_COLLECTIVE_RECEIVE;
}

/* What is computed of y = x W^T, with W [out, in]; several can be. */
enum { EK_PRODUCT_FORWARD = 1, EK_PRODUCT_INPUT = 2, EK_PRODUCT_WEIGHT = 4 };

typedef struct {
    double rows;     /* of all groups together */
    double groups;   /* experts, which have weights and rows of their own; else 1 */
    int32_t out, in; /* this rank's */
    int32_t passes;  /* EK_PRODUCT_* */
} ek_product;

typedef struct {
    int32_t n;
    ek_product product[2]; /* [n] */
} ek_product_work;

/* Attention over this rank's heads. */
typedef struct {
    int32_t heads, kv_heads, head_dim;
    int32_t backward;
    double queries;
    double pairs;        /* of a query and a key that it sees, of one head */
    double cached;       /* keys from a cache, which the queries come behind */
    double score_passes; /* how often scores pass memory; 0: they are not stored */
} ek_attention_work;

typedef struct {
    double rows;
    int32_t width;  /* numbers of a row; 1: `rows` numbers in any shape */
    double kernels; /* one after the other, which share the rows; 0: one */
} ek_row_work;

typedef enum {
    EK_WORK_NONE, /* waits for other ops, or what is done takes no time worth predicting */
    EK_WORK_NET,
    EK_WORK_PRODUCTS,
    EK_WORK_ATTENTION,
    EK_WORK_ROWS,
    EK_WORK_DISK /* a read or write of the op's bytes */
} ek_work_kind;

typedef struct {
    ek_work_kind kind;
    union {
        ek_net_work net;
        ek_product_work products;
        ek_attention_work attention;
        ek_row_work rows;
    };
} ek_work;

static inline int ek_work_is_message(const ek_work *w)
{
    return w->kind == EK_WORK_NET && ek_net_work_is_message(&w->net);
}

/* Work of the kinds above.  out, in and width are whole numbers; rows may be fractions. */
ek_product ek_product_of(double rows, double out, double in, int32_t passes);
ek_work ek_work_of_product(ek_product a);
ek_work ek_work_of_products(ek_product a, ek_product b);
ek_work ek_work_of_attention(const ek_attention_work *a);
ek_work ek_work_of_rows(double rows, double width);

/* Arithmetic: multiplications and additions of products and attention, 0 for the rest. */
double ek_work_flops(const ek_work *w);

/* Bytes of traffic: that a rank of the group sends, in the mean over ranks, or that a receive
 * receives.  0 for work of other kinds. */
double ek_work_net_bytes(const ek_work *w);

/* A hash of up to 8 bytes of data, continued from `digest`. */
uint64_t ek_digest_add(uint64_t digest, const void *data, size_t bytes);

/* A hash of the work, continued from `digest`; without the first rank of a group, which differs
 * between ranks that do the same. */
uint64_t ek_work_digest(uint64_t digest, const ek_work *w);

/* "all-gather", "2dh all-to-all", ... */
const char *ek_collective_name(ek_collective collective);

#endif
