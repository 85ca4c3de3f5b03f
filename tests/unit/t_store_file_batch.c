/* Batches of pieces of files: what is read together, and from where; teams of threads that read
 * ahead; failures. */
#include "disk_fixture.h"
#include "faulty_disk_io.h"
#include "store/read_ahead.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

enum { MIB = 1 << 20, FILE_BYTES = 5 * MIB + 1234 };

/* --- a batch ---------------------------------------------------------------------------------- */

static void near_pieces_are_one_range(void)
{
    ek_file_batch b = {0};

    CHECK(ek_file_batch_add(&b, "x", 1000000, 10) == EK_OK);
    CHECK(ek_file_batch_add(&b, "x", 5000000, 20) == EK_OK);
    CHECK(ek_file_batch_add(&b, "y", 1000010, 10) == EK_OK);
    CHECK_INT(b.n, 3);
    CHECK_INT(ek_file_batch_room(&b), 3 * EK_DISK_ALIGN);
    CHECK(ek_file_batch_add(&b, "x", 999000, 100) == EK_OK);
    CHECK_INT(b.n, 3);
    CHECK(ek_file_batch_add(&b, "x", 1040000, 3930000) == EK_OK); /* near both */
    CHECK_INT(b.n, 2);
    for (int64_t i = 0; i < b.n; i++)
        if (strcmp(b.ranges[i].path, "x") == 0) {
            CHECK_INT(b.ranges[i].at, 999000);
            CHECK_INT(b.ranges[i].bytes, 5000020 - 999000);
        }
    CHECK(ek_file_batch_find(&b, "y", 1000009, 10) == NULL);
    CHECK(ek_file_batch_find(&b, "x", 5000011, 10) == NULL);
    CHECK(ek_file_batch_find(&b, "z", 1000010, 10) == NULL);
    ek_file_batch_clear(&b);
    CHECK_INT(ek_file_batch_room(&b), 0);
    ek_file_batch_free(&b);
}

/* --- where from ------------------------------------------------------------------------------- */

typedef struct {
    int64_t at, bytes;
} piece;

static const piece pieces[] = {{0, 1}, {700001, 2 * MIB}, {4 * MIB - 1, 3}, {FILE_BYTES - 9, 9}};

/* Reads the pieces; their bytes are those of the file. */
static ek_status read_pieces(ek_file_reader *r, const disk_file *f)
{
    ek_file_batch b = {0};
    unsigned char *buffer = NULL;
    ek_status st;

    for (size_t i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++)
        CHECK(ek_file_batch_add(&b, f->path, pieces[i].at, pieces[i].bytes) == EK_OK);
    buffer = aligned_buffer(ek_file_batch_room(&b));
    st = ek_file_reader_start(r, &b, buffer, ek_file_batch_room(&b));
    if (st >= 0)
        st = ek_file_reader_wait(r, &b);
    for (size_t i = 0; st >= 0 && i < sizeof(pieces) / sizeof(pieces[0]); i++) {
        const void *p = ek_file_batch_find(&b, f->path, pieces[i].at, pieces[i].bytes);

        CHECK(p != NULL && memcmp(p, f->bytes + pieces[i].at, (size_t)pieces[i].bytes) == 0);
    }
    ek_file_reader_destroy(&r); /* nothing is in flight any more */
    ek_file_batch_free(&b);
    free(buffer);
    return st;
}

static ek_file_reader *open_reader(ek_disk_backend backend, int through_cache, const ek_disk_io *io)
{
    ek_file_reader *r = NULL;
    ek_status st = ek_file_reader_create(
        &(ek_file_reader_config){.backend = backend, .through_cache = through_cache, .io = io}, &r);

    CHECK(st == EK_OK || st == EK_EUNSUPPORTED);
    return r;
}

static void drop_file(const disk_file *f)
{
    int fd = open(f->path, O_RDONLY);

    CHECK(fd >= 0 && posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0 && close(fd) == 0);
}

