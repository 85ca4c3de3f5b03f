/* A dry run: everything up to the first step was checked and nothing written; fills out->plan.
 *
 * The model is laid out, which reserves addresses but touches no memory; ranks may be threads of
 * one process.  Machine costs are not measured.  Weights are not read: names and shapes in their
 * files are compared with the model. */
#include "base/file.h"
#include "comm/agree.h"
#include "model/hf/io.h"
#include "model/offload.h"
#include "model/param_buckets.h"
#include "train/run/partners.h"
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

/* Whether a scratch file can be made in its folder, as the run will make it. */
static ek_status check_scratch(const ek_run *r)
{
    const ek_offload_config *c = r->model->cfg.offload;
    ek_disk_file *file;
    ek_disk *disk = NULL;
    ek_status st;

    if (c == NULL || r->cfg->dry_run > 1 || ek_offload_disk_bytes(r->model) == 0)
        return EK_OK;
    EK_TRY(ek_disk_create(NULL, &disk));
    st = ek_disk_open_scratch(disk, c->dir, EK_DISK_ALIGN, &file);
    ek_disk_destroy(&disk);
    return st;
}

/* What each rank needs. */
typedef struct {
    double memory, saved;    /* bytes of memory, of checkpoint files */
    double copies;           /* bytes of copies of other ranks' state */
    double scratch, buckets; /* of experts on disk */
    ek_offload_traffic disk; /* of a step */
} rank_needs;

static ek_status find_needs(ek_run *r, rank_needs *n)
{
    *n = (rank_needs){.memory = (double)r->out->info.predicted_bytes,
                      .saved = (double)ek_train_save_bytes(r->model),
                      .copies =
                          ek_param_buckets_copy_bytes(r->model) + ek_run_copies_bytes(&r->partners),
                      .scratch = (double)ek_offload_disk_bytes(r->model),
                      .buckets = (double)ek_offload_buckets(r->model)};
    return ek_trainer_count_disk(r->model, &r->training, &n->disk);
}

/* Whether a rank is on the first one's host, and that is this one. */
static int is_here(const ek_run *r, int rank)
{
    return r->cfg->dry_run == 1 &&
           (r->ranks == 1 || ek_comm_node(r->world, rank) == ek_comm_node(r->world, 0));
}

static void add_offload(const ek_run *r, int rank, const rank_needs *n, ek_train_plan_offload *o)
{
    if (rank == 0 || n->scratch < o->scratch_least)
        o->scratch_least = n->scratch;
    if (n->scratch > o->scratch_most)
        o->scratch_most = n->scratch;
    if (is_here(r, rank))
        o->scratch_host += n->scratch;
    if ((int64_t)n->buckets > o->buckets)
        o->buckets = (int64_t)n->buckets;
    if (rank > 0 && n->disk.read_bytes <= o->read)
        return;
    o->read = n->disk.read_bytes;
    o->written = n->disk.written_bytes;
    o->uses = n->disk.uses;
    o->hits = n->disk.hits;
}

/* Gathers what the ranks need.  Collective. */
static ek_status gather_needs(ek_run *r, ek_train_plan *p)
{
    rank_needs *all = calloc((size_t)r->ranks, sizeof(*all));
    double saved = 0;
    ek_status st = EK_OK;

    EK_REQUIRE(all != NULL, EK_ENOMEM, "no memory for %d ranks", r->ranks);
    EK_TRY_OUT(ek_agree(r->world, "plan a step", find_needs(r, &all[r->rank])));
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
        p->partner_copies = all[i].copies > p->partner_copies ? all[i].copies : p->partner_copies;
        if (is_here(r, i))
            p->memory_host += x;
        add_offload(r, i, &all[i], &p->offload);
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

/* Free space in a folder, or where it would be created; 0: unknown. */
static int64_t disk_free(const char *folder)
{
    ek_path at;
    int64_t bytes = 0;

    if (ek_path_absolute(folder, &at) < 0)
        return 0;
    while (ek_file_kind_of(at.s) == EK_FILE_NONE && strcmp(at.s, "/") != 0) {
        ek_path parent;

        if (ek_path_parent(at.s, &parent) < 0)
            return 0;
        at = parent;
    }
    return ek_folder_free(at.s, &bytes) == EK_OK ? bytes : 0;
}

/* Of this host, and of the settings. */
static void describe_offload(const ek_run *r, ek_train_plan_offload *o)
{
    const ek_offload_config *c = r->model->cfg.offload;
    const ek_model_spec *s = &r->source.spec;
    int64_t top_k = r->training.top_k > 0 ? r->training.top_k : s->top_k;

    if (c == NULL)
        return;
    snprintf(o->folder, sizeof(o->folder), "%s", c->dir);
    o->free = r->cfg->dry_run == 1 ? (double)disk_free(c->dir) : 0;
    o->entries = c->entries;
    o->gradients = c->gradients;
    o->tokens_of_expert =
        (double)(r->training.batch * r->training.seq * top_k) / (double)s->experts;
}

ek_status ek_run_dry(ek_run *r)
{
    const ek_mesh *m = r->mesh != NULL ? r->mesh : &ek_mesh_one;
    const ek_train_config *c = r->cfg;
    ek_train_plan *p = &r->out->plan;
    int several = ek_run_saves_often(r) || r->eval.held_out != NULL;
    ek_memory_limit limit = ek_run_memory_limit(r);
    double tokens = (double)ek_sources_tokens(&r->data.sources);

    EK_TRY(ek_agree(r->world, "check the initial weights", check_weights(r)));
    EK_TRY(ek_agree(r->world, "make a scratch file", check_scratch(r)));
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
                         .disk_free = disk_free(c->out),
                         .replicas = r->room.replicas,
                         .replicas_kept =
                             ek_moe_replica_sets(&r->training.moe) == EK_REPLICA_SETS_EACH};
    p->epochs = (double)r->training.optimizer.steps * (double)p->step_tokens / tokens;
    p->memory_available = c->dry_run == 1 ? (double)limit.left : 0;
    p->memory_limit = (double)limit.bytes;
    ek_memory_limit_source(&limit, p->memory_limit_source);
    list_files(r, p);
    describe_offload(r, &p->offload);
    return gather_needs(r, p);
}
