/* The disk queue against pread and pwrite, with each back end: ranges, order, many requests in
 * flight, cancelling and closing, counters. */
#include "count_allocations.h"
#include "disk_fixture.h"

#include <inttypes.h>
#include <pthread.h>

enum { SIZE = 300 * 1024 + 777, GUARD = 64 };

#define EACH_BACKEND(b)                                                                            \
    for (const ek_disk_backend *b = backends; b < backends + sizeof(backends) / sizeof(*b); b++)

/* Reads a range and compares it; nothing behind the room is written. */
static void check_read(ek_disk *d, ek_disk_file *f, const disk_file *file, size_t offset,
                       size_t bytes)
{
    size_t room = ek_disk_span_of((int64_t)offset, bytes).bytes;
    unsigned char *buffer = aligned_buffer(room + GUARD);
    ek_disk_request r = read_of(f, offset, bytes, buffer);

    memset(buffer, 0xa5, room + GUARD);
    CHECK(ek_disk_start(d, &r) == EK_OK && ek_disk_wait(d, &r) == EK_OK);
    CHECK(r.data == buffer + offset % EK_DISK_ALIGN);
    CHECK(memcmp(r.data, file->bytes + offset, bytes) == 0);
    for (size_t i = 0; i < GUARD; i++)
        if (buffer[room + i] != 0xa5) {
            EK_T_FAIL("offset %zu, %zu bytes: byte %zu behind the room was written", offset, bytes,
                      i);
            break;
        }
    free(buffer);
}

/* Every edge of a block, at the beginning, in the middle and at the end of the file, with calls of
 * one block, some blocks, and all. */
static void any_range_is_read(void)
{
    const size_t pieces[] = {EK_DISK_ALIGN, 5 * EK_DISK_ALIGN, EK_DISK_PIECE};
    const size_t starts[] = {0, EK_DISK_ALIGN, 17 * EK_DISK_ALIGN, SIZE};
    const size_t sizes[] = {1, 2, 511, 4095, 4096, 4097, 8191, 8192, 8193, 20480, 100001, SIZE};
    disk_file file;

    CHECK(make_disk_file(&file, SIZE));
    EACH_BACKEND(b)
    for (size_t p = 0; p < 3; p++) {
        ek_disk_config c = {.piece_bytes = pieces[p], .depth = 3};
        ek_disk *d = open_disk(&c, *b);
        ek_disk_file *f = NULL;

        if (d == NULL)
            continue;
        CHECK(ek_disk_open(d, file.path, EK_DISK_READ, &f) == EK_OK);
        CHECK_INT(ek_disk_file_bytes(f), SIZE);
        for (size_t s = 0; s < 4; s++)
            for (int shift = -2; shift <= 2; shift++)
                for (size_t n = 0; n < sizeof(sizes) / sizeof(sizes[0]); n++) {
                    int64_t bytes = (int64_t)sizes[n], offset = (int64_t)starts[s] + shift;

                    if (offset >= 0 && offset + bytes <= SIZE)
                        check_read(d, f, &file, (size_t)offset, sizes[n]);
                    if (shift <= 0 && bytes <= SIZE + shift) /* the file's end */
                        check_read(d, f, &file, (size_t)(SIZE + shift - bytes), sizes[n]);
                }
        ek_disk_destroy(&d);
        CHECK(d == NULL);
    }
    remove_disk_file(&file);
}

static void spans_are_rounded_outwards(void)
{
    ek_disk_span s = ek_disk_span_of(4095, 2);

    CHECK(s.offset == 0 && s.bytes == 8192 && s.skip == 4095);
    s = ek_disk_span_of(8192, 4096);
    CHECK(s.offset == 8192 && s.bytes == 4096 && s.skip == 0);
    for (size_t bytes = 1; bytes < 10000; bytes += 7) {
        size_t most = 0;

        for (int64_t offset = 0; offset < EK_DISK_ALIGN; offset++)
            if (ek_disk_span_of(offset, bytes).bytes > most)
                most = ek_disk_span_of(offset, bytes).bytes;
        CHECK(ek_disk_room(bytes) == most);
    }
}

