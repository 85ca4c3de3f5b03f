/* Experts on disk that no token chooses: their updates are put off, nothing of them is read or
 * written, and once they are needed the bits are those of training in memory. */
#include "offload_runs.h"

enum { STEPS = 14, EXPERTS = 12, RESTING = 6, LAYERS = 4 };

/* Lets tokens choose the first experts alone, or any. */
static void set_choice(run *r, int first_alone)
{
    for (int64_t l = 0; l < r->m->spec.layers; l++)
        for (int64_t e = 0; e < r->m->spec.experts; e++) {
            const ek_weight *bias = &r->m->layers[l].experts.bias;
            double to = first_alone && e >= r->m->spec.experts - RESTING ? -1000 : 0;

            if (r->k->real == EK_F64)
                ((double *)bias->p)[e] = to;
            else
                ((float *)bias->p)[e] = (float)to;
        }
}

static ek_offload_stats stats_of(const run *r)
{
    ek_offload_stats s;

    ek_offload_get_stats(r->m, &s);
    return s;
}

/* Trains until `wake` with half of the experts at rest, then with all; `saves`: all updates are
 * applied before that step. */
static ek_status train_resting(const way *w, run *r, int wake, int saves)
{
    for (int step = 0; step < w->steps; step++) {
        if (step == 0 || step == wake)
            set_choice(r, step != wake);
        if (step == saves)
            EK_TRY(ek_trainer_apply_updates(r->tr));
        EK_TRY(take_step(w, r, step));
    }
    return ek_trainer_apply_updates(r->tr);
}

/* Trains in memory and on disk; returns what the disk was used for. */
static ek_offload_stats check_resting(way w, ek_offload_config o, int wake, int saves)
{
    ek_offload_stats stats;
    char text[200];
    run memory, disk;

    snprintf(text, sizeof(text),
             "shape %d, mode %d, recompute %d, %d entries, %d forms, gradients on disk %d, awake "
             "from step %d, saved before step %d",
             w.shape, (int)w.mode, (int)w.recompute, (int)o.entries, (int)o.forms, o.gradients,
             wake, saves);
    w.experts = EXPERTS;
    w.isa = ek_cpu_isa();
    CHECK(open_run(&w, &memory) == EK_OK);
    CHECK(train_resting(&w, &memory, wake, saves) == EK_OK);
    w.offload = &o;
    CHECK(open_run(&w, &disk) == EK_OK);
    if (train_resting(&w, &disk, wake, saves) < 0)
        EK_T_FAIL("%s: %s", text, ek_err_text());
    else
        compare_runs(text, &w, &memory, &disk);
    stats = stats_of(&disk);
    close_run(&memory);
    close_run(&disk);
    return stats;
}

static ek_offload_config config_at(int i)
{
    return (ek_offload_config){.dir = "/var/tmp",
                               .entries = 4 + i % 5,
                               .forms = i % 3 * 9,
                               .gradients = i / 2 % 2,
                               .backend = EK_DISK_POOL};
}

/* In all shapes: several micro-batches, and so few tokens that others rest now and then. */
static void bits_are_those_of_training_in_memory(void)
{
    const ek_mode modes[] = {EK_MODE_BF16, EK_MODE_FP32, EK_MODE_FP64};

    for (int i = 0; i < 2 * EQUAL_SHAPES; i += 1 + EK_T_SLOW) {
        way w = {.shape = i % EQUAL_SHAPES,
                 .steps = STEPS,
                 .mode = modes[i % 3],
                 .recompute = i % 4 == 1 ? EK_RECOMPUTE_FULL : EK_RECOMPUTE_OFF,
                 .evaluates = i / 3 % 2,
                 .bucket_bytes = i % 7 == 6 ? 3000 : 1};
        ek_offload_stats s = check_resting(w, config_at(i), 5 + i % 8, i % 3 ? 4 : -1);

        CHECK(s.deferred > 0);
    }
}

/* More updates are missed than are put off. */
static void what_is_put_off_is_bounded(void)
{
    for (int i = EK_T_SLOW; i < 2; i++) {
        way w = {.shape = 2,
                 .steps = 2 * EK_OFFLOAD_DEFERRED_MAX + 20,
                 .mode = i ? EK_MODE_FP32 : EK_MODE_BF16,
                 .bucket_bytes = 1};
        ek_offload_config o = config_at(2 * i);

        check_resting(w, o, 2 * EK_OFFLOAD_DEFERRED_MAX + 10, -1);
    }
}

