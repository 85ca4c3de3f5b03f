/* Runs with --elastic: finds the state in memory, continues from it, and frees the memory at the
 * end.  See docs/resilience.md. */
#include "base/clock.h"
#include "base/count_text.h"
#include "base/file.h"
#include "base/log.h"
#include "base/random.h"
#include "comm/agree.h"
#include "elastic/prealloc.h"
#include "model/hf/config.h"
#include "model/hf/names.h"
#include "recover/restart_experts.h"
#include "tensor/select/select.h"
#include "train/run/partners.h"
#include "train/run/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Options that the step journal does not support. */
static ek_status check_options(const ek_run *r)
{
    const ek_train_config *c = r->cfg;

    EK_REQUIRE(r->kernels->memory == NULL, EK_EINVAL,
               "--elastic: the state has to be in CPU memory to outlive a process, not in that of "
               "--device %s",
               c->device);
    return EK_OK;
}

static ek_status check_host_loss(const ek_run *r)
{
    const ek_mesh *m = r->mesh;

    EK_REQUIRE(!r->cfg->embed_columns || r->source.spec.hidden >= m->dp, EK_EINVAL,
               "--elastic: of %d data-parallel ranks some have none of the %lld columns of the "
               "embedding, and there are no copies then; leave out --embed-columns",
               m->dp, (long long)r->source.spec.hidden);
    return EK_OK;
}

ek_status ek_run_check_host_loss(ek_run *r)
{
    if (!r->cfg->elastic || r->mesh == NULL || r->memory.step >= 0 || r->first_step > 0)
        return EK_OK; /* a run that continues accepts the hosts there are */
    if (ek_comm_ranks_here(r->world) == r->ranks)
        return EK_OK; /* one host cannot be protected against its loss */
    return ek_agree(r->world, "check --elastic", check_host_loss(r));
}

/* Broadcasts rank 0's number to all ranks, including draining ones. */
static ek_status broadcast_to_all(ek_run *r, uint64_t *number)
{
    ek_coll *op = NULL;

    if (r->all == NULL)
        return EK_OK;
    EK_TRY(ek_comm_broadcast(r->all, number, sizeof(*number), 0, &op));
    return ek_coll_wait(&op);
}

/* The run number, from rank 0's absolute path of --out. */
static ek_status find_run_id(ek_run *r, uint64_t *id)
{
    EK_TRY(ek_path_absolute(r->cfg->out, &r->folder.path));
    *id = ek_run_id(r->folder.path.s);
    return broadcast_to_all(r, id);
}

static ek_status state_fingerprint(const ek_run *r, uint64_t *out)
{
    char *settings = json_dumps(r->options.settings, JSON_SORT_KEYS), *model = NULL;
    ek_status st = EK_OK;

    EK_REQUIRE_OUT(settings != NULL, EK_ENOMEM, "no memory for the settings");
    EK_TRY_OUT(ek_hf_config_text(&r->source.spec, &model));
    *out = ek_random_bits(ek_random_stream(settings), ek_random_stream(model), 0);
out:
    free(settings);
    free(model);
    return st;
}

/* Removes all segments of a run on this host. */
static ek_status remove_run_segments(uint64_t run)
{
    ek_segment_id *ids = NULL;
    int64_t n = 0;
    ek_status st = ek_segment_list(run, &ids, &n);

    for (int64_t i = 0; i < n && st == EK_OK; i++)
        st = ek_segment_remove(&ids[i]);
    free(ids);
    return st;
}

ek_status ek_run_clear_memory(ek_run *r)
{
    uint64_t id;

    if (r->cfg->elastic || r->cfg->resume)
        return EK_OK;
    EK_TRY(find_run_id(r, &id));
    return ek_agree(r->world, "remove an earlier run's state", remove_run_segments(id));
}

