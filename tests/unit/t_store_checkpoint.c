/* store/checkpoint: whichever call fails, and whether the process or the power fails with it, the
 * newest checkpoint is complete. */
#include "ek_test.h"
#include "faulty_io.h"
#include "store/checkpoint.h"

#include <sched.h>
#include <sys/mount.h>

static ek_path root;
static char grave[] = "/tmp/ek_t_grave_XXXXXX";

static const char *at(const char *name)
{
    static ek_path p[4];
    static int next;
    ek_path *q = &p[next++ % 4];

    CHECK(ek_path_set(q, "%s/%s", root.s, name) == EK_OK);
    return q->s;
}

static void begin(void)
{
    CHECK(ek_path_set(&root, "/tmp/ek_t_checkpoint_XXXXXX") == EK_OK);
    CHECK(mkdtemp(root.s) != NULL);
    faulty_arm(FAULTY_ONCE, 0, 0);
}

static void end(void)
{
    CHECK(ek_folder_remove(NULL, root.s) == EK_OK);
}

static int says(const char *text)
{
    return strstr(ek_err_message(), text) != NULL;
}

/* A checkpoint of one tensor and two small files; the tensor and one of them hold `mark`. */
static ek_status save(const ek_io *io, int64_t step, float mark)
{
    static const ek_tensor_decl decl = {"w", EK_F32, 1, {2000}};
    static float w[2000];
    ek_safetensors_writer *s = NULL;
    ek_checkpoint *c = NULL;
    ek_file_sum sum;
    char text[32];
    ek_path p;
    ek_status st;

    for (int i = 0; i < 2000; i++)
        w[i] = mark;
    snprintf(text, sizeof(text), "%g", (double)mark);
    EK_TRY_OUT(ek_checkpoint_begin(io, at("out"), step, &c));
    EK_TRY_OUT(ek_path_set(&p, "%s/model.safetensors", ek_checkpoint_folder(c)));
    EK_TRY_OUT(ek_safetensors_create(io, p.s, EK_WRITE_NEW, &decl, 1, &s));
    EK_TRY_OUT(ek_safetensors_append(s, "w", 2000, w, EK_F32));
    EK_TRY_OUT(ek_safetensors_finish(&s, &sum));
    EK_TRY_OUT(ek_checkpoint_add(c, "model.safetensors", &sum));
    EK_TRY_OUT(ek_checkpoint_write(c, "config.json", "{}", 2));
    EK_TRY_OUT(ek_checkpoint_write(c, "state.json", text, strlen(text)));
    EK_TRY_OUT(ek_checkpoint_commit(&c));
out:
    ek_safetensors_abort(&s);
    ek_checkpoint_abort(&c);
    return st;
}

/* Whether the checkpoint is complete and has this mark. */
static int holds(const ek_checkpoint_found *f, float mark)
{
    ek_safetensors *s = NULL;
    char *text = NULL;
    size_t n = 0;
    float got = 0;
    ek_path p;
    int good =
        ek_checkpoint_verify(f->path.s) == EK_OK && ek_safetensors_open(f->path.s, &s) == EK_OK &&
        ek_safetensor_read(ek_safetensors_find(s, "w"), 1999, 1, &got, EK_F32) == EK_OK &&
        ek_path_set(&p, "%s/state.json", f->path.s) == EK_OK &&
        ek_file_read(p.s, 100, &text, &n) == EK_OK && got == mark && strtof(text, NULL) == mark;

    ek_safetensors_close(&s);
    free(text);
    return good;
}

/* The newest has this step and mark. */
static int newest(int64_t step, float mark)
{
    ek_checkpoint_found f;

    return ek_checkpoint_latest(at("out"), EK_CHECK_SIZES, &f) == EK_OK && f.step == step &&
           holds(&f, mark);
}

static int64_t entries(const char *name)
{
    ek_names l = {0};
    int64_t n = ek_folder_entries(at(name), &l) == EK_OK ? l.n : -1;

    ek_names_free(&l);
    return n;
}

