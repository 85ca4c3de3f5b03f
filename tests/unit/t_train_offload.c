/* Experts with masters and moments on disk train as in memory, bit for bit: losses, norms, masters
 * and moments, for any number of entries and forms, back end, recomputation and micro-batches, with
 * evaluations between steps; what was read and written; checkpoints; failures of the disk. */
#include "faulty_disk_io.h"
#include "offload_runs.h"

#include <math.h>
#include <time.h>

enum { STEPS = 5 };

static const ek_disk_backend backends[] = {EK_DISK_URING, EK_DISK_POOL};

/* Trains in memory and with so many entries and forms. */
static void check_way(way w, int32_t entries, int32_t forms, ek_disk_backend backend, int gradients)
{
    ek_offload_config o = config_of(entries, forms, backend, gradients);
    char text[160];
    run memory, disk;
    ek_status st;

    snprintf(
        text, sizeof(text),
        "model %d, shape %d, mode %d, isa %d, recompute %d, %d entries, %d forms, gradients on "
        "disk %d",
        w.model, w.shape, (int)w.mode, (int)w.isa, (int)w.recompute, (int)entries, (int)forms,
        gradients);
    w.offload = NULL;
    w.steps = STEPS;
    CHECK(open_run(&w, &memory) == EK_OK);
    CHECK(train(&w, &memory, 0, STEPS) == EK_OK);
    w.offload = &o;
    st = open_run(&w, &disk);
    if (st == EK_OK)
        st = train(&w, &disk, 0, STEPS);
    if (st == EK_OK)
        compare_runs(text, &w, &memory, &disk);
    else if (st != EK_EUNSUPPORTED || backend != EK_DISK_URING)
        EK_T_FAIL("%s: %s", text, ek_err_text());
    close_run(&memory);
    close_run(&disk);
}

static void every_model(void)
{
    const ek_mode modes[] = {EK_MODE_FP64, EK_MODE_BF16, EK_MODE_FP32};

    for (int model = 0; model < EQUAL_MODELS; model++)
        check_way((way){.model = model,
                        .shape = model % EQUAL_SHAPES,
                        .mode = modes[model % 3],
                        .isa = model / 3 % 2 ? EK_ISA_REF : ek_cpu_isa(),
                        .recompute = model % 4 == 3 ? EK_RECOMPUTE_FULL : EK_RECOMPUTE_OFF,
                        .evaluates = model % 2,
                        .bucket_bytes = 1},
                  3 + model % 4, model % 3 * 6, backends[model % 2], model / 2 % 2);
}

static void any_entries_forms_and_buckets(void)
{
    const int32_t entries[] = {3, 4, 7, 19, 20, 40}, forms[] = {0, 8, 11, 16, 25, 40};

    for (int i = 0; i < 6; i++)
        for (int bytes = i % 3 * EK_T_SLOW; bytes < 6; bytes += 1 + 2 * EK_T_SLOW)
            check_way((way){.shape = 3,
                            .mode = EK_MODE_BF16,
                            .isa = ek_cpu_isa(),
                            .recompute = i % 2 ? EK_RECOMPUTE_FULL : EK_RECOMPUTE_ATTENTION,
                            .bucket_bytes = bytes % 3 == 0   ? 1
                                            : bytes % 3 == 1 ? 3000
                                                             : 0},
                      entries[i], forms[(i + bytes) % 6], backends[i % 2], bytes / 3);
}

/* --- what was read and written ---------------------------------------------------------------- */

/* Without a hit a step reads 12 bytes a parameter for the update and 4 for backward, unless it has
 * a form for each bucket, and writes 12; gradients on disk are 4 more to read and to write.  With
 * an entry for each bucket it reads nothing. */
static void counts_of_bytes(void)
{
    for (int i = 0; i < 6; i++) {
        int all = i % 3 == 1, forms = i % 3 == 2, gradients = i / 3;
        ek_offload_config o = config_of(all ? 20 : 3, forms ? 23 : 0, EK_DISK_AUTO, gradients);
        way w = way_of_small_buckets(STEPS, &o);
        ek_offload_stats before, after;
        int64_t part, buckets;
        run r;

        CHECK(open_run(&w, &r) == EK_OK);
        buckets = ek_offload_buckets(r.m);
        CHECK_INT(buckets, 4 * 5);
        part = ek_offload_disk_bytes(r.m) / buckets / (3 + gradients);
        CHECK(take_step(&w, &r, 0) == EK_OK && take_step(&w, &r, 1) == EK_OK);
        ek_offload_get_stats(r.m, &before);
        CHECK(take_step(&w, &r, 2) == EK_OK);
        ek_offload_get_stats(r.m, &after);
        CHECK_INT(after.updates - before.updates, buckets);
        CHECK_INT(after.uses - before.uses, 2 * buckets);
        CHECK_INT(after.disk.written.bytes - before.disk.written.bytes,
                  (3 + gradients) * part * buckets);
        if (all) {
            CHECK_INT(after.disk.read.bytes - before.disk.read.bytes, 0);
            CHECK_INT(after.hits - before.hits, 2 * buckets);
        } else {
            int64_t read = after.disk.read.bytes - before.disk.read.bytes;
            int64_t most = (4 - forms + gradients) * part * buckets;

            /* the ends of forward and backward find some in memory */
            CHECK(read <= most && read >= most - (4 + gradients) * part * 3);
        }
        close_run(&r);
    }
}