/* Once they are known to rest, a step counts the others alone. */
static void what_rests_is_not_read_or_written(void)
{
    for (int gradients = 0; gradients < 2; gradients++) {
        ek_offload_config o = {
            .dir = "/var/tmp", .entries = 4, .gradients = gradients, .backend = EK_DISK_POOL};
        way w = way_of_small_buckets(STEPS, &o);
        ek_offload_stats a, b;
        int64_t part, active, written;
        run r;

        w.experts = EXPERTS;
        CHECK(open_run(&w, &r) == EK_OK);
        set_choice(&r, 1);
        part = ek_offload_disk_bytes(r.m) / ek_offload_buckets(r.m) / (3 + gradients);
        for (int step = 0; step < 8; step++)
            CHECK(take_step(&w, &r, step) == EK_OK);
        a = stats_of(&r);
        CHECK(take_step(&w, &r, 8) == EK_OK);
        b = stats_of(&r);
        CHECK(b.deferred - a.deferred >= LAYERS * RESTING);
        active = LAYERS * EXPERTS - (b.deferred - a.deferred);
        written = b.disk.written.bytes - a.disk.written.bytes;
        CHECK(active > LAYERS * RESTING / 2);
        CHECK_INT(b.updates - a.updates, active);
        CHECK_INT(written, (3 + gradients) * part * active);
        CHECK(b.disk.read.bytes - a.disk.read.bytes <= (4 + gradients) * part * active);
        close_run(&r);
    }
}

/* Trains with half of the experts at rest, saves the state before step `at`, while that step runs
 * if experts are on disk, and trains on until the end, with all experts. */
static ek_status train_and_save(const way *w, const char *folder, int at, int wake, run *r)
{
    json_t *settings = json_object();
    ek_train_save_config c = {.settings = settings,
                              .steps_done = at,
                              .keep = 1,
                              .out_dir = folder,
                              .background = w->offload != NULL,
                              .io = &ek_io_system};
    ek_train_saving *saving = NULL;
    ek_status st;

    EK_TRY_OUT(open_run(w, r));
    c.model = r->m;
    set_choice(r, 1);
    EK_TRY_OUT(train(w, r, 0, at));
    EK_TRY_OUT(ek_train_save_begin(&c, &saving));
    if (!c.background)
        EK_TRY_OUT(ek_train_save_finish(&saving));
    EK_TRY_OUT(take_step(w, r, at));
    EK_TRY_OUT(ek_train_save_wait_written(&saving));
    EK_TRY_OUT(train(w, r, at + 1, wake));
    set_choice(r, 0);
    EK_TRY_OUT(train(w, r, wake, w->steps));
    EK_TRY_OUT(ek_train_save_finish(&saving));
out:
    ek_train_save_abandon(&saving);
    json_decref(settings);
    return st;
}

static ek_status resume(const way *w, const char *folder, int at, int wake, run *r)
{
    ek_path path;

    EK_TRY(ek_path_set(&path, "%s/checkpoint/step-%08d", folder, at));
    EK_TRY(open_run(w, r));
    EK_TRY(ek_train_load(r->m, path.s, NULL));
    EK_TRY(ek_model_pack(r->m));
    ek_trainer_resume(r->tr, at);
    EK_TRY(train(w, r, at, wake));
    set_choice(r, 0);
    return train(w, r, wake, w->steps);
}

/* A checkpoint has what the updates that were put off make, and training goes on from there. */
static void checkpoints_miss_no_update(void)
{
    enum { AT = 6, WAKE = 11 };

    for (int gradients = 0; gradients < 2; gradients++) {
        char folders[2][64] = {"/tmp/ek_rests_XXXXXX", "/tmp/ek_rests_XXXXXX"};
        ek_offload_config o = {.dir = "/var/tmp",
                               .entries = 4,
                               .forms = 9,
                               .gradients = gradients,
                               .backend = EK_DISK_POOL};
        way w = {.shape = 1,
                 .steps = STEPS,
                 .experts = EXPERTS,
                 .mode = EK_MODE_BF16,
                 .isa = ek_cpu_isa(),
                 .bucket_bytes = 1};
        run r[3];

        for (int i = 0; i < 3; i++) {
            w.offload = i > 0 ? &o : NULL;
            CHECK(i == 2 || mkdtemp(folders[i]) != NULL);
            if ((i == 2 ? resume(&w, folders[1], AT, WAKE, &r[i])
                        : train_and_save(&w, folders[i], AT, WAKE, &r[i])) < 0)
                EK_T_FAIL("run %d: %s", i, ek_err_text());
            CHECK(i == 0 || stats_of(&r[i]).deferred > 0);
        }
        for (int step = 0; step < AT; step++) {
            r[2].loss[step] = r[1].loss[step];
            r[2].norm[step] = r[1].norm[step];
        }
        compare_files(folders, AT, "model.safetensors");
        compare_files(folders, AT, "optimizer.safetensors");
        compare_runs("saved", &w, &r[0], &r[1]);
        compare_runs("resumed", &w, &r[0], &r[2]);
        for (int i = 0; i < 3; i++) {
            close_run(&r[i]);
            if (i < 2)
                ek_folder_discard(NULL, folders[i]);
        }
    }
}

static const ek_case cases[] = {
    EK_CASE(bits_are_those_of_training_in_memory),
    EK_CASE(what_is_put_off_is_bounded),
    EK_CASE(what_rests_is_not_read_or_written),
    EK_CASE(checkpoints_miss_no_update),
};

EK_TEST_MAIN(cases)