/* Writes aligned ranges in a new file and in a scratch file, and reads them back by both ways. */
static void what_is_written_is_read(void)
{
    enum { BLOCKS = 40, BYTES = BLOCKS * EK_DISK_ALIGN };
    disk_file file;

    CHECK(make_disk_file(&file, BYTES));
    EACH_BACKEND(b)
    {
        ek_disk_config c = {.piece_bytes = 3 * EK_DISK_ALIGN, .depth = 4};
        ek_disk *d = open_disk(&c, *b);
        ek_disk_file *files[2] = {0};
        unsigned char *data = aligned_buffer(BYTES);
        char path[160];

        if (d == NULL) {
            free(data);
            continue;
        }
        memcpy(data, file.bytes, BYTES);
        snprintf(path, sizeof(path), "%s/new%d", file.folder, (int)*b);
        CHECK(ek_disk_open(d, path, EK_DISK_UPDATE, &files[0]) == EK_OK);
        CHECK(ek_disk_open_scratch(d, file.folder, BYTES, &files[1]) == EK_OK);
        CHECK_INT(ek_disk_file_bytes(files[1]), BYTES);
        for (int i = 0; i < 2; i++) {
            ek_disk_request w[BLOCKS];
            int n = 0;

            for (size_t at = 0, size = 1; at < BLOCKS; at += size, size = size % 7 + 1) {
                size = size < BLOCKS - at ? size : BLOCKS - at;
                w[n] = read_of(files[i], at * EK_DISK_ALIGN, size * EK_DISK_ALIGN,
                               data + at * EK_DISK_ALIGN);
                w[n].write = 1;
                CHECK(ek_disk_start(d, &w[n++]) == EK_OK);
            }
            ek_disk_wait_all(d);
            while (n > 0)
                CHECK(ek_disk_test(d, &w[--n]) == EK_OK);
            CHECK(ek_disk_sync(files[i]) == EK_OK);
            check_read(d, files[i], &file, 4097, BYTES - 5000);
        }
        CHECK(ek_disk_close(&files[0]) == EK_OK && files[0] == NULL);
        memset(data, 0, BYTES);
        {
            int fd = open(path, O_RDONLY);

            CHECK(fd >= 0 && read(fd, data, BYTES) == BYTES);
            CHECK(memcmp(data, file.bytes, BYTES) == 0);
            close(fd);
        }
        ek_disk_destroy(&d);
        free(data);
    }
    remove_disk_file(&file);
}

/* Requests of many sizes, more than may be in flight: each is collected once, by poll or by test,
 * and only as many calls as allowed are in flight. */
static void many_requests_are_in_flight(void)
{
    enum { N = 200 };
    disk_file file;

    CHECK(make_disk_file(&file, SIZE));
    EACH_BACKEND(b)
    {
        ek_disk_config c = {.piece_bytes = 2 * EK_DISK_ALIGN, .depth = 5};
        ek_disk *d = open_disk(&c, *b);
        ek_disk_request r[N] = {0}, *ended;
        ek_disk_file *f = NULL;
        ek_disk_stats stats;
        int seen[N] = {0};
        int64_t asked = 0;

        if (d == NULL)
            continue;
        CHECK(ek_disk_open(d, file.path, EK_DISK_READ, &f) == EK_OK);
        CHECK(ek_disk_poll(d) == NULL && ek_disk_wait_any(d) == NULL);
        for (size_t i = 0; i < N; i++) {
            size_t offset = i * 7919 % SIZE, bytes = 1 + i * 104729 % 30000;

            bytes = bytes < SIZE - offset ? bytes : SIZE - offset;
            r[i] = read_of(f, offset, bytes, aligned_buffer(ek_disk_room(bytes)));
            r[i].tag = i;
            r[i].background = i % 3 == 0;
            asked += (int64_t)bytes;
            CHECK(ek_disk_start(d, &r[i]) == EK_OK);
            ek_disk_stats_of(d, &stats);
            CHECK(stats.in_flight <= 5);
        }
        for (size_t i = 0; i < N; i += 10) { /* these by hand, the others as they come */
            CHECK(ek_disk_wait(d, &r[i]) == EK_OK);
            seen[i]++;
        }
        while ((ended = ek_disk_wait_any(d)) != NULL) {
            CHECK(ended == &r[ended->tag]);
            CHECK(ek_disk_result(ended) == EK_OK);
            seen[ended->tag]++;
        }
        for (size_t i = 0; i < N; i++) {
            CHECK_INT(seen[i], 1);
            CHECK(memcmp(r[i].data, file.bytes + r[i].offset, r[i].bytes) == 0);
            free(r[i].buffer);
        }
        ek_disk_stats_of(d, &stats);
        CHECK_INT(stats.read.requests, N);
        CHECK_INT(stats.read.failed, 0);
        CHECK_INT(stats.read.bytes, asked);
        CHECK_INT(stats.in_flight, 0);
        CHECK_INT(stats.unfinished, 0);
        CHECK_INT(stats.written.requests + stats.written.calls + stats.written.moved, 0);
        CHECK(stats.read.time_ns >= stats.read.time_max_ns && stats.read.time_max_ns > 0);
        CHECK(stats.busy_ns > 0);
        ek_disk_destroy(&d);
    }
    remove_disk_file(&file);
}