static ek_trainer_config trainer_config(const way *w)
{
    equal_shape shape = equal_shape_of(w->shape);

    return (ek_trainer_config){.batch = shape.batch,
                               .micro_batch = shape.micro,
                               .seq = shape.seq,
                               .recompute = w->recompute,
                               .moe = {.degree = 1}};
}

/* A plan says in advance what a step moves, and leaves nothing behind. */
static void plans_count_what_steps_move(void)
{
    for (int i = 0; i < 12; i++) {
        ek_offload_config o = config_of(3 + i % 4, 5 * (i % 3), EK_DISK_AUTO, i % 2);
        way w = {.model = 9, /* every expert has rows */
                 .shape = i % EQUAL_SHAPES,
                 .steps = STEPS,
                 .mode = EK_MODE_FP32,
                 .isa = ek_cpu_isa(),
                 .recompute = i % 3 == 0 ? EK_RECOMPUTE_FULL : EK_RECOMPUTE_OFF,
                 .bucket_bytes = i % 5 < 3 ? 1 : 3000,
                 .offload = &o};
        ek_trainer_config tc = trainer_config(&w);
        ek_offload_traffic plan = {0}, again = {0};
        ek_step_disk took;
        run r;

        CHECK(open_run(&w, &r) == EK_OK);
        CHECK(ek_trainer_count_disk(r.m, &tc, &plan) == EK_OK);
        CHECK(ek_trainer_count_disk(r.m, &tc, &again) == EK_OK);
        CHECK(memcmp(&plan, &again, sizeof(plan)) == 0);
        for (int step = 0; step < 3; step++)
            CHECK(take_step(&w, &r, step) == EK_OK);
        took = ek_trainer_disk(r.tr);
        CHECK(plan.read_bytes == took.read_bytes);
        CHECK(plan.written_bytes == took.written_bytes);
        CHECK(plan.uses == took.uses);
        CHECK(plan.hits == took.hits);
        CHECK(plan.written_bytes > 0 && plan.hits < plan.uses);
        close_run(&r);
    }
}

/* --- what products wait for ------------------------------------------------------------------- */

static long nap_ms = 2;

static void sleep_on_disk(void)
{
    nanosleep(&(struct timespec){0, nap_ms * 1000000}, NULL);
}

static ssize_t slow_pread(int fd, void *data, size_t bytes, off_t offset)
{
    sleep_on_disk();
    return pread(fd, data, bytes, offset);
}

static ssize_t slow_pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
    sleep_on_disk();
    return pwrite(fd, data, bytes, offset);
}

/* Waits of a step on a slow disk. */
typedef struct {
    double all, entries, forward, backward; /* seconds */
    int layers;                             /* that waited */
} step_waits;

static step_waits waits_of(int32_t entries, int slow_reads)
{
    ek_disk_io io = ek_disk_io_system;
    ek_offload_config o = config_of(entries, 0, EK_DISK_POOL, 0);
    way w = way_of_small_buckets(STEPS, &o);
    step_waits waits = {0};
    double of_layer[2 * 64];
    ek_step_disk d;
    run r;

    io.pread = slow_reads ? slow_pread : io.pread;
    io.pwrite = slow_reads ? io.pwrite : slow_pwrite;
    o.io = &io;
    CHECK(open_run(&w, &r) == EK_OK);
    CHECK(take_step(&w, &r, 0) == EK_OK && take_step(&w, &r, 1) == EK_OK);
    ek_offload_take_stalls(r.m, of_layer);
    CHECK(take_step(&w, &r, 2) == EK_OK);
    d = ek_trainer_disk(r.tr);
    ek_offload_take_stalls(r.m, of_layer);
    for (int64_t l = 0; l < r.m->spec.layers; l++) {
        waits.forward += of_layer[2 * l];
        waits.backward += of_layer[2 * l + 1];
        waits.layers += of_layer[2 * l] + of_layer[2 * l + 1] > 0.001;
    }
    waits.all = d.wait_s;
    waits.entries = d.entry_wait_s;
    CHECK(d.reads > 0 || entries == 20);
    CHECK(d.writes == 20);
    close_run(&r);
    return waits;
}

