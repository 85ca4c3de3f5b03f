/* Saves a run's state: every rank writes its own files of one checkpoint.
 *
 *   begin   rank 0 creates the temporary folder and broadcasts it; each rank lists the slices that
 *           it saves, copies them for a background save (but those of experts on disk, which do not
 *           change there in the next step), and starts to write
 *   poll    one small all-reduce per call, started by one call and tested by the next: has a rank
 *           failed, is one still writing, is the checkpoint committed?  All ranks get the same
 *           answers
 *   commit  when all have written: rank 0 gathers checksums of all files, writes the indexes,
 *           checks that every element is stored exactly once, and writes the manifest */
#include "base/arena.h"
#include "base/c_locale.h"
#include "base/count_text.h"
#include "base/log.h"
#include "base/memory_limit.h"
#include "base/threads.h"
#include "comm/agree.h"
#include "model/hf/config.h"
#include "model/hf/io.h"
#include "model/offload.h"
#include "train/checkpoint/checkpoint.h"
#include "train/output/run_file.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PARTS = 2, FAILURE_MAX = 512, FILE_NAME_MAX = 64 };

static const char *const part_names[PARTS] = {"model", "optimizer"};
static const ek_weight_arrays part_kinds[PARTS] = {EK_ARRAYS_MASTER, EK_ARRAYS_MOMENTS};

/* Progress of this rank. */
typedef enum { WRITING, WRITTEN, COMMITTING, COMMITTED, FAILED } stage;

/* Status that is reduced over ranks with maximum. */
typedef struct {
    int64_t failed;      /* size - rank of a rank that failed, else 0 */
    int64_t writing;     /* a rank has not written all yet */
    int64_t uncommitted; /* rank 0 has not committed yet */
} question;

struct ek_train_saving {
    ek_train_save_config cfg;
    const ek_mesh *mesh;
    ek_checkpoint *checkpoint;  /* on rank 0 */
    ek_path folder;             /* the temporary one */
    char *config, *state, *run; /* texts of rank 0's small files; run: may be NULL */
    ek_owned_tensors owns[PARTS];
    ek_arena copy;            /* copy of the listed slices; empty: written from the model */
    ek_offload_reader reader; /* of experts on disk */
    ek_file_sum sums[PARTS];  /* of this rank's files; bytes -1: it has none */
    ek_file_sum *all;         /* [size][PARTS], when gathered */
    int64_t *first;           /* [size + 1]: rank r's are [r] of it */

    /* of the thread, or of the work done without one */
    pthread_t thread;
    int started;
    atomic_int stage, stop;
    ek_status status; /* of a failure, valid at FAILED */
    char failure[FAILURE_MAX];

    int written; /* 1: no rank reads the model any more */
    question round;
    ek_coll *op; /* the all-reduce in progress */
};

/* --- the writer thread ------------------------------------------------------------------------ */

/* "model.safetensors", or with several ranks "model-00001-of-00004.safetensors". */
static void file_name(char *out, int part, int rank, int size)
{
    if (size == 1)
        snprintf(out, FILE_NAME_MAX, "%s.safetensors", part_names[part]);
    else
        snprintf(out, FILE_NAME_MAX, "%s-%05d-of-%05d.safetensors", part_names[part], rank + 1,
                 size);
}

/* Writes the small files, on rank 0. */
static ek_status write_texts(ek_train_saving *s)
{
    EK_TRY(ek_checkpoint_write(s->checkpoint, "config.json", s->config, strlen(s->config)));
    EK_TRY(ek_checkpoint_write(s->checkpoint, "state.json", s->state, strlen(s->state)));
    if (s->run != NULL)
        EK_TRY(ek_checkpoint_write(s->checkpoint, EK_RUN_FILE, s->run, strlen(s->run)));
    if (s->cfg.tokenizer != NULL) {
        size_t bytes;
        const char *text = ek_tokenizer_json(s->cfg.tokenizer, &bytes);

        EK_TRY(ek_checkpoint_write(s->checkpoint, "tokenizer.json", text, bytes));
    }
    for (int i = 0; s->cfg.tokenizer_files != NULL && i < EK_TOKENIZER_FILES; i++) {
        const ek_tokenizer_files *f = s->cfg.tokenizer_files;

        if (f->text[i] != NULL)
            EK_TRY(ek_checkpoint_write(s->checkpoint, ek_tokenizer_file_name(i), f->text[i],
                                       f->bytes[i]));
    }
    return EK_OK;
}