/* Least number of this generation: 0, or for a run that has completed steps the half seconds since
 * 2020.  So it is above those of all earlier generations, also of those whose hosts are out of
 * reach now: if the run goes back without them, their state must not be taken for the newer one
 * when they return. */
static int32_t first_generation(const ek_run *r)
{
    static const double year_2020 = 1577836800, a_second = 2;
    ek_path path;
    int64_t bytes;

    if (ek_path_set(&path, "%s/metrics.jsonl", r->cfg->out) < 0 ||
        ek_file_kind_of(path.s) == EK_FILE_NONE || ek_file_size(path.s, &bytes) < 0 || bytes == 0)
        return 0;
    return (int32_t)((ek_clock_epoch_s() - year_2020) * a_second);
}

/* Looks for the run's state among all ranks, and finishes the step under way as the optimizer does.
 */
static ek_status find_survivors(ek_run *r, uint64_t run)
{
    ek_recover_update update = {.rule = ek_optimizer_rule(r->kernels),
                                .record_bytes = sizeof(ek_step_record),
                                .real_bytes = (int)ek_dtype_size(r->kernels->real)};

    return ek_recover_find(&r->memory.recovery, r->all, run, ek_supervised_by(r->cfg->supervised),
                           first_generation(r), &update);
}

ek_status ek_run_find_memory(ek_run *r)
{
    uint64_t id;
    ek_segment_id segment;

    if (!r->cfg->elastic)
        return EK_OK;
    EK_TRY(find_run_id(r, &id));
    EK_TRY(ek_agree(r->world, "check --elastic", check_options(r)));
    if (r->cfg->dry_run) /* finding segments would lock them */
        return EK_OK;
    EK_TRY(ek_agree(r->world, "compare settings", state_fingerprint(r, &r->memory.fingerprint)));
    EK_TRY(find_survivors(r, id));
    EK_TRY(ek_recover_check(&r->memory.recovery, r->memory.fingerprint, r->cfg->out));
    segment = (ek_segment_id){id, r->memory.recovery.generation, r->rank};
    ek_state_reserve(&r->memory.state, &segment, r->ranks, r->memory.fingerprint,
                     ek_supervised_by(r->cfg->supervised), r->folder.path.s);
    if (r->memory.recovery.decision.generation >= 0)
        r->memory.step = r->memory.recovery.decision.steps_done;
    return EK_OK;
}

/* --- draining --------------------------------------------------------------------------------- */

/* Commands to draining ranks: remove the state; keep it; send it to the others. */
enum { DRAIN_RELEASE, DRAIN_KEEP, DRAIN_SEND };

static ek_status command_draining(ek_run *r, uint64_t what)
{
    return ek_supervised_draining(r->cfg->supervised) > 0 ? broadcast_to_all(r, &what) : EK_OK;
}

ek_status ek_run_split_draining(ek_run *r, int *draining)
{
    int n = ek_supervised_draining(r->cfg->supervised), all = r->ranks, stay = all - n, *rank;
    ek_status st = EK_OK;

    *draining = r->rank >= stay;
    if (n == 0)
        return EK_OK;
    EK_REQUIRE(r->cfg->elastic && n > 0 && stay > 0, EK_EINVAL, "%d of %d ranks are to be drained",
               n, all);
    r->ranks = *draining ? n : stay;
    r->rank -= *draining ? stay : 0;
    r->world = NULL;
    if (r->ranks == 1)
        return EK_OK;
    rank = calloc((size_t)r->ranks, sizeof(*rank));
    EK_REQUIRE(rank != NULL, EK_ENOMEM, "no memory for %d ranks", r->ranks);
    for (int i = 0; i < r->ranks; i++)
        rank[i] = i + (*draining ? stay : 0);
    st = ek_comm_group(r->all, *draining ? "draining" : "staying", rank, r->ranks, &r->world);
    free(rank);
    return st;
}

