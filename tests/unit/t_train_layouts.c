/* Checkpoints fit any layout: what ranks under one layout save, ranks under any other load, every
 * master and moment bit for bit; and a save that fails on one rank fails on all, and commits
 * nothing.  Ranks are threads. */
#include "base/json.h"
#include "base/random.h"
#include "ek_test.h"
#include "faulty_io.h"
#include "kept_numbers.h"
#include "model/hf/io.h"
#include "model/hf/source.h"
#include "tensor/select/select.h"
#include "train/checkpoint/checkpoint.h"

#include <pthread.h>

enum { RANKS_MAX = 8 };

typedef struct {
    int ranks;
    ek_mesh_sizes sizes;
    int zero, chunks, columns;
} layout;

static const layout layouts[] = {
    {1, {1, 1, 1, 1}, 0, 0, 0}, {2, {1, 1, 1, 1}, 0, 0, 0}, {2, {1, 1, 1, 1}, 1, 0, 0},
    {3, {1, 1, 1, 1}, 2, 0, 0}, {4, {1, 1, 1, 1}, 3, 0, 0}, {2, {1, 2, 1, 1}, 0, 0, 0},
    {2, {1, 1, 2, 1}, 0, 0, 0}, {2, {1, 1, 1, 2}, 1, 0, 0}, {2, {2, 1, 1, 1}, 0, 0, 0},
    {4, {2, 1, 2, 1}, 1, 0, 0}, {4, {1, 2, 2, 1}, 3, 0, 0}, {4, {1, 4, 1, 4}, 0, 0, 0},
    {6, {1, 2, 3, 1}, 2, 0, 0}, {6, {3, 1, 1, 2}, 3, 0, 0}, {4, {2, 2, 1, 2}, 1, 2, 0},
    {8, {2, 2, 2, 2}, 2, 0, 0}, {7, {1, 1, 7, 1}, 1, 0, 0}, {3, {3, 1, 1, 1}, 0, 0, 0},
    {5, {1, 1, 1, 1}, 0, 0, 1}, {8, {2, 2, 1, 1}, 2, 0, 1},
};
enum { LAYOUTS = sizeof(layouts) / sizeof(layouts[0]) };

/* What the ranks of a job share. */
typedef struct {
    layout l;
    const ek_model_spec *spec;
    const ek_kernels *k;
    int64_t step;
    double salt;     /* of the numbers in the model */
    int background;  /* how it is saved */
    int faulty_rank; /* whose disk breaks; -1: none's */
} job;

typedef struct peer peer;

/* One rank of it. */
struct peer {
    const job *j;
    ek_comm *world;
    ek_mesh *mesh;
    ek_model *m;
    int rank, failed;
    ek_status st; /* of a save, and the text of its failure */
    char text[600];
    pthread_t thread;
    void (*run)(peer *p);
};

static ek_path root;
static json_t *settings;
static ek_io hasty; /* the system's, but nothing is really synced: hundreds of saves take no time */

static int no_sync(int fd)
{
    (void)fd;
    return 0;
}

/* --- models ----------------------------------------------------------------------------------- */

static ek_model_spec spec_of(int which)
{
    ek_model_spec s;

    ek_model_default(&s);
    s.vocab = 37;
    s.hidden = 12;
    s.layers = 3;
    s.heads = 6;
    s.kv_heads = 3;
    s.head_dim = 4;
    s.experts = 5;
    s.top_k = 2;
    s.ff = 10;
    s.max_positions = 64;
    if (which == 0) {
        s.arch = EK_ARCH_QWEN2_MOE;
        s.shared_ff = 7;
        s.shared_gated = 1;
        s.qkv_bias = 1;
        s.dense[0] = 1;
        s.dense_ff = 9;
        return s;
    }
    s.gate.kind = EK_GATE_SIGMOID_BIAS;
    s.gate.bias_rate = 0.01;
    s.tie_embeddings = 1;
    return s;
}

/* A number that a float holds exactly, another for every element, kind of array and salt. */
static float number(uint64_t stream, int64_t i, int kind, double salt)
{
    uint64_t x = (stream ^ (uint64_t)i * 2654435761u) & 0x7ffff;

    return (float)((double)x + 0.25 * (double)(kind + 1) + salt * 524288);
}

