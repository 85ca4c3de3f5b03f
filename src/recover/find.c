/* Finds the survivors of an earlier generation, brings them to the same step, and drops the others.
 */
#include "base/log.h"
#include "comm/agree.h"
#include "elastic/prealloc.h"
#include "recover/recover_priv.h"

#include <stdlib.h>
#include <string.h>

/* The rank of this host that serves a segment. */
static int serving_rank(const ek_recovery *r, const ek_segment_id *id)
{
    int n = 0, at = 0;

    for (int rank = 0; rank < r->ranks; rank++)
        n += ek_recover_host(r, rank) == ek_recover_host(r, r->rank);
    for (int rank = 0; rank < r->ranks; rank++)
        if (ek_recover_host(r, rank) == ek_recover_host(r, r->rank) && at++ == id->rank % n)
            return rank;
    return r->rank;
}

/* Seconds to wait for the exit of a killed process; and before a process that still holds a segment
 * is killed, as its mpiexec hangs or both are stopped. */
static const double exit_timeout_s = 20, grace_s = 1;

static ek_status open_tables(ek_found_segment *f)
{
    const ek_segment *s = &f->segment;
    size_t end;

    EK_TRY(ek_journal_open(s->body, s->body_bytes, &f->journal));
    EK_TRY(ek_journal_check(&f->journal));
    end = ek_journal_end(&f->journal);
    return ek_shard_table_open(s->body + end, s->body_bytes - end, s->body_bytes,
                               ek_journal_real_bytes(&f->journal), &f->shards);
}

/* Removes an incomplete segment.  Fails for a segment that another process holds, or that another
 * version of evenkeel wrote. */
static ek_status open_served_segment(const ek_recovery *r, ek_found_segment *f)
{
    ek_segment *s = &f->segment;
    ek_status st = ek_segment_open(&f->id, grace_s, s);

    if (st == EK_ESTATE) {
        int pid = ek_segment_kill_holder(&f->id, r->supervisor_id);

        if (pid > 0)
            ek_log("elastic", EK_LOG_WARN,
                   "process %d of an earlier start still ran, and was killed", pid);
        st = ek_segment_open(&f->id, exit_timeout_s, s);
    }
    if (st == EK_ENOENT || st == EK_ECORRUPT)
        return ek_segment_remove(&f->id); /* some of its blocks may exist */
    EK_TRY(st);
    f->prealloc = ek_prealloc_is(&f->id);
    if (f->prealloc)
        return EK_OK;
    if (ek_segment_phase_of(s) == EK_SEGMENT_BUILDING) {
        ek_segment_close(s);
        return ek_segment_remove(&f->id);
    }
    if (open_tables(f) < 0) {
        ek_log("elastic", EK_LOG_WARN, "%s; it is not used", ek_err_message());
        ek_segment_close(s);
    }
    return EK_OK;
}

/* Warns, once a host, of a folder with a name of this run that is not used. */
static ek_status warn_of_foreign(const ek_recovery *r)
{
    const ek_segment_id first = {0};
    char text[512];

    if (serving_rank(r, &first) != r->rank)
        return EK_OK;
    EK_TRY(ek_segment_foreign(r->run, text, sizeof(text)));
    if (text[0] != '\0')
        ek_log("elastic", EK_LOG_WARN, "%s, and is ignored", text);
    return EK_OK;
}

static ek_status open_segments(ek_recovery *r)
{
    ek_segment_id *ids = NULL;
    int64_t n = 0;
    ek_status st;

    EK_TRY_OUT(warn_of_foreign(r));
    EK_TRY_OUT(ek_segment_list(r->run, &ids, &n));
    r->found = calloc((size_t)n + 1, sizeof(*r->found));
    EK_REQUIRE_OUT(r->found != NULL, EK_ENOMEM, "no memory for %lld segments", (long long)n);
    r->n_found = n;
    for (int64_t i = 0; i < n; i++) {
        ek_found_segment *f = &r->found[i];

        *f = (ek_found_segment){
            .id = ids[i], .served = serving_rank(r, &ids[i]) == r->rank, .survivor = -1};
        if (f->served)
            EK_TRY_OUT(open_served_segment(r, f));
    }
out:
    free(ids);
    return st;
}