static int are_counted(void)
{
    step_waits reads = waits_of(7, 1), writes = waits_of(3, 0), memory = waits_of(20, 1);

    CHECK(fabs(reads.forward + reads.backward - reads.all) < 1e-6);
    return reads.all > 0.005 && reads.entries < reads.all / 2 && reads.layers == 4 &&
           reads.forward > 0.001 && reads.backward > 0.001 && writes.all > 0.005 &&
           writes.entries > writes.all / 2 && memory.all < reads.all;
}

/* 20 records, of which few are in memory: a step waits for most reads, in all layers, and for
 * memory where writes are slow.  On a busy machine the disk must be slower to be waited for. */
static void waits_are_counted_by_layer_and_cause(void)
{
    int counted = 0;

    for (nap_ms = 2; nap_ms <= 64 && !counted; nap_ms *= 2)
        counted = are_counted();
    CHECK(counted);
    nap_ms = 2;
}

/* --- checkpoints ------------------------------------------------------------------------------ */

static atomic_int may_write; /* files of checkpoints */

static ssize_t slow_write(int fd, const void *data, size_t bytes)
{
    do
        sleep_on_disk();
    while (!atomic_load(&may_write));
    return write(fd, data, bytes);
}

/* Saves the state before step 2, while that step runs or before it, and trains to the end. */
static ek_status train_and_save(const way *w, const char *folder, int background, run *r)
{
    json_t *settings = json_object();
    ek_io io = ek_io_system;
    ek_train_save_config c = {.settings = settings,
                              .steps_done = 2,
                              .keep = 1,
                              .out_dir = folder,
                              .background = background,
                              .io = &io};
    ek_train_saving *saving = NULL;
    ek_status st;

    io.write = slow_write;
    EK_TRY_OUT(open_run(w, r));
    c.model = r->m;
    EK_TRY_OUT(train(w, r, 0, 2));
    atomic_store(&may_write, !background);
    EK_TRY_OUT(ek_train_save_begin(&c, &saving));
    if (!background)
        EK_TRY_OUT(ek_train_save_finish(&saving));
    EK_TRY_OUT(take_step(w, r, 2));
    atomic_store(&may_write, 1);
    EK_TRY_OUT(ek_train_save_wait_written(&saving));
    EK_TRY_OUT(train(w, r, 3, STEPS));
    EK_TRY_OUT(ek_train_save_finish(&saving));
out:
    atomic_store(&may_write, 1);
    ek_train_save_abandon(&saving);
    json_decref(settings);
    return st;
}

/* The files have the same bytes as those of a save that training waited for, and so has training.
 */
static void saves_beside_a_step_write_the_state_before_it(void)
{
    for (int gradients = 0; gradients < 2; gradients++) {
        char folders[2][64] = {"/tmp/ek_saves_XXXXXX", "/tmp/ek_saves_XXXXXX"};
        ek_offload_config o = config_of(4, 6, backends[gradients], gradients);
        way w = {.shape = 1,
                 .steps = STEPS,
                 .mode = EK_MODE_BF16,
                 .isa = ek_cpu_isa(),
                 .bucket_bytes = 3000,
                 .offload = &o};
        run r[2];

        for (int i = 0; i < 2; i++) {
            CHECK(mkdtemp(folders[i]) != NULL);
            if (train_and_save(&w, folders[i], i, &r[i]) != EK_OK)
                EK_T_FAIL("%s", ek_err_text());
        }
        compare_files(folders, 2, "model.safetensors");
        compare_files(folders, 2, "optimizer.safetensors");
        compare_runs("a save beside a step", &w, &r[0], &r[1]);
        for (int i = 0; i < 2; i++) {
            close_run(&r[i]);
            ek_folder_discard(NULL, folders[i]);
        }
    }
}

/* --- failures --------------------------------------------------------------------------------- */

/* Each call of the disk fails in turn: the step ends with the status of the disk, or nothing was
 * lost.  Returns how many calls there were. */
static int fail_call(int at, int error, ek_status *status)
{
    static ek_disk_io io;
    ek_offload_config o = config_of(3, 8, EK_DISK_POOL, 1);
    way w = {.shape = 2,
             .steps = STEPS,
             .mode = EK_MODE_FP32,
             .isa = ek_cpu_isa(),
             .bucket_bytes = 1,
             .offload = &o};
    run r;

    io = faulty_disk_io;
    o.io = &io;
    atomic_store(&faulty_disk.calls, 0);
    faulty_disk.at = at;
    faulty_disk.error = error;
    *status = open_run(&w, &r);
    if (*status == EK_OK)
        *status = train(&w, &r, 0, 2);
    close_run(&r);
    faulty_disk.at = 0;
    return atomic_load(&faulty_disk.calls);
}

