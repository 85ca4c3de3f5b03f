/* The memory that a run needs, its limit, and what would fit. */
#include "base/count_text.h"
#include "base/threads.h"
#include "comm/agree.h"
#include "elastic/segment.h"
#include "model/offload.h"
#include "model/param_buckets.h"
#include "train/offload_room.h"
#include "train/run/partners.h"
#include "train/run/state.h"

#include <stdio.h>

enum { HINT_CAP = 256 };

/* Bytes of this rank's state, and of its copies of others'. */
static double state_bytes(const ek_run *r)
{
    return (double)r->model->state.bytes + ek_run_copies_bytes(&r->partners);
}

/* Bytes of shared memory that this host's ranks still have to reserve: without preallocated memory
 * and without adopted state. */
static ek_status shm_bytes_needed(ek_run *r, double *bytes)
{
    *bytes = state_bytes(r) - (double)ek_recover_prealloc_bytes(&r->memory.recovery);
    if (r->memory.step >= 0)
        *bytes -= (double)ek_recover_bytes(&r->memory.recovery);
    EK_TRY(ek_run_sum_on_host(r, bytes));
    *bytes = *bytes > 0 ? *bytes : 0;
    return EK_OK;
}

ek_memory_limit ek_run_memory_limit(const ek_run *r)
{
    const ek_memory *m = r->kernels->memory;

    if (m != NULL) {                           /* of the device */
        int64_t all = (int64_t)m->capacity(m); /* the model's memory is in what a run needs */

        return (ek_memory_limit){.kind = EK_LIMIT_FREE, .bytes = all, .left = all};
    }
    if (r->cfg->dry_run > 1 && r->cfg->memory_limit == 0) /* of other hosts */
        return (ek_memory_limit){.kind = EK_LIMIT_UNKNOWN};
    return ek_memory_limit_find(r->cfg->memory_limit);
}

/* Bytes that count against the limit, and what it allows.  A limit that was given is of each
 * process, others are of all processes of a host. */
typedef struct {
    ek_memory_limit limit;
    double want, have;
} memory_need;

/* Adds what every rank needs more (of all ranks of the host, unless a process has a limit).
 * Collective. */
static ek_status add_need(ek_run *r, memory_need *n, double bytes)
{
    if (n->limit.kind != EK_LIMIT_GIVEN)
        EK_TRY(ek_run_sum_on_host(r, &bytes));
    n->want += bytes;
    return EK_OK;
}

static int need_fits(const memory_need *n, double more)
{
    return n->limit.kind == EK_LIMIT_UNKNOWN || n->want + more <= n->have;
}

/* Collective. */
static ek_status find_need(ek_run *r, memory_need *n)
{
    double of_rank = (double)r->out->info.predicted_bytes, state = state_bytes(r);

    *n = (memory_need){.limit = ek_run_memory_limit(r)};
    n->have = (double)n->limit.left;
    if (n->limit.kind == EK_LIMIT_GIVEN) {
        n->want = of_rank;
        n->have = (double)n->limit.bytes;
        return EK_OK;
    }
    EK_TRY(shm_bytes_needed(r, &n->want));
    return add_need(r, n, of_rank - (double)r->room.base_rss - state);
}

/* Whether the state that outlives processes fits in the folder where it is kept; an unknown size
 * fits.  Collective. */
static ek_status fits_shared_memory(ek_run *r, double *fits)
{
    double needed;
    size_t room;

    *fits = 1;
    if (r->cfg->dry_run > 1) /* of other hosts */
        return EK_OK;
    EK_TRY(shm_bytes_needed(r, &needed));
    *fits = ek_segment_available(&room) < 0 || needed <= (double)room;
    return EK_OK;
}

ek_status ek_run_fits_memory(ek_run *r, double *fits)
{
    memory_need n;

    *fits = 1;
    if (r->cfg->elastic)
        EK_TRY(fits_shared_memory(r, fits));
    EK_TRY(find_need(r, &n));
    *fits = *fits > 0 && need_fits(&n, 0);
    return ek_minimum(r->world, fits);
}