/* Writes this rank's tensor files. */
static ek_status write_own(ek_train_saving *s)
{
    const ek_mesh *mesh = s->mesh;

    EK_REQUIRE(ek_file_kind_of(s->folder.s) == EK_FILE_FOLDER, EK_ENOENT,
               "%s is not there: the folder of --out must be one that all hosts share",
               s->folder.s);
    if (mesh->rank == 0)
        EK_TRY(write_texts(s));
    for (int part = 0; part < PARTS; part++) {
        char name[FILE_NAME_MAX];
        ek_path path;

        s->sums[part].bytes = -1;
        if (s->owns[part].n == 0)
            continue;
        file_name(name, part, mesh->rank, mesh->size);
        EK_TRY(ek_path_set(&path, "%s/%s", s->folder.s, name));
        EK_TRY(ek_owned_tensors_write(&s->owns[part], s->owns[part].real, s->cfg.io, path.s,
                                      EK_WRITE_NEW, &s->stop, &s->sums[part]));
    }
    ek_arena_fini(&s->copy); /* free the copy early */
    return mesh->rank == 0 ? EK_OK : ek_folder_sync(s->cfg.io, s->folder.s);
}

/* Adds all ranks' files of model or optimizer to the manifest; with several ranks writes their
 * index and checks that they cover the whole model. */
static ek_status add_to_manifest(ek_train_saving *s, int part)
{
    int size = s->mesh->size, n = 0;
    char(*names)[FILE_NAME_MAX] = calloc((size_t)size, sizeof(*names));
    const char **list = calloc((size_t)size, sizeof(*list));
    ek_slice_set *files = NULL;
    char *text = NULL;
    ek_path index;
    ek_status st = EK_OK;

    EK_REQUIRE_OUT(names != NULL && list != NULL, EK_ENOMEM, "no memory for %d file names", size);
    for (int r = 0; r < size; r++) {
        const ek_file_sum *sum = &s->all[r * PARTS + part];

        if (sum->bytes < 0)
            continue;
        file_name(names[n], part, r, size);
        EK_TRY_OUT(ek_checkpoint_add(s->checkpoint, names[n], sum));
        list[n] = names[n];
        n++;
    }
    if (size == 1)
        goto out;
    EK_TRY_OUT(ek_safetensors_index_text(s->folder.s, list, n, &text));
    EK_TRY_OUT(ek_path_set(&index, "%s.safetensors.index.json", part_names[part]));
    EK_TRY_OUT(ek_checkpoint_write(s->checkpoint, index.s, text, strlen(text)));
    EK_TRY_OUT(ek_path_set(&index, "%s/%s.safetensors.index.json", s->folder.s, part_names[part]));
    EK_TRY_OUT(ek_slice_set_open(index.s, &files));
    EK_TRY_OUT(ek_hf_check(&s->cfg.model->spec, files, part_kinds[part]));
out:
    ek_slice_set_close(&files);
    free(text);
    free(list);
    free(names);
    return st;
}

static ek_status note_layout(ek_train_saving *s)
{
    const ek_mesh *m = s->mesh;
    const struct {
        const char *key;
        int value;
    } notes[] = {
        {"ranks", m->size}, {"pp", m->pp}, {"dp", m->dp},   {"tp", m->tp},
        {"edp", m->edp},    {"ep", m->ep}, {"etp", m->etp}, {"zero", s->cfg.model->cfg.zero}};

    for (size_t i = 0; i < sizeof(notes) / sizeof(notes[0]) && m->size > 1; i++)
        EK_TRY(ek_checkpoint_layout(s->checkpoint, notes[i].key, notes[i].value));
    return EK_OK;
}

