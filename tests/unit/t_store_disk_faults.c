/* The disk queue when calls fail: each in turn, all from one on, a file cut short, a full disk, a
 * device that fails, a system that forbids io_uring. */
#include "base/log.h"
#include "disk_fixture.h"
#include "faulty_disk_io.h"

#include <dirent.h>
#include <sched.h>
#include <sys/wait.h>

enum { BYTES = 24 * EK_DISK_ALIGN, PIECE = 5 * EK_DISK_ALIGN };

/* The first is io_uring where the system has it. */
static const ek_disk_backend tried[] = {EK_DISK_AUTO, EK_DISK_POOL};

static int open_descriptors(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;

    while (d != NULL && readdir(d) != NULL)
        n++;
    if (d != NULL)
        closedir(d);
    return n;
}

/* Waits for a request that was submitted. */
static ek_status carry_out(ek_disk *d, ek_disk_request *r)
{
    EK_TRY(ek_disk_start(d, r));
    return ek_disk_wait(d, r);
}

static ek_status write_and_read(ek_disk *d, const disk_file *file, unsigned char *buffer)
{
    ek_disk_file *f = NULL, *scratch = NULL;
    ek_disk_request w, r;
    ek_status st;

    EK_TRY_OUT(ek_disk_open_scratch(d, file->folder, BYTES, &scratch));
    EK_TRY_OUT(ek_disk_open(d, file->path, EK_DISK_UPDATE, &f));
    r = read_of(f, 0, BYTES, buffer);
    EK_TRY_OUT(carry_out(d, &r));
    CHECK(memcmp(buffer, file->bytes, BYTES) == 0);
    w = read_of(scratch, 0, BYTES, buffer);
    w.write = 1;
    EK_TRY_OUT(carry_out(d, &w));
    EK_TRY_OUT(ek_disk_sync(scratch));
    memset(buffer, 0, BYTES);
    r = read_of(scratch, 4000, BYTES - 5000, buffer);
    EK_TRY_OUT(carry_out(d, &r));
    CHECK(memcmp(r.data, file->bytes + 4000, BYTES - 5000) == 0);
    EK_TRY_OUT(ek_disk_close(&scratch));
    EK_TRY_OUT(ek_disk_close(&f));
out:
    return st; /* files left open are closed with the queue */
}

/* All that a queue does; the bytes are right where it succeeds. */
static ek_status use_disk(ek_disk_backend backend, const disk_file *file)
{
    ek_disk_config c = {
        .backend = backend, .piece_bytes = PIECE, .depth = 3, .io = &faulty_disk_io};
    unsigned char *buffer = aligned_buffer(BYTES);
    ek_disk *d = NULL;
    ek_status st = ek_disk_create(&c, &d);

    if (st == EK_OK)
        st = write_and_read(d, file, buffer);
    ek_disk_destroy(&d);
    free(buffer);
    return st;
}

/* Whether a call that failed so has to be made again: some errors only of calls that transfer.
 * io_uring cancels calls of threads that end. */
static int passes_by(int error, const char *text)
{
    return error == 0 || error == EINTR ||
           ((error == EAGAIN || error == ECANCELED) &&
            (strstr(text, "cannot read") || strstr(text, "cannot write")));
}

static void check_outcome(ek_status st, int error, int from_there_on)
{
    const char *text = ek_err_message();

    if (st == EK_OK)
        return;
    if (!from_there_on && passes_by(error, text)) {
        EK_T_FAIL("error %d once: %s", error, text);
        return;
    }
    CHECK(st == (error == ENOSPC ? EK_ENOSPC : EK_EIO) || (error == 0 && st == EK_EFORMAT));
    CHECK(strstr(text, "/var/tmp/ek_disk_") != NULL);
    CHECK(strchr(text, '\n') == NULL);
}

