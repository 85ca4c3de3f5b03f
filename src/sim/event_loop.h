/* sim/event_loop.h - the event loop of simulations whose time advances on all ranks together
 * (sim/flow.h, sim/messages.h).
 *
 * Lanes start their ops in order, each when what it depends on has ended; what a network op does is
 * the engine's.  Flows share links at max-min fair rates (sim/flow_rates.h).  At each time all its
 * events are handled, and what they start begins, before the rates change. */
#ifndef SIM_EVENT_LOOP_H
#define SIM_EVENT_LOOP_H

#include "sim/flow_rates.h"
#include "sim/replay_priv.h"

typedef struct sim_loop sim_loop;

typedef struct {
    double time;
    int64_t number; /* equal times: in the order in which they were made */
    int32_t kind;   /* the engine's are 0 and above */
    int32_t entity, op;
    double begun; /* of a message */
} sim_event;

/* Whose flow it is; the engine says what the numbers are. */
typedef struct {
    int32_t entity, op, of;
} sim_flow_owner;

/* The next op of each lane of an entity, and whether one runs there. */
typedef struct {
    int32_t next[EK_LANE_COUNT];
    int running[EK_LANE_COUNT];
} sim_progress;

/* Ops of a class by lane, and what depends on each. */
typedef struct {
    int32_t *all;                 /* [ops] those of the lanes, one after the other */
    int32_t *lane[EK_LANE_COUNT]; /* [n_lane] of these, in graph order */
    int32_t n_lane[EK_LANE_COUNT];
    int32_t *first, *dependents; /* of op i: [first[i], first[i + 1]) */
    int32_t *left;               /* [ops][entities] dependencies that are not done */
    unsigned char *quiet;        /* [ops] 1: its end concerns its lane alone, so that the next op
                                    may be run before that time has come */
} sim_order;

typedef struct {
    int32_t entity, lane;
} sim_check;

typedef struct {
    sim_flow_owner owner;
    int32_t stamp; /* events with another are void */
} sim_owned_flow;

/* Of the engine: begins as zeros but for the functions. */
struct sim_loop {
    /* A network op whose dependencies have ended, of which the lane is told (ek_sim_start_net). */
    ek_status (*start_net)(sim_loop *l, sim_class *c, int32_t entity, int32_t op);
    ek_status (*end_flow)(sim_loop *l, const sim_flow_owner *o);
    ek_status (*handle)(sim_loop *l, const sim_event *x);
    /* Begins a flow of an op of the compute lane that takes so many seconds with all ranks busy;
     * NULL: it takes them.  end_flow calls ek_loop_end_compute. */
    ek_status (*start_compute)(sim_loop *l, sim_class *c, int32_t entity, int32_t op,
                               double seconds);
    int messages_cost; /* 1: an engine charges messages to the compute lane at any time */

    sim s;
    double now;
    int32_t *class_of;      /* [entities] */
    sim_order *order;       /* [classes] */
    sim_progress *progress; /* [entities] */
    ek_flows *flows;
    sim_owned_flow *owners;
    int32_t cap_owners;
    sim_event *heap;
    int64_t n_heap, cap_heap, made;
    sim_check *checks;
    int64_t n_checks, cap_checks;
    int64_t n_left; /* ops */
};

/* The engine closes l, also after a failure; opens l->flows itself, when it knows its links, which
 * are closed with l.  EK_ENOMEM. */
EK_CHECKED ek_status ek_loop_open(const ek_sim_config *cfg, sim_loop *l);
void ek_loop_close(sim_loop *l);

/* Until nothing is left to do.  EK_EINTERNAL: ops wait for one another for ever. */
EK_CHECKED ek_status ek_loop_run(sim_loop *l);

static inline sim_class *ek_loop_class(sim_loop *l, int32_t entity)
{
    return &l->s.classes[l->class_of[entity]];
}

EK_CHECKED ek_status ek_loop_push(sim_loop *l, sim_event x);
/* As ek_flows_begin. */
EK_CHECKED ek_status ek_loop_begin_flow(sim_loop *l, sim_flow_owner o, double seconds,
                                        double growth, const ek_flow_use *uses, int32_t n);
/* An op of the compute lane has ended now, not when its price says. */
EK_CHECKED ek_status ek_loop_end_compute(sim_loop *l, int32_t entity, int32_t op);
/* A network op has ended now, whose bytes could move from `begun` on. */
EK_CHECKED ek_status ek_loop_end_net(sim_loop *l, int32_t entity, int32_t op, double begun);

/* Makes room for element n of a list. */
EK_CHECKED ek_status ek_loop_grow(void **list, int64_t n, int64_t *cap, size_t size);

#endif
