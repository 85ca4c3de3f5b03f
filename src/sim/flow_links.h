/* sim/flow_links.h - the links of a cluster, for sim/flow.h: which a flow of an entity uses, and
 * how much of them.
 *
 * Each level has an up and a down link for every `shared_by` consecutive ranks, which can carry
 * what all of them may send through it together (sim/cluster.h).  A message passes the links of all
 * levels up to that at which its ranks meet, but not those inside the node, or inside a node
 * likewise (sim/price_net.h).  A rank of a collective receives as many bytes as it sends, unless
 * it is known what it sends and gets (sim/level_rows.h): then these are two flows, one up and one
 * down.
 *
 * Where an entity is a class, its ranks send alike: links below which there are equally many ranks
 * of each class are one link here, through which goes what the busiest of them carries.
 */
#ifndef SIM_FLOW_LINKS_H
#define SIM_FLOW_LINKS_H

#include "sim/cluster.h"
#include "sim/flow_rates.h"
#include "sim/replay_priv.h"

typedef struct ek_flow_links ek_flow_links;

/* s and c are borrowed.  The caller closes *out, also after a failure.  EK_ENOMEM. */
EK_CHECKED ek_status ek_flow_links_open(const sim *s, const ek_cluster *c, ek_flow_links **out);
void ek_flow_links_close(ek_flow_links **l);

int32_t ek_flow_links_count(const ek_flow_links *l);
/* Gives flows, whose first links they are, their bursts. */
void ek_flow_links_set_bursts(const ek_flow_links *l, ek_flows *flows);

/* What the flow of a network op of entity x of a class uses that takes p->wire seconds at full
 * speed.  Borrowed until the next call.  *growth: for ek_flows_begin.  EK_ENOMEM. */
EK_CHECKED ek_status ek_flow_links_uses(ek_flow_links *l, const sim_class *c, const ek_net_work *w,
                                        const ek_sim_price *p, int32_t x, const ek_flow_use **uses,
                                        int32_t *n, double *growth);

/* The same of what rank x sends (down 0) or gets (down 1) of an op of which that is known; *seconds
 * at full speed.  Only where entities are ranks. */
EK_CHECKED ek_status ek_flow_links_exchange(ek_flow_links *l, const sim_class *c,
                                            const ek_net_work *w, const ek_sim_price *p,
                                            const ek_level_rows *rows, int32_t x, int down,
                                            const ek_flow_use **uses, int32_t *n, double *growth,
                                            double *seconds);

/* The same of what rank x sends or gets of an op whose price says that. */
EK_CHECKED ek_status ek_flow_links_traffic(ek_flow_links *l, const sim_class *c,
                                           const ek_sim_price *p, int32_t x, int down,
                                           const ek_flow_use **uses, int32_t *n, double *growth,
                                           double *seconds);

#endif