/* Whether every folder under a final name that has a manifest is whole. */
static int all_whole(void)
{
    ek_names l = {0};
    ek_path p;
    int good = 1;

    if (ek_folder_entries(at("out/checkpoint"), &l) != EK_OK)
        return 1; /* none exist */
    for (int64_t i = 0; i < l.n; i++) {
        if (strstr(l.names[i], ".tmp") != NULL)
            continue;
        CHECK(ek_path_set(&p, "%s/%s", at("out/checkpoint"), l.names[i]) == EK_OK);
        good &= ek_checkpoint_verify(p.s) != EK_ECORRUPT;
    }
    ek_names_free(&l);
    return good;
}

static void plain(void)
{
    ek_checkpoint_found f;
    ek_checkpoint *c = NULL;
    ek_file_sum sum = {0, 0};

    begin();
    CHECK_INT(ek_checkpoint_latest(at("out"), EK_CHECK_SIZES, &f), EK_ENOENT);
    CHECK(says("no checkpoint"));
    CHECK(ek_checkpoint_begin(NULL, at("out"), 3, &c) == EK_OK);
    CHECK(ek_file_kind_of(at("out/checkpoint")) == EK_FILE_NONE);
    CHECK(ek_checkpoint_write(c, "a.json", "{}", 2) == EK_OK);
    CHECK_INT(ek_checkpoint_write(c, "a.json", "{}", 2), EK_EINVAL);
    CHECK_INT(ek_checkpoint_add(c, "manifest.json", &sum), EK_EINVAL);
    CHECK_INT(ek_checkpoint_add(c, "../x", &sum), EK_EINVAL);
    CHECK_INT(ek_checkpoint_latest(at("out"), EK_CHECK_SIZES, &f), EK_ENOENT);
    ek_checkpoint_abort(&c);
    ek_checkpoint_abort(&c);
    CHECK_INT(entries("out"), 0);
    CHECK_INT(ek_checkpoint_begin(NULL, at("out"), -1, &c), EK_EINVAL);

    CHECK(save(NULL, 3, 1) == EK_OK);
    CHECK(save(NULL, 100000000, 2) == EK_OK); /* nine digits */
    CHECK(save(NULL, 6, 3) == EK_OK);
    CHECK(newest(100000000, 2));
    CHECK_INT(entries("out/checkpoint"), 3);
    CHECK(ek_checkpoint_latest(at("out/checkpoint"), EK_CHECK_SUMS, &f) == EK_OK);
    CHECK(f.step == 100000000 && f.warning[0] == '\0');
    CHECK(ek_checkpoint_latest(at("out/checkpoint/step-00000006"), EK_CHECK_SUMS, &f) == EK_OK);
    CHECK(f.step == 6 && holds(&f, 3));
    CHECK_INT(ek_checkpoint_prune(NULL, at("out"), 0), EK_EINVAL);
    CHECK(ek_checkpoint_prune(NULL, at("out"), 2) == EK_OK);
    CHECK_INT(entries("out/checkpoint"), 2);
    CHECK(ek_file_kind_of(at("out/checkpoint/step-00000003")) == EK_FILE_NONE);
    CHECK(save(NULL, 6, 4) == EK_OK); /* again */
    CHECK(ek_checkpoint_latest(at("out/checkpoint/step-00000006"), EK_CHECK_SUMS, &f) == EK_OK);
    CHECK(holds(&f, 4));
    CHECK_INT(entries("out/checkpoint"), 2);
    end();
}

