/* Communication of a run's ranks outside of steps. */
#include "base/clock.h"
#include "base/file.h"
#include "base/random.h"
#include "comm/agree.h"
#include "train/run/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

ek_status ek_run_leaders_first(ek_run *r, const char *what, ek_status (*work)(ek_run *r))
{
    int leader = 0, turn;

    if (r->ranks == 1)
        return work(r);
    while (ek_comm_node(r->world, leader) != ek_comm_node(r->world, r->rank))
        leader++;
    turn = r->rank == 0 ? 0 : r->rank == leader ? 1 : 2;
    for (int i = 0; i < 3; i++)
        EK_TRY(ek_agree(r->world, what, i == turn ? work(r) : EK_OK));
    return EK_OK;
}

/* Fingerprints that must be the same on all ranks. */
typedef struct {
    uint64_t settings, options, kernels, data, held_out, replay;
} fingerprint;

/* Fingerprint of options that affect the distribution of work, besides those that a resumed run
 * must share. */
static uint64_t options_fingerprint(const ek_run *r)
{
    const ek_train_config *c = r->cfg;
    uint64_t racks = 0;
    char text[512];

    snprintf(text, sizeof(text),
             "%d %d %d %d %d %d %d %d %d %s %s %d %lld %d %s %g %d %s %s %d %lld %lld %lld "
             "%lld %s %s",
             c->pp, c->tp, r->options.sizes.ep, c->etp, c->zero, c->embed_columns, c->chunks,
             c->pipeline_degree, c->smart_group, c->a2a, c->balance, c->spare_slots,
             (long long)c->plan_every, c->replicas_min, c->reroute, c->reroute_limit,
             c->force_balance, c->recompute, c->adaptive_r, c->elastic, (long long)c->eval_every,
             (long long)r->eval.state.data_tokens, (long long)r->eval.state.windows,
             (long long)c->patience, c->prefer, c->rank_speeds);
    for (int i = 0; r->options.rack_of != NULL && i < r->ranks; i++)
        racks = ek_random_bits(racks, (uint64_t)i, (uint64_t)r->options.rack_of[i]);
    return ek_random_bits(ek_random_stream(text), racks,
                          ek_random_stream(c->pp_layers) + ek_random_stream(c->batch_shares));
}

static ek_status compare_options(ek_run *r, const fingerprint *mine, const fingerprint *first)
{
    /* last, as settings contain some of the others */
    const char *what = mine->data != first->data           ? "data"
                       : mine->held_out != first->held_out ? "held-out data"
                       : mine->replay != first->replay     ? "loads to replay"
                       : mine->settings != first->settings ? "settings"
                       : mine->options != first->options   ? "options"
                       : mine->kernels != first->kernels   ? "kernels"
                                                           : NULL;

    EK_REQUIRE(what == NULL, EK_EINVAL,
               "rank %d on %s has other %s than rank 0 on %s; all ranks need the same options, the "
               "same files and the same build",
               r->rank, ek_comm_host(r->world, r->rank), what, ek_comm_host(r->world, 0));
    return EK_OK;
}

ek_status ek_run_check_same(ek_run *r)
{
    fingerprint mine, first;
    ek_coll *op = NULL;
    ek_status st;
    char *text;

    if (r->ranks == 1)
        return EK_OK;
    text = json_dumps(r->options.settings, JSON_SORT_KEYS);
    st = text != NULL ? EK_OK : EK_FAIL(EK_ENOMEM, "no memory for the settings");
    mine = (fingerprint){.settings = ek_random_stream(text != NULL ? text : ""),
                         .options = options_fingerprint(r),
                         .kernels = ek_random_stream(r->kernels->name),
                         .replay = ek_run_replay_fingerprint(r)};
    free(text);
    if (st == EK_OK)
        st = ek_run_data_fingerprint(r, &mine.data);
    if (st == EK_OK)
        st = ek_run_held_out_fingerprint(r, &mine.held_out);
    EK_TRY(ek_agree(r->world, "compare settings", st));
    first = mine;
    EK_TRY(ek_comm_broadcast(r->world, &first, sizeof(first), 0, &op));
    EK_TRY(ek_coll_wait(&op));
    return ek_agree(r->world, "agree with rank 0", compare_options(r, &mine, &first));
}

#define SHARED ".shared-"

/* Removes files that this check left when a rank was killed. */
static void forget_shared(const char *out)
{
    ek_names l = {0};
    ek_path path;

    if (ek_folder_entries(out, &l) < 0)
        return;
    for (int64_t i = 0; i < l.n; i++)
        if (strncmp(l.names[i], SHARED, strlen(SHARED)) == 0 &&
            ek_path_set(&path, "%s/%s", out, l.names[i]) == EK_OK)
            (void)!ek_file_remove(NULL, path.s);
    ek_names_free(&l);
}

static ek_status leave_mark(const char *out, const char *path)
{
    EK_TRY(ek_folder_make(NULL, out));
    return ek_file_replace(NULL, path, "", 0);
}

ek_status ek_run_check_shared(ek_run *r)
{
    double stamp = r->rank == 0 ? (double)ek_clock_ns() : 0;
    ek_path path;
    ek_status st;

    if (r->rank == 0)
        forget_shared(r->cfg->out);
    if (r->ranks == 1)
        return EK_OK;
    stamp = -stamp;
    EK_TRY(ek_minimum(r->world, &stamp)); /* rank 0's: a new name, which no host has cached */
    EK_TRY(ek_path_set(&path, "%s/" SHARED "%.0f", r->cfg->out, -stamp));
    EK_TRY(ek_agree(r->world, "write to --out",
                    r->rank == 0 ? leave_mark(r->cfg->out, path.s) : EK_OK));
    st = ek_file_kind_of(path.s) == EK_FILE_REGULAR
             ? EK_OK
             : EK_FAIL(EK_EINVAL,
                       "--out %s is not the folder that rank 0 on %s writes to; give one that all "
                       "hosts share",
                       r->cfg->out, ek_comm_host(r->world, 0));
    st = ek_agree(r->world, "find --out", st);
    if (r->rank == 0)
        (void)!ek_file_remove(NULL, path.s);
    return st;
}

ek_status ek_run_sum_on_host(ek_run *r, double *x)
{
    double *all = calloc((size_t)r->ranks, sizeof(*all));
    ek_status st = EK_OK;

    EK_REQUIRE(all != NULL, EK_ENOMEM, "no memory for %d ranks", r->ranks);
    all[r->rank] = *x;
    EK_TRY_OUT(ek_gather(r->world, all, sizeof(*all)));
    for (int i = 0; i < r->ranks; i++)
        if (i != r->rank && ek_comm_node(r->world, i) == ek_comm_node(r->world, r->rank))
            *x += all[i];
out:
    free(all);
    return st;
}
