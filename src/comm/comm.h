/* comm/comm.h - groups of ranks, point-to-point messages and collectives.
 *
 * A back end sends messages between two ranks (comm/backend.h): `threads` for ranks that are
 * threads of one process (tests), `mpi`, `fake` for one rank alone, also of a world of several
 * (comm/fake.h), and one that records messages (comm/record.h).  Collectives are implemented once,
 * on top of that.  They sum in the same order and give the same bits on every back end and on every
 * rank of the group: each sum is computed on one rank and then distributed, or by all in one order.
 *
 * Every call starts a nonblocking operation; ek_coll_test makes progress and reports completion.
 * The buffers must not be touched until then.
 *
 * Collective     all ranks of the group make the same calls on it in the same order; operations
 *                in flight on one group may overlap.  send and recv involve two ranks only and
 *                match by tag, in order for equal tags; multicast and multireduce involve only the
 *                ranks of a list and match by tag, one at a time.  Functions whose comment does not
 *                say "collective" are local: other ranks need not call them.
 * Sizes          bytes and elements are int64_t without limit: long messages are split.
 * Threads        one thread at a time may use the groups of a world.
 * Errors         EK_ECOMM names the operation, the group and the peer.  After a failure the world
 *                can only be closed.  Only ek_comm_abort ends the process.
 * Memory         operations come from a pool of the group: in the steady state nothing is
 *                allocated. */
#ifndef COMM_COMM_H
#define COMM_COMM_H

#include "evenkeel/err.h"

#include <stddef.h>
#include <stdint.h>

typedef struct ek_comm ek_comm; /* a group of ranks, of which the caller is one */
typedef struct ek_coll ek_coll; /* an operation in flight */

typedef enum { EK_COMM_SELF, EK_COMM_MPI } ek_comm_kind;

/* Element type and operator of all_reduce, reduce_scatter and multireduce. */
typedef enum { EK_SUM_F32, EK_SUM_F64, EK_SUM_I64, EK_MAX_F64, EK_MAX_I64 } ek_reduce;

/* Tags of callers are 0 to EK_COMM_TAGS - 1. */
enum { EK_COMM_TAGS = 4096 };

/* Algorithms of all_to_all: all messages at once; one pair a round; hierarchical over nodes. */
typedef enum { EK_A2A_LINEAR, EK_A2A_PAIRWISE, EK_A2A_2DH } ek_a2a;

/* --- worlds and groups ------------------------------------------------------------------------ */

/* The world of this process.  EK_COMM_SELF: alone (a fake world of one rank).  EK_COMM_MPI: joins
 * the job it was started in (MPI_Init), collective; EK_EUNSUPPORTED in a build without MPI, or if
 * its module (comm/flavour.h) is missing. */
EK_CHECKED ek_status ek_comm_open(ek_comm_kind kind, ek_comm **world);

/* `ranks` worlds for as many threads of this process; thread i uses and closes worlds[i]. */
EK_CHECKED ek_status ek_comm_open_threads(int ranks, ek_comm **worlds);

/* Closes a world or a group, the world last, and sets *c to NULL.  Collective for mpi. */
void ek_comm_close(ek_comm **c);

/* The group of n different ranks of `parent`, in this order; the caller is one of them.  Collective
 * over these ranks only.  name: for messages, such as "tp"; borrowed.  EK_EINVAL for bad lists. */
EK_CHECKED ek_status ek_comm_group(ek_comm *parent, const char *name, const int *ranks, int n,
                                   ek_comm **out);

/* The caller's rank, from 0; the number of ranks. */
int ek_comm_rank(const ek_comm *c);
int ek_comm_size(const ek_comm *c);
/* Host name of a rank of this group; borrowed from it. */
const char *ek_comm_host(const ek_comm *c, int rank);
/* Node of a rank: ranks with one host name share a node; nodes are numbered by first rank. */
int ek_comm_node(const ek_comm *c, int rank);
/* Number of ranks on the caller's node, with itself; 1 if c is NULL. */
int ek_comm_ranks_here(const ek_comm *c);
/* Timeout of ek_coll_wait (EK_ETIMEOUT) on all groups of the world: seconds without a message sent
 * or received; 0 (the default): none. */