/* Opens the segments of this host that other ranks serve, to copy from them. */
static ek_status open_unserved_segments(ek_recovery *r)
{
    for (int64_t i = 0; i < r->n_found; i++) {
        ek_found_segment *f = &r->found[i];

        if (f->served || f->survivor < 0 || r->survivors[f->survivor].role == EK_SURVIVOR_STALE)
            continue;
        EK_TRY(ek_segment_open(&f->id, -1, &f->segment));
        EK_TRY(open_tables(f));
    }
    return EK_OK;
}

/* Summary of what one rank serves. */
typedef struct {
    int64_t generation; /* 1 + the newest that this rank has found, in any phase; on rank 0 at least
                           its first_generation */
    int64_t n;          /* segments with state */
} serving_summary;

static ek_survivor_info survivor_of(const ek_recovery *r, const ek_found_segment *f)
{
    return (ek_survivor_info){.survivor = {.generation = f->id.generation,
                                           .rank = f->id.rank,
                                           .phase = (int32_t)ek_segment_phase_of(&f->segment),
                                           .state = ek_journal_look(&f->journal)},
                              .host = ek_recover_host(r, r->rank),
                              .server = r->rank,
                              .fingerprint = f->segment.head->fingerprint,
                              .shards = f->shards.n,
                              .ranks = f->segment.head->ranks};
}

/* Gathers survivors, ordered by serving rank, so that all ranks have the same list.  all [ranks].
 */
static ek_status gather_survivors(ek_recovery *r, serving_summary *all)
{
    ek_survivor_info *mine;
    int64_t most = 0, n = 0;
    ek_status st = EK_OK;

    for (int64_t i = 0; i < r->n_found; i++)
        all[r->rank].n += ek_recover_serves_state(r, i);
    for (int64_t i = 0; i < r->n_found; i++)
        if (!ek_prealloc_is(&r->found[i].id) &&
            r->found[i].id.generation >= all[r->rank].generation)
            all[r->rank].generation = r->found[i].id.generation + 1;
    EK_TRY(ek_gather(r->world, all, sizeof(*all)));
    for (int i = 0; i < r->ranks; i++) {
        most = all[i].n > most ? all[i].n : most;
        r->generation =
            all[i].generation > r->generation ? (int32_t)all[i].generation : r->generation;
    }
    mine = calloc((size_t)(r->ranks * most) + 1, sizeof(*mine));
    r->survivors = calloc((size_t)(r->ranks * most) + 1, sizeof(*r->survivors));
    EK_REQUIRE_OUT(mine != NULL && r->survivors != NULL, EK_ENOMEM, "no memory for %lld segments",
                   (long long)(r->ranks * most));
    for (int64_t i = 0; i < r->n_found; i++)
        if (ek_recover_serves_state(r, i))
            mine[r->rank * most + n++] = survivor_of(r, &r->found[i]);
    if (most > 0)
        EK_TRY_OUT(ek_gather(r->world, mine, (size_t)most * sizeof(*mine)));
    for (int i = 0; i < r->ranks; i++)
        for (int64_t j = 0; j < all[i].n; j++)
            r->survivors[r->n_survivors++] = mine[i * most + j];
out:
    free(mine);
    return st;
}

/* Sets found[].survivor of this host's segments. */
static void match_segments(ek_recovery *r)
{
    for (int64_t i = 0; i < r->n_found; i++)
        for (int32_t j = 0; j < r->n_survivors; j++)
            if (r->survivors[j].host == ek_recover_host(r, r->rank) &&
                r->survivors[j].survivor.generation == r->found[i].id.generation &&
                r->survivors[j].survivor.rank == r->found[i].id.rank)
                r->found[i].survivor = j;
}

static ek_status decide_recovery(ek_recovery *r)
{
    ek_survivor *of = calloc((size_t)r->n_survivors + 1, sizeof(*of));
    ek_survivor_role *role = calloc((size_t)r->n_survivors + 1, sizeof(*role));
    ek_status st = EK_OK;

    EK_REQUIRE_OUT(of != NULL && role != NULL, EK_ENOMEM, "no memory for %d ranks", r->n_survivors);
    for (int32_t i = 0; i < r->n_survivors; i++)
        of[i] = r->survivors[i].survivor;
    r->decision = ek_recovery_decide(of, r->n_survivors, role);
    for (int32_t i = 0; i < r->n_survivors; i++) {
        r->survivors[i].role = role[i];
        r->finished += role[i] == EK_SURVIVOR_FINISH;
        if (role[i] == EK_SURVIVOR_UNUSABLE && r->rank == 0)
            ek_log("elastic", EK_LOG_WARN,
                   "the %s of earlier rank %d is at step %lld and cannot be brought to step "
                   "%lld; it is not used",
                   ek_segment_is_copy(of[i].rank, r->survivors[i].ranks) ? "copy" : "state",
                   (int)ek_segment_owner(of[i].rank, r->survivors[i].ranks),
                   (long long)of[i].state.steps_done, (long long)r->decision.steps_done);
    }
out:
    free(of);
    free(role);
    return st;
}

