/* recover/recover_priv.h - what all parts of recovery ask: find.c, load.c, recover.c. */
#ifndef RECOVER_RECOVER_PRIV_H
#define RECOVER_RECOVER_PRIV_H

#include "recover/recover.h"

/* Broadcasts rank root's bytes.  Collective. */
EK_CHECKED ek_status ek_recover_broadcast(ek_recovery *r, void *buf, size_t bytes, int root);

/* The host of a rank. */
int ek_recover_host(const ek_recovery *r, int rank);

/* Whether this rank serves segment i of its host, and the segment has state. */
int ek_recover_serves_state(const ek_recovery *r, int64_t i);

/* The segment of a survivor, if this rank serves it; else NULL. */
ek_found_segment *ek_recover_served(const ek_recovery *r, int32_t survivor);

#endif
