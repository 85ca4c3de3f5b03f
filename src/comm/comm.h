/* comm/comm.h - groups of ranks, and what they say to each other.
 *
 * A back end moves bytes between two ranks (comm/backend.h): `self` for one rank, `threads` for
 * ranks that are threads of one process (tests), `mpi`.  Collectives are written once, over that,
 * so they sum in the same order and give the same bits on every back end, and on every rank of
 * the group: what several ranks share is summed once and then distributed.
 *
 * Every call starts an operation and returns at once; ek_coll_test makes progress and says when
 * it is done.  An operation's buffers are its own until then.
 *
 * Collective     all ranks of the group make the same calls on it in the same order; operations
 *                in flight on one group may overlap.  send and recv concern two ranks alone and
 *                match by tag, in order for equal tags; multicast and multireduce concern the
 *                ranks of a list alone and match by tag, one at a time.
 * Sizes          bytes and elements are int64_t without limit: long messages travel in pieces.
 * Threads        of all groups of a world, one thread at a time.
 * Errors         EK_ECOMM names the operation, the group and the peer.  After a failure the world
 *                can only be destroyed.  Nothing here ends the process but ek_comm_abort.
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

/* Element type and how two are made one, in all_reduce, reduce_scatter and multireduce. */
typedef enum { EK_SUM_F32, EK_SUM_F64, EK_SUM_I64, EK_MAX_F64, EK_MAX_I64 } ek_reduce;

/* Tags that a caller may choose are below this. */
enum { EK_COMM_TAGS = 4096 };

typedef enum { EK_A2A_LINEAR, EK_A2A_PAIRWISE, EK_A2A_2DH } ek_a2a;

/* --- worlds and groups ------------------------------------------------------------------------ */

/* The world of this process.  EK_COMM_MPI: joins the job that it was started in (MPI_Init);
 * EK_EUNSUPPORTED in a build without MPI, or where its module (comm/flavour.h) is missing. */
EK_CHECKED ek_status ek_comm_open(ek_comm_kind kind, ek_comm **world);

/* `ranks` worlds for as many threads of this process, worlds[i] to be used by one of them. */
EK_CHECKED ek_status ek_comm_open_threads(int ranks, ek_comm **worlds);

/* Ends a world or a group; the world last.  Collective for mpi. */
void ek_comm_close(ek_comm **c);

/* The group of these ranks of `parent`, in this order, each once; the caller is among them.
 * Collective over the members alone.  name: for messages, such as "tp"; borrowed. */
EK_CHECKED ek_status ek_comm_group(ek_comm *parent, const char *name, const int *ranks, int n,
                                   ek_comm **out);

int ek_comm_rank(const ek_comm *c);
int ek_comm_size(const ek_comm *c);
const char *ek_comm_name(const ek_comm *c);
/* Host name of a rank of this group. */
const char *ek_comm_host(const ek_comm *c, int rank);
/* Node of a rank: ranks with one host name share a node; nodes are numbered by first rank. */
int ek_comm_node(const ek_comm *c, int rank);
/* How long ek_coll_wait bears that nothing arrives or leaves before it fails (EK_ETIMEOUT), on all
 * groups of the world; 0, as at first: for ever. */
void ek_comm_set_watchdog(ek_comm *c, double seconds);
/* A figure that changes when a message of any group of the world starts or ends. */
int64_t ek_comm_activity(const ek_comm *c);
/* Says which node each rank is on, instead of the host names (tests, benchmarks). */
void ek_comm_set_nodes(ek_comm *c, const int *node_of);

/* Payload bytes this process has sent to other ranks, in all groups of the world. */
int64_t ek_comm_bytes_sent(const ek_comm *c);

/* "MPICH 4.0.2", "Open MPI 4.1.4", "self", "threads"; "none" where mpi is not built in. */
const char *ek_comm_library(ek_comm_kind kind);
/* The mpiexec that belongs to the MPI of this build; "" without one. */
const char *ek_comm_launcher(void);

/* After a failure of the caller's, whose text is the thread's: the world counts as failed, so that
 * closing it and its groups waits for nobody.  What is in flight stays so. */
void ek_comm_give_up(ek_comm *c);

/* Ends every rank of an MPI job at once with this exit status: for the command, after a failure.
 * Returns where the job is this process alone. */
void ek_comm_abort(ek_comm *world, int status);

/* --- operations ------------------------------------------------------------------------------- */

/* Makes progress.  EK_PENDING: not finished; EK_OK: finished, and *op is NULL; else it failed and
 * *op is NULL. */
EK_CHECKED ek_status ek_coll_test(ek_coll **op);
/* Tests until it is finished; in between it lets others run, and naps when it takes long. */
EK_CHECKED ek_status ek_coll_wait(ek_coll **op);
/* One sentence on what an operation waits for: "all_reduce on stage: rank 3 (node2) ..." */
void ek_coll_describe(const ek_coll *op, char *text, size_t cap);

/* Where the caller stands in the source, for checked builds: they send the call's kind, size and
 * site along, and a mismatch fails with both sites (EK_ECOMM). */