/* --- the step under way ----------------------------------------------------------------------- */

static ek_status finish_served(ek_recovery *r)
{
    for (int32_t i = 0; i < r->n_survivors; i++) {
        ek_found_segment *f = ek_recover_served(r, i);

        if (f == NULL || r->survivors[i].role != EK_SURVIVOR_FINISH)
            continue;
        EK_REQUIRE(ek_journal_real_bytes(&f->journal) == r->update.real_bytes, EK_EINVAL,
                   "the run in memory has numbers of %d bytes; give the same --dtype",
                   ek_journal_real_bytes(&f->journal));
        EK_TRY(
            ek_journal_finish(&f->journal, &r->update.rule, r->decision.steps_done - 1, r->record));
    }
    return EK_OK;
}

/* Broadcasts the record; survivors that have not done the last step finish it. */
static ek_status finish_step(ek_recovery *r)
{
    const ek_found_segment *f;

    if (r->decision.record < 0)
        return EK_OK;
    f = ek_recover_served(r, r->decision.record);
    if (f != NULL)
        memcpy(r->record, ek_journal_recorded(&f->journal), r->update.record_bytes);
    EK_TRY(ek_recover_broadcast(r, r->record, r->update.record_bytes,
                                r->survivors[r->decision.record].server));
    return ek_agree(r->world, "finish a step", finish_served(r));
}

/* Removes segments of other generations, to free memory. */
static ek_status remove_old(ek_recovery *r)
{
    for (int64_t i = 0; i < r->n_found; i++) {
        ek_found_segment *f = &r->found[i];

        if (!ek_recover_serves_state(r, i) || r->survivors[f->survivor].role != EK_SURVIVOR_STALE)
            continue;
        ek_segment_close(&f->segment);
        EK_TRY(ek_segment_remove(&f->id));
    }
    return EK_OK;
}

ek_status ek_recover_find(ek_recovery *r, ek_comm *world, uint64_t run, uint64_t supervisor_id,
                          int32_t first_generation, const ek_recover_update *update)
{
    serving_summary *all;
    ek_status st = EK_OK;

    *r = (ek_recovery){.world = world,
                       .ranks = 1,
                       .run = run,
                       .supervisor_id = supervisor_id,
                       .update = *update,
                       .decision = {-1, 0, -1}};
    if (world != NULL) {
        r->rank = ek_comm_rank(world);
        r->ranks = ek_comm_size(world);
    }
    all = calloc((size_t)r->ranks, sizeof(*all));
    EK_TRY_OUT(ek_agree(world, "look for the state of the run",
                        all != NULL ? open_segments(r)
                                    : EK_FAIL(EK_ENOMEM, "no memory for %d ranks", r->ranks)));
    all[r->rank].generation = r->rank == 0 ? first_generation : 0;
    EK_TRY_OUT(gather_survivors(r, all));
    match_segments(r);
    EK_TRY_OUT(decide_recovery(r));
    EK_TRY_OUT(finish_step(r));
    EK_TRY_OUT(ek_agree(world, "remove unusable state", remove_old(r)));
    EK_TRY_OUT(ek_agree(world, "open the state of the run", open_unserved_segments(r)));
out:
    free(all);
    return st;
}

ek_status ek_recover_check(const ek_recovery *r, uint64_t fingerprint, const char *out)
{
    for (int32_t i = 0; i < r->n_survivors; i++)
        EK_REQUIRE(r->survivors[i].role == EK_SURVIVOR_STALE ||
                       r->survivors[i].fingerprint == fingerprint,
                   EK_EINVAL,
                   "--elastic: memory holds the state of a run with --out %s and another model, "
                   "other data or settings; give the same, or discard that state with `evenkeel "
                   "clean --out %s`",
                   out, out);
    return EK_OK;
}