/* Pages of a file that are in the page cache. */
static size_t cached_pages_of(const disk_file *f, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = (bytes + page - 1) / page, n = 0;
    unsigned char *is_there = malloc(pages);
    int fd = open(f->path, O_RDWR); /* mincore answers only who may write a file */
    void *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);

    CHECK(is_there != NULL && fd >= 0 && map != MAP_FAILED);
    CHECK(mincore(map, bytes, is_there) == 0);
    for (size_t i = 0; i < pages; i++)
        n += is_there[i] & 1;
    CHECK(munmap(map, bytes) == 0 && close(fd) == 0);
    free(is_there);
    return n;
}

static void warm_file(const disk_file *f)
{
    int fd = open(f->path, O_RDONLY);
    char *to = malloc(FILE_BYTES);

    CHECK(fd >= 0);
    while (read(fd, to, FILE_BYTES) > 0)
        ;
    CHECK(close(fd) == 0);
    free(to);
}

/* Bytes that a batch reads past the page cache, and through it. */
static ek_file_reader_bytes bytes_read(const disk_file *f, ek_disk_backend backend,
                                       int through_cache)
{
    ek_file_reader_bytes n = {0};
    ek_file_batch b = {0};
    unsigned char *buffer = aligned_buffer(FILE_BYTES);
    ek_file_reader *r = open_reader(backend, through_cache, NULL);

    if (r != NULL) {
        CHECK(ek_file_batch_add(&b, f->path, MIB, MIB) == EK_OK);
        CHECK(ek_file_reader_start(r, &b, buffer, FILE_BYTES) == EK_OK);
        CHECK(ek_file_reader_wait(r, &b) == EK_OK);
        CHECK(memcmp(ek_file_batch_find(&b, f->path, MIB, MIB), f->bytes + MIB, MIB) == 0);
        n = ek_file_reader_bytes_of(r);
    }
    ek_file_reader_destroy(&r);
    ek_file_batch_free(&b);
    free(buffer);
    return n;
}

/* The same after pages were dropped.  Looking for a page makes the system read it: where it arrives
 * before the look has ended, the range is taken for a cached one, so this tries again. */
static ek_file_reader_bytes bytes_of_dropped(const disk_file *f, ek_disk_backend backend)
{
    ek_file_reader_bytes n = {0};

    for (int try = 0; try < 10 && n.direct == 0; try++) {
        drop_file(f);
        n = bytes_read(f, backend, 0);
    }
    return n;
}

static int takes_direct_reads(const disk_file *f)
{
    ek_disk *d = open_disk(NULL, EK_DISK_POOL);
    ek_disk_file *file = NULL;
    int direct;

    CHECK(ek_disk_open(d, f->path, EK_DISK_READ, &file) == EK_OK);
    direct = ek_disk_is_direct(file);
    ek_disk_destroy(&d);
    return direct;
}

static void cached_pages_are_read_from_the_page_cache(void)
{
    disk_file f;
    int direct;

    CHECK(make_disk_file(&f, FILE_BYTES));
    direct = takes_direct_reads(&f);
    for (size_t i = 0; i < sizeof(backends) / sizeof(backends[0]); i++) {
        ek_file_reader_bytes n = bytes_of_dropped(&f, backends[i]);

        if (direct && n.direct + n.cached > 0)
            CHECK(n.direct == MIB && n.cached == 0);
        warm_file(&f);
        n = bytes_read(&f, backends[i], 0);
        CHECK(n.direct == 0);
        drop_file(&f);
        n = bytes_read(&f, backends[i], 1);
        CHECK(n.direct == 0);
    }
    remove_disk_file(&f);
}

/* Most of the pages that were read beyond a limit are dropped, where the system has kept them until
 * then and drops any. */
