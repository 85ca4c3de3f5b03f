/* sim/replay_priv.h - the state of a replay, and of a simulation of flows (sim/flow.h).
 *
 *   replay_prices.c prices of ops
 *   replay_state.c  classes, entities, channels and messages
 *   replay.c        time */
#ifndef SIM_REPLAY_PRIV_H
#define SIM_REPLAY_PRIV_H

#include "sim/replay.h"

/* Flows of different sizes of a link, and ops in flight; more are not told apart. */
enum { SIM_FLOWS = 32 };

/* Flows of a link that are alike. */
typedef struct {
    double left; /* seconds that each still needs of the link, if it had it alone */
    int32_t n;
} sim_flows;

/* A rank's link inside its node, or the one to other nodes. */
typedef struct {
    sim_flows flows[SIM_FLOWS]; /* [n_flows] of ops in flight, */
    int32_t n_flows;
    double flows_at; /* at this time */
} sim_link;

/* A network op from its start on; the end is INFINITY until it is known. */
typedef struct {
    int32_t op;
    double start, end;
} sim_flight;

/* A rank, or all ranks of a class, if nothing distinguishes them. */
typedef struct {
    double
        lane[EK_LANE_COUNT]; /* when the lane is free; of the network: when its last op started */
    sim_link link[2];        /* by ek_sim_price.outside */
    double last;             /* end of its ops so far */
    sim_flight flights[SIM_FLOWS]; /* [n_flights] that end after the compute lane is free */
    int32_t n_flights;
    double busy_since; /* end of the last wait of its compute lane */
    double slow;       /* factor on its seconds */
    int32_t column;    /* of factors */
} sim_entity;

/* Of ops that are alike: micro-batches repeat the same ones. */
typedef struct {
    ek_op like; /* one of them */
    int absent; /* ek_sim_config */
    ek_sim_price price;
    const double *factors;         /* NULL: 1 on all ranks */
    const double *replayed;        /* on seconds and wire in a replay, likewise */
    const ek_level_rows *exchange; /* NULL: as the op's work says */
    double *own;                   /* [2][columns] factors of ek_sim_config.products; or NULL */
    int32_t channel;               /* of collectives that are not silent */
} sim_priced;

typedef struct {
    sim_priced *list; /* [n] */
    int32_t n, cap;
    int32_t *of;     /* [ops] index in the list */
    int32_t *lookup; /* [slots] index in the list + 1, where the hash of an op leads; 0: none */
    int32_t slots;   /* a power of two */
} sim_prices;

typedef struct {
    const ek_sim_class *of;
    int32_t index;    /* among the classes */
    int32_t first, n; /* its entities */
    int32_t next;     /* op that is not done yet */
    sim_prices prices;
    double *end;        /* [ops][n] */
    double *begun;      /* [network ops][n]: when the bytes of the last rank could move */
    int32_t *net_index; /* [ops] */
} sim_class;

typedef enum { SIM_AWAY, SIM_ARRIVED, SIM_MET } sim_channel_state;

/* Groups side by side with one stride and size.  Classes that have ranks in a common group, or
 * share one with a third class, are a set: they meet at each collective, in the same order. */
typedef struct {
    int32_t stride, n, span;
    int32_t *leader;                              /* [entities] the first of its group */
    int32_t *set_of;                              /* [classes] */
    int32_t *n_members;                           /* [sets] classes */
    int32_t *n_arrived;                           /* [sets] of them, at the collective under way */
    sim_channel_state *state;                     /* [classes] */
    double *ready, *wire, *latency, *begun, *end; /* [entities]; the last two of leaders */
    int32_t *outside;                             /* [entities] */
} sim_channel;

typedef struct {
    double begun, arrived;
} sim_message;

/* Messages of one kind from one entity to another that have not been received. */
typedef struct {
    int32_t to;
    int gradient;
    sim_message *list;
    int32_t first, n, cap; /* [first, n) of the list */
} sim_queue;

typedef struct {
    sim_queue *list;
    int32_t n;
} sim_queues;

typedef struct {
    const ek_sim_graphs *graphs;
    int each_rank;                    /* 1: an entity is a rank; 0: a class */
    int polls;                        /* 1: ops take longer while others are in flight */
    int32_t n, n_classes, n_channels; /* entities, ... */
    sim_class *classes;
    sim_entity *entity;  /* [n] */
    int32_t *entity_of;  /* [ranks] */
    int32_t *class_of;   /* [ranks] */
    ek_sim_parts *parts; /* [n] */
    sim_channel *channels;
    sim_queues *queues; /* [n] by sender */
} sim;

/* The caller closes s, also after a failure. */
EK_CHECKED ek_status ek_sim_open(const ek_sim_config *cfg, sim *s);
void ek_sim_close(sim *s);

/* Of all ops of a class; the caller closes p, also after a failure.  EK_ENOMEM. */
EK_CHECKED ek_status ek_sim_prices_open(const ek_sim_config *cfg, const ek_sim_class *c,
                                        sim_prices *p);
void ek_sim_prices_close(sim_prices *p);

EK_CHECKED ek_status ek_sim_post(sim *s, int32_t from, int32_t to, int gradient, sim_message m);
int ek_sim_has_message(const sim *s, int32_t from, int32_t to, int gradient);
/* The oldest; there is one. */
sim_message ek_sim_take(sim *s, int32_t from, int32_t to, int gradient);

/* --- ops -------------------------------------------------------------------------------------- */

static inline const ek_op *ek_sim_op(const sim_class *c, int32_t op)
{
    return ek_graph_op(c->of->graph, op);
}

static inline const sim_priced *ek_sim_priced(const sim_class *c, int32_t op)
{
    return &c->prices.list[c->prices.of[op]];
}

static inline const ek_sim_price *ek_sim_price_of(const sim_class *c, int32_t op)
{
    return &ek_sim_priced(c, op)->price;
}

/* When an op ends on a rank of the class; when bytes of a network op could move. */
static inline double *ek_sim_end_of(const sim_class *c, int32_t op, int32_t column)
{
    return &c->end[(int64_t)op * c->n + column];
}

static inline double *ek_sim_begun_of(const sim_class *c, int32_t op, int32_t column)
{
    return &c->begun[(int64_t)c->net_index[op] * c->n + column];
}

/* The factor of an op on a rank: its load. */
double ek_sim_load_of(const sim *s, const sim_class *c, int32_t at, int32_t column);

/* Runs an op of a lane on which ops run one at a time; what it waits for has ended. */
void ek_sim_run_serial(sim *s, sim_class *c, int32_t at, int32_t column);
/* An op of the compute lane that ran ends at this time instead. */
void ek_sim_move_end(sim *s, sim_class *c, int32_t at, int32_t column, double end);
/* When a rank starts a network op, whose dependencies have ended; charges the processor. */
double ek_sim_start_net(sim *s, sim_class *c, int32_t at, int32_t column);
void ek_sim_finish_net(sim *s, sim_class *c, int32_t at, int32_t column, double begun, double end);

int ek_sim_is_gradient(const ek_op *op);
/* The entity at the other end of a message. */
int32_t ek_sim_peer_of(const sim *s, const sim_class *c, const ek_op *op, int32_t column);

/* The times of the step, once all ops have run.  EK_ENOMEM. */
EK_CHECKED ek_status ek_sim_result_of(const sim *s, const ek_sim_config *cfg, ek_sim_result *out);

#endif