/* Fills copies of other ranks' state; the others, which stay, tell draining ranks how many. */
static ek_status load_copies(ek_run *r)
{
    uint64_t most = (uint64_t)r->partners.most;
    int32_t missing;

    if (ek_supervised_draining(r->cfg->supervised) > 0)
        EK_TRY(broadcast_to_all(r, &most));
    for (uint64_t i = 0; i < most; i++)
        EK_TRY(ek_recover_load(&r->memory.recovery, ek_run_copy_state(&r->partners, (int32_t)i),
                               &missing));
    return EK_OK;
}

ek_status ek_run_drain(ek_run *r)
{
    uint64_t id, what;
    int32_t missing = -1;
    ek_status st = EK_OK;

    EK_TRY(ek_agree(r->world, "read the settings",
                    ek_mode_parse(r->cfg->dtype, r->cfg->device, &r->options.mode)));
    EK_TRY(ek_agree(r->world, "open the kernels", ek_run_open_kernels(r)));
    EK_TRY(find_run_id(r, &id));
    EK_TRY(find_survivors(r, id));
    EK_TRY(broadcast_to_all(r, &what));
    if (what == DRAIN_RELEASE)
        return ek_recover_remove(&r->memory.recovery);
    if (what == DRAIN_SEND) {
        EK_TRY(ek_recover_read_tables(&r->memory.recovery));
        st = ek_recover_load(&r->memory.recovery, NULL, &missing);
        if (st == EK_OK)
            st = load_copies(r);
    }
    if (st < 0 && missing < 0)
        return st;
    return ek_recover_commit(&r->memory.recovery, NULL, 0);
}

/* --- filling ---------------------------------------------------------------------------------- */

ek_status ek_run_check_least_step(ek_run *r, const char *lacks)
{
    int64_t least = ek_supervised_least_step(r->cfg->supervised);

    if (r->first_step >= least)
        return EK_OK;
    if (r->rank == 0)
        r->cfg->supervised->lacking(r->first_step);
    EK_TRY(ek_agree(r->world, "report what memory lacks", EK_OK)); /* before any rank ends */
    return EK_FAIL(EK_ETIMEOUT,
                   "memory of the hosts that responded in time lacks %s; %lld completed steps "
                   "would be repeated",
                   lacks, (long long)(least - r->first_step));
}

/* Lays out this rank's state, and its copies of others'. */
static ek_status start_state(ek_run *r)
{
    EK_TRY(ek_state_start(&r->memory.state, r->model, r->first_step));
    return ek_run_start_copies(r);
}

static ek_status create_blocks(ek_run *r)
{
    EK_TRY(ek_recover_create_blocks(&r->memory.recovery, &r->memory.state));
    return ek_run_create_copies(r);
}

/* Memory does not hold the whole model: continues from the newest checkpoint, else from the start.
 */
static ek_status fall_back_to_checkpoint(ek_run *r, int32_t tensor)
{
    int64_t memory_step = r->memory.step;
    char lacks[EK_HF_NAME_MAX + 16];
    ek_hf_tensor t;

    ek_hf_tensor_at(&r->source.spec, tensor, &t);
    r->memory.step = -1;
    EK_TRY(ek_run_find_checkpoint(r)); /* now with its checksums */
    r->first_step = r->saves.checkpoint_step;
    snprintf(lacks, sizeof(lacks), "a part of %s", t.name);
    EK_TRY(ek_run_check_least_step(r, lacks));
    EK_TRY(ek_run_restore_eval_state(r)); /* evaluations of lost steps are repeated */
    if (r->rank == 0)
        ek_log("elastic", EK_LOG_WARN,
               "memory of the remaining hosts lacks a part of %s; going back from step %lld to %s; "
               "%lld steps are repeated",
               t.name, (long long)memory_step,
               r->saves.checkpoint_step > 0 ? r->saves.found.path.s
                                            : "the start, as there is no checkpoint",
               (long long)(memory_step - r->first_step));
    EK_TRY(start_state(r));
    return ek_agree(r->world, "get its memory", create_blocks(r));
}