typedef struct {
    double salt;
    int fill, kinds;
    int64_t n, wrong;
} visitor;

static void visit_number(void *context, const ek_hf_tensor *t, int64_t tensor, int64_t index,
                         void *const *at)
{
    visitor *v = context;

    (void)tensor;
    for (int kind = 0; kind < v->kinds; kind++) {
        float x = number(ek_random_stream(t->name), index, kind, v->salt), *kept = at[kind];

        if (v->fill)
            *kept = x;
        else
            v->wrong += *kept != x;
        v->n++;
    }
}

/* Fills all that this rank keeps, or counts what is not as if it had been filled so; *n: numbers
 * looked at. */
static int64_t visit(ek_model *m, double salt, int fill, int kinds, int64_t *n)
{
    visitor v = {.salt = salt, .fill = fill, .kinds = kinds};

    kept_each(m, visit_number, &v);
    *n += v.n;
    return v.wrong;
}

static void fill(ek_model *m, double salt)
{
    int64_t n = 0;

    visit(m, salt, 1, KEPT_KINDS, &n);
}

/* --- ranks ------------------------------------------------------------------------------------ */

#define EXPECT(p, cond)                                                                            \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            (p)->failed++;                                                                         \
            fprintf(stderr, "%s:%d: rank %d of %d: failed: %s\n", __FILE__, __LINE__, (p)->rank,   \
                    (p)->j->l.ranks, #cond);                                                       \
        }                                                                                          \
    } while (0)
/* For calls that must succeed. */
#define MUST(p, call)                                                                              \
    do {                                                                                           \
        if ((call) < 0) {                                                                          \
            (p)->failed++;                                                                         \
            fprintf(stderr, "%s:%d: rank %d of %d: %s\n", __FILE__, __LINE__, (p)->rank,           \
                    (p)->j->l.ranks, ek_err_text());                                               \
        }                                                                                          \
    } while (0)

static void *be_rank(void *arg)
{
    peer *p = arg;
    const layout *l = &p->j->l;
    ek_model_config cfg = {.trained = 1,
                           .zero = l->zero,
                           .model_chunks = l->chunks,
                           .embed_columns = l->columns && !p->j->spec->tie_embeddings};

    MUST(p, ek_mesh_open(p->world, &l->sizes, &p->mesh));
    cfg.mesh = p->mesh;
    MUST(p, ek_model_create(p->j->spec, p->j->k, &cfg, &p->m));
    if (p->m != NULL)
        p->run(p);
    ek_model_destroy(&p->m);
    ek_mesh_close(&p->mesh);
    ek_comm_close(&p->world);
    return NULL;
}

/* Runs `run` on all ranks; what they have come to is left in peers. */
static void over(const job *j, void (*run)(peer *p), peer *peers)
{
    ek_comm *worlds[RANKS_MAX];

    if (ek_comm_open_threads(j->l.ranks, worlds) < 0) {
        EK_T_FAIL("%s", ek_err_text());
        return;
    }
    for (int r = 0; r < j->l.ranks; r++) {
        peers[r] = (peer){.j = j, .world = worlds[r], .rank = r, .run = run};
        CHECK_INT(pthread_create(&peers[r].thread, NULL, be_rank, &peers[r]), 0);
    }
    for (int r = 0; r < j->l.ranks; r++) {
        pthread_join(peers[r].thread, NULL);
        if (peers[r].failed > 0)
            EK_T_FAIL("rank %d of %d (pp %d tp %d ep %d etp %d zero %d) failed", r, j->l.ranks,
                      j->l.sizes.pp, j->l.sizes.tp, j->l.sizes.ep, j->l.sizes.etp, j->l.zero);
    }
}

static ek_train_save_config save_config(const peer *p)
{
    const job *j = p->j;

    return (ek_train_save_config){.model = p->m,
                                  .settings = settings,
                                  .steps_done = j->step,
                                  .keep = 2,
                                  .out_dir = root.s,
                                  .background = j->background,
                                  .io = p->rank == j->faulty_rank ? &faulty_io : &hasty};
}

