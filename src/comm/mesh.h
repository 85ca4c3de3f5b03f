/* comm/mesh.h - the groups of a parallel layout.
 *
 * world = pp x stage.  The ranks of a pipeline stage factor twice, independently (parallel
 * folding, as Megatron-Core names it): as dp x tp for attention and everything dense, and as
 * edp x ep x etp for experts:
 *
 *   rank     = pp_rank * stage_size + at           at: place in the stage
 *   at       = dp_rank * tp + tp_rank  =  (edp_rank * ep + ep_rank) * etp + etp_rank
 *
 * Tensor parallel ranks share the tokens of their data parallel rank out among themselves
 * wherever the model works token by token (norms, router, experts), so every rank of a stage has
 * tokens of its own, and experts meet the tokens of `stage_size` ranks however attention is cut.
 *
 * Nothing needs to divide but the factors: runs (of experts, heads, layers, tokens, sequences)
 * are ek_run's, the first parts one longer. */
#ifndef COMM_MESH_H
#define COMM_MESH_H

#include "comm/comm.h"

typedef struct {
    int pp, tp, ep, etp; /* 0 and 1 alike: not used */
} ek_mesh_sizes;

typedef struct {
    ek_comm *world; /* borrowed */
    int rank, size;
    int pp, dp, tp, edp, ep, etp;                               /* sizes */
    int pp_rank, dp_rank, tp_rank, edp_rank, ep_rank, etp_rank; /* this rank's places */
    int stage_size, at;
    ek_comm *stage; /* all ranks of the stage, by `at` */
    ek_comm *dp_group, *tp_group, *edp_group;
    ek_comm *pipe; /* the ranks with the same `at`, by stage */
    ek_comm *ends; /* of those, the first and the last stage; NULL elsewhere, or with one stage */
} ek_mesh;

/* Checks the sizes against the world, without making anything: EK_EINVAL says which option does
 * not fit, and which values would. */
EK_CHECKED ek_status ek_mesh_check(const ek_mesh_sizes *sizes, int ranks);

/* For worlds that shrink and grow: all sizes but ep fit a world of any multiple of so many ranks;
 * and with the least ep that fits it and is not below the one given, else the largest, all do.  So
 * a rank never holds more experts than it was meant to while there are enough ranks. */
int ek_mesh_unit(const ek_mesh_sizes *sizes);
void ek_mesh_fit(ek_mesh_sizes *sizes, int ranks);

/* Makes the groups; collective over the world. */
EK_CHECKED ek_status ek_mesh_open(ek_comm *world, const ek_mesh_sizes *sizes, ek_mesh **out);
void ek_mesh_close(ek_mesh **m);

/* The mesh of one rank: all sizes 1, no groups.  Who uses a group asks for its size first. */
extern const ek_mesh ek_mesh_one;

/* Part `part` of n things cut into `parts` contiguous runs, the first n % parts one longer:
 * [ek_range_first(n, parts, part), ek_range_first(n, parts, part + 1)). */
static inline int64_t ek_range_first(int64_t n, int parts, int part)
{
    int64_t each = n / parts, longer = n % parts;

    return part * each + (part < longer ? part : longer);
}

static inline int64_t ek_range_length(int64_t n, int parts, int part)
{
    return n / parts + (part < n % parts);
}

#endif