/* Sums byte counts over ranks into the run's info. */
static ek_status sum_byte_counts(ek_run *r)
{
    const ek_recover_bytes_by_source *from = &r->memory.recovery.bytes;
    double bytes[4] = {(double)from->copied, (double)from->received, (double)from->adopted,
                       (double)from->prealloc};
    ek_coll *op = NULL;

    if (r->ranks > 1) {
        EK_TRY(ek_comm_all_reduce(r->world, bytes, 4, EK_SUM_F64, &op));
        EK_TRY(ek_coll_wait(&op));
    }
    r->out->info.memory_copied = bytes[0];
    r->out->info.memory_received = bytes[1];
    r->out->info.memory_taken = bytes[2];
    r->out->info.memory_prealloc = bytes[3];
    return EK_OK;
}

/* Restores tuners and planners. */
static void load_warm_state(ek_run *r)
{
    const ek_recovery *found = &r->memory.recovery;

    if (found->n_tables > 0)
        ek_trainer_load_warm_state(r->trainer, found->warm_state, (size_t)found->warm_state_bytes,
                                   found->survivors[found->table_survivor[0]].ranks != r->ranks);
    ek_run_recall_saves(r);
}

static ek_status assume_placement(void *context, int64_t layer, const ek_placement *to,
                                  const int64_t *quota)
{
    return ek_trainer_assume(context, layer, to, quota);
}

/* With persistent replicas: places experts where memory holds them. */
static ek_status restart_experts(ek_run *r)
{
    const ek_planner *p = r->training.moe.planner;
    ek_restart_experts x = {&r->memory.recovery, r->model, r->options.rack_of,
                            r->options.replicas_min};
    int whole;

    if (p == NULL || !ek_planner_fills_slots(p) || r->cfg->plan_every <= 0)
        return EK_OK;
    EK_TRY(ek_restart_experts_place(&x, assume_placement, r->trainer, &whole));
    if (whole)
        ek_trainer_keep_placements(r->trainer, r->memory.step);
    return EK_OK;
}

/* Logs where the state came from. */
static void log_sources(const ek_run *r)
{
    const ek_train_info *i = &r->out->info;
    int copies = (int)ek_recover_copies(&r->memory.recovery);
    int n = (int)r->memory.recovery.n_survivors - copies;
    char taken[16], copied[16], received[16], prealloc[16], of_copies[48] = "";

    if (copies > 0)
        snprintf(of_copies, sizeof(of_copies), " and %d cop%s of others", copies,
                 copies == 1 ? "y" : "ies");
    ek_log("elastic", EK_LOG_INFO,
           "from the state of %d rank%s%s, %lld of which had to finish the last step: %s were "
           "adopted in place, %s copied within hosts, %s sent to other hosts; %s of memory were "
           "preallocated on joining hosts",
           n, n == 1 ? "" : "s", of_copies, (long long)r->memory.recovery.finished,
           ek_bytes_text(taken, sizeof(taken), (double)i->memory_taken),
           ek_bytes_text(copied, sizeof(copied), (double)i->memory_copied),
           ek_bytes_text(received, sizeof(received), (double)i->memory_received),
           ek_bytes_text(prealloc, sizeof(prealloc), (double)i->memory_prealloc));
}

ek_status ek_run_fill_from_memory(ek_run *r)
{
    int32_t missing = -1;
    ek_status st;

    if (!r->cfg->elastic)
        return EK_OK;
    EK_TRY(ek_agree(r->world, "lay out its state", start_state(r)));
    EK_TRY(command_draining(r, r->memory.step >= 0 ? DRAIN_SEND : DRAIN_KEEP));
    if (r->memory.step < 0)
        return ek_agree(r->world, "get its memory", create_blocks(r));
    EK_TRY(ek_recover_read_tables(&r->memory.recovery));
    load_warm_state(r);
    EK_TRY(ek_agree(r->world, "place experts", restart_experts(r)));
    st = ek_recover_load(&r->memory.recovery, &r->memory.state, &missing);
    if (st == EK_ENOENT && missing >= 0)
        return fall_back_to_checkpoint(r, missing);
    EK_TRY(st);
    EK_TRY(load_copies(r));
    EK_TRY(sum_byte_counts(r));
    if (r->rank == 0)
        log_sources(r);
    return EK_OK;
}

