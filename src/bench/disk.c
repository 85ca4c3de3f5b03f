/* Reads of a file by size and calls in flight, with each back end of the disk queue, beside pread
 * through a cold page cache.
 *
 * A row's requests lie at random places of the file, at multiples of their size; so many of them
 * are submitted that as many calls are in flight as the row says: a request of more than 1 MiB is
 * cut into several.  The rates alternate, so that all see the same noise; the ceiling is
 * the best of them.  A disk of a virtual machine may be cached by its host, which cannot be seen
 * from here. */
#include "store/disk.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/random.h"
#include "bench/bench_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WAYS = 3, SIZES = 5, DEPTHS = 3, DEPTH_MAX = 16, MIB = 1 << 20, BUFFER_BYTES = 128 * MIB };

static const size_t sizes[SIZES] = {4096, 65536, MIB, 12 * MIB, 64 * MIB};
static const int depths[DEPTHS] = {1, 4, DEPTH_MAX};

/* The last reads through the page cache, one call at a time. */
static const struct {
    const char *name;
    ek_disk_backend backend;
} ways[WAYS] = {{"io_uring", EK_DISK_URING}, {"pread pool", EK_DISK_POOL}, {"buffered", 0}};

typedef struct {
    ek_path path;
    int fd; /* buffered */
    int direct;
    int64_t bytes;
    uint64_t reads;  /* so far, for the places of the next */
    ek_arena memory; /* huge pages, as the buffers of eval and generate */
    unsigned char *buffer;
    bench_samples rates[WAYS][SIZES][DEPTHS]; /* bytes/s */
} disk_bench;

/* --- the file --------------------------------------------------------------------------------- */

/* Fills a file with bytes that do not compress. */
static ek_status fill_file(int fd, int64_t mib, const char *dir)
{
    uint64_t *block = malloc(MIB);
    ek_status st = EK_OK;

    EK_REQUIRE(block != NULL, EK_ENOMEM, "no memory for a block");
    for (int64_t at = 0; at < mib && st == EK_OK; at++) {
        for (uint64_t i = 0; i < MIB / sizeof(*block); i++)
            block[i] = ek_random_bits(1, (uint64_t)at, i);
        for (size_t done = 0; done < MIB && st == EK_OK;) {
            ssize_t n = write(fd, (const char *)block + done, MIB - done);

            if (n > 0)
                done += (size_t)n;
            else if (n == 0 || errno != EINTR)
                st = ek_fail_errno(n == 0 ? ENOSPC : errno, "fill a file in", dir);
        }
    }
    free(block);
    if (st == EK_OK && fsync(fd) != 0)
        st = ek_fail_errno(errno, "sync a file in", dir);
    return st;
}

/* Opens the file to read, or makes one without a name, which ends with this process. */
static ek_status open_file(const bench *b, disk_bench *m)
{
    if (b->cfg->file != NULL) {
        EK_TRY(ek_path_set(&m->path, "%s", b->cfg->file));
        EK_TRY(ek_file_open(m->path.s, &m->fd, &m->bytes));
    } else {
        EK_TRY(ek_file_open_unnamed(b->cfg->dir, &m->fd));
        EK_TRY(fill_file(m->fd, b->cfg->file_mib, b->cfg->dir));
        EK_TRY(ek_path_set(&m->path, "/proc/self/fd/%d", m->fd));
        m->bytes = b->cfg->file_mib * MIB;
    }
    EK_REQUIRE(m->bytes >= MIB, EK_EINVAL, "%s is smaller than 1 MiB: nothing to measure",
               m->path.s);
    EK_TRY(ek_arena_init(&m->memory, BUFFER_BYTES, "buffers"));
    m->buffer = m->memory.base;
    memset(m->buffer, 1, BUFFER_BYTES); /* no page faults while measuring */
    return EK_OK;
}

static void close_file(disk_bench *m)
{
    if (m->fd >= 0)
        close(m->fd);
    ek_arena_fini(&m->memory);
}

/* --- measuring -------------------------------------------------------------------------------- */

/* A random place for a read of this size. */
static int64_t next_place(disk_bench *m, size_t size)
{
    uint64_t places = (uint64_t)m->bytes / size;

    return (int64_t)(ek_random_bits(2, 0, m->reads++) % places * size);
}

/* Submits a read of a random place. */
static ek_status start_read(disk_bench *m, ek_disk *d, ek_disk_request *r)
{
    r->offset = next_place(m, r->bytes);
    return ek_disk_start(d, r);
}

/* Keeps requests of `size` in flight, as many as fill the queue; r [DEPTH_MAX]. */
static ek_status read_queued(const bench *b, disk_bench *m, ek_disk *d, ek_disk_file *f,
                             size_t size, int depth, ek_disk_request *r, double *rate)
{
    int pieces = (int)((size + EK_DISK_PIECE - 1) / EK_DISK_PIECE);
    int n = (depth + pieces - 1) / pieces + (pieces > 1); /* one more: the queue stays full */
    int64_t start = ek_clock_ns(), until = start + ek_clock_from_s(b->cfg->seconds), now = start;
    ek_disk_request *ended;
    double bytes = 0;

    for (int i = 0; i < n; i++) {
        r[i] = (ek_disk_request){
            .file = f, .bytes = size, .buffer = m->buffer + (size_t)i * size, .room = size};
        EK_TRY(start_read(m, d, &r[i]));
    }
    while ((ended = ek_disk_wait_any(d)) != NULL) {
        EK_TRY(ek_disk_result(ended));
        bytes += (double)size;
        now = ek_clock_ns();
        if (now < until)
            EK_TRY(start_read(m, d, ended));
    }
    *rate = bytes / ((double)(now - start) * 1e-9);
    return EK_OK;
}