/* Saves, and lets the model change meanwhile if that is allowed. */
static void save(peer *p)
{
    ek_train_save_config cfg = save_config(p);
    ek_train_saving *s = NULL;

    fill(p->m, p->j->salt);
    p->st = ek_train_save_begin(&cfg, &s);
    for (int step = 0; step < 3 && s != NULL && p->st >= 0; step++) {
        if (cfg.background)
            fill(p->m, p->j->salt + 1 + step);
        p->st = ek_train_save_poll(&s);
    }
    if (p->st >= 0)
        p->st = ek_train_save_finish(&s);
    if (p->st < 0)
        snprintf(p->text, sizeof(p->text), "%s", ek_err_message());
    EXPECT(p, s == NULL);
}

static void save_well(peer *p)
{
    save(p);
    EXPECT(p, p->st == EK_OK);
    if (p->st < 0)
        fprintf(stderr, "%s\n", p->text);
}

static void load(peer *p)
{
    ek_checkpoint_found found;
    int64_t n = 0, wrong;

    MUST(p, ek_train_latest(p->mesh, root.s, EK_CHECK_SUMS, 1, &found));
    EXPECT(p, found.step == p->j->step);
    MUST(p, ek_train_load(p->m, found.path.s, 0));
    wrong = visit(p->m, p->j->salt, 0, KEPT_KINDS, &n);
    EXPECT(p, wrong == 0 && n > 0);
}

/* Whether experts are laid out over ranks. */
static int experts_are_spread(void)
{
    ek_mesh two = ek_mesh_one;
    ek_model_spec spec = spec_of(1);
    ek_moe_weights w;
    ek_arena a;

    two.ep = 2;
    ek_arena_measure(&a);
    ek_moe_reserve_weights(&w, &a, &spec, &two, 0, 0, NULL);
    return w.placement.ranks == 2;
}

/* --- cases ------------------------------------------------------------------------------------ */

static ek_kernels *k;
static ek_model_spec specs[2];

static void begin(void)
{
    CHECK(ek_path_set(&root, "/tmp/ek_t_layouts_XXXXXX") == EK_OK);
    CHECK(mkdtemp(root.s) != NULL);
    CHECK(ek_kernels_create(EK_MODE_FP32, ek_cpu_isa(), 1, &k) == EK_OK);
    specs[0] = spec_of(0);
    specs[1] = spec_of(1);
    hasty = ek_io_system;
    hasty.sync = no_sync;
    settings = json_pack("{s:s}", "dtype", "fp32");
    faulty_arm(FAULTY_ONCE, 0, 0);
}

static void end(void)
{
    CHECK(ek_folder_remove(NULL, root.s) == EK_OK);
    json_decref(settings);
    ek_kernels_destroy(&k);
}

static job job_of(int l, int which, int64_t step)
{
    return (job){.l = layouts[l],
                 .spec = &specs[which],
                 .k = k,
                 .step = step,
                 .salt = (double)(step % 4),
                 .background = step % 2 == 1,
                 .faulty_rank = -1};
}

static int usable(int l)
{
    return layouts[l].sizes.ep == 1 || experts_are_spread();
}

/* Each layout's checkpoint in six others, which differ from one to the next. */
static void any_into_any(void)
{
    peer peers[RANKS_MAX];

    begin();
    for (int which = 0; which < 2; which++)
        for (int a = 0; a < LAYOUTS; a++) {
            job j = job_of(a, which, which * LAYOUTS + a);

            if (!usable(a))
                continue;
            over(&j, save_well, peers);
            for (int i = 0; i < 6; i++) {
                job other = j;

                int b = (a + i * i * 2 + which) % LAYOUTS;

                other.l = layouts[b];
                if (usable(b))
                    over(&other, load, peers);
            }
            if (ek_t.failed > 10)
                break;
        }
    end();
}

static int same_file(const char *a, const char *b, const char *name)
{
    ek_file_map x = {0}, y = {0};
    ek_path p;
    int same;

    CHECK(ek_path_set(&p, "%s/%s", a, name) == EK_OK && ek_file_map_open(p.s, &x) == EK_OK);
    CHECK(ek_path_set(&p, "%s/%s", b, name) == EK_OK && ek_file_map_open(p.s, &y) == EK_OK);
    same = x.bytes == y.bytes && memcmp(x.data, y.data, x.bytes) == 0;
    ek_file_map_close(&x);
    ek_file_map_close(&y);
    return same;
}