ek_status ek_run_spread_experts(ek_run *r)
{
    const ek_planner *p = r->training.moe.planner;
    int64_t moved;

    if (!r->cfg->elastic || r->memory.step >= 0 || p == NULL || !ek_planner_fills_slots(p))
        return EK_OK;
    return ek_trainer_place(r->trainer, NULL, &moved);
}

ek_status ek_run_commit_state(ek_run *r)
{
    const ek_recovery *found = &r->memory.recovery;

    if (!r->cfg->elastic)
        return EK_OK;
    if (r->memory.step > 0 && found->decision.record >= 0) /* its metrics line may be missing */
        ek_journal_record(&r->memory.state.journal, r->memory.step - 1, found->record,
                          found->update.record_bytes);
    return ek_run_commit_copies(r);
}

void ek_run_describe_memory(ek_run *r)
{
    ek_supervised *supervisor = r->cfg->supervised;

    if (!r->cfg->elastic || supervisor == NULL)
        return;
    supervisor->run = r->memory.state.id.run;
    ek_prealloc_describe(&r->memory.state.segment, supervisor->blocks, sizeof(supervisor->blocks));
}

ek_status ek_run_release_memory(ek_run *r)
{
    if (!r->cfg->elastic)
        return EK_OK;
    EK_TRY(command_draining(r, DRAIN_RELEASE));
    return ek_recover_remove(&r->memory.recovery);
}

ek_step_record ek_run_recovered_record(const ek_run *r)
{
    ek_step_record record;

    memcpy(&record, r->memory.recovery.record, sizeof(record));
    return record;
}

ek_status ek_run_write_recovered_step(ek_run *r)
{
    ek_step_record record = ek_run_recovered_record(r);
    ek_metrics_step s = {
        .result = &record.result, .step_ms = record.elapsed_ms, .ranks = record.ranks};

    int recorded = r->memory.step > 0 && r->memory.recovery.decision.record >= 0;

    if (r->rank != 0)
        return EK_OK;
    EK_TRY(ek_metrics_fill(&r->records.metrics, r->first_step - recorded));
    if (r->memory.step <= 0 || r->records.metrics.next == r->first_step)
        return EK_OK;
    if (r->records.metrics.next == r->first_step - 1 && recorded)
        return ek_metrics_write(&r->records.metrics, &s);
    ek_log("elastic", EK_LOG_WARN, "metrics.jsonl lacks the lines of steps %lld to %lld",
           (long long)r->records.metrics.next, (long long)r->first_step - 1);
    return EK_OK;
}

void ek_run_close_state(ek_run *r, ek_status st)
{
    ek_segment_id id = r->memory.state.id;
    int made = r->memory.state.segment.head != NULL;
    int ready = made && ek_segment_phase_of(&r->memory.state.segment) != EK_SEGMENT_BUILDING;
    int64_t taken = r->out->end.step, last = taken > r->first_step ? taken : r->first_step;
    /* a committed checkpoint holds all of the state */
    int saved = (st == EK_OK || st == EK_ECANCELED) &&
                ek_supervised_draining(r->cfg->supervised) == 0 && r->saves.checkpoint_step == last;

    ek_run_close_copies(&r->partners, saved || !ready);
    ek_state_close(&r->memory.state);
    ek_recover_close(&r->memory.recovery);
    if (made && (saved || !ready))
        (void)!ek_segment_remove(&id);
}
