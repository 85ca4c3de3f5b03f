/* base/coll_limits.h - the sizes at which collectives change their algorithm.
 *
 * The communicator runs them (comm/coll_*.c), and predictions price them (sim/price_net.c), by the
 * same limits. */
#ifndef BASE_COLL_LIMITS_H
#define BASE_COLL_LIMITS_H

enum {
    EK_COLL_DIRECT_MAX = 256 << 10, /* bytes of the longest vector that ranks send each other, */
    EK_COLL_WHOLE_MAX = 16 << 10,   /* and whole, to each; longer ones pass the ranks in a ring */
    EK_COLL_SEGMENT = 256 << 10     /* bytes of a segment of a pipelined vector, at most: what a */
                                    /* back end sends in shorter messages has shorter segments */
};

#endif