static void load_and_save(peer *p)
{
    ek_train_save_config cfg = save_config(p);
    ek_train_saving *s = NULL;
    ek_checkpoint_found found;
    ek_path out;

    MUST(p, ek_train_latest(p->mesh, root.s, EK_CHECK_SUMS, 1, &found));
    MUST(p, ek_train_load(p->m, found.path.s, 0));
    MUST(p, ek_path_set(&out, "%s/again", root.s));
    cfg.out_dir = out.s;
    MUST(p, ek_train_save_begin(&cfg, &s));
    MUST(p, ek_train_save_finish(&s));
}

/* What one rank makes of another layout's checkpoint is, byte for byte, what it makes of its own;
 * and whoever wants weights alone reads them too. */
static void one_rank_reads_all(void)
{
    peer peers[RANKS_MAX];
    ek_path first, again, copy;
    ek_slice_set *files = NULL;
    ek_model *m = NULL;
    int64_t n = 0;

    begin();
    for (int a = 1; a < LAYOUTS; a += 4) {
        job one = job_of(0, 0, 2), many = one;

        if (!usable(a))
            continue;
        many.l = layouts[a];
        over(&many, save_well, peers);
        over(&one, load_and_save, peers);
        CHECK(ek_path_set(&again, "%s/again/checkpoint/step-00000002", root.s) == EK_OK);
        CHECK(ek_path_set(&first, "%s/checkpoint/step-00000002", root.s) == EK_OK);

        CHECK(ek_model_create(&specs[0], k, &(ek_model_config){.trained = 1}, &m) == EK_OK);
        CHECK(ek_model_load_path(m, first.s, NULL) == EK_OK);
        CHECK_INT(visit(m, one.salt, 0, 1, &n), 0);
        ek_model_destroy(&m);
        CHECK(ek_slice_set_open_in(first.s, "model", &files) == EK_OK);
        CHECK(ek_path_set(&copy, "%s/model.safetensors", root.s) == EK_OK);
        CHECK(ek_hf_copy(&specs[0], files, EK_F32, NULL, copy.s, EK_WRITE_REPLACE) == EK_OK);
        ek_slice_set_close(&files);
        CHECK(same_file(root.s, again.s, "model.safetensors"));

        over(&one, save_well, peers);
        CHECK(same_file(first.s, again.s, "model.safetensors"));
        CHECK(same_file(first.s, again.s, "optimizer.safetensors"));
        CHECK(same_file(first.s, again.s, "config.json"));
    }
    end();
}

/* Files, index and manifest of several ranks; and ranks that have nothing to write. */
static void what_is_written(void)
{
    job j;
    peer peers[RANKS_MAX];
    json_t *manifest = NULL, *index = NULL, *layout_of;
    ek_names names = {0};
    ek_path folder, path;

    begin();
    j = job_of(14, 0, 1); /* 4 ranks, pp 2, tp 2, etp 2, zero 1 */
    over(&j, save_well, peers);
    CHECK(ek_path_set(&folder, "%s/checkpoint/step-00000001", root.s) == EK_OK);
    CHECK(ek_folder_entries(folder.s, &names) == EK_OK);
    CHECK_INT(names.n, 3 + 2 * (4 + 1)); /* manifest, config, state; shards and indexes */
    ek_names_free(&names);
    CHECK(ek_path_set(&path, "%s/manifest.json", folder.s) == EK_OK);
    CHECK(ek_json_read(path.s, &manifest) == EK_OK);
    layout_of = json_object_get(manifest, "layout");
    CHECK_INT(json_integer_value(json_object_get(layout_of, "ranks")), 4);
    CHECK_INT(json_integer_value(json_object_get(layout_of, "pp")), 2);
    CHECK_INT(json_integer_value(json_object_get(layout_of, "etp")), 2);
    CHECK_INT(json_integer_value(json_object_get(layout_of, "zero")), 1);
    CHECK_INT(json_object_size(json_object_get(manifest, "files")), 2 + 2 * (4 + 1));
    CHECK(ek_path_set(&path, "%s/model.safetensors.index.json", folder.s) == EK_OK);
    CHECK(ek_json_read(path.s, &index) == EK_OK);
    CHECK(json_object_size(json_object_get(index, "weight_map")) > 0);
    CHECK(json_integer_value(json_object_get(json_object_get(index, "metadata"), "total_size")) >
          0);
    json_decref(manifest);
    json_decref(index);
    end();
}