/* The checkpoint that <out>/best names is not deleted, and is found as long as it exists. */
static void best(void)
{
    ek_path link;

    begin();
    CHECK(ek_checkpoint_best(at("out"), 0, &link) == EK_OK && link.s[0] == '\0');
    for (int i = 1; i <= 4; i++)
        CHECK(save(NULL, i, (float)i) == EK_OK);
    CHECK(ek_checkpoint_set_best(NULL, at("out"), 3) == EK_OK);
    CHECK(ek_checkpoint_set_best(NULL, at("out"), 2) == EK_OK);
    CHECK(ek_checkpoint_best(at("out"), 3, &link) == EK_OK && link.s[0] == '\0');
    CHECK(ek_checkpoint_best(at("out"), 2, &link) == EK_OK);
    CHECK(strcmp(link.s, at("out/best")) == 0 && ek_checkpoint_verify(link.s) == EK_OK);
    CHECK_INT(entries("out"), 2);
    CHECK(ek_checkpoint_prune(NULL, at("out"), 1) == EK_OK);
    CHECK_INT(entries("out/checkpoint"), 2);
    CHECK(ek_checkpoint_verify(at("out/checkpoint/step-00000002")) == EK_OK);
    CHECK(newest(4, 4));
    CHECK(ek_checkpoint_set_best(NULL, at("out"), 4) == EK_OK);
    CHECK(ek_checkpoint_prune(NULL, at("out"), 1) == EK_OK);
    CHECK_INT(entries("out/checkpoint"), 1);
    CHECK(ek_folder_remove(NULL, at("out/checkpoint/step-00000004")) == EK_OK);
    CHECK(ek_checkpoint_best(at("out"), 4, &link) == EK_OK && link.s[0] == '\0');
    CHECK(ek_checkpoint_is_best_link(at("out/best")));
    CHECK(unlink(at("out/best")) == 0 && symlink("checkpoint/step-1", at("out/best")) == 0);
    CHECK(!ek_checkpoint_is_best_link(at("out/best"))); /* not a checkpoint's name */
    CHECK(!ek_checkpoint_is_best_link(at("out/checkpoint")));
    end();
}

/* Foreign files and links are kept, whatever their names. */
static void best_of_others(void)
{
    begin();
    CHECK(save(NULL, 1, 1) == EK_OK);
    CHECK(ek_file_write(NULL, at("out/best.tmp"), "mine", 4) == EK_OK);
    CHECK(ek_checkpoint_set_best(NULL, at("out"), 1) == EK_OK);
    CHECK(ek_file_kind_of(at("out/best.tmp")) == EK_FILE_REGULAR);
    CHECK_INT(entries("out"), 3);
    CHECK(unlink(at("out/best")) == 0 && ek_file_write(NULL, at("out/best"), "mine", 4) == EK_OK);
    CHECK_INT(ek_checkpoint_set_best(NULL, at("out"), 1), EK_EINVAL);
    CHECK(says("out/best is not a link to a checkpoint"));
    CHECK(ek_file_kind_of(at("out/best")) == EK_FILE_REGULAR);
    CHECK(unlink(at("out/best")) == 0 && symlink("best.tmp", at("out/best")) == 0);
    CHECK_INT(ek_checkpoint_set_best(NULL, at("out"), 1), EK_EINVAL);
    CHECK_INT(entries("out"), 3);
    end();
}

/* Damage is found and named, and the checkpoint is skipped. */
static void damage(void)
{
    static const char *const manifests[][2] = {
        {"{", "not valid JSON"},
        {"[]", "not the manifest"},
        {"{\"format\":\"other\"}", "not the manifest of a checkpoint, but of a 'other'"},
        {"{\"format\":\"evenkeel-checkpoint\",\"version\":9}", "version 9"},
        {"{\"format\":\"evenkeel-checkpoint\",\"version\":1,\"step\":6}", "files is missing"},
        {"{\"format\":\"evenkeel-checkpoint\",\"version\":1,\"step\":6,\"files\":{\"a\":{}}}",
         "entry of 'a' is malformed"},
    };
    static const char state[] = "out/checkpoint/step-00000006/state.json";
    ek_checkpoint_found f;

    begin();
    CHECK(save(NULL, 3, 1) == EK_OK);
    CHECK(save(NULL, 6, 2) == EK_OK);
    CHECK(ek_file_replace(NULL, at(state), "3", 1) == EK_OK); /* size right, content not */
    CHECK_INT(ek_checkpoint_verify(at("out/checkpoint/step-00000006")), EK_ECORRUPT);
    CHECK(says("state.json has checksum"));
    CHECK(ek_checkpoint_latest(at("out"), EK_CHECK_SIZES, &f) == EK_OK && f.step == 6);
    CHECK(ek_checkpoint_latest(at("out"), EK_CHECK_SUMS, &f) == EK_OK && f.step == 3);
    CHECK(strstr(f.warning, "skipped checkpoint step-00000006: ") != NULL);
    CHECK(ek_file_replace(NULL, at(state), "22", 2) == EK_OK);
    CHECK(ek_checkpoint_latest(at("out"), EK_CHECK_SIZES, &f) == EK_OK && f.step == 3);
    CHECK(strstr(f.warning, "state.json has 2 bytes, the manifest says 1") != NULL);
    CHECK(ek_file_remove(NULL, at(state)) == EK_OK);
    CHECK(ek_checkpoint_latest(at("out"), EK_CHECK_SIZES, &f) == EK_OK && f.step == 3);
    CHECK(strstr(f.warning, "state.json is missing") != NULL);
    for (size_t i = 0; i < sizeof(manifests) / sizeof(manifests[0]); i++) {
        CHECK(ek_file_replace(NULL, at("out/checkpoint/step-00000006/manifest.json"),
                              manifests[i][0], strlen(manifests[i][0])) == EK_OK);
        CHECK(ek_checkpoint_latest(at("out"), EK_CHECK_SIZES, &f) == EK_OK && f.step == 3);
        CHECK(strstr(f.warning, manifests[i][1]) != NULL);
    }
    CHECK(ek_checkpoint_prune(NULL, at("out"), 1) == EK_OK); /* keeps the complete one */
    CHECK(newest(3, 1));
    CHECK(ek_file_remove(NULL, at("out/checkpoint/step-00000003/manifest.json")) == EK_OK);
    CHECK_INT(ek_checkpoint_latest(at("out"), EK_CHECK_SIZES, &f), EK_ECORRUPT);
    CHECK(says("no complete checkpoint"));
    CHECK(save(NULL, 6, 5) == EK_OK); /* replaces the damaged one */
    CHECK(newest(6, 5));
    end();
}

