/* comm/mesh.h - the process groups of a parallel layout.
 *
 * world = pp x stage.  The ranks of a pipeline stage factor twice, independently (parallel
 * folding in Megatron-Core): as dp x tp for attention and other dense layers, and as
 * edp x ep x etp for experts:
 *
 *   rank     = pp_rank * stage_size + at           at: rank within the stage
 *   at       = dp_rank * tp + tp_rank  =  (edp_rank * ep + ep_rank) * etp + etp_rank
 *
 * As in sequence parallelism, tensor parallel ranks divide the tokens of their data parallel rank
 * among themselves wherever the model works token by token (norms, router, experts).  Every rank of
 * a stage thus has its own tokens, and experts receive the tokens of `stage_size` ranks for any tp.
 *
 * Only these sizes need to divide the ranks.  Experts, heads, layers, tokens and sequences are
 * divided into ranges whose lengths differ by at most one (ek_range_first). */
#ifndef COMM_MESH_H
#define COMM_MESH_H

#include "base/ranks.h"
#include "comm/comm.h"

typedef struct {
    int pp, tp, ep, etp; /* 0 or 1: not used */
} ek_mesh_sizes;

typedef struct {
    ek_comm *world; /* borrowed */
    int rank, size;
    int pp, dp, tp, edp, ep, etp;                               /* sizes */
    int pp_rank, dp_rank, tp_rank, edp_rank, ep_rank, etp_rank; /* this rank in each */
    int stage_size, at;
    ek_comm *stage; /* all ranks of the stage, by `at` */
    ek_comm *dp_group, *tp_group, *edp_group;
    ek_comm *pipe; /* the ranks with the same `at`, by stage */
    ek_comm *ends; /* first and last rank of `pipe`; NULL on the others, or with one stage */
} ek_mesh;

/* The groups of a mesh. */
typedef enum {
    EK_MESH_WORLD,
    EK_MESH_STAGE,
    EK_MESH_DP,
    EK_MESH_TP,
    EK_MESH_EDP,
    EK_MESH_PIPE,
    EK_MESH_ENDS
} ek_mesh_group;

/* Their ranks in the world, from the mesh's sizes and coordinates alone. */
ek_ranks ek_mesh_ranks(const ek_mesh *m, ek_mesh_group group);

/* Checks the sizes against the number of ranks: EK_EINVAL names the option that does not fit, and
 * the values that would.  Local. */
EK_CHECKED ek_status ek_mesh_check(const ek_mesh_sizes *sizes, int ranks);

/* For elastic worlds.  ek_mesh_rank_multiple: all sizes except ep fit every world whose size is a
 * multiple of the returned number of ranks.  ek_mesh_fit sets ep for a world of such a size: to the
 * smallest fitting value not below the given one, else to the largest.  So while there are enough
 * ranks, no rank holds more experts than configured.
 *
 * ek_mesh_elastic_ranks: the number of ranks to use on so many slots, 0 if they are too few: the
 * largest such multiple for which ek_mesh_fit gives at most EK_MESH_EP_GROWTH times the given ep,
 * or EK_MESH_EP_SMALL if that is more, and at most EK_MESH_EP_MOST; any if the given one is above
 * that.  Other slots stay idle. */
enum {
    EK_MESH_EP_GROWTH = 4,
    EK_MESH_EP_SMALL = 16, /* up to here, idle ranks cost more than a larger ep */
    EK_MESH_EP_MOST = 512  /* so many ranks can have one spare slot (moe/replica_weights.h) */
};

int ek_mesh_rank_multiple(const ek_mesh_sizes *sizes);
void ek_mesh_fit(ek_mesh_sizes *sizes, int ranks);
int ek_mesh_elastic_ranks(const ek_mesh_sizes *sizes, int slots);

/* Opens the groups; ek_mesh_close closes them and frees *out.  Both are collective over the world.
 */
EK_CHECKED ek_status ek_mesh_open(ek_comm *world, const ek_mesh_sizes *sizes, ek_mesh **out);
void ek_mesh_close(ek_mesh **m);

/* Whether several ranks share the experts of a layer, so that rows are exchanged between them. */
static inline int ek_mesh_distributes_experts(const ek_mesh *m)
{
    return m->ep * m->etp > 1;
}

/* The mesh of one rank: all sizes 1, all groups NULL; callers check sizes before using groups. */
extern const ek_mesh ek_mesh_one;

#endif