/* The same with pread, from a file without pages in memory. */
static ek_status read_buffered(const bench *b, disk_bench *m, size_t size, double *rate)
{
    int64_t start, until, now;
    double bytes = 0;

    EK_REQUIRE(posix_fadvise(m->fd, 0, 0, POSIX_FADV_DONTNEED) == 0, EK_EIO,
               "cannot drop the cached pages of %s", m->path.s);
    start = now = ek_clock_ns();
    until = start + ek_clock_from_s(b->cfg->seconds);
    while (now < until) {
        int64_t place = next_place(m, size);
        size_t got = 0;

        while (got < size) {
            ssize_t n = pread(m->fd, m->buffer + got, size - got, place + (int64_t)got);

            if (n <= 0)
                return ek_fail_errno(n < 0 ? errno : EIO, "read", m->path.s);
            got += (size_t)n;
        }
        bytes += (double)size;
        now = ek_clock_ns();
    }
    *rate = bytes / ((double)(now - start) * 1e-9);
    return EK_OK;
}

/* One sample of a size and depth with a back end; none where the system does not have it. */
static ek_status measure_backend(const bench *b, disk_bench *m, int way, int s, int depth)
{
    ek_disk_config c = {.backend = ways[way].backend, .depth = depths[depth]};
    ek_disk_request requests[DEPTH_MAX]; /* in flight until the queue is destroyed */
    ek_disk *d = NULL;
    ek_disk_file *f = NULL;
    double rate = 0;
    ek_status st = ek_disk_create(&c, &d);

    if (st == EK_EUNSUPPORTED)
        return EK_OK;
    EK_TRY(st);
    EK_TRY_OUT(ek_disk_open(d, m->path.s, EK_DISK_READ, &f));
    m->direct = ek_disk_is_direct(f);
    EK_TRY_OUT(read_queued(b, m, d, f, sizes[s], depths[depth], requests, &rate));
    bench_add(&m->rates[way][s][depth], rate);
out:
    ek_disk_destroy(&d);
    return st;
}

/* One sample of everything, what is compared one after the other. */
static ek_status measure(const bench *b, disk_bench *m)
{
    for (int s = 0; s < SIZES && (int64_t)sizes[s] <= m->bytes; s++) {
        double rate = 0;

        for (int depth = 0; depth < DEPTHS; depth++) {
            EK_TRY(measure_backend(b, m, 0, s, depth));
            EK_TRY(measure_backend(b, m, 1, s, depth));
        }
        EK_TRY(read_buffered(b, m, sizes[s], &rate));
        bench_add(&m->rates[2][s][0], rate);
    }
    return EK_OK;
}

/* --- printing --------------------------------------------------------------------------------- */

/* The best median rate. */
static double best_rate(const disk_bench *m)
{
    double best = 0;

    for (int w = 0; w < WAYS - 1; w++)
        for (int s = 0; s < SIZES; s++)
            for (int d = 0; d < DEPTHS; d++)
                if (m->rates[w][s][d].n > 0 && bench_stat_of(&m->rates[w][s][d]).median > best)
                    best = bench_stat_of(&m->rates[w][s][d]).median;
    return best;
}

static void say_rate(const bench *b, const bench_samples *s, double best)
{
    char rate[EK_COST_QUANTITY];

    if (s->n == 0) {
        bench_say(b, "  %9s %5s", "-", "");
        return;
    }
    bench_say(b, "  %9s %4.0f%%", ek_cost_quantity(rate, bench_stat_of(s).median, "B/s"),
              bench_stat_of(s).median / best * 100);
}

static void print_rates(bench *b, const disk_bench *m)
{
    json_t *rows = json_array();
    double best = best_rate(m);
    char rate[EK_COST_QUANTITY];

    bench_say(b,
              "reads of a file of %.0f MiB, %s\nrates, and of the best one, which is %s; "
              "buffered: pread through a cold page cache\n\n",
              (double)m->bytes / MIB, m->direct ? "O_DIRECT" : "no O_DIRECT here",
              ek_cost_quantity(rate, best, "B/s"));
    bench_say(b, "     size  calls");
    for (int w = 0; w < WAYS; w++)
        bench_say(b, "  %15s", ways[w].name);
    bench_say(b, "\n");
    for (int s = 0; s < SIZES; s++)
        for (int d = 0; d < DEPTHS && m->rates[1][s][d].n > 0; d++) {
            bench_say(b, "%5zu KiB  %5d", sizes[s] / 1024, depths[d]);
            for (int w = 0; w < WAYS; w++) {
                const bench_samples *rates = &m->rates[w][s][d];

                say_rate(b, rates, best);
                if (rates->n > 0)
                    bench_append(b, rows,
                                 json_pack("{s:s, s:I, s:i, s:o, s:f}", "how", ways[w].name,
                                           "bytes", (json_int_t)sizes[s], "calls", depths[d],
                                           "mb_per_s", bench_stat_json(rates, 1e-6), "of_best",
                                           bench_stat_of(rates).median / best));
            }
            bench_say(b, "\n");
        }
    bench_put(b, "file_bytes", json_integer(m->bytes));
    bench_put(b, "direct", json_boolean(m->direct));
    bench_put(b, "best_mb_per_s", json_real(best * 1e-6));
    bench_put(b, "reads", rows);
}

ek_status bench_disk(bench *b)
{
    disk_bench *m = calloc(1, sizeof(*m));
    ek_status st = EK_OK;

    EK_REQUIRE(m != NULL, EK_ENOMEM, "no memory for a benchmark");
    m->fd = -1;
    EK_TRY_OUT(open_file(b, m));
    for (int64_t i = 0; i < b->cfg->repeats; i++)
        EK_TRY_OUT(measure(b, m));
    print_rates(b, m);
out:
    close_file(m);
    free(m);
    return st;
}