static void leftovers(void)
{
    begin();
    CHECK(ek_folder_make(NULL, at("out/checkpoint.tmp/step-00000001")) == EK_OK);
    CHECK(ek_folder_make(NULL, at("out/checkpoint.old/step-00000001")) == EK_OK);
    CHECK(save(NULL, 3, 1) == EK_OK);
    CHECK_INT(entries("out"), 1);
    CHECK(ek_folder_make(NULL, at("out/checkpoint/step-00000009.tmp")) == EK_OK);
    CHECK(ek_folder_make(NULL, at("out/checkpoint/step-9")) == EK_OK);    /* not a checkpoint's */
    CHECK(ek_folder_make(NULL, at("out/checkpoint/notes.tmp")) == EK_OK); /* nor is this */
    CHECK(newest(3, 1));
    CHECK(ek_file_rename(NULL, at("out/checkpoint/step-00000003"),
                         at("out/checkpoint/step-00000003.old")) == EK_OK);
    CHECK(newest(3, 1)); /* set aside, complete */
    CHECK(save(NULL, 6, 2) == EK_OK);
    CHECK(ek_file_kind_of(at("out/checkpoint/step-00000003")) == EK_FILE_FOLDER);
    CHECK_INT(entries("out/checkpoint"), 4);
    end();
}

/* The operations of a run around call number n, and the possible states after a failure there. */
static void first(void)
{
}

static void one_before(void)
{
    CHECK(save(&faulty_io, 3, 1) == EK_OK);
}

static void same_before(void)
{
    CHECK(save(&faulty_io, 3, 1) == EK_OK);
    CHECK(save(&faulty_io, 6, 9) == EK_OK);
}

static void aside_before(void)
{
    same_before();
    CHECK(ek_file_rename(&faulty_io, at("out/checkpoint/step-00000006"),
                         at("out/checkpoint/step-00000006.old")) == EK_OK);
}

static const struct {
    const char *name;
    void (*prepare)(void);
    int64_t step; /* newest before; -1: none */
    float mark;
} scenes[] = {
    {"first", first, -1, 0},
    {"second", one_before, 3, 1},
    {"the same step again", same_before, 6, 9},
    {"the same step, standing aside", aside_before, 6, 9},
};