/* Rank r saves every tensor whose weight index leaves remainder r; the last rank saves nothing. */
static void save_whole_tensors(peer *p)
{
    int ranks = p->j->l.ranks;

    for (int64_t i = 0; i < p->m->n_params; i++) {
        ek_weight *w = p->m->params[i].w;

        w->own_first = 0;
        w->own = i % (ranks - 1) == p->rank ? ek_weight_elements(w) : 0;
    }
    save_well(p);
}

static void whole_tensors_are_plain(void)
{
    job j;
    peer peers[RANKS_MAX];
    ek_safetensors *s = NULL;
    ek_path folder, path;

    begin();
    j = job_of(3, 0, 1);
    j.l.zero = 0;
    over(&j, save_whole_tensors, peers);
    CHECK(ek_path_set(&folder, "%s/checkpoint/step-00000001", root.s) == EK_OK);
    CHECK(ek_safetensors_open(folder.s, &s) == EK_OK);
    CHECK_INT(ek_safetensors_count(s), ek_hf_count(&specs[0]));
    CHECK(ek_safetensors_find(s, "lm_head.weight") != NULL);
    ek_safetensors_close(&s);
    CHECK(ek_path_set(&path, "%s/model-00003-of-00003.safetensors", folder.s) == EK_OK);
    CHECK(ek_file_kind_of(path.s) == EK_FILE_NONE);
    over(&j, load, peers);
    end();
}

static void save_too_much(peer *p)
{
    ek_weight *w = &p->m->final_norm;

    w->own_first = 0; /* whole, on two ranks */
    w->own = p->rank < 2 ? w->out : 0;
    save(p);
}

static void save_too_little(peer *p)
{
    p->m->final_norm.own = 0;
    save(p);
}

static void save_not_all(peer *p)
{
    ek_weight *w = &p->m->embed;

    if (w->own_first == 0 && w->own > 0)
        w->own -= w->in;
    save(p);
}

/* A save whose parts are not the model is refused before it is committed. */
static void parts_must_be_the_model(void)
{
    static const struct {
        void (*run)(peer *p);
        const char *text;
    } wrong[] = {{save_too_much, "model.norm.weight"},
                 {save_too_little, "model.norm.weight is missing"},
                 {save_not_all, "of tensor model.embed_tokens.weight, row "}};
    job j;
    peer peers[RANKS_MAX];

    begin();
    j = job_of(3, 0, 1);
    j.l.zero = 0;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        ek_checkpoint_found found;

        over(&j, wrong[i].run, peers);
        CHECK_INT(peers[0].st, EK_EFORMAT);
        CHECK_INT(peers[2].st, EK_EPEER);
        if (strstr(peers[2].text, wrong[i].text) == NULL)
            EK_T_FAIL("%s", peers[2].text);
        CHECK_INT(ek_checkpoint_latest(root.s, EK_CHECK_SIZES, &found), EK_ENOENT);
        CHECK(ek_file_kind_of(root.s) == EK_FILE_FOLDER);
    }
    end();
}

/* Names left in the folder that are no checkpoint. */
static int leftovers(void)
{
    static const char *const folders[] = {"", "/checkpoint"};
    int n = 0;

    for (int i = 0; i < 2; i++) {
        ek_names names = {0};
        ek_path p;

        CHECK(ek_path_set(&p, "%s%s", root.s, folders[i]) == EK_OK);
        if (ek_folder_entries(p.s, &names) < 0)
            continue;
        for (int64_t k2 = 0; k2 < names.n; k2++)
            n += strstr(names.names[k2], ".tmp") != NULL;
        ek_names_free(&names);
    }
    return n;
}

/* That rank's disk is full at its n-th call: all ranks fail, one with the reason and the others
 * naming it, and the checkpoint before stands.  0: the save ended before that call. */