/* Whether of two reads that wait behind one the one in the background ends last. */
static int background_is_last(ek_disk *d, ek_disk_file *f)
{
    ek_disk_request r[3], *ended[3];

    for (int i = 0; i < 3; i++) {
        r[i] = read_of(f, 0, 65536, aligned_buffer(65536));
        r[i].background = i < 2;
        CHECK(ek_disk_start(d, &r[i]) == EK_OK);
    }
    for (int i = 0; i < 3; i++)
        ended[i] = ek_disk_wait_any(d);
    CHECK(ended[0] == &r[0]);
    CHECK(ended[1] == &r[1] || ended[1] == &r[2]);
    CHECK(ended[2] == &r[1] || ended[2] == &r[2]);
    for (int i = 0; i < 3; i++)
        free(r[i].buffer);
    return ended[1] == &r[2];
}

/* One call at a time: of two that wait, the one in the background starts last.  On a busy machine
 * the first may end before the third is there, and the second starts with good reason. */
static void background_requests_start_last(void)
{
    disk_file file;

    CHECK(make_disk_file(&file, SIZE));
    EACH_BACKEND(b)
    {
        ek_disk_config c = {.depth = 1};
        ek_disk *d = open_disk(&c, *b);
        ek_disk_file *f = NULL;
        int last = 0;

        if (d == NULL)
            continue;
        CHECK(ek_disk_open(d, file.path, EK_DISK_READ, &f) == EK_OK);
        for (int i = 0; i < 100 && !last; i++)
            last = background_is_last(d, f);
        CHECK(last);
        ek_disk_destroy(&d);
    }
    remove_disk_file(&file);
}

/* Closing a file and destroying a queue end what is in flight; so does cancelling. */
static void requests_end_early(void)
{
    enum { N = 40, WAYS = 4 };
    disk_file file;

    CHECK(make_disk_file(&file, SIZE));
    EACH_BACKEND(b)
    for (int way = 0; way < WAYS; way++) {
        ek_disk_config c = {.piece_bytes = EK_DISK_ALIGN, .depth = 4};
        ek_disk *d = open_disk(&c, *b);
        ek_disk_request r[N];
        ek_disk_file *f = NULL;
        int canceled = 0;

        if (d == NULL)
            break;
        CHECK(ek_disk_open(d, file.path, EK_DISK_READ, &f) == EK_OK);
        for (int i = 0; i < N; i++) {
            r[i] = read_of(f, 0, SIZE, aligned_buffer(SIZE));
            CHECK(ek_disk_start(d, &r[i]) == EK_OK);
        }
        if (way == 0) {
            ek_disk_cancel_all(d);
        } else if (way == 1) {
            CHECK(ek_disk_close(&f) == EK_OK);
            CHECK(ek_disk_wait_any(d) == NULL);
        } else if (way == 2) {
            ek_disk_destroy(&d);
        } else {
            for (int i = N - 1; i >= 0; i--)
                ek_disk_cancel(d, &r[i]);
            ek_disk_wait_all(d);
        }
        for (int i = 0; i < N && (way == 0 || way == 3); i++) {
            ek_status st = ek_disk_test(d, &r[i]);

            CHECK(st == EK_OK || st == EK_ECANCELED);
            canceled += st == EK_ECANCELED;
            if (st == EK_OK)
                CHECK(memcmp(r[i].data, file.bytes, SIZE) == 0);
            else
                CHECK(strstr(ek_err_message(), file.path) != NULL);
        }
        CHECK(canceled > 0 || way == 1 || way == 2);
        for (int i = 0; i < N; i++)
            free(r[i].buffer);
        ek_disk_destroy(&d);
    }
    remove_disk_file(&file);
}