static void every_failing_call_ends_the_run_with_its_sentence(void)
{
    ek_status st;
    int calls = fail_call(0, 0, &st), tried = 0, failed = 0;

    CHECK(st == EK_OK);
    CHECK(calls > 100);
    for (int at = 1; at <= calls; at += 1 + 4 * EK_T_SLOW) {
        tried++;
        fail_call(at, EIO, &st);
        if (st == EK_OK)
            continue; /* O_DIRECT refused, or the close of a scratch file */
        failed++;
        if (st != EK_EIO || strstr(ek_err_message(), "/var/tmp") == NULL)
            EK_T_FAIL("call %d: status %d: %s", at, (int)st, ek_err_text());
    }
    CHECK(failed > tried - 6);
    fail_call(calls / 2, 0, &st); /* a short transfer is completed, or an error */
    CHECK(st == EK_OK || st == EK_EFORMAT);
}

/* One byte of one read is wrong, in a quarter of what is read: a step says that the disk is bad, in
 * whichever part of a record it is. */
static struct {
    atomic_int reads;
    int at, quarter;
} flipped;

static ssize_t flip_byte(int fd, void *data, size_t bytes, off_t offset)
{
    ssize_t n = ek_disk_io_system.pread(fd, data, bytes, offset);

    if (atomic_fetch_add(&flipped.reads, 1) + 1 == flipped.at)
        ((unsigned char *)data)[bytes / 8 * (size_t)(2 * flipped.quarter + 1)] ^= 1;
    return n;
}

static int train_with_flip(int at, int quarter, int gradients, ek_status *status)
{
    static ek_disk_io io;
    ek_offload_config o = config_of(3, 5, EK_DISK_POOL, gradients);
    way w = {.shape = 2,
             .steps = STEPS,
             .mode = EK_MODE_BF16,
             .isa = ek_cpu_isa(),
             .bucket_bytes = 1,
             .offload = &o};
    run r;

    io = ek_disk_io_system;
    io.pread = flip_byte;
    o.io = &io;
    atomic_store(&flipped.reads, 0);
    flipped.at = at;
    flipped.quarter = quarter;
    CHECK(open_run(&w, &r) == EK_OK);
    *status = train(&w, &r, 0, 2);
    close_run(&r);
    return atomic_load(&flipped.reads);
}

static void every_wrong_byte_is_found(void)
{
    for (int gradients = 0; gradients < 2; gradients++) {
        ek_status st;
        int reads = train_with_flip(0, 0, gradients, &st);

        CHECK(st == EK_OK && reads > 80);
        for (int at = 2; at <= reads; at += 1 + 4 * EK_T_SLOW) /* the first asks for O_DIRECT */
            for (int quarter = at % 2; quarter < 4; quarter += 2) {
                train_with_flip(at, quarter, gradients, &st);
                if (st != EK_ECORRUPT || strstr(ek_err_message(), "other bytes") == NULL)
                    EK_T_FAIL("read %d, quarter %d, gradients on disk %d: status %d: %s", at,
                              quarter, gradients, (int)st, ek_err_text());
            }
    }
}

static void a_full_disk_shows_before_the_first_step(void)
{
    ek_status st;

    for (int at = 1; at < 6; at++) {
        fail_call(at, ENOSPC, &st);
        if (st != EK_OK)
            CHECK(st == EK_ENOSPC || st == EK_EIO);
    }
}

static void what_is_not_supported_is_refused(void)
{
    ek_offload_config o = config_of(2, 0, EK_DISK_AUTO, 0);
    way w = {.steps = STEPS, .mode = EK_MODE_FP32, .isa = EK_ISA_REF, .offload = &o};
    run r;

    CHECK(open_run(&w, &r) == EK_EINVAL); /* too few entries */
    close_run(&r);
    o = config_of(3, 0, EK_DISK_AUTO, 0);
    o.dir = "/nonexistent/folder";
    CHECK(open_run(&w, &r) < 0);
    CHECK(strstr(ek_err_message(), "/nonexistent/folder") != NULL);
    close_run(&r);
}

static const ek_case cases[] = {
    EK_CASE(every_model),
    EK_CASE(any_entries_forms_and_buckets),
    EK_CASE(counts_of_bytes),
    EK_CASE(plans_count_what_steps_move),
    EK_CASE(waits_are_counted_by_layer_and_cause),
    EK_CASE(saves_beside_a_step_write_the_state_before_it),
    EK_CASE(every_failing_call_ends_the_run_with_its_sentence),
    EK_CASE(every_wrong_byte_is_found),
    EK_CASE(a_full_disk_shows_before_the_first_step),
    EK_CASE(what_is_not_supported_is_refused),
};

EK_TEST_MAIN(cases)