void ek_comm_set_watchdog(ek_comm *c, double seconds);
/* A counter that changes whenever a message of any group of the world starts or finishes. */
int64_t ek_comm_activity(const ek_comm *c);
/* Overrides the node of each rank, node_of [size], otherwise derived from host names (tests,
 * benchmarks).  The same on all ranks, with no operation in flight. */
void ek_comm_set_nodes(ek_comm *c, const int *node_of);

/* Payload bytes that this process has sent to other ranks, over all groups of the world. */
int64_t ek_comm_bytes_sent(const ek_comm *c);

/* "MPICH 4.0.2", "Open MPI 4.1.4", "self"; "none" in a build without MPI.  Static. */
const char *ek_comm_library(ek_comm_kind kind);
/* The mpiexec of this build's MPI; "" if there is none. */
const char *ek_comm_launcher(void);

/* Marks the world as failed, with the calling thread's last error as the reason, so that closing it
 * and its groups does not wait for other ranks.  Operations in flight are not completed. */
void ek_comm_give_up(ek_comm *c);

/* Terminates every rank of an MPI job with this exit status: for the command line, after a failure.
 * Returns if the job is this process only. */
void ek_comm_abort(ek_comm *world, int status);

/* --- operations ------------------------------------------------------------------------------- */

/* Makes progress on all operations of the world.  If the test of another one has advanced *op since
 * *op was last tested, this returns EK_PENDING at once, so that testing several in turn advances
 * each once a turn.  EK_PENDING: *op is not finished; otherwise *op has finished (EK_OK) or failed,
 * and becomes NULL. */
EK_CHECKED ek_status ek_coll_test(ek_coll **op);
/* Tests until *op is finished; between tests it yields the core, and sleeps on long waits. */
EK_CHECKED ek_status ek_coll_wait(ek_coll **op);
/* The message that an operation waits for, as text: "all_reduce on stage: rank 3 of 8 waits ..." */
void ek_coll_describe(const ek_coll *op, char *text, size_t cap);

/* The call's source location.  Checked builds compare the kind, size and arguments of calls between
 * ranks; on a mismatch the error (EK_ECOMM) names both locations. */
#define EK_SITE_TEXT2(x) #x
#define EK_SITE_TEXT(x)  EK_SITE_TEXT2(x)
#define EK_SITE          __FILE__ ":" EK_SITE_TEXT(__LINE__)

/* buf [n] := the sum (or maximum) of all ranks' buf.  Collective. */
#define ek_comm_all_reduce(c, buf, n, how, op) ek_comm_all_reduce_at(c, buf, n, how, op, EK_SITE)
EK_CHECKED ek_status ek_comm_all_reduce_at(ek_comm *c, void *buf, int64_t n, ek_reduce how,
                                           ek_coll **op, const char *site);

/* buf holds first[ranks] elements, and rank r's range of it is [first[r], first[r + 1]); first has
 * ranks + 1 entries, first[0] == 0; ranges may be empty.  After reduce_scatter, the caller's range
 * holds the sum over ranks and the rest of buf is undefined.  After all_gather (of elements of
 * `size` bytes), every range holds the contents that its rank had there.  Collective. */
#define ek_comm_reduce_scatter(c, buf, first, how, op)                                             \
    ek_comm_reduce_scatter_at(c, buf, first, how, op, EK_SITE)
EK_CHECKED ek_status ek_comm_reduce_scatter_at(ek_comm *c, void *buf, const int64_t *first,
                                               ek_reduce how, ek_coll **op, const char *site);
#define ek_comm_all_gather(c, buf, first, size, op)                                                \
    ek_comm_all_gather_at(c, buf, first, size, op, EK_SITE)