static int break_at(const job *before, int background, int rank, int64_t n)
{
    job j = *before, one;
    peer peers[RANKS_MAX];
    ek_checkpoint_found found;
    int committed, met, failed = 0;

    j.step = 3;
    j.salt = 3;
    j.background = background;
    j.faulty_rank = rank;
    faulty_arm(FAULTY_ONCE, n, ENOSPC);
    over(&j, save, peers);
    met = faulty.calls >= n;
    CHECK(ek_checkpoint_latest(root.s, EK_CHECK_SUMS, &found) == EK_OK);
    committed = found.step == 3;
    for (int r = 0; r < j.l.ranks; r++) {
        char who[40];

        failed += peers[r].st < 0;
        if (peers[r].st >= 0)
            continue;
        CHECK_INT(peers[r].st, r == rank ? EK_ENOSPC : EK_EPEER);
        CHECK(strstr(peers[r].text, "No space left") != NULL);
        snprintf(who, sizeof(who), "rank %d (", rank);
        CHECK(r == rank || (strncmp(peers[r].text, who, strlen(who)) == 0 &&
                            strstr(peers[r].text, "could not save: ") != NULL));
    }
    CHECK(failed == 0 || failed == j.l.ranks);
    CHECK(committed || failed > 0);
    CHECK(met || failed == 0);
    /* only rank 0 commits, and only what it does behind that may fail with the new one there */
    CHECK(failed == 0 || rank == 0 || !committed);
    CHECK_INT(leftovers(), 0);
    one = committed ? j : *before;
    one.l = layouts[0];
    over(&one, load, peers);
    if (committed)
        CHECK(ek_folder_remove(NULL, found.path.s) == EK_OK);
    return met;
}

static void a_full_disk_on_one_rank(void)
{
    for (int rank = 0; rank < 3; rank++) {
        peer peers[RANKS_MAX];
        int64_t n = 1;
        job before;

        begin();
        before = job_of(3, 0, 2);
        before.l.zero = 1;
        over(&before, save_well, peers);
        while (break_at(&before, (int)n % 2, rank, n) && n < 300)
            n += n < 24 ? 1 : 6;
        CHECK(n > 50 && n < 250);
        end();
    }
}

static void abandon(peer *p)
{
    ek_train_save_config cfg = save_config(p);
    ek_train_saving *s = NULL;

    fill(p->m, 0);
    MUST(p, ek_train_save_begin(&cfg, &s));
    ek_train_save_abandon(&s);
    EXPECT(p, s == NULL);
    ek_train_save_abandon(&s);
}

static void an_abandoned_save(void)
{
    job j;
    peer peers[RANKS_MAX];
    ek_checkpoint_found found;

    begin();
    j = job_of(2, 0, 1);
    over(&j, abandon, peers);
    CHECK_INT(ek_checkpoint_latest(root.s, EK_CHECK_SIZES, &found), EK_ENOENT);
    over(&j, save_well, peers);
    over(&j, load, peers);
    CHECK_INT(leftovers(), 0);
    end();
}

static void load_fails(peer *p)
{
    ek_checkpoint_found found;
    ek_status st = ek_train_latest(p->mesh, "/tmp/ek-no-such-folder", EK_CHECK_SUMS, 1, &found);
    ek_status expected = p->rank == 0 ? EK_ENOENT : EK_EPEER;

    EXPECT(p, st == expected);
    EXPECT(p, ek_train_load(p->m, "/tmp/ek-no-such-folder", 0) == expected);
}

static void nothing_to_load(void)
{
    job j;
    peer peers[RANKS_MAX];

    begin();
    j = job_of(4, 0, 1);
    over(&j, load_fails, peers);
    end();
}

static const ek_case cases[] = {
    EK_CASE(any_into_any),
    EK_CASE(one_rank_reads_all),
    EK_CASE(what_is_written),
    EK_CASE(whole_tensors_are_plain),
    EK_CASE(parts_must_be_the_model),
    EK_CASE(a_full_disk_on_one_rank),
    EK_CASE(an_abandoned_save),
    EK_CASE(nothing_to_load),
};

EK_TEST_MAIN(cases)