static void every_call_fails_in_turn(void)
{
    const int errors[] = {EIO, ENOSPC, EINTR, EAGAIN, ECANCELED, 0};
    disk_file file;
    int before, failed = 0;

    CHECK(make_disk_file(&file, BYTES));
    before = open_descriptors();
    for (size_t b = 0; b < 2; b++)
        for (size_t e = 0; e < sizeof(errors) / sizeof(errors[0]); e++) {
            int n = 0;

            do {
                ek_status st;

                arm_disk_fault(++n, errors[e], 0);
                st = use_disk(tried[b], &file);
                failed += st != EK_OK;
                check_outcome(st, errors[e], 0);
                CHECK_INT(open_descriptors(), before);
            } while (atomic_load(&faulty_disk.calls) >= n && n < 1000);
            CHECK(n > 20); /* calls were counted, and there is an end of them */
        }
    CHECK(failed > 0);
    remove_disk_file(&file);
}

static void all_calls_fail_from_one_on(void)
{
    const int errors[] = {EIO, ENOSPC, EAGAIN, ECANCELED, 0};
    disk_file file;
    int before;

    CHECK(make_disk_file(&file, BYTES));
    before = open_descriptors();
    for (size_t b = 0; b < 2; b++)
        for (size_t e = 0; e < sizeof(errors) / sizeof(errors[0]); e++)
            for (int n = 1; n < 40; n++) {
                arm_disk_fault(n, errors[e], 1);
                check_outcome(use_disk(tried[b], &file), errors[e], 1);
                CHECK_INT(open_descriptors(), before);
            }
    remove_disk_file(&file);
}

/* A failed request says which bytes of which file, why, and what to do; others of the same queue
 * succeed. */
static void a_failure_is_one_sentence(void)
{
    disk_file file;

    CHECK(make_disk_file(&file, BYTES));
    for (size_t b = 0; b < 2; b++) {
        ek_disk_config c = {.backend = tried[b], .io = &faulty_disk_io};
        ek_disk *d = NULL;
        ek_disk_file *f = NULL;
        ek_disk_stats stats;
        ek_disk_request bad, good;
        char want[256];

        arm_disk_fault(0, 0, 0);
        CHECK(ek_disk_create(&c, &d) == EK_OK);
        CHECK(ek_disk_open(d, file.path, EK_DISK_READ, &f) == EK_OK);
        bad = read_of(f, 4097, 100, aligned_buffer(EK_DISK_ALIGN));
        good = read_of(f, 0, BYTES, aligned_buffer(BYTES));
        arm_disk_fault(strcmp(ek_disk_backend_name(d), "io_uring") == 0 ? 2 : 1, EIO, 0);
        CHECK(carry_out(d, &bad) == EK_EIO);
        snprintf(want, sizeof(want),
                 "cannot read 100 bytes at offset 4097 of %s: Input/output error; check the disk "
                 "and the system's log, then start again",
                 file.path);
        CHECK(strcmp(ek_err_message(), want) == 0);
        CHECK(ek_disk_result(&bad) == EK_EIO);
        CHECK(carry_out(d, &good) == EK_OK);
        CHECK(memcmp(good.data, file.bytes, BYTES) == 0);
        CHECK(carry_out(d, &bad) == EK_OK);
        ek_disk_stats_of(d, &stats);
        CHECK_INT(stats.read.requests, 2);
        CHECK_INT(stats.read.failed, 1);
        ek_disk_destroy(&d);
        free(bad.buffer);
        free(good.buffer);
    }
    remove_disk_file(&file);
}

/* A read by io_uring of a file with O_NONBLOCK may end with EAGAIN. */
static void files_are_opened_for_waiting(void)
{
    ek_disk_config c = {.io = &faulty_disk_io};
    ek_disk *d = NULL;
    ek_disk_file *f = NULL;
    disk_file file;

    CHECK(make_disk_file(&file, BYTES));
    arm_disk_fault(0, 0, 0);
    CHECK(ek_disk_create(&c, &d) == EK_OK);
    CHECK(ek_disk_open(d, file.path, EK_DISK_READ, &f) == EK_OK);
    CHECK((fcntl(faulty_disk.opened, F_GETFL) & O_NONBLOCK) == 0);
    CHECK(((fcntl(faulty_disk.opened, F_GETFL) & O_DIRECT) != 0) == ek_disk_is_direct(f));
    ek_disk_destroy(&d);
    remove_disk_file(&file);
}