/* A queue whose requests were all cancelled works on. */
static void a_cancelled_request_is_used_again(void)
{
    disk_file file;

    CHECK(make_disk_file(&file, SIZE));
    EACH_BACKEND(b)
    {
        ek_disk *d = open_disk(NULL, *b);
        ek_disk_request r;
        ek_disk_file *f = NULL;

        if (d == NULL)
            continue;
        CHECK(ek_disk_open(d, file.path, EK_DISK_READ, &f) == EK_OK);
        r = read_of(f, 0, SIZE, aligned_buffer(SIZE));
        for (int i = 0; i < 10; i++) {
            CHECK(ek_disk_start(d, &r) == EK_OK);
            ek_disk_cancel_all(d); /* not collected: as if it were forgotten */
        }
        CHECK(ek_disk_start(d, &r) == EK_OK && ek_disk_wait(d, &r) == EK_OK);
        CHECK(memcmp(r.data, file.bytes, SIZE) == 0);
        CHECK(ek_disk_poll(d) == NULL);
        free(r.buffer);
        ek_disk_destroy(&d);
    }
    remove_disk_file(&file);
}

/* Bytes that this process has read from and written to disks. */
static int disk_bytes(int64_t *read, int64_t *written)
{
    FILE *f = fopen("/proc/self/io", "r");
    char line[128];
    int found = 0;

    while (f != NULL && fgets(line, sizeof(line), f) != NULL)
        found += sscanf(line, "read_bytes: %" SCNd64, read) == 1 ||
                 sscanf(line, "write_bytes: %" SCNd64, written) == 1;
    if (f != NULL)
        fclose(f);
    return found == 2;
}

static void counters_are_those_of_the_kernel(void)
{
    enum { BYTES = 64 * EK_DISK_ALIGN };
    disk_file file;
    int64_t read[2], written[2];

    if (!disk_bytes(&read[0], &written[0]))
        SKIP("no /proc/self/io");
    CHECK(make_disk_file(&file, BYTES));
    EACH_BACKEND(b)
    {
        ek_disk *d = open_disk(NULL, *b);
        unsigned char *data = aligned_buffer(BYTES);
        ek_disk_file *f = NULL;
        int equal = 0;

        if (d != NULL)
            CHECK(ek_disk_open_scratch(d, file.folder, BYTES, &f) == EK_OK);
        /* Other pages of this process may be read meanwhile, so it may take a second time. */
        for (int i = 0; d != NULL && i < 5 && !equal; i++) {
            ek_disk_request w = read_of(f, 0, BYTES, data), r = read_of(f, 5000, 70000, data);
            ek_disk_stats before, after;

            w.write = 1;
            ek_disk_stats_of(d, &before);
            CHECK(disk_bytes(&read[0], &written[0]));
            CHECK(ek_disk_start(d, &w) == EK_OK && ek_disk_wait(d, &w) == EK_OK);
            CHECK(ek_disk_start(d, &r) == EK_OK && ek_disk_wait(d, &r) == EK_OK);
            CHECK(disk_bytes(&read[1], &written[1]));
            ek_disk_stats_of(d, &after);
            CHECK_INT(after.read.moved - before.read.moved,
                      (int64_t)ek_disk_span_of(5000, 70000).bytes);
            CHECK_INT(after.written.moved - before.written.moved, BYTES);
            equal = after.read.moved - before.read.moved == read[1] - read[0] &&
                    after.written.moved - before.written.moved == written[1] - written[0];
        }
        if (d != NULL && ek_disk_is_direct(f))
            CHECK(equal);
        else
            fprintf(stderr, "not compared with /proc/self/io: no direct access here\n");
        free(data);
        ek_disk_destroy(&d);
    }
    remove_disk_file(&file);
}

static void requests_do_not_allocate(void)
{
    disk_file file;

    CHECK(make_disk_file(&file, SIZE));
    EACH_BACKEND(b)
    {
        ek_disk_config c = {.piece_bytes = EK_DISK_ALIGN};
        ek_disk *d = open_disk(&c, *b);
        ek_disk_file *f = NULL;
        ek_disk_request r[4];

        if (d == NULL)
            continue;
        CHECK(ek_disk_open(d, file.path, EK_DISK_READ, &f) == EK_OK);
        for (int i = 0; i < 4; i++)
            r[i] = read_of(f, (size_t)i * 1000, SIZE - 4000, aligned_buffer(SIZE));
        for (int round = 0; round < 2; round++) {
            atomic_store(&counting, round);
            for (int i = 0; i < 4; i++)
                CHECK(ek_disk_start(d, &r[i]) == EK_OK);
            while (ek_disk_wait_any(d) != NULL) {
            }
            atomic_store(&counting, 0);
        }
        CHECK_INT(atomic_load(&allocations), 0);
        for (int i = 0; i < 4; i++)
            free(r[i].buffer);
        ek_disk_destroy(&d);
    }
    remove_disk_file(&file);
}