ek_status ek_run_fit_entries(ek_run *r, ek_offload_config *o)
{
    double copy = ek_run_saves_often(r) ? (double)ek_train_copy_bytes(r->model) : 0, ranks = 1,
           room;
    memory_need n;

    EK_TRY(find_need(r, &n));
    if (n.limit.kind != EK_LIMIT_GIVEN)
        EK_TRY(ek_run_sum_on_host(r, &ranks));
    room = n.limit.kind == EK_LIMIT_UNKNOWN ? 0 : (n.have - n.want) / ranks;
    room -= copy <= room ? copy : 0; /* else training waits for checkpoints */
    return ek_offload_fill_room(r->world, r->model, &r->training, room, o);
}

ek_status ek_run_fit_replicas(ek_run *r)
{
    ek_moe_config *c = &r->training.moe;
    double copy = ek_run_saves_often(r) ? (double)ek_train_copy_bytes(r->model) : 0, fits;
    size_t shared, kept;
    memory_need n;

    if (c->planner == NULL || ek_moe_replica_sets(c) != EK_REPLICA_SETS_EACH)
        return EK_OK;
    EK_TRY(ek_trainer_measure(r->model, &r->training, &kept));
    EK_TRY(find_need(r, &n));
    EK_TRY(add_need(r, &n, copy));
    fits = need_fits(&n, 0);
    EK_TRY(ek_minimum(r->world, &fits));
    c->replica_sets = 2;
    EK_TRY(ek_trainer_measure(r->model, &r->training, &shared));
    r->room.replicas = (double)shared - (double)kept;
    EK_TRY(ek_minimum(r->world, &r->room.replicas));
    r->room.replicas = -r->room.replicas;
    if (fits > 0)
        c->replica_sets = EK_REPLICA_SETS_EACH;
    return ek_run_measure(r);
}

/* Whether the run would fit with these settings: *fits is 1 if it does here.  Collective. */
static ek_status try_settings(ek_run *r, const memory_need *n, ek_recompute recompute,
                              int64_t micro_batch, double *fits)
{
    ek_trainer_config c = r->training;
    memory_need other = *n;
    size_t now, then;

    c.recompute = recompute;
    c.micro_batch = micro_batch;
    EK_TRY(ek_trainer_measure(r->model, &r->training, &now));
    EK_TRY(ek_trainer_measure(r->model, &c, &then));
    EK_TRY(add_need(r, &other, (double)then - (double)now));
    *fits = need_fits(&other, 0);
    return EK_OK;
}

/* Finds options with which the run fits on all ranks: the largest micro-batch, if need be with
 * activations recomputed.  Collective. */
static ek_status find_fitting(ek_run *r, const memory_need *n, char *hint, size_t cap)
{
    ek_recompute tried[] = {r->training.recompute, EK_RECOMPUTE_FULL};
    int same = tried[0] == tried[1];

    for (int i = same; i < 2; i++)
        for (int64_t micro = r->training.micro_batch; micro > 0; micro /= 2) {
            double fits;

            EK_TRY(try_settings(r, n, tried[i], micro, &fits));
            EK_TRY(ek_minimum(r->world, &fits));
            if (fits <= 0)
                continue;
            snprintf(hint, cap, "%s--micro-batch %lld would fit",
                     tried[i] != tried[0] ? "--recompute full with " : "", (long long)micro);
            return EK_OK;
        }
    snprintf(
        hint, cap,
        "no --micro-batch and no --recompute makes it fit: lower --seq, %sshard the model over "
        "more %s (--zero 3), %sor use a smaller model",
        r->training.moe.gather != 0 ? "take --adaptive-r etp, " : "",
        n->limit.kind == EK_LIMIT_GIVEN ? "ranks" : "hosts",
        r->cfg->elastic || r->kernels->memory != NULL || r->model->offload != NULL
            ? ""
            : "keep experts on disk (--offload experts), ");
    return EK_OK;
}

/* What each of `ranks` ranks of this host could use more. */
static double spare_of_rank(const memory_need *n, double ranks)
{
    if (n->limit.kind == EK_LIMIT_UNKNOWN)
        return 1e24;
    return (n->have - n->want) / (n->limit.kind == EK_LIMIT_GIVEN ? 1 : ranks);
}