static void a_file_is_cut_short_while_open(void)
{
    enum { LEFT = 10 * EK_DISK_ALIGN + 100 };

    for (size_t b = 0; b < 2; b++) {
        ek_disk_config c = {.backend = tried[b], .piece_bytes = PIECE, .depth = 3};
        ek_disk *d = NULL;
        ek_disk_file *f = NULL;
        ek_disk_request r;
        disk_file file;
        char want[64];

        CHECK(make_disk_file(&file, BYTES));
        CHECK(ek_disk_create(&c, &d) == EK_OK);
        CHECK(ek_disk_open(d, file.path, EK_DISK_READ, &f) == EK_OK);
        CHECK(truncate(file.path, LEFT) == 0);
        r = read_of(f, 5, LEFT - 5, aligned_buffer(BYTES));
        CHECK(carry_out(d, &r) == EK_OK);
        CHECK(memcmp(r.data, file.bytes + 5, LEFT - 5) == 0);
        for (size_t more = 1; more < BYTES - LEFT; more += 997) {
            free(r.buffer);
            r = read_of(f, 5, LEFT - 5 + more, aligned_buffer(BYTES));
            CHECK(carry_out(d, &r) == EK_EFORMAT);
            snprintf(want, sizeof(want), "ends at byte %d", LEFT);
            CHECK(strstr(ek_err_message(), want) != NULL);
        }
        r = read_of(f, LEFT + EK_DISK_ALIGN, 10, r.buffer); /* wholly behind the end */
        CHECK(carry_out(d, &r) == EK_EFORMAT);
        ek_disk_destroy(&d);
        free(r.buffer);
        remove_disk_file(&file);
    }
}

static void count_lines(void *context, ek_log_level level, const char *component, const char *text)
{
    int *lines = context;

    *lines += level == EK_LOG_DEBUG && strcmp(component, "store") == 0 &&
              strstr(text, "io_uring (Operation not permitted): using a pool") != NULL;
}

/* As in a container: the pool takes over, which is logged once. */
static void io_uring_is_forbidden(void)
{
    ek_disk_config c = {.io = &faulty_disk_io};
    ek_disk *d = NULL;
    int lines = 0;

    if (ek_disk_create(&(ek_disk_config){.backend = EK_DISK_URING}, &d) != EK_OK)
        SKIP(ek_err_message());
    CHECK(strcmp(ek_disk_backend_name(d), "io_uring") == 0);
    ek_disk_destroy(&d);
    ek_log_set_sink(count_lines, &lines, EK_LOG_DEBUG);
    arm_disk_fault(1, EPERM, 1);
    CHECK(ek_disk_create(&c, &d) == EK_OK);
    CHECK(strcmp(ek_disk_backend_name(d), "pread pool") == 0);
    ek_disk_destroy(&d);
    CHECK_INT(lines, 1);
    c.backend = EK_DISK_URING;
    CHECK(ek_disk_create(&c, &d) == EK_EUNSUPPORTED && d == NULL);
    ek_log_set_sink(NULL, NULL, EK_LOG_ERROR);
    arm_disk_fault(0, 0, 0);
}

/* --- a real small disk ------------------------------------------------------------------------ */

/* Runs a command of the shell in a folder: whether it succeeded. */
static int shell(const char *folder, const char *command)
{
    char line[512];

    snprintf(line, sizeof(line), "cd %s && { %s; } >/dev/null 2>&1", folder, command);
    return system(line) == 0;
}

/* Fills the disk at folder/mnt: a scratch file of twice its size, then blocks until none is left.
 */
