/* moe/reroute.h - gates that replace some of a token's best experts by others.
 *
 * Off by default, because they CHANGE THE MODEL.  Gate weights are the probabilities of the final
 * experts, normalised over those, so gradients flow to these; every token keeps top_k different
 * experts.  Only training re-routes.  Both policies work on one sequence at a time (moe/gate.h)
 * without communication; the balance loss sees the load after re-routing.
 *
 *   topology   FasterMoE (PPoPP'22, section 4.3).  Of the k T assignments of a sequence at most
 *              floor(limit k T) leave the node of the rank that has the token: those of the largest
 *              score, ties: the earlier token.  Each of the others goes to the token's best expert
 *              on its node that it does not have yet; if there is none, it is left unchanged.  The
 *              paper's limit is Wnet / (M Wlocal), for M ranks a node and the bandwidths of network
 *              and node; its code uses 0.14.  The paper counts first choices of a rank's tokens,
 *              this file all assignments of a sequence.  An expert's node is that of its primary in
 *              the token's expert-parallel group, since plans are made after the gate.
 *              RESULTS DEPEND ON THE LAYOUT: on nodes, ranks and placement (with one node nothing
 *              changes).
 *   swipe      FastMoE's SWIPE gate, the balancer of BaGuaLu (PPoPP'22).  No expert serves more
 *              than its capacity ceil(k T / E) of a sequence: the assignments of the smallest score
 *              leave it, ties: the later token, each for the token's best expert below capacity.
 *              If the token has all of those already, an assignment of another token moves there
 *              and leaves its own expert to this one; there is always such a token.  SWIPE itself
 *              balances ranks, with four exchanges per gate; a capacity per sequence needs no
 *              exchange, does not depend on the layout, and balances experts too.
 *
 * Complexity   a sequence: topology O(k T log(k T) + moved E k); swipe O(E k T + moved E k), and
 *              O(k T E k) for each swap with another token. */
#ifndef MOE_REROUTE_H
#define MOE_REROUTE_H

#include "moe/layer.h"

/* EK_EINVAL: this gate or configuration cannot be re-routed. */
EK_CHECKED ek_status ek_reroute_check(const ek_model_spec *spec, const ek_moe_config *cfg);

/* Reserves m->gate.allowed and m->gate.taken; nothing if re-routing is off. */
void ek_reroute_reserve(ek_moe *m, ek_arena *a);

/* topology: sets m->gate.allowed [tp, experts], whether an expert is on the node of a tensor
 * parallel rank, from the placement. */
void ek_reroute_follow(ek_moe *m);

/* Whether this step re-routes. */
static inline int ek_reroute_applies(const ek_moe *m)
{
    return m->cfg->reroute != EK_REROUTE_OFF && m->step->training;
}

#endif