static ek_status commit_checkpoint(ek_train_saving *s)
{
    for (int part = 0; part < PARTS; part++)
        EK_TRY(add_to_manifest(s, part));
    EK_TRY(note_layout(s));
    EK_TRY(ek_checkpoint_commit(&s->checkpoint));
    if (s->cfg.best)
        EK_TRY(ek_checkpoint_set_best(s->cfg.io, s->cfg.out_dir, s->cfg.steps_done));
    return ek_checkpoint_prune(s->cfg.io, s->cfg.out_dir, s->cfg.keep);
}

/* Executes a stage; keeps the message of a failure for the caller's thread. */
static void *run_stage(void *self)
{
    EK_C_LOCALE; /* this may be a new thread */
    ek_train_saving *s = self;
    int committing = atomic_load(&s->stage) == COMMITTING;
    ek_status st = committing ? commit_checkpoint(s) : write_own(s);

    if (st < 0) {
        s->status = st;
        snprintf(s->failure, sizeof(s->failure), "%s", ek_err_message());
    }
    atomic_store(&s->stage, st < 0 ? FAILED : committing ? COMMITTED : WRITTEN);
    return NULL;
}

static void join_writer(ek_train_saving *s)
{
    if (s->started)
        pthread_join(s->thread, NULL);
    s->started = 0;
}

/* Starts a stage; the new thread blocks all signals. */
static void start_stage(ek_train_saving *s, stage what)
{
    sigset_t all, before;

    join_writer(s);
    atomic_store(&s->stage, what);
    if (s->cfg.background || s->mesh->size > 1) { /* others must not wait for a slow disk */
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, &before);
        s->started = ek_thread_start(&s->thread, run_stage, s);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    if (!s->started)
        run_stage(s);
}

/* --- beginning -------------------------------------------------------------------------------- */

size_t ek_train_save_bytes(const ek_model *m)
{
    int64_t own = 0;

    for (int64_t i = 0; i < m->n_params; i++)
        own += m->params[i].w->own;
    return (size_t)own * (1 + 2) * ek_dtype_size(m->k->real); /* master and two moments */
}

size_t ek_train_copy_bytes(const ek_model *m)
{
    int64_t own = 0;

    for (int64_t i = 0; i < m->n_params; i++)
        if (!ek_param_bucket_is_offloaded(&m->buckets->bucket[m->params[i].bucket]))
            own += m->params[i].w->own;
    return (size_t)own * (1 + 2) * ek_dtype_size(m->k->real) + ek_offload_reader_bytes(m);
}