static void fill_disk(ek_disk *d, const disk_file *file, unsigned char *buffer)
{
    char mount[96], path[112];
    ek_disk_file *f = NULL;
    ek_disk_request w;
    int64_t at = 0;
    ek_status st;

    snprintf(mount, sizeof(mount), "%s/mnt", file->folder);
    snprintf(path, sizeof(path), "%s/full", mount);
    CHECK(ek_disk_open_scratch(d, mount, 128 << 20, &f) == EK_ENOSPC && f == NULL);
    CHECK(strstr(ek_err_message(), "no room for a scratch file of 134 MB: ") != NULL);
    CHECK(strstr(ek_err_message(), mount) != NULL);
    CHECK(ek_disk_open(d, path, EK_DISK_UPDATE, &f) == EK_OK);
    do {
        w = read_of(f, 0, 1 << 20, buffer);
        w.write = 1;
        w.offset = at;
        st = carry_out(d, &w);
        at += 1 << 20;
    } while (st == EK_OK && at < 128 << 20);
    CHECK(st == EK_ENOSPC);
    CHECK(strstr(ek_err_message(), path) != NULL && strstr(ek_err_message(), "room") != NULL);
    CHECK(ek_disk_close(&f) == EK_OK);
    CHECK(unlink(path) == 0);
}

/* Reads a file of the disk before and after its device has lost its blocks. */
static void lose_device(ek_disk *d, const disk_file *file, unsigned char *buffer)
{
    char path[128], image[96];
    ek_disk_file *f = NULL;
    ek_disk_request r;

    snprintf(path, sizeof(path), "%s/mnt/data", file->folder);
    snprintf(image, sizeof(image), "%s/image", file->folder);
    CHECK(ek_disk_open(d, path, EK_DISK_READ, &f) == EK_OK);
    r = read_of(f, 0, BYTES, buffer);
    CHECK(carry_out(d, &r) == EK_OK);
    CHECK(memcmp(r.data, file->bytes, BYTES) == 0);
    CHECK(truncate(image, 4096) == 0);
    CHECK(carry_out(d, &r) == EK_EIO);
    CHECK(strstr(ek_err_message(), path) != NULL);
    CHECK(ek_disk_close(&f) == EK_OK);
}

/* In a child of its own mounts: the disk is gone when it ends. */
static int use_small_disk(ek_disk_backend backend, const disk_file *file)
{
    ek_disk_config c = {.backend = backend};
    unsigned char *buffer = aligned_buffer(1 << 20);
    ek_disk *d = NULL;

    if (unshare(CLONE_NEWNS) != 0 || !shell("/", "mount --make-rprivate /") ||
        !shell(file->folder, "truncate -s 64M image && mkfs.ext4 -q image && mkdir mnt") ||
        !shell(file->folder, "mount -o loop image mnt"))
        return 77;
    CHECK(shell(file->folder, "cp data mnt/data && sync"));
    CHECK(ek_disk_create(&c, &d) == EK_OK);
    fill_disk(d, file, buffer);
    lose_device(d, file, buffer);
    ek_disk_destroy(&d);
    shell(file->folder, "umount -l mnt");
    free(buffer);
    return ek_t.failed > 0;
}

static void a_real_disk_is_full_and_fails(void)
{
    if (geteuid() != 0)
        SKIP("mounting a file as a disk needs root");
    for (size_t b = 0; b < 2; b++) {
        disk_file file;
        int status = 0;
        pid_t child;

        CHECK(make_disk_file(&file, BYTES));
        fflush(NULL);
        child = fork();
        if (child == 0) {
            ek_t.failed = 0;
            _exit(use_small_disk(tried[b], &file));
        }
        CHECK(child > 0 && waitpid(child, &status, 0) == child);
        remove_disk_file(&file);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
            SKIP("no loop device, mkfs.ext4 or mount namespace here");
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

static const ek_case cases[] = {
    EK_CASE(every_call_fails_in_turn),       EK_CASE(all_calls_fail_from_one_on),
    EK_CASE(a_failure_is_one_sentence),      EK_CASE(files_are_opened_for_waiting),
    EK_CASE(a_file_is_cut_short_while_open), EK_CASE(io_uring_is_forbidden),
    EK_CASE(a_real_disk_is_full_and_fails),
};

EK_TEST_MAIN(cases)