static void pages_beyond_a_limit_are_dropped(void)
{
    enum { SIZE = 96 * MIB };
    ek_file_reader_config c = {.backend = EK_DISK_POOL, .through_cache = 1, .cache_bytes = 8 * MIB};
    unsigned char *buffer = aligned_buffer(MIB + 2 * EK_DISK_ALIGN);
    ek_file_reader *r = NULL;
    ek_file_batch b = {0};
    size_t all, left;
    disk_file f;

    CHECK(make_disk_file(&f, SIZE));
    warm_file(&f);
    all = cached_pages_of(&f, SIZE);
    CHECK(ek_file_reader_create(&c, &r) == EK_OK);
    for (int64_t at = 0; at < SIZE; at += MIB) {
        ek_file_batch_clear(&b);
        CHECK(ek_file_batch_add(&b, f.path, at, MIB) == EK_OK);
        CHECK(ek_file_reader_start(r, &b, buffer, MIB) == EK_OK);
        CHECK(ek_file_reader_wait(r, &b) == EK_OK);
    }
    left = cached_pages_of(&f, SIZE);
    drop_file(&f);
    if (all == SIZE / (size_t)sysconf(_SC_PAGESIZE) && cached_pages_of(&f, SIZE) < all / 2)
        CHECK(left < all / 2);
    ek_file_reader_destroy(&r);
    ek_file_batch_free(&b);
    free(buffer);
    remove_disk_file(&f);
}

/* --- failures --------------------------------------------------------------------------------- */

/* Each call fails once, and each from there on: the bytes are right, or one sentence says what is
 * wrong. */
static void fail_each_call(const disk_file *f, ek_disk_backend backend, int cached, int error)
{
    for (int always = 0; always < 2; always++)
        for (int at = 1, calls = at; at <= calls + 1; at++) { /* the last lets all succeed */
            ek_file_reader *r;
            ek_status st;

            if (cached)
                warm_file(f);
            else
                drop_file(f);
            arm_disk_fault(at, error, always);
            r = open_reader(backend, 0, &faulty_disk_io);
            if (r == NULL)
                return;
            st = read_pieces(r, f);
            calls = atomic_load(&faulty_disk.calls);
            CHECK(st == EK_OK || st == EK_EIO || st == EK_EFORMAT);
            if (st < 0 && error > 0)
                CHECK(strstr(ek_err_message(), f->path) != NULL &&
                      strstr(ek_err_message(), "Input/output error") != NULL);
        }
    arm_disk_fault(0, 0, 0);
}

static void every_call_may_fail(void)
{
    disk_file f;

    CHECK(make_disk_file(&f, FILE_BYTES));
    for (size_t i = 0; i < sizeof(backends) / sizeof(backends[0]); i++)
        for (int cached = 0; cached < 2; cached++) {
            fail_each_call(&f, backends[i], cached, EIO);
            fail_each_call(&f, backends[i], cached, 0);
        }
    remove_disk_file(&f);
}

static void a_file_that_was_cut_short_is_said(void)
{
    disk_file f;

    CHECK(make_disk_file(&f, FILE_BYTES));
    CHECK(truncate(f.path, 2 * MIB) == 0);
    for (size_t i = 0; i < sizeof(backends) / sizeof(backends[0]); i++)
        for (int through_cache = 0; through_cache < 2; through_cache++) {
            ek_file_reader *r = open_reader(backends[i], through_cache, NULL);

            if (r == NULL)
                continue;
            CHECK_INT(read_pieces(r, &f), EK_EFORMAT);
            CHECK(strstr(ek_err_message(), "the file was cut short") != NULL);
        }
    remove_disk_file(&f);
}

/* --- reading ahead ---------------------------------------------------------------------------- */

enum { BATCHES = 400, TEAM = 6 };

typedef struct {
    const disk_file *f;
    ek_read_ahead *ahead;
    atomic_int taken[BATCHES], failures, wrong;
    int64_t described; /* batches */
    int fails_at;      /* this batch cannot be described; -1: all can */
} team;

static int64_t batch_at(int64_t i)
{
    return i * 12345;
}

static ek_status describe(void *context, int64_t i, ek_file_batch *b)
{
    team *t = context;

    if (t->described++ != i)
        atomic_fetch_add(&t->wrong, 1);
    EK_REQUIRE(i != t->fails_at, EK_EINTERNAL, "batch %lld has no description", (long long)i);
    return ek_file_batch_add(b, t->f->path, batch_at(i), 4000 + i);
}