/* Reads into registered memory, beside it, and over its end. */
static void registered_memory_is_read_into(void)
{
    enum { BYTES = 32 * EK_DISK_ALIGN };
    disk_file file;

    CHECK(make_disk_file(&file, SIZE));
    EACH_BACKEND(b)
    {
        unsigned char *all = aligned_buffer(4 * BYTES);
        const ek_disk_memory memory[] = {{all, BYTES}, {all + BYTES, BYTES}};
        ek_disk_config c = {.memory = memory, .n_memory = 2, .piece_bytes = 5 * EK_DISK_ALIGN};
        ek_disk *d = open_disk(&c, *b);
        ek_disk_file *f = NULL;

        if (d != NULL) {
            CHECK(ek_disk_registered(d) == 0 || ek_disk_registered(d) == 2 * BYTES);
            CHECK(*b == EK_DISK_URING || ek_disk_registered(d) == 0);
            CHECK(ek_disk_open(d, file.path, EK_DISK_READ, &f) == EK_OK);
            for (size_t at = 0; at <= 3 * BYTES; at += 3 * EK_DISK_ALIGN) {
                ek_disk_request r = read_of(f, 1234, BYTES - 5000, all + at);

                memset(all, 0, 4 * BYTES);
                CHECK(ek_disk_start(d, &r) == EK_OK && ek_disk_wait(d, &r) == EK_OK);
                CHECK(memcmp(r.data, file.bytes + 1234, r.bytes) == 0);
            }
        }
        ek_disk_destroy(&d);
        free(all);
    }
    remove_disk_file(&file);
}

typedef struct {
    ek_disk *d;
    ek_disk_file *f;
    const disk_file *file;
    int bad;
} reader;

static void *read_often(void *arg)
{
    reader *w = arg;
    unsigned char *buffer = aligned_buffer(ek_disk_room(20000));

    for (size_t i = 0; i < 200; i++) {
        ek_disk_request r = read_of(w->f, i * 997, 20000, buffer);

        w->bad += ek_disk_start(w->d, &r) != EK_OK || ek_disk_wait(w->d, &r) != EK_OK ||
                  memcmp(r.data, w->file->bytes + i * 997, 20000) != 0;
    }
    free(buffer);
    return NULL;
}

static void threads_share_a_queue(void)
{
    disk_file file;

    CHECK(make_disk_file(&file, SIZE));
    EACH_BACKEND(b)
    {
        ek_disk_config c = {.depth = 3, .piece_bytes = EK_DISK_ALIGN};
        reader readers[3] = {{.d = open_disk(&c, *b), .file = &file}};
        pthread_t threads[3];

        if (readers[0].d == NULL)
            continue;
        CHECK(ek_disk_open(readers[0].d, file.path, EK_DISK_READ, &readers[0].f) == EK_OK);
        readers[1] = readers[2] = readers[0];
        for (int i = 0; i < 3; i++)
            CHECK(pthread_create(&threads[i], NULL, read_often, &readers[i]) == 0);
        for (int i = 0; i < 3; i++) {
            pthread_join(threads[i], NULL);
            CHECK_INT(readers[i].bad, 0);
        }
        ek_disk_destroy(&readers[0].d);
    }
    remove_disk_file(&file);
}

static void *start_and_end(void *arg)
{
    ek_disk_request *r = arg;

    for (int i = 0; i < 8; i++)
        if (ek_disk_start((ek_disk *)(uintptr_t)r[i].tag, &r[i]) != EK_OK)
            return NULL;
    return arg;
}

