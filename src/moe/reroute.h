/* moe/reroute.h - gates that give some assignments to other experts than the token likes best.
 *
 * Off unless asked for: they CHANGE THE MODEL.  Weights are the probabilities of the experts that
 * serve, normalised over those, so gradients flow to the chosen, and every token keeps top_k
 * different experts.  Only training re-routes.  Both go by one sequence at a time (moe/gate.h) and
 * need nothing from other ranks; the load that the balance loss sees is that after re-routing.
 *
 *   topology   FasterMoE (PPoPP'22, section 4.3).  Of the k T assignments of a sequence at most
 *              floor(limit k T) leave the node of the rank that has the token: those of the largest
 *              score, ties: the earlier token.  Each of the others goes to the token's best expert
 *              on its node that it does not have yet; where the node has none, it stays as it was.
 *              The paper's limit is Wnet / (M Wlocal), for M ranks a node and the bandwidths of
 *              network and node; its code takes 0.14.  The paper counts first choices of a rank's
 *              tokens, this file all assignments of a sequence.  Near is where an expert is at
 *              home for the token's run of ranks: a plan, which comes after the gate, is not known.
 *              RESULTS DEPEND ON THE LAYOUT: on nodes, ranks and placement (with one node nothing
 *              changes).
 *   swipe      FastMoE's SWIPE gate, the balancer of BaGuaLu (PPoPP'22).  No expert serves more
 *              than its share ceil(k T / E) of a sequence: the assignments of the smallest score
 *              leave it, ties: the later token, each for the token's best expert that has room.
 *              Where all that have room are the token's already, another token takes that room and
 *              hands on its place, which always works.  SWIPE itself evens out ranks, with four
 *              exchanges a choice; a share of every sequence needs none, does not depend on the
 *              layout, and evens out experts too.
 *
 * Complexity   a sequence: topology O(k T log(k T) + moved E k); swipe O(E k T + moved E k), and
 *              O(k T E k) for each place that is handed on. */
#ifndef MOE_REROUTE_H
#define MOE_REROUTE_H

#include "moe/moe.h"

/* EK_EINVAL: gates that it does not go with. */
EK_CHECKED ek_status ek_reroute_check(const ek_model_spec *spec, const ek_moe_config *cfg);

/* Arrays of m; nothing where it is off. */
void ek_reroute_reserve(ek_moe *m, ek_arena *a);

/* Reads off nodes and placement which experts are near. */
void ek_reroute_follow(ek_moe *m);

/* Whether it does anything in this step. */
static inline int ek_reroute_applies(const ek_moe *m)
{
    return m->cfg->reroute != EK_REROUTE_OFF && m->step->training;
}

#endif