#define EK_SITE_TEXT2(x) #x
#define EK_SITE_TEXT(x)  EK_SITE_TEXT2(x)
#define EK_SITE          __FILE__ ":" EK_SITE_TEXT(__LINE__)

/* buf [n] := the sum (or maximum) over ranks of their buf. */
#define ek_comm_all_reduce(c, buf, n, how, op) ek_comm_all_reduce_at(c, buf, n, how, op, EK_SITE)
EK_CHECKED ek_status ek_comm_all_reduce_at(ek_comm *c, void *buf, int64_t n, ek_reduce how,
                                           ek_coll **op, const char *site);

/* buf holds first[size] elements; rank r's run of it is [first[r], first[r + 1]), runs may be
 * empty.  After reduce_scatter, the caller's run holds the sum over ranks and the rest of buf is
 * undefined; after all_gather (of elements of `size` bytes), every run holds what its rank had
 * there. */
#define ek_comm_reduce_scatter(c, buf, first, how, op)                                             \
    ek_comm_reduce_scatter_at(c, buf, first, how, op, EK_SITE)
EK_CHECKED ek_status ek_comm_reduce_scatter_at(ek_comm *c, void *buf, const int64_t *first,
                                               ek_reduce how, ek_coll **op, const char *site);
#define ek_comm_all_gather(c, buf, first, size, op)                                                \
    ek_comm_all_gather_at(c, buf, first, size, op, EK_SITE)
EK_CHECKED ek_status ek_comm_all_gather_at(ek_comm *c, void *buf, const int64_t *first, size_t size,
                                           ek_coll **op, const char *site);

/* root's buf to all. */
#define ek_comm_broadcast(c, buf, bytes, root, op)                                                 \
    ek_comm_broadcast_at(c, buf, bytes, root, op, EK_SITE)
EK_CHECKED ek_status ek_comm_broadcast_at(ek_comm *c, void *buf, int64_t bytes, int root,
                                          ek_coll **op, const char *site);

/* multicast and multireduce: collective over the ranks of a list alone, of which the caller is one
 * and each stands once; all of them give the same list.
 *
 * 0 <= tag < EK_COMM_TAGS, for each of the two apart.  Any number may be in flight with different
 * tags, started in any order.  With equal tags they must not be in flight together where two ranks
 * are in both lists, not even when the lists are equal: a rank that passes on what it gets sends
 * pieces of the first after those of the second, and they are taken for each other.  It is enough
 * that every rank finishes the first before it starts the second.
 *
 * Long vectors take a chain of the list, every link of which carries them once, in pieces that
 * stream; short ones of multicast a tree. */

/* From ranks[0] to ranks[1 .. n - 1]. */
#define ek_comm_multicast(c, buf, bytes, ranks, n, tag, op)                                        \
    ek_comm_multicast_at(c, buf, bytes, ranks, n, tag, op, EK_SITE)
EK_CHECKED ek_status ek_comm_multicast_at(ek_comm *c, void *buf, int64_t bytes, const int *ranks,
                                          int n, int tag, ek_coll **op, const char *site);

/* buf [n] of ranks[0] := the sum (or maximum) of all listed ranks' buf, made from the end of the
 * list: of a, b and c it is a + (b + c), whatever the length and the back end.  On the other ranks
 * buf is where the sums of those after them pass through, and then undefined.  Of one rank: done at
 * once, buf is as it was. */
#define ek_comm_multireduce(c, buf, n, how, ranks, n_ranks, tag, op)                               \
    ek_comm_multireduce_at(c, buf, n, how, ranks, n_ranks, tag, op, EK_SITE)
EK_CHECKED ek_status ek_comm_multireduce_at(ek_comm *c, void *buf, int64_t n, ek_reduce how,
                                            const int *ranks, int n_ranks, int tag, ek_coll **op,
                                            const char *site);

/* Rows from every rank to every rank.  rows [size][size]: rows[i * size + j] go from i to j, the
 * same on all ranks.  send holds the caller's rows by destination, recv gets them by source, both
 * without gaps; a row is `size` bytes.  The caller's own rows are copied.  Pairs with no rows do
 * not talk. */
#define ek_comm_all_to_all(c, how, rows, size, send, recv, op)                                     \
    ek_comm_all_to_all_at(c, how, rows, size, send, recv, op, EK_SITE)
EK_CHECKED ek_status ek_comm_all_to_all_at(ek_comm *c, ek_a2a how, const int64_t *rows, size_t size,
                                           const void *send, void *recv, ek_coll **op,
                                           const char *site);

/* One message between two ranks of the group; 0 <= tag < EK_COMM_TAGS. */
EK_CHECKED ek_status ek_comm_send(ek_comm *c, const void *buf, int64_t bytes, int to, int tag,
                                  ek_coll **op);
EK_CHECKED ek_status ek_comm_recv(ek_comm *c, void *buf, int64_t bytes, int from, int tag,
                                  ek_coll **op);

/* All ranks have come here; waits. */
EK_CHECKED ek_status ek_comm_barrier(ek_comm *c);

#endif