/* Fails on the ranks of a host whose shared memory is too small for their state.  Where a
 * generation before has left memory, what is adopted decides, and reserving fails.  Collective. */
static ek_status check_shared_memory(ek_run *r)
{
    const ek_supervised *supervisor = r->cfg->supervised;
    double needed, fits = 1, all_fit;

    if (r->memory.recovery.n_survivors > 0)
        return EK_OK;
    EK_TRY(shm_bytes_needed(r, &needed));
    EK_TRY(fits_shared_memory(r, &fits));
    all_fit = fits;
    EK_TRY(ek_minimum(r->world, &all_fit));
    if (all_fit > 0)
        return EK_OK;
    if (r->rank == 0 && supervisor != NULL && supervisor->no_room != NULL)
        supervisor->no_room();
    EK_TRY(ek_agree(r->world, "report the lack of memory", EK_OK)); /* before any rank ends */
    return ek_agree(r->world, "get shared memory",
                    fits > 0 ? EK_OK
                             : ek_segment_too_small("the state of this host's ranks", needed));
}

/* What the need is for beside the run itself; "": nothing.  text [HINT_CAP]. */
static const char *copies_text(const ek_run *r, char *text)
{
    double bytes = ek_param_buckets_copy_bytes(r->model);
    char each[32];

    text[0] = '\0';
    if (bytes > 0)
        snprintf(text, HINT_CAP,
                 " (%s a rank are copies of shards of other hosts, for --elastic; "
                 "--elastic=false does without)",
                 ek_bytes_text(each, sizeof(each), bytes));
    return text;
}

/* The prediction is of the process: what it had before, and freed, can be more than a small model
 * needs. */
static void count_memory_before(ek_run *r)
{
    size_t *predicted = &r->out->info.predicted_bytes;

    if (r->kernels->memory == NULL && (size_t)r->room.peak_before > *predicted)
        *predicted = (size_t)r->room.peak_before;
}

/* Linux overcommits memory and kills a process that uses too much without a message; so this checks
 * before. */
ek_status ek_run_check_memory(ek_run *r)
{
    double copy = (double)ek_train_copy_bytes(r->model), copy_fits, all_fit, ranks = 1, spare;
    char hint[HINT_CAP] = "", text[EK_LIMIT_TEXT], copies[HINT_CAP], want[32];
    memory_need need, with_copy;

    if (r->cfg->elastic)
        EK_TRY(check_shared_memory(r));
    EK_TRY(find_need(r, &need));
    with_copy = need;
    EK_TRY(add_need(r, &with_copy, copy));
    spare = r->model->offload == NULL ? 0.1 * with_copy.want : 0; /* else entries have left some */
    copy_fits = need_fits(&with_copy, spare);
    EK_TRY(ek_minimum(r->world, &copy_fits)); /* all ranks save in the background, or none */
    r->saves.background = ek_run_saves_often(r) && copy_fits > 0;
    if (r->saves.background)
        r->out->info.predicted_bytes += ek_train_copy_bytes(r->model);
    if (need.limit.kind != EK_LIMIT_UNKNOWN) /* file pages: what is left, to one rank here */
        r->room.files.cache_bytes = need.have > need.want ? (int64_t)(need.have - need.want) : 1;
    EK_TRY(ek_run_sum_on_host(r, &ranks));
    r->room.files.through_cache = ranks > 1; /* ranks of a host may read the same weights */
    r->room.spare_bytes = spare_of_rank(&need, ranks);
    EK_TRY(ek_minimum(r->world, &r->room.spare_bytes));
    all_fit = need_fits(&need, 0);
    EK_TRY(ek_minimum(r->world, &all_fit));
    count_memory_before(r);
    if (all_fit > 0)
        return EK_OK;
    EK_TRY(find_fitting(r, &need, hint, sizeof(hint)));
    EK_REQUIRE(need_fits(&need, 0), EK_ENOMEM, "the run needs about %s of memory%s, and %s; %s",
               ek_bytes_text(want, sizeof(want), need.want), copies_text(r, copies),
               ek_memory_limit_describe(&need.limit, text), hint);
    return EK_OK;
}
