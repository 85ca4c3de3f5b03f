/* A dry run: everything up to the first step was checked and nothing written; fills out->plan.
 *
 * The model is laid out, which reserves addresses but touches no memory; ranks may be threads of
 * one process.  Machine costs are not measured.  Weights are not read: names and shapes in their
 * files are compared with the model. */
#include "base/file.h"
#include "comm/agree.h"
#include "model/hf/io.h"
#include "train/run/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Checks the files of initial weights, if any. */
static ek_status check_weights(ek_run *r)
{
    const char *path = r->cfg->init != NULL ? r->cfg->init : r->source.weights.s;
    ek_slice_set *files = NULL;
    ek_status st;

    if (r->rank != 0 || r->saves.found.path.s[0] != '\0')
        return EK_OK;
    if (path[0] == '\0')
        return ek_model_source_no_weights(&r->source);
    EK_TRY(ek_slice_set_open(path, &files));
    st = ek_hf_check(&r->source.spec, files, EK_ARRAYS_MASTER);
    ek_slice_set_close(&files);
    return st;
}

/* Gathers bytes of memory and of checkpoint files per rank.  Collective. */
typedef struct {
    double memory, saved;
} rank_bytes;

static ek_status gather_bytes(ek_run *r, ek_train_plan *p)
{
    rank_bytes *all = calloc((size_t)r->ranks, sizeof(*all));
    double saved = 0;
    ek_status st = EK_OK;

    EK_REQUIRE(all != NULL, EK_ENOMEM, "no memory for %d ranks", r->ranks);
    all[r->rank] =
        (rank_bytes){(double)r->out->info.predicted_bytes, (double)ek_train_save_bytes(r->model)};
    EK_TRY_OUT(ek_gather(r->world, all, sizeof(*all)));
    p->memory_least = all[0].memory;
    for (int i = 0; i < r->ranks; i++) {
        double x = all[i].memory;

        saved += all[i].saved;
        p->memory_least = x < p->memory_least ? x : p->memory_least;
        if (x > p->memory_most) {
            p->memory_most = x;
            p->memory_most_rank = i;
        }
        if (r->cfg->dry_run == 1 &&
            (r->ranks == 1 || ek_comm_node(r->world, i) == ek_comm_node(r->world, 0)))
            p->memory_host += x;
    }
    p->checkpoint_bytes = (int64_t)saved;
out:
    free(all);
    return st;
}

static void add_file(char *list, size_t cap, int wanted, const char *name)
{
    size_t n = strlen(list);

    if (wanted)
        snprintf(list + n, cap - n, "%s%s", n > 0 ? ", " : "", name);
}

static void list_files(const ek_run *r, ek_train_plan *p)
{
    const ek_train_config *c = r->cfg;
    int saves_best = r->eval.held_out != NULL;

    add_file(p->files, sizeof(p->files), 1, "run.json");
    add_file(p->files, sizeof(p->files), 1, "metrics.jsonl");
    add_file(p->files, sizeof(p->files), 1, "checkpoint/");
    add_file(p->files, sizeof(p->files), saves_best, "evaluation.json");
    add_file(p->files, sizeof(p->files), saves_best, "best");
    add_file(p->files, sizeof(p->files), c->timeline, "timeline.json");
    add_file(p->files, sizeof(p->files), c->timeline && r->ranks > 1, "timeline-rank<N>.json");
    add_file(p->files, sizeof(p->files), c->record_routing, "routing.npy");
    add_file(p->files, sizeof(p->files), c->record_plans, "plans.jsonl");
    add_file(p->files, sizeof(p->files), c->record_plans && c->pp > 1, "plans-stage<N>.jsonl");
    add_file(p->files, sizeof(p->files), c->elastic, "generations.jsonl");
    add_file(p->files, sizeof(p->files), c->elastic && r->training.moe.planner != NULL,
             "machine.json");
}

/* Free space at --out, or where it would be created; 0: unknown. */
static int64_t disk_free(const char *out)
{
    ek_path at;
    int64_t bytes = 0;

    if (ek_path_absolute(out, &at) < 0)
        return 0;
    while (ek_file_kind_of(at.s) == EK_FILE_NONE && strcmp(at.s, "/") != 0) {
        ek_path parent;

        if (ek_path_parent(at.s, &parent) < 0)
            return 0;
        at = parent;
    }
    return ek_folder_free(at.s, &bytes) == EK_OK ? bytes : 0;
}

ek_status ek_run_dry(ek_run *r)
{
    const ek_mesh *m = r->mesh != NULL ? r->mesh : &ek_mesh_one;
    const ek_train_config *c = r->cfg;
    ek_train_plan *p = &r->out->plan;
    int several = c->save_every > 0 || c->save_seconds > 0 || r->eval.held_out != NULL;
    ek_memory_limit limit = ek_run_memory_limit(r);
    double tokens = (double)ek_sources_tokens(&r->data.sources);

    EK_TRY(ek_agree(r->world, "check the initial weights", check_weights(r)));
    *p = (ek_train_plan){.made = 1,
                         .ranks = r->ranks,
                         .pp = m->pp,
                         .dp = m->dp,
                         .tp = m->tp,
                         .edp = m->edp,
                         .ep = m->ep,
                         .etp = m->etp,
                         .step_tokens = r->training.batch * r->training.seq,
                         .eval_every = ek_run_eval_every(r),
                         .eval_windows = r->eval.held_out != NULL ? r->eval.state.windows : 0,
                         .checkpoints_most = several ? c->keep + 1 + (r->eval.held_out != NULL) : 1,
                         .disk_free = disk_free(c->out)};
    p->epochs = (double)r->training.optimizer.steps * (double)p->step_tokens / tokens;
    p->memory_available = c->dry_run == 1 ? (double)limit.left : 0;
    p->memory_limit = (double)limit.bytes;
    ek_memory_limit_source(&limit, p->memory_limit_source);
    list_files(r, p);
    return gather_bytes(r, p);
}