static void *take_batches(void *arg)
{
    team *t = arg;
    ek_file_batch *b;
    ek_status st;
    int64_t i;

    while ((st = ek_read_ahead_take(t->ahead, &i, &b)) >= 0 && i >= 0) {
        const void *p = ek_file_batch_find(b, t->f->path, batch_at(i), 4000 + i);

        atomic_fetch_add(&t->taken[i], 1);
        if (p == NULL || memcmp(p, t->f->bytes + batch_at(i), (size_t)(4000 + i)) != 0)
            atomic_fetch_add(&t->wrong, 1);
        ek_read_ahead_give_back(t->ahead, b);
    }
    if (st < 0)
        atomic_fetch_add(&t->failures, 1);
    return NULL;
}

/* Lets a team read; more threads than buffers, too. */
static void run_team(team *t, const disk_file *f, ek_disk_backend backend, int buffers,
                     const ek_disk_io *io)
{
    ek_read_ahead_config c = {.batches = BATCHES,
                              .buffers = buffers,
                              .room = 2 * EK_DISK_ALIGN + 4096,
                              .describe = describe,
                              .context = t,
                              .reader = {.backend = backend, .io = io}};
    pthread_t threads[TEAM];

    t->f = f;
    if (ek_read_ahead_create(&c, &t->ahead) < 0)
        return;
    for (int i = 0; i < TEAM; i++)
        CHECK(pthread_create(&threads[i], NULL, take_batches, t) == 0);
    for (int i = 0; i < TEAM; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    ek_read_ahead_destroy(&t->ahead);
    CHECK_INT(t->wrong, 0);
}

static int count_taken(const team *t)
{
    int n = 0;

    for (int i = 0; i < BATCHES; i++) {
        CHECK(t->taken[i] <= 1);
        n += t->taken[i];
    }
    return n;
}

static void a_team_gets_each_batch_once(void)
{
    static const int buffers[] = {1, 2, 5, 20};
    disk_file f;

    CHECK(make_disk_file(&f, FILE_BYTES));
    for (size_t i = 0; i < sizeof(buffers) / sizeof(buffers[0]); i++) {
        team t = {.fails_at = -1};

        drop_file(&f);
        run_team(&t, &f, EK_DISK_AUTO, buffers[i], NULL);
        CHECK_INT(count_taken(&t), BATCHES);
        CHECK_INT(t.failures, 0);
    }
    remove_disk_file(&f);
}

/* The team ends after a failure, which one thread gets (in flight, several may fail). */
static void a_failure_ends_a_team(void)
{
    disk_file f;

    CHECK(make_disk_file(&f, FILE_BYTES));
    for (int buffers = 1; buffers < 20; buffers += 6) {
        team t = {.fails_at = 200};

        run_team(&t, &f, EK_DISK_AUTO, buffers, NULL);
        CHECK_INT(t.failures, 1);
        CHECK(count_taken(&t) <= 200);
    }
    for (int at = 1; at < 300; at += 37) {
        team t = {.fails_at = -1};

        drop_file(&f);
        arm_disk_fault(at, EIO, 1);
        run_team(&t, &f, EK_DISK_POOL, 4, &faulty_disk_io);
        CHECK(t.failures >= 1);
        CHECK(count_taken(&t) < BATCHES);
    }
    arm_disk_fault(0, 0, 0);
    remove_disk_file(&f);
}

static const ek_case cases[] = {
    EK_CASE(near_pieces_are_one_range),
    EK_CASE(cached_pages_are_read_from_the_page_cache),
    EK_CASE(pages_beyond_a_limit_are_dropped),
    EK_CASE(every_call_may_fail),
    EK_CASE(a_file_that_was_cut_short_is_said),
    EK_CASE(a_team_gets_each_batch_once),
    EK_CASE(a_failure_ends_a_team),
};
EK_TEST_MAIN(cases)