static ek_status make_texts(ek_train_saving *s)
{
    const ek_train_save_config *c = &s->cfg;
    json_t *state = json_pack("{s:I, s:s, s:O}", "steps_done", (json_int_t)c->steps_done,
                              "products", c->model->k->products, "settings", (json_t *)c->settings);
    json_t *evaluation = c->evaluation != NULL ? ek_eval_state_json(c->evaluation) : NULL;

    if (state != NULL && c->evaluation != NULL &&
        json_object_set_new(state, "evaluation", evaluation) != 0) {
        json_decref(state);
        state = NULL;
    }
    s->state = state != NULL ? json_dumps(state, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
    json_decref(state);
    s->run = c->run_file != NULL ? strdup(c->run_file) : NULL;
    EK_REQUIRE(s->state != NULL && (s->run != NULL || c->run_file == NULL), EK_ENOMEM,
               "no memory for state.json and " EK_RUN_FILE);
    return ek_hf_config_text(&c->model->spec, &s->config);
}

/* Preparations that can fail before the folder exists. */
static ek_status prepare_save(ek_train_saving *s)
{
    EK_REQUIRE(s != NULL, EK_ENOMEM, "no memory to save a checkpoint");
    for (int part = 0; part < PARTS; part++) {
        EK_TRY(ek_model_list_owned(s->cfg.model, part_kinds[part], &s->owns[part]));
        s->owns[part].reader = &s->reader;
    }
    s->all = calloc((size_t)s->mesh->size * PARTS, sizeof(*s->all));
    s->first = calloc((size_t)s->mesh->size + 1, sizeof(*s->first));
    EK_REQUIRE(s->all != NULL && s->first != NULL, EK_ENOMEM, "no memory for the sums of %d ranks",
               s->mesh->size);
    if (s->mesh->rank != 0)
        return EK_OK;
    EK_TRY(make_texts(s));
    EK_TRY(ek_checkpoint_begin(s->cfg.io, s->cfg.out_dir, s->cfg.steps_done, &s->checkpoint));
    return ek_path_set(&s->folder, "%s", ek_checkpoint_folder(s->checkpoint));
}

/* Gives each slice in the model's memory a place in the copy, from *at on. */
static void place_slices(ek_owned_tensors *o, unsigned char **at, size_t size)
{
    for (int64_t i = 0; i < o->n; i++) {
        ek_owned_tensor *x = &o->items[i];

        if (x->data == NULL)
            continue;
        x->copy = *at;
        *at += (size_t)x->elements * size;
    }
}

static void copy_slices(ek_owned_tensors *o, size_t size)
{
#pragma omp parallel for schedule(dynamic)
    for (int64_t i = 0; i < o->n; i++) {
        ek_owned_tensor *x = &o->items[i];

        if (x->data == NULL)
            continue;
        memcpy(x->copy, x->data, (size_t)x->elements * size);
        x->data = x->copy;
    }
}

/* Copies the slices to be written, so that the model may change; those on disk will be read into
 * memory behind the copy.  Returns 0 without memory for it. */
static int copy_own(ek_train_saving *s)
{
    size_t size = ek_dtype_size(s->owns[0].real), bytes = ek_train_copy_bytes(s->cfg.model);
    int64_t have = ek_memory_available();
    unsigned char *to;

    if ((have > 0 && bytes > (size_t)have) ||
        ek_arena_init(&s->copy, bytes + EK_DISK_ALIGN, "the copy of a checkpoint") < 0)
        return 0;
    s->reader.memory = s->copy.base;
    to = s->copy.base + ek_offload_reader_bytes(s->cfg.model);
    for (int part = 0; part < PARTS; part++) {
        place_slices(&s->owns[part], &to, size);
        copy_slices(&s->owns[part], size);
    }
    return 1;
}

static void free_saving(ek_train_saving **ps)
{
    ek_train_saving *s = *ps;

    if (s == NULL)
        return;
    ek_checkpoint_abort(&s->checkpoint);
    for (int part = 0; part < PARTS; part++)
        ek_owned_tensors_free(&s->owns[part]);
    free(s->config);
    free(s->state);
    free(s->run);
    ek_arena_fini(&s->copy);
    free(s->all);
    free(s->first);
    if (s->op == NULL) /* else the operation still uses a buffer in s */
        free(s);
    *ps = NULL;
}

static ek_status broadcast_folder(ek_train_saving *s)
{
    ek_coll *op = NULL;

    if (s->mesh->size == 1)
        return EK_OK;
    EK_TRY(ek_comm_broadcast(s->mesh->world, s->folder.s, (int64_t)sizeof(s->folder.s), 0, &op));
    return ek_coll_wait(&op);
}

ek_status ek_train_save_begin(const ek_train_save_config *cfg, ek_train_saving **out)
{
    const ek_mesh *mesh = cfg->model->cfg.mesh;
    ek_train_saving *s = calloc(1, sizeof(*s));
    char copy[32];
    int waits = 0;
    ek_status st;

    if (s != NULL) {
        s->cfg = *cfg;
        s->mesh = mesh;
        s->reader.m = cfg->model;
    }
    EK_TRY_OUT(ek_agree(mesh->world, "save", prepare_save(s)));
    EK_TRY_OUT(broadcast_folder(s));
    if (cfg->background && !copy_own(s)) {
        ek_log("train", EK_LOG_WARN,
               "no memory for a copy of %s: training waits until the checkpoint is written",
               ek_bytes_text(copy, sizeof(copy), (double)ek_train_copy_bytes(cfg->model)));
        waits = 1;
    }
    if (waits)
        s->cfg.background = 0;
    if (!s->cfg.background)
        s->reader.memory = ek_offload_reader_memory(s->cfg.model);
    start_stage(s, WRITING);
    if (waits) /* the caller will change the model */
        join_writer(s);
    *out = s;
    s = NULL;
out:
    free_saving(&s);
    return st;
}

/* --- poll and finish -------------------------------------------------------------------------- */

static ek_status start_round(ek_train_saving *s)
{
    stage at = (stage)atomic_load(&s->stage);
    int rank = s->mesh->rank, size = s->mesh->size;

    s->round = (question){.failed = at == FAILED ? size - rank : 0,
                          .writing = at == WRITING,
                          .uncommitted = rank == 0 && at != COMMITTED};
    if (size == 1)
        return EK_OK;
    return ek_comm_all_reduce(s->mesh->world, &s->round, sizeof(s->round) / sizeof(int64_t),
                              EK_MAX_I64, &s->op);
}

/* After all have written: rank 0 gathers checksums and commits. */
static ek_status start_commit(ek_train_saving *s)
{
    int size = s->mesh->size, rank = s->mesh->rank;
    ek_coll *op = NULL;

    memcpy(&s->all[rank * PARTS], s->sums, sizeof(s->sums));
    for (int r = 0; r <= size; r++)
        s->first[r] = r;
    if (size > 1) {
        EK_TRY(ek_comm_all_gather(s->mesh->world, s->all, s->first, sizeof(s->sums), &op));
        EK_TRY(ek_coll_wait(&op));
    }
    if (rank == 0)
        start_stage(s, COMMITTING);
    else
        atomic_store(&s->stage, COMMITTING);
    return EK_OK;
}

/* All ranks stop; when none writes any more, rank 0 deletes the folder. */
static ek_status fail_save(ek_train_saving **ps, int failed)
{
    ek_train_saving *s = *ps;
    ek_comm *world = s->mesh->world;
    int size = s->mesh->size;
    ek_status st = EK_OK;

    atomic_store(&s->stop, 1);
    join_writer(s);
    if (s->mesh->rank == failed)
        st = EK_FAIL(s->status, "%s", s->failure);
    if (size > 1) {
        ek_status met = ek_comm_barrier(world);

        if (met >= 0)
            st = ek_agree_failed(world, "save", failed, st);
        else
            st = met;
    }
    free_saving(ps);
    return st;
}

/* Tests the all-reduce of the last call, and starts the next. */
static ek_status advance_save(ek_train_saving **ps)
{
    ek_train_saving *s = *ps;
    int several = s->mesh->size > 1;

    if (several && s->op == NULL)
        return start_round(s);
    if (several)
        EK_TRY(ek_coll_wait(&s->op));
    else
        EK_TRY(start_round(s));
    if (s->round.failed > 0)
        return fail_save(ps, s->mesh->size - (int)s->round.failed);
    if (!s->round.uncommitted) {
        join_writer(s);
        free_saving(ps);
        return EK_OK;
    }
    s->written = !s->round.writing;
    if (s->written && atomic_load(&s->stage) == WRITTEN)
        EK_TRY(start_commit(s));
    return several ? start_round(s) : EK_OK;
}

ek_status ek_train_save_poll(ek_train_saving **s)
{
    ek_status st = advance_save(s);

    if (st < 0)
        ek_train_save_abandon(s);
    return st;
}

/* Ranks keep exchanging status while they write: a rank that stops is detected, and a slow writer
 * may take any time. */
static void sleep_briefly(ek_train_saving *s)
{
    struct timespec nap = {0, 2000000};
    stage at = (stage)atomic_load(&s->stage);

    if (s->mesh->size == 1)
        join_writer(s);
    else if (at == WRITING || at == COMMITTING)
        nanosleep(&nap, NULL);
}

ek_status ek_train_save_finish(ek_train_saving **s)
{
    while (*s != NULL) {
        sleep_briefly(*s);
        EK_TRY(ek_train_save_poll(s));
    }
    return EK_OK;
}

ek_status ek_train_save_wait_written(ek_train_saving **s)
{
    while (*s != NULL && !(*s)->written) {
        sleep_briefly(*s);
        EK_TRY(ek_train_save_poll(s));
    }
    return EK_OK;
}

void ek_train_save_abandon(ek_train_saving **ps)
{
    ek_train_saving *s = *ps;

    if (s == NULL)
        return;
    atomic_store(&s->stop, 1);
    join_writer(s);
    free_saving(ps);
}