/* Fails at call n; returns 1 if the run ended before call n. */
static int break_at(size_t scene, faulty_mode mode, int names, int error, int64_t n)
{
    ek_checkpoint_found f;
    ek_status saved, pruned = EK_OK;
    int over, before, after;

    begin();
    scenes[scene].prepare();
    faulty_arm(mode, n, error);
    saved = save(&faulty_io, 6, 2);
    if (saved == EK_OK)
        pruned = ek_checkpoint_prune(&faulty_io, at("out"), 1);
    over = faulty.calls < n;
    if (saved < 0 || pruned < 0) {
        CHECK(!over);
        CHECK(saved == EK_ENOSPC || saved == EK_EIO || pruned == EK_ENOSPC || pruned == EK_EIO);
        CHECK(says(root.s) && says(strerror(error)));
    }
    if (mode == FAULTY_POWER)
        faulty_power_loss(names);
    before = scenes[scene].step < 0
                 ? ek_checkpoint_latest(at("out"), EK_CHECK_SIZES, &f) == EK_ENOENT &&
                       ek_file_kind_of(at("out/checkpoint")) == EK_FILE_NONE
                 : newest(scenes[scene].step, scenes[scene].mark);
    after = newest(6, 2);
    if (!(saved == EK_OK ? after : before || after))
        EK_T_FAIL("%s, mode %d %d, call %lld: save gave %d, before %d, after %d",
                  scenes[scene].name, (int)mode, names, (long long)n, (int)saved, before, after);
    CHECK(all_whole());
    /* the next save clears leftovers */
    faulty_arm(FAULTY_ONCE, 0, 0);
    CHECK(save(&faulty_io, 9, 3) == EK_OK);
    CHECK(newest(9, 3));
    CHECK(ek_checkpoint_prune(&faulty_io, at("out"), 1) == EK_OK);
    CHECK_INT(entries("out/checkpoint"), 1);
    CHECK_INT(entries("out"), 1);
    end();
    return over;
}

static void every_call(faulty_mode mode, int names, int error)
{
    CHECK(mkdtemp(grave) != NULL);
    snprintf(faulty.grave, sizeof(faulty.grave), "%s", grave);
    for (size_t s = 0; s < sizeof(scenes) / sizeof(scenes[0]); s++) {
        int64_t n = 1;

        while (!break_at(s, mode, names, error, n))
            n++;
        CHECK(n > 30 && n < 200);
    }
    ek_folder_discard(NULL, grave);
    memcpy(grave + sizeof(grave) - 7, "XXXXXX", 6);
}

static void full_at_every_call(void)
{
    every_call(FAULTY_ONCE, 0, ENOSPC);
}

static void error_at_every_call(void)
{
    every_call(FAULTY_ONCE, 0, EIO);
}

static void killed_at_every_call(void)
{
    every_call(FAULTY_CRASH, 0, EIO);
}

static void power_lost_at_every_call(void)
{
    every_call(FAULTY_POWER, 0, EIO);
    every_call(FAULTY_POWER, 1, EIO);
}

/* A file system with space for two checkpoints of five pages, not three. */
static void full_disk(void)
{
    if (geteuid() != 0)
        SKIP("mounting a small file system needs root");
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        SKIP("no mount namespace of our own is to be had");
    begin();
    if (mount("none", root.s, "tmpfs", 0, "size=56k") != 0) {
        end();
        SKIP("tmpfs cannot be mounted");
    }
    CHECK(save(NULL, 1, 1) == EK_OK);
    CHECK(save(NULL, 2, 2) == EK_OK);
    CHECK_INT(save(NULL, 3, 3), EK_ENOSPC);
    CHECK(says("No space left on device"));
    CHECK(newest(2, 2));
    CHECK_INT(entries("out/checkpoint"), 2);
    CHECK(ek_checkpoint_prune(NULL, at("out"), 1) == EK_OK);
    CHECK(save(NULL, 3, 3) == EK_OK);
    CHECK(newest(3, 3));
    CHECK(umount(root.s) == 0);
    end();
}

static const ek_case cases[] = {
    EK_CASE(plain),
    EK_CASE(best),
    EK_CASE(best_of_others),
    EK_CASE(damage),
    EK_CASE(leftovers),
    EK_CASE(full_at_every_call),
    EK_CASE(error_at_every_call),
    EK_CASE(killed_at_every_call),
    EK_CASE(power_lost_at_every_call),
    EK_CASE(full_disk),
};

EK_TEST_MAIN(cases)