/* A thread may end while what it has submitted is in flight. */
static void requests_outlive_their_thread(void)
{
    disk_file file;

    CHECK(make_disk_file(&file, SIZE));
    EACH_BACKEND(b)
    {
        ek_disk_config c = {.piece_bytes = EK_DISK_ALIGN};
        ek_disk *d = open_disk(&c, *b);
        ek_disk_file *f = NULL;
        ek_disk_request r[8];

        if (d == NULL)
            continue;
        CHECK(ek_disk_open(d, file.path, EK_DISK_READ, &f) == EK_OK);
        for (int i = 0; i < 8; i++) {
            r[i] = read_of(f, 0, SIZE, aligned_buffer(SIZE));
            r[i].tag = (uint64_t)(uintptr_t)d;
        }
        for (int round = 0; round < 20; round++) {
            pthread_t thread;
            void *done = NULL;

            CHECK(pthread_create(&thread, NULL, start_and_end, r) == 0);
            CHECK(pthread_join(thread, &done) == 0 && done != NULL);
            for (int i = 0; i < 8; i++)
                CHECK(ek_disk_wait(d, &r[i]) == EK_OK);
            CHECK(memcmp(r[7].data, file.bytes, SIZE) == 0);
        }
        for (int i = 0; i < 8; i++)
            free(r[i].buffer);
        ek_disk_destroy(&d);
    }
    remove_disk_file(&file);
}

static void misuse_is_refused(void)
{
    ek_disk_config bad[] = {{.depth = -1}, {.depth = EK_DISK_DEPTH_MAX + 1}, {.piece_bytes = 5000}};
    unsigned char *buffer = aligned_buffer(8192);
    ek_disk *d = NULL;
    ek_disk_file *f = NULL;
    ek_disk_request r;
    disk_file file;

    CHECK(make_disk_file(&file, SIZE));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        CHECK(ek_disk_create(&bad[i], &d) == EK_EINVAL && d == NULL);
    CHECK(ek_disk_create(NULL, &d) == EK_OK);
    CHECK(ek_disk_open(d, file.folder, EK_DISK_READ, &f) == EK_EFORMAT && f == NULL);
    CHECK(ek_disk_open(d, "/var/tmp/no such file", EK_DISK_READ, &f) == EK_ENOENT && f == NULL);
    CHECK(ek_disk_open(d, file.path, EK_DISK_READ, &f) == EK_OK);
    r = read_of(f, 100, 8000, buffer);
    r.room = 4096;
    CHECK(ek_disk_start(d, &r) == EK_EINVAL);
    r = read_of(f, 0, 4096, buffer + 512);
    CHECK(ek_disk_start(d, &r) == EK_EINVAL);
    r = read_of(f, 0, 0, buffer);
    CHECK(ek_disk_start(d, &r) == EK_EINVAL);
    r = read_of(f, 0, 4096, buffer);
    CHECK(ek_disk_test(d, &r) == EK_EINVAL);
    r.offset = -4096;
    CHECK(ek_disk_start(d, &r) == EK_EINVAL);
    r.offset = INT64_MAX;
    CHECK(ek_disk_start(d, &r) == EK_EINVAL);
    r = read_of(f, 0, 4096, buffer);
    r.write = 1;
    CHECK(ek_disk_start(d, &r) == EK_EINVAL); /* opened for reading */
    CHECK(ek_disk_close(&f) == EK_OK);
    CHECK(ek_disk_open(d, file.path, EK_DISK_UPDATE, &f) == EK_OK);
    r.file = f;
    r.offset = 100;
    r.room = 8192;
    CHECK(ek_disk_start(d, &r) == EK_EINVAL); /* a write that is not aligned */
    r.offset = 0;
    CHECK(ek_disk_start(d, &r) == EK_OK);
    CHECK(ek_disk_start(d, &r) == EK_EINVAL); /* in flight */
    ek_disk_wait_all(d);
    ek_disk_destroy(&d);
    ek_disk_destroy(&d);
    ek_disk_destroy(NULL);
    free(buffer);
    remove_disk_file(&file);
}

static const ek_case cases[] = {
    EK_CASE(spans_are_rounded_outwards),
    EK_CASE(any_range_is_read),
    EK_CASE(what_is_written_is_read),
    EK_CASE(many_requests_are_in_flight),
    EK_CASE(background_requests_start_last),
    EK_CASE(requests_end_early),
    EK_CASE(a_cancelled_request_is_used_again),
    EK_CASE(counters_are_those_of_the_kernel),
    EK_CASE(requests_do_not_allocate),
    EK_CASE(registered_memory_is_read_into),
    EK_CASE(threads_share_a_queue),
    EK_CASE(misuse_is_refused),
    EK_CASE(requests_outlive_their_thread),
};

EK_TEST_MAIN(cases)