EK_CHECKED ek_status ek_comm_all_gather_at(ek_comm *c, void *buf, const int64_t *first, size_t size,
                                           ek_coll **op, const char *site);

/* Copies the root's buf to all ranks.  Collective. */
#define ek_comm_broadcast(c, buf, bytes, root, op)                                                 \
    ek_comm_broadcast_at(c, buf, bytes, root, op, EK_SITE)
EK_CHECKED ek_status ek_comm_broadcast_at(ek_comm *c, void *buf, int64_t bytes, int root,
                                          ek_coll **op, const char *site);

/* multicast and multireduce: collective over a list of different ranks only, which includes the
 * caller; all of them pass the same list.
 *
 * 0 <= tag < EK_COMM_TAGS; the two operations have separate tags.  Any number may be in flight with
 * different tags, started in any order.  Two with the same tag must not be in flight together if
 * two ranks are in both lists, not even if the lists are equal: a forwarding rank may send segments
 * of the first after segments of the second, which the receiver would mix up.  It suffices that
 * every rank finishes the first before it starts the second.
 *
 * Long vectors are pipelined in segments along a chain of the list, crossing each link once; short
 * multicasts use a tree. */

/* Copies buf of ranks[0] to ranks[1 .. n - 1]. */
#define ek_comm_multicast(c, buf, bytes, ranks, n, tag, op)                                        \
    ek_comm_multicast_at(c, buf, bytes, ranks, n, tag, op, EK_SITE)
EK_CHECKED ek_status ek_comm_multicast_at(ek_comm *c, void *buf, int64_t bytes, const int *ranks,
                                          int n, int tag, ek_coll **op, const char *site);

/* buf [n] of ranks[0] := the sum (or maximum) of all listed ranks' buf, added from the end of the
 * list: a + (b + c) for a, b and c, for any length and back end.  On the other ranks buf holds
 * partial sums and is undefined afterwards.  For a list of one rank it completes at once and leaves
 * buf unchanged. */
#define ek_comm_multireduce(c, buf, n, how, ranks, n_ranks, tag, op)                               \
    ek_comm_multireduce_at(c, buf, n, how, ranks, n_ranks, tag, op, EK_SITE)
EK_CHECKED ek_status ek_comm_multireduce_at(ek_comm *c, void *buf, int64_t n, ek_reduce how,
                                            const int *ranks, int n_ranks, int tag, ek_coll **op,
                                            const char *site);

/* Sends rows from every rank to every rank.  rows [ranks][ranks]: rows[i * ranks + j] is the number
 * of rows from rank i to rank j, the same table on all ranks; only the caller's row and column and
 * the rows of its node's ranks are read, and in a checked world all of it.  send holds the caller's
 * rows ordered by destination, recv receives rows ordered by source, both contiguous; a row has
 * `size` bytes. The caller's rows to itself are copied.  Pairs without rows exchange no message.
 * Collective. */
#define ek_comm_all_to_all(c, how, rows, size, send, recv, op)                                     \
    ek_comm_all_to_all_at(c, how, rows, size, send, recv, op, EK_SITE)
EK_CHECKED ek_status ek_comm_all_to_all_at(ek_comm *c, ek_a2a how, const int64_t *rows, size_t size,
                                           const void *send, void *recv, ek_coll **op,
                                           const char *site);

/* One message of `bytes` between two different ranks of the group, which both give the same length;
 * 0 <= tag < EK_COMM_TAGS. */
EK_CHECKED ek_status ek_comm_send(ek_comm *c, const void *buf, int64_t bytes, int to, int tag,
                                  ek_coll **op);
EK_CHECKED ek_status ek_comm_recv(ek_comm *c, void *buf, int64_t bytes, int from, int tag,
                                  ek_coll **op);

/* Blocks until all ranks of the group have entered it.  Collective. */
EK_CHECKED ek_status ek_comm_barrier(ek_comm *c);

#endif
