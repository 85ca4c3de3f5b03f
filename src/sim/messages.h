/* sim/messages.h - the time of a step, message by message.
 *
 * Takes what ek_sim_replay takes, and answers as it does; the other engines are judged by it.  What
 * differs:
 *
 *   calls     of the network are made by each rank for itself, when it comes to them, and run by
 *             whoever gives ek_sim_calls: by the communicator's own algorithms, of which each rank
 *             sends and waits as it would over a network.  Prices of network ops do not count, but
 *             for those that are silent.
 *   messages  leave when both ranks have called, as long ones do over MPI, and, where messages cost
 *             the processor, of a sender one after another, each after its overhead, which also is
 *             the compute lane's.  They pass the links of all levels up to that at which their
 *             ranks meet, but not those inside the node, or inside a node likewise: of each level
 *             an up and a down link for every `shared_by` consecutive ranks (sim/cluster.h), which
 *             all messages in flight share at max-min fair rates; those of a rank to another are
 *             one after the other, as over a connection.  They arrive a latency after
 *             their last byte has left; their sender is free before that.
 *
 * The rest is as in sim/flow.h.  Ranks are entities.
 *
 * Complexity   a message that begins or ends takes time with those in flight that share links,
 *              directly or through others. */
#ifndef SIM_MESSAGES_H
#define SIM_MESSAGES_H

#include "sim/cluster.h"
#include "sim/replay.h"

typedef struct {
    int32_t id;       /* at most as many are in use as messages are in flight or not received */
    int32_t from, to; /* ranks */
    double bytes;
} ek_sim_sent;

/* Who runs the calls of network ops. */
typedef struct {
    void *self;
    /* A rank starts the call of a network op, `call`; w: the op's work, of which w->group is that
     * of the rank. */
    ek_status (*start)(void *self, int32_t rank, const ek_op *op, const ek_net_work *w, int tag,
                       int32_t call);
    /* Lets the calls of a rank make progress; *call: one that has finished, or -1: none has. */
    ek_status (*finished)(void *self, int32_t rank, int32_t *call);
    /* The oldest message for which both ranks have called; returns 0 if there is none. */
    int (*sent)(void *self, ek_sim_sent *m);
    /* The sender's buffer is free; the receiver has it.  Once each, in this order. */
    void (*left)(void *self, int32_t id);
    void (*arrived)(void *self, int32_t id);
} ek_sim_calls;

/* As ek_sim_replay; also returns errors of the calls.  What ranks send under loads (cfg->factors)
 * is left to the calls. */
EK_CHECKED ek_status ek_sim_messages(const ek_sim_config *cfg, const ek_cluster *c,
                                     const ek_sim_calls *calls, ek_sim_result *out);

#endif
