/* sim/flow_rates.h - max-min fair rates of flows over links.
 *
 * A flow has work, in seconds at full speed, and needs a share of the capacity of each of its links
 * at full speed.  Rates (1: full speed) are those of progressive filling: all flows speed up
 * together, each by its `growth`, until a flow has full speed or one of its links is full.  With
 * 1 / bandwidth at full speed as growth, flows that share a link get equal bandwidths, unless
 * something else slows them down more.
 *
 * A link may have a burst: what it lets pass at once after a pause.  While less than its capacity
 * is used, it saves the rest, up to its burst; a flow that begins has done at once what all its
 * links have saved.
 *
 * Complexity   an update takes O(flows * links) of the flows that share links with those that began
 *              or ended, directly or through others, for each level at which some are held back. */
#ifndef SIM_FLOW_RATES_H
#define SIM_FLOW_RATES_H

#include "evenkeel/err.h"

#include <stdint.h>

typedef struct {
    int32_t link;
    double use; /* of its capacity at full speed; may be above 1 */
} ek_flow_use;

typedef struct ek_flows ek_flows;

/* The caller closes *out, also after a failure.  EK_ENOMEM. */
EK_CHECKED ek_status ek_flows_open(int32_t n_links, ek_flows **out);
void ek_flows_close(ek_flows **f);

/* In seconds of the link's capacity, which it has saved when time begins; 0 without this. */
void ek_flows_set_burst(ek_flows *f, int32_t link, double seconds);

/* A flow begins at the time of the next update; *id: until it is ended.  EK_ENOMEM. */
EK_CHECKED ek_status ek_flows_begin(ek_flows *f, double seconds, double growth,
                                    const ek_flow_use *uses, int32_t n_uses, int32_t *id);
void ek_flows_end(ek_flows *f, int32_t id);

/* Rates from `now` on, which does not go back, after flows began and ended.  changed [*n]: flows
 * whose time to go is another now; borrowed until the next update.  EK_ENOMEM. */
EK_CHECKED ek_status ek_flows_update(ek_flows *f, double now, const int32_t **changed, int32_t *n);

double ek_flows_rate(const ek_flows *f, int32_t id);
/* When it will have done its work with the rate that it has. */
double ek_flows_due(const ek_flows *f, int32_t id);

#endif
